//! Connections of a communicator for sparse AllReduces: each rank is a worker of all shards, and the aggregator of its own, by its processor or its card's DPA.

mod on_dpa;

use flexcast_abi::SparseStatus;
use flexcast_proto::sparse::Order;
use flexcast_proto::{Cause, RankInfo, WaitedFor};
use flexio::ProtectionDomain;
use thiserror::Error as ThisError;

use super::NOT_STARTED;
use super::connect::Maker;
use crate::api::buffer::Buffer;
use crate::datapath::sparse::SparseOptions;
use crate::dpa::sparse::AggregatorFailure;
use crate::error::Error;
use crate::p2p::sparse::{
    self, Aggregator, Buffers, Call, Config, Party, PendingAggregator, PendingWorker, Settings, Worker, endpoint_bytes,
};
use crate::plan::direct::Collective;
use crate::protocol::conversation::PROTOCOL_VIOLATION;
use crate::tuner::Aggregation;

pub(crate) use on_dpa::OnDpa;

type Result<T> = std::result::Result<T, Fault>;

/// What goes wrong with a sparse AllReduce.
#[derive(ThisError)]
pub(crate) enum Fault {
    /// Of a connection.
    #[error(transparent)]
    Link(#[from] sparse::Error),
    /// The own DPA adds no more.
    #[error(transparent)]
    Shard(AggregatorFailure),
    /// The own DPA has waited for a rank for too long.
    #[error("rank {0} has sent the aggregator on this rank's DPA nothing for too long; is it still there?")]
    Silent(u32),
    /// Of this rank.
    #[error(transparent)]
    Here(#[from] Error),
}

flexcast_error::debug_as_display!(Fault);

impl Fault {
    /// The rank to blame; none: this one.
    pub(super) const fn culprit(&self) -> Option<u32> {
        match self {
            Self::Link(error) => culprit(error),
            Self::Shard(AggregatorFailure { status: Ok(SparseStatus::Element) | Err(_), .. }) | Self::Here(_) => None,
            Self::Shard(failure) => Some(failure.worker),
            Self::Silent(rank) => Some(*rank),
        }
    }

    /// What the protocol is told has happened.
    pub(super) const fn cause(&self) -> Cause {
        match self {
            Self::Link(sparse::Error::Connection { source: flexio::Error::Completion { status, .. }, .. }) => {
                Cause::Connection(*status as u16)
            }
            Self::Shard(AggregatorFailure { status: Ok(SparseStatus::Connection), found, .. }) => {
                Cause::Connection(*found as u16)
            }
            Self::Silent(_) => Cause::Silent(WaitedFor::Block),
            Self::Link(
                sparse::Error::Connection { .. }
                | sparse::Error::Protocol { .. }
                | sparse::Error::Ended { .. }
                | sparse::Error::Timeout { .. },
            ) => Cause::Connection(PROTOCOL_VIOLATION),
            Self::Shard(_) if self.culprit().is_some() => Cause::Connection(PROTOCOL_VIOLATION),
            _ => Cause::Device(NOT_STARTED),
        }
    }
}

/// What connections for a sparse AllReduce have to carry. It follows from the call and the configuration, and so is alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    options: SparseOptions,
    call: Call,
    aggregation: Aggregation,
}

/// Connected queue pairs, and the memory that they use.
#[derive(Debug)]
pub(crate) struct Session {
    options: SparseOptions,
    shards_of_each: u32,
    // Before the worker: at its end the DPA still has workers to answer, the own one among them.
    adder: Adder,
    worker: Worker,
}

/// Who adds this rank's shards.
#[derive(Debug)]
enum Adder {
    Host(Aggregator),
    Dpa(on_dpa::Adder),
}

/// The same before they are connected.
#[derive(Debug)]
pub(crate) struct PendingSession {
    need: Need,
    settings: Settings,
    worker: PendingWorker,
    adder: PendingAdder,
}

#[derive(Debug)]
enum PendingAdder {
    Host(PendingAggregator),
    Dpa(on_dpa::PendingAdder),
}

impl Need {
    /// None of another collective.
    pub(super) fn of(collective: &Collective, ranks: u32, reproducible: bool, on_dpa: Option<&OnDpa>) -> Option<Self> {
        let Collective::SparseAllreduce { bytes, reduction, options } = *collective else { return None };
        let order = if reproducible { Order::Rank } else { Order::Arrival };
        let on_dpa = on_dpa.and_then(|on_dpa| on_dpa.shards_of_each(options, (bytes, reduction), ranks));
        let aggregation = if on_dpa.is_some() { Aggregation::Dpa } else { Aggregation::Host };
        let shards_of_each = on_dpa.unwrap_or_else(|| options.shards_of_each(bytes, ranks));
        Some(Self { options, call: Call { bytes, shards_of_each, reduction, order }, aggregation })
    }

