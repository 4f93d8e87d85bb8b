//! Receiving side of a connection: frames as they come, checked before they are handled.

use std::io::{self, ErrorKind, IoSliceMut};

use zerocopy::FromBytes as _;

use super::{Peer, code};
use crate::events::{Event, Listener, Read};
use crate::frame::{
    DATA, DataBody, END, FRAME_BYTES, Frame, HEAD_BYTES, Head, HeadBody, MESSAGE, REQUEST, RequestBody, TRANSFER,
    is_failure,
};
use crate::tags::{Contents, Pair};

/// Most reads of what nobody handles any more: a peer may go on to send.
const MOST_DISCARDS: usize = 256;

/// Why bytes on a connection are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Untrusted {
    /// They cannot be, of whoever has sent them.
    Nonsense,
    /// The peer has not sent them, or not in this place.
    Forged,
}

/// What is wrong with a connection on which the peer's bytes do not come as it has sent them.
const FORGED: &str = "brought bytes that the peer has not sent, or not in this order: they were changed, copied or \
                      inserted on the way; find out who has access to the network between the two";

/// A fragment whose bytes come.
#[derive(Debug)]
pub(super) struct Incoming {
    head: Head,
    /// Bytes that have come.
    done: u64,
    /// Their hash, and the tag that is expected of all of them.
    expected: Option<(Contents, u64)>,
}

impl Incoming {
    fn add(&mut self, bytes: &[u8]) {
        self.done += bytes.len() as u64;
        if let Some((contents, _)) = &mut self.expected {
            contents.add(bytes);
        }
    }

    /// Whether all bytes are those that the peer has sent. Asked once all have come.
    fn verify(self) -> bool {
        self.expected.is_none_or(|(contents, tag)| contents.tag() == tag)
    }
}

