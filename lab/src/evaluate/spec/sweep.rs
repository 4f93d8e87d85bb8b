//! Sweeps of an experiment: the runs that it is made of.

use std::path::PathBuf;

use serde::Deserialize;

use crate::reference::{Transport, transport};
use crate::sim::algorithm::AlgorithmName;
use crate::sim::params::Operation;

fn one<T: From<u8>>() -> Vec<T> {
    vec![T::from(1)]
}

fn mtu() -> Vec<u64> {
    vec![4096]
}

const fn once() -> u32 {
    1
}

/// Every combination of some parameters of a run between two cards: of `flexcast reference`, the published kernels, or
/// of `flexcast tput`, a Broadcast by the library.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSweep {
    /// Transports: `uc` is RDMA Writes to the one receiver, `ud` datagrams, by the library to a multicast group.
    #[serde(deserialize_with = "transport::list")]
    pub transports: Vec<Transport>,
    /// Receive threads, and as many subgroups.
    pub threads: Vec<u32>,
    /// Bytes of a chunk.
    #[serde(default = "mtu")]
    pub chunk_bytes: Vec<u64>,
    /// Bytes to send.
    #[serde(default)]
    pub bytes: Vec<u64>,
    /// Chunks for each thread to receive: further runs.
    #[serde(default)]
    pub chunks_per_thread: Vec<u64>,
    /// Receives of each subgroup, with UD as many staging slots; 0: as many as the subgroup has chunks, if the cache
    /// has room for so many, as without any. The published kernels take none: they have a receive for each chunk.
    #[serde(default)]
    pub slots: Vec<u32>,
    /// Seeds of the bytes; of each one run.
    #[serde(default = "one")]
    pub seeds: Vec<u64>,
    /// Repetitions that are not counted.
    #[serde(default = "once")]
    pub warm_up: u32,
    /// Repetitions that are.
    #[serde(default = "once")]
    pub iterations: u32,
}

/// One combination of a [`PairSweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Transport.
    pub transport: Transport,
    /// Receive threads.
    pub threads: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Receives of each subgroup; 0: as many as are useful.
    pub slots: u32,
    /// Bytes to send.
    pub bytes: u64,
    /// Seed of the bytes.
    pub seed: u64,
    /// Repetitions that are not counted.
    pub warm_up: u32,
    /// Repetitions that are.
    pub iterations: u32,
}

impl PairSweep {
    /// All combinations.
    #[must_use]
    pub fn pairs(&self) -> Vec<Pair> {
        let Self { warm_up, iterations, .. } = *self;
        let slots = if self.slots.is_empty() { &[0] } else { self.slots.as_slice() };
        let mut pairs = Vec::new();
        for &transport in &self.transports {
            for &chunk_bytes in &self.chunk_bytes {
                for &slots in slots {
                    for &threads in &self.threads {
                        for bytes in self.amounts(threads, chunk_bytes) {
                            let pair = |&seed| Pair {
                                transport,
                                threads,
                                chunk_bytes,
                                slots,
                                bytes,
                                seed,
                                warm_up,
                                iterations,
                            };
                            pairs.extend(self.seeds.iter().map(pair));
                        }
                    }
                }
            }
        }
        pairs
    }

    /// The bytes of each run: those given, and as many as give each thread so many chunks.
    fn amounts(&self, threads: u32, chunk_bytes: u64) -> impl Iterator<Item = u64> {
        let each = self.chunks_per_thread.iter().map(move |chunks| chunks * u64::from(threads) * chunk_bytes);
        self.bytes.iter().copied().chain(each)
    }
}

fn none<T: From<u8>>() -> Vec<T> {
    vec![T::from(0)]
}

/// Every combination of some parameters of `flexcast sim`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimSweep {
    /// What the ranks do.
    pub operation: Operation,
    /// How, by the names of `--algorithm`.
    pub algorithms: Vec<AlgorithmName>,
    /// Radices of k-nomial trees; the default one if there is none.
    #[serde(default)]
    pub radix: Vec<u32>,
    /// Bytes that trees and chains pass on at a time; the default if there are none.
    #[serde(default)]
    pub segment_bytes: Vec<u64>,
    /// Segments of a contribution for a pipelined ring; the default if there are none.
    #[serde(default)]
    pub segments: Vec<u32>,
    /// Ranks.
    pub ranks: Vec<u32>,
    /// Bytes that each contributes, or the root's.
    pub bytes: Vec<u64>,
    /// Topology by name; a switch as large as needed if there is none.
    pub topology: Option<String>,
    /// Subgroups, and as many receive threads.
    #[serde(default = "once")]
    pub subgroups: u32,
    /// Roots that multicast at the same time.
    #[serde(default = "once")]
    pub chains: u32,
    /// Bytes up to which multicast operations ride on the messages of the barrier instead.
    #[serde(default)]
    pub eager: u32,
    /// Frames lost on the way to each card, in percent.
    #[serde(default = "none")]
    pub loss_percent: Vec<f64>,
    /// Fault script: noise, by seed. Its path is relative to the folder of the experiments.
    pub faults: Option<PathBuf>,
    /// Skew between the posts of ranks: each posts at a time of its own, drawn from 0 to so many microseconds.
    #[serde(default = "none")]
    pub skew_us: Vec<u64>,
    /// Seeds of bytes, losses, skew and noise; of each one run.
    #[serde(default = "one")]
    pub seeds: Vec<u64>,
    /// Operations that are not counted.
    #[serde(default = "once")]
    pub warm_up: u32,
    /// Operations that are.
    #[serde(default = "once")]
    pub iterations: u32,
}

/// Allgather and Reduce-Scatter at the same time on the emulated fabric alone: two rings, and multicast with sums in
/// the network.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConcurrentSweep {
    /// Ranks.
    pub ranks: Vec<u32>,
    /// Bytes of each rank's share.
    pub bytes: u64,
    /// Bytes of a chunk.
    #[serde(default = "chunk")]
    pub chunk_bytes: u64,
    /// Topology by name; a switch as large as needed if there is none.
    pub topology: Option<String>,
}

const fn chunk() -> u64 {
    4096
}

/// An algorithm compared with the fastest of others for the same run, which may run with several parameters: columns
/// `fastest` and `over_fastest` of its rows, or those of a family, such as `fastest_tree` and `over_fastest_tree`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fastest {
    /// Column of the time.
    pub of: String,
    /// The algorithm.
    pub algorithm: String,
    /// The others.
    pub among: Vec<String>,
    /// Name of the family that the others are, at the end of the columns' names.
    pub family: Option<String>,
    /// A column of which the quotient is added, too, of both runs: `rate_over_fastest`.
    pub rate: Option<String>,
}

/// Statistics over runs of an experiment that differ in their seed alone: a row of each group.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The column whose values they are of; `rank_gbit_s` takes the throughput of every rank in every operation of
    /// every run.
    pub of: String,
    /// Columns by whose values runs are grouped.
    pub by: Vec<String>,
}

/// Blocks for one host, written by all sources at once or read a few at a time, with a concurrent flow, on the
/// emulated fabric alone.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncastSweep {
    /// Sources.
    pub sources: Vec<u32>,
    /// Bytes of a block.
    pub bytes: Vec<u64>,
    /// Blocks that are read at once; 0: all sources write.
    pub reads: Vec<u32>,
}

/// How well a line fits one column over another: a row of each group with `r_squared`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// The column that should lie on a line.
    pub of: String,
    /// Over which one.
    pub x: String,
    /// Columns that are the same in a group.
    pub same: Vec<String>,
}
