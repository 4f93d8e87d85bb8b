//! Reliable connections to other ranks: control messages, and reads of what multicast has lost.

use std::collections::{BTreeMap, VecDeque};

use flexcast_proto::wire;
use flexio::{
    Access, Bound, Completion, CompletionQueue, Connection, HostBuffer, LocalSlice, MemoryRegion, Path,
    ProtectionDomain, QueueDepths, QueuePair, Retry, Transport,
};

use crate::carrier::connect_info::{ConnectInfo, Ends, Purpose};
use crate::engine::event::Event;
use crate::error::Result;
use crate::op::config::Config;
use flexcast_rc::requester::{INLINE_BYTES, Outcome, PROBES, Request, Requester, Wire};

/// Room for the longest control message without eager data.
const MESSAGE_BYTES: usize = wire::MAX_BYTES.next_multiple_of(64);
/// Receives posted to each peer. A peer has a barrier signal of the next operation, an activation, a fetch and a final
/// message under way at most, and as many acknowledgements as this rank fetches blocks; the connection waits when there
/// are more.
const RECEIVES: u32 = 16;
/// Sends under way to each peer.
const SENDS: u32 = 8;
/// Reads under way from each peer: what a card takes from one requester.
const READS: u32 = 8;
const _: () = assert!(wire::MAX_BYTES <= INLINE_BYTES);

const KIND_RECEIVE: u64 = 0;
const KIND_SEND: u64 = 1;
const KIND_READ: u64 = 2;
const KIND_PROBE: u64 = 3;

const fn id(kind: u64, peer: usize, slot: u32) -> u64 {
    kind << 56 | (peer as u64) << 32 | slot as u64
}

/// A range to be read from a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) from: u32,
    pub(crate) local: LocalSlice,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    /// Comes back in [`Event::Read`].
    pub(crate) tag: u32,
}

#[derive(Debug)]
struct Peer {
    rank: u32,
    /// What this rank asks and sends.
    requester: Requester,
    /// What the peer asks and sends.
    answerer: QueuePair,
    /// What messages to it and of it carry instead of the communicator's number, once it is connected: so each proves
    /// who has sent it.
    numbers: [u64; 2],
    /// A message has come that proves who it is.
    recognized: bool,
    /// Somebody else is at the other end: nothing more is taken from it.
    wrong: bool,
    sends: u32,
    /// Messages with eager data so far: they take turns in the memory for them.
    eager_sends: u64,
    reads: u32,
    broken: bool,
}

