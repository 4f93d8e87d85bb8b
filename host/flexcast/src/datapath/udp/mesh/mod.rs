//! Connections of a rank to its peers, over TCP or through shared memory: control messages, reads of what multicast has lost, and the messages of point-to-point
//! collectives.
//!
//! Frames ([`frame`]) of one connection come in the order in which they were sent. One of an operation that has not begun here waits in the
//! connection, with all behind it: ranks may be several operations ahead of one another where no barrier keeps them together.

mod connect;
mod frame;
mod peer;
mod shared;
mod stream;

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexcast_proto::p2p::Part;
use zerocopy::IntoBytes as _;

pub(crate) use connect::begin_tcp;
use connect::{Arriving, Met};
pub(super) use connect::{Connect, Doors, Watch, listen};
pub(crate) use frame::{END, Frame, Head, MESSAGE, MOST_FRAME_BYTES};
pub(crate) use peer::{NONSENSE, Peer, failure_code};
pub(super) use shared::{OtherEnd, Rings, listen as listen_shared};

use crate::error::Result;
use frame::{REQUEST, RequestBody};
pub(super) use stream::Stream;

/// Longest that what was said last waits for the peer's system to take it, when a communicator ends.
const DRAIN: Duration = Duration::from_secs(1);

/// A read, by the one who asks or the one who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) operation: u32,
    pub(crate) tag: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// What a peer has sent.
