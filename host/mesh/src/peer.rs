//! A connection to a peer: what waits to be sent on it, and what has come and is not taken yet.

mod handshake;
mod receive;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

use flexcast_proto::FailureCode;
use flexcast_proto::p2p::Part;
use zerocopy::{FromBytes, IntoBytes};

use crate::dial::Dial;
use crate::events::{Address, Interest, Read, Source};
use crate::frame::{DATA, DATA_BYTES, DataBody, FRAGMENT_BYTES, FRAME_BYTES, Frame, HEAD_BYTES, Head};
use crate::stream::Stream;
use crate::tags::Pair;
use receive::Incoming;

/// Bytes that wait for a peer before no more data is added for it.
const MOST_WAITING_BYTES: usize = 4 * DATA_BYTES;
/// Messages of up to so many bytes are copied, so that several go by one system call and are over at once.
const COPIED_BYTES: u64 = 8 << 10;
/// Room for control messages of an operation that wait together, five of the longest. How many do depends on when ranks
/// come, and so an operation may be the first with so many.
const CONTROL_BYTES: usize = 1024;

/// The code of a peer that says what cannot be.
pub const NONSENSE: u16 = u16::MAX;

/// The system's number of an error.
pub(crate) fn code(error: &io::Error) -> u16 {
    error.raw_os_error().and_then(|code| u16::try_from(code).ok()).unwrap_or(0)
}

/// What the code of a connection that has broken says.
pub const fn failure_code(code: u16) -> FailureCode {
    match code {
        NONSENSE => FailureCode::ProtocolViolation,
        errno => FailureCode::of_errno(errno as i32),
    }
}

/// A message to be sent, and the part of the own buffers that it has.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    /// Its next fragment.
    head: Head,
    part: Part,
}

/// A fragment on its way.
#[derive(Debug)]
struct Fragment {
    head: Head,
    part: Part,
    header: [u8; FRAME_BYTES + HEAD_BYTES],
    /// Of header and bytes, those that the system has.
    sent: usize,
}

impl Fragment {
    /// The next fragment of a message. None: whoever gave the message has forgotten it.
    fn new(Outgoing { head, part }: Outgoing, tags: Option<&mut Pair>, source: &dyn Source) -> Option<Self> {
        let mut header = head.encode();
        if let Some(Pair { send, .. }) = tags {
            // The bytes are sent next: they are in the processor's cache then.
            let mut contents = send.contents();
            let is_whole = each(part, head.offset..head.offset + head.bytes, source, |bytes| contents.add(bytes));
            let (frame, detail) = Frame::mut_from_prefix(&mut header).ok()?;
            if !is_whole {
                return None;
            }
            frame.seal_with(if head.bytes > 0 { contents.tag() } else { 0 }, detail, send);
        }
        Some(Self { header, head, part, sent: 0 })
    }

    /// What is left of the header, and how many of the bytes behind it are sent.
    fn left(&self) -> (&[u8], u64) {
        let at = self.sent.min(self.header.len());
        (&self.header[at..], (self.sent - at) as u64)
    }

    const fn is_over(&self) -> bool {
        self.sent as u64 == self.header.len() as u64 + self.head.bytes
    }
}

/// A connection to a peer.
#[derive(Debug)]
pub struct Peer {
    /// The rank, or the number that an aggregator has as a peer.
    pub rank: u32,
    /// Its stream.
    pub stream: Stream,
    /// Where the other end is.
    address: Address,
    /// The handshake; none: the connection is made. Frames wait until then.
    dial: Option<Box<Dial>>,
    /// Whether frames are to have tags, and what makes them once the connection is made.
    tagged: bool,
    tags: Option<Box<Pair>>,
    /// Another stream has taken the place of the one before.
    renewed: bool,
    /// The connection is made since this was last asked.
    made: bool,
    /// What is wrong with the connection, beyond a code of the system.
    fault: Option<String>,
    /// What has come and is not a whole frame yet, or not yet to be taken.
    inbox: Vec<u8>,
    /// The fragment whose bytes come.
    incoming: Option<Incoming>,
    /// The next frame is of an operation that is not under way here yet: nothing is taken until it is.
    held: bool,
    /// What waits to be sent, from `sent` on.
    outbox: Vec<u8>,
    sent: usize,
    /// Goes before all else, since it has begun.
    fragment: Option<Fragment>,
    /// Messages that wait, as their next fragments.
    transfers: VecDeque<Outgoing>,
    /// Messages that the system has, since this was last asked.
    finished: u32,
    /// Ranges that it reads here, with the operation.
    serves: VecDeque<Read>,
    /// The stream takes nothing more, for this reason of the system. What the peer has said before it went is still to
    /// be taken: it may say why.
    mute: Option<u16>,
    /// It has said all that it had to say, and has gone; frames of it are held. The system's code of its end.
    ended: Option<u16>,
    /// Nothing more can be said to it, and nothing is taken from it.
    pub closed: bool,
    /// Nobody waits for it any more.
    pub(crate) forgotten: bool,
    /// It has said that it leaves.
    left: bool,
    /// It has gone, or does not keep to the protocol: that, and the system's code, is still to be reported.
    pub breaks: Option<u16>,
}

