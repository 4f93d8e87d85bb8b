//! Parameters of sparse AllReduce, checked, and the sizes that follow from them.

use thiserror::Error;

use crate::ranks::MAX_RANKS;

/// Most blocks of a message: each has a bit in the 32-bit immediate.
pub const MAX_BLOCKS_PER_MESSAGE: u32 = 32;
/// Blocks of a message unless said otherwise.
pub const DEFAULT_BLOCKS_PER_MESSAGE: u32 = 16;
/// Smallest block in bytes.
pub const MIN_BLOCK_BYTES: u32 = 256;
/// Largest block in bytes.
pub const MAX_BLOCK_BYTES: u32 = 16 << 10;
/// Bytes of a block unless said otherwise.
pub const DEFAULT_BLOCK_BYTES: u32 = 1 << 10;
/// Bytes of a block's index.
pub const INDEX_BYTES: u32 = 4;
/// Most blocks of a shard: one index is the sentinel, and one iteration more than there are blocks has a number.
pub const MAX_BLOCKS: u64 = u32::MAX as u64 - 1;

/// What all workers and aggregators of a sparse AllReduce agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    workers: u32,
    block_bytes: u32,
    blocks_per_message: u32,
}

/// Parameters that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParameterError {
    /// Too few or too many workers.
    #[error("{workers} workers: a sparse AllReduce has 1 to {MAX_RANKS}, so split the group")]
    Workers {
        /// What was given.
        workers: u32,
    },
    /// Too few or too many blocks in a message.
    #[error(
        "{blocks} blocks per message: choose 1 to {MAX_BLOCKS_PER_MESSAGE}, since each has a bit in the 32-bit \
         immediate"
    )]
    BlocksPerMessage {
        /// What was given.
        blocks: u32,
    },
    /// A block that is too small or too large.
    #[error("blocks of {bytes} bytes: choose {MIN_BLOCK_BYTES} to {MAX_BLOCK_BYTES}")]
    BlockBytes {
        /// What was given.
        bytes: u32,
    },
    /// Indices lie behind the blocks, and would not be aligned.
    #[error(
        "blocks of {bytes} bytes: choose a multiple of {INDEX_BYTES}, since indices of {INDEX_BYTES} bytes follow them"
    )]
    Alignment {
        /// What was given.
        bytes: u32,
    },
    /// An element would lie in two blocks, or there are no elements.
    #[error(
        "blocks of {bytes} bytes with elements of {element} bytes: choose a whole number of elements, at least one"
    )]
    Element {
        /// Bytes of a block.
        bytes: u32,
        /// Bytes of an element.
        element: u32,
    },
    /// A shard with more blocks than indices.
    #[error(
        "{blocks} blocks in one shard, but an index distinguishes at most {MAX_BLOCKS}: use larger blocks or more \
         shards"
    )]
    Blocks {
        /// What was given.
        blocks: u64,
    },
    /// A message that does not fit a datagram.
    #[error(
        "messages of {bytes} bytes, but a datagram has at most {most}: use at most {blocks} blocks per message, or \
         smaller blocks"
    )]
    Datagram {
        /// Bytes of the longest message.
        bytes: u32,
        /// Most bytes of a datagram.
        most: u32,
        /// Blocks per message that would fit; 0 if not even one does.
        blocks: u32,
    },
}

impl Parameters {
    /// Parameters for arrays of elements of `element_bytes` bytes.
    ///
    /// # Errors
    /// One of them is out of its range, or a block does not hold a whole number of elements.
    pub const fn new(
        workers: u32,
        block_bytes: u32,
        blocks_per_message: u32,
        element_bytes: u32,
    ) -> Result<Self, ParameterError> {
        if workers == 0 || workers > MAX_RANKS {
            return Err(ParameterError::Workers { workers });
        }
        if blocks_per_message == 0 || blocks_per_message > MAX_BLOCKS_PER_MESSAGE {
            return Err(ParameterError::BlocksPerMessage { blocks: blocks_per_message });
        }
        if block_bytes < MIN_BLOCK_BYTES || block_bytes > MAX_BLOCK_BYTES {
            return Err(ParameterError::BlockBytes { bytes: block_bytes });
        }
        if !block_bytes.is_multiple_of(INDEX_BYTES) {
            return Err(ParameterError::Alignment { bytes: block_bytes });
        }
        if element_bytes == 0 || !block_bytes.is_multiple_of(element_bytes) {
            return Err(ParameterError::Element { bytes: block_bytes, element: element_bytes });
        }
        Ok(Self { workers, block_bytes, blocks_per_message })
    }

    /// Number of workers, n.
    #[must_use]
    pub const fn workers(self) -> u32 {
        self.workers
    }

    /// Bytes of a block, b.
    #[must_use]
    pub const fn block_bytes(self) -> u32 {
        self.block_bytes
    }

    /// Most blocks of a message, d.
    #[must_use]
    pub const fn blocks_per_message(self) -> u32 {
        self.blocks_per_message
    }

