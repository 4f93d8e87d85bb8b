//! A group of ranks, and how it comes together.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::Ipv4Addr;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::wire::Codec;
use flexcast_proto::{Alpha, CollectiveIds, Failure, Participant, Place};
use flexio::{Access, HostBuffer, MemoryRegion, MulticastGroup};

use crate::bootstrap::Exchange;
use crate::buffer::Buffer;
use crate::card::Card;
use crate::config::{Config, Derived, Footprint};
use crate::control::Control;
use crate::endpoint::{Endpoint, Terms};
use crate::engine::Running;
use crate::error::{Error, Result};
use crate::plan::{Kind, Plan};
use crate::receive::{self, Receive};
use crate::request::{Done, MessageCounts, Refused, Report, Request, Test};
use crate::send::{self, Send};
use crate::tower::Tower;

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;

/// The queues and threads of a communicator. Dropped as one: what can reach memory before the memory.
pub(crate) struct Parts<'c> {
    pub(crate) control: Control<'c>,
    pub(crate) send: Send<'c>,
    pub(crate) receive: Receive<'c>,
    // Behind everything that refers into it.
    tower: Tower<'c>,
    _units: Units<'c>,
}

/// The execution units of a communicator, given back when it is dropped.
struct Units<'c> {
    card: &'c Card<'c>,
    units: Vec<u32>,
}

impl Drop for Units<'_> {
    fn drop(&mut self) {
        self.card.units().borrow_mut().give_back(&self.units);
    }
}

/// A communicator that knows its own queues and not yet those of the others.
///
/// For ranks that share a thread, whose exchange cannot block: make all of them, take their [`Pending::endpoint`]s, and give each the
/// list of all.
pub struct Pending<'c> {
    card: &'c Card<'c>,
    config: Config,
    derived: Derived,
    footprint: Footprint,
    place: Place,
    parts: Parts<'c>,
    own: Endpoint,
}

impl fmt::Debug for Pending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Ranks that broadcast and gather among one another.
///
/// Nothing happens by itself: [`Communicator::progress`], or a test or wait that calls it, moves the protocol on. What the card does
/// (receiving, copying, sending) needs no such call. Operations of one communicator run one after another, in the order in which they
/// were posted, which must be the same on all ranks; several communicators run side by side.
pub struct Communicator<'c> {
    pub(crate) parts: Parts<'c>,
    // Buffers come after everything of the card that can reach them.
    pub(crate) current: Option<Running<'c>>,
    pub(crate) waiting: VecDeque<Posted<'c>>,
    pub(crate) done: BTreeMap<u64, Box<Done<'c>>>,
    /// Buffers that the card may still reach.
    pub(crate) lost: Vec<Buffer<'c>>,
    pub(crate) card: &'c Card<'c>,
    pub(crate) config: Config,
    pub(crate) derived: Derived,
    footprint: Footprint,
    pub(crate) place: Place,
    id: u64,
    pub(crate) codec: Codec,
    pub(crate) participant: Participant,
    pub(crate) ids: CollectiveIds,
    pub(crate) alpha: Alpha,
    /// Chunks discarded as late or foreign by the end of the last operation, if that was cut off.
    pub(crate) late_chunks: Option<u64>,
    pub(crate) broken: Option<Failure>,
    pub(crate) messages: MessageCounts,
    /// The protocol's machine was told something between two calls of `progress`.
    pub(crate) told: bool,
    posted: u64,
}

/// An operation that waits for its turn.
#[derive(Debug)]
pub(crate) struct Posted<'c> {
    pub(crate) request: u64,
    pub(crate) plan: Plan,
    pub(crate) send: Option<Buffer<'c>>,
    pub(crate) receive: Buffer<'c>,
    pub(crate) posted_ps: u64,
}

impl fmt::Debug for Communicator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("place", &self.place).field("id", &self.id).finish_non_exhaustive()
    }
}

/// Ranks with which a rank exchanges control messages, ascending: its ring neighbours and its partners in the barrier.
fn peers(place: Place) -> Vec<u32> {
    let mut peers = vec![place.left(), place.right()];
    let mut distance = 1;
    while distance < place.ranks() {
        peers.extend([place.ahead(distance), place.behind(distance)]);
        distance *= 2;
    }
    peers.retain(|rank| *rank != place.rank());
    peers.sort_unstable();
    peers.dedup();
    peers
}

