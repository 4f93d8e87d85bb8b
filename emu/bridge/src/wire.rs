//! Frames to and from one peer, by UDP.
//!
//! A link of cards loses nothing when its receiver is slow, and neither does this: each side says how many frames it can
//! take and which it has taken, and the other sends no more than that ahead. Whoever hears nothing for [`GIVE_UP`] believes
//! that there is no peer, and sends as into an unplugged cable.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use emu_nic::wire::{self, MAX_PAYLOAD_BYTES};
use emu_nic::{Packet, wire::DecodeError};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::datagram::{HEADER_BYTES, Header};

/// Longest frame: a payload of the largest path MTU with all headers there are, and some.
const MAX_FRAME_BYTES: usize = MAX_PAYLOAD_BYTES + 256;
/// What is asked for the receive buffer; the system may give less.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// What a long frame costs there: the system counts its own structures, and rounds up.
const BUFFERED_FRAME_BYTES: usize = 12 << 10;
/// Frames that may be on their way, at most and before the peer has said how many.
const MOST_ROOM: usize = 256;
const LEAST_ROOM: u16 = 4;
/// Frames that wait here before the machine must stand still.
const WAITING: usize = 64;
/// How long a full window is believed in: longer than a process waits for its turn. Then nobody is there, and frames go out
/// as they come until somebody is.
const GIVE_UP: Duration = Duration::from_millis(250);

/// What has crossed the bridge, and what has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Frames sent to the peer.
    pub sent: u64,
    /// Frames of the peer that became packets.
    pub received: u64,
    /// Frames of the peer with a wrong invariant check sequence.
    pub corrupt: u64,
    /// Frames of the peer that are no RoCEv2 packet otherwise.
    pub malformed: u64,
    /// Datagrams that are none of the bridge's, or longer than a frame can be.
    pub strange: u64,
    /// Datagrams from an address that is not the peer's.
    pub foreign: u64,
    /// Packets that cannot be written as a frame, or that the system would not send.
    pub unsent: u64,
    /// Frames that the peer has not told of in time.
    pub written_off: u64,
}

/// One end of a bridge.
#[derive(Debug)]
pub struct Wire {
    socket: UdpSocket,
    peer: SocketAddr,
    epoch: u32,
    /// Number of the last frame sent, and of the last that the peer has taken.
    sent: u32,
    taken: u32,
    peer_epoch: u32,
    /// Frames that the peer has room for; `None` while nobody seems to be there.
    peer_room: Option<u16>,
    /// Number of the peer's last frame, and what it was told of that.
    received: u32,
    told: u32,
    /// The peer does not know this end's epoch and room yet.
    unknown: bool,
    room: u16,
    waiting: VecDeque<Vec<u8>>,
    full_since: Option<Instant>,
    buffer: Vec<u8>,
    counters: WireCounters,
}

