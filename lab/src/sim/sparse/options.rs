//! Options of a simulated sparse AllReduce, and what they come to.

use std::fmt;
use std::str::FromStr;

use flexcast::DatapathKind;
use flexcast::p2p::sparse::{MAX_SHARDS_OF_EACH, Settings};
use flexcast_proto::sparse::{
    DEFAULT_BLOCK_BYTES, DEFAULT_BLOCKS_PER_MESSAGE, MAX_BLOCK_BYTES, MAX_BLOCKS_PER_MESSAGE, MIN_BLOCK_BYTES,
};
use serde::{Serialize, Serializer};

use crate::options::{whole, whole_bytes};
use crate::sim::SimError;
use crate::sim::params::REDUCTION;
use crate::sparse::{AggregatorKind, PatternName};

/// Most aggregators on cards of their own.
const MOST_AGGREGATORS: usize = 256;
/// Shards of each aggregator unless said otherwise: as many coroutines as published for a thread.
const DEFAULT_SHARDS: u32 = 4;

/// A sparse AllReduce.
#[derive(Clone, Debug, Default, PartialEq, Serialize, clap::Args)]
#[command(next_help_heading = "Sparse AllReduce (--op sparse-allreduce)")]
pub struct SparseArgs {
    /// Workers, each on a card of its own [default: --ranks].
    #[arg(long, value_parser = whole::<u32>(1, flexcast_proto::MAX_RANKS), value_name = "N")]
    pub workers: Option<u32>,
    /// Who adds: the processor of every worker (ranks), the DPA of every worker's card with image `sparse` (dpa), or
    /// aggregators on cards of their own, on processors of servers (cpu:N) and on Arm cores of cards (arm:N), as in
    /// cpu:5,arm:1 [default: ranks].
    #[arg(long, value_name = "WHO")]
    pub aggregators: Option<AggregatorsText>,
    /// Part of the blocks of an array that is zero, 0 to 1 [default: 0.9].
    #[arg(long, value_parser = part, value_name = "PART")]
    pub sparsity: Option<f64>,
    /// How the zeros of workers belong together [default: identical].
    #[arg(long, value_enum, value_name = "NAME")]
    pub pattern: Option<PatternName>,
    /// Bytes of a block, a multiple of 4.
    #[arg(long, value_parser = whole_bytes::<u32>(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES), value_name = "BYTES", help = format!("Bytes of a block, a multiple of 4 [default: {DEFAULT_BLOCK_BYTES}]"))]
    pub block: Option<u32>,
    /// Most blocks of a message.
    #[arg(long, value_parser = whole::<u32>(1, MAX_BLOCKS_PER_MESSAGE), value_name = "D", help = format!("Most blocks \
        of a message [default: {DEFAULT_BLOCKS_PER_MESSAGE}]"))]
    pub blocks_per_message: Option<u32>,
    /// Shards of each aggregator that has a card of its own, or is a DPA: there each has a thread.
    #[arg(long, value_parser = whole::<u32>(1, MAX_SHARDS_OF_EACH), value_name = "N", help = format!("Shards of each \
        aggregator that has a card of its own, or is a DPA: there each has a thread [default: {DEFAULT_SHARDS}]"))]
    pub shards: Option<u32>,
    /// Bytes of a DPA's cache that all spots of its shards have to fit in, as long as nobody accepts slower loads from
    /// memory [default: 1.5 MB].
    #[arg(long, value_parser = whole_bytes::<u64>(1, u64::MAX), value_name = "BYTES")]
    pub dpa_cache: Option<u64>,
    /// Add in the order of workers.
    #[arg(long)]
    pub in_rank_order: bool,
    /// Aggregators with cards of their own take virtual time for what they add: 200 ns a message and 12 GB/s on a
    /// server, 400 ns and 5 GB/s on Arm cores, chosen figures of no publication. Otherwise processors take none.
    #[arg(long)]
    pub processor_times: bool,
}

fn part(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number.filter(|part| (0.0..=1.0).contains(part)).ok_or_else(|| "give a number from 0 to 1".to_owned())
}

/// Who adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aggregators {
    /// Every worker's own processor.
    Ranks,
    /// The DPA of every worker's card.
    Dpa,
    /// Those with cards of their own, in order.
    Separate(Vec<AggregatorKind>),
}

/// The same as an option has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatorsText {
    text: String,
    aggregators: Aggregators,
}

