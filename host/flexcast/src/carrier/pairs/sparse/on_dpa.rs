//! Aggregators of a communicator's sparse AllReduces on the DPAs of the ranks' cards.
//!
//! A rank may have all its sums while its DPA still sends sums to other ranks. So an aggregator ends only after the DPA
//! has reported that all workers have acknowledged their answers.

use std::sync::OnceLock;
use std::time::Duration;

use flexcast_proto::sparse::{CacheBudget, Parameters};
use flexio::{Bound, Retry};

use super::{Fault, fixed_point};
use crate::carrier::dpa::card::{DpaCard, TakenUnits};
use crate::carrier::dpa::sparse::{
    AggregatorCard, AggregatorElement, AggregatorOptions, AggregatorStanding, DpaAggregator, PreparedAggregator,
};
use crate::carrier::endpoint::CarrierEndpoint;
use crate::error::{Error, Result};
use crate::op::aggregation::Aggregation;
use crate::op::config::{Config, ps};
use crate::op::units::ThreadPlacement;
use flexcast_reduce::{DataType, Operator, Reduction};
use flexcast_sparse::SparseOptions;
use flexcast_sparse::{FixedPoint, Settings};

/// Most shards of a rank, each with a thread: a core of the DPA.
const MOST_SHARDS: u64 = 16;
/// Blocks are added in steps of so many bytes.
const BLOCK_STEP: u32 = 128;
/// Longest that the end of a communicator waits until all workers have their answers.
const LINGER: Duration = Duration::from_secs(1);
/// A thread that has overlooked a question is asked again so much later.
const ASK_AGAIN_PS: u64 = 1_000_000_000;
/// Polls in vain after which a machine that does not advance is given up.
const LINGER_POLLS: u64 = 10_000_000;

/// A card whose DPA adds, and what its aggregators are made of.
#[derive(Clone, Debug)]
pub(crate) struct OnDpa {
    card: AggregatorCard,
    /// Where units are taken from: of a card whose DPA has the datapath, among its own.
    units: DpaCard,
    placement: ThreadPlacement,
    options: AggregatorOptions,
    silence_ps: u64,
    /// Greatest magnitude of a contribution of `f32`, if these are added as fixed-point numbers.
    bound: Option<f32>,
}

/// The elements with which the DPA carries a reduction out; none of another.
const fn element_of(reduction: Reduction) -> Option<AggregatorElement> {
    match (reduction.operator(), reduction.data_type()) {
        // In two's complement sums with wraparound are the same bits with a sign and without.
        (Operator::Sum, DataType::I32 | DataType::U32) => Some(AggregatorElement::I32),
        (Operator::Sum, DataType::I64 | DataType::U64) => Some(AggregatorElement::I64),
        _ => None,
    }
}

impl OnDpa {
    /// The aggregators of communicators with this configuration; none unless it asks for them.
    ///
    /// # Errors
    /// [`Error::Config`]: the card has none. [`Error::Argument`]: no bound of fixed-point numbers.
    pub(crate) fn of(endpoint: &dyn CarrierEndpoint, config: &Config) -> Result<Option<Self>> {
        fixed_point::check(config)?;
        if config.sparse_aggregation == Aggregation::Host {
            return Ok(None);
        }
        let (started, units) = (endpoint.aggregators().and_then(OnceLock::get), endpoint.dpa());
        let limit = match endpoint.aggregators() {
            None => format!("host on an endpoint of the datapath {}, which has no DPA", endpoint.kind()),
            Some(_) => "host, unless image `sparse` runs on the card: start it (Endpoint::start_aggregators; \
                        sparse_firmware_path or FLEXCAST_SPARSE_FIRMWARE of the C interface)"
                .to_owned(),
        };
        let value = config.sparse_aggregation as u64;
        let missing = || Error::Config { what: "sparse.aggregation", value, limit: limit.clone() };
        let started = started.ok_or_else(missing)?;
        Ok(Some(Self::new(started, units.unwrap_or(started), config)))
    }

