//! Slots of a sparse AllReduce: blocks that the card writes and reads, and the loops that add them.
//!
//! A load takes eight bytes. Loads and stores take a thread most of the time, so that a loop adds blocks of up to
//! [`SOURCES`] messages before it stores. Each has a symbol of its own, and listings distinguish them.

use core::marker::PhantomData;

use crate::abi::SpotMemory;
use crate::arch::opaque;

/// Bytes of the longest round of a loop: what blocks are a multiple of.
pub const STRIDE: u64 = 128;
/// Most blocks that are summed up at once.
pub const SOURCES: usize = 4;

const WORDS: usize = STRIDE as usize / 8;
/// The higher of the two numbers in a word.
const HIGH: u64 = 0xFFFF_FFFF_0000_0000;

/// The slots of a thread, borrowed by way of the field that names them. An access beyond the end, or a misaligned one,
/// ends the process with [`crate::error::NO_MEMORY`].
///
/// Accesses are volatile, since the card writes and reads here, too.
#[derive(Debug)]
pub struct Slots<'c> {
    base: *mut u64,
    bytes: u64,
    owner: PhantomData<&'c mut u64>,
}

impl<'c> Slots<'c> {
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

    /// Number of bytes; offsets are below it.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sums up `bytes` bytes, a multiple of [`STRIDE`], of each of the blocks at offsets `from`, and writes the sums to
    /// `to`, or adds them to what is there (`onto`). 64-bit numbers if they are `wide`, else 32-bit ones. Beyond
    /// [`SOURCES`], blocks are left out.
    #[inline(never)]
    pub fn sum(&mut self, from: &[u64], to: u64, bytes: u64, onto: bool, wide: bool) {
        if bytes & (STRIDE - 1) != 0 {
            crate::no_memory();
        }
        let to = self.locate(to, bytes, 8);
        // SAFETY: inside, or one past the end.
        let end = unsafe { to.byte_add(bytes as usize) };
        let at = |from: u64| self.locate(from, bytes, 8).cast_const();
        // SAFETY: all ranges are inside, and end after whole rounds.
        unsafe {
            match (from, onto, wide) {
                (&[], false, _) => clear_block(to, end),
                (&[], true, _) => {}
                (&[a], false, _) => copy_block([at(a)], to, end),
                (&[a, b], false, false) => sum2_i32([at(a), at(b)], to, end),
                (&[a, b, c], false, false) => sum3_i32([at(a), at(b), at(c)], to, end),
                (&[a, b, c, d, ..], false, false) => sum4_i32([at(a), at(b), at(c), at(d)], to, end),
                (&[a], true, false) => add1_i32([at(a)], to, end),
                (&[a, b], true, false) => add2_i32([at(a), at(b)], to, end),
                (&[a, b, c], true, false) => add3_i32([at(a), at(b), at(c)], to, end),
                (&[a, b, c, d, ..], true, false) => add4_i32([at(a), at(b), at(c), at(d)], to, end),
                (&[a, b], false, true) => sum2_i64([at(a), at(b)], to, end),
                (&[a, b, c], false, true) => sum3_i64([at(a), at(b), at(c)], to, end),
                (&[a, b, c, d, ..], false, true) => sum4_i64([at(a), at(b), at(c), at(d)], to, end),
                (&[a], true, true) => add1_i64([at(a)], to, end),
                (&[a, b], true, true) => add2_i64([at(a), at(b)], to, end),
                (&[a, b, c], true, true) => add3_i64([at(a), at(b), at(c)], to, end),
                (&[a, b, c, d, ..], true, true) => add4_i64([at(a), at(b), at(c), at(d)], to, end),
            }
        }
    }

    /// The 32-bit number at `at`.
    #[inline(always)]
    #[must_use]
    pub fn index(&self, at: u64) -> u32 {
        let at = self.locate(at, 4, 4);
        // SAFETY: inside, aligned.
        unsafe { at.cast::<u32>().read_volatile() }
    }

    /// Writes the 32-bit number at `at`.
    #[inline(always)]
    pub fn set_index(&mut self, at: u64, index: u32) {
        let at = self.locate(at, 4, 4);
        // SAFETY: inside, aligned.
        unsafe { at.cast::<u32>().write_volatile(index) };
    }

