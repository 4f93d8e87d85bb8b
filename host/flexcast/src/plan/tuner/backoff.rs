//! Backoff from the connections of direct operations after one has stalled, by the same number of operations on all
//! ranks.
//!
//! A lost packet of a reliable connection is asked for again within a round trip. If the negative acknowledgement is
//! lost as well, the responder sends no second one before the missing packet has come: the connection restarts, or, if
//! that does not help, stands still for its whole timeout. Multicast has no such wait: where losses are so frequent
//! that this happens often, the next operations go by multicast.

use std::time::Duration;

/// Operations without connections after a stall: enough that a stall of 8.4 ms now and then does not decide how long
/// many operations take.
const FIRST: u32 = 64;
/// The most, when connections stall each time they are tried again.
const MOST: u32 = 4096;

/// Whether a communicator uses its connections (or multicast, [`Delivery`](super::Delivery)), as a function of what all
/// its ranks know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The first operation that may use them again, and how many could not.
    until: Option<(u32, u32)>,
}

impl Backoff {
    /// Whether an operation has to go another way. Operations are numbered modulo 2^32.
    pub(crate) fn avoids(&self, operation: u32) -> bool {
        self.until.is_some_and(|(until, _)| is_before(operation, until))
    }

    /// Whether there was a stall not long ago.
    pub(crate) const fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// All ranks know after this operation that connections have stalled.
    pub(crate) fn stalled(&mut self, operation: u32) {
        let span = match self.until {
            // Not long after they were tried again.
            Some((until, span)) if is_before(operation, until.wrapping_add(span)) => span.saturating_mul(2).min(MOST),
            _ => FIRST,
        };
        self.until = Some((operation.wrapping_add(1).wrapping_add(span), span));
    }

    /// All ranks know after this operation that none has stalled.
    pub(crate) fn went_well(&mut self, operation: u32) {
        if self.until.is_some_and(|(until, span)| !is_before(operation, until.wrapping_add(span))) {
            self.until = None;
        }
    }
}

/// What losses have cost operations over connections lately, beyond what multicast would have taken, as one rank sees
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slowness {
    lost_ns: u128,
}

impl Slowness {
    /// Takes note of an operation that took so long and was expected to take so long by multicast; `stalled`: a
    /// connection had restarted or stood still, without which the others have waited for a rank. Returns whether
    /// multicast is better: what has been lost in all, less what operations since have gained, is four times as long as
    /// one takes.
    pub(crate) fn note(&mut self, took: Duration, multicast: Duration, stalled: bool) -> bool {
        // Multicast loses chunks, too.
        let with_losses = multicast * 5 / 4;
        let gained = with_losses.saturating_sub(took).as_nanos();
        let lost = if stalled { took.saturating_sub(with_losses).as_nanos() } else { 0 };
        self.lost_ns = self.lost_ns.saturating_sub(gained).saturating_add(lost);
        let is_better = lost > 0 && self.lost_ns >= 4 * multicast.as_nanos();
        if is_better {
            self.lost_ns = 0;
        }
        is_better
    }
}

/// Whether one number comes before another: neither is half of all numbers away.
const fn is_before(operation: u32, other: u32) -> bool {
    (operation.wrapping_sub(other) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_avoided_for_longer_each_time_they_stall_again() {
        for first in [5, u32::MAX - 70] {
            let mut backoff = Backoff::default();
            assert!(!backoff.avoids(first));
            let mut operation: u32 = first;
            for span in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
                backoff.stalled(operation);
                assert!((1..=span).all(|later| backoff.avoids(operation.wrapping_add(later))));
                operation = operation.wrapping_add(span + 1);
                assert!(!backoff.avoids(operation), "tried again after {span}");
            }
        }
    }

    #[test]
    fn slow_operations_count_less_what_others_have_gained() {
        let multicast = Duration::from_micros(80);
        let mut slowness = Slowness::default();
        let mut note = |us: u64, stalled| slowness.note(Duration::from_micros(us), multicast, stalled);
        assert!(!note(260, true), "160 beyond 100, and 320 are needed");
        assert!(!note(9000, false), "a rank that came late");
        assert!(note(260, true));
        assert!(!note(260, true), "counted anew");
        assert!(!note(70, false));
        assert!(!note(260, true), "30 have been gained");
        assert!(note(130, true));
        assert!(note(8400, true), "a timeout of the card is enough");
    }

    #[test]
    fn what_has_gone_well_for_as_long_is_trusted_again() {
        let mut backoff = Backoff::default();
        backoff.stalled(0);
        backoff.went_well(65 + 63);
        assert_ne!(backoff, Backoff::default());
        backoff.went_well(65 + 64);
        assert_eq!(backoff, Backoff::default());
        backoff.stalled(500);
        assert!(backoff.avoids(564) && !backoff.avoids(565));
    }
}