impl Peer {
    /// On a connection without handshake and tags.
    pub(super) fn new(rank: u32, stream: impl Into<Stream>) -> Self {
        let stream = stream.into();
        Self {
            rank,
            address: Address::of(&stream),
            stream,
            dial: None,
            tagged: false,
            tags: None,
            renewed: false,
            made: true,
            fault: None,
            inbox: Vec::new(),
            incoming: None,
            held: false,
            outbox: Vec::with_capacity(CONTROL_BYTES),
            sent: 0,
            fragment: None,
            transfers: VecDeque::new(),
            finished: 0,
            serves: VecDeque::new(),
            mute: None,
            ended: None,
            closed: false,
            forgotten: false,
            left: false,
            breaks: None,
        }
    }

    /// What is waited for on its stream.
    pub(crate) fn interest(&self) -> Interest {
        match &self.dial {
            Some(dial) => dial.interest(),
            None => Interest { read: self.is_read(), write: self.is_waiting() },
        }
    }

    /// Whether it is waited for what it sends.
    pub const fn is_read(&self) -> bool {
        self.dial.is_none() && (!self.held || self.mute.is_some()) && !self.closed && self.ended.is_none()
    }

    /// Whether something waits until the system takes more.
    pub fn is_waiting(&self) -> bool {
        self.sent < self.outbox.len() || self.fragment.is_some() || !self.transfers.is_empty()
    }

    /// Closes the connection. What waits to be sent is forgotten, and `code` is what [`Peer::breaks`] says unless the
    /// peer has left in good order.
    pub fn close(&mut self, code: u16) {
        self.closed = true;
        self.dial = None;
        self.forget();
        if !self.left {
            self.breaks = Some(code);
        }
    }

    /// Forgets what waits to be sent.
    fn forget(&mut self) {
        self.outbox.clear();
        self.sent = 0;
        self.fragment = None;
        self.transfers.clear();
        self.serves.clear();
    }

    /// Whether it has said that it leaves: what is said to it then has no answer.
    pub(crate) const fn has_left(&self) -> bool {
        self.left
    }

    /// Whether something can be said to it.
    pub const fn is_open(&self) -> bool {
        !self.closed && self.mute.is_none()
    }

    /// The peer takes nothing more. It has gone, and most often in good order, with a reason that has come and is not
    /// taken yet.
    fn fall_silent(&mut self, error: &io::Error) {
        self.forget();
        self.mute = Some(code(error));
    }

    /// Nothing more is taken from the peer, for this reason.
    pub(super) fn accuse(&mut self, why: String) {
        tracing::error!(rank = self.rank, address = %self.address, why, "a connection is closed");
        self.fault.get_or_insert(why);
        self.distrust();
    }

    /// A peer has said what cannot be: nothing more is taken from it.
    pub fn distrust(&mut self) {
        self.stream.shutdown();
        self.left = false;
        self.close(NONSENSE);
    }

    /// The stream has failed. With data that cannot be the peer has broken the protocol.
    fn fail(&mut self, error: &io::Error) {
        match error.kind() {
            ErrorKind::InvalidData => self.distrust(),
            _ => self.close(code(error)),
        }
    }

    /// Adds a frame to what waits to be sent: [`MESSAGE`](crate::MESSAGE) or [`END`](crate::END) of an operation. The
    /// parts are its contents, up to [`MOST_FRAME_BYTES`](crate::MOST_FRAME_BYTES) together.
    pub fn add(&mut self, kind: u8, operation: u32, parts: [&[u8]; 2]) {
        if !self.is_open() {
            return;
        }
        let len = parts.iter().map(|part| part.len()).sum();
        let start = self.outbox.len();
        self.outbox.extend_from_slice(Frame::new(kind, operation, len).as_bytes());
        parts.into_iter().for_each(|part| self.outbox.extend_from_slice(part));
        self.seal(start);
    }

    /// Tags the frame that the outbox ends with, if the connection is made; otherwise it is tagged then.
    fn seal(&mut self, start: usize) {
        if let Some(pair) = &mut self.tags {
            Frame::seal(&mut self.outbox[start..], &mut pair.send);
        }
    }

    /// Sends a message, of which `head` is the whole. Its bytes stay as they are until it is over, which is at once if
    /// it is short.
    pub fn transfer(&mut self, head: Head, part: Part, source: &dyn Source) {
        if !self.is_open() {
            return;
        }
        if head.total > COPIED_BYTES || self.fragment.is_some() || !self.transfers.is_empty() {
            self.transfers.push_back(Outgoing { head, part });
            return;
        }
        let head = Head { offset: 0, bytes: head.total, ..head };
        let start = self.outbox.len();
        self.outbox.extend_from_slice(&head.encode());
        if copy(&mut self.outbox, part, 0..head.total, source) {
            self.seal(start);
        } else {
            self.distrust();
        }
        self.finished += 1;
    }