impl Peer {
    /// Whether a message is the peer's; otherwise what it is. The first proves it; later ones that cannot be read at
    /// all are left to the protocol.
    fn recognize(&mut self, message: &[u8]) -> std::result::Result<(), String> {
        let [_, expected] = self.numbers;
        match wire::communicator_of(message) {
            Ok(found) if found == expected => self.recognized = true,
            Ok(found) => {
                return Err(format!(
                    "its messages have the number {found:#x}, and those of that rank {expected:#x}: it is another \
                     rank, or of another start or communicator"
                ));
            }
            Err(_) if self.recognized => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Waiting {
    peer: usize,
    len: usize,
    bytes: [u8; INLINE_BYTES],
    /// What follows: eager data for which there is no room in `bytes`.
    data: Vec<u8>,
}

/// The connections of one rank.
#[derive(Debug)]
pub(crate) struct Control {
    /// Ascending by rank.
    peers: Vec<Peer>,
    /// What receives are posted in, and behind it what messages with eager data are sent from.
    memory: MemoryRegion,
    /// Bytes of each receive, and of each send with eager data.
    slot_bytes: usize,
    cq: CompletionQueue,
    /// Number of the communicator, once connected.
    communicator: u64,
    messages: VecDeque<Waiting>,
    reads: VecDeque<(usize, Read)>,
    under_way: u32,
    /// The slowest of all ranks' links, once connected.
    wire: Wire,
    /// The peer that has to send something before this rank can go on, and since when it is that one.
    awaited: Option<(usize, u64)>,
    /// The time as of the last poll or flush, in picoseconds.
    now_ps: u64,
    /// Reads of each tag that are not over.
    unfinished: BTreeMap<u32, u32>,
    /// What has just completed, while it is dealt with; kept for its room.
    completed: Vec<Completion>,
}

/// Longest that connections are kept for messages on their way: longer than the seven tries of a connection take by
/// default.
const DRAIN: Bound = Bound::millis(1_000).with_polls(10_000_000);

impl Drop for Control {
    /// The last messages, such as the final one of an operation or why it failed, arrive although the program ends at
    /// once.
    fn drop(&mut self) {
        if std::thread::panicking() || self.is_drained() {
            return;
        }
        let provider = self.cq.device().provider().clone();
        // In vain: the others find the connection broken, as when the process had been killed.
        let _ = flexio::wait(provider.relax(), DRAIN, "the last control messages", || {
            // What comes now is for nobody. An error ends it, too: there is nothing more to be had of this queue.
            let polled = self.poll(0, |_, _| Ok(()));
            Ok((polled.is_err() || self.is_drained()).then_some(()))
        });
    }
}

impl Control {
    /// A connection, not yet connected, for each of `ranks` (ascending), for messages with up to `eager_bytes` bytes of
    /// data. `restarts`: see [`Config::restarts`].
    pub(crate) fn new(pd: &ProtectionDomain, ranks: &[u32], eager_bytes: usize, restarts: bool) -> Result<Self> {
        let count = ranks.len() as u32;
        let slot_bytes =
            if eager_bytes == 0 { MESSAGE_BYTES } else { (MESSAGE_BYTES + eager_bytes).next_multiple_of(64) };
        let sends = if eager_bytes == 0 { 0 } else { SENDS };
        let slots = (count * (RECEIVES + sends)) as usize;
        let memory = HostBuffer::zeroed(slots.max(1) * slot_bytes)?;
        let memory = MemoryRegion::register(pd, memory, Access::LOCAL_WRITE)?;
        let cq = CompletionQueue::new(pd.device(), count.max(1) * (RECEIVES + SENDS + READS + PROBES))?;
        // A queue has one entry at least.
        let asking = QueueDepths { send: SENDS + READS + PROBES, receive: 0 };
        let answering = QueueDepths { send: 1, receive: RECEIVES };
        let mtu_bytes = pd.device().port().mtu_bytes();
        let mut peers = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let inline_bytes = INLINE_BYTES as u32;
            let asking = QueuePair::builder(pd, Transport::Rc, asking).inline(inline_bytes).build(&cq, &cq)?;
            let requester = Requester::new(asking, mtu_bytes, restarts)?;
            let answerer = QueuePair::builder(pd, Transport::Rc, answering).build(&cq, &cq)?;
            // Probes, which are Reads of nothing, may come before the greeting has been received.
            answerer.init(Access::REMOTE_READ, 0)?;
            peers.push(Peer {
                rank: *rank,
                requester,
                answerer,
                numbers: [0; 2],
                recognized: false,
                wrong: false,
                sends: 0,
                eager_sends: 0,
                reads: 0,
                broken: false,
            });
        }
        Ok(Self {
            peers,
            memory,
            slot_bytes,
            cq,
            communicator: 0,
            messages: VecDeque::new(),
            reads: VecDeque::new(),
            under_way: 0,
            wire: Wire::new(0),
            awaited: None,
            now_ps: 0,
            unfinished: BTreeMap::new(),
            completed: Vec::new(),
        })
    }

    /// The ends of every connection.
    pub(crate) fn ends(&self) -> Vec<Ends> {
        let ends = |peer: &Peer| Ends { peer: peer.rank, asking: peer.requester.qpn(), answering: peer.answerer.qpn() };
        self.peers.iter().map(ends).collect()
    }

    /// Connects to the peers, whose connection information is among `all`, and posts receives.
    pub(crate) fn connect(&mut self, own: u32, all: &[ConnectInfo], config: &Config) -> Result<()> {
        let retry = Retry { timeout_exponent: config.retry_exponent, count: 7 };
        let path = Path { traffic_class: config.control_class, ..Path::default() };
        self.wire = Wire::new(config.link_gbit_per_s);
        self.communicator = all[0].communicator;
        for index in 0..self.peers.len() {
            for slot in 0..RECEIVES {
                self.post_receive(index, index as u32 * RECEIVES + slot)?;
            }
            let peer = &mut self.peers[index];
            let info = &all[peer.rank as usize];
            peer.numbers = ConnectInfo::message_numbers(self.communicator, &all[own as usize], info)?;
            peer.answerer.connect(&Connection::to(info.connection(Purpose::Answers, own)?).path(path).retry(retry))?;
            peer.requester.connect(&info.connection(Purpose::Requests, own)?, path, retry)?;
        }
        Ok(())
    }

    fn post_receive(&self, peer: usize, slot: u32) -> Result<()> {
        let into = self.memory.slice(u64::from(slot) * self.slot_bytes as u64, self.slot_bytes as u32)?;
        Ok(self.peers[peer].answerer.post_receive(id(KIND_RECEIVE, peer, slot), into)?)
    }

    fn index(&self, rank: u32) -> Option<usize> {
        self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok()
    }

    /// Whether losses are expected: then silent peers are probed sooner.
    pub(crate) fn expect_losses(&mut self, expected: bool) {
        self.peers.iter_mut().for_each(|peer| peer.requester.expect_losses(expected));
    }

    /// Sends a message, with eager data or none behind it; at once if there is room, else when there is. One to a rank
    /// without connection, or with a broken one, is dropped: whoever waits for its answer learns of the break.
    pub(crate) fn send(&mut self, to: u32, bytes: &[u8], data: Vec<u8>) -> Result<()> {
        debug_assert!(self.index(to).is_some(), "rank {to} is no peer: what is sent to it is lost");
        let Some(peer) = self.index(to).filter(|peer| !self.peers[*peer].broken) else { return Ok(()) };
        let mut waiting = Waiting { peer, len: bytes.len(), bytes: [0; INLINE_BYTES], data };
        waiting.bytes[..bytes.len()].copy_from_slice(bytes);
        wire::address(&mut waiting.bytes[..bytes.len()], self.peers[peer].numbers[0]);
        if let Some(room) = waiting.bytes[bytes.len()..].get_mut(..waiting.data.len()) {
            room.copy_from_slice(&waiting.data);
            waiting.len += waiting.data.len();
            waiting.data.clear();
        }
        self.messages.push_back(waiting);
        self.post()
    }

    /// Reads a range of a peer's memory; see [`Event::Read`].
    pub(crate) fn read(&mut self, read: Read) -> Result<()> {
        if let Some(peer) = self.index(read.from) {
            *self.unfinished.entry(read.tag).or_default() += 1;
            self.reads.push_back((peer, read));
            self.post()?;
        }
        Ok(())
    }

    /// Reads that have been asked for and are not over.
    pub(crate) fn reading(&self) -> bool {
        self.under_way > 0 || !self.reads.is_empty()
    }

    /// Whether all messages have been acknowledged by the cards of those they are for, where the connections hold.
    pub(crate) fn is_drained(&self) -> bool {
        let held = |peer: usize| !self.peers[peer].broken;
        self.messages.iter().all(|message| !held(message.peer))
            && self.peers.iter().all(|peer| peer.broken || peer.sends == 0)
    }

    /// Whether messages wait for room in a queue.
    pub(crate) fn is_waiting(&self) -> bool {
        self.messages.iter().any(|message| !self.peers[message.peer].broken)
    }

    /// Whether a connection is between its end and its new beginning: what was sent on it is with the card again after
    /// a few calls of [`Control::poll`] only.
    pub(crate) fn is_restarting(&self) -> bool {
        self.peers.iter().any(|peer| !peer.broken && peer.requester.is_restarting())
    }

    /// Forgets reads that have not been begun.
    pub(crate) fn cancel_reads(&mut self) {
        self.reads.clear();
        self.unfinished.clear();
    }

    /// Posts what has waited for room, and probes of peers that have not acknowledged anything for long. `awaited`: the
    /// rank that has to send something before this one can go on. That one is probed now and then, too. No other is: it
    /// may have ended its part, and be gone.
    pub(crate) fn flush(&mut self, awaited: Option<u32>, now_ps: u64) -> Result<()> {
        self.now_ps = now_ps;
        self.post()?;
        let awaited = awaited.and_then(|rank| self.index(rank)).filter(|index| !self.peers[*index].broken);
        if awaited != self.awaited.map(|(index, _)| index) {
            self.awaited = awaited.map(|index| (index, now_ps));
        }
        if let Some((index, since_ps)) = self.awaited {
            self.peers[index].requester.keep_alive(id(KIND_PROBE, index, 0), since_ps, now_ps)?;
        }
        for (index, peer) in self.peers.iter_mut().enumerate().filter(|(_, peer)| !peer.broken) {
            peer.requester.poll_silence(id(KIND_PROBE, index, 0), &mut self.wire, now_ps)?;
        }
        Ok(())
    }

    /// When a silent peer is to be probed, in picoseconds: [`Control::flush`] is to be called then.
    pub(crate) fn probe_ps(&self) -> Option<u64> {
        let of_peer = |peer: &Peer| peer.requester.silence_ps(&self.wire);
        let keep_alive_ps = |(index, since_ps): (usize, u64)| self.peers[index].requester.keep_alive_ps(since_ps);
        let silent_ps = self.peers.iter().filter(|peer| !peer.broken).filter_map(of_peer);
        silent_ps.chain(self.awaited.and_then(keep_alive_ps)).min()
    }

    /// Posts what has waited for room.
    fn post(&mut self) -> Result<()> {
        let now_ps = self.now_ps;
        let mut at = 0;
        while let Some(message) = self.messages.get(at) {
            let peer = message.peer;
            if self.peers[peer].broken {
                self.messages.remove(at);
                continue;
            }
            // Messages to one peer keep their order: the queue is walked from the front, and a peer without room is
            // passed over.
            if self.peers[peer].sends >= SENDS {
                at += 1;
                continue;
            }
            let id = id(KIND_SEND, peer, 0);
            if message.data.is_empty() {
                self.peers[peer].requester.send_short(id, &message.bytes[..message.len], now_ps)?;
            } else {
                // Of the messages to a peer that are not acknowledged there are fewer than places, and they go in turn.
                let turn = (self.peers[peer].eager_sends % u64::from(SENDS)) as usize;
                let place = self.peers.len() * RECEIVES as usize + peer * SENDS as usize + turn;
                let at = place * self.slot_bytes;
                self.memory.write(at, &message.bytes[..message.len])?;
                self.memory.write(at + message.len, &message.data)?;
                self.peers[peer].eager_sends += 1;
                let local = self.memory.slice(at as u64, (message.len + message.data.len()) as u32)?;
                self.peers[peer].requester.post(id, Request::Send(local), now_ps)?;
            }
            self.peers[peer].sends += 1;
            self.messages.remove(at);
        }
        while let Some((peer, read)) = self.reads.front().copied() {
            if self.peers[peer].broken {
                self.reads.pop_front();
                continue;
            }
            if self.peers[peer].reads >= READS {
                break;
            }
            self.reads.pop_front();
            self.peers[peer].reads += 1;
            self.under_way += 1;
            let Read { local, remote_addr, rkey, tag, .. } = read;
            let request = Request::Read { local, remote_addr, rkey };
            self.wire.post(request.bytes().into(), now_ps);
            self.peers[peer].requester.post(id(KIND_READ, peer, tag), request, now_ps)?;
        }
        Ok(())
    }

    /// Takes what has happened and reports it; returns whether there was anything.
    pub(crate) fn poll(
        &mut self,
        now_ps: u64,
        mut notify: impl FnMut(&mut Self, Event<'_>) -> Result<()>,
    ) -> Result<bool> {
        self.now_ps = now_ps;
        let mut any = false;
        let mut done = std::mem::take(&mut self.completed);
        loop {
            done.clear();
            self.cq.poll_each(|completion| done.push(completion))?;
            if done.is_empty() {
                self.completed = done;
                return Ok(any);
            }
            any = true;
            for completion in &done {
                self.take(completion, &mut notify)?;
            }
            self.post()?;
        }
    }

    fn take(
        &mut self,
        completion: &Completion,
        notify: &mut impl FnMut(&mut Self, Event<'_>) -> Result<()>,
    ) -> Result<()> {
        let (kind, peer, tag) = (completion.id >> 56, (completion.id >> 32) as usize & 0xFF_FFFF, completion.id as u32);
        let rank = self.peers[peer].rank;
        let status = match kind {
            KIND_RECEIVE => completion.status,
            _ => match self.peers[peer].requester.complete(completion.status, self.now_ps)? {
                Outcome::Nothing => return Ok(()),
                Outcome::Done => 0,
                Outcome::Broken(status) => {
                    // Its queue pair has failed: no read of it writes any more.
                    self.under_way -= std::mem::take(&mut self.peers[peer].reads);
                    status
                }
            },
        };
        // What a stranger has sent, and what was flushed when it was refused.
        if kind == KIND_RECEIVE && self.peers[peer].wrong {
            return Ok(());
        }
        if status != 0 {
            if std::mem::replace(&mut self.peers[peer].broken, true) {
                return Ok(());
            }
            return notify(self, Event::Broken { rank, status });
        }
        match kind {
            KIND_SEND => {
                self.peers[peer].sends -= 1;
            }
            KIND_READ => {
                self.peers[peer].reads -= 1;
                self.under_way -= 1;
            }
            _ => {}
        }
        match kind {
            KIND_RECEIVE => {
                let len = (completion.byte_len as usize).min(self.slot_bytes);
                let (mut short, mut long) = ([0; MESSAGE_BYTES], Vec::new());
                let bytes = match short.get_mut(..len) {
                    Some(short) => short,
                    None => {
                        long.resize(len, 0);
                        long.as_mut_slice()
                    }
                };
                self.memory.read(tag as usize * self.slot_bytes, bytes)?;
                if let Err(came) = self.peers[peer].recognize(bytes) {
                    self.peers[peer].wrong = true;
                    // It reads nothing here, and finds its connection broken.
                    self.peers[peer].answerer.fail()?;
                    return notify(self, Event::Wrong { rank, came: &came });
                }
                wire::address(bytes, self.communicator);
                // The next message of this peer may use the slot at once: the bytes are out of it.
                self.post_receive(peer, tag)?;
                notify(self, Event::Message { from: rank, bytes })
            }
            KIND_READ => {
                if let Some(left) = self.unfinished.get_mut(&tag) {
                    *left -= 1;
                    if *left == 0 {
                        self.unfinished.remove(&tag);
                        return notify(self, Event::Read { tag });
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
