//! Connections of a rank to its peers, over TCP: control messages, and reads of what multicast has lost.
//!
//! | Frame | Contents, little-endian |
//! |---|---|
//! | message | a control message, and eager data behind it |
//! | request | operation, tag, offset and bytes of a range of the receiver's buffer |
//! | data | operation, tag, offset, and bytes of the sender's buffer from there on |
//! | end | nothing: the sender leaves, and has nothing left to say |
//!
//! A frame begins with its length behind these eight bytes, its kind, and three zeros.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::datagram::Secret;
use super::interface::Interface;
use super::sockets::at;
use crate::error::{Error, Result};

const MESSAGE: u8 = 1;
const REQUEST: u8 = 2;
const DATA: u8 = 3;
const END: u8 = 4;

const MAGIC: [u8; 4] = *b"FXTC";
const VERSION: u32 = 1;

/// Bytes of a buffer in one frame.
pub(super) const DATA_BYTES: usize = 64 << 10;
/// Longest frame: an eager message, or data.
const MOST_FRAME_BYTES: usize = DATA_BYTES + 64;
/// Bytes that wait for a peer before no more data is added for it.
const MOST_WAITING_BYTES: usize = 4 * DATA_BYTES;
/// Longest that what was said last waits for the peer's system to take it, when a communicator ends.
const DRAIN: Duration = Duration::from_secs(1);
/// Connections that a listener takes and that are not of this communicator, before it gives up.
const MOST_STRANGERS: u32 = 1000;
/// Longest that one who connects may take to say who it is.
const GREETING: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Frame {
    len: U32,
    kind: u8,
    zero: [u8; 3],
}

const FRAME_BYTES: usize = size_of::<Frame>();

/// Who connects. The tag is that of the rest under the communicator's key.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Greeting {
    magic: [u8; 4],
    version: U32,
    communicator: U64,
    from: U32,
    to: U32,
    tag: U64,
}

const GREETING_BYTES: usize = size_of::<Greeting>();

impl Greeting {
    fn new(communicator: u64, from: u32, to: u32, secret: &Secret) -> Self {
        let mut greeting = Self {
            magic: MAGIC,
            version: VERSION.into(),
            communicator: communicator.into(),
            from: from.into(),
            to: to.into(),
            tag: U64::ZERO,
        };
        greeting.tag = secret.tag([&greeting.as_bytes()[..GREETING_BYTES - 8], &[]]).into();
        greeting
    }
}

/// A range of a peer's buffer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestBody {
    operation: U32,
    tag: U32,
    offset: U64,
    bytes: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DataBody {
    operation: U32,
    tag: U32,
    offset: U64,
}

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

/// A connection to a peer.
#[derive(Debug)]
struct Peer {
    rank: u32,
    stream: TcpStream,
    /// What has come and is not a whole frame yet.
    inbox: Vec<u8>,
    /// What waits to be sent, from `sent` on.
    outbox: Vec<u8>,
    sent: usize,
    /// Ranges that it reads here.
    serves: VecDeque<Read>,
    /// Nothing more can be said to it.
    closed: bool,
    /// Nobody waits for it any more.
    forgotten: bool,
    /// It has said that it leaves.
    left: bool,
    /// It has gone, or does not keep to the protocol: that, and the system's code, is still to be told.
    breaks: Option<u16>,
}

impl Peer {
    fn is_waiting(&self) -> bool {
        self.sent < self.outbox.len()
    }

    fn close(&mut self, code: u16) {
        self.closed = true;
        self.outbox.clear();
        self.sent = 0;
        self.serves.clear();
        if !self.left {
            self.breaks = Some(code);
        }
    }

    fn add(&mut self, kind: u8, parts: [&[u8]; 2]) {
        if self.closed {
            return;
        }
        let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        self.outbox.extend_from_slice(Frame { len: len.into(), kind, zero: [0; 3] }.as_bytes());
        parts.into_iter().for_each(|part| self.outbox.extend_from_slice(part));
    }