impl<'c> Pending<'c> {
    /// Makes the queues and threads of rank `rank` of `ranks`.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Budget`], [`Error::Place`], [`Error::Flexio`], [`Error::Context`].
    #[allow(unsafe_code)]
    pub fn new(card: &'c Card<'c>, rank: u32, ranks: u32, config: Config) -> Result<Self> {
        let place = Place::new(rank, ranks)?;
        let mtu_bytes = card.device().port().mtu_bytes();
        let derived = config.derive(ranks, mtu_bytes)?;
        let footprint = config.footprint(ranks, mtu_bytes)?;
        config.check_cache(&footprint)?;
        let heap = card.process().heap()?;
        let (needed, limit) = (footprint.staging_bytes, heap.size.saturating_sub(heap.allocated));
        if needed > limit {
            let next = "lower slots, subgroups or chunk_bytes, or free another communicator of this card";
            return Err(Error::Budget { what: "bytes of DPA memory for staging", needed, limit, next });
        }
        let units = card.units().borrow_mut().take(footprint.threads, config.placement)?;
        let units = Units { card, units };
        // SAFETY: `Parts` owns the tower, whatever borrows from it, and drops that first.
        let mut tower = unsafe { Tower::new() };
        let receive_bytes = receive::Shared::new(&config, &derived, ranks).bytes();
        let send_shared = send::Shared::new(receive_bytes, &config);
        let memory = HostBuffer::zeroed(send_shared.end())?;
        let memory = MemoryRegion::register(card.pd(), memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let host = tower.keep(memory);
        let (receivers, senders) = units.units.split_at(config.receive_threads as usize);
        let receive = Receive::new(card, &mut tower, &config, &derived, ranks, receivers, host)?;
        let send = Send::new(card, &mut tower, &config, &derived, place, senders, (host, send_shared))?;
        let control = Control::new(card, &mut tower, &peers(place))?;
        let device = card.device();
        let [.., high, low] = device.info().mac.0;
        let own = Endpoint {
            rank,
            ranks,
            gid: device.port().gid,
            mac: device.info().mac,
            communicator: u64::from(card.next_serial()) << 32
                | u64::from(rank) << 16
                | u64::from(high) << 8
                | u64::from(low),
            terms: Terms::new(&config, derived.layout.psn_bits(), mtu_bytes),
            queue_pairs: control.queue_pairs(),
        };
        let parts = Parts { control, send, receive, tower, _units: units };
        Ok(Self { card, config, derived, footprint, place, parts, own })
    }

    /// What the other ranks must know of this one.
    #[must_use]
    pub fn endpoint(&self) -> Vec<u8> {
        self.own.to_bytes()
    }

    /// Connects to the ranks that told `endpoints`, in the order of ranks, the own one among them. No rank may post an operation before
    /// all have connected.
    ///
    /// # Errors
    /// [`Error::Peer`] names a rank that does not fit; [`Error::Flexio`].
    pub fn connect(mut self, endpoints: &[Vec<u8>]) -> Result<Communicator<'c>> {
        let all = Endpoint::all(&self.own, endpoints)?;
        let id = all[0].communicator;
        // Groups of different communicators may coincide; their queue keys do not, and the card checks them.
        let hash = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let q_key = (hash >> 33) as u32;
        let group = |subgroup: u32| {
            let [a, b, c, _] = ((hash >> 32) as u32 ^ id as u32).to_be_bytes();
            Ok(MulticastGroup::ipv4(Ipv4Addr::new(239, a ^ c, b, subgroup as u8))?)
        };
        let Self { card, config, derived, footprint, place, .. } = self;
        self.parts.control.connect(place.rank(), &all, &config)?;
        self.parts.receive.connect(card, &mut self.parts.tower, q_key, group)?;
        let alone = all.iter().filter(|endpoint| endpoint.gid == self.own.gid).count() == 1;
        self.parts.send.connect(card, &mut self.parts.tower, q_key, group, &config, alone)?;
        let codec = Codec::new(id, place.ranks());
        Ok(Communicator {
            parts: self.parts,
            current: None,
            waiting: VecDeque::new(),
            done: BTreeMap::new(),
            lost: Vec::new(),
            card,
            derived,
            footprint,
            place,
            id,
            codec,
            participant: Participant::new(place, FIRST_OPERATION),
            ids: CollectiveIds::new(derived.layout, config.packet_lifetime_ps),
            alpha: Alpha::new(config.overheads),
            late_chunks: None,
            broken: None,
            messages: MessageCounts::default(),
            told: false,
            posted: 0,
            config,
        })
    }
}

