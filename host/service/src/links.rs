//! Connections of a service process or a rank: control messages over one reliable queue pair for each peer, and
//! transfers over others.
//!
//! A message is one send of at most [`wire::MAX_BYTES`] bytes, so that each receive holds any. Where a peer has no
//! receive posted its card asks for patience, and the sender's waits. Transfers have queue pairs of their own
//! ([`Lane`]): a transfer that fails, such as a Read of memory that a rank has taken back, ends its queue pair, and
//! neither control messages nor other groups know of it.

use std::collections::VecDeque;

use flexcast_proto::service::{FailedParty, wire};
use flexcast_proto::session::greeting::{Acquaintance, Greeting, SIDE_NONCE_BYTES, Side, Stranger};
use flexcast_proto::session::{Party, Role};
use flexio::{
    Access, AliasUse, Completion, CompletionQueue, Connection, Gid, HostAddr, HostBuffer, InlineRequest, LocalSlice,
    Mac, MemoryRegion, ProtectionDomain, QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest, Transport,
};

use crate::error::Result;
use crate::net::keyed_hash;

/// Messages of a peer that its receives hold. What comes behind them waits until its card tries again, which is long
/// compared with a message.
pub(crate) const RECEIVES: u32 = 16;
/// Transfers on their way on a lane: what a card takes of Reads from one queue pair. Further ones wait here.
const TRANSFERS: u32 = 16;
/// Bytes of a flag, which go in the work request itself.
const FLAG_BYTES: u32 = 8;

const SLOT_BYTES: u64 = wire::MAX_BYTES as u64;

const KIND_RECEIVE: u64 = 0;
const KIND_SEND: u64 = 1;
const KIND_TRANSFER: u64 = 2;

const fn id(kind: u64, index: usize, slot: u32) -> u64 {
    kind << 56 | (index as u64 & 0xFF_FFFF) << 32 | slot as u64
}

/// A peer, by its number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(u32);

#[cfg(test)]
impl PeerId {
    /// A peer that nobody is connected to.
    pub(crate) const fn of_test(number: u32) -> Self {
        Self(number)
    }
}

/// One end of a connection, as the other end must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEnd {
    /// Address of the port.
    pub gid: Gid,
    /// Ethernet address of the port.
    pub mac: Mac,
    /// Number of the queue pair of control messages.
    pub qpn: u32,
    /// Fresh bytes of this end: with those of the other end the key of the greetings on the queue pairs.
    pub nonce: [u8; SIDE_NONCE_BYTES],
}

impl LinkEnd {
    /// Programs and processes have no numbers: a queue pair stands for its owner.
    fn side(self) -> Side {
        let Self { gid: Gid(address), qpn, nonce, .. } = self;
        let party = Party { role: Role::QueuePair, number: qpn.into() };
        Side { party, nonce, address, queue_pairs: [qpn, 0, 0, 0] }
    }

    const fn remote(self, qpn: u32) -> RemoteQp {
        RemoteQp { qpn, gid: self.gid, mac: self.mac, first_psn: 0 }
    }
}

/// Queue pairs for transfers, by their number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lane(u32);

/// Bindings of keys that a transfer uses: they are held until it has completed, or its lane is gone.
pub(crate) type Held = [Option<AliasUse>; 2];

/// What goes from memory to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// A Read into memory that `lkey` names.
    Read { to: u64, lkey: u32, from: u64, rkey: u32, bytes: u32 },
    /// A Write from memory that `lkey` names.
    Write { from: u64, lkey: u32, to: u64, rkey: u32, bytes: u32 },
    /// A Write of eight bytes.
    Flag { value: u64, to: u64, rkey: u32 },
}

/// Whose memory a transfer goes from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Of what the own card reads or writes.
    pub(crate) near: FailedParty,
    /// Of what the card of the far end does.
    pub(crate) far: FailedParty,
}

/// Why a lane has failed: the first of its transfers that failed. What follows fails with it, and says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Status of the completion.
    pub(crate) status: u32,
    /// Whose memory is at fault. None if the far end has ended the lane because a transfer of its own has failed: only
    /// it knows.
    pub(crate) failed_rank: Option<FailedParty>,
}

/// Statuses of completions by the own card's side: length, operation, protection (twice), binding, access (InfiniBand
/// specification, volume 1, 11.6.2).
const NEAR: [u32; 6] = [1, 2, 3, 4, 6, 8];
/// The queue pair had failed before.
const FLUSHED: u32 = 5;