    /// Gives what waits to the system, as far as that takes it. Returns whether it took anything.
    fn flush(&mut self) -> bool {
        let mut moved = false;
        while self.is_waiting() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(0) => self.close(code(&ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    self.sent += bytes;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.close(code(&error)),
            }
        }
        if !self.is_waiting() {
            self.outbox.clear();
            self.sent = 0;
        } else if self.sent >= MOST_WAITING_BYTES {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
        moved
    }
}

/// The system's number of an error.
fn code(error: &io::Error) -> u16 {
    error.raw_os_error().and_then(|code| u16::try_from(code).ok()).unwrap_or(0)
}

/// The code of a peer that says what cannot be.
const NONSENSE: u16 = crate::protocol::conversation::PROTOCOL_VIOLATION;

/// The connections of a communicator.
#[derive(Debug)]
pub(super) struct Mesh {
    /// Ascending by rank.
    peers: Vec<Peer>,
    room: Vec<u8>,
}

fn failed(what: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Socket { what, source, next: "see whether a firewall closes the ports between the ranks" }
}

/// A socket on which peers connect.
pub(super) fn listen(interface: &Interface) -> Result<TcpListener> {
    let address = at(interface, interface.address(), 0);
    TcpListener::bind(address).map_err(failed(format!("TCP socket of {address}")))
}

/// What connects ranks.
pub(super) struct Connect<'c> {
    pub(super) own: u32,
    pub(super) communicator: u64,
    pub(super) secret: &'c Secret,
    pub(super) listener: &'c TcpListener,
    /// Where each rank listens.
    pub(super) addresses: &'c [SocketAddr],
    pub(super) timeout: Duration,
}

impl Mesh {
    /// Connects to `ranks` (ascending): a rank to those below it. Blocks, at most for the timeout.
    pub(super) fn connect(connect: &Connect<'_>, ranks: &[u32]) -> Result<Self> {
        let deadline = Instant::now() + connect.timeout;
        let mut peers = Vec::with_capacity(ranks.len());
        for rank in ranks.iter().copied().filter(|rank| *rank < connect.own) {
            peers.push((rank, connect.dial(rank, deadline)?));
        }
        let mut above: Vec<u32> = ranks.iter().copied().filter(|rank| *rank > connect.own).collect();
        let mut strangers = 0;
        connect.listener.set_nonblocking(true).map_err(failed("TCP socket".to_owned()))?;
        while let Some(missing) = above.first().copied() {
            match connect.admit(&above) {
                Ok(Some((rank, stream))) => {
                    above.retain(|other| *other != rank);
                    peers.push((rank, stream));
                }
                Ok(None) => {
                    if Instant::now() >= deadline {
                        let reason = format!(
                            "has not connected to rank {} within {:?}: see whether it runs, and whether a firewall closes TCP ports between them",
                            connect.own, connect.timeout
                        );
                        return Err(Error::Peer { rank: missing, reason });
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(error) => {
                    tracing::warn!(%error, "somebody else connected");
                    strangers += 1;
                    if strangers > MOST_STRANGERS {
                        let reason =
                            format!("is not among {MOST_STRANGERS} that have connected: close the port to others");
                        return Err(Error::Peer { rank: missing, reason });
                    }
                }
            }
        }
        peers.sort_unstable_by_key(|(rank, _)| *rank);
        let mut all = Vec::with_capacity(peers.len());
        for (rank, stream) in peers {
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            ready.map_err(failed(format!("connection to rank {rank}")))?;
            all.push(Peer {
                rank,
                stream,
                inbox: Vec::new(),
                outbox: Vec::new(),
                sent: 0,
                serves: VecDeque::new(),
                closed: false,
                forgotten: false,
                left: false,
                breaks: None,
            });
        }
        Ok(Self { peers: all, room: vec![0; MOST_FRAME_BYTES] })
    }

    /// What is to be waited for: each connection, with its number, and whether something waits to be sent on it.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>, bool)> {
        let open = self.peers.iter().enumerate().filter(|(_, peer)| !peer.closed);
        open.map(|(number, peer)| (number, peer.stream.as_fd(), peer.is_waiting()))
    }

    fn index(&self, rank: u32) -> Option<usize> {
        self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok()
    }

    /// Sends a message, with eager data or none behind it. One to a rank that is gone is dropped: whoever waits for its answer learns of that.
    pub(super) fn say(&mut self, to: u32, message: &[u8], data: &[u8]) {
        debug_assert!(self.index(to).is_some(), "rank {to} is no peer: what is sent to it is lost");
        if let Some(at) = self.index(to) {
            self.peers[at].add(MESSAGE, [message, data]);
        }
    }

    /// Asks a peer for a range of its buffer.
    pub(super) fn read(&mut self, from: u32, read: &Read) {
        let body = RequestBody {
            operation: read.operation.into(),
            tag: read.tag.into(),
            offset: read.offset.into(),
            bytes: read.bytes.into(),
        };
        if let Some(at) = self.index(from) {
            self.peers[at].add(REQUEST, [body.as_bytes(), &[]]);
        }
    }

    /// Answers a peer's request, when there is room.
    pub(super) fn serve(&mut self, to: u32, read: Read) {
        if let Some(at) = self.index(to).filter(|at| !self.peers[*at].closed) {
            self.peers[at].serves.push_back(read);
        }
    }

    /// A peer has said what cannot be: nothing more is heard from it.
    pub(super) fn distrust(&mut self, rank: u32) {
        if let Some(at) = self.index(rank) {
            let _ = self.peers[at].stream.shutdown(std::net::Shutdown::Both);
            self.peers[at].left = false;
            self.peers[at].close(NONSENSE);
        }
    }

    /// Forgets what peers want to read.
    pub(super) fn forget_serves(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.serves.clear());
    }

