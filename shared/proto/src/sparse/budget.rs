//! Cache that aggregators need: how many workers keep all slots of all shards in it.

use thiserror::Error;

use super::parameters::{MAX_BLOCKS_PER_MESSAGE, Parameters};

/// Transmit slots of a shard, in addition to a receive slot for each worker.
const TRANSMIT_SLOTS: u64 = 2;

/// A last-level cache and what is to stay in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheBudget {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Shards that are summed concurrently: threads times coroutines.
    pub instances: u32,
}

/// More than the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{workers} workers and {instances} instances need {bytes} bytes of cache, which has {cache_bytes}: use at most \
     {fitting_workers} workers, {fitting_instances} instances or {fitting_blocks} blocks per message (0: not by this \
     alone)"
)]
pub struct BudgetError {
    /// Workers that were given.
    pub workers: u32,
    /// Instances that were given.
    pub instances: u32,
    /// What they need.
    pub bytes: u64,
    /// What there is.
    pub cache_bytes: u64,
    /// Workers that would fit, all else as it is.
    pub fitting_workers: u64,
    /// Instances that would fit, all else as it is.
    pub fitting_instances: u64,
    /// Blocks per message that would fit, all else as it is.
    pub fitting_blocks: u32,
}

impl CacheBudget {
    /// Most workers by the published formula, which counts blocks alone: ⌊cache / (instances · d · b)⌋ - 2.
    #[must_use]
    pub const fn most_workers_published(self, parameters: Parameters) -> u64 {
        let slot_bytes = parameters.blocks_per_message() as u64 * parameters.block_bytes() as u64;
        self.most_workers_of(slot_bytes)
    }

    /// Most workers, with the indices of each slot counted.
    #[must_use]
    pub const fn most_workers(self, parameters: Parameters) -> u64 {
        self.most_workers_of(parameters.slot_bytes() as u64)
    }

    const fn most_workers_of(self, slot_bytes: u64) -> u64 {
        let instances = if self.instances == 0 { 1 } else { self.instances as u64 };
        (self.cache_bytes / (instances * slot_bytes)).saturating_sub(TRANSMIT_SLOTS)
    }

    /// Checks that the slots of all instances fit, indices included.
    ///
    /// # Errors
    /// They do not; the error states what would.
    pub const fn check(self, parameters: Parameters) -> Result<(), BudgetError> {
        let one = parameters.aggregator_bytes();
        let bytes = one * self.instances as u64;
        if bytes <= self.cache_bytes {
            return Ok(());
        }
        let slots = (parameters.workers() as u64 + TRANSMIT_SLOTS) * self.instances as u64;
        let block = parameters.slot_bytes() / parameters.blocks_per_message();
        let fitting_blocks = self.cache_bytes / (slots * block as u64);
        Err(BudgetError {
            workers: parameters.workers(),
            instances: self.instances,
            bytes,
            cache_bytes: self.cache_bytes,
            fitting_workers: self.most_workers(parameters),
            fitting_instances: self.cache_bytes / one,
            fitting_blocks: if fitting_blocks < MAX_BLOCKS_PER_MESSAGE as u64 {
                fitting_blocks as u32
            } else {
                MAX_BLOCKS_PER_MESSAGE
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    const CACHE_BYTES: u64 = 6 << 20;

    #[test]
    fn published_figures_and_what_indices_cost() {
        let defaults = Parameters::new(1, 1024, 16, 4).unwrap();
        for (instances, published, whole) in [(1, 382, 380), (8, 46, 45), (16, 22, 21), (32, 10, 9)] {
            let budget = CacheBudget { cache_bytes: CACHE_BYTES, instances };
            assert_eq!(budget.most_workers_published(defaults), published, "{instances} instances");
            assert_eq!(budget.most_workers(defaults), whole, "{instances} instances");
        }
        let none = CacheBudget { cache_bytes: 1 << 10, instances: 0 };
        assert_eq!((none.most_workers_published(defaults), none.most_workers(defaults)), (0, 0));
    }

    #[test]
    fn a_refusal_names_what_would_fit() {
        let budget = CacheBudget { cache_bytes: CACHE_BYTES, instances: 8 };
        let error = budget.check(Parameters::new(46, 1024, 16, 4).unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "46 workers and 8 instances need 6316032 bytes of cache, which has 6291456: use at most 45 workers, 7 \
             instances or 15 blocks per message (0: not by this alone)"
        );
        assert_eq!(budget.check(Parameters::new(45, 1024, 16, 4).unwrap()), Ok(()));
    }

    proptest! {
        #[test]
        fn what_would_fit_fits_and_one_more_does_not(
            workers in 1u32..=1024,
            block in 64u32..=4096,
            blocks in 1u32..=32,
            instances in 1u32..=64,
            cache_bytes in 1u64..=64 << 20,
        ) {
            let new = |workers, blocks| Parameters::new(workers, block * 4, blocks, 4).unwrap();
            let budget = CacheBudget { cache_bytes, instances };
            let fits = |workers, blocks, instances| {
                new(workers, blocks).aggregator_bytes() * instances <= cache_bytes
            };
            let Err(error) = budget.check(new(workers, blocks)) else {
                prop_assert!(fits(workers, blocks, u64::from(instances)));
                return Ok(());
            };
            prop_assert!(!fits(workers, blocks, u64::from(instances)));
            let fitting = error.fitting_workers as u32;
            prop_assert!(fitting < workers && !fits(fitting + 1, blocks, u64::from(instances)));
            prop_assert!(fitting == 0 || fits(fitting, blocks, u64::from(instances)));
            prop_assert!(error.fitting_blocks < blocks && !fits(workers, error.fitting_blocks + 1, u64::from(instances)));
            prop_assert!(error.fitting_blocks == 0 || fits(workers, error.fitting_blocks, u64::from(instances)));
            prop_assert!(error.fitting_instances < u64::from(instances) && !fits(workers, blocks, error.fitting_instances + 1));
            prop_assert!(error.fitting_instances == 0 || fits(workers, blocks, error.fitting_instances));
        }
    }
}
