//! Frames to and from other machines, by UDP.
//!
//! A link of cards loses nothing when its receiver is slow, and neither does this: each side says how many frames it
//! can take and which it has taken, and the other sends no more than that ahead; nor does virtual time run ahead of a
//! peer that is there (`pace.rs`). Whoever has never received from a peer assumes after [`GIVE_UP`] that there is none,
//! and sends as into an unplugged cable. One that was there counts as gone when its process has ended, or when it has
//! been silent for longer than [`Wire::with_peer_timeout`] allows. With several peers that holds for each pair on its
//! own; a frame goes to the peer that has the card it is for, one for a group goes to all.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use emu_machine::card_with_mac;
use emu_nic::wire;
use emu_nic::{Packet, wire::DecodeError};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::datagram::{HEADER_BYTES, Header};
#[cfg(doc)]
use crate::limits::GIVE_UP;
use crate::limits::PEER_TIMEOUT;
use crate::peer::{self, Here, Peer, PeerConfig};
use crate::process::Process;

/// Longest frame: a payload of the largest path MTU with all headers there are, and some.
const MAX_FRAME_BYTES: usize = emu_nic::MAX_FRAME_BYTES;
/// What is asked for the receive buffer; the system may give less.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// What a long frame costs there: the system counts its own structures, and rounds up.
const BUFFERED_FRAME_BYTES: usize = 12 << 10;
/// Frames that may be on their way from one peer at most.
const MOST_ROOM: usize = 256;
/// The same before anything has been received from the other end, for all peers together and for one.
const FIRST_ROOM: usize = 32;
const LEAST_ROOM: usize = 4;
/// A longer time between two turns was spent elsewhere: it says nothing of peers.
const LONGEST_TURN: Duration = Duration::from_millis(20);

/// What has crossed the bridge, and what has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Frames sent to peers; a frame to a group counts once for each.
    pub sent: u64,
    /// Frames of peers that became packets.
    pub received: u64,
    /// Frames of peers with a wrong invariant check sequence.
    pub corrupt: u64,
    /// Frames of peers that are no RoCEv2 packet otherwise.
    pub malformed: u64,
    /// Datagrams that are none of the bridge's, or longer than a frame can be.
    pub strange: u64,
    /// Datagrams from an address that is no peer's.
    pub foreign: u64,
    /// Packets that cannot be written as a frame, or that the system would not send.
    pub unsent: u64,
    /// Frames that a peer has not reported as taken in time, or before its process ended.
    pub written_off: u64,
    /// Frames for a card that no peer has.
    pub unrouted: u64,
}

/// One end of a bridge.
#[derive(Debug)]
pub struct Wire {
    socket: UdpSocket,
    peers: Vec<Peer>,
    by_address: BTreeMap<SocketAddr, usize>,
    here: Here,
    buffer: Vec<u8>,
    counters: WireCounters,
    /// When peers were last judged; before the first time they are greeted.
    judged: Option<Instant>,
}

