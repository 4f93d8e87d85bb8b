//! Report of a simulated sparse AllReduce: time, bounds and counts.

use flexcast_proto::sparse::{AggregatorError, ParameterError, ShardError, WorkerError};
use serde::Serialize;
use thiserror::Error;

use super::bounds::Bounds;

/// A simulation that cannot be made, or does not end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SparseError {
    /// Block, message or workers.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    /// A split that cannot be.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// A worker refuses an event.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// An aggregator refuses a message.
    #[error(transparent)]
    Aggregator(#[from] AggregatorError),
    /// A parameter.
    #[error("{what}: {value}, {limit}")]
    Parameter {
        /// What it is.
        what: &'static str,
        /// What was given.
        value: String,
        /// What may be given.
        limit: &'static str,
    },
    /// Nothing happens any more.
    #[error(
        "worker {worker} waits in iteration {iteration} of shard {shard}, and nothing is under way: the machines \
         contradict the model"
    )]
    Stuck {
        /// Which worker.
        worker: u32,
        /// In which shard.
        shard: u32,
        /// In which iteration.
        iteration: u32,
    },
}

/// What was counted, over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SparseCounts {
    /// Shards.
    pub shards: u64,
    /// Blocks that are not zero at some worker.
    pub union_blocks: u64,
    /// Iterations with blocks: ⌈U/d⌉ of each shard.
    pub iterations: u64,
    /// Messages of workers: iterations and one for each shard, of each worker.
    pub messages: u64,
    /// Answers to workers: as many.
    pub answers: u64,
    /// Blocks in messages.
    pub blocks_sent: u64,
    /// Sums in answers.
    pub sums_sent: u64,
    /// Payload of messages and answers that went over ports.
    pub payload_bytes: u64,
    /// The same with headers.
    pub wire_bytes: u64,
    /// Bytes of arrays that workers have read.
    pub scanned_bytes: u64,
    /// Bytes of sums that they have written.
    pub stored_bytes: u64,
    /// Traffic of the aggregators' memories.
    pub aggregator_memory_bytes: u64,
    /// Events of the simulation.
    pub events: u64,
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SparseReport {
    /// From the call of all workers until the last sum is in the last array, in virtual picoseconds.
    pub time_ps: u64,
    /// Bytes of the array.
    pub bytes: u64,
    /// Lower bounds.
    pub bounds: Bounds,
    /// Counts.
    pub counts: SparseCounts,
}

impl SparseReport {
    /// Array over time: what a dense AllReduce would have to reach.
    #[must_use]
    pub fn effective_gbit_s(&self) -> f64 {
        self.bytes as f64 * 8000.0 / self.time_ps.max(1) as f64
    }

    /// Time over the larger bound.
    #[must_use]
    pub fn over_bound(&self) -> f64 {
        self.time_ps as f64 / self.bounds.least_ps().max(1) as f64
    }
}