    fn new(card: &DpaCard, units: &DpaCard, config: &Config) -> Self {
        let options = AggregatorOptions {
            units: Vec::new(),
            coroutines: 1,
            budget: config.budget,
            cache_bytes: config.cache_bytes,
            retry: Retry { timeout_exponent: config.retry_exponent, count: 7 },
            class: config.data_class,
        };
        // A rank that knows who is missing reports it before others, who do not, take another for the failed rank.
        let silence_ps = ps(config.barrier_timeout) / 4 * 3;
        let card = AggregatorCard::of(card.clone());
        let (placement, bound) = (config.placement, config.sparse_fixed_point);
        Self { card, units: units.clone(), placement, options, silence_ps, bound }
    }

    /// A sum of `f32` as the one of words that the DPA carries out; none if it is not one for the DPA.
    pub(super) fn as_words(
        &self,
        options: SparseOptions,
        call: (u64, Reduction),
        ranks: u32,
    ) -> Option<((u64, Reduction), Option<FixedPoint>)> {
        let (words, format) = fixed_point::words(call, self.bound?, ranks)?;
        self.shards_of_each(options, words, ranks).map(|_| (words, Some(format)))
    }

    /// Shards of each aggregator; none if the operation is one for processors. Alike on all ranks.
    pub(super) fn shards_of_each(&self, options: SparseOptions, call: (u64, Reduction), ranks: u32) -> Option<u32> {
        let (bytes, reduction) = call;
        element_of(reduction)?;
        if !options.block_bytes.is_multiple_of(BLOCK_STEP) {
            return None;
        }
        let parameters = options.parameters(ranks, reduction).ok()?;
        let message = u64::from(parameters.block_bytes()) * u64::from(parameters.blocks_per_message());
        let wanted = bytes.div_ceil(2 * message * u64::from(ranks)).clamp(1, MOST_SHARDS) as u32;
        let fits = |instances: &u32| {
            CacheBudget { cache_bytes: self.options.cache_bytes, instances: *instances }.check(parameters).is_ok()
        };
        (1..=wanted).rev().find(fits)
    }

    /// Makes threads and queue pairs of rank `own`, and what workers are sent.
    pub(super) fn prepare(&self, settings: &Settings, own: u32) -> Result<(PendingAdder, Vec<u8>)> {
        let shards = settings.shards_of_each();
        let hot_bytes = settings.parameters().aggregator_bytes() * u64::from(shards);
        let units = self.units.take_units(shards, self.placement, hot_bytes)?;
        let options = AggregatorOptions { units: vec![1; units.len()], ..self.options.clone() };
        let (prepared, info) = self.card.prepare_on(settings, own, &options, &units)?;
        Ok((PendingAdder { prepared, own, silence_ps: self.silence_ps, units }, info))
    }
}

/// Bytes of slots and queue pairs of a rank's aggregator, for who has no room for them.
pub(super) fn room(parameters: Parameters, shards: u32) -> String {
    format!(
        "{shards} threads, {} queue pairs and {} bytes on the DPA",
        parameters.workers() * shards,
        parameters.aggregator_bytes() * u64::from(shards)
    )
}

/// An aggregator that is not connected yet.
#[derive(Debug)]
pub(super) struct PendingAdder {
    prepared: PreparedAggregator,
    own: u32,
    silence_ps: u64,
    units: TakenUnits,
}

impl PendingAdder {
    pub(super) fn connect(self, workers: &[&[u8]]) -> Result<Adder> {
        let Self { prepared, own, silence_ps, units } = self;
        Ok(Adder {
            aggregator: prepared.connect_for(workers)?,
            element: AggregatorElement::I32,
            own,
            silence_ps,
            moved_ps: 0,
            asked_ps: None,
            is_idle: true,
            _units: units,
        })
    }
}

/// A rank's aggregator on its card's DPA, and what its host has to do for it: next to nothing.
#[derive(Debug)]
pub(super) struct Adder {
    aggregator: DpaAggregator,
    element: AggregatorElement,
    own: u32,
    /// How long nothing has to happen before the DPA is asked whom it waits for.
    silence_ps: u64,
    /// When the own worker has last done something.
    moved_ps: u64,
    asked_ps: Option<u64>,
    /// Whether all operations have ended well, as far as the own worker has a part in them.
    is_idle: bool,
    /// Given back after the threads have ended.
    _units: TakenUnits,
}

