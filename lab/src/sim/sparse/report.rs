//! Report of a simulated sparse AllReduce.

use std::fmt;

use serde::Serialize;

use super::options::{Aggregators, SparseSim};
use crate::accesses::Accesses;
use crate::sim::traffic::Traffic;
use crate::sparse::{AggregatorKind, PatternName};

/// What a simulated sparse AllReduce was like. Times are virtual; they and what has crossed the network are means of
/// the operations that are counted.
#[derive(Clone, Debug, Serialize)]
pub struct SparseSimReport {
    /// `emulated`.
    pub kind: &'static str,
    /// Cost model behind the times.
    pub model: String,
    /// Workers.
    pub workers: u32,
    /// Aggregators: on processors of workers, of servers, on Arm cores, and on the DPA of workers' cards.
    pub aggregators: [u32; 4],
    /// Whether adding took virtual time.
    pub processor_times: bool,
    /// Bytes of the array.
    pub bytes: u64,
    /// Part of the blocks that is zero at a worker, as asked for.
    pub sparsity: f64,
    /// How the zeros belong together.
    pub pattern: PatternName,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Most blocks of a message.
    pub blocks_per_message: u32,
    /// Shards of all aggregators together.
    pub shards: u32,
    /// Blocks of the array.
    pub blocks: u64,
    /// Those that some worker has.
    pub union_blocks: u64,
    /// Blocks that are not zero, of all workers together.
    pub contributed_blocks: u64,
    /// Operations counted.
    pub operations: u32,
    /// Time from the beginning to the last worker's sums, in microseconds.
    pub virtual_time_us: f64,
    /// The shortest.
    pub best_virtual_time_us: f64,
    /// Messages that each worker has sent in an operation.
    pub messages: u64,
    /// By the closed form: ⌈U/d⌉ + 1 for each shard.
    pub expected_messages: u64,
    /// Iterations of the longest shard by the closed form, ⌈U/d⌉.
    pub iterations_of_longest_shard: u64,
    /// Registered memory for blocks of a worker, in bytes; none of communicators.
    pub worker_memory_bytes: Option<u64>,
    /// Registered memory of an aggregator, in bytes; none of communicators.
    pub aggregator_memory_bytes: Option<u64>,
    /// What has crossed the network in an operation: payload of cards' ports.
    pub sent_bytes: f64,
    /// Computed: what a ring of the dense array sends among the workers.
    pub dense_ring_bytes: f64,
    /// All traffic of the operations that are counted.
    pub traffic: Traffic,
    /// Accesses of DPA threads during them, by the level of memory that served them; with a timing model and DPAs that
    /// add alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Accesses>,
    /// Whether every worker's sums were those of one core's loop over the contributions, to the bit.
    pub sums_ok: bool,
    /// Whether each worker's messages were as many as the closed form says.
    pub messages_ok: bool,
    /// Wall time of the operations that are counted, in seconds.
    pub wall_s: f64,
}

impl SparseSimReport {
    pub(super) fn new(params: &SparseSim, model: String) -> Self {
        let workers = f64::from(params.workers);
        let of = |kind| params.separate().iter().filter(|other| **other == kind).count() as u32;
        let all_if = |kind| if params.aggregators == kind { params.workers } else { 0 };
        let (own, dpa) = (all_if(Aggregators::Ranks), all_if(Aggregators::Dpa));
        Self {
            kind: "emulated",
            model,
            workers: params.workers,
            aggregators: [own, of(AggregatorKind::Cpu), of(AggregatorKind::Arm), dpa],
            processor_times: params.processor_times,
            bytes: params.bytes,
            sparsity: params.sparsity,
            pattern: params.pattern,
            block_bytes: params.block_bytes,
            blocks_per_message: params.blocks_per_message,
            shards: 0,
            blocks: params.blocks(),
            union_blocks: 0,
            contributed_blocks: 0,
            operations: 0,
            virtual_time_us: 0.0,
            best_virtual_time_us: f64::INFINITY,
            messages: 0,
            expected_messages: 0,
            iterations_of_longest_shard: 0,
            worker_memory_bytes: None,
            aggregator_memory_bytes: None,
            sent_bytes: 0.0,
            // Each of n workers sends 2 (n - 1) / n of it.
            dense_ring_bytes: 2.0 * (workers - 1.0) * params.bytes as f64,
            traffic: Traffic::default(),
            accesses: None,
            sums_ok: true,
            messages_ok: true,
            wall_s: 0.0,
        }
    }