    /// Bytes of the indices of a message: always d of them.
    #[must_use]
    pub const fn index_bytes(self) -> u32 {
        self.blocks_per_message * INDEX_BYTES
    }

    /// Bytes of a message with so many blocks, without a header. None has more than d.
    #[must_use]
    pub const fn message_bytes(self, blocks: u32) -> u32 {
        let most = self.blocks_per_message;
        (if blocks < most { blocks } else { most }) * self.block_bytes + self.index_bytes()
    }

    /// Bytes of a receive or transmit slot: the longest message.
    #[must_use]
    pub const fn slot_bytes(self) -> u32 {
        self.message_bytes(self.blocks_per_message)
    }

    /// Bytes of the memory in which an aggregator keeps one shard: a receive slot for each worker, and two transmit
    /// slots.
    #[must_use]
    pub const fn aggregator_bytes(self) -> u64 {
        (self.workers as u64 + 2) * self.slot_bytes() as u64
    }

    /// Bytes of a worker's ring of 2d blocks, the only memory for blocks that it registers.
    #[must_use]
    pub const fn ring_bytes(self) -> u32 {
        2 * self.blocks_per_message * self.block_bytes
    }

    /// Checks that the longest message fits a datagram behind a header.
    ///
    /// # Errors
    /// It does not; the error states how many blocks would fit.
    pub const fn check_datagram(self, header_bytes: u32, most: u32) -> Result<(), ParameterError> {
        let bytes = self.slot_bytes() + header_bytes;
        if bytes <= most {
            return Ok(());
        }
        let blocks = most.saturating_sub(header_bytes) / (self.block_bytes + INDEX_BYTES);
        Err(ParameterError::Datagram { bytes, most, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn sizes_at_the_defaults() {
        let parameters = Parameters::new(6, DEFAULT_BLOCK_BYTES, DEFAULT_BLOCKS_PER_MESSAGE, 4).unwrap();
        assert_eq!(parameters.slot_bytes(), (16 << 10) + 64);
        assert_eq!(parameters.message_bytes(0), 64);
        assert_eq!(parameters.message_bytes(3), 3 * 1024 + 64);
        assert_eq!(parameters.message_bytes(u32::MAX), parameters.slot_bytes());
        assert_eq!(parameters.aggregator_bytes(), 8 * ((16 << 10) + 64));
        assert_eq!(parameters.ring_bytes(), 32 << 10);
    }

    #[test]
    fn bounds_are_what_the_errors_say() {
        let new = Parameters::new;
        for (workers, block, blocks, element) in [(1, 256, 1, 1), (1024, 16384, 32, 8), (3, 300, 7, 4)] {
            assert!(new(workers, block, blocks, element).is_ok(), "{workers} {block} {blocks} {element}");
        }
        for (result, error) in [
            (new(0, 1024, 16, 4), ParameterError::Workers { workers: 0 }),
            (new(1025, 1024, 16, 4), ParameterError::Workers { workers: 1025 }),
            (new(2, 1024, 0, 4), ParameterError::BlocksPerMessage { blocks: 0 }),
            (new(2, 1024, 33, 4), ParameterError::BlocksPerMessage { blocks: 33 }),
            (new(2, 255, 16, 1), ParameterError::BlockBytes { bytes: 255 }),
            (new(2, 16385, 16, 1), ParameterError::BlockBytes { bytes: 16385 }),
            (new(2, u32::MAX, 16, 1), ParameterError::BlockBytes { bytes: u32::MAX }),
            (new(2, 258, 16, 2), ParameterError::Alignment { bytes: 258 }),
            (new(2, 1024, 16, 0), ParameterError::Element { bytes: 1024, element: 0 }),
            (new(2, 1024, 16, 3), ParameterError::Element { bytes: 1024, element: 3 }),
        ] {
            assert_eq!(result, Err(error));
        }
        assert_eq!(
            new(2, 1024, 33, 4).unwrap_err().to_string(),
            "33 blocks per message: choose 1 to 32, since each has a bit in the 32-bit immediate"
        );
    }

    #[test]
    fn a_message_fits_a_datagram_or_says_how_many_blocks_would() {
        let defaults = Parameters::new(2, 1024, 16, 4).unwrap();
        assert_eq!(defaults.check_datagram(32, 65_507), Ok(()));
        let large = Parameters::new(2, 4096, 16, 4).unwrap();
        let error = ParameterError::Datagram { bytes: 65_632, most: 65_507, blocks: 15 };
        assert_eq!(large.check_datagram(32, 65_507), Err(error));
        assert_eq!(Parameters::new(2, 4096, 15, 4).unwrap().check_datagram(32, 65_507), Ok(()));
        let none = Parameters::new(2, 4096, 1, 4).unwrap().check_datagram(32, 1472);
        assert_eq!(none, Err(ParameterError::Datagram { bytes: 4132, most: 1472, blocks: 0 }));
    }
}
