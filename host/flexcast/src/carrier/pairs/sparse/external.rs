//! Sparse AllReduce over RDMA cards through aggregators that are no ranks: a rank is a worker alone.
//!
//! Ranks agree on the number of their job by the Allgather that comes before the first operation. Each then connects to
//! the aggregators by itself, sends them its queue pairs, and receives theirs when all workers' are there. An
//! aggregator that was started anew between two operations gets new ones.

use std::net::SocketAddr;
use std::time::Duration;

use flexcast_mesh::aggregator::{Carrier, Key, Terms};
use flexcast_mesh::external;
use flexcast_proto::{Algorithm, Cause, FailureCode, WaitedFor};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::buffers::Buffers;
use super::contacts::{Contacts, blame, nonsense};
use super::{Fault, Need, RankCard, Result};
use crate::error::Error;
use crate::op::aggregation::Aggregation;
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::{Config, ps};
use flexcast_sparse::{self as sparse, Call, Party, PendingWorker, Worker};

/// An aggregator from which something has come within this time is alive: it reports that every 500 ms while it waits.
const ALIVE: Duration = Duration::from_secs(2);

/// While blocks are on their way, aggregators are polled this often: each time is a call of the system.
const POLL_PS: u64 = 100_000_000;

/// Aggregators that a communicator was given.
#[derive(Clone, Debug)]
pub(crate) struct External {
    addresses: Vec<SocketAddr>,
    key: Key,
    barrier_timeout: Duration,
}

impl External {
    /// None if there are none.
    ///
    /// # Errors
    /// One has no address; the DPA is to add, too.
    pub(crate) fn of(config: &Config) -> crate::error::Result<Option<Self>> {
        if config.aggregators.is_empty() {
            return Ok(None);
        }
        if config.sparse_aggregation == Aggregation::Dpa {
            let limit =
                "0 with sparse.aggregation dpa: either the ranks' DPAs add or aggregators that are no ranks".to_owned();
            return Err(Error::Config { what: "number of aggregators", value: config.aggregators.len() as u64, limit });
        }
        let addresses = external::resolve(&config.aggregators)?;
        let key = Key::of(config.aggregator_secret.as_ref());
        Ok(Some(Self { addresses, key, barrier_timeout: config.barrier_timeout }))
    }

    pub(super) const fn count(&self) -> u32 {
        self.addresses.len() as u32
    }
}

/// What a rank sends the others before it connects: that of rank 0 counts.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Proposal {
    /// A rank without room says nothing.
    magic: U64,
    job: U64,
    proof: U64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"FXAGJOB1");

/// Bytes of what a rank sends the others.
pub(super) const PROPOSAL_BYTES: usize = size_of::<Proposal>();

/// A worker whose aggregators have not been asked.
#[derive(Debug)]
pub(in crate::carrier::pairs) struct Pending {
    card: RankCard,
    external: External,
    need: Need,
    worker: (PendingWorker, Vec<u8>),
}

/// A rank as a worker, and its aggregators.
#[derive(Debug)]
pub(in crate::carrier::pairs) struct Session {
    card: RankCard,
    need: Need,
    barrier_timeout: Duration,
    /// Dropped before the worker: queue pairs that go break their aggregators' connections.
    contacts: Contacts,
    /// Waits for the aggregators' queue pairs: with the connection information, until it is sent.
    pending: Option<(PendingWorker, Vec<u8>)>,
    worker: Option<Worker>,
    /// What is under way.
    call: Option<Call>,
    moved_ps: u64,
    /// When aggregators have last been polled.
    polled_ps: u64,
    /// Messages that were sent and bytes that have come by workers that were given up.
    past: [u64; 2],
}

/// A worker for all aggregators.
fn worker(card: &RankCard, need: &Need) -> Result<(PendingWorker, Vec<u8>)> {
    let RankCard { pd, place, config, .. } = card;
    Ok(Worker::prepare(pd, need.settings(place.ranks())?, place.rank(), *config)?)
}