impl Fault {
    fn new(status: u32, ends: Ends) -> Self {
        let failed_rank = match status {
            FLUSHED => None,
            _ if NEAR.contains(&status) => Some(ends.near),
            _ => Some(ends.far),
        };
        Self { status, failed_rank }
    }

    /// The status as messages have it.
    pub(crate) fn code(self) -> u16 {
        u16::try_from(self.status).unwrap_or(u16::MAX)
    }
}

/// What has happened.
#[derive(Debug)]
pub(crate) enum LinkEvent<'e> {
    Message {
        from: PeerId,
        bytes: &'e [u8],
    },
    /// A transfer is over, with the number that it was given, and why it failed.
    Transferred {
        token: u64,
        error: Option<Fault>,
    },
    /// The connection to a peer is broken.
    Broken {
        peer: PeerId,
    },
}

#[derive(Debug)]
struct Peer {
    pair: QueuePair,
    /// Receives, and behind them messages on their way.
    memory: MemoryRegion,
    nonce: [u8; SIDE_NONCE_BYTES],
    /// How the far end is reached, once connected, and what the two know of one another.
    far: Option<(LinkEnd, Acquaintance)>,
    waiting: VecDeque<Vec<u8>>,
    sends: u32,
    sent: u64,
    is_open: bool,
}

#[derive(Debug)]
struct LanePair {
    pair: QueuePair,
    /// The far end of a lane to this process itself.
    answers: Option<QueuePair>,
    is_connected: bool,
    /// It has failed: transfers fail at once.
    failed: Option<Fault>,
    waiting: VecDeque<(u64, Ends, Transfer, Held)>,
    under_way: VecDeque<(u64, Ends, Held)>,
}

/// All connections of a process.
#[derive(Debug)]
pub(crate) struct Links {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    /// Messages on their way to each peer; further ones wait here.
    sends: u32,
    /// Lanes at a time, at most.
    most_lanes: u32,
    peers: Vec<Option<Peer>>,
    lanes: Vec<Option<LanePair>>,
    done: Vec<Completion>,
    /// Transfers that have failed without having been posted.
    refused: VecDeque<(u64, Fault)>,
    /// Buffer of the message that is being handled; kept for its room.
    buffer: Vec<u8>,
}

impl Links {
    /// No connections yet; at most so many peers and lanes at a time, and messages on their way to each peer.
    pub(crate) fn new(pd: &ProtectionDomain, peers: u32, most_lanes: u32, sends: u32) -> Result<Self> {
        let depth = peers.saturating_mul(RECEIVES + sends).saturating_add(most_lanes.saturating_mul(TRANSFERS));
        let cq = CompletionQueue::new(pd.device(), depth.max(1))?;
        let (peers, lanes, done, refused, buffer) = Default::default();
        Ok(Self { pd: pd.clone(), cq, sends, most_lanes, peers, lanes, done, refused, buffer })
    }

    fn end(&self, qpn: u32, nonce: [u8; SIDE_NONCE_BYTES]) -> LinkEnd {
        let device = self.pd.device();
        LinkEnd { gid: device.port().gid, mac: device.info().mac, qpn, nonce }
    }

    /// A connection that has one end.
    pub(crate) fn open(&mut self) -> Result<(PeerId, LinkEnd)> {
        let depths = QueueDepths { send: self.sends, receive: RECEIVES };
        let pair = QueuePair::builder(&self.pd, Transport::Rc, depths).build(&self.cq, &self.cq)?;
        pair.init(Access::empty(), 0)?;
        let memory = HostBuffer::zeroed((u64::from(RECEIVES + self.sends) * SLOT_BYTES) as usize)?;
        let memory = MemoryRegion::register(&self.pd, memory, Access::LOCAL_WRITE)?;
        let nonce = self.pd.device().nonce(pair.qpn().into())?;
        let end = self.end(pair.qpn(), nonce);
        let peer = Peer { pair, memory, nonce, far: None, waiting: VecDeque::new(), sends: 0, sent: 0, is_open: true };
        let index = place(&mut self.peers, peer);
        for slot in 0..RECEIVES {
            self.post_receive(index, slot)?;
        }
        Ok((PeerId(index as u32), end))
    }

