//! A connection to a peer: what waits to be sent on it, and what has come and is not taken yet.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use flexcast_proto::FailureCode;
use flexcast_proto::p2p::Part;
use zerocopy::{FromBytes, IntoBytes};

use super::frame::{
    DATA, DATA_BYTES, DataBody, END, FRAGMENT_BYTES, FRAME_BYTES, Frame, HEAD_BYTES, Head, HeadBody, MESSAGE, REQUEST,
    RequestBody, TRANSFER, tells_failure,
};
use super::stream::Stream;
use super::{Event, Listener, Read, Source};

/// Bytes that wait for a peer before no more data is added for it.
const MOST_WAITING_BYTES: usize = 4 * DATA_BYTES;
/// Messages of up to so many bytes are copied, so that several go by one system call and are over at once.
const COPIED_BYTES: u64 = 8 << 10;
/// Room for control messages of an operation that wait together, five of the longest. How many do depends on when ranks come, and so an operation may be the
/// first with so many.
const CONTROL_BYTES: usize = 1024;

/// Most reads of what nobody hears any more: a peer may go on to send.
const MOST_DISCARDS: usize = 256;

/// The code of a peer that says what cannot be.
pub(crate) const NONSENSE: u16 = u16::MAX;

/// The system's number of an error.
pub(crate) fn code(error: &io::Error) -> u16 {
    error.raw_os_error().and_then(|code| u16::try_from(code).ok()).unwrap_or(0)
}

