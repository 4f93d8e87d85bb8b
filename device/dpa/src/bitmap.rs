//! The chunk bitmap of one worker, in DPA memory. Same rules as [`crate::proto::Bitmap`], one load and one store per
//! mark.

use core::marker::PhantomData;

use crate::abi::BitmapMemory;
use crate::proto::Mark;

/// Bitmap of a worker. Several views of one bitmap may exist, all on the thread that uses it alone: they access it word
/// by word, never through references.
#[derive(Debug)]
pub struct BitmapView {
    words: *mut u64,
    bits: u64,
}

impl BitmapView {
    /// The first `bits` bits of the bitmap; fewer if it has not so many.
    #[inline]
    #[must_use]
    pub fn attach(memory: &BitmapMemory, bits: u32) -> Self {
        Self { words: memory.address() as *mut u64, bits: u64::from(bits).min(u64::from(memory.count()) * 64) }
    }

    /// A bitmap of no bits.
    #[inline]
    #[must_use]
    pub const fn none() -> Self {
        Self { words: core::ptr::null_mut(), bits: 0 }
    }

    /// Number of bits.
    #[inline(always)]
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.bits
    }

    /// The bits from number `first` on, `count` of them, as far as there are so many.
    #[inline]
    #[must_use]
    pub fn window(&self, first: u64, count: u64) -> BitmapWindow {
        let first = first.min(self.bits);
        BitmapWindow { words: self.words, first, count: count.min(self.bits - first) }
    }

    /// Sets `count` bits from number `first` on, as far as there are so many.
    pub fn fill(&self, first: u64, count: u64) {
        let window = self.window(first, count);
        let (mut at, end) = (window.first, window.first + window.count);
        while at < end {
            let in_word = (64 - (at & 63)).min(end - at);
            let mask = (u64::MAX >> (64 - in_word)) << (at & 63);
            // SAFETY: below `bits`, see `mark`.
            let word = unsafe { self.words.add((at >> 6) as usize) };
            // SAFETY: as above.
            unsafe { word.write(word.read() | mask) };
            at += in_word;
        }
    }

    /// Sets bit `index`.
    #[inline(always)]
    pub fn mark(&self, index: u64) -> Mark {
        if index >= self.bits {
            return Mark::OutOfRange;
        }
        // SAFETY: below `bits`, so inside the words that the host allocated for this worker.
        unsafe { mark(self.words, index) }
    }

    /// The clear bits from number `index` on, as far as its word and the bitmap reach; none beyond the end.
    #[inline(always)]
    #[must_use]
    pub fn clear_run(&self, index: u64) -> ClearRun<'_> {
        if index >= self.bits {
            return ClearRun { word: core::ptr::null_mut(), before: 0, shift: 0, len: 0, view: PhantomData };
        }
        // SAFETY: below `bits`, see `mark`.
        let word = unsafe { self.words.add((index >> 6) as usize) };
        // SAFETY: as above.
        let before = unsafe { word.read() };
        let shift = index & 63;
        // Above the word's last bit the shifted word is clear.
        let len = u64::from((before >> shift).trailing_zeros()).min(64 - shift).min(self.bits - index);
        ClearRun { word, before, shift, len, view: PhantomData }
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

    /// Clears every bit, word by word: volatile, as the compiler makes a call of `memset` of such a loop otherwise,
    /// which goes byte by byte where there is little.
    #[inline]
    pub fn clear(&self) {
        for index in 0..self.bits.div_ceil(64) as usize {
            // SAFETY: inside the words, see `mark`.
            unsafe { self.words.add(index).write_volatile(0) };
        }
    }
}

/// A bitmap that belongs to another thread, which does not write it while it is read here.
#[derive(Clone, Copy, Debug)]
pub struct BitmapReader {
    words: *const u64,
    bits: u64,
}

impl BitmapReader {
    /// The first `bits` bits of the bitmap; fewer if it has not so many.
    #[inline]
    #[must_use]
    pub fn attach(memory: &BitmapMemory, bits: u32) -> Self {
        let BitmapView { words, bits } = BitmapView::attach(memory, bits);
        Self { words, bits }
    }

    /// Word `index` of the bitmap, loaded now; 0 beyond the end.
    #[inline]
    #[must_use]
    pub fn word(&self, index: u64) -> u64 {
        if index >= self.bits.div_ceil(64) {
            return 0;
        }
        // SAFETY: inside the words that the host allocated; volatile, because it is another thread that writes them.
        unsafe { self.words.add(index as usize).read_volatile() }
    }

    /// Whether bit `index` is set; false beyond the end.
    #[inline]
    #[must_use]
    pub fn is_set(&self, index: u64) -> bool {
        index < self.bits && self.word(index >> 6) >> (index & 63) & 1 == 1
    }
}

/// A run of bits of a bitmap, numbered as in the bitmap.
#[derive(Debug)]
pub struct BitmapWindow {
    words: *mut u64,
    first: u64,
    count: u64,
}

impl BitmapWindow {
    /// Sets bit `index` of the bitmap if it is one of the run.
    #[inline(always)]
    pub fn mark(&self, index: u64) -> Mark {
        if index.wrapping_sub(self.first) >= self.count {
            return Mark::OutOfRange;
        }
        // SAFETY: one of the run, which `BitmapView::window` took from a bitmap's bits.
        unsafe { mark(self.words, index) }
    }
}

