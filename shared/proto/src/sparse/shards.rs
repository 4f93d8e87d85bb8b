//! Shards of an array: an even split over aggregators, threads and coroutines. Each block is in one shard, the shards
//! follow one another in the array, and none has more than one block more than another.

use core::ops::Range;

use thiserror::Error;

use super::parameters::{MAX_BLOCKS, ParameterError, Parameters};

/// How an array is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shards {
    bytes: u64,
    block_bytes: u32,
    aggregators: u32,
    threads: u32,
    coroutines: u32,
}

/// One part of the array, which one coroutine of each worker and one of an aggregator sum up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    first_byte: u64,
    bytes: u64,
    block_bytes: u32,
    blocks: u32,
}

/// A split that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShardError {
    /// No aggregators, threads or coroutines, or too many shards.
    #[error("{aggregators} aggregators with {threads} threads of {coroutines} coroutines: give 1 or more of each, and \
        at most {most} in all", most = u32::MAX)]
    Count {
        /// Aggregators.
        aggregators: u32,
        /// Threads of each aggregator.
        threads: u32,
        /// Coroutines of each thread.
        coroutines: u32,
    },
    /// A block of the shard that has the most has no index.
    #[error(transparent)]
    Blocks(#[from] ParameterError),
}

impl Shards {
    /// Splits an array of `bytes` bytes over the coroutines of the threads of the aggregators.
    ///
    /// # Errors
    /// There is no shard, or one has too many blocks.
    pub const fn new(
        bytes: u64,
        parameters: Parameters,
        aggregators: u32,
        threads: u32,
        coroutines: u32,
    ) -> Result<Self, ShardError> {
        let count = (aggregators as u128) * (threads as u128) * (coroutines as u128);
        if count == 0 || count > u32::MAX as u128 {
            return Err(ShardError::Count { aggregators, threads, coroutines });
        }
        let shards = Self { bytes, block_bytes: parameters.block_bytes(), aggregators, threads, coroutines };
        let most = shards.blocks().div_ceil(shards.count() as u64);
        if most > MAX_BLOCKS {
            return Err(ShardError::Blocks(ParameterError::Blocks { blocks: most }));
        }
        Ok(shards)
    }

    /// Number of shards.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.aggregators * self.threads * self.coroutines
    }

    /// Blocks of the array.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.bytes.div_ceil(self.block_bytes as u64)
    }

    /// Number of the shard of a coroutine: aggregator by aggregator, and thread by thread. None beyond the last.
    #[must_use]
    pub const fn number(&self, aggregator: u32, thread: u32, coroutine: u32) -> Option<u32> {
        if aggregator >= self.aggregators || thread >= self.threads || coroutine >= self.coroutines {
            return None;
        }
        Some((aggregator * self.threads + thread) * self.coroutines + coroutine)
    }

    /// The shard with this number; none beyond the last.
    #[must_use]
    pub const fn get(&self, number: u32) -> Option<Shard> {
        if number >= self.count() {
            return None;
        }
        let (least, more) = (self.blocks() / self.count() as u64, self.blocks() % self.count() as u64);
        let number = number as u64;
        let first = number * least + if number < more { number } else { more };
        let blocks = least + (number < more) as u64;
        let block_bytes = self.block_bytes as u64;
        let first_byte = if first * block_bytes < self.bytes { first * block_bytes } else { self.bytes };
        let rest = self.bytes - first_byte;
        let bytes = if blocks * block_bytes < rest { blocks * block_bytes } else { rest };
        Some(Shard { first_byte, bytes, block_bytes: self.block_bytes, blocks: blocks as u32 })
    }

    /// All shards in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Shard> + '_ {
        (0..self.count()).map_while(|number| self.get(number))
    }
}

impl Shard {
    /// Number of blocks; their indices run from 0.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Its bytes of the array.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.first_byte..self.first_byte + self.bytes
    }

    /// Bytes of the array that a block is, empty beyond the last. The last block of the array may be short; it travels
    /// with zeros behind it, and only its own bytes are written back.
    #[must_use]
    pub const fn block(&self, index: u32) -> Range<u64> {
        let end = self.first_byte + self.bytes;
        let first = self.first_byte.saturating_add(index as u64 * self.block_bytes as u64);
        let after = first.saturating_add(self.block_bytes as u64);
        let (first, after) = (if first < end { first } else { end }, if after < end { after } else { end });
        first..after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn parameters() -> Parameters {
        Parameters::new(2, 256, 4, 4).unwrap()
    }

    fn split(bytes: u64, aggregators: u32, threads: u32, coroutines: u32) -> Shards {
        Shards::new(bytes, parameters(), aggregators, threads, coroutines).unwrap()
    }

    /// Each byte is in one block of one shard, in order, and the shards are even.
    fn check(shards: Shards) {
        let all: Vec<Shard> = shards.iter().collect();
        assert_eq!(all.len(), shards.count() as usize);
        let mut at = 0;
        for shard in &all {
            assert_eq!(shard.range().start, at);
            for index in 0..shard.blocks() {
                let block = shard.block(index);
                assert_eq!(block.start, at);
                assert!(!block.is_empty() && (block.end - block.start == 256 || block.end == shards.bytes));
                at = block.end;
            }
            assert_eq!(shard.range().end, at);
            assert!(shard.block(shard.blocks()).is_empty() && shard.block(u32::MAX).is_empty());
        }
        assert_eq!(at, shards.bytes);
        let sizes = all.iter().map(Shard::blocks);
        assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{all:?}");
    }

    #[test]
    fn no_bytes_one_byte_and_primes() {
        for bytes in [0, 1, 2, 255, 256, 257, 7919, 104_729] {
            for (aggregators, threads, coroutines) in [(1, 1, 1), (2, 3, 5), (7, 1, 2), (1, 13, 31)] {
                check(split(bytes, aggregators, threads, coroutines));
            }
        }
    }

    #[test]
    fn coroutines_have_consecutive_numbers() {
        let shards = split(1 << 20, 3, 2, 4);
        let mut expected = 0;
        for aggregator in 0..3 {
            for thread in 0..2 {
                for coroutine in 0..4 {
                    assert_eq!(shards.number(aggregator, thread, coroutine), Some(expected));
                    expected += 1;
                }
            }
        }
        assert_eq!((shards.number(3, 0, 0), shards.number(0, 2, 0), shards.number(0, 0, 4)), (None, None, None));
        assert_eq!(shards.get(24), None);
    }

    #[test]
    fn what_cannot_be_split_is_refused() {
        for (aggregators, threads, coroutines) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (u32::MAX, 2, 1)] {
            let error = ShardError::Count { aggregators, threads, coroutines };
            assert_eq!(Shards::new(1, parameters(), aggregators, threads, coroutines), Err(error));
        }
        let blocks = MAX_BLOCKS + 1;
        let error = ShardError::Blocks(ParameterError::Blocks { blocks });
        assert_eq!(Shards::new(blocks * 256, parameters(), 1, 1, 1), Err(error));
        assert_eq!(split(blocks * 256, 2, 1, 1).get(0).unwrap().blocks(), 1 << 31);
        assert_eq!(split(MAX_BLOCKS * 256, 1, 1, 1).get(0).unwrap().blocks(), u32::MAX - 1);
        assert!(Shards::new(u64::MAX, parameters(), 1, 1, 1).is_err());
    }

    proptest! {
        #[test]
        fn any_split_is_even_and_whole(
            bytes in 0u64..100_000,
            aggregators in 1u32..9,
            threads in 1u32..9,
            coroutines in 1u32..9,
        ) {
            check(split(bytes, aggregators, threads, coroutines));
        }
    }
}
