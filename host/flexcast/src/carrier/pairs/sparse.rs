//! Connections of a communicator for sparse AllReduces: each rank is a worker of all shards, and the aggregator of its
//! own, by its processor or its card's DPA, unless others than ranks are aggregators ([`external`]).

mod between;
mod buffers;
mod contacts;
mod external;
mod fixed_point;
mod on_dpa;

use std::sync::Arc;

use flexcast_abi::SparseStatus;
use flexcast_proto::sparse::Order;
use flexcast_proto::{Cause, FailureCode, RankInfo, WaitedFor};
use flexio::ProtectionDomain;
use thiserror::Error as ThisError;

use crate::carrier::dpa::sparse::AggregatorFailure;
use crate::carrier::endpoint::CarrierEndpoint;
use crate::error::Error;
use crate::op::aggregation::Aggregation;
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use flexcast_rc::linger::Lingering;
use flexcast_sparse::SparseOptions;
use flexcast_sparse::{self as sparse, Call, FixedPoint, Party, Settings, connect_info_bytes};

use between::{Between, PendingBetween};
use external::External;
use on_dpa::OnDpa;

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
    /// An aggregator that is no rank has failed.
    #[error("aggregator {number}, counted from 0, {reason}")]
    Aggregator {
        /// Its number.
        number: u16,
        /// What it has done, or not done, and what helps.
        reason: String,
    },
    /// An aggregator that is no rank names the one to blame.
    #[error("an aggregator says that the operation fails because of rank {rank} ({cause:?})")]
    Reported {
        /// The failed rank.
        rank: u32,
        /// What has happened.
        cause: Cause,
    },
    /// Of this rank.
    #[error(transparent)]
    Here(#[from] Error),
}

flexcast_error::debug_as_display!(Fault);

impl Fault {
    /// The rank to blame; none: this one.
    pub(super) const fn failed_rank(&self) -> Option<u32> {
        match self {
            Self::Link(error) => failed_rank(error),
            Self::Shard(AggregatorFailure { status: Ok(SparseStatus::Element) | Err(_), .. }) | Self::Here(_) => None,
            Self::Aggregator { .. } => None,
            Self::Shard(failure) => Some(failure.worker),
            Self::Silent(rank) | Self::Reported { rank, .. } => Some(*rank),
        }
    }

    /// What is reported to the protocol as the cause.
    pub(super) const fn cause(&self) -> Cause {
        match self {
            Self::Link(sparse::Error::Connection { source: flexio::Error::Completion { status, .. }, .. }) => {
                Cause::Connection(FailureCode::of_completion(*status))
            }
            Self::Shard(AggregatorFailure { status: Ok(SparseStatus::Connection), found, .. }) => {
                Cause::Connection(FailureCode::of_syndrome(*found as u8))
            }
            Self::Silent(_) => Cause::Silent(WaitedFor::Block),
            Self::Link(sparse::Error::FixedPoint(_)) => Cause::Contribution,
            Self::Aggregator { number, .. } => Cause::Aggregator(*number),
            Self::Reported { cause, .. } => *cause,
            Self::Link(
                sparse::Error::Connection { .. }
                | sparse::Error::Protocol { .. }
                | sparse::Error::Ended { .. }
                | sparse::Error::Timeout { .. },
            ) => Cause::Connection(FailureCode::ProtocolViolation),
            Self::Shard(_) if self.failed_rank().is_some() => Cause::Connection(FailureCode::ProtocolViolation),
            _ => Cause::Device(FailureCode::NotStarted),
        }
    }
}

/// What connections for a sparse AllReduce have to carry. It follows from the call and the configuration, and so is
/// alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    options: SparseOptions,
    call: Call,
    aggregation: Aggregation,
    /// Aggregators that are no ranks; 0: the ranks are.
    external: u32,
    /// What of the array is added, if not its elements.
    fixed_point: Option<FixedPoint>,
}

/// Who adds what a communicator's sparse AllReduces send.
#[derive(Clone, Debug)]
pub(crate) enum Adders {
    /// The ranks' processors.
    Ranks,
    /// The DPAs of the ranks' cards, where they can; else the processors.
    Dpas(OnDpa),
    /// Others than ranks.
    External(External),
}

impl Adders {
    /// Those of communicators with this configuration.
    ///
    /// # Errors
    /// The card has none; an aggregator has no address.
    pub(crate) fn of(endpoint: &dyn CarrierEndpoint, config: &crate::op::config::Config) -> crate::error::Result<Self> {
        if let Some(external) = External::of(config)? {
            return Ok(Self::External(external));
        }
        Ok(OnDpa::of(endpoint, config)?.map_or(Self::Ranks, Self::Dpas))
    }

