//! Memory that measuring kernels walk through: in DPA memory, or host memory through a window. The loops are what published
//! micro-benchmarks are made of, instruction by instruction.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::abi::DeviceAddress;
use crate::{Entity, Window, WindowError, arch, sys};

/// Bytes of a line.
const LINE: u64 = 64;

/// Whole lines of memory.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    base: u64,
    count: u64,
}

impl Lines {
    /// The whole lines of the `bytes` bytes of DPA memory at `address`; none if it is not aligned to a line, or null.
    #[must_use]
    pub fn attach(address: DeviceAddress, bytes: u64) -> Self {
        let count = if address.is_null() || !address.is_aligned_to(LINE) { 0 } else { bytes / LINE };
        Self { base: address.get(), count }
    }

    /// The whole lines of the `bytes` bytes of host memory at `host_address`, which must be 64-byte aligned, through a window.
    ///
    /// # Errors
    /// The address is null or not aligned, or the runtime does not map it.
    pub fn through(window: Window, host_address: u64, bytes: u64) -> Result<Self, WindowError> {
        if host_address == 0 || !host_address.is_multiple_of(LINE) {
            return Err(WindowError::Address);
        }
        let entity: Entity = window.entity();
        let base = sys::window_pointer(entity as u32, host_address).ok_or(WindowError::Address)?;
        Ok(Self { base, count: bytes / LINE })
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
            // SAFETY: inside the lines, which the host allocated, or mapped by the key of the window, for kernels alone.
            unsafe { (self.line(from) as *mut u64).write_volatile(self.line(to)) };
        }
    }

    /// Follows `loads` pointers, the first in line `from`; returns the last, and 0 for none. Three instructions a load: load, add,
    /// branch. All lines must have been linked; a line that was not points nowhere, and the access ends the process.
    #[inline(always)]
    #[must_use]
    pub fn follow(&self, from: u64, loads: u64) -> u64 {
        if self.count == 0 || loads == 0 {
            return 0;
        }
        // SAFETY: a line inside; lines point to lines, see above. What is loaded is used as an address only.
        unsafe { arch::chase(self.line(from), loads) }
    }

    /// Goes on from what [`Lines::follow`] returned, at this address.
    #[inline(always)]
    #[must_use]
    pub fn go_on(&self, at: u64, loads: u64) -> u64 {
        if at.wrapping_sub(self.base) >= self.count * LINE || !at.is_multiple_of(LINE) || loads == 0 {
            return at;
        }
        // SAFETY: as in `follow`.
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
    /// The `count` words at `address`; none if it is not aligned, or null.
    #[must_use]
    pub fn attach(address: DeviceAddress, count: u64) -> Self {
        let count = if address.is_null() || !address.is_aligned_to(8) { 0 } else { count };
        Self { words: address.get() as *const AtomicU64, count }
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
pub struct Gate {
    arrived: *const AtomicU64,
}

impl Gate {
    /// The gate in the line at `address`.
    #[must_use]
    pub fn attach(address: DeviceAddress) -> Self {
        Self { arrived: address.get() as *const AtomicU64 }
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

    #[repr(align(64))]
    struct Memory([u64; 8 * 8]);

    fn lines(memory: &mut Memory) -> Lines {
        Lines::attach(DeviceAddress::new(memory.0.as_mut_ptr() as u64), size_of::<Memory>() as u64)
    }

    #[test]
    fn pointers_lead_from_line_to_line() {
        let mut memory = Memory([0; 64]);
        let lines = lines(&mut memory);
        for line in 0..8 {
            lines.link(line, (line + 3) % 8);
        }
        let at = lines.follow(0, 2);
        assert_eq!((at - lines.base) / 64, 6);
        assert_eq!((lines.go_on(at, 7) - lines.base) / 64, (6 + 7 * 3) % 8);
        assert_eq!(lines.load(5), lines.base);
        assert_eq!((lines.follow(0, 0), lines.go_on(17, 5)), (0, 17), "nothing to follow");
    }

    #[test]
    fn writing_touches_each_word_and_nothing_behind() {
        let mut memory = Memory([7; 64]);
        let whole = lines(&mut memory);
        let part = Lines { base: whole.base, count: 7 };
        part.read();
        part.write();
        assert!(memory.0[..56].iter().all(|word| *word == 0) && memory.0[56..] == [7; 8]);
    }

    #[test]
    fn null_and_misaligned_addresses_are_no_lines() {
        for bad in [0, 8] {
            let none = Lines::attach(DeviceAddress::new(bad), 4096);
            none.link(0, 1);
            none.read();
            none.write();
            assert_eq!((none.count(), none.follow(0, 9), none.load(3)), (0, 0, 0));
        }
        assert_eq!(SharedBits::attach(DeviceAddress::new(4), 1).set(0, 1), None);
        Gate::attach(DeviceAddress::new(0)).pass(9);
    }

    #[test]
    fn bits_are_set_and_what_was_there_is_told() {
        let mut words = [0u64; 2];
        let bits = SharedBits::attach(DeviceAddress::new(words.as_mut_ptr() as u64), 2);
        assert_eq!([bits.set(1, 1), bits.set(1, 6), bits.set(1, 8), bits.set(2, 1)], [Some(0), Some(1), Some(7), None]);
    }
}