    /// Connects to the other end. Before anything else goes a greeting, and nothing is taken before the other end's.
    pub(crate) fn connect(&mut self, peer: PeerId, far: LinkEnd) -> Result<()> {
        let own = self.peer_mut(peer).map(|peer| (peer.pair.qpn(), peer.nonce));
        let own = own.map(|(qpn, nonce)| self.end(qpn, nonce).side());
        if let Some((peer, own)) = self.peer_mut(peer).zip(own) {
            peer.pair.connect(&Connection::to(far.remote(far.qpn)))?;
            peer.far = Some((far, Acquaintance::new(Greeting { scope: 0, own, peer: far.side() })));
        }
        self.post(peer)
    }

    /// Ends a connection: nothing more is reported of it.
    pub(crate) fn close(&mut self, peer: PeerId) {
        if let Some(slot) = self.peers.get_mut(peer.0 as usize) {
            *slot = None;
        }
    }

    fn peer_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(peer.0 as usize).and_then(Option::as_mut)
    }

    fn post_receive(&self, index: usize, slot: u32) -> Result<()> {
        let Some(Some(peer)) = self.peers.get(index) else { return Ok(()) };
        let into = peer.memory.slice(u64::from(slot) * SLOT_BYTES, wire::MAX_BYTES as u32)?;
        Ok(peer.pair.post_receive(id(KIND_RECEIVE, index, slot), into)?)
    }

    /// Sends a message; at once if there is room, else when there is. One for a peer that is gone is dropped: that it
    /// is gone has been reported.
    pub(crate) fn send(&mut self, to: PeerId, message: Vec<u8>) -> Result<()> {
        debug_assert!(message.len() <= wire::MAX_BYTES, "{} bytes", message.len());
        if let Some(peer) = self.peer_mut(to).filter(|peer| peer.is_open) {
            peer.waiting.push_back(message);
        }
        self.post(to)
    }

    fn post(&mut self, to: PeerId) -> Result<()> {
        let (index, most) = (to.0 as usize, self.sends);
        let Some(peer) = self.peer_mut(to).filter(|peer| peer.is_open && peer.far.is_some()) else { return Ok(()) };
        if let Some((_, acquaintance)) = peer.far.as_mut().filter(|_| !peer.waiting.is_empty())
            && let Some(greeting) = acquaintance.say(&keyed_hash)
        {
            peer.waiting.push_front(greeting.to_vec());
        }
        while peer.sends < most
            && let Some(message) = peer.waiting.pop_front()
        {
            // Completions come in the order of sends: the oldest slot is free.
            let slot = (peer.sent % u64::from(most)) as u32;
            let at = u64::from(RECEIVES + slot) * SLOT_BYTES;
            peer.memory.write(at as usize, &message)?;
            let local = Some(peer.memory.slice(at, message.len() as u32)?);
            let id = id(KIND_SEND, index, slot);
            peer.pair.post_send(&SendRequest { id, kind: SendKind::Send, local, immediate: None, signaled: true })?;
            (peer.sends, peer.sent) = (peer.sends + 1, peer.sent + 1);
        }
        Ok(())
    }

    /// Whether there is room for so many more lanes: the completion queue holds what comes of that many.
    pub(crate) fn has_lanes(&self, more: usize) -> bool {
        self.lanes.iter().flatten().count() + more <= self.most_lanes as usize
    }

    /// A lane that has one end, and the number of its queue pair.
    pub(crate) fn open_lane(&mut self) -> Result<(Lane, u32)> {
        let pair = self.lane_pair()?;
        let qpn = pair.qpn();
        let lane = LanePair {
            pair,
            answers: None,
            is_connected: false,
            failed: None,
            waiting: VecDeque::new(),
            under_way: VecDeque::new(),
        };
        Ok((Lane(place(&mut self.lanes, lane) as u32), qpn))
    }

    fn lane_pair(&self) -> Result<QueuePair> {
        let depths = QueueDepths { send: TRANSFERS, receive: 1 };
        let pair = QueuePair::builder(&self.pd, Transport::Rc, depths).inline(FLAG_BYTES).build(&self.cq, &self.cq)?;
        pair.init(Access::REMOTE_READ | Access::REMOTE_WRITE, 0)?;
        Ok(pair)
    }

    /// Connects a lane to the queue pair `qpn` of a peer.
    pub(crate) fn connect_lane(&mut self, lane: Lane, peer: PeerId, qpn: u32) -> Result<()> {
        let Some((far, _)) = self.peer_mut(peer).and_then(|peer| peer.far) else { return Ok(()) };
        if let Some(lane) = self.lane_mut(lane) {
            lane.pair.connect(&Connection::to(far.remote(qpn)))?;
            lane.is_connected = true;
        }
        self.post_transfers(lane)
    }

    /// A lane to memory that this process has keys of.
    pub(crate) fn open_own_lane(&mut self) -> Result<Lane> {
        let (lane, qpn) = self.open_lane()?;
        let answers = self.lane_pair()?;
        let own = self.end(qpn, [0; SIDE_NONCE_BYTES]);
        answers.connect(&Connection::to(own.remote(qpn)))?;
        if let Some(lane) = self.lane_mut(lane) {
            lane.pair.connect(&Connection::to(own.remote(answers.qpn())))?;
            (lane.is_connected, lane.answers) = (true, Some(answers));
        }
        Ok(lane)
    }

    /// Ends a lane. Nothing more is reported of its transfers, which may still be under way until this returns.
    pub(crate) fn close_lane(&mut self, lane: Lane) {
        if let Some(slot) = self.lanes.get_mut(lane.0 as usize) {
            *slot = None;
        }
    }

    fn lane_mut(&mut self, lane: Lane) -> Option<&mut LanePair> {
        self.lanes.get_mut(lane.0 as usize).and_then(Option::as_mut)
    }

    /// Begins a transfer; its end is reported as [`LinkEvent::Transferred`] with `token`.
    pub(crate) fn transfer(
        &mut self,
        lane: Lane,
        token: u64,
        ends: Ends,
        transfer: Transfer,
        held: Held,
    ) -> Result<()> {
        match self.lane_mut(lane) {
            Some(LanePair { failed: Some(fault), .. }) => {
                let fault = *fault;
                self.refused.push_back((token, fault));
            }
            Some(lane) => lane.waiting.push_back((token, ends, transfer, held)),
            None => debug_assert!(false, "{lane:?} is closed: nobody learns of the end of {transfer:?}"),
        }
        self.post_transfers(lane)
    }

    fn post_transfers(&mut self, lane: Lane) -> Result<()> {
        let index = lane.0 as usize;
        let Some(lane) = self.lane_mut(lane).filter(|lane| lane.is_connected && lane.failed.is_none()) else {
            return Ok(());
        };
        while lane.under_way.len() < TRANSFERS as usize
            && let Some((token, ends, transfer, held)) = lane.waiting.pop_front()
        {
            let id = id(KIND_TRANSFER, index, 0);
            match transfer {
                Transfer::Read { to, lkey, from, rkey, bytes } => {
                    let kind = SendKind::Read { remote_addr: from, rkey };
                    let local = Some(LocalSlice { addr: HostAddr(to), len: bytes, lkey });
                    lane.pair.post_send(&SendRequest { id, kind, local, immediate: None, signaled: true })?;
                }
                Transfer::Write { from, lkey, to, rkey, bytes } => {
                    let kind = SendKind::Write { remote_addr: to, rkey };
                    let local = Some(LocalSlice { addr: HostAddr(from), len: bytes, lkey });
                    lane.pair.post_send(&SendRequest { id, kind, local, immediate: None, signaled: true })?;
                }
                Transfer::Flag { value, to, rkey } => {
                    let (kind, bytes) = (SendKind::Write { remote_addr: to, rkey }, &value.to_le_bytes());
                    lane.pair.post_inline([InlineRequest { id, kind, bytes, immediate: None, signaled: true }])?;
                }
            }
            lane.under_way.push_back((token, ends, held));
        }
        Ok(())
    }

    /// Whether everything that was to be sent has been taken by the cards of those it is for.
    pub(crate) fn is_drained(&self) -> bool {
        self.peers.iter().flatten().all(|peer| !peer.is_open || (peer.sends == 0 && peer.waiting.is_empty()))
    }

    /// Whether the card of a peer has taken everything that was to be sent to it.
    pub(crate) fn is_drained_to(&self, peer: PeerId) -> bool {
        let state = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        state.is_none_or(|peer| !peer.is_open || (peer.sends == 0 && peer.waiting.is_empty()))
    }

    /// Queue pairs of connections and of lanes.
    pub(crate) fn pairs(&self) -> usize {
        let lanes = self.lanes.iter().flatten();
        let lanes: usize = lanes.map(|lane| 1 + usize::from(lane.answers.is_some())).sum();
        self.peers.iter().flatten().count() + lanes
    }

    /// Reports what has happened since the last call. Returns whether anything has.
    pub(crate) fn poll(&mut self, mut take: impl FnMut(&mut Self, LinkEvent<'_>) -> Result<()>) -> Result<bool> {
        let mut any = false;
        while let Some((token, fault)) = self.refused.pop_front() {
            any = true;
            take(self, LinkEvent::Transferred { token, error: Some(fault) })?;
        }
        let mut done = std::mem::take(&mut self.done);
        self.cq.poll_each(|completion| done.push(completion))?;
        for completion in done.drain(..) {
            any = true;
            self.complete(&completion, &mut take)?;
        }
        self.done = done;
        Ok(any)
    }

    fn complete(
        &mut self,
        completion: &Completion,
        take: &mut impl FnMut(&mut Self, LinkEvent<'_>) -> Result<()>,
    ) -> Result<()> {
        let (kind, index, slot) = (completion.id >> 56, completion.id >> 32 & 0xFF_FFFF, completion.id as u32);
        if kind == KIND_TRANSFER {
            return self.complete_transfer(Lane(index as u32), completion, take);
        }
        let peer = PeerId(index as u32);
        // One of a connection that has ended, and whose place another one has.
        let Some(state) = self.peer_mut(peer).filter(|state| state.pair.qpn() == completion.qpn) else { return Ok(()) };
        if completion.status != 0 {
            if std::mem::replace(&mut state.is_open, false) {
                state.waiting.clear();
                take(self, LinkEvent::Broken { peer })?;
            }
            return Ok(());
        }
        if kind == KIND_SEND {
            state.sends -= 1;
            return self.post(peer);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(completion.byte_len.min(wire::MAX_BYTES as u32) as usize, 0);
        let mut is_greeting = Ok(false);
        if let Some(state) = self.peer_mut(peer) {
            state.memory.read((u64::from(slot) * SLOT_BYTES) as usize, &mut buffer)?;
            let acquaintance = state.far.as_mut().map(|(_, acquaintance)| acquaintance);
            is_greeting = acquaintance.map_or(Ok(false), |one| one.receive(&buffer, &keyed_hash));
        }
        self.post_receive(index as usize, slot)?;
        let taken = match is_greeting {
            Ok(true) => Ok(()),
            Ok(false) => take(self, LinkEvent::Message { from: peer, bytes: &buffer }),
            Err(stranger) => self.refuse(peer, stranger, take),
        };
        self.buffer = buffer;
        taken
    }

    /// Somebody else is at the other end: the connection is broken.
    fn refuse(
        &mut self,
        peer: PeerId,
        stranger: Stranger,
        take: &mut impl FnMut(&mut Self, LinkEvent<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(state) = self.peer_mut(peer).filter(|state| state.is_open) else { return Ok(()) };
        tracing::error!(qpn = state.pair.qpn(), %stranger, "the other end of a connection is not the one that was meant");
        state.is_open = false;
        state.waiting.clear();
        state.pair.fail()?;
        take(self, LinkEvent::Broken { peer })
    }

    fn complete_transfer(
        &mut self,
        lane: Lane,
        completion: &Completion,
        take: &mut impl FnMut(&mut Self, LinkEvent<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(state) = self.lane_mut(lane).filter(|state| state.pair.qpn() == completion.qpn) else { return Ok(()) };
        let Some((token, ends, _held)) = state.under_way.pop_front() else { return Ok(()) };
        if completion.status == 0 {
            self.post_transfers(lane)?;
            return take(self, LinkEvent::Transferred { token, error: None });
        }
        // What follows fails with it; the first says why.
        let fault = *state.failed.get_or_insert_with(|| Fault::new(completion.status, ends));
        let waiting: Vec<u64> = state.waiting.drain(..).map(|(token, ..)| token).collect();
        self.refused.extend(waiting.into_iter().map(|token| (token, fault)));
        take(self, LinkEvent::Transferred { token, error: Some(fault) })
    }

    /// Why a lane has failed, if it has; `Err` while transfers are under way that will show whether it has.
    pub(crate) fn fault(&self, lane: Lane) -> std::result::Result<Option<Fault>, ()> {
        match self.lanes.get(lane.0 as usize).and_then(Option::as_ref) {
            Some(LanePair { failed: None, under_way, .. }) if !under_way.is_empty() => Err(()),
            lane => Ok(lane.and_then(|lane| lane.failed)),
        }
    }
}

/// Puts something into the first free place.
fn place<T>(all: &mut Vec<Option<T>>, what: T) -> usize {
    let free = all.iter().position(Option::is_none);
    let at = free.unwrap_or(all.len());
    match all.get_mut(at) {
        Some(slot) => *slot = Some(what),
        None => all.push(Some(what)),
    }
    at
}
