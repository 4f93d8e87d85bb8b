//! Memory of the firmware's own: a value that a thread keeps between activations, and bytes that the card reads and writes.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use zerocopy::FromBytes as _;

use crate::abi::DeviceAddress;

/// First word of a cell that holds a value: no cell that the host zeroed does.
const SET: u64 = 0xF1EC_CA57_4B45_5054;

#[repr(C, align(64))]
struct Cell<T> {
    tag: u64,
    value: MaybeUninit<T>,
}

/// A value of a type that only the firmware knows, in memory that the host set aside and zeroed; used by one thread alone. Its layout may change with
/// every build: nobody else looks at it.
#[derive(Debug)]
pub struct Kept<'c, T> {
    at: *mut Cell<T>,
    owner: PhantomData<&'c mut T>,
}

impl<'c, T: Copy + 'static> Kept<'c, T> {
    /// The `bytes` bytes at `address`; none if the address is null or misaligned, or they are too few. As long as the value is in use, the field
    /// that named it cannot make another one.
    #[must_use]
    pub fn attach(address: &'c mut DeviceAddress, bytes: u64) -> Option<Self> {
        let at = address.get() as *mut Cell<T>;
        let fits = !at.is_null() && at.is_aligned() && size_of::<Cell<T>>() as u64 <= bytes;
        fits.then_some(Self { at, owner: PhantomData })
    }

    /// Puts a value in.
    pub fn set(&mut self, value: T) {
        // SAFETY: aligned memory of sufficient size, which the host set aside for the owner of the borrowed field.
        let cell = unsafe { &mut *self.at };
        cell.value.write(value);
        cell.tag = SET ^ size_of::<T>() as u64;
    }

    /// The value, if one was put in.
    #[must_use]
    pub fn get(self) -> Option<&'c mut T> {
        // SAFETY: as in `set`; any bytes are a cell.
        let cell = unsafe { &mut *self.at };
        if cell.tag != SET ^ size_of::<T>() as u64 {
            return None;
        }
        // SAFETY: `set` of this build wrote a value of this size before the tag, and nobody else writes here; `self` was the only way here.
        Some(unsafe { cell.value.assume_init_mut() })
    }
}

/// Memory that the card reads messages from and writes messages to.
#[derive(Debug)]
pub struct Messages<'c> {
    base: *mut u64,
    words: u64,
    owner: PhantomData<&'c mut u64>,
}

impl<'c> Messages<'c> {
    /// The `bytes` bytes at `address`; none of them if the address is null or misaligned.
    #[must_use]
    pub fn attach(address: &'c mut DeviceAddress, bytes: u64) -> Self {
        let base = address.get() as *mut u64;
        let words = if base.is_null() || !base.is_aligned() { 0 } else { bytes / 8 };
        Self { base, words, owner: PhantomData }
    }

    /// Writes a message at byte offset `offset`; false, and nothing happens, if offset or bytes are not aligned to words or not all inside.
    /// Fence before the card is told of it ([`crate::fence::memory_write`]).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Ok(words) = <[u64]>::ref_from_bytes(bytes) else { return false };
        let Some(first) = self.first(offset, words.len() as u64) else { return false };
        for (index, word) in words.iter().enumerate() {
            // SAFETY: inside the memory; volatile, because the card reads it.
            unsafe { self.base.add(first as usize + index).write_volatile(*word) };
        }
        true
    }

    /// Reads `into.len()` words from byte offset `offset`; false, and nothing happens, if they are not all inside. After a fence that
    /// follows the completion ([`crate::fence::memory_read`]).
    pub fn read(&self, offset: u64, into: &mut [u64]) -> bool {
        let Some(first) = self.first(offset, into.len() as u64) else { return false };
        for (index, word) in into.iter_mut().enumerate() {
            // SAFETY: inside the memory; volatile, because the card writes it.
            *word = unsafe { self.base.add(first as usize + index).read_volatile() };
        }
        true
    }

    fn first(&self, offset: u64, words: u64) -> Option<u64> {
        let first = offset / 8;
        let inside = offset.is_multiple_of(8) && first <= self.words && words <= self.words - first;
        inside.then_some(first)
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use zerocopy::IntoBytes as _;

    #[repr(align(64))]
    struct Memory([u64; 16]);

    #[test]
    fn a_value_is_there_once_it_was_put_in() {
        let mut memory = Memory([0; 16]);
        let mut address = DeviceAddress::new(memory.0.as_mut_ptr() as u64);
        assert!(Kept::<[u64; 16]>::attach(&mut address, 128).is_none(), "no room beside the tag");
        assert!(Kept::<u64>::attach(&mut address, 128).unwrap().get().is_none());
        Kept::<u64>::attach(&mut address, 128).unwrap().set(7);
        *Kept::<u64>::attach(&mut address, 128).unwrap().get().unwrap() += 1;
        assert_eq!(Kept::<u64>::attach(&mut address, 128).unwrap().get(), Some(&mut 8));
        assert!(Kept::<u32>::attach(&mut address, 128).unwrap().get().is_none(), "another type");
        for bad in [0, memory.0.as_mut_ptr() as u64 + 8] {
            assert!(Kept::<u64>::attach(&mut DeviceAddress::new(bad), 128).is_none());
        }
    }

    #[test]
    fn messages_stay_inside() {
        let mut memory = Memory([0; 16]);
        let mut address = DeviceAddress::new(memory.0.as_mut_ptr() as u64);
        let messages = Messages::attach(&mut address, 32);
        let text = [1u64, 2];
        assert!(messages.write(16, text.as_bytes()));
        assert!(!messages.write(24, text.as_bytes()) && !messages.write(4, text.as_bytes()));
        assert!(!messages.write(u64::MAX, text.as_bytes()) && !messages.write(0, &text.as_bytes()[..7]));
        let mut read = [0; 4];
        assert!(messages.read(0, &mut read) && !messages.read(8, &mut read));
        assert_eq!(read, [0, 0, 1, 2]);
        assert!(!Messages::attach(&mut DeviceAddress::new(0), 32).read(0, &mut read));
    }
}