    /// Whether the card has what is asked for.
    ///
    /// # Errors
    /// It has not.
    pub(crate) fn check(
        endpoint: &dyn CarrierEndpoint,
        config: &crate::op::config::Config,
    ) -> crate::error::Result<()> {
        OnDpa::of(endpoint, config).map(drop)
    }

    const fn on_dpa(&self) -> Option<&OnDpa> {
        match self {
            Self::Dpas(on_dpa) => Some(on_dpa),
            Self::Ranks | Self::External(_) => None,
        }
    }

    const fn external(&self) -> Option<&External> {
        match self {
            Self::External(external) => Some(external),
            Self::Ranks | Self::Dpas(_) => None,
        }
    }
}

/// A rank and its card: what queue pairs are made of.
#[derive(Clone, Debug)]
pub(crate) struct RankCard {
    pub(super) pd: ProtectionDomain,
    pub(super) place: RankInfo,
    pub(super) config: sparse::Config,
    /// What the card keeps of queue pairs that are given up.
    pub(super) lingering: Arc<Lingering>,
}

/// Connected queue pairs, and the memory that they use.
#[derive(Debug)]
pub(crate) enum Session {
    /// Ranks are the aggregators.
    Ranks(Box<Between>),
    /// Others are.
    External(Box<external::Session>),
}

/// The same before they are connected.
#[derive(Debug)]
pub(crate) enum PendingSession {
    Ranks(Box<PendingBetween>),
    External(Box<external::Pending>),
}

impl Need {
    /// None of another collective.
    pub(super) fn of(collective: &Collective, ranks: u32, reproducible: bool, adders: &Adders) -> Option<Self> {
        let Collective::SparseAllreduce { bytes, reduction, options } = *collective else { return None };
        let order = if reproducible { Order::Rank } else { Order::Arrival };
        let external = adders.external().map_or(0, External::count);
        let words = adders.on_dpa().and_then(|on_dpa| on_dpa.as_words(options, (bytes, reduction), ranks));
        let ((bytes, reduction), fixed_point) = words.unwrap_or(((bytes, reduction), None));
        let on_dpa = adders.on_dpa().and_then(|on_dpa| on_dpa.shards_of_each(options, (bytes, reduction), ranks));
        let aggregation = if on_dpa.is_some() { Aggregation::Dpa } else { Aggregation::Host };
        let aggregators = if external > 0 { external } else { ranks };
        let shards_of_each = on_dpa.unwrap_or_else(|| options.shards_of_each(bytes, aggregators));
        let call = Call { bytes, shards_of_each, reduction, order };
        Some(Self { options, call, aggregation, external, fixed_point })
    }

    pub(super) const fn call(&self) -> Call {
        self.call
    }

    /// What adds.
    pub(super) const fn aggregation(&self) -> Aggregation {
        self.aggregation
    }

    /// What of the array is added, if not its elements.
    pub(super) const fn fixed_point(&self) -> Option<FixedPoint> {
        self.fixed_point
    }

    fn settings(&self, ranks: u32) -> sparse::Result<Settings> {
        let SparseOptions { block_bytes, blocks_per_message } = self.options;
        let aggregators = if self.external > 0 { self.external } else { ranks };
        Settings::new(ranks, aggregators, self.call.shards_of_each, block_bytes, blocks_per_message)
    }

    /// Bytes of the connection information of a worker and of an aggregator.
    fn halves(&self, ranks: u32) -> sparse::Result<[usize; 2]> {
        let settings = self.settings(ranks)?;
        Ok([Party::Worker(0), Party::Aggregator(0)].map(|party| connect_info_bytes(party, &settings)))
    }

    /// Bytes that a rank sends the others.
    pub(super) fn connect_info_bytes(&self, ranks: u32) -> u64 {
        if self.external > 0 {
            return external::PROPOSAL_BYTES as u64;
        }
        self.halves(ranks).map_or(0, |halves| halves.iter().sum::<usize>() as u64)
    }

    /// What a card has no room for.
    pub(super) fn room(&self, ranks: u32) -> String {
        let each = self.call.shards_of_each;
        let Ok(parameters) = self.settings(ranks).map(|settings| settings.parameters()) else { return String::new() };
        let aggregators = if self.external > 0 { self.external } else { ranks };
        let ring_bytes = u64::from(each) * u64::from(aggregators) * u64::from(parameters.ring_bytes());
        let (next, queue_pairs) = ("use fewer blocks per message, or split this communicator", aggregators * each);
        match self.aggregation {
            Aggregation::Host if self.external > 0 => {
                format!("{queue_pairs} queue pairs and {ring_bytes} bytes of a sparse AllReduce: {next}")
            }
            Aggregation::Host => {
                let bytes = u64::from(each) * parameters.aggregator_bytes() + ring_bytes;
                format!("{} queue pairs and {bytes} bytes of a sparse AllReduce: {next}", 2 * queue_pairs)
            }
            Aggregation::Dpa => {
                let there = on_dpa::room(parameters, each);
                format!(
                    "{queue_pairs} queue pairs and {ring_bytes} bytes of a sparse AllReduce, and {there}: {next}, or \
                     free other communicators of that card"
                )
            }
        }
    }
}

