//! What one end of a bridge knows of another.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::datagram::Header;

/// Frames that wait here before the machine must stand still.
const WAITING: usize = 64;
/// How long a full window is believed in: longer than a process waits for its turn. Then nobody is there, and frames go out
/// as they come until somebody is.
pub(crate) const GIVE_UP: Duration = Duration::from_millis(250);

/// Another machine, and the cards in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Where it receives, by UDP.
    pub address: SocketAddr,
    /// Numbers of its cards, counted over all machines that are joined. `None`: all that are not here, so that it is the only
    /// neighbour.
    pub cards: Option<Range<usize>>,
}

/// This end, as each of the others is told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// Tells this start from others; not 0.
    pub(crate) epoch: u32,
    /// Frames that one neighbour may send ahead.
    pub(crate) room: u16,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) neighbour: Neighbour,
    /// Number of the last frame sent, and of the last that the peer has taken.
    pub(crate) sent: u32,
    taken: u32,
    epoch: u32,
    /// Frames that the peer has room for; `None` while nobody seems to be there.
    room: Option<u16>,
    /// Number of the peer's last frame, and what it was told of that.
    received: u32,
    told: u32,
    /// The peer does not know this end's epoch and room yet.
    unknown: bool,
    pub(crate) waiting: VecDeque<Vec<u8>>,
    full_since: Option<Instant>,
}

impl Peer {
    /// A peer that nothing is known of but where it is, with room for so many frames.
    pub(crate) fn new(neighbour: Neighbour, room: u16) -> Self {
        Self {
            neighbour,
            sent: 0,
            taken: 0,
            epoch: 0,
            room: Some(room),
            received: 0,
            told: 0,
            unknown: false,
            waiting: VecDeque::new(),
            full_since: None,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING
    }

    /// Whether the card of this number is in its machine; of a number that no card has, whether everything is.
    pub(crate) fn has(&self, card: Option<usize>) -> bool {
        self.neighbour.cards.as_ref().is_none_or(|cards| card.is_some_and(|card| cards.contains(&card)))
    }

    /// The header of the next datagram, which tells the peer everything.
    pub(crate) fn header(&mut self, here: Here, frame_bytes: usize) -> Header {
        self.told = self.received;
        self.unknown = false;
        Header {
            epoch: here.epoch,
            number: self.sent,
            peer_epoch: self.epoch,
            received: self.received,
            room: here.room,
            frame_bytes: frame_bytes as u16,
        }
    }

    /// A peer that has filled a quarter of the room may soon wait for it; one that does not know of it has even less.
    pub(crate) fn must_be_told(&self, here: Here) -> bool {
        self.unknown || self.received.wrapping_sub(self.told) >= u32::from(here.room).div_ceil(4)
    }

    /// Whether a frame may go. A peer that has been silent behind a full window for too long is given up: then the number of
    /// frames that it has not told of is counted.
    pub(crate) fn may_send(&mut self, now: Instant, written_off: &mut u64) -> bool {
        let outstanding = self.sent.wrapping_sub(self.taken);
        if self.room.is_some_and(|room| outstanding >= u32::from(room)) {
            if now.duration_since(*self.full_since.get_or_insert(now)) < GIVE_UP {
                return false;
            }
            *written_off += u64::from(outstanding);
            self.room = None;
        }
        self.full_since = None;
        true
    }

    /// Takes what a datagram of the peer says.
    pub(crate) fn hear(&mut self, here: Here, header: Header) {
        let with_frame = header.frame_bytes > 0;
        if header.epoch != self.epoch {
            // Another process than before: nothing of what was on the way counts any more.
            self.epoch = header.epoch;
            self.received = header.number.wrapping_sub(u32::from(with_frame));
            self.told = self.received;
            self.taken = self.sent;
        }
        if self.room.replace(header.room.max(1)).is_none() {
            // It is back: what went out meanwhile does not count.
            self.taken = self.sent;
        }
        // Only frames are answered, or two ends that have just started would go on answering.
        self.unknown |= header.peer_epoch != here.epoch && with_frame;
        let outstanding = self.sent.wrapping_sub(self.taken);
        if header.peer_epoch == here.epoch && header.received.wrapping_sub(self.taken) <= outstanding {
            if header.received != self.taken {
                self.full_since = None;
            }
            self.taken = header.received;
        }
        if with_frame && header.number.wrapping_sub(self.received).cast_signed() > 0 {
            self.received = header.number;
        }
    }
}
