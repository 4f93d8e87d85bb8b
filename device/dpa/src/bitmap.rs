//! The chunk bitmap of one worker, in DPA memory. Same rules as [`crate::proto::Bitmap`], one load and one store per mark.

use crate::abi::DeviceAddress;
use crate::proto::Mark;

/// Bitmap of a worker; used by one thread alone.
#[derive(Debug)]
pub struct BitmapView {
    words: *mut u64,
    bits: u64,
}

impl BitmapView {
    /// The first `bits` bits of the `words` 64-bit words at `address`; fewer if there are not so many.
    #[inline]
    #[must_use]
    pub fn attach(address: DeviceAddress, words: u32, bits: u32) -> Self {
        Self { words: address.get() as *mut u64, bits: u64::from(bits).min(u64::from(words) * 64) }
    }

    /// Number of bits.
    #[inline(always)]
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.bits
    }

    /// Sets bit `index`.
    #[inline(always)]
    pub fn mark(&self, index: u64) -> Mark {
        if index >= self.bits {
            return Mark::OutOfRange;
        }
        // SAFETY: below `bits`, so inside the words that the host allocated for this worker.
        let word = unsafe { self.words.add((index >> 6) as usize) };
        // SAFETY: as above; the worker's thread alone accesses them while it runs.
        let before = unsafe { word.read() };
        let after = before | 1 << (index & 63);
        if after == before {
            return Mark::Duplicate;
        }
        // SAFETY: as above.
        unsafe { word.write(after) };
        Mark::First
    }

    /// Word `index` of the bitmap; 0 beyond the end.
    #[inline]
    #[must_use]
    pub fn word(&self, index: u64) -> u64 {
        if index >= self.bits.div_ceil(64) {
            return 0;
        }
        // SAFETY: inside the words, see `mark`.
        unsafe { self.words.add(index as usize).read() }
    }

    /// Clears every bit.
    pub fn clear(&self) {
        for index in 0..self.bits.div_ceil(64) as usize {
            // SAFETY: inside the words, see `mark`.
            unsafe { self.words.add(index).write(0) };
        }
    }
}
