//! Spots of a sparse AllReduce: blocks that the card writes and reads, and the loops that copy and add them.
//!
//! A loop takes [`STRIDE`] bytes a round, eight bytes a load. Each has a symbol of its own, so that listings tell them apart.

use core::marker::PhantomData;

use crate::abi::SpotMemory;
use crate::arch::opaque;

/// Bytes of one round of a loop: what blocks are a multiple of.
pub const STRIDE: u64 = 128;

const WORDS: usize = STRIDE as usize / 8;
/// The higher of the two numbers in a word.
const HIGH: u64 = 0xFFFF_FFFF_0000_0000;

/// The spots of a thread, borrowed by way of the field that names them. Places are byte offsets. An access beyond the end, or a misaligned one, ends
/// the process with [`crate::error::NO_MEMORY`].
///
/// Accesses are volatile, since the card writes and reads here, too.
#[derive(Debug)]
pub struct Spots<'c> {
    base: *mut u64,
    bytes: u64,
    owner: PhantomData<&'c mut u64>,
}

impl<'c> Spots<'c> {
    /// The words of `memory`; none of them if its address is null or misaligned.
    #[inline]
    #[must_use]
    pub fn attach(memory: &'c mut SpotMemory) -> Self {
        let base = memory.address() as *mut u64;
        let bytes = if base.is_null() || !base.is_aligned() { 0 } else { u64::from(memory.count()) * 8 };
        Self { base, bytes, owner: PhantomData }
    }

    /// Address of the first byte; 0: there is none.
    #[inline(always)]
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// Number of bytes.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies `bytes` bytes, a multiple of [`STRIDE`].
    #[inline]
    pub fn copy(&mut self, from: u64, to: u64, bytes: u64) {
        let (from, to, end) = self.lanes(from, to, bytes);
        // SAFETY: both ranges are inside, and end after whole rounds.
        unsafe { copy_block(from, to, end) };
    }

    /// Adds `bytes` bytes of 32-bit numbers, a multiple of [`STRIDE`], to those at `to`.
    #[inline]
    pub fn add_i32(&mut self, from: u64, to: u64, bytes: u64) {
        let (from, to, end) = self.lanes(from, to, bytes);
        // SAFETY: both ranges are inside, and end after whole rounds.
        unsafe { add_i32(from, to, end) };
    }

    /// Adds `bytes` bytes of 64-bit numbers, a multiple of [`STRIDE`], to those at `to`.
    #[inline]
    pub fn add_i64(&mut self, from: u64, to: u64, bytes: u64) {
        let (from, to, end) = self.lanes(from, to, bytes);
        // SAFETY: both ranges are inside, and end after whole rounds.
        unsafe { add_i64(from, to, end) };
    }

    /// Fills `bytes` bytes, a multiple of [`STRIDE`], with zeros.
    #[inline]
    pub fn clear(&mut self, to: u64, bytes: u64) {
        let (_, to, end) = self.lanes(to, to, bytes);
        // SAFETY: the range is inside, and ends after whole rounds.
        unsafe { clear_block(to, end) };
    }

    /// The 32-bit number at `at`.
    #[inline(always)]
    #[must_use]
    pub fn index(&self, at: u64) -> u32 {
        let at = self.place(at, 4, 4);
        // SAFETY: inside, aligned.
        unsafe { at.cast::<u32>().read_volatile() }
    }

    /// Writes the 32-bit number at `at`.
    #[inline(always)]
    pub fn set_index(&mut self, at: u64, index: u32) {
        let at = self.place(at, 4, 4);
        // SAFETY: inside, aligned.
        unsafe { at.cast::<u32>().write_volatile(index) };
    }