    /// The `count` 32-bit numbers from `at` on.
    #[inline(always)]
    #[must_use]
    pub fn indices(&self, at: u64, count: u32) -> Indices<'_> {
        let bytes = u64::from(count) * 4;
        let at = self.locate(at, bytes, 4).cast::<u32>().cast_const();
        // SAFETY: inside.
        Indices { at, end: unsafe { at.byte_add(bytes as usize) }, slots: PhantomData }
    }

    /// Address of the `bytes` bytes at offset `at`.
    #[inline(always)]
    fn locate(&self, at: u64, bytes: u64, align: u64) -> *mut u64 {
        if bytes > self.bytes || at > self.bytes - bytes || at & (align - 1) != 0 {
            crate::no_memory();
        }
        // SAFETY: inside.
        unsafe { self.base.byte_add(at as usize) }
    }
}

/// Numbers in a slot, one after the other.
#[derive(Clone, Debug)]
pub struct Indices<'s> {
    at: *const u32,
    end: *const u32,
    slots: PhantomData<&'s u64>,
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

/// A loop over words of `K` sources, `N` words a round.
///
/// Two 32-bit numbers are in a word. The sum of whole words has the right lower number, and a carry in the higher one;
/// a second sum, of the words without their lower numbers but for one, has the right higher number. It is stored first,
/// and the lower number over it.
///
/// # Safety
/// `to` to `end`, and as many bytes of each source, are aligned words of the caller's, and whole rounds.
#[inline(always)]
unsafe fn lanes<const K: usize, const N: usize, const ONTO: bool, const WIDE: bool>(
    mut from: [*const u64; K],
    mut to: *mut u64,
    end: *mut u64,
) {
    let high = if WIDE { 0 } else { opaque(HIGH) };
    while to != end {
        for at in 0..N {
            let (mut sum, mut upper, mut is_first) = (0u64, 0u64, true);
            if ONTO {
                // SAFETY: by contract.
                sum = unsafe { to.add(at).read_volatile() };
                (upper, is_first) = (sum, false);
            }
            for source in &from {
                // SAFETY: by contract.
                let word = unsafe { source.add(at).read_volatile() };
                upper = if is_first { word } else { upper.wrapping_add(word & high) };
                sum = if is_first { word } else { sum.wrapping_add(word) };
                is_first = false;
            }
            // SAFETY: by contract.
            unsafe {
                if WIDE || (K == 1 && !ONTO) {
                    to.add(at).write_volatile(sum);
                } else {
                    to.add(at).write_volatile(upper);
                    to.add(at).cast::<u32>().write_volatile(sum as u32);
                }
            }
        }
        // Hidden from the compiler, which would otherwise keep more registers in step.
        // SAFETY: by contract.
        unsafe {
            for source in &mut from {
                *source = opaque(source.add(N) as u64) as *const u64;
            }
            to = opaque(to.add(N) as u64) as *mut u64;
        }
    }
}

macro_rules! loops {
    ($($name:ident = $sources:literal sources, $words:literal words, $onto:literal, $wide:literal;)*) => {$(
        /// # Safety
        /// As for [`lanes`].
        #[inline(never)]
        unsafe fn $name(from: [*const u64; $sources], to: *mut u64, end: *mut u64) {
            // SAFETY: by contract.
            unsafe { lanes::<$sources, $words, $onto, $wide>(from, to, end) };
        }
    )*};
}

loops! {
    copy_block = 1 sources, 16 words, false, true;
    sum2_i32 = 2 sources, 8 words, false, false;
    sum3_i32 = 3 sources, 8 words, false, false;
    sum4_i32 = 4 sources, 8 words, false, false;
    add1_i32 = 1 sources, 16 words, true, false;
    add2_i32 = 2 sources, 8 words, true, false;
    add3_i32 = 3 sources, 8 words, true, false;
    add4_i32 = 4 sources, 8 words, true, false;
    sum2_i64 = 2 sources, 16 words, false, true;
    sum3_i64 = 3 sources, 16 words, false, true;
    sum4_i64 = 4 sources, 8 words, false, true;
    add1_i64 = 1 sources, 16 words, true, true;
    add2_i64 = 2 sources, 16 words, true, true;
    add3_i64 = 3 sources, 8 words, true, true;
    add4_i64 = 4 sources, 8 words, true, true;
}