#[derive(Debug)]
pub(crate) enum Event<'e> {
    Message { from: u32, bytes: &'e [u8] },
    Request { from: u32, read: Read },
    Data { from: u32, operation: u32, tag: u32, offset: u64, bytes: &'e [u8] },
}

/// Whoever takes what comes.
pub(crate) trait Listener {
    /// Whether a frame of an operation can be taken now; otherwise it waits until that operation begins. `transfer`: it is a fragment of a message.
    fn is_due(&self, operation: u32, transfer: bool) -> bool;

    fn hear(&mut self, event: Event<'_>);

    /// A fragment comes. False: it cannot be, and nothing more is heard from that rank.
    fn begin(&mut self, from: u32, head: &Head) -> bool;

    /// Where the bytes of a fragment belong, from number `at` on, up to the next that belong somewhere else. Empty: nowhere any more.
    fn place(&mut self, from: u32, head: &Head, at: u64) -> &mut [u8];

    /// All bytes of a fragment are in their places.
    fn end(&mut self, from: u32, head: &Head);
}

/// Whoever has what is sent.
pub(crate) trait Source {
    /// The buffer that peers read from.
    fn buffer(&self) -> &[u8];

    /// The bytes of a message from number `at` on, up to the next that lie somewhere else.
    fn part(&self, part: Part, at: u64) -> &[u8];
}

/// Nothing to be sent.
impl Source for () {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, _: Part, _: u64) -> &[u8] {
        &[]
    }
}

/// What is waited for on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// The connections of a communicator.
#[derive(Debug)]
pub(super) struct Mesh {
    connect: Connect,
    /// Connections, by their numbers, which stay: two to a rank if both have connected at the same time.
    peers: Vec<Peer>,
    /// The connection on which a rank is told something, by its number. Always the same, so that what is said keeps its order.
    routes: Vec<Option<usize>>,
    /// Whether a rank has connected to this one. It does so once at most: a greeting that comes again is not its own.
    has_come: Vec<bool>,
    arriving: Arriving,
    /// Aggregators to which no connection can be made, and the system's code.
    unreachable: Vec<(u32, u16)>,
    /// The memory of new connections, until somebody waits for it.
    rings: Vec<Arc<Rings>>,
    room: Vec<u8>,
}

impl Mesh {
    /// Connects to `ranks` (ascending): a rank to those below it. Blocks, at most for the timeout.
    pub(super) fn connect(connect: Connect, ranks: &[u32]) -> Result<Self> {
        let Met { dialled, come, arriving } = connect.all(ranks)?;
        let mut mesh = Self::of(connect, dialled);
        mesh.arriving = arriving;
        for (rank, stream) in come {
            mesh.has_come[rank as usize] = true;
            mesh.add(Peer::new(rank, stream, Vec::new()));
        }
        Ok(mesh)
    }

    /// Of connections that are ready.
    pub(super) fn of(connect: Connect, streams: Vec<(u32, Stream)>) -> Self {
        let count = connect.addresses.len();
        let mut mesh = Self {
            has_come: vec![false; count],
            routes: vec![None; count + connect.aggregators.len()],
            unreachable: Vec::new(),
            connect,
            peers: Vec::new(),
            arriving: Arriving::default(),
            rings: Vec::new(),
            room: vec![0; MOST_FRAME_BYTES],
        };
        for (rank, stream) in streams {
            mesh.add(Peer::new(rank, stream, Vec::new()));
        }
        mesh
    }

    fn add(&mut self, peer: Peer) {
        self.rings.extend(peer.stream.shared().map(|stream| Arc::clone(stream.rings())));
        self.routes[peer.rank as usize].get_or_insert(self.peers.len());
        self.peers.push(peer);
    }

    /// Takes the connections of ranks that have something to say for the first time. Returns whether there was one.
    pub(super) fn admit(&mut self, watch: &mut dyn Watch) -> bool {
        let before = self.peers.len();
        let Self { connect, arriving, has_come, .. } = self;
        let mut new = Vec::new();
        arriving.poll(connect, watch, |rank, stream| {
            if std::mem::replace(&mut has_come[rank as usize], true) {
                tracing::warn!(rank, "somebody connects as a rank that is connected");
            } else {
                new.push(Peer::new(rank, stream, Vec::new()));
            }
        });
        new.into_iter().for_each(|peer| self.add(peer));
        self.peers.len() > before
    }

    /// Connections that there are, or were.
    pub(super) const fn len(&self) -> usize {
        self.peers.len()
    }

    /// Where ranks connect.
    pub(super) fn doors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let shared = self.connect.doors.listener.as_ref().map(|listener| listener.as_fd());
        std::iter::once(self.connect.listener.as_fd()).chain(shared)
    }

    /// The shared memory of connections that are new since this was last asked.
    pub(super) fn take_rings(&mut self) -> impl Iterator<Item = Arc<Rings>> {
        self.rings.drain(..)
    }

    /// What is to be waited for: each connection that is open, with its number.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>, Interest)> {
        let open = self.peers.iter().enumerate().filter(|(_, peer)| !peer.closed);
        open.map(|(number, peer)| {
            let (read, write) = (peer.is_heard(), peer.is_waiting());
            let interest = match peer.stream.shared() {
                None => Interest { read, write },
                // By its socket the other side tells of bytes and of room.
                Some(_) => Interest { read: read || write, write: false },
            };
            (number, peer.stream.as_fd(), interest)
        })
    }

    /// Notes what is waited for in shared memory.
    pub(super) fn want(&self) {
        for peer in &self.peers {
            if let Some(stream) = peer.stream.shared() {
                stream.rings().want(peer.is_heard(), peer.is_waiting());
            }
        }
    }

    /// Takes what peers have sent through shared memory. Returns whether there was anything.
    pub(super) fn look(&mut self, listener: &mut dyn Listener) -> bool {
        let Self { peers, room, .. } = self;
        let ready = peers.iter_mut().filter(|peer| {
            peer.is_heard()
                && peer.stream.shared().is_some_and(|stream| stream.rings().bytes().map_or(true, |bytes| bytes > 0))
        });
        ready.fold(false, |any, peer| any | peer.receive(room, listener))
    }

    /// The connection to a rank, which is made if there is none.
    fn peer(&mut self, rank: u32) -> Option<&mut Peer> {
        if self.routes.get(rank as usize)?.is_none() {
            let begun = self.connect.begin(rank);
            let peer = match begun {
                Ok((stream, greeting)) => Peer::new(rank, stream, greeting),
                Err(error) => {
                    tracing::error!(rank, %error, "no connection can be made");
                    if rank as usize >= self.has_come.len() {
                        self.unreachable.push((rank, peer::code(&error)));
                    }
                    return None;
                }
            };
            self.add(peer);
        }
        let number = self.routes[rank as usize]?;
        self.peers.get_mut(number)
    }

    /// Sends a message, with eager data or none behind it. One to a rank that is gone is dropped: whoever waits for its answer learns of that.
    pub(super) fn say(&mut self, to: u32, operation: u32, message: &[u8], data: &[u8]) {
        if let Some(peer) = self.peer(to) {
            peer.add(MESSAGE, operation, [message, data]);
        }
    }

    /// Asks a peer for a range of its buffer.
    pub(super) fn read(&mut self, from: u32, read: &Read) {
        let body = RequestBody { tag: read.tag.into(), offset: read.offset.into(), bytes: read.bytes.into() };
        if let Some(peer) = self.peer(from) {
            peer.add(REQUEST, read.operation, [body.as_bytes(), &[]]);
        }
    }

    /// Answers a peer's request, when there is room.
    pub(super) fn serve(&mut self, to: u32, read: Read) {
        if let Some(peer) = self.peer(to) {
            peer.serve(read);
        }
    }

    /// Sends a message of a point-to-point collective, all of it. [`Mesh::take_finished`] tells when its bytes are not needed any more.
    pub(super) fn transfer(&mut self, to: u32, head: Head, part: Part, source: &dyn Source) {
        if let Some(peer) = self.peer(to) {
            peer.transfer(head, part, source);
        }
    }

    /// Messages whose bytes are not needed any more, since this was last asked.
    pub(super) fn take_finished(&mut self) -> u32 {
        self.peers.iter_mut().map(Peer::take_finished).sum()
    }

    /// The operation is over here: what has begun to be sent is copied, and no more of it is sent.
    pub(super) fn abandon(&mut self, source: &dyn Source) {
        self.peers.iter_mut().for_each(|peer| peer.abandon(source));
    }

    /// A rank has said what cannot be: nothing more is heard from it.
    pub(super) fn distrust(&mut self, rank: u32) {
        self.peers.iter_mut().filter(|peer| peer.rank == rank).for_each(Peer::distrust);
    }

    /// Forgets what peers want to read.
    pub(super) fn forget_serves(&mut self) {
        self.peers.iter_mut().for_each(Peer::forget_serves);
    }

    /// Gives what waits to the system. Returns whether anything moved.
    pub(super) fn flush(&mut self, source: &dyn Source) -> bool {
        self.peers.iter_mut().fold(false, |moved, peer| moved | peer.flush(source))
    }

    /// Whether something waits until the system takes more.
    pub(super) fn is_waiting(&self) -> bool {
        self.slow_taker().is_some()
    }

    /// A rank that does not take what is to be sent to it.
    pub(super) fn slow_taker(&self) -> Option<u32> {
        self.peers.iter().find(|peer| !peer.closed && peer.is_waiting()).map(|peer| peer.rank)
    }

    /// Takes what peer number `number` has sent. Returns whether there was anything.
    pub(super) fn receive(&mut self, number: usize, listener: &mut dyn Listener) -> bool {
        let Self { peers, room, .. } = self;
        let Some(peer) = peers.get_mut(number).filter(|peer| !peer.closed) else { return false };
        peer.stream.attend();
        peer.is_heard() && peer.receive(room, listener)
    }

    /// An operation has begun: takes what has waited for that. Returns whether there was anything.
    pub(super) fn resume(&mut self, listener: &mut dyn Listener) -> bool {
        self.peers.iter_mut().fold(false, |any, peer| any | peer.resume(listener))
    }

    /// Tells which connections have broken, and the system's code, once each.
    pub(super) fn take_broken(&mut self, mut tell: impl FnMut(u32, u16)) {
        self.unreachable.drain(..).for_each(|(peer, code)| tell(peer, code));
        for peer in &mut self.peers {
            if let Some(code) = peer.breaks.take() {
                tell(peer.rank, code);
            }
        }
    }

    /// The connections to aggregators, by their numbers.
    pub(super) fn aggregators(&self) -> Vec<usize> {
        self.routes[self.has_come.len()..].iter().flatten().copied().collect()
    }

    /// The rank, or aggregator, at the other end of a connection.
    pub(super) fn other_end(&self, number: usize) -> Option<u32> {
        self.peers.get(number).map(|peer| peer.rank)
    }

    /// Connections to aggregators that have ended are made anew when something is to be said.
    pub(super) fn renew(&mut self) {
        let Self { routes, has_come, peers, unreachable, .. } = self;
        unreachable.clear();
        for route in &mut routes[has_come.len()..] {
            if let Some(peer) = route.and_then(|number| peers.get_mut(number)).filter(|peer| !peer.is_open()) {
                peer.close(0);
                peer.breaks = None;
                *route = None;
            }
        }
    }

    /// Connections on which nothing comes any more, with their numbers, once each.
    pub(super) fn take_closed(&mut self, mut tell: impl FnMut(usize, BorrowedFd<'_>)) {
        for (number, peer) in self.peers.iter_mut().enumerate().filter(|(_, peer)| peer.closed && !peer.forgotten) {
            peer.forgotten = true;
            tell(number, peer.stream.as_fd());
        }
    }
}

impl Drop for Mesh {
    /// What has been said last, such as the final message of an operation or why it failed, is heard although the program goes at once.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let deadline = Instant::now() + DRAIN;
        for peer in &mut self.peers {
            // One that waits for the rest of a message learns that it does not come.
            peer.abandon(&());
            peer.add(END, 0, [&[], &[]]);
        }
        loop {
            self.flush(&());
            if self.peers.iter().all(|peer| !peer.is_waiting()) || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let Self { peers, room, .. } = self;
        peers.iter_mut().for_each(|peer| peer.discard(room));
    }
}

#[cfg(test)]
mod tests;
