//! Memory of micro-benchmarks: lines of DPA memory, or of host memory through a window. The loops are those of
//! published micro-benchmarks, instruction by instruction.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::abi::calibration::BarrierLine;
use crate::abi::{MeasuredMemory, Shared, SharedBitmapMemory};
use crate::{Window, WindowError, arch};

/// Bytes of a line.
const LINE: u64 = 64;

/// Whole lines of memory.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    base: u64,
    count: u64,
    /// As a pointer would be, for the thread alone that made it.
    thread: PhantomData<*mut u64>,
}

impl Lines {
    /// The lines of `memory`; none if its address is null or not aligned to a line.
    #[must_use]
    pub fn attach(memory: &MeasuredMemory) -> Self {
        let base = memory.address();
        let count = if base == 0 || !base.is_multiple_of(LINE) { 0 } else { u64::from(memory.count()) };
        Self { base, count, thread: PhantomData }
    }

    /// The whole lines of the `bytes` bytes of host memory at `host_address`, which must be 64-byte aligned, through a
    /// window.
    ///
    /// # Errors
    /// [`WindowError::Address`].
    pub fn through(window: Window, host_address: u64, bytes: u64) -> Result<Self, WindowError> {
        Ok(Self { base: window.span(host_address, bytes)?, count: bytes / LINE, thread: PhantomData })
    }

    /// How many.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Address of a line; of the first, beyond the end.
    #[inline(always)]
    const fn line(&self, index: u64) -> u64 {
        let index = if index < self.count { index } else { 0 };
        self.base + index * LINE
    }

    /// Makes line `from` point to line `to`.
    #[inline]
    pub fn link(&self, from: u64, to: u64) {
        if self.count > 0 {
            // SAFETY: inside the lines, which the host allocated, or mapped by the key of the window, for kernels
            // alone.
            unsafe { (self.line(from) as *mut u64).write_volatile(self.line(to)) };
        }
    }

    /// Follows `loads` pointers, the first in line `from`; returns the last, and 0 for none. Three instructions a load:
    /// load, add, branch.
    ///
    /// # Safety
    /// Every line has been linked ([`Lines::link`]), to a line of the same lines, and nothing else writes them before
    /// this returns.
    #[inline(always)]
    #[must_use]
    pub unsafe fn follow(&self, from: u64, loads: u64) -> u64 {
        if self.count == 0 || loads == 0 {
            return 0;
        }
        // SAFETY: a line inside; lines point to lines by contract. What is loaded is used as an address only.
        unsafe { arch::chase(self.line(from), loads) }
    }

    /// Goes on from what [`Lines::follow`] returned, at this address.
    ///
    /// # Safety
    /// As for [`Lines::follow`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn go_on(&self, at: u64, loads: u64) -> u64 {
        if at.wrapping_sub(self.base) >= self.count * LINE || !at.is_multiple_of(LINE) || loads == 0 {
            return at;
        }
        // SAFETY: a line inside; by contract.
        unsafe { arch::chase(at, loads) }
    }

    /// Loads every 64-bit word once, in order. Three instructions a word: load, add, branch.
    #[inline(always)]
    pub fn read(&self) {
        if self.count > 0 {
            // SAFETY: inside the lines.
            unsafe { arch::read_words(self.base, self.base + self.count * LINE) };
        }
    }

    /// Stores every 64-bit word once, in order. Ten instructions a line: eight stores, add, branch.
    #[inline(always)]
    pub fn write(&self) {
        if self.count > 0 {
            // SAFETY: inside the lines, see `link`.
            unsafe { arch::write_lines(self.base, self.base + self.count * LINE) };
        }
    }

    /// The first word of a line.
    #[inline(always)]
    #[must_use]
    pub fn load(&self, index: u64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        // SAFETY: inside the lines.
        unsafe { (self.line(index) as *const u64).read_volatile() }
    }
}

/// Words of DPA memory that several threads set bits in.
#[derive(Clone, Copy, Debug)]
pub struct SharedBits {
    words: *const AtomicU64,
    count: u64,
}

