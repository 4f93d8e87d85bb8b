//! Connections of a communicator for sparse AllReduces: each rank is a worker of all shards, and the aggregator of its own.

use flexcast_proto::RankInfo;
use flexcast_proto::sparse::Order;
use flexio::ProtectionDomain;

use super::connect::Maker;
use crate::api::buffer::Buffer;
use crate::datapath::sparse::SparseOptions;
use crate::p2p::sparse::{
    Aggregator, Buffers, Call, Config, Error, Party, PendingAggregator, PendingWorker, Result, Settings, Worker,
    endpoint_bytes,
};
use crate::plan::direct::Collective;

/// What connections for a sparse AllReduce have to carry. It follows from the call, and so is alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    options: SparseOptions,
    call: Call,
}

/// Connected queue pairs, and the memory that they use.
#[derive(Debug)]
pub(crate) struct Session {
    options: SparseOptions,
    shards_of_each: u32,
    worker: Worker,
    aggregator: Aggregator,
}

/// The same before they are connected.
#[derive(Debug)]
pub(crate) struct PendingSession {
    need: Need,
    settings: Settings,
    worker: PendingWorker,
    aggregator: PendingAggregator,
}

impl Need {
    /// None of another collective.
    pub(super) fn of(collective: &Collective, ranks: u32, reproducible: bool) -> Option<Self> {
        let Collective::SparseAllreduce { bytes, reduction, options } = *collective else { return None };
        let order = if reproducible { Order::Rank } else { Order::Arrival };
        let shards_of_each = options.shards_of_each(bytes, ranks);
        Some(Self { options, call: Call { bytes, shards_of_each, reduction, order } })
    }

    pub(super) const fn call(&self) -> Call {
        self.call
    }

    fn settings(&self, ranks: u32) -> Result<Settings> {
        let SparseOptions { block_bytes, blocks_per_message } = self.options;
        Settings::new(ranks, ranks, self.call.shards_of_each, block_bytes, blocks_per_message)
    }

    /// Bytes of the endpoints of a worker and of an aggregator.
    fn halves(&self, ranks: u32) -> Result<[usize; 2]> {
        let settings = self.settings(ranks)?;
        Ok([Party::Worker(0), Party::Aggregator(0)].map(|party| endpoint_bytes(party, &settings)))
    }

    /// Bytes that a rank tells the others.
    pub(super) fn endpoint_bytes(&self, ranks: u32) -> u64 {
        self.halves(ranks).map_or(0, |halves| halves.iter().sum::<usize>() as u64)
    }

    /// What a card has no room for.
    pub(super) fn room(&self, ranks: u32) -> String {
        let bytes = self.settings(ranks).map_or(0, |settings| {
            let parameters = settings.parameters();
            let each = u64::from(self.call.shards_of_each);
            each * (parameters.aggregator_bytes() + u64::from(ranks) * u64::from(parameters.ring_bytes()))
        });
        format!(
            "{} queue pairs and {bytes} bytes of a sparse AllReduce: use fewer blocks per message, or split this communicator",
            2 * ranks * self.call.shards_of_each
        )
    }
}

impl PendingSession {
    pub(super) fn prepare(maker: &Maker, need: Need) -> Result<(Self, Vec<u8>)> {
        let (pd, place): (&ProtectionDomain, RankInfo) = (maker.pd(), maker.place);
        let settings = need.settings(place.ranks())?;
        let retry = maker.retry();
        let config = Config { retry, class: maker.data_class(), ..Config::default() };
        let (worker, mut endpoint) = Worker::prepare(pd, settings, place.rank(), config)?;
        let (aggregator, behind) = Aggregator::prepare(pd, settings, place.rank(), config)?;
        endpoint.extend(behind);
        Ok((Self { need, settings, worker, aggregator }, endpoint))
    }

    /// Connects with the ranks that have told these endpoints, in their order.
    pub(super) fn connect(self, endpoints: &[&[u8]]) -> Result<Session> {
        let Self { need, settings, worker, aggregator } = self;
        let [workers, _] = need.halves(settings.aggregators())?;
        let (ours, theirs): (Vec<_>, Vec<_>) =
            endpoints.iter().map(|endpoint| endpoint.split_at_checked(workers).unwrap_or((endpoint, &[]))).unzip();
        Ok(Session {
            options: need.options,
            shards_of_each: settings.shards_of_each(),
            aggregator: aggregator.connect(&ours)?,
            worker: worker.connect(&theirs)?,
        })
    }
}

impl Session {
    /// Whether a call can go over these connections.
    pub(super) fn carries(&self, need: &Need) -> bool {
        self.options == need.options && need.call.shards_of_each <= self.shards_of_each
    }

    pub(super) fn begin(&mut self, call: Call) -> Result<()> {
        self.aggregator.begin(call)?;
        self.worker.begin(call)
    }

    /// Moves both sides on. Tells whether anything has happened.
    pub(super) fn advance(&mut self, send: Option<&Buffer>, receive: &mut Buffer) -> Result<bool> {
        let moved = self.aggregator.advance()?;
        Ok(self.worker.advance(&mut Buffers { send, receive })? | moved)
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.worker.is_complete() && self.aggregator.is_complete()
    }

    /// When it is to be moved on although nothing has come.
    pub(super) fn deadline_ps(&self) -> Option<u64> {
        [self.worker.deadline_ps(), self.aggregator.deadline_ps()].into_iter().flatten().min()
    }

    /// The rank that owes the first thing that is missing.
    pub(super) fn awaited(&self, own: u32) -> u32 {
        let aggregator = || self.worker.awaited().filter(|aggregator| *aggregator != own);
        // What the own aggregator waits for is the cause of what the own worker waits for.
        self.aggregator.awaited().filter(|worker| *worker != own).or_else(aggregator).unwrap_or(own)
    }

    /// Messages that this rank has sent as a worker.
    pub(super) const fn messages(&self) -> u64 {
        self.worker.statistics().sent_messages
    }

    /// Bytes of messages that have come from other ranks.
    pub(super) fn foreign_bytes(&self, own: u32) -> u64 {
        let all = self.worker.statistics().received_bytes + self.aggregator.statistics().received_bytes;
        all - self.worker.received_from(own) - self.aggregator.received_from(own)
    }
}

/// The rank to blame for what connections have met with; none: this one.
pub(super) const fn culprit(error: &Error) -> Option<u32> {
    match error {
        Error::Connection { party, .. } | Error::Protocol { party, .. } | Error::Timeout { party, .. } => match party {
            Party::Worker(rank) | Party::Aggregator(rank) => Some(*rank),
        },
        Error::Ended { aggregator, worker: None } => Some(*aggregator),
        Error::Ended { worker, .. } => *worker,
        _ => None,
    }
}
