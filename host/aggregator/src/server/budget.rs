//! Memory for sums, which all jobs of a process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flexcast_proto::sparse::{CacheBudget, Parameters};

/// How much there is, and how much is taken.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
    taken: AtomicU64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes, taken: AtomicU64::new(0) })
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// A job's share, which goes back when it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    /// Nothing yet.
    pub(super) const fn new(budget: Arc<Budget>) -> Self {
        Self { budget, bytes: 0 }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn give_back(&mut self) {
        self.budget.taken.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }

    /// Takes at least as much as so many shards need, all workers' receive slots included.
    ///
    /// # Errors
    /// There is not so much: what would fit.
    pub(super) fn raise(&mut self, parameters: Parameters, shards: u32) -> Result<(), String> {
        let needed = parameters.aggregator_bytes() * u64::from(shards);
        if needed <= self.bytes {
            return Ok(());
        }
        let Budget { bytes: all, taken } = &*self.budget;
        let mut found = taken.load(Ordering::Relaxed);
        loop {
            let of_others = found.saturating_sub(self.bytes);
            let left = all.saturating_sub(of_others);
            CacheBudget { cache_bytes: left, instances: shards }.check(parameters).map_err(|error| {
                format!(
                    "it has {all} bytes of memory for sums, of which other jobs have taken {of_others}, and {error}"
                )
            })?;
            match taken.compare_exchange_weak(found, of_others + needed, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => found = now,
            }
        }
        self.bytes = needed;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_what_is_given_back_is_there_again() {
        let parameters = Parameters::new(2, 1024, 16, 4).unwrap();
        let one = parameters.aggregator_bytes();
        let budget = Budget::new(3 * one);
        let (mut first, mut second) = (Reservation::new(Arc::clone(&budget)), Reservation::new(Arc::clone(&budget)));
        assert_eq!(first.raise(parameters, 2), Ok(()));
        assert_eq!(first.raise(parameters, 1), Ok(()), "it has as much");
        assert_eq!((first.bytes(), budget.taken()), (2 * one, 2 * one));
        let text = second.raise(parameters, 2).unwrap_err();
        assert!(text.contains(&format!(
            "{} bytes of memory for sums, of which other jobs have taken {}",
            3 * one,
            2 * one
        )));
        assert!(text.contains("1 instances"), "{text}");
        assert_eq!(second.raise(parameters, 1), Ok(()));
        drop(first);
        assert_eq!(second.raise(parameters, 3), Ok(()));
        drop(second);
        assert_eq!(budget.taken(), 0);
    }
}
