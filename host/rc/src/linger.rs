//! Connections that a rank gives up still answer for a while.
//!
//! A rank is done when it has all data. The acknowledgement of the last message may still be on its way to the sender,
//! or be lost. A sender that waits too long for it restarts its end ([`requester`](crate::requester)) and sends the
//! message again. The receiver's card answers that by itself, but only while there is a queue pair. Without one the
//! sender takes a rank that has everything for dead. So the ends that answer stay for as long as a sender may ask
//! again; TCP's TIME-WAIT is there for the same reason.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use flexio::{Bound, Device, Retry};

/// How often a card sends again in the time that ends linger. A lost packet of the last message is sent again by
/// restarts before that, and by the card.
const TIMEOUTS: u64 = 2;
/// Longest that ends linger, however long the timeout of cards is, which may be hours: 100 ms. Restarts take 8 ms.
const MOST_PS: u64 = 100_000_000_000;

/// How long ends linger, in picoseconds: 16.8 ms with a timeout of 2^11 · 4.096 us, the default.
fn linger_ps(retry: Retry) -> u64 {
    ((TIMEOUTS * 4_096_000) << retry.timeout_exponent.min(31)).min(MOST_PS)
}

/// Queue pairs that answer, and what they use.
#[derive(Debug)]
struct Answering {
    _ends: Box<dyn Ends>,
    device: Device,
    /// Nobody asks any more from then on, by the provider's clock.
    until_ps: u64,
}

trait Ends: Debug + Send {}
impl<T: Debug + Send> Ends for T {}

impl Answering {
    fn is_over(&self) -> bool {
        self.device.provider().relax().now_ps() >= self.until_ps
    }
}

/// What a card keeps of connections that are given up. Whoever drops it waits until nothing is needed any more: 16.8 ms
/// at most with default settings, 100 ms with any.
#[derive(Debug, Default)]
pub struct Lingering(Mutex<Vec<Answering>>);

impl Lingering {
    /// Keeps queue pairs, and what they use, for as long as peers may ask again for acknowledgements of what came last,
    /// at `received_ps`. Queue pairs come first in `ends`, as they are dropped first. Queue pairs of before whose time
    /// is over are dropped.
    pub fn keep(&self, ends: impl Debug + Send + 'static, device: &Device, received_ps: u64, retry: Retry) {
        let until_ps = received_ps.saturating_add(linger_ps(retry));
        let answering = Answering { _ends: Box::new(ends), device: device.clone(), until_ps };
        // A panic elsewhere leaves the list as it is.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(answering);
        kept.retain(|answering| !answering.is_over());
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let kept = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for answering in kept.drain(..) {
            let relax = answering.device.provider().relax();
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
