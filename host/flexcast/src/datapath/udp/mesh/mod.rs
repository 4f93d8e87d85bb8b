//! Connections of a rank to its peers, over TCP: control messages, reads of what multicast has lost, and the messages of point-to-point
//! collectives.
//!
//! Frames ([`frame`]) of one connection come in the order in which they were sent. One of an operation that has not begun here waits in the
//! connection, with all behind it: ranks may be several operations ahead of one another where no barrier keeps them together.

mod connect;
mod frame;
mod peer;

use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use flexcast_proto::p2p::Part;
use zerocopy::IntoBytes as _;

pub(super) use connect::{Connect, listen};
pub(super) use frame::Head;

use crate::error::Result;
use frame::{END, MESSAGE, MOST_FRAME_BYTES, REQUEST, RequestBody};
use peer::Peer;

/// Longest that what was said last waits for the peer's system to take it, when a communicator ends.
const DRAIN: Duration = Duration::from_secs(1);

/// A read, by the one who asks or the one who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) operation: u32,
    pub(super) tag: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// What a peer has sent.
#[derive(Debug)]
pub(super) enum Event<'e> {
    Message { from: u32, bytes: &'e [u8] },
    Request { from: u32, read: Read },
    Data { from: u32, operation: u32, tag: u32, offset: u64, bytes: &'e [u8] },
}

/// Whoever takes what comes.
pub(super) trait Listener {
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
pub(super) trait Source {
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
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

/// The connections of a communicator.
#[derive(Debug)]
pub(super) struct Mesh {
    /// Ascending by rank.
    peers: Vec<Peer>,
    room: Vec<u8>,
}

impl Mesh {
    /// Connects to `ranks` (ascending): a rank to those below it. Blocks, at most for the timeout.
    pub(super) fn connect(connect: &Connect<'_>, ranks: &[u32]) -> Result<Self> {
        connect.all(ranks).map(Self::of)
    }

    /// Of connections that are ready, ascending by rank.
    fn of(streams: Vec<(u32, TcpStream)>) -> Self {
        let peers = streams.into_iter().map(|(rank, stream)| Peer::new(rank, stream)).collect();
        Self { peers, room: vec![0; MOST_FRAME_BYTES] }
    }

    /// What is to be waited for: each connection that is open, with its number.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>, Interest)> {
        let open = self.peers.iter().enumerate().filter(|(_, peer)| !peer.closed);
        open.map(|(number, peer)| {
            (number, peer.stream.as_fd(), Interest { read: peer.is_heard(), write: peer.is_waiting() })
        })
    }

    /// Whether there is a connection to a rank, or was.
    pub(super) fn connects(&self, rank: u32) -> bool {
        self.peers.binary_search_by_key(&rank, |peer| peer.rank).is_ok()
    }

    fn peer(&mut self, rank: u32) -> Option<&mut Peer> {
        let at = self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok();
        debug_assert!(at.is_some(), "rank {rank} is no peer: what is sent to it is lost");
        self.peers.get_mut(at?)
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

    /// A peer has said what cannot be: nothing more is heard from it.
    pub(super) fn distrust(&mut self, rank: u32) {
        if let Some(peer) = self.peer(rank) {
            peer.distrust();
        }
    }

    /// Forgets what peers want to read.
    pub(super) fn forget_serves(&mut self) {
        self.peers.iter_mut().for_each(Peer::forget_serves);
    }

    /// Gives what waits to the system. Returns whether anything moved.
    pub(super) fn flush(&mut self, source: &dyn Source) -> bool {
        self.peers.iter_mut().fold(false, |moved, peer| moved | peer.flush(source))
    }

    /// Takes what peer number `number` has sent. Returns whether there was anything.
    pub(super) fn receive(&mut self, number: usize, listener: &mut dyn Listener) -> bool {
        let Self { peers, room } = self;
        peers.get_mut(number).filter(|peer| peer.is_heard()).is_some_and(|peer| peer.receive(room, listener))
    }

    /// An operation has begun: takes what has waited for that. Returns whether there was anything.
    pub(super) fn resume(&mut self, listener: &mut dyn Listener) -> bool {
        self.peers.iter_mut().fold(false, |any, peer| any | peer.resume(listener))
    }

    /// Tells which connections have broken, and the system's code, once each.
    pub(super) fn take_broken(&mut self, mut tell: impl FnMut(u32, u16)) {
        for peer in &mut self.peers {
            if let Some(code) = peer.breaks.take() {
                tell(peer.rank, code);
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
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests;