impl Wire {
    /// Binds `listen` and talks to `peer`, which need not be there yet. `epoch` identifies this start of the process
    /// and is not 0.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn new(listen: SocketAddr, peer: SocketAddr, epoch: u32) -> io::Result<Self> {
        Self::over(UdpSocket::bind(listen)?, vec![PeerConfig { address: peer, cards: None }], epoch)
    }

    /// Talks to all peers over one socket, each of which must do the same with as many. Their addresses and cards must
    /// differ; of two that do not, the first gets the frames.
    ///
    /// # Errors
    /// The socket cannot be set up.
    pub fn over(socket: UdpSocket, peers: Vec<PeerConfig>, epoch: u32) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // Less than asked for is less room, not an error.
        let _ = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES);
        let granted = getsockopt(&socket, sockopt::RcvBuf).unwrap_or(0);
        // All peers share the buffer, and none knows more of this end at first than this end of it.
        let count = peers.len().max(1);
        let least = (FIRST_ROOM / count).clamp(1, LEAST_ROOM);
        let room = (granted / BUFFERED_FRAME_BYTES / count).clamp(least, MOST_ROOM);
        let mut by_address = BTreeMap::new();
        for (index, peer) in peers.iter().enumerate() {
            by_address.entry(peer.address).or_insert(index);
        }
        Ok(Self {
            socket,
            peers: peers.into_iter().map(|peer| Peer::new(peer, least as u16)).collect(),
            by_address,
            here: Here {
                epoch: epoch.max(1),
                room: room as u16,
                clock_ps: 0,
                answer_ps: 0,
                process: Process::own(),
                peer_timeout: PEER_TIMEOUT,
            },
            buffer: vec![0; HEADER_BYTES + MAX_FRAME_BYTES + 1],
            counters: WireCounters::default(),
            judged: None,
        })
    }

    /// How long a peer that has been there may be silent, while frames or the clock of this end wait for it, until it
    /// counts as gone. Default 10 s.
    #[must_use]
    pub fn with_peer_timeout(mut self, peer_timeout: Duration) -> Self {
        self.here.peer_timeout = peer_timeout;
        self
    }

    /// The virtual time of this end from now on, and what an answer takes of it, both in picoseconds.
    pub(crate) fn set_clock(&mut self, clock_ps: u64, answer_ps: u64) {
        (self.here.clock_ps, self.here.answer_ps) = (clock_ps, answer_ps);
        peer::clock_is_set(&mut self.peers, self.here);
    }

    /// How far virtual time may go before peers have caught up; `None`: as far as it likes.
    pub(crate) fn limit_ps(&self) -> Option<u64> {
        peer::limit_ps(&self.peers, self.here)
    }

    /// When all frames that were taken are over, in virtual time.
    pub(crate) fn all_over_ps(&self) -> u64 {
        peer::all_over_ps(&self.peers, self.here)
    }

    /// When a peer that has asked must get its report, in virtual time.
    pub(crate) fn owed_ps(&self) -> Option<u64> {
        self.peers.iter().filter_map(|peer| peer.owed_ps(self.here)).min()
    }

    /// Reports to peers what they wait for, asks those that this end soon waits for, and gives up those that say
    /// nothing.
    pub(crate) fn keep_pace(&mut self, now: Instant) {
        let first = self.judged.is_none();
        let waited = now.saturating_duration_since(self.judged.replace(now).unwrap_or(now)).min(LONGEST_TURN);
        let Self { socket, peers, here, counters, .. } = self;
        for peer in peers {
            peer.judge(*here, waited, &mut counters.written_off);
            let header = if first || peer.should_be_asked(*here, now) {
                peer.question(*here, now)
            } else if peer.must_report(*here) {
                peer.header(*here, 0)
            } else {
                continue;
            };
            // Lost, it is reported again with the next frames, and asked for again.
            let _ = socket.send_to(&header.bytes(), peer.config.address);
        }
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

    /// Whether so many frames wait for a peer that no more should be made.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.peers.iter().any(Peer::is_full)
    }

    /// Frames that wait for peers.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.peers.iter().map(|peer| peer.waiting.len()).sum()
    }

    /// Takes a packet to send; it goes with the next [`Wire::send`]. A peer without known cards gets whatever no other
    /// does.
    pub fn push(&mut self, packet: &Packet) {
        // The header is written when it goes.
        let mut datagram = vec![0; HEADER_BYTES];
        if let Err(error) = wire::encode(packet, &mut datagram) {
            tracing::debug!(%error, "a packet has no frame");
            self.counters.unsent += 1;
            return;
        }
        if packet.destination.is_multicast() {
            for peer in &mut self.peers {
                peer.waiting.push_back(datagram.clone());
            }
            return;
        }
        let card = card_with_mac(packet.destination.mac);
        match self.peers.iter_mut().find(|peer| peer.has(card)) {
            Some(peer) => peer.waiting.push_back(datagram),
            None => self.counters.unrouted += 1,
        }
    }

    /// Sends what waits, as far as the peers have room.
    pub fn send(&mut self) {
        let Self { socket, peers, here, counters, .. } = self;
        for peer in peers {
            while !peer.waiting.is_empty() && peer.may_send() {
                let Some(mut datagram) = peer.waiting.pop_front() else { break };
                peer.note_sent(*here);
                let header = peer.header(*here, datagram.len() - HEADER_BYTES);
                datagram[..HEADER_BYTES].copy_from_slice(&header.bytes());
                match socket.send_to(&datagram, peer.config.address) {
                    Ok(_) => counters.sent += 1,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        peer.take_back();
                        peer.waiting.push_front(datagram);
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(%error, peer = %peer.config.address, "a frame could not be sent");
                        counters.unsent += 1;
                    }
                }
            }
        }
    }

    /// Takes up to `most` datagrams, gives the packets in them to `arrive`, and reports to the peers. Says how many
    /// datagrams.
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
        let Self { socket, peers, here, .. } = self;
        for peer in peers {
            if peer.must_report(*here) {
                // Lost, it is reported again with the next frames, and asked for again.
                let _ = socket.send_to(&peer.header(*here, 0).bytes(), peer.config.address);
            }
        }
        datagrams
    }

    fn take(&mut self, datagram: &[u8], from: SocketAddr, arrive: &mut impl FnMut(Packet)) {
        let Some(&index) = self.by_address.get(&from) else {
            self.counters.foreign += 1;
            return;
        };
        let Some((header, frame)) = Header::split(datagram).filter(|(_, frame)| frame.len() <= MAX_FRAME_BYTES) else {
            self.counters.strange += 1;
            return;
        };
        self.peers[index].receive(self.here, header);
        if frame.is_empty() {
            return;
        }
        match wire::decode_any(frame) {
            Ok(packet) => {
                self.counters.received += 1;
                arrive(packet);
            }
            Err(error) => {
                tracing::debug!(%error, "a frame of a peer is no packet");
                match error {
                    DecodeError::Icrc { .. } => self.counters.corrupt += 1,
                    _ => self.counters.malformed += 1,
                }
            }
        }
    }
}