    pub(super) const fn call(&self) -> Call {
        self.call
    }

    /// What adds.
    pub(super) const fn aggregation(&self) -> Aggregation {
        self.aggregation
    }

    fn settings(&self, ranks: u32) -> sparse::Result<Settings> {
        let SparseOptions { block_bytes, blocks_per_message } = self.options;
        Settings::new(ranks, ranks, self.call.shards_of_each, block_bytes, blocks_per_message)
    }

    /// Bytes of the endpoints of a worker and of an aggregator.
    fn halves(&self, ranks: u32) -> sparse::Result<[usize; 2]> {
        let settings = self.settings(ranks)?;
        Ok([Party::Worker(0), Party::Aggregator(0)].map(|party| endpoint_bytes(party, &settings)))
    }

    /// Bytes that a rank tells the others.
    pub(super) fn endpoint_bytes(&self, ranks: u32) -> u64 {
        self.halves(ranks).map_or(0, |halves| halves.iter().sum::<usize>() as u64)
    }

    /// What a card has no room for.
    pub(super) fn room(&self, ranks: u32) -> String {
        let each = self.call.shards_of_each;
        let Ok(parameters) = self.settings(ranks).map(|settings| settings.parameters()) else { return String::new() };
        let ring_bytes = u64::from(each) * u64::from(ranks) * u64::from(parameters.ring_bytes());
        let (next, queue_pairs) = ("use fewer blocks per message, or split this communicator", ranks * each);
        match self.aggregation {
            Aggregation::Host => {
                let bytes = u64::from(each) * parameters.aggregator_bytes() + ring_bytes;
                format!("{} queue pairs and {bytes} bytes of a sparse AllReduce: {next}", 2 * queue_pairs)
            }
            Aggregation::Dpa => {
                let there = on_dpa::room(parameters, each);
                format!(
                    "{queue_pairs} queue pairs and {ring_bytes} bytes of a sparse AllReduce, and {there}: {next}, or free other communicators of that card"
                )
            }
        }
    }
}

impl PendingSession {
    pub(super) fn prepare(maker: &Maker, need: Need) -> Result<(Self, Vec<u8>)> {
        let (pd, place): (&ProtectionDomain, RankInfo) = (maker.pd(), maker.place);
        let settings = need.settings(place.ranks())?;
        let retry = maker.retry();
        let config = Config { retry, class: maker.data_class(), ..Config::default() };
        let (worker, mut endpoint) = Worker::prepare(pd, settings, place.rank(), config)?;
        let (adder, behind) = match (need.aggregation, maker.on_dpa()) {
            (Aggregation::Dpa, Some(on_dpa)) => {
                let (adder, behind) = on_dpa.prepare(&settings, place.rank())?;
                (PendingAdder::Dpa(adder), behind)
            }
            _ => {
                let (aggregator, behind) = Aggregator::prepare(pd, settings, place.rank(), config)?;
                (PendingAdder::Host(aggregator), behind)
            }
        };
        endpoint.extend(behind);
        Ok((Self { need, settings, worker, adder }, endpoint))
    }

    /// What adds.
    pub(super) const fn aggregation(&self) -> Aggregation {
        self.need.aggregation
    }

    /// Connects with the ranks that have told these endpoints, in their order.
    pub(super) fn connect(self, endpoints: &[&[u8]]) -> Result<Session> {
        let Self { need, settings, worker, adder } = self;
        let [workers, _] = need.halves(settings.aggregators())?;
        let (ours, theirs): (Vec<_>, Vec<_>) =
            endpoints.iter().map(|endpoint| endpoint.split_at_checked(workers).unwrap_or((endpoint, &[]))).unzip();
        Ok(Session {
            options: need.options,
            shards_of_each: settings.shards_of_each(),
            adder: match adder {
                PendingAdder::Host(aggregator) => Adder::Host(aggregator.connect(&ours)?),
                PendingAdder::Dpa(adder) => Adder::Dpa(adder.connect(&settings, &ours)?),
            },
            worker: worker.connect(&theirs)?,
        })
    }
}

impl Session {
    /// Whether a call can go over these connections, which are for who adds it.
    pub(super) fn carries(&self, need: &Need) -> bool {
        self.options == need.options && need.call.shards_of_each <= self.shards_of_each
    }