impl SharedBits {
    /// The words of `memory`; none if its address is null or misaligned.
    #[must_use]
    pub fn attach(memory: &SharedBitmapMemory) -> Self {
        let words = memory.address() as *const AtomicU64;
        let count = if words.is_null() || !words.is_aligned() { 0 } else { u64::from(memory.count()) };
        Self { words, count }
    }

    /// Sets bits of a word by one atomic operation; returns what it was before, and nothing beyond the end.
    #[inline(always)]
    #[must_use]
    pub fn set(&self, word: u64, bits: u64) -> Option<u64> {
        if word >= self.count {
            return None;
        }
        // SAFETY: one of the words, which the host allocated for kernels alone; all accesses to them are atomic.
        let word = unsafe { &*self.words.add(word as usize) };
        Some(word.fetch_or(bits, Ordering::Relaxed))
    }
}

/// Where threads wait for one another.
#[derive(Debug)]
pub struct Barrier {
    arrived: *const AtomicU64,
}

impl Barrier {
    /// The barrier that `memory` names.
    #[must_use]
    pub fn attach(memory: &Shared<BarrierLine>) -> Self {
        Self { arrived: memory.address() as *const AtomicU64 }
    }

    /// Returns once `threads` threads have called it. Without a line there is nobody to wait for.
    pub fn pass(&self, threads: u32) {
        if self.arrived.is_null() || !self.arrived.is_aligned() {
            return;
        }
        // SAFETY: the host names a line for this alone; all accesses are atomic.
        let arrived = unsafe { &*self.arrived };
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < u64::from(threads) {}
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::DeviceAddress;

    /// Of lines that are all linked, or none.
    fn follow(lines: Lines, from: u64, loads: u64) -> u64 {
        // SAFETY: see above.
        unsafe { lines.follow(from, loads) }
    }

    fn go_on(lines: Lines, at: u64, loads: u64) -> u64 {
        // SAFETY: as above.
        unsafe { lines.go_on(at, loads) }
    }

    #[repr(align(64))]
    struct Memory([u64; 8 * 8]);

    fn lines(memory: &mut Memory) -> Lines {
        Lines::attach(&MeasuredMemory::new(DeviceAddress::new(memory.0.as_mut_ptr() as u64), 8))
    }

    #[test]
    fn pointers_lead_from_line_to_line() {
        let mut memory = Memory([0; 64]);
        let lines = lines(&mut memory);
        for line in 0..8 {
            lines.link(line, (line + 3) % 8);
        }
        let at = follow(lines, 0, 2);
        assert_eq!((at - lines.base) / 64, 6);
        assert_eq!((go_on(lines, at, 7) - lines.base) / 64, (6 + 7 * 3) % 8);
        assert_eq!(lines.load(5), lines.base);
        assert_eq!((follow(lines, 0, 0), go_on(lines, 17, 5)), (0, 17), "nothing to follow");
    }

    #[test]
    fn writing_touches_each_word_and_nothing_behind() {
        let mut memory = Memory([7; 64]);
        let whole = lines(&mut memory);
        let part = Lines { count: 7, ..whole };
        part.read();
        part.write();
        assert!(memory.0[..56].iter().all(|word| *word == 0) && memory.0[56..] == [7; 8]);
    }

    #[test]
    fn null_and_misaligned_addresses_are_no_lines() {
        for bad in [0, 8] {
            let none = Lines::attach(&MeasuredMemory::new(DeviceAddress::new(bad), 64));
            none.link(0, 1);
            none.read();
            none.write();
            assert_eq!((none.count(), follow(none, 0, 9), none.load(3)), (0, 0, 0));
        }
        assert_eq!(SharedBits::attach(&SharedBitmapMemory::new(DeviceAddress::new(4), 1)).set(0, 1), None);
        Barrier::attach(&Shared::default()).pass(9);
    }

    #[test]
    fn bits_are_set_and_what_was_there_is_reported() {
        let mut words = [0u64; 2];
        let bits = SharedBits::attach(&SharedBitmapMemory::new(DeviceAddress::new(words.as_mut_ptr() as u64), 2));
        assert_eq!([bits.set(1, 1), bits.set(1, 6), bits.set(1, 8), bits.set(2, 1)], [Some(0), Some(1), Some(7), None]);
    }
}
