//! State of one peer: window of frames, clock, process.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::datagram::Header;
use crate::limits::GIVE_UP;
use crate::pace::Pace;
use crate::process::Process;

/// Frames that wait here before the machine must stand still.
const WAITING: usize = 64;
/// Silence after which the other end is asked again, and its process checked.
const AGAIN: Duration = Duration::from_millis(20);
/// The same after an answer that did not help.
const SOON: Duration = Duration::from_millis(2);

/// Another machine, and the cards in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Where it receives, by UDP.
    pub address: SocketAddr,
    /// Numbers of its cards, counted over all machines that are joined. `None`: all that are not here, so that it is
    /// the only peer.
    pub cards: Option<Range<usize>>,
}

/// This end, as it is reported to each of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// Identifies this start of the process; not 0.
    pub(crate) epoch: u32,
    /// Frames that one peer may send ahead.
    pub(crate) room: u16,
    /// Virtual time in picoseconds, and how much of it an answer needs.
    pub(crate) clock_ps: u64,
    pub(crate) answer_ps: u64,
    pub(crate) process: Process,
    /// How long a peer that has been there may be silent while something waits for it.
    pub(crate) peer_timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) config: PeerConfig,
    /// Number of the last frame sent, and of the last that the peer has taken.
    pub(crate) sent: u32,
    taken: u32,
    epoch: u32,
    /// Frames that the peer has room for; `None` while nobody seems to be there.
    room: Option<u16>,
    /// Number of the peer's last frame, and the last that was reported to it.
    received: u32,
    reported: u32,
    /// The peer does not know this end's epoch and room yet.
    unknown: bool,
    pub(crate) waiting: VecDeque<Vec<u8>>,
    pace: Pace,
    /// The peer's process, if it can be inspected; its number in any case.
    process: Option<Process>,
    pid: u32,
    /// The peer waits for a report, at once, and again when the frame of this number is over.
    asked: bool,
    owed: Option<u32>,
    /// When it was last asked, and whether it has said anything since.
    asked_at: Option<Instant>,
    answered: bool,
    /// How long something has waited for it in vain, while this end was run.
    silent: Duration,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.config.cards {
            Some(cards) if cards.len() == 1 => write!(f, "card {}", cards.start)?,
            Some(cards) => write!(f, "cards {} to {}", cards.start, cards.end.saturating_sub(1))?,
            None => write!(f, "the other end")?,
        }
        match self.pid {
            0 => write!(f, " ({})", self.config.address),
            pid => write!(f, " (process {pid}, {})", self.config.address),
        }
    }
}

/// How far virtual time may go before these peers have caught up; `None`: as far as it likes.
pub(crate) fn limit_ps(peers: &[Peer], here: Here) -> Option<u64> {
    let (mut frames_ps, mut talk_ps) = (None, None);
    let least = |old: Option<u64>, new: Option<u64>| old.into_iter().chain(new).min();
    for peer in peers {
        let [frames, talk] = peer.limits_ps(here);
        (frames_ps, talk_ps) = (least(frames_ps, frames), least(talk_ps, talk));
    }
    // Others wait for what has been taken here to be over.
    least(frames_ps, talk_ps.map(|talk_ps| talk_ps.max(all_over_ps(peers, here))))
}

/// When all frames that were taken are over, in virtual time.
pub(crate) fn all_over_ps(peers: &[Peer], here: Here) -> u64 {
    peers.iter().filter_map(|peer| peer.all_over_ps(here)).max().unwrap_or(0)
}

/// This end's clock has been set.
pub(crate) fn clock_is_set(peers: &mut [Peer], here: Here) {
    for peer in peers.iter_mut().filter(|peer| peer.is_there()) {
        peer.pace.reached(peer.taken, here.answer_ps, here.clock_ps);
    }
}

