//! Closed forms of an experiment.

use serde::Deserialize;

/// A closed form and what it is evaluated for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "form", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Computed {
    /// Bytes over links of an Allgather, over those of multicast, in the smallest tree of such switches.
    AllgatherTraffic {
        /// Ranks.
        ranks: Vec<u32>,
        /// Ports of a switch.
        radix: u32,
    },
    /// Bytes at switch ports of operations of ranks on a tree, over those of one multicast from each root.
    PortTraffic {
        /// Ranks.
        ranks: u32,
        /// Leaf switches.
        leaves: u32,
        /// Bytes that each rank contributes.
        bytes: u64,
        /// Algorithms, by the names of `--algorithm`.
        algorithms: Vec<String>,
    },
    /// Allgather and Reduce-Scatter at the same time.
    Concurrent {
        /// Ranks.
        ranks: Vec<u32>,
        /// Bytes of each rank's share.
        bytes: u64,
        /// Line rate.
        gbit_per_s: u64,
    },
    /// What sequence numbers of so many bits allow.
    Bitmap {
        /// Bits.
        psn_bits: Vec<u32>,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// Least times of a sparse AllReduce through as many aggregators as workers, on hosts of their own.
    SparseBounds {
        /// Workers.
        workers: Vec<u32>,
        /// Size of the array in MiB.
        mib: u64,
        /// Blocks that are zero at a worker, in percent.
        sparsity_percent: Vec<f64>,
        /// Line rate.
        gbit_per_s: f64,
        /// Rate of a worker's memory.
        memory_gb_per_s: f64,
    },
    /// Threads that a link needs, by what one thread takes for a completion.
    ThreadsForLink {
        /// Line rates.
        gbit_per_s: Vec<u32>,
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Handlers: name, cycles and instructions of a completion.
        handlers: Vec<Handler>,
    },
}

/// A handler by its published costs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handler {
    /// Transport.
    pub transport: String,
    /// Cycles of a completion.
    pub cycles: f64,
    /// Instructions of it.
    pub instructions: f64,
}
