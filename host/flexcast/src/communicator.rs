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
use crate::conductor::{self, Conductor};
use crate::config::{Config, Derived, Footprint};
use crate::control::Control;
use crate::endpoint::{Endpoint, StreamEnds, Terms};
use crate::engine::Running;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::peers::peers;
use crate::plan::Plan;
use crate::receive::{self, Receive};
use crate::request::{Done, MessageCounts, Report, Request, Test};
use crate::send::{self, Send};
use crate::stream::Stream;
use crate::targets::Targets;
use crate::tower::Tower;

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;

/// The queues and threads of a communicator. Dropped as one: what can reach memory before the memory.
pub(crate) struct Parts<'c> {
    pub(crate) control: Control<'c>,
    pub(crate) machine: Machine<'c>,
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
    hot_bytes: u64,
}

impl Drop for Units<'_> {
    fn drop(&mut self) {
        let mut all = self.card.units().borrow_mut();
        all.give_back(&self.units);
        all.hot_bytes -= self.hot_bytes;
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
    /// Finished operations that nobody has asked for yet, by request.
    pub(crate) done: Vec<(u64, Done<'c>)>,
    /// Buffers that the card may still reach.
    pub(crate) lost: Vec<Buffer<'c>>,
    pub(crate) card: &'c Card<'c>,
    pub(crate) config: Config,
    pub(crate) derived: Derived,
    footprint: Footprint,
    pub(crate) place: Place,
    pub(crate) id: u64,
    pub(crate) codec: Codec,
    pub(crate) ids: CollectiveIds,
    pub(crate) alpha: Alpha,
    /// Chunks discarded as late or foreign by the end of the last operation, if that was cut off.
    pub(crate) late_chunks: Option<u64>,
    pub(crate) broken: Option<Failure>,
    pub(crate) messages: MessageCounts,
    /// What went wrong while an operation was posted; the next call of `progress` tells.
    pub(crate) trouble: Option<Error>,
    /// The protocol's machine was told something between two calls of `progress`.
    pub(crate) told: bool,
    pub(crate) posted: u64,
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

/// The ranks beside a rank on the ring, ascending.
fn neighbours(place: Place) -> Vec<u32> {
    let mut neighbours = vec![place.left(), place.right()];
    neighbours.retain(|rank| *rank != place.rank());
    neighbours.sort_unstable();
    neighbours.dedup();
    neighbours
}

/// The queue pairs of streams from and to single ranks.
fn stream_ends(receive: &Receive<'_>, send: &Send<'_>) -> Vec<StreamEnds> {
    let mut ends: BTreeMap<(u32, u32), StreamEnds> = BTreeMap::new();
    for (receiver, stream) in receive.unicast() {
        let Stream { subgroup, peer: Some(peer) } = stream else { continue };
        ends.insert((peer, subgroup), StreamEnds { peer, subgroup, receiver, sender: 0 });
    }
    for (sender, stream) in send.unicast() {
        if let Some(ends) = stream.peer.and_then(|peer| ends.get_mut(&(peer, stream.subgroup))) {
            ends.sender = sender;
        }
    }
    ends.into_values().collect()
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
        let config = config.with_table().with_link_rate(card.device().port().link_gbit_per_s)?;
        let mut peers = peers(place);
        peers.extend(config.chain_mapping.neighbours(rank));
        peers.sort_unstable();
        peers.dedup();
        let control_queue_pairs = peers.len() as u32;
        let footprint = Footprint { control_queue_pairs, ..config.footprint(ranks, mtu_bytes)? };
        config.check_cache(&footprint)?;
        let heap = card.process().heap()?;
        let (needed, limit) = (footprint.staging_bytes, heap.size.saturating_sub(heap.allocated));
        if needed > limit {
            let next = "lower slots, subgroups or chunk_bytes, or free another communicator of this card";
            return Err(Error::Budget { what: "bytes of DPA memory for staging", needed, limit, next });
        }
        let units = card.units().borrow_mut().take(footprint.threads, config.placement)?;
        let hot_bytes = footprint.hot_bytes();
        card.units().borrow_mut().hot_bytes += hot_bytes;
        let units = Units { card, units, hot_bytes };
        if card.hot_bytes() > config.cache_bytes {
            let (hot_bytes, cache_bytes) = (card.hot_bytes(), config.cache_bytes);
            tracing::warn!(hot_bytes, cache_bytes, "the card's communicators together exceed the last-level cache");
        }
        // SAFETY: `Parts` owns the tower, whatever borrows from it, and drops that first.
        let mut tower = unsafe { Tower::new() };
        let receive_bytes = receive::Shared::new(&derived, ranks).bytes();
        let send_shared = send::Shared::new(receive_bytes, &config, &derived);
        let memory = HostBuffer::zeroed(conductor::Shared::new(send_shared.end()).end())?;
        let memory = MemoryRegion::register(card.pd(), memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let host = tower.keep(memory);
        let (receivers, others) = units.units.split_at(config.receive_threads as usize);
        let (senders, conductors) = others.split_at(config.send_threads as usize);
        let receive = Receive::new(card, &mut tower, &config, &derived, place, receivers, host)?;
        let send = Send::new(card, &mut tower, &config, &derived, place, senders, (host, send_shared))?;
        let (machine, control_peers) = match conductors {
            [unit, ..] => {
                let shared = (host, conductor::Shared::new(send_shared.end()));
                let conductor = Conductor::new(card, &mut tower, &config, place, *unit, &peers, shared)?;
                (Machine::Device(Box::new(conductor)), neighbours(place))
            }
            [] => (Machine::Host(Box::new(Participant::new(place, FIRST_OPERATION))), peers),
        };
        let control = Control::new(card, &mut tower, &control_peers)?;
        let (queue_pairs, reads) = match machine.conductor() {
            Some(conductor) => (conductor.queue_pairs(), control.queue_pairs()),
            None => (control.queue_pairs(), Vec::new()),
        };
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
            queue_pairs,
            reads,
            streams: stream_ends(&receive, &send),
            target_queue_pairs: receive.targets().map(Targets::queue_pairs).unwrap_or_default(),
            target_table: receive.targets().map_or((0, 0), Targets::table),
        };
        let parts = Parts { control, machine, send, receive, tower, _units: units };
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
        let Parts { control, machine, send, tower, .. } = &mut self.parts;
        match machine.conductor_mut() {
            Some(conductor) => {
                let senders = send.activation_ids();
                conductor.connect(card, tower, &all, &config, (id, FIRST_OPERATION), senders)?;
                control.connect(place.rank(), &all, &config, |endpoint| &endpoint.reads)?;
            }
            None => control.connect(place.rank(), &all, &config, |endpoint| &endpoint.queue_pairs)?,
        }
        let ends = (place.rank(), all.as_slice());
        self.parts.receive.connect(card, &mut self.parts.tower, ends, q_key, group, &config)?;
        self.parts.send.connect(card, &mut self.parts.tower, ends, q_key, group, &config)?;
        let codec = Codec::new(id, place.ranks());
        Ok(Communicator {
            parts: self.parts,
            current: None,
            waiting: VecDeque::new(),
            done: Vec::new(),
            lost: Vec::new(),
            card,
            derived,
            footprint,
            place,
            id,
            codec,
            trouble: None,
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

    /// Whether the card says that the operation posted last is over, with the protocol on the card ([`Control::Device`](crate::Control::Device)); false otherwise. Looks at a
    /// word of host memory that the card writes, and does nothing: a test or [`Communicator::progress`] takes note.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn is_flagged(&self) -> Result<bool> {
        self.parts.machine.conductor().map_or(Ok(false), |conductor| conductor.is_flagged())
    }

    /// Whether an operation is over; moves the protocol on.
    ///
    /// # Errors
    /// [`Error::ForeignRequest`]; the failure of a library call, after which the communicator is of no use.
    pub fn test(&mut self, request: Request) -> Result<Test<'c>> {
        if request.communicator != self.id {
            return Err(Error::ForeignRequest { request: request.number });
        }
        if !self.is_done(&request) {
            self.progress()?;
        }
        Ok(match self.done.iter().position(|(number, _)| *number == request.number) {
            Some(at) => Test::Done(self.done.swap_remove(at).1),
            None => Test::Pending(request),
        })
    }

    fn is_done(&self, request: &Request) -> bool {
        self.done.iter().any(|(number, _)| *number == request.number)
    }

    /// Waits until an operation is over. It ends: every phase of an operation has its bound.
    ///
    /// # Errors
    /// As [`Communicator::test`].
    pub fn wait(&mut self, mut request: Request) -> Result<Done<'c>> {
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
        self.done.push((request, done));
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
