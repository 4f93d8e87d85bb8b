//! Parameters of a sparse AllReduce.

use flexcast_proto::sparse::{ParameterError, Parameters, Shard, Shards};
use flexcast_proto::{Algorithm, Kind, Summary};

use flexcast_reduce::{Operator, Reduction};

/// Shards of one aggregator, among which others go on while one waits for the messages of an iteration.
const MOST_SHARDS: u64 = 3;

/// Parameters of a sparse AllReduce, alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseOptions {
    /// Bytes of a block: one that is zero is neither sent nor summed. A multiple of 4 and of an element, 256 to 16384.
    pub block_bytes: u32,
    /// Most blocks of one message, 1 to 32.
    pub blocks_per_message: u32,
}

impl Default for SparseOptions {
    /// 1 KiB, of which 32 in a message.
    fn default() -> Self {
        Self { block_bytes: 1 << 10, blocks_per_message: 32 }
    }
}

impl SparseOptions {
    /// Whether they are in their ranges for a reduction's elements.
    ///
    /// # Errors
    /// Which one is not: value, limit and next step.
    pub fn check_ranges(self, reduction: Reduction) -> std::result::Result<(), String> {
        self.parameters(1, reduction).map(drop).map_err(|error| error.to_string())
    }

    /// Whether an operation can be.
    ///
    /// # Errors
    /// As [`SparseOptions::split`].
    pub fn check(self, bytes: u64, ranks: u32, reduction: Reduction) -> std::result::Result<(), String> {
        self.split((bytes, reduction), ranks, ranks).map(drop)
    }

    /// How an operation is split over aggregators.
    ///
    /// # Errors
    /// Options, reduction or length cannot be: value, limit and next step.
    pub fn split(
        self,
        (bytes, reduction): (u64, Reduction),
        workers: u32,
        aggregators: u32,
    ) -> std::result::Result<Split, String> {
        Self::check_operator(reduction)?;
        let parameters = self.parameters(workers, reduction).map_err(|error| error.to_string())?;
        let each = self.shards_of_each(bytes, aggregators);
        let shards = Shards::new(bytes, parameters, aggregators, 1, each).map_err(|error| error.to_string())?;
        Ok(Split { parameters, reduction, shards, each, is_empty: bytes == 0 })
    }

    /// Whether an AllReduce has the same result: zero changes nothing. (But for the sign of a zero: where all other
    /// ranks have a block of zeros, a sum that is not made keeps -0.0.)
    #[must_use]
    pub const fn is_dense_too(reduction: Reduction) -> bool {
        matches!(reduction.operator(), Operator::Sum | Operator::BitOr | Operator::BitXor)
    }

    /// Whether zero is what changes nothing, or blocks of zeros are taken for that.
    fn check_operator(reduction: Reduction) -> std::result::Result<(), String> {
        use Operator::{BitOr, BitXor, LogicalOr, LogicalXor, Max, Min, Sum};
        match reduction.operator() {
            Sum | Min | Max | BitOr | BitXor | LogicalOr | LogicalXor => Ok(()),
            other => Err(format!(
                "{other} of blocks that are zero is not what the others have: use sum, min, max, or an operator of \
                 bits or truth values that zero does not change"
            )),
        }
    }

    /// Sizes that follow from them.
    ///
    /// # Errors
    /// They are out of their ranges.
    pub fn parameters(self, ranks: u32, reduction: Reduction) -> Result<Parameters, ParameterError> {
        Parameters::new(ranks, self.block_bytes, self.blocks_per_message, reduction.element_bytes())
    }

    /// What ranks and aggregators compare. [`Split::of_summary`] is the inverse.
    #[must_use]
    pub const fn summary(self, bytes: u64, reduction: Reduction) -> Summary {
        let options = self.block_bytes << 8 | self.blocks_per_message & 0xff;
        Summary::between_pairs(Kind::Allreduce, options, bytes, reduction.code(), Algorithm::Sparse)
    }

    /// Shards of each aggregator: as many as have two messages of a dense array, up to 3. In a communicator each rank
    /// is one.
    #[must_use]
    pub fn shards_of_each(self, bytes: u64, aggregators: u32) -> u32 {
        let message = u64::from(self.block_bytes) * u64::from(self.blocks_per_message);
        bytes.div_ceil((2 * message).max(1) * u64::from(aggregators.max(1))).clamp(1, MOST_SHARDS) as u32
    }
}

/// How an operation is split: alike for all workers and aggregators.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Sizes that follow from the options.
    pub parameters: Parameters,
    /// How elements are combined.
    pub reduction: Reduction,
    shards: Shards,
    /// Shards of each aggregator.
    pub each: u32,
    is_empty: bool,
}

impl Split {
    /// What a rank has called, as far as it is a sparse AllReduce.
    ///
    /// # Errors
    /// Another operation, or one that cannot be.
    pub fn of_summary(summary: &Summary, workers: u32, aggregators: u32) -> Result<Self, String> {
        if (summary.kind, summary.algorithm) != (Kind::Allreduce, Algorithm::Sparse) {
            let (kind, algorithm) = (summary.kind.name(), summary.algorithm);
            return Err(format!("it sums up sparse AllReduce alone, not {kind} by {algorithm}"));
        }
        let unknown = |code| format!("there is no reduction {code:#x}: install one release on all computers");
        let reduction = Reduction::from_code(summary.chunk_bytes).map_err(unknown)?;
        if summary.amount == 0 || !summary.amount.is_multiple_of(reduction.element_bytes().into()) {
            return Err(format!("{} bytes are no whole elements of {}", summary.amount, reduction.data_type()));
        }
        let options = SparseOptions { block_bytes: summary.root >> 8, blocks_per_message: summary.root & 0xff };
        options.split((summary.amount, reduction), workers, aggregators)
    }

    /// All shards with their numbers and their aggregators'.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Shard)> + '_ {
        let each = self.each;
        let shards = self.shards.iter().filter(|_| !self.is_empty);
        shards.enumerate().map(move |(number, shard)| (number as u32 / each, shard))
    }

    /// Those of one aggregator.
    pub fn of(&self, aggregator: Option<u32>) -> impl Iterator<Item = (u32, Shard)> + '_ {
        self.iter().filter(move |(of, _)| Some(*of) == aggregator)
    }
}
