//! Memory of the firmware alone: the state of a thread between activations, and messages that the card reads and
//! writes.

use core::any::TypeId;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

use zerocopy::FromBytes as _;

use crate::abi::{KeptMemory, MessageMemory};

/// First word of a cell that holds a value: no cell that the host zeroed does.
const SET: u64 = 0xF1EC_CA57_4B45_5054;

#[repr(C, align(64))]
struct Cell<T> {
    /// [`SET`] once there is a value.
    tag: u64,
    /// Of what type it is.
    id: MaybeUninit<TypeId>,
    value: MaybeUninit<T>,
}

/// The state of a thread between activations: a value of a type that only the firmware knows, in memory that the host
/// has reserved and zeroed. One thread at a time uses it. Its layout may change with every build: nobody else reads it.
#[derive(Debug)]
pub struct State<'c, T> {
    at: *mut Cell<T>,
    owner: PhantomData<&'c mut T>,
}

impl<'c, T: Copy + Send + 'static> State<'c, T> {
    /// The value in `memory`; none if there is no memory, or it is misaligned or too small. As long as the value is in
    /// use, `memory` leads nowhere else.
    #[must_use]
    pub fn attach(memory: &'c mut KeptMemory) -> Option<Self> {
        let at = memory.address() as *mut Cell<T>;
        let fits = !at.is_null() && at.is_aligned() && size_of::<Cell<T>>() as u64 <= u64::from(memory.count()) * 8;
        fits.then_some(Self { at, owner: PhantomData })
    }

    /// Puts a value in.
    pub fn set(&mut self, value: T) {
        // SAFETY: aligned memory of sufficient size, which the host set aside for the owner of the borrowed field; any
        // bytes are a cell.
        let cell = unsafe { &mut *self.at };
        cell.value.write(value);
        cell.id.write(TypeId::of::<T>());
        cell.tag = SET;
    }

    /// The value, if one of this type was put in.
    #[must_use]
    pub fn get(self) -> Option<&'c mut T> {
        // SAFETY: as in `set`.
        let cell = unsafe { &mut *self.at };
        // SAFETY: `set` wrote the type before the tag, and nobody else writes here.
        if cell.tag != SET || unsafe { cell.id.assume_init() } != TypeId::of::<T>() {
            return None;
        }
        // SAFETY: `set` wrote a value of this type; `self` was the only way here.
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
    /// The words of `memory`; none of them if its address is null or misaligned.
    #[must_use]
    pub fn attach(memory: &'c mut MessageMemory) -> Self {
        let base = memory.address() as *mut u64;
        let words = if base.is_null() || !base.is_aligned() { 0 } else { u64::from(memory.count()) };
        Self { base, words, owner: PhantomData }
    }

    /// Address of the first word; 0: there is none.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// Writes a message at byte offset `offset`; false, and nothing happens, if offset or bytes are not aligned to
    /// words or not all inside. Fence before the card is notified of it ([`crate::fence::memory_write`]).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Ok(words) = <[u64]>::ref_from_bytes(bytes) else { return false };
        let Some(first) = self.first(offset, words.len() as u64) else { return false };
        for (index, word) in words.iter().enumerate() {
            // SAFETY: inside the memory; volatile, because the card reads it.
            unsafe { self.base.add(first as usize + index).write_volatile(*word) };
        }
        true
    }

    /// Writes words at byte offset `offset`, as [`Messages::write`] does.
    #[inline]
    pub fn write_words<const N: usize>(&self, offset: u64, words: &[u64; N]) -> bool {
        let Some(first) = self.first(offset, N as u64) else { return false };
        for (index, word) in words.iter().enumerate() {
            // SAFETY: as in `write`.
            unsafe { self.base.add(first as usize + index).write_volatile(*word) };
        }
        true
    }

    /// The `N` words at byte offset `offset`, as [`Messages::read`] has them; none if they are not all inside.
    #[inline]
    #[must_use]
    pub fn words<const N: usize>(&self, offset: u64) -> Option<[u64; N]> {
        let first = self.first(offset, N as u64)?;
        // SAFETY: as in `read`.
        Some(core::array::from_fn(|index| unsafe { self.base.add(first as usize + index).read_volatile() }))
    }

    /// Reads `into.len()` words from byte offset `offset`; false, and nothing happens, if they are not all inside.
    /// After a fence that follows the completion ([`crate::fence::memory_read`]).
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
    use crate::abi::DeviceAddress;
    use zerocopy::IntoBytes as _;

    #[repr(align(64))]
    struct Memory([u64; 16]);

    fn kept(memory: &mut Memory, words: u32) -> KeptMemory {
        KeptMemory::new(DeviceAddress::new(memory.0.as_mut_ptr() as u64), words)
    }

    #[test]
    fn a_value_is_there_once_it_was_put_in() {
        let mut memory = Memory([0; 16]);
        let bad = DeviceAddress::new(memory.0.as_mut_ptr() as u64 + 8);
        let mut kept = kept(&mut memory, 16);
        assert!(State::<[u64; 16]>::attach(&mut kept).is_none(), "no room with the tag");
        assert!(State::<u64>::attach(&mut kept).unwrap().get().is_none());
        State::<u64>::attach(&mut kept).unwrap().set(7);
        *State::<u64>::attach(&mut kept).unwrap().get().unwrap() += 1;
        assert_eq!(State::<u64>::attach(&mut kept).unwrap().get(), Some(&mut 8));
        for bad in [DeviceAddress::default(), bad] {
            assert!(State::<u64>::attach(&mut KeptMemory::new(bad, 16)).is_none());
        }
    }

    #[test]
    fn a_value_is_not_taken_for_one_of_another_type_of_its_size() {
        let mut memory = Memory([0; 16]);
        let mut kept = kept(&mut memory, 16);
        State::<u64>::attach(&mut kept).unwrap().set(0x1234);
        assert!(State::<&'static u64>::attach(&mut kept).unwrap().get().is_none());
        assert!(State::<i64>::attach(&mut kept).unwrap().get().is_none());
        assert!(State::<u32>::attach(&mut kept).unwrap().get().is_none());
        assert_eq!(State::<u64>::attach(&mut kept).unwrap().get(), Some(&mut 0x1234));
    }

    #[test]
    fn messages_stay_inside() {
        let mut memory = Memory([0; 16]);
        let mut named = MessageMemory::new(DeviceAddress::new(memory.0.as_mut_ptr() as u64), 4);
        let messages = Messages::attach(&mut named);
        let text = [1u64, 2];
        assert!(messages.write(16, text.as_bytes()));
        assert!(!messages.write(24, text.as_bytes()) && !messages.write(4, text.as_bytes()));
        assert!(!messages.write(u64::MAX, text.as_bytes()) && !messages.write(0, &text.as_bytes()[..7]));
        let mut read = [0; 4];
        assert!(messages.read(0, &mut read) && !messages.read(8, &mut read));
        assert_eq!(read, [0, 0, 1, 2]);
        assert!(!Messages::attach(&mut MessageMemory::default()).read(0, &mut read));
    }
}