    /// Bytes of lines that DPA threads loaded or stored and that L2 did not have, for each byte of blocks that came to
    /// them.
    #[must_use]
    pub fn beyond_l2_per_byte(&self) -> Option<f64> {
        let came = self.contributed_blocks * u64::from(self.block_bytes) * u64::from(self.operations);
        let [.., dpa] = self.aggregators;
        let accesses = self.accesses.as_ref().filter(|_| came > 0 && dpa > 0)?;
        Some(accesses.all.bytes_beyond_l2() as f64 / came as f64)
    }

    /// Whether all is right.
    #[must_use]
    pub const fn is_right(&self) -> bool {
        self.sums_ok && self.messages_ok
    }

    /// Takes an operation in.
    pub(super) fn add(&mut self, took_us: f64, traffic: Traffic, wall_s: f64) {
        self.operations += 1;
        let count = f64::from(self.operations);
        self.virtual_time_us += (took_us - self.virtual_time_us) / count;
        self.best_virtual_time_us = self.best_virtual_time_us.min(took_us);
        self.traffic += traffic;
        self.sent_bytes = (self.traffic.host_tx_bytes + self.traffic.host_tx_control_bytes) as f64 / count;
        self.wall_s += wall_s;
    }

    fn adders(&self) -> String {
        let [own, cpu, arm, dpa] = self.aggregators;
        if own > 0 {
            return "the workers' processors".to_owned();
        }
        if dpa > 0 {
            return "the DPA of the workers' cards".to_owned();
        }
        let one = |count: u32, what: &str| (count > 0).then(|| format!("{count} {what}"));
        let all = [one(cpu, "aggregators on servers"), one(arm, "on Arm cores of cards")];
        all.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }
}

impl fmt::Display for SparseSimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, bytes, blocks, union_blocks, block_bytes, blocks_per_message, shards, .. } = self;
        writeln!(
            f,
            "sparse AllReduce of {bytes} bytes among {workers} workers by {}: {}",
            self.adders(),
            if self.sums_ok { "every sum on every worker" } else { "WRONG SUMS" }
        )?;
        writeln!(
            f,
            "{:.1} us (emulated, cost model {}; mean of {}, best {:.1} us); {}",
            self.virtual_time_us,
            self.model,
            self.operations,
            self.best_virtual_time_us,
            match (self.processor_times, self.aggregators) {
                (true, _) => "aggregators take time to add, workers none to scan",
                (false, [_, _, arm, _]) if arm > 0 => "processors take no time, Arm cores neither",
                (false, _) => "processors take no time",
            }
        )?;
        writeln!(
            f,
            "blocks of {block_bytes} bytes: {union_blocks} of {blocks} are not zero on some worker ({} {} zeros on \
             each); {shards} shards, of which the longest takes {} iterations",
            self.sparsity, self.pattern, self.iterations_of_longest_shard
        )?;
        writeln!(
            f,
            "messages of each worker: {}, by the closed form (U/{blocks_per_message} rounded up, and 1, for each \
             shard) {}{}",
            self.messages,
            self.expected_messages,
            if self.messages_ok { "" } else { ": NOT THE SAME" }
        )?;
        if let (Some(worker), Some(aggregator)) = (self.worker_memory_bytes, self.aggregator_memory_bytes) {
            writeln!(f, "registered for blocks: {worker} bytes of each worker, {aggregator} of each aggregator")?;
        }
        if let Some(part) = self.beyond_l2_per_byte() {
            writeln!(f, "memory of DPAs beyond L2: {part:.4} bytes for each byte of blocks that came")?;
        }
        let part = if self.dense_ring_bytes > 0.0 { self.sent_bytes / self.dense_ring_bytes } else { 0.0 };
        write!(
            f,
            "{:.0} bytes sent by all cards in an operation, {part:.3} times the {:.0} of a ring of the dense array \
             (computed); {} frames lost, {} timeouts",
            self.sent_bytes, self.dense_ring_bytes, self.traffic.lost_frames, self.traffic.timeouts
        )
    }
}
