//! Parameters of an aggregator on the DPA.

use flexcast_proto::sparse::{CacheBudget, Parameters};
use flexio::Retry;

use super::{BLOCK_STEP, WHAT, completions, slot_bytes};
use crate::error::{Error, Result};
use crate::op::units::USABLE_UNITS;

/// Deepest queue of a card.
const MAX_COMPLETIONS: u64 = 1 << 15;

/// How an aggregator uses the DPA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatorOptions {
    /// Execution units of the threads, one for each: units that nothing else on the card uses.
    pub units: Vec<u32>,
    /// Shards of each thread, among which others go on while one waits for messages.
    pub coroutines: u32,
    /// Completions after which a thread lets others run. Default 4096.
    pub budget: u32,
    /// Cache of the DPA in bytes that all slots have to fit in. Default 1.5 MB, as published.
    pub cache_bytes: u64,
    /// Patience of the connections with a silent worker.
    pub retry: Retry,
    /// Traffic class. Default 0.
    pub class: u8,
}

impl Default for AggregatorOptions {
    /// One thread with two shards.
    fn default() -> Self {
        let config = crate::Config::default();
        Self {
            units: vec![1],
            coroutines: 2,
            budget: config.budget,
            cache_bytes: config.cache_bytes,
            retry: Retry { timeout_exponent: config.retry_exponent, count: 7 },
            class: config.data_class,
        }
    }
}

impl AggregatorOptions {
    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.units.len() as u32 * self.coroutines
    }

    pub(super) fn check(&self, parameters: Parameters) -> Result<()> {
        let argument = |reason| Err(Error::Argument { operation: WHAT, reason });
        let (threads, limit) = (self.units.len() as u64, u64::from(USABLE_UNITS) - 1);
        if threads == 0 || threads > limit {
            return argument(format!("{threads} threads: name 1 to {limit} execution units"));
        }
        if let Some(unit) = self.units.iter().find(|unit| !(1..USABLE_UNITS).contains(*unit)) {
            return argument(format!("execution unit {unit}: choose from 1 to {}", USABLE_UNITS - 1));
        }
        if self.coroutines == 0 || self.budget == 0 {
            let what = if self.coroutines == 0 { "coroutines" } else { "completions per activation" };
            return argument(format!("0 {what}: give each thread 1 or more"));
        }
        let block = parameters.block_bytes();
        if !block.is_multiple_of(BLOCK_STEP) {
            let next = block.next_multiple_of(BLOCK_STEP);
            return argument(format!(
                "blocks of {block} bytes: the firmware adds {BLOCK_STEP} at a time, so choose a multiple of that, such \
                 as {next}"
            ));
        }
        let completions = completions(parameters, self.coroutines);
        if completions > MAX_COMPLETIONS {
            return Err(Error::Budget {
                what: "entries of a thread's completion queue",
                needed: completions,
                limit: MAX_COMPLETIONS,
                next: "use fewer coroutines, or fewer workers",
            });
        }
        let budget = CacheBudget { cache_bytes: self.cache_bytes, instances: self.shards() };
        budget
            .check(parameters)
            .or_else(|error| argument(format!("{error}; or raise cache_bytes to accept slower loads")))?;
        let slots =
            u64::from(slot_bytes(parameters)) * (u64::from(parameters.workers()) + 2) * u64::from(self.coroutines);
        if slots / 8 > u64::from(u32::MAX) {
            return argument(format!("{slots} bytes of slots of a thread: use fewer coroutines, or smaller messages"));
        }
        Ok(())
    }
}
