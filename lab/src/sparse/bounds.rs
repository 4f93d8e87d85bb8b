//! Lower bounds of a sparse AllReduce: no run is faster, whatever processors take.

use flexcast_proto::sparse::Shards;
use serde::Serialize;

use super::params::{ArraysIn, SparseParams};
use super::pattern::Pattern;
use crate::flow::time_ps;

/// Least times in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// Blocks through the fullest port in its fuller direction. Headers and indices are left out.
    pub network_ps: u64,
    /// Each worker reads its array once, at the theoretical rate of its memory.
    pub memory_ps: u64,
}

impl Bounds {
    /// The bounds for these patterns.
    #[must_use]
    pub fn of(params: &SparseParams, pattern: &Pattern, shards: &Shards) -> Self {
        let nodes = params.nodes().len();
        let (mut sent, mut received) = (vec![0; nodes], vec![0; nodes]);
        let block_bytes = u64::from(params.block_bytes);
        let each = params.threads * params.coroutines;
        for (aggregator, &place) in (0..).zip(&params.places()) {
            let first_of = |aggregator: u32| {
                let shard = shards.get(aggregator * each);
                shard.map_or(pattern.blocks(), |shard| shard.range().start.div_ceil(block_bytes))
            };
            let range = first_of(aggregator)..first_of(aggregator + 1);
            let union = pattern.union(range.clone()) * block_bytes;
            for worker in (0..params.workers).filter(|worker| *worker != place) {
                let own = pattern.count(worker, range.clone()) * block_bytes;
                sent[worker as usize] += own;
                received[place as usize] += own;
                sent[place as usize] += union;
                received[worker as usize] += union;
            }
        }
        let memory_bytes_per_s = match (params.arrays, params.machine.device) {
            (ArraysIn::Device | ArraysIn::Staged, Some(device)) => device.memory_bytes_per_s,
            _ => params.machine.host.memory_bytes_per_s,
        };
        let fullest = sent.into_iter().chain(received).max().unwrap_or(0);
        Self {
            network_ps: time_ps(fullest, params.machine.network.port_bytes_per_s),
            memory_ps: time_ps(params.bytes, memory_bytes_per_s),
        }
    }

    /// The larger one.
    #[must_use]
    pub fn least_ps(&self) -> u64 {
        self.network_ps.max(self.memory_ps)
    }
}