impl Pending {
    pub(super) fn prepare(card: &RankCard, external: &External, need: Need) -> Result<(Self, Vec<u8>)> {
        let worker = worker(card, &need)?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Error::Argument {
            operation: "aggregators",
            reason: format!("no random numbers: {error}"),
        })?;
        let half = |at| U64::from_bytes(std::array::from_fn(|byte| random[at + byte]));
        let proposal = Proposal { magic: MAGIC.into(), job: half(0), proof: half(8) }.as_bytes().to_vec();
        Ok((Self { card: card.clone(), external: external.clone(), need, worker }, proposal))
    }

    /// Takes what all ranks have sent, and the connections of a session before this one.
    pub(super) fn connect(self, proposals: &[&[u8]], before: Option<Session>) -> Result<Session> {
        let Self { card, external, need, worker } = self;
        let first = proposals.first().and_then(|bytes| Proposal::read_from_bytes(bytes).ok());
        let first = first.filter(|first| first.magic.get() == MAGIC);
        let Some(Proposal { job, proof, .. }) = first else {
            let reason = "has sent no number of a job of aggregators: run one build on all ranks".to_owned();
            return Err(Error::Peer { rank: 0, reason }.into());
        };
        let (contacts, past) = match before {
            Some(session) => session.into_contacts(),
            None => {
                let (job, proof) = (job.get(), proof.get());
                let flexio::Retry { timeout_exponent, count: retries } = card.config.retry;
                let carrier = Carrier::Cards { class: card.config.class, timeout_exponent, retries };
                let (workers, aggregators, order) = (card.place.ranks(), external.count(), need.call.order);
                let terms = Terms { job, proof, workers, aggregator: 0, aggregators, order, carrier };
                let handshake = (external.key, external.barrier_timeout);
                (Contacts::new(card.place.rank(), terms, external.addresses, handshake), [0; 2])
            }
        };
        Ok(Session {
            card,
            need,
            barrier_timeout: external.barrier_timeout,
            contacts,
            pending: Some(worker),
            worker: None,
            call: None,
            moved_ps: 0,
            polled_ps: 0,
            past,
        })
    }
}

impl Session {
    fn into_contacts(mut self) -> (Contacts, [u64; 2]) {
        self.leave_worker();
        (self.contacts, self.past)
    }

    pub(super) fn leave(self) {
        let Self { contacts, worker, card, .. } = self;
        // Aggregators are notified before queue pairs go.
        drop(contacts);
        if let Some(worker) = worker {
            worker.leave(&card.lingering);
        }
    }

    fn leave_worker(&mut self) {
        self.past = self.counts();
        if let Some(worker) = self.worker.take() {
            worker.leave(&self.card.lingering);
        }
    }

    pub(super) const fn need(&self) -> &Need {
        &self.need
    }

    /// An operation begins. Aggregators are notified, and those that were started anew get new queue pairs.
    pub(super) fn begin(&mut self, call: Call, now_ps: u64) -> Result<()> {
        if call.bytes == 0 {
            return Ok(());
        }
        (self.call, self.moved_ps) = (Some(call), now_ps);
        let are_there = self.contacts.are_there();
        if !are_there && self.pending.is_none() {
            self.leave_worker();
            self.pending = Some(worker(&self.card, &self.need)?);
        }
        if let Some((_, info)) = &self.pending {
            self.contacts.offer(info)?;
        }
        let (options, reduction, bytes) = (self.need.options, call.reduction, call.bytes);
        let summary = Collective::SparseAllreduce { bytes, reduction, options }.summary(Algorithm::Sparse);
        self.contacts.call(summary, now_ps);
        if let Some(worker) = &mut self.worker {
            worker.begin(call)?;
        }
        Ok(())
    }