impl PendingSession {
    pub(super) fn prepare(card: &RankCard, adders: &Adders, need: Need) -> Result<(Self, Vec<u8>)> {
        if let Some(external) = adders.external() {
            let (pending, proposal) = external::Pending::prepare(card, external, need)?;
            return Ok((Self::External(Box::new(pending)), proposal));
        }
        let (pending, info) = PendingBetween::prepare(card, adders.on_dpa(), need)?;
        Ok((Self::Ranks(Box::new(pending)), info))
    }

    /// What adds.
    pub(super) const fn aggregation(&self) -> Aggregation {
        match self {
            Self::Ranks(pending) => pending.need.aggregation,
            Self::External(_) => Aggregation::Host,
        }
    }

    /// Connects with the ranks of this connection information, in their order. `before`: connections for the same,
    /// which these replace.
    pub(super) fn connect(self, infos: &[&[u8]], before: Option<Session>) -> Result<Session> {
        match self {
            Self::Ranks(pending) => {
                let between = pending.connect(infos)?;
                if let Some(before) = before {
                    before.leave();
                }
                Ok(Session::Ranks(Box::new(between)))
            }
            Self::External(pending) => {
                let before = match before {
                    Some(Session::External(session)) => Some(*session),
                    _ => None,
                };
                pending.connect(infos, before).map(|session| Session::External(Box::new(session)))
            }
        }
    }
}

impl Session {
    /// Ends the connections. Queue pairs still answer peers for a while, if the last operation has succeeded.
    pub(super) fn leave(self) {
        match self {
            Self::Ranks(between) => between.leave(),
            Self::External(session) => session.leave(),
        }
    }

    /// Whether a call can go over these connections, which are for who adds it.
    pub(super) fn carries(&self, need: &Need) -> bool {
        let (options, shards_of_each) = match self {
            Self::Ranks(between) => (between.options, between.shards_of_each),
            Self::External(session) => (session.need().options, session.need().call.shards_of_each),
        };
        options == need.options && need.call.shards_of_each <= shards_of_each
    }

    pub(super) fn begin(&mut self, call: Call, fixed_point: Option<FixedPoint>, now_ps: u64) -> Result<()> {
        match self {
            Self::Ranks(between) => between.begin(call, fixed_point, now_ps),
            Self::External(session) => session.begin(call, now_ps),
        }
    }

    /// Moves all sides on. Returns whether anything has happened.
    pub(super) fn advance(&mut self, send: Option<&Buffer>, receive: &mut Buffer, now_ps: u64) -> Result<bool> {
        match self {
            Self::Ranks(between) => between.advance(send, receive, now_ps),
            Self::External(session) => session.advance(send, receive, now_ps),
        }
    }

    pub(super) const fn is_complete(&self) -> bool {
        match self {
            Self::Ranks(between) => between.is_complete(),
            Self::External(session) => session.is_complete(),
        }
    }

    /// When it is to be moved on although nothing has come.
    pub(super) fn deadline_ps(&self) -> Option<u64> {
        match self {
            Self::Ranks(between) => between.deadline_ps(),
            Self::External(session) => session.deadline_ps(),
        }
    }

    /// The rank that owes the first thing that is missing.
    pub(super) fn awaited(&self, own: u32) -> u32 {
        match self {
            Self::Ranks(between) => between.awaited(own),
            Self::External(session) => session.awaited().unwrap_or(own),
        }
    }

    /// Messages that this rank has sent as a worker, and bytes of messages that have come to the host from others.
    pub(super) fn counts(&self, own: u32) -> [u64; 2] {
        match self {
            Self::Ranks(between) => between.counts(own),
            Self::External(session) => session.counts(),
        }
    }
}

/// The rank to blame for what connections have met with; none: this one.
const fn failed_rank(error: &sparse::Error) -> Option<u32> {
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
            (fault.failed_rank(), fault.cause())
        };
        assert_eq!(shard(Ok(SparseStatus::Connection)), (Some(3), Cause::Connection(FailureCode::RetriesExceeded)));
        assert_eq!(shard(Ok(SparseStatus::Length)), (Some(3), Cause::Connection(FailureCode::ProtocolViolation)));
        // Neither is a worker's doing.
        assert_eq!(shard(Ok(SparseStatus::Element)), (None, Cause::Device(FailureCode::NotStarted)));
        assert_eq!(shard(Err(99)), (None, Cause::Device(FailureCode::NotStarted)));
        let silent = Fault::Silent(2);
        assert_eq!((silent.failed_rank(), silent.cause()), (Some(2), Cause::Silent(WaitedFor::Block)));
    }
}