    /// The `count` 32-bit numbers from `at` on.
    #[inline(always)]
    #[must_use]
    pub fn indices(&self, at: u64, count: u32) -> Indices<'_> {
        let bytes = u64::from(count) * 4;
        let at = self.place(at, bytes, 4).cast::<u32>().cast_const();
        // SAFETY: inside.
        Indices { at, end: unsafe { at.byte_add(bytes as usize) }, spots: PhantomData }
    }

    /// Where the `bytes` bytes at `at` are.
    #[inline(always)]
    fn place(&self, at: u64, bytes: u64, align: u64) -> *mut u64 {
        if bytes > self.bytes || at > self.bytes - bytes || at & (align - 1) != 0 {
            crate::no_memory();
        }
        // SAFETY: inside.
        unsafe { self.base.byte_add(at as usize) }
    }

    /// Both ranges, and the end of the second.
    #[inline(always)]
    fn lanes(&self, from: u64, to: u64, bytes: u64) -> (*const u64, *mut u64, *mut u64) {
        if bytes & (STRIDE - 1) != 0 {
            crate::no_memory();
        }
        let (from, to) = (self.place(from, bytes, 8), self.place(to, bytes, 8));
        // SAFETY: inside, or one past the end.
        (from, to, unsafe { to.byte_add(bytes as usize) })
    }
}

/// Numbers in a spot, one after the other.
#[derive(Clone, Debug)]
pub struct Indices<'s> {
    at: *const u32,
    end: *const u32,
    spots: PhantomData<&'s u64>,
}

impl Iterator for Indices<'_> {
    type Item = u32;

    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        if self.at == self.end {
            return None;
        }
        // SAFETY: not the end, so inside.
        unsafe {
            let index = self.at.read_volatile();
            self.at = self.at.add(1);
            Some(index)
        }
    }
}

/// A loop over words: `round` is given the places of a word.
///
/// # Safety
/// `to` to `end` and as many bytes from `from` on are aligned words of the caller's, and whole rounds.
#[inline(always)]
unsafe fn rounds(mut from: *const u64, mut to: *mut u64, end: *mut u64, word: impl Fn(*const u64, *mut u64)) {
    while to != end {
        for at in 0..WORDS {
            // SAFETY: by contract.
            unsafe { word(from.add(at), to.add(at)) };
        }
        // Hidden from the compiler, which would otherwise keep a third register in step.
        // SAFETY: by contract.
        unsafe {
            from = opaque(from.add(WORDS) as u64) as *const u64;
            to = opaque(to.add(WORDS) as u64) as *mut u64;
        }
    }
}

/// # Safety
/// As for [`rounds`].
#[inline(never)]
unsafe fn copy_block(from: *const u64, to: *mut u64, end: *mut u64) {
    // SAFETY: by contract; words are inside.
    unsafe { rounds(from, to, end, |from, to| to.write_volatile(from.read_volatile())) };
}

/// Two numbers a word. The sum of the words without the lower number of one has the higher sum; the lower one is stored over it. No carry is taken
/// back out, as one addition of the whole words would need.
///
/// # Safety
/// As for [`rounds`].
#[inline(never)]
unsafe fn add_i32(from: *const u64, to: *mut u64, end: *mut u64) {
    let high = opaque(HIGH);
    // SAFETY: by contract; words are inside.
    let word = |from: *const u64, to: *mut u64| unsafe {
        let (more, sum) = (from.read_volatile(), to.read_volatile());
        to.write_volatile(sum.wrapping_add(more & high));
        to.cast::<u32>().write_volatile((sum as u32).wrapping_add(more as u32));
    };
    // SAFETY: by contract.
    unsafe { rounds(from, to, end, word) };
}

/// # Safety
/// As for [`rounds`].
#[inline(never)]
unsafe fn add_i64(from: *const u64, to: *mut u64, end: *mut u64) {
    // SAFETY: by contract; words are inside.
    let word = |from: *const u64, to: *mut u64| unsafe {
        let more = from.read_volatile();
        to.write_volatile(to.read_volatile().wrapping_add(more));
    };
    // SAFETY: by contract.
    unsafe { rounds(from, to, end, word) };
}