    /// Answers a request, when there is room. The range has to be inside of the buffer.
    pub(crate) fn serve(&mut self, read: Read) {
        if self.is_open() {
            self.serves.push_back(read);
        }
    }

    /// Answers none of the requests that wait.
    pub(crate) fn forget_serves(&mut self) {
        self.serves.clear();
    }

    /// Messages whose bytes are not needed any more, since this was last asked.
    pub const fn take_finished(&mut self) -> u32 {
        let finished = self.finished;
        self.finished = 0;
        finished
    }

    /// The operation of the messages that wait is over here: what has begun is sent to its end, from a copy.
    pub fn abandon(&mut self, source: &dyn Source) {
        self.transfers.clear();
        let Some(fragment) = self.fragment.take() else { return };
        let (header, done) = fragment.left();
        let mut rest = header.to_vec();
        let Head { offset, bytes, .. } = fragment.head;
        if !copy(&mut rest, fragment.part, offset + done..offset + bytes, source) {
            return self.distrust();
        }
        rest.extend_from_slice(&self.outbox[self.sent..]);
        (self.outbox, self.sent) = (rest, 0);
    }

    /// Gives what waits to the system, as far as that takes it. Returns whether it took anything.
    pub fn flush(&mut self, source: &dyn Source) -> bool {
        let mut moved = self.shake_hands();
        while self.is_open() && !self.is_dialling() {
            let taken = if let Some(fragment) = &self.fragment {
                let (header, done) = fragment.left();
                let left = fragment.head.bytes - done;
                let bytes = if left == 0 { &[][..] } else { source.part(fragment.part, fragment.head.offset + done) };
                let bytes = &bytes[..bytes.len().min(left as usize)];
                if bytes.is_empty() && left > 0 {
                    self.distrust();
                    return true;
                }
                self.stream.write_vectored(&[IoSlice::new(header), IoSlice::new(bytes)])
            } else if self.sent < self.outbox.len() {
                self.stream.write_vectored(&[IoSlice::new(&self.outbox[self.sent..])])
            } else if self.add_data(source) {
                continue;
            } else if let Some(next) = self.transfers.pop_front() {
                let bytes = (next.head.total - next.head.offset).min(FRAGMENT_BYTES);
                let next = Outgoing { head: Head { bytes, ..next.head }, ..next };
                self.fragment = Fragment::new(next, self.tags.as_deref_mut(), source);
                if self.fragment.is_none() {
                    self.distrust();
                    return true;
                }
                continue;
            } else {
                break;
            };
            match taken {
                Ok(0) => self.close(code(&ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    moved = true;
                    self.took(bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    self.fall_silent(&error);
                }
                Err(error) => self.fail(&error),
            }
        }
        moved
    }

    /// The system has taken bytes.
    fn took(&mut self, bytes: usize) {
        let Some(fragment) = &mut self.fragment else {
            self.sent += bytes;
            if self.sent == self.outbox.len() {
                self.outbox.clear();
                self.sent = 0;
            } else if self.sent >= MOST_WAITING_BYTES {
                self.outbox.drain(..self.sent);
                self.sent = 0;
            }
            return;
        };
        fragment.sent += bytes;
        if !fragment.is_over() {
            return;
        }
        let Fragment { head, part, .. } = *fragment;
        self.fragment = None;
        let offset = head.offset + head.bytes;
        if offset == head.total {
            self.finished += 1;
        } else {
            self.transfers.push_front(Outgoing { head: Head { offset, ..head }, part });
        }
    }

    /// Adds data for the peer's oldest read; false if it has none.
    fn add_data(&mut self, source: &dyn Source) -> bool {
        let Some(read) = self.serves.front_mut() else { return false };
        let bytes = read.bytes.min(DATA_BYTES as u64);
        let body = DataBody { tag: read.tag.into(), offset: read.offset.into() };
        let (operation, start) = (read.operation, read.offset as usize);
        // Checked when it was asked for.
        let part = source.buffer().get(start..start + bytes as usize).unwrap_or_default();
        read.offset += bytes;
        read.bytes -= bytes;
        if read.bytes == 0 {
            self.serves.pop_front();
        }
        self.add(DATA, operation, [body.as_bytes(), part]);
        true
    }
}

/// Copies bytes of a message; false if whoever gave it has forgotten it.
fn copy(to: &mut Vec<u8>, part: Part, range: std::ops::Range<u64>, source: &dyn Source) -> bool {
    each(part, range, source, |bytes| to.extend_from_slice(bytes))
}

/// Gives bytes of a message, piece by piece; false if whoever gave it has forgotten it.
fn each(part: Part, range: std::ops::Range<u64>, source: &dyn Source, mut take: impl FnMut(&[u8])) -> bool {
    let mut at = range.start;
    while at < range.end {
        let bytes = source.part(part, at);
        let len = bytes.len().min((range.end - at) as usize);
        if len == 0 {
            return false;
        }
        take(&bytes[..len]);
        at += len as u64;
    }
    true
}
