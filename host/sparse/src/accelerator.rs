//! Accelerators with memory of their own, which scan a worker's array and copy it.

use flexio::PeerRegion;

use super::Result;

/// Bits of a word of a bitmap.
const WORD_BITS: u32 = u32::BITS;

/// Blocks of an array that are scanned or copied together. They start at a multiple of a block, and the array's last
/// one may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first byte of the array.
    pub first_byte: u64,
    /// Bytes of the array.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

impl Stretch {
    /// Number of blocks.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.bytes.div_ceil(self.block_bytes as u64) as u32
    }

    /// Words of a bitmap with a bit for each block: that of block `i` is bit `i % 32` of word `i / 32`.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.blocks().div_ceil(WORD_BITS) as usize
    }
}

/// An accelerator, its buffer that a card reaches, and the two programs that it has for a worker.
///
/// The worker starts them, polls whether they are over, and reads bitmaps. No byte of an array or of the buffer is the
/// processor's: an array is an opaque object here, and a [`PeerRegion`] has no method that touches its bytes. In the
/// buffer each block has the place that it has in the array. Cards send blocks from there, and put sums there.
///
/// Programs run in the order in which they are started. Whoever implements this waits in its destructor until all are
/// over.
pub trait Accelerator {
    /// An array in the accelerator's memory: a contribution, and what gets the sums. Both may be the same memory.
    type Array: ?Sized;

    /// The buffer, which the own card may write. A worker's arrays may be as long, in whole blocks.
    fn staging(&self) -> &PeerRegion;

    /// Bytes of an array.
    fn bytes(&self, array: &Self::Array) -> u64;

    /// Starts one pass over blocks of the contribution: it copies them to the buffer, with zeros behind a short block,
    /// and finds out which have any bit set. Does not wait. The array stays as it is, and allocated, until the
    /// operation is over or the accelerator is gone.
    ///
    /// # Errors
    /// [`Error::Accelerator`](super::Error::Accelerator).
    fn scan(&mut self, array: &Self::Array, stretch: Stretch) -> Result<()>;

    /// Whether the first scan whose bitmap has not been taken is over; if so, `found` gets its bitmap: a bit for each
    /// block of which any bit is set. Cards may read the blocks then. Does not wait.
    ///
    /// # Errors
    /// [`Error::Accelerator`](super::Error::Accelerator).
    fn scanned(&mut self, found: &mut [u32]) -> Result<bool>;

    /// Starts the copy of blocks from the buffer, those with a bit in `sums`, to what gets the sums, as far as they are
    /// in the array. The others become zero there, unless that is the contribution, where they are. What cards have put
    /// into the buffer is seen. Does not wait.
    ///
    /// # Errors
    /// [`Error::Accelerator`](super::Error::Accelerator).
    fn copy_back(&mut self, array: &mut Self::Array, stretch: Stretch, sums: &[u32]) -> Result<()>;

    /// Whether all copies are over. Does not wait.
    ///
    /// # Errors
    /// [`Error::Accelerator`](super::Error::Accelerator).
    fn is_copied(&mut self) -> Result<bool>;
}

/// A bit for each block of a stretch.
#[derive(Debug)]
pub(super) struct Bitmap(Vec<u32>);

impl Bitmap {
    pub(super) fn new(stretch: Stretch) -> Self {
        Self(vec![0; stretch.words()])
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.0
    }

    pub(super) fn words_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }

    pub(super) fn has(&self, block: u32) -> bool {
        self.0.get((block / WORD_BITS) as usize).is_some_and(|word| word >> (block % WORD_BITS) & 1 != 0)
    }

    pub(super) fn set(&mut self, block: u32) {
        if let Some(word) = self.0.get_mut((block / WORD_BITS) as usize) {
            *word |= 1 << (block % WORD_BITS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_has_a_bit_for_each_block() {
        for (bytes, blocks, words) in
            [(0, 0, 0), (1, 1, 1), (256, 1, 1), (257, 2, 1), (32 * 256, 32, 1), (32 * 256 + 1, 33, 2)]
        {
            let stretch = Stretch { first_byte: 512, bytes, block_bytes: 256 };
            assert_eq!((stretch.blocks(), stretch.words()), (blocks, words), "{bytes}");
        }
        let mut bitmap = Bitmap::new(Stretch { first_byte: 0, bytes: 70 * 4, block_bytes: 4 });
        [0, 31, 32, 69, 4000].into_iter().for_each(|block| bitmap.set(block));
        assert_eq!(bitmap.words(), [1 | 1 << 31, 1, 1 << 5]);
        assert!((0..4100).filter(|block| bitmap.has(*block)).eq([0, 31, 32, 69]));
    }
}
