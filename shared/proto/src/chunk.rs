//! Cutting a buffer into chunks and chunks into contiguous runs, one run per subgroup.

use thiserror::Error;

/// A buffer cut into equal chunks; only the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunking {
    bytes: u64,
    chunk_bytes: u32,
}

/// One chunk's place in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of its first byte.
    pub offset: u64,
    /// Its length in bytes, at least 1.
    pub bytes: u32,
}

/// The run of chunks that one of `count` subgroups carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subgroup {
    /// Number of the subgroup, below `count`.
    pub index: u32,
    /// Number of subgroups, at least 1.
    pub count: u32,
}

/// A contiguous run of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First chunk of the run.
    pub first_chunk: u64,
    /// Number of chunks; may be 0.
    pub chunks: u64,
    /// Offset of the run's first byte in the buffer.
    pub offset: u64,
    /// Bytes of the run.
    pub bytes: u64,
    /// Bytes of the run's last chunk; 0 for an empty run.
    pub last_chunk_bytes: u32,
}

/// A cut that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChunkError {
    /// A chunk holds at least one byte.
    #[error("chunk size 0: choose at least 1 byte")]
    ZeroChunk,
    /// Subgroup number out of range.
    #[error("subgroup {index} of {count}: numbers run from 0 to count - 1 and count is at least 1")]
    Subgroup {
        /// What was given.
        index: u32,
        /// Number of subgroups.
        count: u32,
    },
}

impl Chunking {
    /// Cuts `bytes` bytes into chunks of `chunk_bytes`. A buffer of 0 bytes has no chunks.
    pub const fn new(bytes: u64, chunk_bytes: u32) -> Result<Self, ChunkError> {
        if chunk_bytes == 0 {
            return Err(ChunkError::ZeroChunk);
        }
        Ok(Self { bytes, chunk_bytes })
    }

    /// Bytes of the buffer.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Bytes of every chunk but the last.
    #[must_use]
    pub const fn chunk_bytes(self) -> u32 {
        self.chunk_bytes
    }

    /// Number of chunks.
    #[must_use]
    pub const fn chunks(self) -> u64 {
        self.bytes.div_ceil(self.chunk_bytes as u64)
    }

    /// Bytes of the last chunk; 0 if there is none.
    #[must_use]
    pub const fn last_chunk_bytes(self) -> u32 {
        if self.bytes == 0 { 0 } else { ((self.bytes - 1) % self.chunk_bytes as u64) as u32 + 1 }
    }

    /// Chunk number `index`; none beyond the end.
    #[must_use]
    pub const fn chunk(self, index: u64) -> Option<Chunk> {
        let chunks = self.chunks();
        if index >= chunks {
            return None;
        }
        let bytes = if index + 1 == chunks { self.last_chunk_bytes() } else { self.chunk_bytes };
        Some(Chunk { offset: index * self.chunk_bytes as u64, bytes })
    }

    /// The run of `subgroup`: the first `chunks mod count` subgroups get one chunk more than the rest.
    pub const fn block(self, subgroup: Subgroup) -> Result<Block, ChunkError> {
        let Subgroup { index, count } = subgroup;
        if index >= count {
            return Err(ChunkError::Subgroup { index, count });
        }
        let (index, count) = (index as u64, count as u64);
        let all = self.chunks();
        let (share, extra) = (all / count, all % count);
        let longer = if index < extra { index } else { extra };
        let first_chunk = share * index + longer;
        let chunks = share + (index < extra) as u64;
        let offset = first_chunk * self.chunk_bytes as u64;
        if chunks == 0 {
            return Ok(Block { first_chunk, chunks, offset: self.bytes, bytes: 0, last_chunk_bytes: 0 });
        }
        let last_chunk_bytes = if first_chunk + chunks == all { self.last_chunk_bytes() } else { self.chunk_bytes };
        let bytes = (chunks - 1) * self.chunk_bytes as u64 + last_chunk_bytes as u64;
        Ok(Block { first_chunk, chunks, offset, bytes, last_chunk_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn awkward_sizes() {
        for (bytes, chunks, last) in
            [(0, 0, 0), (1, 1, 1), (4095, 1, 4095), (4096, 1, 4096), (4097, 2, 1), (1_000_003, 245, 579)]
        {
            let cut = Chunking::new(bytes, 4096).unwrap();
            assert_eq!((cut.chunks(), cut.last_chunk_bytes()), (chunks, last), "{bytes} bytes");
            assert_eq!(cut.chunk(chunks), None);
        }
        assert_eq!(Chunking::new(1, 0), Err(ChunkError::ZeroChunk));
        assert_eq!(Chunking::new(u64::MAX, 1).unwrap().chunks(), u64::MAX);
    }

    #[test]
    fn every_split_up_to_100_chunks_and_16_subgroups() {
        for chunks in 0..=if cfg!(miri) { 9u64 } else { 100 } {
            let cut = Chunking::new(chunks * 8 - u64::from(chunks > 0) * 3, 8).unwrap();
            for count in 1..=16 {
                let blocks: Vec<Block> =
                    (0..count).map(|index| cut.block(Subgroup { index, count }).unwrap()).collect();
                let mut next = 0;
                let mut bytes = 0;
                for block in &blocks {
                    assert_eq!(block.first_chunk, next);
                    assert!(
                        block.chunks == chunks / u64::from(count) || block.chunks == chunks.div_ceil(u64::from(count))
                    );
                    assert_eq!(block.offset, bytes);
                    next += block.chunks;
                    bytes += block.bytes;
                }
                assert_eq!((next, bytes), (chunks, cut.bytes()));
            }
        }
    }

    #[test]
    fn a_subgroup_beyond_the_count_is_refused() {
        let cut = Chunking::new(100, 8).unwrap();
        assert_eq!(cut.block(Subgroup { index: 4, count: 4 }), Err(ChunkError::Subgroup { index: 4, count: 4 }));
        assert_eq!(cut.block(Subgroup { index: 0, count: 0 }), Err(ChunkError::Subgroup { index: 0, count: 0 }));
    }

    proptest! {
        #[test]
        fn chunks_tile_the_buffer(bytes in 0u64..200_000, chunk_bytes in 1u32..5000) {
            let cut = Chunking::new(bytes, chunk_bytes).unwrap();
            let mut end = 0;
            for index in 0..cut.chunks() {
                let chunk = cut.chunk(index).unwrap();
                prop_assert_eq!(chunk.offset, end);
                prop_assert!(chunk.bytes >= 1 && chunk.bytes <= chunk_bytes);
                end += u64::from(chunk.bytes);
            }
            prop_assert_eq!(end, bytes);
        }
    }
}
