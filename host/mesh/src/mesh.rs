//! The connections of one communicator, and who they are with.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexcast_proto::p2p::Part;
use flexcast_proto::session::Refusal;
use zerocopy::IntoBytes as _;

use crate::connect::{self, Connect};
use crate::error::{Error, Result};
use crate::events::{Fault, Interest, Listener, Read, Source, Watch};
use crate::frame::{END, Head, MESSAGE, MOST_FRAME_BYTES, REQUEST, RequestBody};
use crate::peer::{self, Peer};
use crate::shared::Rings;
use crate::strangers::{Arrival, Host, Reached, SILENCE, Strangers};
use crate::stream::Stream;

/// Time between two polls of connections while a communicator is made.
const POLL: Duration = Duration::from_micros(200);

/// Longest that what was said last waits for the peer's system to take it, when a communicator ends.
const DRAIN: Duration = Duration::from_secs(1);

/// Polls again and again instead of waiting.
struct Unwatched;

impl Watch for Unwatched {
    fn watch(&mut self, _: BorrowedFd<'_>) {}

    fn forget(&mut self, _: BorrowedFd<'_>) {}
}

/// The connections of a communicator.
#[derive(Debug)]
pub struct Mesh {
    connect: Connect,
    /// Connections, by their numbers, which stay: two to a rank if both have connected at the same time.
    peers: Vec<Peer>,
    /// The connection on which a rank is sent something, by its number. Always the same, so that what is said keeps its
    /// order.
    routes: Vec<Option<usize>>,
    /// The number of the connection that a rank has made to this one. It makes one at most.
    has_come: Vec<Option<usize>>,
    strangers: Strangers,
    /// Aggregators to which no connection can be made, and the system's code.
    unreachable: Vec<(u32, u16)>,
    room: Vec<u8>,
}

impl Mesh {
    /// Connects to `ranks` (ascending): a rank to those below it. Blocks, at most for the timeout. Connections to other
    /// ranks are made when something is sent to them.
    ///
    /// # Errors
    /// [`Error::Peer`]: a rank is not reached, does not take the connection, or does not connect in time.
    /// [`Error::Socket`].
    pub fn connect(connect: Connect, ranks: &[u32]) -> Result<Self> {
        connect.listener.set_nonblocking(true).map_err(connect::failed("TCP socket".to_owned()))?;
        let deadline = Instant::now() + connect.timeout;
        let mut mesh = Self::of(connect, Vec::new());
        let own = mesh.connect.own;
        for rank in ranks.iter().copied().filter(|rank| *rank < own) {
            let (stream, dial) = mesh.connect.dial(rank).map_err(|error| mesh.unreached(rank, &error.to_string()))?;
            mesh.add(Peer::dialled(rank, stream, dial, mesh.connect.tagged));
        }
        loop {
            mesh.admit(&mut Unwatched);
            mesh.peers.iter_mut().for_each(|peer| _ = peer.shake_hands());
            if let Some(peer) = mesh.peers.iter().find(|peer| peer.closed) {
                let reason = peer.fault().unwrap_or("has closed its connection");
                return Err(mesh.unreached(peer.rank, reason));
            }
            let is_missing = |rank: &u32| *rank > own && mesh.has_come[*rank as usize].is_none();
            let silent = mesh.peers.iter().find(|peer| peer.is_dialling()).map(|peer| peer.rank);
            let missing = ranks.iter().copied().find(is_missing);
            if silent.is_none() && missing.is_none() {
                return Ok(mesh);
            }
            if Instant::now() >= deadline {
                let timeout = mesh.connect.timeout;
                return Err(match (silent, missing) {
                    (Some(rank), _) => mesh.unreached(rank, &format!("was not taken within {timeout:?}")),
                    (None, missing) => {
                        let reason = format!(
                            "has not connected to rank {own} within {timeout:?}: see whether it runs, and whether a \
                             firewall closes TCP ports between them"
                        );
                        Error::Peer { rank: missing.unwrap_or(own), reason }
                    }
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// The connection to a rank does not come about.
    fn unreached(&self, rank: u32, why: &str) -> Error {
        let address = self.connect.addresses[rank as usize];
        let reason = format!(
            "is not reached at {address}: the connection {why}; see whether it runs, and whether a firewall closes TCP \
             ports between the ranks"
        );
        Error::Peer { rank, reason }
    }

    /// Of connections that are ready: there is no handshake, and frames have no tags.
    pub fn of(connect: Connect, streams: Vec<(u32, Stream)>) -> Self {
        let count = connect.addresses.len();
        let mut mesh = Self {
            has_come: vec![None; count],
            routes: vec![None; count + connect.aggregators.len()],
            unreachable: Vec::new(),
            connect,
            peers: Vec::new(),
            strangers: Strangers::default(),
            room: vec![0; MOST_FRAME_BYTES],
        };
        for (rank, stream) in streams {
            mesh.add(Peer::new(rank, stream));
        }
        mesh
    }

    fn add(&mut self, peer: Peer) {
        self.routes[peer.rank as usize].get_or_insert(self.peers.len());
        self.peers.push(peer);
    }

    /// Takes the connections of ranks that have something to say for the first time. Returns whether there was one.
    pub fn admit(&mut self, watch: &mut dyn Watch) -> bool {
        let connect = &self.connect;
        let reached = Reached::Rank {
            scope: connect.communicator,
            own: connect.own,
            ranks: connect.addresses.len() as u32,
            secret: &connect.secret,
        };
        let (listener, shared) = (&connect.listener, connect.shared.listener.as_ref());
        let arrivals = self.strangers.poll(&Host { listener, shared, reached, silence: SILENCE }, watch);
        let before = self.peers.len();
        arrivals.into_iter().for_each(|arrival| self.take(arrival));
        self.peers.len() > before
    }

    /// A rank has connected, and has proven who it is.
    fn take(&mut self, arrival: Arrival) {
        let (rank, address) = (arrival.rank, arrival.address);
        if let Some(before) = self.has_come[rank as usize].and_then(|number| self.peers.get_mut(number)) {
            if !(before.closed && before.is_unused()) {
                arrival.refuse(Refusal::Duplicate, &self.connect.secret);
                let why = format!(
                    "stands while somebody else, at {address}, connects as rank {rank} and proves it: see whether two \
                     processes run as that rank"
                );
                return before.accuse(why);
            }
            // It has broken before the rank knew that it was taken: the rank tries again.
            before.breaks = None;
            self.routes[rank as usize].take_if(|number| self.has_come[rank as usize] == Some(*number));
        }
        match arrival.accept(&self.connect.secret) {
            Ok((stream, session)) => {
                self.has_come[rank as usize] = Some(self.peers.len());
                self.add(Peer::accepted(rank, stream, address, &session, self.connect.tagged));
            }
            Err(error) => tracing::warn!(rank, %address, %error, "a connection breaks as it is taken"),
        }
    }

    /// Connections that there are, or were.
    pub const fn count(&self) -> usize {
        self.peers.len()
    }

    /// Where ranks connect.
    pub fn shared_listeners(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let shared = self.connect.shared.listener.as_ref().map(|listener| listener.as_fd());
        std::iter::once(self.connect.listener.as_fd()).chain(shared)
    }

    /// The shared memory of connections that are new since this was last asked.
    pub fn take_rings(&mut self) -> impl Iterator<Item = Arc<Rings>> {
        let made = self.peers.iter_mut().filter_map(|peer| peer.take_made().then_some(&*peer));
        made.filter_map(|peer| peer.stream.shared()).map(|stream| Arc::clone(stream.rings()))
    }

    /// Connections whose stream is another one since this was last asked. The one before is closed.
    pub fn take_renewed(&mut self) -> impl Iterator<Item = usize> {
        self.peers.iter_mut().enumerate().filter_map(|(number, peer)| peer.take_renewed().then_some(number))
    }

    /// When a handshake has something to do although nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.peers.iter().filter_map(Peer::deadline).min()
    }

    /// What is to be waited for: each connection that is open, with its number.
    pub fn descriptors(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>, Interest)> {
        let open = self.peers.iter().enumerate().filter(|(_, peer)| !peer.closed);
        open.map(|(number, peer)| {
            let Interest { read, write } = peer.interest();
            let interest = match peer.stream.shared() {
                // By its socket the other side notifies of bytes and of room.
                Some(_) if !peer.is_dialling() => Interest { read: read || write, write: false },
                _ => Interest { read, write },
            };
            (number, peer.stream.as_fd(), interest)
        })
    }

    /// Notes what is waited for in shared memory.
    pub fn want(&self) {
        for peer in self.peers.iter().filter(|peer| !peer.is_dialling()) {
            if let Some(stream) = peer.stream.shared() {
                stream.rings().want(peer.is_read(), peer.is_waiting());
            }
        }
    }

    /// Takes what peers have sent through shared memory. Returns whether there was anything.
    pub fn poll_shared(&mut self, listener: &mut dyn Listener) -> bool {
        let Self { peers, room, .. } = self;
        let ready = peers.iter_mut().filter(|peer| {
            peer.is_read()
                && peer.stream.shared().is_some_and(|stream| stream.rings().bytes().map_or(true, |bytes| bytes > 0))
        });
        ready.fold(false, |any, peer| any | peer.receive(room, listener))
    }

    /// The connection to a rank, which is made if there is none.
    fn peer(&mut self, rank: u32) -> Option<&mut Peer> {
        if self.routes.get(rank as usize)?.is_none() {
            let begun = match rank.checked_sub(self.connect.addresses.len() as u32) {
                None => {
                    let dialled = self.connect.dial(rank);
                    dialled.map(|(stream, dial)| Peer::dialled(rank, stream, dial, self.connect.tagged))
                }
                Some(number) => self.connect.dial_aggregator(number),
            };
            let peer = match begun {
                Ok(peer) => peer,
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

    /// Sends a message, with eager data or none behind it. One to a rank that is gone is dropped: whoever waits for its
    /// answer learns of that.
    pub fn say(&mut self, to: u32, operation: u32, message: &[u8], data: &[u8]) {
        if let Some(peer) = self.peer(to) {
            peer.add(MESSAGE, operation, [message, data]);
        }
    }

    /// Asks a peer for a range of its buffer.
    pub fn read(&mut self, from: u32, read: &Read) {
        let body = RequestBody { tag: read.tag.into(), offset: read.offset.into(), bytes: read.bytes.into() };
        if let Some(peer) = self.peer(from) {
            peer.add(REQUEST, read.operation, [body.as_bytes(), &[]]);
        }
    }

    /// Answers a peer's request, when there is room.
    pub fn serve(&mut self, to: u32, read: Read) {
        if let Some(peer) = self.peer(to) {
            peer.serve(read);
        }
    }

    /// Sends a message of a point-to-point collective, all of it. [`Mesh::take_finished`] says when its bytes are not
    /// needed any more.
    pub fn transfer(&mut self, to: u32, head: Head, part: Part, source: &dyn Source) {
        if let Some(peer) = self.peer(to) {
            peer.transfer(head, part, source);
        }
    }

    /// Messages whose bytes are not needed any more, since this was last asked.
    pub fn take_finished(&mut self) -> u32 {
        self.peers.iter_mut().map(Peer::take_finished).sum()
    }

    /// The operation is over here: what has begun to be sent is copied, and no more of it is sent.
    pub fn abandon(&mut self, source: &dyn Source) {
        self.peers.iter_mut().for_each(|peer| peer.abandon(source));
    }

    /// A rank has said what cannot be: nothing more is taken from it.
    pub fn distrust(&mut self, rank: u32) {
        self.peers.iter_mut().filter(|peer| peer.rank == rank).for_each(Peer::distrust);
    }

    /// Forgets what peers want to read.
    pub fn forget_serves(&mut self) {
        self.peers.iter_mut().for_each(Peer::forget_serves);
    }

    /// Gives what waits to the system. Returns whether anything moved.
    pub fn flush(&mut self, source: &dyn Source) -> bool {
        self.peers.iter_mut().fold(false, |moved, peer| moved | peer.flush(source))
    }

    /// Whether something waits until the system takes more.
    pub fn is_waiting(&self) -> bool {
        self.slow_taker().is_some()
    }

    /// Whether something waits until a peer takes its connection.
    pub fn is_dialling(&self) -> bool {
        self.peers.iter().any(|peer| peer.is_dialling() && peer.is_waiting())
    }

    /// A rank that does not take what is to be sent to it.
    pub fn slow_taker(&self) -> Option<u32> {
        self.peers.iter().find(|peer| !peer.closed && peer.is_waiting()).map(|peer| peer.rank)
    }

    /// Takes what peer number `number` has sent. Returns whether there was anything.
    pub fn receive(&mut self, number: usize, listener: &mut dyn Listener) -> bool {
        let Self { peers, room, .. } = self;
        let Some(peer) = peers.get_mut(number).filter(|peer| !peer.closed) else { return false };
        if peer.is_dialling() {
            return peer.shake_hands();
        }
        peer.stream.attend();
        peer.is_read() && peer.receive(room, listener)
    }

    /// An operation has begun: takes what has waited for that. Returns whether there was anything.
    pub fn resume(&mut self, listener: &mut dyn Listener) -> bool {
        self.peers.iter_mut().fold(false, |any, peer| any | peer.resume(listener))
    }

    /// Reports which connections have broken, and the system's code, once each.
    pub fn take_broken(&mut self, mut report: impl FnMut(u32, u16)) {
        self.unreachable.drain(..).for_each(|(peer, code)| report(peer, code));
        for peer in &mut self.peers {
            if let Some(code) = peer.breaks.take() {
                report(peer.rank, code);
            }
        }
    }

    /// What is wrong with the connections to a rank, if this rank has found something beyond a code of the system.
    pub fn fault(&self, rank: u32) -> Option<Fault> {
        let fault = |peer: &Peer| {
            let reason = peer.fault().filter(|_| peer.rank == rank)?.to_owned();
            Some(Fault { address: peer.address().to_string(), reason })
        };
        // Of an aggregator that has been dialled again, that of the last connection counts.
        self.peers.iter().rev().find_map(fault)
    }

    /// The connections to aggregators, by their numbers.
    pub fn aggregators(&self) -> Vec<usize> {
        self.routes[self.has_come.len()..].iter().flatten().copied().collect()
    }

    /// The rank, or aggregator, at the other end of a connection.
    pub fn other_end(&self, number: usize) -> Option<u32> {
        self.peers.get(number).map(|peer| peer.rank)
    }

    /// Connections to aggregators that have ended, or of which the aggregator has said that it ends them, are made anew
    /// when something is to be said.
    pub fn renew(&mut self) {
        let Self { routes, has_come, peers, unreachable, .. } = self;
        unreachable.clear();
        for route in &mut routes[has_come.len()..] {
            if let Some(peer) =
                route.and_then(|number| peers.get_mut(number)).filter(|peer| !peer.is_open() || peer.has_left())
            {
                peer.close(0);
                peer.breaks = None;
                *route = None;
            }
        }
    }

    /// Connections on which nothing comes any more, with their numbers, once each.
    pub fn take_closed(&mut self, mut report: impl FnMut(usize, BorrowedFd<'_>)) {
        for (number, peer) in self.peers.iter_mut().enumerate().filter(|(_, peer)| peer.closed && !peer.forgotten) {
            peer.forgotten = true;
            report(number, peer.stream.as_fd());
        }
    }
}

impl Drop for Mesh {
    /// What has been said last, such as the final message of an operation or why it failed, is received although the
    /// program goes at once.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut deadline = Instant::now() + DRAIN;
        // To one that has not taken the connection, and to which nothing was to be said, there is nothing to be said
        // now.
        for peer in self.peers.iter_mut().filter(|peer| !peer.is_dialling() || peer.is_waiting()) {
            // One that waits for the rest of a message learns that it does not come.
            peer.abandon(&());
            peer.add(END, 0, [&[], &[]]);
        }
        loop {
            if self.flush(&()) {
                deadline = Instant::now() + DRAIN;
            }
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
