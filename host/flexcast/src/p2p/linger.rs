//! Connections of a group that is gone still answer for a while.
//!
//! A rank is done when it has all data. The acknowledgement of the last message may still be on its way to the sender, or be lost. A sender that waits
//! too long for it restarts its end ([`crate::requester`]) and sends the message again. The receiver's card answers that by itself, but only while there is
//! a queue pair. Without one the sender takes a rank that has everything for dead. So the ends that answer stay for as long as a sender may ask again;
//! TCP's TIME-WAIT is there for the same reason.

use std::sync::{Mutex, PoisonError};

use flexio::{Bound, CompletionQueue, MemoryRegion, QueuePair, Retry};

/// How often a card sends again in the time that ends linger. A lost packet of the last message is sent again by restarts before that, and by the card.
const TIMEOUTS: u64 = 2;
/// Longest that ends linger, however long the timeout of cards is, which may be hours: 100 ms. Restarts take 8 ms.
const MOST_PS: u64 = 100_000_000_000;

/// How long ends linger, in picoseconds: 16.8 ms with a timeout of 2^11 · 4.096 us, the default.
pub(super) fn linger_ps(retry: Retry) -> u64 {
    ((TIMEOUTS * 4_096_000) << retry.timeout_exponent.min(31)).min(MOST_PS)
}

/// The ends of a group's connections that answer.
#[derive(Debug)]
pub(super) struct Answering {
    /// Dropped before what they use.
    pub(super) _answerers: Vec<QueuePair>,
    pub(super) _slots: MemoryRegion,
    pub(super) completions: CompletionQueue,
    /// Nobody asks any more from then on, by the provider's clock.
    pub(super) until_ps: u64,
}

impl Answering {
    fn is_over(&self) -> bool {
        self.completions.device().provider().relax().now_ps() >= self.until_ps
    }
}

/// What a card keeps of groups that are gone. Whoever drops it waits until nothing is needed any more: 16.8 ms at most with default settings, 100 ms with any.
#[derive(Debug, Default)]
pub(crate) struct Lingering(Mutex<Vec<Answering>>);

impl Lingering {
    /// Keeps the ends of a group, and drops those that are over.
    pub(super) fn keep(&self, answering: Answering) {
        // A panic elsewhere leaves the list as it is.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|answering| !answering.is_over());
        kept.push(answering);
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let kept = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for answering in kept.drain(..) {
            let relax = answering.completions.device().provider().relax();
            let left_us = answering.until_ps.saturating_sub(relax.now_ps()).div_ceil(1_000_000);
            // The bound is what is waited for.
            let _ = flexio::wait::<()>(relax, Bound::micros(left_us), "peers that may ask again", || Ok(None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_long_however_patient_cards_are() {
        let of = |timeout_exponent| linger_ps(Retry { timeout_exponent, count: 7 });
        assert_eq!([11, 20, 31].map(of), [16_777_216_000, MOST_PS, MOST_PS]);
    }
}