/// # Safety
/// As for [`lanes`].
#[inline(never)]
unsafe fn clear_block(mut to: *mut u64, end: *mut u64) {
    while to != end {
        for at in 0..WORDS {
            // SAFETY: by contract.
            unsafe { to.add(at).write_volatile(0) };
        }
        // SAFETY: by contract.
        to = opaque(unsafe { to.add(WORDS) } as u64) as *mut u64;
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::DeviceAddress;

    #[repr(align(64))]
    struct Memory([u64; 96]);

    fn slots(memory: &mut Memory) -> SpotMemory {
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

    /// Blocks of 128 bytes: sources at 0 to 3, the sum at 4.
    #[test]
    fn sums_wrap_around_in_their_own_halves_and_end_at_the_given_place() {
        let add = |sum: u64, more: u64, wide: bool| {
            let low = (sum as u32).wrapping_add(more as u32);
            let high = ((sum >> 32) as u32).wrapping_add((more >> 32) as u32);
            if wide { sum.wrapping_add(more) } else { u64::from(high) << 32 | u64::from(low) }
        };
        for (count, onto, wide) in (0..=4).flat_map(|count| {
            [(false, false), (false, true), (true, false), (true, true)].map(|(onto, wide)| (count, onto, wide))
        }) {
            let mut memory = Memory([0; 96]);
            for (at, value) in memory.0.iter_mut().enumerate() {
                *value = word((at * 31 + count) as u64);
            }
            let before = memory.0;
            let mut named = slots(&mut memory);
            let from = [0, 128, 256, 384];
            Slots::attach(&mut named).sum(&from[..count], 512, 128, onto, wide);
            for (at, value) in memory.0.iter().enumerate() {
                let expected = match at {
                    64..80 => {
                        let first = if onto { before[at] } else { 0 };
                        (0..count).fold(first, |sum, source| add(sum, before[source * 16 + at - 64], wide))
                    }
                    _ => before[at],
                };
                assert_eq!(*value, expected, "word {at} of {count} sources, onto {onto}, wide {wide}");
            }
        }
    }

    #[test]
    fn indices_are_numbers_of_four_bytes() {
        let mut memory = Memory([3; 96]);
        let mut named = slots(&mut memory);
        let mut view = Slots::attach(&mut named);
        view.set_index(764, 77);
        assert_eq!((view.index(764), view.index(760)), (77, 3));
        assert_eq!(view.indices(756, 3).collect::<Vec<_>>(), [0, 3, 77]);
        assert_eq!(view.bytes(), 768);
    }

    #[test]
    fn nothing_beyond_the_end_or_misaligned_is_touched() {
        let refused = |access: &dyn Fn(&mut Slots<'_>)| {
            let mut memory = Memory([3; 96]);
            let mut named = slots(&mut memory);
            let ended =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| access(&mut Slots::attach(&mut named))));
            assert_eq!(memory.0, [3; 96]);
            ended.is_err()
        };
        for wide in [false, true] {
            assert!(refused(&|slots| slots.sum(&[0], 768, 128, false, wide)));
            assert!(refused(&|slots| slots.sum(&[0, 128, u64::MAX - 63], 0, 128, true, wide)));
            assert!(refused(&|slots| slots.sum(&[0], 4, 128, true, wide)));
            assert!(refused(&|slots| slots.sum(&[0, 644], 128, 128, true, wide)));
            assert!(refused(&|slots| slots.sum(&[], 0, 896, false, wide)));
            assert!(refused(&|slots| slots.sum(&[0], 128, 64, false, wide)));
        }
        assert!(refused(&|slots| slots.set_index(766, 1)));
        assert!(refused(&|slots| _ = slots.indices(760, 3)));
        assert!(!refused(&|slots| _ = slots.indices(760, 2)));
        assert!(refused(&|_| _ = Slots::attach(&mut SpotMemory::default()).index(0)));
    }
}
