//! Frames of a peer that somebody changes on the way: what the fuzz target `session` runs.
//!
//! Whatever happens to the bytes, the receiver takes a beginning of what was sent. If it takes less, it waits for more,
//! or has closed the connection.

use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use flexcast_proto::Summary;
use flexcast_proto::p2p::{Part, Span};
use flexcast_proto::session::{Party, Session};

use crate::events::{Address, Event, Listener, Source};
use crate::frame::{DATA, END, Head, MESSAGE, REQUEST};
use crate::peer::{NONSENSE, Peer};
pub use crate::shared::OtherEnd;

/// Most frames, and most changes of them.
const MOST: usize = 16;
/// Bytes of the longest message: more than is copied, so that some go in fragments of their own.
const LONGEST: usize = 20_000;

/// Notes what it receives.
#[derive(Default)]
struct Notes {
    received: Vec<String>,
    place: Vec<u8>,
}

impl Listener for Notes {
    fn is_due(&self, _: u32, _: bool) -> bool {
        true
    }

    fn take(&mut self, event: Event<'_>) {
        self.received.push(match event {
            Event::Message { bytes, .. } => format!("message {:x}", digest(bytes)),
            Event::Request { read, .. } => format!("{read:?}"),
            Event::Data { operation, tag, offset, bytes, .. } => {
                format!("data {operation} {tag} {offset} {:x}", digest(bytes))
            }
        });
    }

    fn begin(&mut self, _: u32, head: &Head) -> bool {
        self.place = vec![0; head.bytes as usize];
        true
    }

    fn place(&mut self, _: u32, _: &Head, at: u64) -> &mut [u8] {
        &mut self.place[at as usize..]
    }

    fn end(&mut self, _: u32, head: &Head) {
        self.received.push(format!("{head:?}: {:x}", digest(&self.place)));
    }
}

fn digest(bytes: &[u8]) -> u64 {
    flexcast_proto::digest(bytes.iter().map(|byte| u64::from(*byte)))
}

struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn buffer(&self) -> &[u8] {
        &self.0
    }

    fn part(&self, _: Part, at: u64) -> &[u8] {
        // In two pieces.
        let (at, half) = (at as usize, self.0.len() / 2);
        if at < half { &self.0[at..half] } else { &self.0[at..] }
    }
}

/// A peer at one end of a connection, and the other end. None: the system gives no sockets.
fn peer(send: u8, receive: u8) -> Option<(Peer, UnixStream)> {
    let (near, far) = UnixStream::pair().ok()?;
    near.set_nonblocking(true).ok()?;
    far.set_nonblocking(true).ok()?;
    let session = Session { peer: Party::rank(1), send: [send; 32], receive: [receive; 32] };
    let stream = TcpStream::from(OwnedFd::from(near)).into();
    Some((Peer::accepted(1, stream, Address::Tcp(None), &session, true), far))
}

/// Makes frames as a script says, changes their bytes as it goes on, and gives them to a receiver in parts.
///
/// # Panics
/// The library has a fault.
pub fn connection(data: &[u8]) {
    let mut input = data.iter().copied();
    let mut next = || input.next().unwrap_or(0);
    let (Some((mut sender, mut wire)), Some((mut receiver, _far))) = (peer(1, 2), peer(2, 1)) else { return };
    let mut bytes = Vec::new();
    let mut room = [0; 1 << 16];
    for _ in 0..usize::from(next()) % MOST {
        let (kind, operation, len) = (next(), u32::from(next()), usize::from(next()));
        let source = Bytes(vec![kind; if kind & 0x80 != 0 { LONGEST } else { len }]);
        match kind % 5 {
            0 => sender.add(MESSAGE, operation, [&source.0[..len.min(source.0.len())], &[]]),
            1 => sender.add(REQUEST, operation, [&[kind; 20], &[]]),
            2 => sender.add(DATA, operation, [&[kind; 12], &source.0]),
            3 => {
                let total = source.0.len() as u64;
                let summary = Summary::allgather(total, 0, 1);
                let head = Head { operation, tag: 0, summary, total, offset: 0, bytes: total };
                sender.transfer(head, Part::send(Span { first: 0, count: 1 }), &source);
            }
            _ => sender.add(END, 0, [&[], &[]]),
        }
        sender.flush(&source);
        while let Ok(len @ 1..) = wire.read(&mut room) {
            bytes.extend_from_slice(&room[..len]);
        }
    }
    let mut right = Notes::default();
    let Some((mut undisturbed, _other)) = peer(2, 1) else { return };
    undisturbed.take(&bytes, &mut right);
    assert!(!undisturbed.closed, "a receiver trusts what nobody has changed");
    let sent = bytes.clone();
    for _ in 0..usize::from(next()) % MOST {
        let (what, at) = (next(), usize::from(next()) << 8 | usize::from(next()));
        let (at, len) = (at.min(bytes.len()), usize::from(next()));
        let range = at..(at + len).min(bytes.len());
        match what % 5 {
            0 => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= what | 1),
            1 => _ = bytes.drain(range),
            2 => {
                let copy = bytes[range].to_vec();
                bytes.splice(at..at, copy);
            }
            3 => _ = bytes.splice(at..at, std::iter::repeat_n(what, len)),
            _ => bytes[range].reverse(),
        }
    }
    let mut notes = Notes::default();
    let step = usize::from(next()) * 64 + 1;
    bytes.chunks(step).for_each(|part| {
        if !receiver.closed {
            receiver.take(part, &mut notes);
        }
    });
    assert!(right.received.starts_with(&notes.received), "it receives what was not sent: {:?}", notes.received);
    let diverges = !bytes.starts_with(&sent) && !sent.starts_with(&bytes);
    if diverges && bytes.len() >= sent.len() {
        assert_eq!(receiver.breaks, Some(NONSENSE), "it believes what was changed");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn frames_that_are_changed_anyhow_are_not_believed() {
        super::connection(&[]);
        let mut word = 1_u64;
        for _ in 0..300 {
            let bytes: Vec<u8> = std::iter::from_fn(|| {
                word = word.wrapping_mul(0xD129_0B26_8B4C_F47D).wrapping_add(0x9E37_79B9_7F4A_7C15);
                Some((word >> 56) as u8)
            })
            .take(200)
            .collect();
            super::connection(&bytes);
        }
    }
}