/// # Safety
/// As for [`rounds`].
#[inline(never)]
unsafe fn clear_block(to: *mut u64, end: *mut u64) {
    // SAFETY: by contract; words are inside.
    unsafe { rounds(to, to, end, |_, to| to.write_volatile(0)) };
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::DeviceAddress;

    #[repr(align(64))]
    struct Memory([u64; 96]);

    fn spots(memory: &mut Memory) -> SpotMemory {
        SpotMemory::new(DeviceAddress::new(memory.0.as_mut_ptr() as u64), memory.0.len() as u32)
    }

    /// Numbers with carries out of, and borrows into, either half.
    fn word(seed: u64) -> u64 {
        match seed % 5 {
            0 => u64::MAX,
            1 => 0x8000_0000_8000_0000,
            2 => 0x7FFF_FFFF_FFFF_FFFF,
            _ => seed.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }

    #[test]
    fn sums_wrap_around_in_their_own_halves_and_end_where_they_are_told() {
        let halves = |sum: u64, more: u64| {
            let low = (sum as u32).wrapping_add(more as u32);
            let high = ((sum >> 32) as u32).wrapping_add((more >> 32) as u32);
            u64::from(high) << 32 | u64::from(low)
        };
        for wide in [false, true] {
            let mut memory = Memory([0; 96]);
            for (at, value) in memory.0.iter_mut().enumerate() {
                *value = word(at as u64 + 7 * u64::from(wide));
            }
            let before = memory.0;
            let mut named = spots(&mut memory);
            let mut view = Spots::attach(&mut named);
            if wide { view.add_i64(0, 512, 256) } else { view.add_i32(0, 512, 256) };
            for (at, value) in memory.0.iter().enumerate() {
                let expected = match at {
                    64..96 if wide => before[at].wrapping_add(before[at - 64]),
                    64..96 => halves(before[at], before[at - 64]),
                    _ => before[at],
                };
                assert_eq!(*value, expected, "word {at}");
            }
        }
    }

    #[test]
    fn blocks_are_copied_and_cleared_and_indices_are_numbers_of_four_bytes() {
        let mut memory = Memory([3; 96]);
        memory.0[..16].fill(9);
        let mut named = spots(&mut memory);
        let mut view = Spots::attach(&mut named);
        view.copy(0, 256, 128);
        view.clear(384, 128);
        view.copy(0, 640, 0);
        view.set_index(764, 77);
        assert_eq!((view.index(764), view.index(760)), (77, 3));
        assert_eq!(view.indices(756, 3).collect::<Vec<_>>(), [0, 3, 77]);
        assert_eq!(view.bytes(), 768);
        for (at, value) in memory.0.iter().enumerate().take(95) {
            let expected = match at {
                0..16 | 32..48 => 9,
                48..64 => 0,
                _ => 3,
            };
            assert_eq!(*value, expected, "word {at}");
        }
    }

    #[test]
    fn nothing_beyond_the_end_or_misaligned_is_touched() {
        let refused = |access: &dyn Fn(&mut Spots<'_>)| {
            let mut memory = Memory([3; 96]);
            let mut named = spots(&mut memory);
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| access(&mut Spots::attach(&mut named))));
            assert_eq!(memory.0, [3; 96]);
            ended.is_err()
        };
        assert!(refused(&|spots| spots.copy(0, 768, 128)));
        assert!(refused(&|spots| spots.add_i32(u64::MAX - 63, 0, 128)));
        assert!(refused(&|spots| spots.add_i64(0, 4, 128)));
        assert!(refused(&|spots| spots.clear(0, 896)));
        assert!(refused(&|spots| spots.clear(0, 64)));
        assert!(refused(&|spots| spots.set_index(766, 1)));
        assert!(refused(&|spots| _ = spots.indices(760, 3)));
        assert!(!refused(&|spots| _ = spots.indices(760, 2)));
        assert!(refused(&|_| _ = Spots::attach(&mut SpotMemory::default()).index(0)));
    }
}
