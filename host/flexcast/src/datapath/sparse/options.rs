//! Parameters of a sparse AllReduce.

use flexcast_proto::sparse::{ParameterError, Parameters, Shards};

use crate::reduce::{Operator, Reduction};

/// Shards of one aggregator, among which others go on while one waits for the messages of an iteration.
const MOST_SHARDS: u64 = 3;

/// Parameters of a sparse AllReduce ([`Communicator::sparse_all_reduce`](crate::Communicator::sparse_all_reduce)), alike on all ranks.
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
    pub(crate) fn check(self, bytes: u64, ranks: u32, reduction: Reduction) -> std::result::Result<(), String> {
        Self::check_operator(reduction)?;
        let parameters = self.parameters(ranks, reduction).map_err(|error| error.to_string())?;
        let shards = Shards::new(bytes, parameters, ranks, 1, self.shards_of_each(bytes, ranks));
        shards.map(drop).map_err(|error| error.to_string())
    }

    /// Whether zero is what changes nothing, or blocks of zeros are taken for that.
    fn check_operator(reduction: Reduction) -> std::result::Result<(), String> {
        use Operator::{BitOr, BitXor, LogicalOr, LogicalXor, Max, Min, Sum};
        match reduction.operator() {
            Sum | Min | Max | BitOr | BitXor | LogicalOr | LogicalXor => Ok(()),
            other => Err(format!(
                "{other} of blocks that are zero is not what the others have: use sum, min, max, or an operator of bits or truth values that zero does not change"
            )),
        }
    }

    pub(crate) fn parameters(self, ranks: u32, reduction: Reduction) -> Result<Parameters, ParameterError> {
        Parameters::new(ranks, self.block_bytes, self.blocks_per_message, reduction.element_bytes())
    }

    /// One number for what ranks compare.
    pub(crate) const fn code(self) -> u32 {
        self.block_bytes << 8 | self.blocks_per_message & 0xff
    }

    /// Shards of each aggregator: as many as have two messages of a dense array, and not too many.
    pub(super) fn shards_of_each(self, bytes: u64, ranks: u32) -> u32 {
        let message = u64::from(self.block_bytes) * u64::from(self.blocks_per_message);
        bytes.div_ceil((2 * message).max(1) * u64::from(ranks)).clamp(1, MOST_SHARDS) as u32
    }
}
