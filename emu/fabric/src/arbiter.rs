//! Arbiter among queues of different priority.

use crate::config::Priorities;
use crate::counters::PRIORITIES;

/// What a byte of weight 1 counts: no weight of up to 1000 rounds to nothing.
const SCALE: u64 = 1 << 20;

/// Chooses among the priorities that have something to send.
///
/// By weight this is start-time fair queueing: each priority has a clock that runs faster the less it weighs, and the
/// one that is furthest behind is next. Over any time in which two have something to send all along, what they got
/// differs from their weights by less than a frame of each.
#[derive(Clone, Debug)]
pub struct Arbiter {
    priorities: Priorities,
    weights: [u32; PRIORITIES],
    /// What each has had, over its weight.
    clocks: [u64; PRIORITIES],
    /// The clock of the one that was last served, when it was.
    now: u64,
}

impl Arbiter {
    /// Among queues that have sent nothing yet. A weight of 0 counts as 1.
    #[must_use]
    pub fn new(priorities: Priorities, weights: [u32; PRIORITIES]) -> Self {
        Self { priorities, weights, clocks: [0; PRIORITIES], now: 0 }
    }

    /// The queue of a priority of 0 to 7; higher bits are ignored.
    #[inline]
    #[must_use]
    pub fn queue(&self, priority: u8) -> usize {
        match self.priorities {
            Priorities::Shared => 0,
            Priorities::Strict | Priorities::Weighted => usize::from(priority) % PRIORITIES,
        }
    }

    /// Whether the highest priority always goes first.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.priorities == Priorities::Strict
    }

    /// Which of the queues whose bits are set is next.
    #[inline]
    #[must_use]
    pub fn next(&self, ready: u8) -> Option<usize> {
        let highest = ready.checked_ilog2()? as usize;
        if self.priorities != Priorities::Weighted {
            return Some(highest);
        }
        // Among equals the higher.
        (0..PRIORITIES)
            .rev()
            .filter(|queue| ready >> queue & 1 == 1)
            .min_by_key(|&queue| self.clocks[queue].max(self.now))
    }

    /// A queue has sent so many bytes.
    #[inline]
    pub fn served(&mut self, queue: usize, bytes: u64) {
        if self.priorities == Priorities::Weighted {
            // One that had nothing to send has saved nothing.
            let start = self.clocks[queue].max(self.now);
            self.now = start;
            self.clocks[queue] = start.saturating_add(bytes * SCALE / u64::from(self.weights[queue].max(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_first_unless_weights_say_otherwise() {
        let strict = Arbiter::new(Priorities::Strict, [1; 8]);
        assert_eq!((strict.next(0), strict.next(0b0010_0110), strict.next(1)), (None, Some(5), Some(0)));
        assert_eq!((strict.queue(3), Arbiter::new(Priorities::Shared, [1; 8]).queue(3)), (3, 0));
    }

    #[test]
    fn shares_follow_the_weights_and_nothing_is_saved_up() {
        let mut weighted = Arbiter::new(Priorities::Weighted, [1, 3, 1, 1, 1, 1, 1, 1]);
        let mut run = |ready: u8, count: u32| {
            let mut bytes = [0_u64; 8];
            for number in 0..count {
                let queue = weighted.next(ready).unwrap();
                // Lengths differ; shares are those of bytes.
                let length = if queue == 0 { 4000 } else { 300 + u64::from(number % 7) };
                weighted.served(queue, length);
                bytes[queue] += length;
            }
            bytes
        };
        let bytes = run(0b11, 4000);
        assert!((2.9..3.1).contains(&(bytes[1] as f64 / bytes[0] as f64)), "{bytes:?}");
        // Alone for long, then together again: at once by their shares.
        assert_eq!(run(0b01, 500)[1], 0);
        let bytes = run(0b11, 4000);
        assert!((2.9..3.1).contains(&(bytes[1] as f64 / bytes[0] as f64)), "{bytes:?}");
    }
}