impl Adder {
    /// An operation begins; to be called before the own worker votes.
    pub(super) fn begin(&mut self, reduction: Reduction, now_ps: u64) -> std::result::Result<(), Fault> {
        self.is_idle = false;
        self.check()?;
        if let Some(element) = element_of(reduction).filter(|element| *element != self.element) {
            self.aggregator.set_element(element)?;
            self.element = element;
        }
        (self.moved_ps, self.asked_ps) = (now_ps, None);
        Ok(())
    }

    fn check(&self) -> std::result::Result<(), Fault> {
        self.aggregator.failure()?.map_or(Ok(()), |failure| Err(Fault::Shard(failure)))
    }

    /// The own worker has done something, or has not; `is_complete`: it has all sums.
    pub(super) fn watch(&mut self, moved: bool, is_complete: bool, now_ps: u64) -> std::result::Result<(), Fault> {
        self.is_idle = is_complete;
        if moved || is_complete {
            (self.moved_ps, self.asked_ps) = (now_ps, None);
            return Ok(());
        }
        self.check()?;
        if now_ps.saturating_sub(self.moved_ps) < self.silence_ps {
            return Ok(());
        }
        if let Some(AggregatorStanding { awaited: Some(rank), .. }) = self.ask(now_ps)?
            && rank != self.own
        {
            return Err(Fault::Silent(rank));
        }
        Ok(())
    }

    /// What the DPA says; asks it, unless it has been asked just before.
    fn ask(&mut self, now_ps: u64) -> Result<Option<AggregatorStanding>> {
        match self.asked_ps {
            Some(asked_ps) if now_ps.saturating_sub(asked_ps) < ASK_AGAIN_PS => self.aggregator.standing(),
            _ => {
                self.asked_ps = Some(now_ps);
                self.aggregator.ask().map(|()| None)
            }
        }
    }

    /// When [`Adder::watch`] has something to do although nothing comes.
    pub(super) fn deadline_ps(&self) -> u64 {
        let silent_ps = self.moved_ps.saturating_add(self.silence_ps);
        self.asked_ps.map_or(silent_ps, |asked_ps| asked_ps.saturating_add(ASK_AGAIN_PS))
    }

    /// Waits until all workers have their answers.
    fn linger(&mut self) -> Result<()> {
        let provider = self.aggregator.provider();
        let bound = Bound { span: LINGER, polls: LINGER_POLLS };
        self.asked_ps = None;
        let mut fault = None;
        provider.wait(bound, "all workers of a sparse AllReduce to have their sums", || {
            match self.ask(provider.relax().now_ps()) {
                Ok(standing) => Ok(standing.filter(|standing| standing.is_answered).map(drop)),
                Err(error) => {
                    fault = Some(error);
                    Ok(Some(()))
                }
            }
        })?;
        fault.map_or(Ok(()), Err)
    }
}

impl Drop for Adder {
    /// The own worker may have its sums before others have theirs, which come from here.
    fn drop(&mut self) {
        if self.is_idle
            && let Err(error) = self.linger()
        {
            tracing::warn!(%error, "an aggregator on the DPA ends, and not all workers may have their sums");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_the_dpa_s() {
        let on_dpa = |operator, data_type| element_of(Reduction::new(operator, data_type).unwrap());
        for data_type in [DataType::I32, DataType::U32] {
            assert_eq!(on_dpa(Operator::Sum, data_type), Some(AggregatorElement::I32));
        }
        for data_type in [DataType::I64, DataType::U64] {
            assert_eq!(on_dpa(Operator::Sum, data_type), Some(AggregatorElement::I64));
        }
        for (operator, data_type) in [
            (Operator::Sum, DataType::F32),
            (Operator::Sum, DataType::I16),
            (Operator::Max, DataType::I32),
            (Operator::BitOr, DataType::U64),
        ] {
            assert_eq!(on_dpa(operator, data_type), None, "{operator} of {data_type}");
        }
    }
}