impl<'c> Communicator<'c> {
    /// Makes a communicator of all ranks of an exchange; collective. Blocks as long as the exchange does.
    ///
    /// # Errors
    /// [`Error::Exchange`] when ranks are missing or doubled, [`Error::Peer`] when they do not fit one another or one of them could not make
    /// its part, and what [`Pending::new`] gives.
    pub fn create(card: &'c Card<'c>, exchange: &mut dyn Exchange, config: Config) -> Result<Self> {
        crate::split::found(card, exchange, config)
    }

    /// The own rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.place.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.place.ranks()
    }

    /// The card.
    #[must_use]
    pub fn card(&self) -> &'c Card<'c> {
        self.card
    }

    /// Its parameters.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it takes of the card.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// Control messages sent so far.
    #[must_use]
    pub fn messages(&self) -> MessageCounts {
        self.messages
    }

    /// Counters of the receive workers, all together, as of their last report.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn receive_statistics(&self) -> Result<Statistics> {
        self.parts.receive.statistics()
    }

    /// Counters of the send workers, all together.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn send_statistics(&self) -> Result<SendReport> {
        self.parts.send.report()
    }

    /// Bytes of `buffer` from rank `root` to all. On the root it is read, elsewhere written.
    ///
    /// # Errors
    /// [`Refused`] with the buffer: no such root, too many chunks, or a communicator that has failed.
    pub fn broadcast(&mut self, buffer: Buffer<'c>, root: u32) -> Result<Request, Box<Refused<'c>>> {
        let bytes = buffer.len() as u64;
        self.post(Kind::Broadcast { root, bytes }, None, buffer)
    }

    /// All bytes of `send` from every rank to every rank, in the order of ranks.
    ///
    /// # Errors
    /// [`Refused`] with the buffers: `receive` is not `size()` times as long as `send`, and as in [`Communicator::broadcast`].
    pub fn allgather(&mut self, send: Buffer<'c>, receive: Buffer<'c>) -> Result<Request, Box<Refused<'c>>> {
        let bytes = send.len() as u64;
        self.post(Kind::Allgather { bytes }, Some(send), receive)
    }

    /// The same with the own bytes in their place in `receive` already; every rank contributes `receive.len() / size()` bytes.
    ///
    /// # Errors
    /// As [`Communicator::allgather`].
    pub fn allgather_in_place(&mut self, receive: Buffer<'c>) -> Result<Request, Box<Refused<'c>>> {
        let bytes = receive.len() as u64 / u64::from(self.size());
        self.post(Kind::Allgather { bytes }, None, receive)
    }

    /// `counts[r]` bytes from every rank r to every rank, one rank's after another's in `receive`. `counts` is alike on all ranks.
    ///
    /// # Errors
    /// [`Refused`] with the buffers: `send` is not `counts[rank()]` bytes long, `receive` not their sum, or `counts` has not `size()`
    /// entries, and as in [`Communicator::broadcast`].
    pub fn allgatherv(
        &mut self,
        send: Buffer<'c>,
        receive: Buffer<'c>,
        counts: &[u64],
    ) -> Result<Request, Box<Refused<'c>>> {
        self.post(Kind::Allgatherv { bytes: counts.to_vec() }, Some(send), receive)
    }

    /// The same with the own bytes in their place in `receive` already.
    ///
    /// # Errors
    /// As [`Communicator::allgatherv`].
    pub fn allgatherv_in_place(&mut self, receive: Buffer<'c>, counts: &[u64]) -> Result<Request, Box<Refused<'c>>> {
        self.post(Kind::Allgatherv { bytes: counts.to_vec() }, None, receive)
    }

    fn post(&mut self, kind: Kind, send: Option<Buffer<'c>>, receive: Buffer<'c>) -> Result<Request, Box<Refused<'c>>> {
        let plan = match self.plan(kind, send.as_ref(), &receive) {
            Ok(plan) => plan,
            Err(error) => return Err(Box::new(Refused { error, send, receive: Some(receive) })),
        };
        self.posted += 1;
        let request = Request { number: self.posted, communicator: self.id };
        let posted_ps = self.card.now_ps();
        self.waiting.push_back(Posted { request: request.number, plan, send, receive, posted_ps });
        Ok(request)
    }

    /// Checks an operation's arguments.
    fn plan(&mut self, kind: Kind, send: Option<&Buffer<'c>>, receive: &Buffer<'c>) -> Result<Plan> {
        if let Some(failure) = self.broken {
            return Err(Error::Broken { failure });
        }
        let (operation, ranks, own) = (kind.name(), self.size(), self.rank());
        match &kind {
            Kind::Broadcast { root, .. } if *root >= ranks => {
                let reason = format!("root {root} of {ranks} ranks: roots run from 0 to {}", ranks - 1);
                return Err(Error::Argument { operation, reason });
            }
            Kind::Allgatherv { bytes } if bytes.len() != ranks as usize => {
                let reason = format!("{} counts for {ranks} ranks: give one per rank", bytes.len());
                return Err(Error::Argument { operation, reason });
            }
            _ => {}
        }
        let total = match &kind {
            Kind::Allgatherv { bytes } => bytes.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes)),
            Kind::Allgather { bytes } => bytes.checked_mul(u64::from(ranks)),
            Kind::Broadcast { bytes, .. } => Some(*bytes),
        };
        if total.is_none() {
            return Err(Error::Argument { operation, reason: "the contributions exceed 2^64 bytes".to_owned() });
        }
        let plan = Plan::new(kind, own, ranks, self.config.chunk_bytes, self.config.subgroups);
        let needed = plan.receive_bytes();
        if receive.len() as u64 != needed {
            let why = format!("contributions of {ranks} ranks");
            return Err(Error::BufferLength { operation, which: "receive", len: receive.len() as u64, needed, why });
        }
        if let Some(send) = send {
            let needed = plan.block(own).bytes;
            if send.len() as u64 != needed {
                let why = format!("what rank {own} contributes");
                return Err(Error::BufferLength { operation, which: "send", len: send.len() as u64, needed, why });
            }
        }
        let mut table = Vec::new();
        for subgroup in 0..self.config.subgroups {
            let chunks = plan.space(subgroup, &mut table)?.chunks();
            let psn_bits = self.derived.layout.psn_bits();
            let limit = (u64::from(self.derived.bitmap_words) * 64).min(1 << psn_bits);
            if chunks > limit {
                return Err(Error::TooManyChunks { chunks, psn_bits, limit });
            }
        }
        Ok(plan)
    }

    /// Whether an operation is over; moves the protocol on.
    ///
    /// # Errors
    /// [`Error::ForeignRequest`]; the failure of a library call, after which the communicator is of no use.
    pub fn test(&mut self, request: Request) -> Result<Test<'c>> {
        if request.communicator != self.id {
            return Err(Error::ForeignRequest { request: request.number });
        }
        if !self.done.contains_key(&request.number) {
            self.progress()?;
        }
        Ok(match self.done.remove(&request.number) {
            Some(done) => Test::Done(done),
            None => Test::Pending(request),
        })
    }

    /// Waits until an operation is over. It ends: every phase of an operation has its bound.
    ///
    /// # Errors
    /// As [`Communicator::test`].
    pub fn wait(&mut self, mut request: Request) -> Result<Box<Done<'c>>> {
        loop {
            match self.test(request)? {
                Test::Done(done) => return Ok(done),
                Test::Pending(pending) => request = pending,
            }
            self.card.device().provider().relax().relax();
        }
    }

    /// Ends all operations of the communicator, on all ranks, as failures; it cannot be used afterwards. To be followed by tests, which
    /// give the buffers back once the card has stopped.
    pub fn cancel(&mut self) {
        self.fail_here(flexcast_proto::Cause::Cancelled);
    }

    /// Whether no operation is under way or waits for its turn.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    pub(crate) fn finish(&mut self, request: u64, done: Done<'c>) {
        self.done.insert(request, Box::new(done));
    }

    /// Refuses what waits for its turn.
    pub(crate) fn refuse_waiting(&mut self, failure: Failure) {
        for posted in std::mem::take(&mut self.waiting) {
            let report = Report { failure: Some(failure), ..Report::default() };
            let done = Done {
                result: Err(Error::Broken { failure }),
                send: posted.send,
                receive: Some(posted.receive),
                report,
            };
            self.finish(posted.request, done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_a_rank_talks_to_talks_to_it() {
        for ranks in 1..=70 {
            let all: Vec<Vec<u32>> = (0..ranks).map(|rank| peers(Place::new(rank, ranks).unwrap())).collect();
            for (rank, of) in (0..ranks).zip(&all) {
                assert!(of.iter().all(|peer| all[*peer as usize].contains(&rank)));
                assert!(of.len() as u32 <= 2 * ranks.ilog2() + 2);
            }
        }
        assert_eq!(peers(Place::new(0, 8).unwrap()), [1, 2, 4, 6, 7]);
    }
}