impl Peer {
    /// Takes what has come. Returns whether there was anything.
    pub fn receive(&mut self, room: &mut [u8], listener: &mut dyn Listener) -> bool {
        let mut any = false;
        while self.is_read() {
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

    /// Reads once: the bytes of a fragment to their places, and what is behind them, or all, to `room`. How many bytes
    /// have come, and how many might.
    fn read(&mut self, room: &mut [u8], listener: &mut dyn Listener) -> (io::Result<usize>, usize) {
        let Some(incoming) = &mut self.incoming else {
            let came = self.stream.read_vectored(&mut [IoSliceMut::new(room)]);
            if let Ok(bytes) = came {
                self.take(&room[..bytes], listener);
            }
            return (came, room.len());
        };
        let (head, done) = (incoming.head, incoming.done);
        let left = head.bytes - done;
        let place = listener.place(self.rank, &head, done);
        let len = place.len().min(left as usize);
        if len == 0 {
            // Nobody wants it any more.
            let most = room.len().min(left as usize);
            let came = self.stream.read_vectored(&mut [IoSliceMut::new(&mut room[..most])]);
            if let Ok(bytes) = came {
                incoming.add(&room[..bytes]);
                self.came(listener);
            }
            return (came, most);
        }
        let behind = if len as u64 == left { room.len() } else { 0 };
        let mut parts = [IoSliceMut::new(&mut place[..len]), IoSliceMut::new(&mut room[..behind])];
        let came = self.stream.read_vectored(&mut parts);
        if let Ok(bytes) = came {
            incoming.add(&place[..bytes.min(len)]);
            if self.came(listener) && bytes > len {
                self.take(&room[..bytes - len], listener);
            }
        }
        (came, len + behind)
    }

    /// Bytes of a fragment are in their places. False: they are not those that the peer has sent.
    fn came(&mut self, listener: &mut dyn Listener) -> bool {
        let is_whole = |incoming: &mut Incoming| incoming.done == incoming.head.bytes;
        let Some(incoming) = self.incoming.take_if(is_whole) else { return true };
        let head = incoming.head;
        if !incoming.verify() {
            self.refuse(Untrusted::Forged);
            return false;
        }
        listener.end(self.rank, &head);
        true
    }

    /// An operation has begun: what was held may be taken now. Returns whether anything was.
    pub fn resume(&mut self, listener: &mut dyn Listener) -> bool {
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
            Ok(used) if inbox.is_empty() => inbox.extend_from_slice(&came[used..]),
            Ok(used) => _ = inbox.drain(..used),
            Err(why) => self.refuse(why),
        }
        self.inbox = inbox;
    }

    /// Takes the frames at the beginning of `bytes`; how many bytes they are.
    ///
    /// # Errors
    /// They are none of this protocol, or the peer has not sent them.
    fn frames(&mut self, bytes: &[u8], listener: &mut dyn Listener) -> Result<usize, Untrusted> {
        let from = self.rank;
        let mut used = 0;
        loop {
            while let Some(incoming) = &mut self.incoming {
                let (head, done) = (incoming.head, incoming.done);
                let here = (bytes.len() - used).min((head.bytes - done) as usize);
                if here == 0 {
                    return Ok(used);
                }
                let place = listener.place(from, &head, done);
                // Without a place, nobody wants it any more.
                let len = if place.is_empty() { here } else { place.len().min(here) };
                let copied = len.min(place.len());
                place[..copied].copy_from_slice(&bytes[used..used + copied]);
                incoming.add(&bytes[used..used + len]);
                used += len;
                if !self.came(listener) {
                    // It is closed.
                    return Ok(used);
                }
            }
            let Ok((frame, rest)) = Frame::read_from_prefix(&bytes[used..]) else { break };
            let detail = if frame.kind == TRANSFER { HEAD_BYTES } else { 0 };
            let Some(detail) = rest.get(..detail) else { break };
            self.check(&frame, detail)?;
            let (len, operation) = (frame.len.get() as usize, frame.operation.get());
            if frame.kind != END && !listener.is_due(operation, frame.kind == TRANSFER) {
                self.held = true;
                break;
            }
            if frame.kind == TRANSFER {
                let (body, _) = HeadBody::read_from_prefix(detail).map_err(|_| Untrusted::Nonsense)?;
                let head = Head::decode(&frame, &body).ok_or(Untrusted::Nonsense)?;
                if !listener.begin(from, &head) {
                    return Err(Untrusted::Nonsense);
                }
                used += FRAME_BYTES + HEAD_BYTES;
                let expected = self.tags.as_mut().map(|pair| {
                    pair.receive.count();
                    (pair.receive.contents(), frame.contents_tag.get())
                });
                // Without bytes there is nothing to be hashed, as on the other side.
                let expected = expected.filter(|_| head.bytes > 0);
                self.incoming = Some(Incoming { head, done: 0, expected });
                if head.bytes == 0 {
                    self.came(listener);
                }
                continue;
            }
            let Some(contents) = rest.get(..len) else { break };
            if let Some(pair) = &mut self.tags {
                if len > 0 && pair.receive.of_contents(contents) != frame.contents_tag.get() {
                    return Err(Untrusted::Forged);
                }
                pair.receive.count();
            }
            match frame.kind {
                MESSAGE => listener.take(Event::Message { from, bytes: contents }),
                REQUEST => {
                    let body = RequestBody::read_from_bytes(contents).map_err(|_| Untrusted::Nonsense)?;
                    let (tag, offset, bytes) = (body.tag.get(), body.offset.get(), body.bytes.get());
                    listener.take(Event::Request { from, read: Read { operation, tag, offset, bytes } });
                }
                DATA => {
                    let (body, bytes) = DataBody::read_from_prefix(contents).map_err(|_| Untrusted::Nonsense)?;
                    let (tag, offset) = (body.tag.get(), body.offset.get());
                    listener.take(Event::Data { from, operation, tag, offset, bytes });
                }
                END => self.left = true,
                _ => return Err(Untrusted::Nonsense),
            }
            used += FRAME_BYTES + len;
        }
        Ok(used)
    }

    /// Whether a frame may begin so, and is the peer's next one.
    fn check(&self, frame: &Frame, detail: &[u8]) -> Result<(), Untrusted> {
        match &self.tags {
            Some(pair) if !frame.is_genuine(pair.receive.next(), detail, &pair.receive) => Err(Untrusted::Forged),
            _ if !frame.is_sound() => Err(Untrusted::Nonsense),
            None if (frame.tag.get(), frame.contents_tag.get()) != (0, 0) => Err(Untrusted::Nonsense),
            _ => Ok(()),
        }
    }

    /// Nothing more comes. A peer that has left in good order while this rank is behind it is taken until its last
    /// frame; others break at once.
    fn end(&mut self, code: u16, listener: &mut dyn Listener) {
        let code = self.mute.unwrap_or(code);
        if self.held {
            self.take_last_words(listener);
            if self.left {
                self.ended = Some(code);
                return;
            }
        }
        self.close(code);
    }

    /// Of the frames that wait for their operations, those count at once that say why the peer goes.
    fn take_last_words(&mut self, listener: &mut dyn Listener) {
        let mut rest = &self.inbox[..];
        let mut number = self.tags.as_ref().map_or(0, |pair| pair.receive.next());
        while let Ok((frame, behind)) = Frame::read_from_prefix(rest)
            && frame.is_sound()
            && let Some((contents, next)) = behind.split_at_checked(frame.len.get() as usize)
            && is_genuine(&frame, contents, number, self.tags.as_deref())
        {
            number += 1;
            match frame.kind {
                MESSAGE if is_failure(contents) => {
                    listener.take(Event::Message { from: self.rank, bytes: contents });
                }
                END => self.left = true,
                _ => {}
            }
            rest = next;
        }
    }

    /// Takes and forgets what has come, since nobody handles it any more: a system that closes a connection with
    /// something unread takes back what has not arrived yet at the other side.
    pub fn discard(&mut self, room: &mut [u8]) {
        if self.closed || self.dial.is_some() || self.stream.shared().is_some() {
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

    fn refuse(&mut self, why: Untrusted) {
        match why {
            Untrusted::Nonsense => self.distrust(),
            Untrusted::Forged => self.accuse(FORGED.to_owned()),
        }
    }
}

/// Whether a whole frame is frame number `number` of the peer.
fn is_genuine(frame: &Frame, contents: &[u8], number: u64, tags: Option<&Pair>) -> bool {
    let Some(Pair { receive, .. }) = tags else { return true };
    let detail = if frame.kind == TRANSFER { HEAD_BYTES } else { 0 };
    let Some((detail, contents)) = contents.split_at_checked(detail) else { return false };
    frame.is_genuine(number, detail, receive)
        && (contents.is_empty() || receive.of_contents(contents) == frame.contents_tag.get())
}