/// Clear bits of one word of a bitmap. While it is there nothing else sets bits of that word.
#[derive(Debug)]
pub struct ClearRun<'v> {
    word: *mut u64,
    before: u64,
    shift: u64,
    len: u64,
    view: PhantomData<&'v BitmapView>,
}

impl ClearRun<'_> {
    /// Number of bits, 0 to 64.
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none: the first bit is set, or beyond the end.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the first `count` bits of the run; all if it has fewer.
    #[inline(always)]
    pub fn mark(self, count: u64) {
        let count = count.min(self.len);
        if count != 0 {
            let mask = (u64::MAX >> (64 - count)) << self.shift;
            // SAFETY: the run is not empty, so this is a word of the bitmap.
            unsafe { self.word.write(self.before | mask) };
        }
    }
}

/// # Safety
/// Bit `index` is inside the words that the host allocated for this worker.
#[inline(always)]
unsafe fn mark(words: *mut u64, index: u64) -> Mark {
    // SAFETY: inside by contract.
    let word = unsafe { words.add((index >> 6) as usize) };
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

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::DeviceAddress;

    fn view(words: &mut [u64], bits: u32) -> BitmapView {
        let address = DeviceAddress::new(words.as_mut_ptr() as u64);
        BitmapView::attach(&BitmapMemory::new(address, words.len() as u32), bits)
    }

    #[test]
    fn no_number_of_bits_leads_beyond_the_words() {
        let mut words = [0u64; 2];
        let one = view(&mut words[..1], u32::MAX);
        assert_eq!((one.bits(), one.mark(63), one.mark(64), one.word(1)), (64, Mark::First, Mark::OutOfRange, 0));
        one.fill(0, u64::MAX);
        one.window(60, u64::MAX).mark(64);
        one.clear();
        assert_eq!(words, [0; 2]);
        let none = BitmapView::none();
        none.clear();
        assert_eq!((none.mark(0), none.word(0)), (Mark::OutOfRange, 0));
    }

    #[test]
    fn a_reader_sees_what_the_owner_has_set_and_nothing_beyond() {
        let mut words = [0u64; 3];
        let memory = BitmapMemory::new(DeviceAddress::new(words.as_mut_ptr() as u64), 2);
        let (owner, reader) = (BitmapView::attach(&memory, 70), BitmapReader::attach(&memory, 70));
        owner.mark(3);
        owner.mark(69);
        assert_eq!(
            [3, 4, 69, 70, 128, u64::MAX].map(|bit| reader.is_set(bit)),
            [true, false, true, false, false, false]
        );
        assert_eq!((reader.word(0), reader.word(1), reader.word(2)), (8, 32, 0));
        assert_eq!(BitmapReader::attach(&BitmapMemory::default(), 70).word(0), 0);
    }

    #[test]
    fn filling_sets_exactly_the_run() {
        for (first, count) in
            [(0u64, 0u64), (0, 1), (3, 61), (3, 62), (60, 80), (64, 64), (120, 200), (128, 5), (500, 1)]
        {
            let mut words = [0u64; 3];
            let view = view(&mut words[..2], 128);
            view.fill(first, count);
            for bit in 0..192 {
                let expected = bit < 128 && (first..first + count).contains(&bit);
                assert_eq!(words[bit as usize / 64] >> (bit % 64) & 1 == 1, expected, "bit {bit} of {first}+{count}");
            }
        }
    }

    #[test]
    fn a_clear_run_ends_at_a_set_bit_at_the_word_and_at_the_end() {
        let mut words = [0u64; 3];
        let view = view(&mut words[..2], 100);
        assert_eq!((view.clear_run(0).len(), view.clear_run(5).len(), view.clear_run(63).len()), (64, 59, 1));
        assert_eq!((view.clear_run(64).len(), view.clear_run(99).len()), (36, 1));
        assert!(view.clear_run(100).is_empty() && view.clear_run(u64::MAX).is_empty());
        view.clear_run(100).mark(9);
        view.mark(20);
        assert_eq!((view.clear_run(10).len(), view.clear_run(20).len(), view.clear_run(21).len()), (10, 0, 43));
        view.clear_run(20).mark(1);
        view.clear_run(10).mark(0);
        view.clear_run(10).mark(3);
        view.clear_run(60).mark(99);
        view.clear_run(64).mark(64);
        assert_eq!(words, [0b111 << 10 | 1 << 20 | 0xF << 60, u64::MAX >> 28, 0]);
        words = [0; 3];
        BitmapView::attach(&BitmapMemory::new(DeviceAddress::new(words.as_mut_ptr() as u64), 3), 192)
            .clear_run(64)
            .mark(64);
        assert_eq!(words, [0, u64::MAX, 0]);
    }

    #[test]
    fn a_window_takes_its_own_bits_only() {
        let mut words = [0u64; 2];
        let view = view(&mut words[1..], 64);
        let window = view.window(10, 3);
        assert_eq!(
            [9, 10, 12, 13].map(|bit| window.mark(bit)),
            [Mark::OutOfRange, Mark::First, Mark::First, Mark::OutOfRange]
        );
        assert_eq!(window.mark(12), Mark::Duplicate);
        assert_eq!(view.window(63, 9).mark(64), Mark::OutOfRange);
        assert_eq!(words, [0, 1 << 10 | 1 << 12]);
    }
}
