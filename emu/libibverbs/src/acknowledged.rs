//! Events that a program has taken, and must acknowledge before their object may go.
//!
//! Manual pages ibv_get_cq_event(3) and ibv_get_async_event(3): destroying a completion queue or queue pair waits until
//! all events of it are acknowledged, which may be done by several threads at once.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::errno::{Errno, Result};

/// A wait for acknowledgements is reported once it has lasted so long.
const REPORT_AFTER: Duration = Duration::from_secs(3);

/// Events of one kind of one object.
#[derive(Debug, Default)]
pub struct Acknowledged {
    counts: Mutex<Counts>,
    changed: Condvar,
}

/// Both modulo 2^32.
#[derive(Debug, Default)]
struct Counts {
    taken: u32,
    acknowledged: u32,
    /// The object is being destroyed: no event of it is given any more.
    closed: bool,
}

impl Counts {
    /// Events that are still to be acknowledged; negative if more were acknowledged than taken.
    fn left(&self) -> i32 {
        self.taken.wrapping_sub(self.acknowledged).cast_signed()
    }
}

impl Acknowledged {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program takes an event; false if it must not, because the object is being destroyed.
    pub fn take(&self) -> bool {
        let mut counts = self.lock();
        if !counts.closed {
            counts.taken = counts.taken.wrapping_add(1);
        }
        !counts.closed
    }

    /// The program acknowledges events. `shown` is the number that it sees in the object's structure.
    ///
    /// # Errors
    /// EINVAL for more events than were taken. They count, as they do in rdma-core.
    pub fn acknowledge(&self, events: u32, shown: &AtomicU32) -> Result<()> {
        let mut counts = self.lock();
        counts.acknowledged = counts.acknowledged.wrapping_add(events);
        shown.store(counts.acknowledged, Ordering::Relaxed);
        self.changed.notify_all();
        match counts.left() {
            0.. => Ok(()),
            excess => Err(Errno::invalid(format!(
                "{} more events are acknowledged than were taken: on a card, destroying their object waits for ever",
                excess.unsigned_abs()
            ))),
        }
    }

    /// Gives no event any more, and waits until those that were taken are acknowledged: as long as that takes, as the
    /// manual pages ask for. What is waited for is reported after a few seconds; `object` names it with the call that
    /// acknowledges.
    pub fn close(&self, call: &str, object: &dyn fmt::Display) {
        let mut counts = self.lock();
        counts.closed = true;
        let mut reported = false;
        while counts.left() > 0 {
            let waited = self.changed.wait_timeout(counts, REPORT_AFTER).unwrap_or_else(PoisonError::into_inner);
            counts = waited.0;
            if waited.1.timed_out() && !reported && counts.left() > 0 {
                reported = true;
                let (left, seconds) = (counts.left(), REPORT_AFTER.as_secs());
                // The lock is free while the line is written.
                drop(counts);
                tracing::warn!("{call}: has waited {seconds} s for the acknowledgement of {left} events of {object}");
                counts = self.lock();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_may_acknowledge_at_once_and_the_object_goes_after_the_last() {
        const THREADS: u32 = 2;
        const EVENTS: u32 = 5_000;
        let (events, shown) = (Acknowledged::default(), AtomicU32::new(0));
        assert!((0..THREADS * EVENTS).all(|_| events.take()));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..EVENTS).for_each(|_| events.acknowledge(1, &shown).unwrap()));
            }
            events.close("ibv_destroy_cq", &"a completion queue");
            assert_eq!(shown.load(Ordering::Relaxed), THREADS * EVENTS, "after the last acknowledgement");
        });
        assert!(!events.take(), "an object that is being destroyed has no events");
    }

    #[test]
    fn more_acknowledgements_than_events_are_an_error_and_do_not_hang() {
        let (events, shown) = (Acknowledged::default(), AtomicU32::new(0));
        assert!(events.take());
        let error = events.acknowledge(3, &shown).unwrap_err();
        assert!(error.reason.starts_with("2 more events are acknowledged than were taken"), "{}", error.reason);
        assert_eq!(shown.load(Ordering::Relaxed), 3);
        events.close("ibv_destroy_cq", &"a completion queue");
    }

    #[test]
    fn counts_wrap() {
        let (events, shown) = (Acknowledged::default(), AtomicU32::new(0));
        *events.lock() = Counts { taken: u32::MAX, acknowledged: u32::MAX, closed: false };
        assert!(events.take() && events.take());
        assert_eq!(events.lock().left(), 2);
        events.acknowledge(2, &shown).unwrap();
        assert_eq!((events.lock().left(), shown.load(Ordering::Relaxed)), (0, 1));
    }
}