    pub(super) fn begin(&mut self, call: Call, now_ps: u64) -> Result<()> {
        match &mut self.adder {
            Adder::Host(aggregator) => aggregator.begin(call)?,
            Adder::Dpa(adder) => adder.begin(call.reduction, now_ps)?,
        }
        Ok(self.worker.begin(call)?)
    }

    /// Moves both sides on. Tells whether anything has happened.
    pub(super) fn advance(&mut self, send: Option<&Buffer>, receive: &mut Buffer, now_ps: u64) -> Result<bool> {
        let mut moved = match &mut self.adder {
            Adder::Host(aggregator) => aggregator.advance()?,
            Adder::Dpa(_) => false,
        };
        moved |= self.worker.advance(&mut Buffers { send, receive })?;
        if let Adder::Dpa(adder) = &mut self.adder {
            adder.watch(moved, self.worker.is_complete(), now_ps)?;
        }
        Ok(moved)
    }

    pub(super) const fn is_complete(&self) -> bool {
        match &self.adder {
            Adder::Host(aggregator) => self.worker.is_complete() && aggregator.is_complete(),
            // What others still wait for needs no host.
            Adder::Dpa(_) => self.worker.is_complete(),
        }
    }

    /// When it is to be moved on although nothing has come.
    pub(super) fn deadline_ps(&self) -> Option<u64> {
        let adder_ps = match &self.adder {
            Adder::Host(aggregator) => aggregator.deadline_ps(),
            Adder::Dpa(adder) => (!self.worker.is_complete()).then(|| adder.deadline_ps()),
        };
        [self.worker.deadline_ps(), adder_ps].into_iter().flatten().min()
    }

    /// The rank that owes the first thing that is missing.
    pub(super) fn awaited(&self, own: u32) -> u32 {
        // What the own aggregator waits for is the cause of what the own worker waits for.
        let of_adder = match &self.adder {
            Adder::Host(aggregator) => aggregator.awaited(),
            Adder::Dpa(_) => None,
        };
        let of_worker = || self.worker.awaited().filter(|aggregator| *aggregator != own);
        of_adder.filter(|worker| *worker != own).or_else(of_worker).unwrap_or(own)
    }

    /// Messages that this rank has sent as a worker.
    pub(super) const fn messages(&self) -> u64 {
        self.worker.statistics().sent_messages
    }

    /// Bytes of messages that have come to the host from other ranks.
    pub(super) fn foreign_bytes(&self, own: u32) -> u64 {
        let as_worker = self.worker.statistics().received_bytes - self.worker.received_from(own);
        match &self.adder {
            Adder::Host(aggregator) => {
                as_worker + aggregator.statistics().received_bytes - aggregator.received_from(own)
            }
            Adder::Dpa(_) => as_worker,
        }
    }
}

/// The rank to blame for what connections have met with; none: this one.
const fn culprit(error: &sparse::Error) -> Option<u32> {
    use sparse::Error;
    match error {
        Error::Connection { party, .. } | Error::Protocol { party, .. } | Error::Timeout { party, .. } => match party {
            Party::Worker(rank) | Party::Aggregator(rank) => Some(*rank),
        },
        Error::Ended { aggregator, worker: None } => Some(*aggregator),
        Error::Ended { worker, .. } => *worker,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_has_stopped_blames_the_worker_or_the_own_card() {
        let shard = |status| {
            let (shard, worker, iteration, operations, found, limit) = (0, 3, 1, 2, 0x15, 0);
            let failure = AggregatorFailure { shard, worker, iteration, operations, status, found, limit };
            let fault = Fault::Shard(failure);
            (fault.culprit(), fault.cause())
        };
        assert_eq!(shard(Ok(SparseStatus::Connection)), (Some(3), Cause::Connection(0x15)));
        assert_eq!(shard(Ok(SparseStatus::Length)), (Some(3), Cause::Connection(PROTOCOL_VIOLATION)));
        // Neither is a worker's doing.
        assert_eq!(shard(Ok(SparseStatus::Element)), (None, Cause::Device(NOT_STARTED)));
        assert_eq!(shard(Err(99)), (None, Cause::Device(NOT_STARTED)));
        let silent = Fault::Silent(2);
        assert_eq!((silent.culprit(), silent.cause()), (Some(2), Cause::Silent(WaitedFor::Block)));
    }
}
