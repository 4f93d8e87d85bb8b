//! Host memory through a window. The window is not coherent: follow stores by [`crate::fence::window_writeback`], and
//! let [`crate::fence::window_invalidate`] come before loads of what the host may have written since.
//!
//! Host addresses are numbers, which firmware may compute: what it reaches with them, the window's memory key says.
//! Accesses stay inside the range that was asked for, which stays inside the window.

use core::marker::PhantomData;
use core::mem::{MaybeUninit, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::sys;

/// End of what a window shows: host programs have addresses of at most 57 bits (five levels of page tables).
const END: u64 = 1 << 57;

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
    /// The address is null or not 64-byte aligned, what begins there does not end below 2^57, or the runtime does not
    /// map it.
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

    /// The structure at `host_address`, which must be 64-byte aligned.
    ///
    /// # Errors
    /// [`WindowError::Address`].
    pub fn cell<T>(self, host_address: u64) -> Result<WindowCell<T>, WindowError> {
        const {
            assert!(
                size_of::<T>().is_multiple_of(8) && align_of::<T>() >= 8 && align_of::<T>() <= 64,
                "not made of 64-bit words"
            );
        };
        let base = self.span(host_address, size_of::<T>() as u64)?;
        Ok(WindowCell { base: base as *mut u64, structure: PhantomData })
    }

    /// `count` 64-bit words from `host_address`, which must be 64-byte aligned.
    ///
    /// # Errors
    /// [`WindowError::Address`].
    pub fn words(self, host_address: u64, count: usize) -> Result<WindowWords, WindowError> {
        let bytes = (count as u64).checked_mul(8).ok_or(WindowError::Address)?;
        Ok(WindowWords { base: self.span(host_address, bytes)? as *mut u64, count })
    }

    /// Where the window shows the `bytes` bytes at `host_address`.
    #[inline]
    pub(crate) fn span(self, host_address: u64, bytes: u64) -> Result<u64, WindowError> {
        let inside = bytes <= END && host_address <= END - bytes;
        if host_address == 0 || !host_address.is_multiple_of(64) || !inside {
            return Err(WindowError::Address);
        }
        sys::window_pointer(self.entity as u32, host_address).ok_or(WindowError::Address)
    }
}

/// 64-bit words of host memory.
#[derive(Clone, Copy, Debug)]
pub struct WindowWords {
    base: *mut u64,
    count: usize,
}

impl WindowWords {
    /// Number of words.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Stores one word; ignored beyond the end.
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        if index < self.count {
            // SAFETY: inside the range acquired from the runtime; a range the key does not cover faults in hardware.
            unsafe { self.base.add(index).write_volatile(value) };
        }
    }

    /// Loads one word; nothing beyond the end.
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize) -> Option<u64> {
        // SAFETY: as in `store`.
        (index < self.count).then(|| unsafe { self.base.add(index).read_volatile() })
    }

    /// Loads `into.len()` words from number `first` on; false, and nothing happens, if they are not all inside.
    #[inline]
    #[must_use]
    pub fn read(&self, first: usize, into: &mut [u64]) -> bool {
        if first > self.count || into.len() > self.count - first {
            return false;
        }
        for (index, word) in into.iter_mut().enumerate() {
            // SAFETY: as in `store`.
            *word = unsafe { self.base.add(first + index).read_volatile() };
        }
        true
    }
}

/// A structure in host memory.
#[derive(Clone, Copy, Debug)]
pub struct WindowCell<T> {
    base: *mut u64,
    structure: PhantomData<T>,
}

impl<T: IntoBytes + Immutable> WindowCell<T> {
    /// Stores the 64-bit field at byte offset `OFFSET` (`offset_of!`); checked by the compiler.
    #[inline(always)]
    pub fn store_at<const OFFSET: usize>(&self, value: u64) {
        const { assert!(OFFSET.is_multiple_of(8) && OFFSET + 8 <= size_of::<T>(), "no 64-bit field at this offset") };
        // SAFETY: inside the structure, for which the range was acquired from the runtime.
        unsafe { self.base.byte_add(OFFSET).write_volatile(value) };
    }

    /// Stores a whole structure at byte offset `OFFSET`, from its last word to its first: a host that reads in between,
    /// and finds the first word new, finds all of them so.
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
        for word in (0..size_of::<P>() / 8).rev() {
            // SAFETY: source: `P` has no padding (IntoBytes), is 8-byte aligned and `word` is inside it. Target: inside
            // the structure.
            unsafe { self.base.byte_add(OFFSET).add(word).write_volatile(source.add(word).read()) };
        }
    }
}

impl<T: FromBytes> WindowCell<T> {
    /// Loads the 64-bit field at byte offset `OFFSET` (`offset_of!`); checked by the compiler.
    #[inline(always)]
    #[must_use]
    pub fn load_at<const OFFSET: usize>(&self) -> u64 {
        const { assert!(OFFSET.is_multiple_of(8) && OFFSET + 8 <= size_of::<T>(), "no 64-bit field at this offset") };
        // SAFETY: inside the structure, for which the range was acquired from the runtime.
        unsafe { self.base.byte_add(OFFSET).read_volatile() }
    }

    /// Loads the whole structure, word by word. Whether all words are of one writing is for check fields in it to say.
    #[inline]
    #[must_use]
    pub fn load(&self) -> T {
        let mut copy = MaybeUninit::<T>::uninit();
        let to = copy.as_mut_ptr().cast::<u64>();
        for word in 0..size_of::<T>() / 8 {
            // SAFETY: source: inside the structure. Target: a local made of 64-bit words (`Window::cell`).
            unsafe { to.add(word).write(self.base.add(word).read_volatile()) };
        }
        // SAFETY: all words are written, and any bytes are a `T`.
        unsafe { copy.assume_init() }
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::CompletionFlag;

    fn window() -> Window {
        Window::configure(Entity::Zero, 1, 2).unwrap()
    }

    #[test]
    fn loads_see_what_stores_left_and_end_with_the_range() {
        let mut memory = [CompletionFlag { value: 1, reserved: [2; 7] }; 2];
        let at = memory.as_mut_ptr() as u64;
        let words = window().words(at, 9).unwrap();
        words.store(8, 7);
        words.store(9, 8);
        assert_eq!([words.load(0), words.load(8), words.load(9)], [Some(1), Some(7), None]);
        let mut read = [0; 3];
        assert!(words.read(6, &mut read) && !words.read(7, &mut [0; 3]) && !words.read(usize::MAX, &mut [0; 3]));
        assert_eq!((read, words.len(), words.is_empty()), ([2, 2, 7], 9, false));
        let cell = window().cell::<CompletionFlag>(at + 64).unwrap();
        assert_eq!((cell.load().value, cell.load_at::<8>()), (7, 2));
        assert_eq!(memory[1], CompletionFlag { value: 7, reserved: [2; 7] });
    }

    #[test]
    fn no_range_leads_out_of_the_window() {
        for (address, count) in [
            (0, 1),
            (8, 1),
            (64, usize::MAX),
            (64, usize::MAX / 8),
            (64, (END / 8) as usize),
            (END, 1),
            (END - 64, 9),
            (u64::MAX - 63, 1),
        ] {
            assert_eq!(window().words(address, count).err(), Some(WindowError::Address), "{address:#x} {count:#x}");
        }
        assert!(window().words(END - 64, 8).is_ok());
        assert_eq!(window().cell::<[u64; 9]>(END - 64).err(), Some(WindowError::Address));
    }
}