/// What the code of a connection that has broken says.
pub(crate) const fn failure_code(code: u16) -> FailureCode {
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
    fn new(Outgoing { head, part }: Outgoing) -> Self {
        Self { header: head.encode(), head, part, sent: 0 }
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
pub(crate) struct Peer {
    pub(crate) rank: u32,
    pub(crate) stream: Stream,
    /// What has come and is not a whole frame yet, or not yet to be taken.
    inbox: Vec<u8>,
    /// The fragment whose bytes come, and how many of them have.
    incoming: Option<(Head, u64)>,
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
    /// The stream takes nothing more, for this reason of the system. What the peer has said before it went is still to be heard: it may say why.
    mute: Option<u16>,
    /// It has said all that it had to say, and has gone; frames of it are held. The system's code of its end.
    ended: Option<u16>,
    /// Nothing more can be said to it, and nothing is heard from it.
    pub(crate) closed: bool,
    /// Nobody waits for it any more.
    pub(crate) forgotten: bool,
    /// It has said that it leaves.
    left: bool,
    /// It has gone, or does not keep to the protocol: that, and the system's code, is still to be told.
    pub(crate) breaks: Option<u16>,
}

impl Peer {
    /// On a connection, which may still be on its way to be made. `greeting`: what is said on it first.
    pub(crate) fn new(rank: u32, stream: impl Into<Stream>, mut greeting: Vec<u8>) -> Self {
        greeting.reserve(CONTROL_BYTES);
        Self {
            rank,
            stream: stream.into(),
            inbox: Vec::new(),
            incoming: None,
            held: false,
            outbox: greeting,
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

    /// Whether it is waited for what it sends.
    pub(crate) const fn is_heard(&self) -> bool {
        (!self.held || self.mute.is_some()) && !self.closed && self.ended.is_none()
    }

    /// Whether something waits until the system takes more.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sent < self.outbox.len() || self.fragment.is_some() || !self.transfers.is_empty()
    }

    pub(crate) fn close(&mut self, code: u16) {
        self.closed = true;
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

    /// Whether something can be said to it.
    pub(crate) const fn is_open(&self) -> bool {
        !self.closed && self.mute.is_none()
    }

    /// The peer takes nothing more. It has gone, and most often in good order, with a reason that has come and is not heard yet.
    fn fall_silent(&mut self, error: &io::Error) {
        self.forget();
        self.mute = Some(code(error));
    }

    /// Nothing more comes. A peer that has left in good order while this rank is behind it is heard until its last frame; others break at once.
    fn end(&mut self, code: u16, listener: &mut dyn Listener) {
        let code = self.mute.unwrap_or(code);
        if self.held {
            self.hear_last_words(listener);
            if self.left {
                self.ended = Some(code);
                return;
            }
        }
        self.close(code);
    }

    /// Of the frames that wait for their operations, those count at once that say why the peer goes.
    fn hear_last_words(&mut self, listener: &mut dyn Listener) {
        let mut rest = &self.inbox[..];
        while let Ok((frame, behind)) = Frame::read_from_prefix(rest)
            && frame.is_sound()
            && let Some((contents, next)) = behind.split_at_checked(frame.len.get() as usize)
        {
            match frame.kind {
                MESSAGE if tells_failure(contents) => {
                    listener.hear(Event::Message { from: self.rank, bytes: contents });
                }
                END => self.left = true,
                _ => {}
            }
            rest = next;
        }
    }

    /// Takes and forgets what has come, since nobody hears it any more: a system that closes a connection with something unread takes back
    /// what has not arrived yet at the other side.
    pub(crate) fn discard(&mut self, room: &mut [u8]) {
        if self.closed || self.stream.shared().is_some() {
            return;
        }
        for _ in 0..MOST_DISCARDS {
            match self.stream.read_vectored(&mut [IoSliceMut::new(room)]) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }

    /// A peer has said what cannot be: nothing more is heard from it.
    pub(crate) fn distrust(&mut self) {
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

    pub(crate) fn add(&mut self, kind: u8, operation: u32, parts: [&[u8]; 2]) {
        if !self.is_open() {
            return;
        }
        let len = parts.iter().map(|part| part.len()).sum();
        self.outbox.extend_from_slice(Frame::new(kind, operation, len).as_bytes());
        parts.into_iter().for_each(|part| self.outbox.extend_from_slice(part));
    }

    /// Sends a message, of which `head` is the whole. Its bytes stay as they are until it is over, which is at once if it is short.
    pub(crate) fn transfer(&mut self, head: Head, part: Part, source: &dyn Source) {
        if !self.is_open() {
            return;
        }
        if head.total > COPIED_BYTES || self.fragment.is_some() || !self.transfers.is_empty() {
            self.transfers.push_back(Outgoing { head, part });
            return;
        }
        let head = Head { offset: 0, bytes: head.total, ..head };
        self.outbox.extend_from_slice(&head.encode());
        if !copy(&mut self.outbox, part, 0..head.total, source) {
            self.distrust();
        }
        self.finished += 1;
    }

    pub(crate) fn serve(&mut self, read: Read) {
        if self.is_open() {
            self.serves.push_back(read);
        }
    }

    pub(crate) fn forget_serves(&mut self) {
        self.serves.clear();
    }

    /// Messages whose bytes are not needed any more, since this was last asked.
    pub(crate) const fn take_finished(&mut self) -> u32 {
        let finished = self.finished;
        self.finished = 0;
        finished
    }

    /// The operation of the messages that wait is over here: what has begun is sent to its end, from a copy.
    pub(crate) fn abandon(&mut self, source: &dyn Source) {
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
    pub(crate) fn flush(&mut self, source: &dyn Source) -> bool {
        let mut moved = false;
        while self.is_open() {
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
                self.fragment = Some(Fragment::new(Outgoing { head: Head { bytes, ..next.head }, ..next }));
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

    /// Takes what has come. Returns whether there was anything.
    pub(crate) fn receive(&mut self, room: &mut [u8], listener: &mut dyn Listener) -> bool {
        let mut any = false;
        while self.is_heard() {
            let (came, asked) = self.read(room, listener);
            match came {
                Ok(0) => self.end(code(&io::Error::from_raw_os_error(nix::libc::ECONNRESET)), listener),
                Ok(bytes) => {
                    any = true;
                    if bytes < asked {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => self.distrust(),
                Err(error) => self.end(code(&error), listener),
            }
        }
        if let Some(code) = self.mute.filter(|_| self.held && !self.closed && self.ended.is_none()) {
            self.end(code, listener);
        }
        any | self.closed
    }

    /// Reads once: the bytes of a fragment to their places, and what is behind them, or all, to `room`. How many bytes have come, and how many might.
    fn read(&mut self, room: &mut [u8], listener: &mut dyn Listener) -> (io::Result<usize>, usize) {
        let Some((head, done)) = self.incoming else {
            let came = self.stream.read_vectored(&mut [IoSliceMut::new(room)]);
            if let Ok(bytes) = came {
                self.take(&room[..bytes], listener);
            }
            return (came, room.len());
        };
        let left = head.bytes - done;
        let place = listener.place(self.rank, &head, done);
        let len = place.len().min(left as usize);
        if len == 0 {
            // Nobody wants it any more.
            let most = room.len().min(left as usize);
            let came = self.stream.read_vectored(&mut [IoSliceMut::new(&mut room[..most])]);
            if let Ok(bytes) = came {
                self.came(head, done + bytes as u64, listener);
            }
            return (came, most);
        }
        let behind = if len as u64 == left { room.len() } else { 0 };
        let mut parts = [IoSliceMut::new(&mut place[..len]), IoSliceMut::new(&mut room[..behind])];
        let came = self.stream.read_vectored(&mut parts);
        if let Ok(bytes) = came {
            self.came(head, done + bytes.min(len) as u64, listener);
            if bytes > len {
                self.take(&room[..bytes - len], listener);
            }
        }
        (came, len + behind)
    }

    /// Bytes of a fragment are in their places.
    fn came(&mut self, head: Head, done: u64, listener: &mut dyn Listener) {
        self.incoming = (done < head.bytes).then_some((head, done));
        if self.incoming.is_none() {
            listener.end(self.rank, &head);
        }
    }

    /// An operation has begun: what was held may be taken now. Returns whether anything was.
    pub(crate) fn resume(&mut self, listener: &mut dyn Listener) -> bool {
        if !std::mem::take(&mut self.held) || self.closed {
            return false;
        }
        let before = self.inbox.len();
        self.take(&[], listener);
        if let Some(code) = self.ended.filter(|_| !self.held && !self.closed) {
            self.close(code);
        }
        !self.held || self.inbox.len() < before
    }

    /// Takes the frames of which bytes have come, behind those that came before.
    pub(crate) fn take(&mut self, came: &[u8], listener: &mut dyn Listener) {
        // Mostly whole frames: no copy.
        let mut inbox = std::mem::take(&mut self.inbox);
        let used = if inbox.is_empty() {
            self.frames(came, listener)
        } else {
            inbox.extend_from_slice(came);
            self.frames(&inbox, listener)
        };
        match used {
            Some(used) if inbox.is_empty() => inbox.extend_from_slice(&came[used..]),
            Some(used) => _ = inbox.drain(..used),
            None => self.distrust(),
        }
        self.inbox = inbox;
    }

    /// Takes the frames at the beginning of `bytes`; how many bytes they are. None: they are none of this protocol.
    fn frames(&mut self, bytes: &[u8], listener: &mut dyn Listener) -> Option<usize> {
        let from = self.rank;
        let mut used = 0;
        loop {
            while let Some((head, done)) = self.incoming {
                let here = (bytes.len() - used).min((head.bytes - done) as usize);
                if here == 0 {
                    return Some(used);
                }
                let place = listener.place(from, &head, done);
                // Without a place, nobody wants it any more.
                let len = if place.is_empty() { here } else { place.len().min(here) };
                let copied = len.min(place.len());
                place[..copied].copy_from_slice(&bytes[used..used + copied]);
                used += len;
                self.came(head, done + len as u64, listener);
            }
            let Ok((frame, rest)) = Frame::read_from_prefix(&bytes[used..]) else { break };
            if !frame.is_sound() {
                return None;
            }
            let (len, operation) = (frame.len.get() as usize, frame.operation.get());
            if frame.kind != END && !listener.is_due(operation, frame.kind == TRANSFER) {
                self.held = true;
                break;
            }
            if frame.kind == TRANSFER {
                let Ok((body, _)) = HeadBody::read_from_prefix(rest) else { break };
                let head = Head::decode(&frame, &body)?;
                if !listener.begin(from, &head) {
                    return None;
                }
                used += FRAME_BYTES + HEAD_BYTES;
                self.came(head, 0, listener);
                continue;
            }
            let Some(contents) = rest.get(..len) else { break };
            match frame.kind {
                MESSAGE => listener.hear(Event::Message { from, bytes: contents }),
                REQUEST => {
                    let body = RequestBody::read_from_bytes(contents).ok()?;
                    let (tag, offset, bytes) = (body.tag.get(), body.offset.get(), body.bytes.get());
                    listener.hear(Event::Request { from, read: Read { operation, tag, offset, bytes } });
                }
                DATA => {
                    let (body, bytes) = DataBody::read_from_prefix(contents).ok()?;
                    let (tag, offset) = (body.tag.get(), body.offset.get());
                    listener.hear(Event::Data { from, operation, tag, offset, bytes });
                }
                END => self.left = true,
                _ => return None,
            }
            used += FRAME_BYTES + len;
        }
        Some(used)
    }
}

/// Copies bytes of a message; false if whoever gave it has forgotten it.
fn copy(to: &mut Vec<u8>, part: Part, range: std::ops::Range<u64>, source: &dyn Source) -> bool {
    let mut at = range.start;
    while at < range.end {
        let bytes = source.part(part, at);
        let len = bytes.len().min((range.end - at) as usize);
        if len == 0 {
            return false;
        }
        to.extend_from_slice(&bytes[..len]);
        at += len as u64;
    }
    true
}
