//! Host memory through a window. The window is not coherent: follow stores by [`crate::fence::window_writeback`].

use core::marker::PhantomData;
use core::mem::size_of;

use zerocopy::{Immutable, IntoBytes};

use crate::sys;

/// One of the two window slots of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Entity {
    /// Slot 0.
    Zero = 0,
    /// Slot 1.
    One = 1,
}

/// The runtime refused a window or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowError {
    /// The window id does not fit 16 bits or the runtime does not know it, or the key is not valid.
    Configure,
    /// The address is null or not 64-byte aligned, or the runtime does not map it.
    Address,
}

/// A window slot with its host memory.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    entity: Entity,
}

impl Window {
    /// Binds window `id` with memory key `mkey` to `entity`. Once per thread.
    pub fn configure(entity: Entity, id: u32, mkey: u32) -> Result<Self, WindowError> {
        let id = u16::try_from(id).map_err(|_| WindowError::Configure)?;
        if sys::window_config(entity as u32, id, mkey) == 0 { Ok(Self { entity }) } else { Err(WindowError::Configure) }
    }

    /// The slot as this thread has bound it before; an access through an unbound slot ends the thread.
    #[inline]
    #[must_use]
    pub const fn configured(entity: Entity) -> Self {
        Self { entity }
    }

    pub(crate) const fn entity(self) -> Entity {
        self.entity
    }

    /// The structure at `host_address`, which must be 64-byte aligned.
    pub fn cell<T: IntoBytes + Immutable>(self, host_address: u64) -> Result<WindowCell<T>, WindowError> {
        Ok(WindowCell { words: self.words(host_address, size_of::<T>() / 8)?, structure: PhantomData })
    }

    /// `count` 64-bit words from `host_address`, which must be 64-byte aligned.
    pub fn words(self, host_address: u64, count: usize) -> Result<WindowWords, WindowError> {
        if host_address == 0 || !host_address.is_multiple_of(64) {
            return Err(WindowError::Address);
        }
        let address = sys::window_pointer(self.entity as u32, host_address).ok_or(WindowError::Address)?;
        Ok(WindowWords { base: address as *mut u64, count })
    }
}

/// 64-bit words of host memory, write-only.
#[derive(Clone, Copy, Debug)]
pub struct WindowWords {
    base: *mut u64,
    count: usize,
}

impl WindowWords {
    /// Stores one word; ignored beyond the end.
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        if index < self.count {
            // SAFETY: inside the range acquired from the runtime; a range the key does not cover faults in hardware.
            unsafe { self.base.add(index).write_volatile(value) };
        }
    }
}

/// A structure in host memory, write-only.
#[derive(Clone, Copy, Debug)]
pub struct WindowCell<T> {
    words: WindowWords,
    structure: PhantomData<T>,
}

impl<T: IntoBytes + Immutable> WindowCell<T> {
    /// Stores the 64-bit field at byte offset `OFFSET` (`offset_of!`); checked by the compiler.
    #[inline(always)]
    pub fn store_at<const OFFSET: usize>(&self, value: u64) {
        const { assert!(OFFSET.is_multiple_of(8) && OFFSET + 8 <= size_of::<T>(), "no 64-bit field at this offset") };
        // SAFETY: inside the structure, for which the range was acquired from the runtime.
        unsafe { self.words.base.byte_add(OFFSET).write_volatile(value) };
    }

    /// Stores a whole structure at byte offset `OFFSET`, word by word.
    #[inline]
    pub fn store_part<const OFFSET: usize, P: IntoBytes + Immutable>(&self, part: &P) {
        const {
            assert!(
                OFFSET.is_multiple_of(8) && size_of::<P>().is_multiple_of(8) && align_of::<P>() >= 8,
                "not made of words"
            );
            assert!(OFFSET + size_of::<P>() <= size_of::<T>(), "the part does not fit");
        };
        let source = core::ptr::from_ref(part).cast::<u64>();
        for word in 0..size_of::<P>() / 8 {
            // SAFETY: source: `P` has no padding (IntoBytes), is 8-byte aligned and `word` is inside it. Target: inside the structure.
            unsafe { self.words.base.byte_add(OFFSET).add(word).write_volatile(source.add(word).read()) };
        }
    }
}