    /// Gives what waits to the system, and bytes of `buffer` to those who read them. Returns whether anything moved.
    pub(super) fn flush(&mut self, buffer: &[u8]) -> bool {
        let mut moved = false;
        for peer in &mut self.peers {
            loop {
                while peer.outbox.len() - peer.sent < MOST_WAITING_BYTES
                    && let Some(read) = peer.serves.front_mut()
                {
                    let bytes = read.bytes.min(DATA_BYTES as u64);
                    let body =
                        DataBody { operation: read.operation.into(), tag: read.tag.into(), offset: read.offset.into() };
                    let start = read.offset as usize;
                    // Checked when it was asked for.
                    let part = buffer.get(start..start + bytes as usize).unwrap_or_default();
                    read.offset += bytes;
                    read.bytes -= bytes;
                    if read.bytes == 0 {
                        peer.serves.pop_front();
                    }
                    peer.add(DATA, [body.as_bytes(), part]);
                }
                if !peer.flush() {
                    break;
                }
                moved = true;
            }
        }
        moved
    }

    /// Takes what peer number `number` has sent. Returns whether there was anything.
    pub(super) fn receive(&mut self, number: usize, notify: &mut dyn FnMut(Event<'_>)) -> bool {
        let Some(peer) = self.peers.get_mut(number).filter(|peer| !peer.closed) else { return false };
        let mut any = false;
        loop {
            match peer.stream.read(&mut self.room) {
                Ok(0) => peer.close(code(&io::Error::from_raw_os_error(nix::libc::ECONNRESET))),
                Ok(bytes) => {
                    any = true;
                    let came = &self.room[..bytes];
                    if peer.inbox.is_empty() {
                        // Mostly whole frames: no copy.
                        let used = frames(came, peer.rank, &mut peer.left, notify);
                        match used {
                            Some(used) => peer.inbox.extend_from_slice(&came[used..]),
                            None => peer.close(NONSENSE),
                        }
                    } else {
                        peer.inbox.extend_from_slice(came);
                        match frames(&peer.inbox, peer.rank, &mut peer.left, notify) {
                            Some(used) => _ = peer.inbox.drain(..used),
                            None => peer.close(NONSENSE),
                        }
                    }
                    if bytes < self.room.len() && !peer.closed {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => peer.close(code(&error)),
            }
            if peer.closed {
                any = true;
                break;
            }
        }
        any
    }

    /// Tells which connections have broken, and the system's code, once each.
    pub(super) fn take_broken(&mut self, mut tell: impl FnMut(u32, u16)) {
        for peer in &mut self.peers {
            if let Some(code) = peer.breaks.take() {
                tell(peer.rank, code);
            }
        }
    }

    /// Connections on which nothing comes any more, once each.
    pub(super) fn take_closed(&mut self, mut tell: impl FnMut(BorrowedFd<'_>)) {
        for peer in self.peers.iter_mut().filter(|peer| peer.closed && !peer.forgotten) {
            peer.forgotten = true;
            tell(peer.stream.as_fd());
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
        self.peers.iter_mut().for_each(|peer| peer.add(END, [&[], &[]]));
        loop {
            self.peers.iter_mut().for_each(|peer| _ = peer.flush());
            if self.peers.iter().all(|peer| !peer.is_waiting()) || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Takes the whole frames at the beginning of `bytes`; how many bytes they are. None: they are none of this protocol.
fn frames(bytes: &[u8], from: u32, left: &mut bool, notify: &mut dyn FnMut(Event<'_>)) -> Option<usize> {
    let mut used = 0;
    while let Ok((frame, rest)) = Frame::ref_from_prefix(&bytes[used..]) {
        let len = frame.len.get() as usize;
        if len > MOST_FRAME_BYTES || frame.zero != [0; 3] {
            return None;
        }
        let Some(contents) = rest.get(..len) else { break };
        match frame.kind {
            MESSAGE => notify(Event::Message { from, bytes: contents }),
            REQUEST => {
                let body = RequestBody::read_from_bytes(contents).ok()?;
                let read = Read {
                    operation: body.operation.get(),
                    tag: body.tag.get(),
                    offset: body.offset.get(),
                    bytes: body.bytes.get(),
                };
                notify(Event::Request { from, read });
            }
            DATA => {
                let (body, bytes) = DataBody::read_from_prefix(contents).ok()?;
                let (operation, tag, offset) = (body.operation.get(), body.tag.get(), body.offset.get());
                notify(Event::Data { from, operation, tag, offset, bytes });
            }
            END if len == 0 => *left = true,
            _ => return None,
        }
        used += FRAME_BYTES + len;
    }
    Some(used)
}

impl Connect<'_> {
    fn dial(&self, rank: u32, deadline: Instant) -> Result<TcpStream> {
        let address = self.addresses[rank as usize];
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let connected = TcpStream::connect_timeout(&address, left).and_then(|mut stream| {
            stream.set_write_timeout(Some(left))?;
            stream.write_all(Greeting::new(self.communicator, self.own, rank, self.secret).as_bytes())?;
            stream.set_write_timeout(None)?;
            Ok(stream)
        });
        connected.map_err(|error| Error::Peer {
            rank,
            reason: format!(
                "is not reached at {address} ({error}): see whether it runs, and whether a firewall closes TCP ports between the ranks"
            ),
        })
    }

    /// Admits the next of those who have connected, if there is one: it must be one of `ranks`.
    fn admit(&self, ranks: &[u32]) -> io::Result<Option<(u32, TcpStream)>> {
        let mut stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(None),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING))?;
        let mut bytes = [0; GREETING_BYTES];
        stream.read_exact(&mut bytes)?;
        stream.set_read_timeout(None)?;
        let told = Greeting::read_from_bytes(&bytes).map(|greeting| greeting.from.get()).unwrap_or(u32::MAX);
        let expected = Greeting::new(self.communicator, told, self.own, self.secret);
        if bytes != expected.as_bytes() || !ranks.contains(&told) {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "not a rank of this communicator"));
        }
        Ok(Some((told, stream)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, contents: &[u8]) -> Vec<u8> {
        let frame = Frame { len: (contents.len() as u32).into(), kind, zero: [0; 3] };
        [frame.as_bytes(), contents].concat()
    }

    fn heard(bytes: &[u8]) -> (Option<usize>, Vec<String>, bool) {
        let (mut all, mut left) = (Vec::new(), false);
        let used = frames(bytes, 3, &mut left, &mut |event| all.push(format!("{event:?}")));
        (used, all, left)
    }

    #[test]
    fn frames_are_taken_whole_however_they_are_cut() {
        let bytes = [frame(MESSAGE, b"abc"), frame(DATA, &[7; 20]), frame(END, b"")].concat();
        let (whole, all, left) = heard(&bytes);
        assert_eq!((whole, all.len(), left), (Some(bytes.len()), 2, true));
        for cut in 0..bytes.len() {
            let (used, before, _) = heard(&bytes[..cut]);
            let used = used.unwrap();
            let (rest, behind, _) = heard(&bytes[used..]);
            assert_eq!((used + rest.unwrap(), [before, behind].concat()), (bytes.len(), all.clone()));
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let long = Frame { len: (MOST_FRAME_BYTES as u32 + 1).into(), kind: MESSAGE, zero: [0; 3] };
        let stray = Frame { len: 0.into(), kind: END, zero: [0, 1, 0] };
        for bytes in [
            long.as_bytes(),
            stray.as_bytes(),
            &frame(9, b""),
            &frame(REQUEST, b"short"),
            &frame(DATA, b"short"),
            &frame(END, b"x"),
        ] {
            assert_eq!(heard(bytes).0, None, "{bytes:?}");
        }
    }

    #[test]
    fn strangers_are_turned_away_and_a_rank_that_does_not_come_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [listener.local_addr().unwrap(); 3];
        let secret = Secret([1, 2, 3, 4]);
        let connect = |own, secret, timeout| Connect {
            own,
            communicator: 5,
            secret,
            listener: &listener,
            addresses: &addresses,
            timeout: Duration::from_millis(timeout),
        };
        // Another key, and somebody who says nothing this protocol knows.
        let other = Secret([1, 2, 3, 5]);
        let _wrong = connect(1, &other, 500).dial(0, Instant::now() + Duration::from_millis(500)).unwrap();
        let mut scanner = TcpStream::connect(addresses[0]).unwrap();
        scanner.write_all(&[0; GREETING_BYTES]).unwrap();
        let right = connect(1, &secret, 500).dial(0, Instant::now() + Duration::from_millis(500)).unwrap();
        let text = Mesh::connect(&connect(0, &secret, 200), &[1, 2]).map(drop).unwrap_err().to_string();
        assert!(text.contains("rank 2 has not connected to rank 0"), "{text}");
        drop(right);
    }
}