    /// Moves the operation on. Returns whether anything has happened.
    pub(super) fn advance(&mut self, send: Option<&Buffer>, receive: &mut Buffer, now_ps: u64) -> Result<bool> {
        let Some(call) = self.call else { return Ok(false) };
        let mut moved = false;
        if self.worker.is_none() || now_ps >= self.polled_ps.saturating_add(POLL_PS) {
            self.polled_ps = now_ps;
            moved = self.contacts.advance(now_ps)?;
        }
        if moved
            && let Some(infos) = self.contacts.infos()
            && let Some((pending, _)) = self.pending.take()
        {
            let connected = pending.connect(&infos).and_then(|mut worker| {
                worker.begin(call)?;
                Ok(worker)
            });
            self.worker = Some(connected.map_err(fault)?);
        }
        if let Some(worker) = &mut self.worker {
            let driven = worker.advance(&mut Buffers { send, receive });
            moved |= driven.map_err(fault)?;
            if self.worker.as_ref().is_some_and(Worker::is_complete) {
                self.call = None;
            }
        }
        if moved {
            self.moved_ps = now_ps;
        } else if now_ps >= self.silent_ps() {
            return Err(self.silence(now_ps));
        }
        Ok(moved)
    }

    /// When somebody is to be named whom this rank waits for in vain.
    fn silent_ps(&self) -> u64 {
        self.moved_ps.saturating_add(external::patience_ps(ps(self.barrier_timeout)))
    }

    /// Who that is.
    fn silence(&mut self, now_ps: u64) -> Fault {
        let number = self.awaited_aggregator();
        let known = self.contacts.known();
        let is_alive = known.get(number).is_some_and(|known| now_ps.saturating_sub(known.received_ps) < ps(ALIVE));
        match known.waits_for(number).filter(|_| is_alive) {
            Some(rank) => Fault::Reported { rank, cause: Cause::Silent(WaitedFor::Block) },
            None => blame(number, external::silent(self.barrier_timeout)),
        }
    }

    fn awaited_aggregator(&self) -> u32 {
        let of_worker = self.worker.as_ref().and_then(Worker::awaited);
        of_worker.or_else(|| self.contacts.without_info()).unwrap_or(0)
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.call.is_none()
    }

    /// When it is to be moved on although nothing has come.
    pub(super) fn deadline_ps(&self) -> Option<u64> {
        self.call?;
        let probe_ps = self.worker.as_ref().and_then(Worker::deadline_ps);
        // What comes by TCP wakes nobody.
        let scan_ps = self.polled_ps.saturating_add(POLL_PS);
        [Some(self.silent_ps().min(scan_ps)), probe_ps].into_iter().flatten().min()
    }

    /// The rank that is waited for, as far as that is known.
    pub(super) fn awaited(&self) -> Option<u32> {
        self.contacts.known().waits_for(self.awaited_aggregator())
    }

    /// Messages that were sent, and bytes that have come.
    pub(super) fn counts(&self) -> [u64; 2] {
        let [messages, bytes] = self.past;
        let now = self.worker.as_ref().map(Worker::statistics).unwrap_or_default();
        [messages + now.sent_messages, bytes + now.received_bytes]
    }
}

/// What a fault of queue pairs is.
fn fault(error: sparse::Error) -> Fault {
    use sparse::Error;
    let (number, reason) = match error {
        Error::Connection { party: Party::Aggregator(number), source } => {
            (number, format!("is not reached by this rank's card ({source}): see whether it runs, and the link to it"))
        }
        Error::Protocol { party: Party::Aggregator(number), reason }
        | Error::ConnectInfo { party: Party::Aggregator(number), reason } => (number, nonsense(&reason)),
        Error::Ended { worker: Some(rank), .. } => {
            return Fault::Reported { rank, cause: Cause::Connection(FailureCode::ConnectionReset) };
        }
        Error::Ended { aggregator, worker: None } => (aggregator, "has given up: see its log".to_owned()),
        error => return Fault::Link(error),
    };
    blame(number, reason)
}
