//! Sweeps of simulated sparse AllReduces ([`crate::sparse`]).

use serde::{Deserialize, Serialize};

use crate::sparse::{ArraysIn, Host, Layout, PatternName};

crate::options::named!(SumsBy);

/// How arrays are summed, by the names of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SumsBy {
    /// Sparse AllReduce through aggregators.
    Sparse,
    /// Fused blocks through the same aggregators.
    Fusion,
    /// A ring in segments, as NCCL has it. It sends all blocks.
    Ring,
    /// A ring step by step with one thread that adds, as MPI libraries have it.
    RingStepwise,
}

fn sparse() -> Vec<SumsBy> {
    vec![SumsBy::Sparse]
}

fn servers() -> Vec<Layout> {
    vec![Layout::Cpu]
}

fn dense() -> Vec<f64> {
    vec![0.0]
}

fn default_of<T: Default>() -> Vec<T> {
    vec![T::default()]
}

fn block_bytes() -> Vec<u32> {
    vec![flexcast_proto::sparse::DEFAULT_BLOCK_BYTES]
}

fn blocks_per_message() -> Vec<u32> {
    vec![flexcast_proto::sparse::DEFAULT_BLOCKS_PER_MESSAGE]
}

fn four() -> Vec<u32> {
    vec![4]
}

fn on() -> Vec<bool> {
    vec![true]
}

/// Every combination of some parameters of a simulated sparse AllReduce. Of a ring there is one run for each host,
/// place of arrays, number of workers and size.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseSweep {
    /// Servers.
    #[serde(default)]
    pub host: Host,
    /// Where arrays are.
    #[serde(default = "default_of")]
    pub arrays: Vec<ArraysIn>,
    /// How arrays are summed.
    #[serde(default = "sparse")]
    pub by: Vec<SumsBy>,
    /// Workers.
    pub workers: Vec<u32>,
    /// Aggregators.
    #[serde(default = "servers")]
    pub aggregators: Vec<Layout>,
    /// Size of the array in MiB.
    pub mib: Vec<u64>,
    /// Blocks that are zero at a worker, in percent.
    #[serde(default = "dense")]
    pub sparsity_percent: Vec<f64>,
    /// Which.
    #[serde(default = "default_of")]
    pub pattern: Vec<PatternName>,
    /// Bytes of a block.
    #[serde(default = "block_bytes")]
    pub block_bytes: Vec<u32>,
    /// Most blocks of a message.
    #[serde(default = "blocks_per_message")]
    pub blocks_per_message: Vec<u32>,
    /// Coroutines of each of the eight threads of an aggregator.
    #[serde(default = "four")]
    pub coroutines: Vec<u32>,
    /// Whether cards reach the last-level cache of their aggregator.
    #[serde(default = "on")]
    pub dca: Vec<bool>,
}

/// Every combination of some parameters of `flexcast sim --op sparse-allreduce --aggregators dpa`, of dense arrays.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DpaSumsSweep {
    /// Workers, each with a card whose DPA adds.
    pub workers: Vec<u32>,
    /// Shards of each DPA, each with a thread.
    pub shards: Vec<u32>,
    /// Most blocks of a message.
    pub blocks_per_message: Vec<u32>,
    /// Messages with blocks of each shard and worker.
    pub messages: u32,
}