impl Peer {
    /// A peer that nothing is known of but where it is, with room for so many frames.
    pub(crate) fn new(config: PeerConfig, room: u16) -> Self {
        Self {
            config,
            sent: 0,
            taken: 0,
            epoch: 0,
            room: Some(room),
            received: 0,
            reported: 0,
            unknown: false,
            waiting: VecDeque::new(),
            pace: Pace::default(),
            process: None,
            pid: 0,
            asked: false,
            owed: None,
            asked_at: None,
            answered: false,
            silent: Duration::ZERO,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING
    }

    /// Whether the card of this number is in its machine; of a number that no card has, whether everything is.
    pub(crate) fn has(&self, card: Option<usize>) -> bool {
        self.config.cards.as_ref().is_none_or(|cards| card.is_some_and(|card| cards.contains(&card)))
    }

    /// Whether something has been received from it, and it has not been given up.
    fn is_there(&self) -> bool {
        self.epoch != 0 && self.room.is_some()
    }

    /// The header of the next datagram, which reports everything to the peer.
    pub(crate) fn header(&mut self, here: Here, frame_bytes: usize) -> Header {
        let over = self.pace.over(here.clock_ps, here.answer_ps);
        self.reported = self.received;
        self.unknown = false;
        self.asked = false;
        self.owed = self.owed.filter(|owed| over.wrapping_sub(*owed).cast_signed() < 0);
        Header {
            epoch: here.epoch,
            number: self.sent,
            peer_epoch: self.epoch,
            received: self.received,
            over,
            clock_ps: here.clock_ps,
            room: here.room,
            frame_bytes: frame_bytes as u16,
            process: here.process,
            asks: false,
        }
    }

    /// The same, as a question.
    pub(crate) fn question(&mut self, here: Here, now: Instant) -> Header {
        (self.asked_at, self.answered) = (Some(now), false);
        Header { asks: true, ..self.header(here, 0) }
    }

    /// A peer that has filled a quarter of the room may soon wait for it; one that does not know of it has even less;
    /// and one that has asked waits already.
    pub(crate) fn must_report(&mut self, here: Here) -> bool {
        let over = self.pace.over(here.clock_ps, here.answer_ps);
        self.unknown
            || self.asked
            || self.owed.is_some_and(|owed| over.wrapping_sub(owed).cast_signed() >= 0)
            || self.received.wrapping_sub(self.reported) >= u32::from(here.room).div_ceil(4)
    }

    /// When it must be reported to the peer that its frames are over, in this end's virtual time.
    pub(crate) fn owed_ps(&self, here: Here) -> Option<u64> {
        self.owed.and_then(|_| self.pace.all_over_ps(here.answer_ps))
    }

    /// When all frames of the peer that were taken are over here.
    fn all_over_ps(&self, here: Here) -> Option<u64> {
        self.pace.all_over_ps(here.answer_ps)
    }

    /// Whether a frame may go.
    pub(crate) fn may_send(&self) -> bool {
        self.room.is_none_or(|room| self.sent.wrapping_sub(self.taken) < u32::from(room))
    }

    /// A frame goes, with the number that [`Peer::sent`] has now.
    pub(crate) fn note_sent(&mut self, here: Here) {
        self.sent = self.sent.wrapping_add(1);
        if self.is_there() {
            self.pace.sent(self.sent, here.clock_ps);
        }
    }

    /// The system would not take it: it is the next one again.
    pub(crate) fn take_back(&mut self) {
        self.sent = self.sent.wrapping_sub(1);
        if self.is_there() {
            self.pace.unsent();
        }
    }

    /// How far this end's clock may go for the frames that are with the peer, and for the talk with it.
    fn limits_ps(&self, here: Here) -> [Option<u64>; 2] {
        if !self.is_there() {
            return [None; 2];
        }
        [self.pace.frames_limit_ps(self.taken, here.answer_ps), self.pace.talk_limit_ps(here.clock_ps)]
    }

    /// Whether this end stands still because of the peer.
    fn holds(&self, here: Here) -> bool {
        let full = !self.waiting.is_empty() && !self.may_send();
        full || self.limits_ps(here).into_iter().flatten().any(|limit_ps| limit_ps <= here.clock_ps)
    }

    /// Whether the peer should be asked where it is.
    pub(crate) fn should_be_asked(&self, here: Here, now: Instant) -> bool {
        let near = self.silent >= AGAIN || self.pace.is_near(here.clock_ps);
        let wait = if self.answered { SOON } else { AGAIN };
        self.is_there() && near && self.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= wait)
    }

    /// `waited` has passed in which this end was run. A peer that something waits for, and that has said nothing, is
    /// given up after a while: then the number of frames that it has not reported as taken is counted, and they go out
    /// as they come until it sends again.
    pub(crate) fn judge(&mut self, here: Here, waited: Duration, written_off: &mut u64) {
        if !self.holds(here) {
            self.silent = Duration::ZERO;
            return;
        }
        let before = self.silent;
        self.silent += waited;
        let there = self.is_there();
        let is_check_due = self.silent.as_nanos() / AGAIN.as_nanos() != before.as_nanos() / AGAIN.as_nanos();
        let ended = there && is_check_due && self.process.is_some_and(Process::has_ended);
        if !ended && self.silent < if there { here.peer_timeout } else { GIVE_UP } {
            return;
        }
        let outstanding = self.sent.wrapping_sub(self.taken);
        if ended {
            tracing::info!("{self} has ended, with {outstanding} frames not taken");
        } else if there {
            let seconds = self.silent.as_secs_f64();
            tracing::warn!(
                "{self} has taken nothing for {seconds:.1} s: it counts as gone, time goes on, and what waits for it \
                 fails; see whether it is stopped, or raise {}",
                crate::limits::PEER_TIMEOUT_VARIABLE
            );
        }
        *written_off += u64::from(outstanding);
        self.room = None;
        self.silent = Duration::ZERO;
        self.pace = Pace::default();
    }

    /// Takes what a datagram of the peer says.
    pub(crate) fn receive(&mut self, here: Here, header: Header) {
        let with_frame = header.frame_bytes > 0;
        (self.silent, self.answered) = (Duration::ZERO, true);
        let back = self.room.replace(header.room.max(1)).is_none();
        if header.epoch != self.epoch {
            // Another process than before: nothing of what was on the way counts any more.
            self.epoch = header.epoch;
            self.received = header.number.wrapping_sub(u32::from(with_frame));
            self.reported = self.received;
            self.taken = self.sent;
            self.pace = Pace::new(header.clock_ps, self.received);
            self.pid = header.process.pid;
            self.process = Some(header.process).filter(|process| process.is_seen());
            self.owed = None;
        } else if back {
            // What went out meanwhile does not count.
            self.taken = self.sent;
            self.pace = Pace::new(header.clock_ps, self.received);
        }
        // Only frames and questions are answered, or two ends that have just started would go on answering.
        self.unknown |= header.peer_epoch != here.epoch && with_frame;
        let outstanding = self.sent.wrapping_sub(self.taken);
        let knows = header.peer_epoch == here.epoch;
        if knows && header.received.wrapping_sub(self.taken) <= outstanding {
            self.taken = header.received;
        }
        self.pace.update(header.clock_ps, knows.then_some(header.over), here.clock_ps);
        // Frames before one without are here, or lost.
        if header.number.wrapping_sub(self.received).cast_signed() > 0 {
            self.received = header.number;
            self.pace.took(header.number, with_frame, here.clock_ps);
        }
        if header.asks {
            (self.asked, self.owed) = (true, Some(header.number));
        }
    }
}

#[cfg(test)]
mod tests;