impl Wire {
    /// Binds `listen` and talks to `peer`, which need not be there yet. `epoch` tells this start from others and is not 0.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn new(listen: SocketAddr, peer: SocketAddr, epoch: u32) -> io::Result<Self> {
        let socket = UdpSocket::bind(listen)?;
        socket.set_nonblocking(true)?;
        // Less than asked for is less room, not an error.
        let _ = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES);
        let granted = getsockopt(&socket, sockopt::RcvBuf).unwrap_or(0);
        let room = (granted / BUFFERED_FRAME_BYTES).clamp(usize::from(LEAST_ROOM), MOST_ROOM) as u16;
        Ok(Self {
            socket,
            peer,
            epoch: epoch.max(1),
            sent: 0,
            taken: 0,
            peer_epoch: 0,
            peer_room: Some(LEAST_ROOM),
            received: 0,
            told: 0,
            unknown: false,
            room,
            waiting: VecDeque::new(),
            full_since: None,
            buffer: vec![0; HEADER_BYTES + MAX_FRAME_BYTES + 1],
            counters: WireCounters::default(),
        })
    }

    /// The socket, to wait for.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// What has crossed so far.
    #[must_use]
    pub fn counters(&self) -> WireCounters {
        self.counters
    }

    /// Whether so many frames wait for the peer that no more should be made.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING
    }

    /// Frames that wait for the peer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn header(&mut self, frame_bytes: usize) -> Header {
        self.told = self.received;
        self.unknown = false;
        Header {
            epoch: self.epoch,
            number: self.sent,
            peer_epoch: self.peer_epoch,
            received: self.received,
            room: self.room,
            frame_bytes: frame_bytes as u16,
        }
    }

    /// Takes a packet to send; it goes with the next [`Wire::send`].
    pub fn push(&mut self, packet: &Packet) {
        // The header is written when it goes.
        let mut datagram = vec![0; HEADER_BYTES];
        match wire::encode(packet, &mut datagram) {
            Ok(()) => self.waiting.push_back(datagram),
            Err(error) => {
                tracing::debug!(%error, "a packet has no frame");
                self.counters.unsent += 1;
            }
        }
    }

    /// Sends what waits, as far as the peer has room.
    pub fn send(&mut self, now: Instant) {
        while !self.waiting.is_empty() {
            let outstanding = self.sent.wrapping_sub(self.taken);
            if self.peer_room.is_some_and(|room| outstanding >= u32::from(room)) {
                if now.duration_since(*self.full_since.get_or_insert(now)) < GIVE_UP {
                    return;
                }
                self.counters.written_off += u64::from(outstanding);
                self.peer_room = None;
            }
            self.full_since = None;
            let Some(mut datagram) = self.waiting.pop_front() else { return };
            self.sent = self.sent.wrapping_add(1);
            let header = self.header(datagram.len() - HEADER_BYTES);
            datagram[..HEADER_BYTES].copy_from_slice(&header.bytes());
            match self.socket.send_to(&datagram, self.peer) {
                Ok(_) => self.counters.sent += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.sent = self.sent.wrapping_sub(1);
                    self.waiting.push_front(datagram);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, peer = %self.peer, "a frame could not be sent");
                    self.counters.unsent += 1;
                }
            }
        }
    }

    /// Takes up to `most` datagrams, gives the packets in them to `arrive`, and tells the peer. Says how many datagrams.
    pub fn receive(&mut self, most: usize, mut arrive: impl FnMut(Packet)) -> usize {
        let mut datagrams = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        while datagrams < most {
            match self.socket.recv_from(&mut buffer) {
                Ok((bytes, from)) => {
                    datagrams += 1;
                    self.take(&buffer[..bytes], from, &mut arrive);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing there; or what the network says of an earlier datagram, which is lost then.
                Err(_) => break,
            }
        }
        self.buffer = buffer;
        // A peer that has filled a quarter of the room may soon wait for it; one that does not know of it has even less.
        if self.unknown || self.received.wrapping_sub(self.told) >= u32::from(self.room).div_ceil(4) {
            let header = self.header(0);
            // Lost, it is told again with the next frames; the peer gives up waiting meanwhile.
            let _ = self.socket.send_to(&header.bytes(), self.peer);
        }
        datagrams
    }

    fn take(&mut self, datagram: &[u8], from: SocketAddr, arrive: &mut impl FnMut(Packet)) {
        if from != self.peer {
            self.counters.foreign += 1;
            return;
        }
        let Some((header, frame)) = Header::split(datagram).filter(|(_, frame)| frame.len() <= MAX_FRAME_BYTES) else {
            self.counters.strange += 1;
            return;
        };
        if header.epoch != self.peer_epoch {
            // Another process than before: nothing of what was on the way counts any more.
            self.peer_epoch = header.epoch;
            self.received = header.number.wrapping_sub(u32::from(header.frame_bytes > 0));
            self.told = self.received;
            self.taken = self.sent;
        }
        if self.peer_room.replace(header.room.max(1)).is_none() {
            // It is back: what went out meanwhile does not count.
            self.taken = self.sent;
        }
        // Only frames are answered, or two ends that have just started would go on answering.
        self.unknown |= header.peer_epoch != self.epoch && !frame.is_empty();
        let outstanding = self.sent.wrapping_sub(self.taken);
        if header.peer_epoch == self.epoch && header.received.wrapping_sub(self.taken) <= outstanding {
            if header.received != self.taken {
                self.full_since = None;
            }
            self.taken = header.received;
        }
        if frame.is_empty() {
            return;
        }
        if header.number.wrapping_sub(self.received).cast_signed() > 0 {
            self.received = header.number;
        }
        match wire::decode(frame) {
            Ok(packet) => {
                self.counters.received += 1;
                arrive(packet);
            }
            Err(error) => {
                tracing::debug!(%error, "a frame of the peer is no packet");
                match error {
                    DecodeError::Icrc { .. } => self.counters.corrupt += 1,
                    _ => self.counters.malformed += 1,
                }
            }
        }
    }
}
