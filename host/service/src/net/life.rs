//! Signs of life of one connection: when to send one, and when the other side has been silent for too long.

use std::time::{Duration, Instant};

use flexcast_proto::service::wire::Heartbeat;

/// Silence, in longest times between two heartbeats, after which the other side counts as dead.
pub const MISSED: u32 = 4;

/// The heartbeats of one side.
#[derive(Debug)]
pub(crate) struct Life {
    every: Duration,
    next: Instant,
    received: Instant,
    number: u64,
    seen: u64,
    missed: u64,
}

impl Life {
    /// The connection is there now; `every` is the longest time between two heartbeats.
    pub(crate) fn new(every: Duration, now: Instant) -> Self {
        Self { every, next: now, received: now, number: 0, seen: 0, missed: 0 }
    }

    /// The other side has said something.
    pub(crate) fn received(&mut self, heartbeat: Option<&Heartbeat>, now: Instant) {
        self.received = now;
        self.missed = 0;
        if let Some(heartbeat) = heartbeat {
            self.seen = heartbeat.number;
        }
    }

    /// The heartbeat to send, if it is time for one. They go twice as often as they must, so that one may be late.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Heartbeat> {
        if now < self.next {
            return None;
        }
        self.next = now + self.every / 2;
        self.number += 1;
        Some(Heartbeat { number: self.number, seen: self.seen })
    }

    /// Whether the other side counts as dead.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        now.duration_since(self.received) > self.every * MISSED
    }

    /// Heartbeats that have not come in time since the last call.
    pub(crate) fn newly_missed(&mut self, now: Instant) -> u64 {
        let every = self.every.as_nanos().max(1);
        let missed = u64::try_from(now.duration_since(self.received).as_nanos() / every).unwrap_or(u64::MAX);
        let new = missed.saturating_sub(self.missed);
        self.missed = self.missed.max(missed);
        new
    }

    /// When to check again.
    pub(crate) fn wakes(&self) -> Instant {
        self.next.min(self.received + self.every * MISSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_go_twice_as_often_as_they_must_and_silence_is_death() {
        let (start, every) = (Instant::now(), Duration::from_millis(100));
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut life = Life::new(every, start);
        assert_eq!(life.due(at(0)), Some(Heartbeat { number: 1, seen: 0 }));
        assert_eq!((life.due(at(49)), life.wakes()), (None, at(50)));
        life.received(Some(&Heartbeat { number: 9, seen: 1 }), at(49));
        assert_eq!(life.due(at(50)), Some(Heartbeat { number: 2, seen: 9 }));
        assert_eq!((life.newly_missed(at(148)), life.newly_missed(at(249)), life.newly_missed(at(250))), (0, 2, 0));
        assert!(!life.is_silent(at(449)) && life.is_silent(at(450)));
        life.received(None, at(451));
        assert!(!life.is_silent(at(800)));
        assert_eq!(life.newly_missed(at(551)), 1, "counted anew");
    }
}