impl FromStr for AggregatorsText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || format!("{text:?}: give ranks, or numbers of aggregators as in cpu:5,arm:1");
        if text == "ranks" {
            return Ok(Self { text: text.to_owned(), aggregators: Aggregators::Ranks });
        }
        if text == "dpa" {
            return Ok(Self { text: text.to_owned(), aggregators: Aggregators::Dpa });
        }
        if text.split([',', ':']).any(|word| word == "dpa") {
            return Err(format!("{text}: the DPA of every worker's card adds, or none does: give dpa alone"));
        }
        let mut all = Vec::new();
        for word in text.split(',') {
            let (kind, count) = word.split_once(':').ok_or_else(usage)?;
            let kind = match kind {
                "cpu" => AggregatorKind::Cpu,
                "arm" => AggregatorKind::Arm,
                _ => return Err(usage()),
            };
            let count: usize = count.parse().map_err(|_| usage())?;
            if all.len() + count > MOST_AGGREGATORS {
                return Err(format!("{text}: at most {MOST_AGGREGATORS} aggregators have cards of their own"));
            }
            all.extend(std::iter::repeat_n(kind, count));
        }
        if all.is_empty() {
            return Err(usage());
        }
        Ok(Self { text: text.to_owned(), aggregators: Aggregators::Separate(all) })
    }
}

impl fmt::Display for AggregatorsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for AggregatorsText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// Parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseSim {
    /// Workers.
    pub workers: u32,
    /// Who adds.
    pub aggregators: Aggregators,
    /// Of communicators, where workers add themselves.
    pub datapath: DatapathKind,
    /// Bytes of the array.
    pub bytes: u64,
    /// Part of its blocks that is zero.
    pub sparsity: f64,
    /// Which.
    pub pattern: PatternName,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Most blocks of a message.
    pub blocks_per_message: u32,
    /// Shards of each aggregator, if it has a card of its own.
    pub shards_of_each: u32,
    /// Bytes of a DPA's cache that all spots have to fit in; none: the library's.
    pub dpa_cache: Option<u64>,
    /// Whether blocks are added in the order of workers.
    pub in_rank_order: bool,
    /// Whether adding takes virtual time.
    pub processor_times: bool,
    /// Operations that are not counted, and those that are.
    pub turns: (u32, u32),
    /// Of patterns and contents.
    pub seed: u64,
}

impl SparseArgs {
    /// The parameters, checked.
    ///
    /// # Errors
    /// [`SimError::Parameter`] for the first thing that cannot be.
    pub(crate) fn resolve(
        &self,
        ranks: u32,
        bytes: u64,
        turns: (u32, u32),
        (datapath, seed): (DatapathKind, u64),
    ) -> Result<SparseSim, SimError> {
        let refuse = |what, reason: String| Err(SimError::Parameter { what, reason });
        let aggregators = self.aggregators.as_ref().map_or(Aggregators::Ranks, |given| given.aggregators.clone());
        let params = SparseSim {
            workers: self.workers.unwrap_or(ranks),
            aggregators,
            datapath,
            bytes,
            sparsity: self.sparsity.unwrap_or(0.9),
            pattern: self.pattern.unwrap_or_default(),
            block_bytes: self.block.unwrap_or(DEFAULT_BLOCK_BYTES),
            blocks_per_message: self.blocks_per_message.unwrap_or(DEFAULT_BLOCKS_PER_MESSAGE),
            shards_of_each: self.shards.unwrap_or(DEFAULT_SHARDS),
            dpa_cache: self.dpa_cache,
            in_rank_order: self.in_rank_order,
            processor_times: self.processor_times,
            turns,
            seed,
        };
        let element = u64::from(REDUCTION.element_bytes());
        if !bytes.is_multiple_of(element) {
            let reason = format!("{bytes} bytes are no whole number of 32-bit integers: give a multiple of {element}");
            return refuse("--bytes", reason);
        }
        if turns.1 == 0 {
            return refuse("--iterations", "0 operations: give at least 1".to_owned());
        }
        if let Aggregators::Ranks = params.aggregators {
            if self.processor_times {
                let reason = "a communicator's work takes none: give --aggregators cpu:N or arm:N".to_owned();
                return refuse("--processor-times", reason);
            }
            if self.shards.is_some() {
                return refuse("--shards", "a communicator has its own: give --aggregators cpu:N or arm:N".to_owned());
            }
        } else if datapath != DatapathKind::Dpa {
            return refuse("--datapath", "only communicators have one: give --aggregators ranks".to_owned());
        }
        if self.dpa_cache.is_some() && params.aggregators != Aggregators::Dpa {
            return refuse("--dpa-cache", "no DPA adds: give --aggregators dpa".to_owned());
        }
        if let Aggregators::Dpa = params.aggregators {
            if self.processor_times {
                let reason = "instructions of a DPA take their time by the machine's model: give --model m2".to_owned();
                return refuse("--processor-times", reason);
            }
            if self.in_rank_order {
                let reason = "sums of integers do not depend on the order, and a DPA adds nothing else: leave it out";
                return refuse("--in-rank-order", reason.to_owned());
            }
        }
        let refused =
            |error: flexcast::p2p::sparse::Error| SimError::Parameter { what: "--block", reason: error.to_string() };
        params.settings().map_err(refused)?;
        // Contributions, results, and one to compare.
        let needed = bytes.saturating_mul(2 * u64::from(params.workers) + 1);
        let value = format!("{bytes} with {} workers", params.workers);
        crate::memory::require("--bytes", value, needed, "give fewer bytes or workers")?;
        Ok(params)
    }
}

impl SparseSim {
    /// Aggregators with cards of their own.
    #[must_use]
    pub fn separate(&self) -> &[AggregatorKind] {
        match &self.aggregators {
            Aggregators::Ranks | Aggregators::Dpa => &[],
            Aggregators::Separate(all) => all,
        }
    }

    /// Cards that it takes; a machine has two at least.
    #[must_use]
    pub fn cards(&self) -> usize {
        (self.workers as usize + self.separate().len()).max(2)
    }

    /// The image that cards run, if they run firmware.
    #[must_use]
    pub fn image(&self) -> Option<&'static str> {
        match self.aggregators {
            Aggregators::Ranks if self.datapath == DatapathKind::Dpa => Some("allgather"),
            Aggregators::Dpa => Some("sparse"),
            Aggregators::Ranks | Aggregators::Separate(_) => None,
        }
    }

    /// Bytes of the patterns' blocks in all.
    pub(super) const fn blocks(&self) -> u64 {
        self.bytes.div_ceil(self.block_bytes as u64)
    }

    /// Number of aggregators.
    pub(super) fn aggregator_count(&self) -> u32 {
        match &self.aggregators {
            Aggregators::Ranks | Aggregators::Dpa => self.workers,
            Aggregators::Separate(all) => all.len() as u32,
        }
    }

    /// Connections of workers with aggregators that have cards of their own.
    pub(super) fn settings(&self) -> flexcast::p2p::sparse::Result<Settings> {
        let Self { workers, shards_of_each, block_bytes, blocks_per_message, .. } = *self;
        Settings::new(workers, self.aggregator_count(), shards_of_each, block_bytes, blocks_per_message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregators_are_read_or_refused_with_what_may_be_given() {
        let of = |text: &str| text.parse::<AggregatorsText>();
        assert_eq!(of("ranks").unwrap().aggregators, Aggregators::Ranks);
        assert_eq!(of("dpa").unwrap().aggregators, Aggregators::Dpa);
        let mixed = of("cpu:2,arm:1").unwrap();
        let expected = vec![AggregatorKind::Cpu, AggregatorKind::Cpu, AggregatorKind::Arm];
        assert_eq!(
            (mixed.aggregators.clone(), mixed.to_string()),
            (Aggregators::Separate(expected), "cpu:2,arm:1".to_owned())
        );
        for (text, word) in [
            ("dpa:2", "give dpa alone"),
            ("cpu:1,dpa:1", "give dpa alone"),
            ("", "cpu:5,arm:1"),
            ("cpu", "cpu:5,arm:1"),
            ("cpu:0", "cpu:5,arm:1"),
            ("gpu:1", "cpu:5,arm:1"),
            ("cpu:-1", "cpu:5,arm:1"),
            ("cpu:200,arm:57", "at most 256"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let text =
            |args: SparseArgs, datapath, bytes| args.resolve(4, bytes, (0, 1), (datapath, 1)).unwrap_err().to_string();
        let default = SparseArgs::default();
        assert!(text(default.clone(), DatapathKind::Dpa, 1001).contains("multiple of 4"));
        assert!(text(SparseArgs { processor_times: true, ..default.clone() }, DatapathKind::Dpa, 4).contains("cpu:N"));
        assert!(text(SparseArgs { shards: Some(2), ..default.clone() }, DatapathKind::Dpa, 4).contains("cpu:N"));
        let separate = SparseArgs { aggregators: Some("cpu:1".parse().unwrap()), ..default.clone() };
        assert!(text(separate, DatapathKind::Verbs, 4).contains("--aggregators ranks"));
        let cache = SparseArgs { dpa_cache: Some(1), ..default.clone() };
        assert!(text(cache, DatapathKind::Dpa, 4).contains("--aggregators dpa"));
        let dpa = SparseArgs { aggregators: Some("dpa".parse().unwrap()), ..default.clone() };
        assert!(text(SparseArgs { processor_times: true, ..dpa.clone() }, DatapathKind::Dpa, 4).contains("--model m2"));
        assert!(text(SparseArgs { in_rank_order: true, ..dpa.clone() }, DatapathKind::Dpa, 4).contains("leave it out"));
        assert!(text(dpa, DatapathKind::Verbs, 4).contains("--aggregators ranks"));
        assert!(text(SparseArgs { block: Some(258), ..default }, DatapathKind::Dpa, 4).contains("258"));
    }
}
