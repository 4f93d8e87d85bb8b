//! Memory that the host writes while the firmware runs.

use core::mem::MaybeUninit;

use zerocopy::FromBytes;

use crate::abi;

/// A `T` that the host rewrites: an operation, an order. Loads copy it out, word by word; nothing borrows it.
#[derive(Clone, Copy, Debug)]
pub struct HostLine<T> {
    at: *const T,
}

impl<T: FromBytes + Copy> HostLine<T> {
    const WORDS: usize = {
        assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() >= 8, "not made of 64-bit words");
        size_of::<T>() / 8
    };

    /// The line that `memory` names. If there is none, the process ends with [`crate::error::NO_MEMORY`].
    #[inline]
    #[must_use]
    pub fn attach(memory: &abi::HostLine<T>) -> Self {
        Self { at: crate::there(memory.address()) as *const T }
    }

    /// A copy, loaded now. Each 64-bit word is one that the host wrote; whether all are of one writing is for the check
    /// fields of `T` to say.
    #[inline]
    #[must_use]
    pub fn snapshot(&self) -> T {
        let mut copy = MaybeUninit::<T>::uninit();
        let (from, to) = (self.at.cast::<u64>(), copy.as_mut_ptr().cast::<u64>());
        for word in 0..Self::WORDS {
            // SAFETY: words of the line, which the host allocated, and of the local; both aligned. Volatile, because
            // the host writes it.
            unsafe { to.add(word).write(from.add(word).read_volatile()) };
        }
        // SAFETY: all words are written, and any bytes are a `T`.
        unsafe { copy.assume_init() }
    }

    /// The 64-bit field at byte offset `OFFSET` (`offset_of!`), loaded now; checked by the compiler.
    #[inline]
    #[must_use]
    pub fn load_at<const OFFSET: usize>(&self) -> u64 {
        const { assert!(OFFSET.is_multiple_of(8) && OFFSET / 8 < Self::WORDS, "no 64-bit field at this offset") };
        // SAFETY: a word of the line, see `snapshot`.
        unsafe { self.at.byte_add(OFFSET).cast::<u64>().read_volatile() }
    }
}

impl<T: FromBytes + Copy> HostLine<T> {
    /// The two 32-bit fields at byte offset `OFFSET` (`offset_of!` of the first), loaded now; checked by the compiler.
    #[inline]
    #[must_use]
    pub fn pair_at<const OFFSET: usize>(&self) -> (u32, u32) {
        let pair = self.load_at::<OFFSET>();
        (pair as u32, (pair >> 32) as u32)
    }

    /// The 64-bit words from byte offset `OFFSET` on, loaded now; checked by the compiler.
    #[inline]
    #[must_use]
    pub fn words_at<const OFFSET: usize, const N: usize>(&self) -> [u64; N] {
        const { assert!(OFFSET.is_multiple_of(8) && OFFSET / 8 + N <= Self::WORDS, "no such words at this offset") };
        // SAFETY: words of the line, see `snapshot`.
        core::array::from_fn(|word| unsafe { self.at.byte_add(OFFSET).cast::<u64>().add(word).read_volatile() })
    }
}

/// The same value, which the compiler then keeps in a register from here on instead of building the constant again in
/// every round of a loop.
#[inline(always)]
#[must_use]
pub fn in_register(value: u64) -> u64 {
    crate::arch::opaque_here(value)
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::{DeviceAddress, SendOperation};

    #[test]
    fn what_the_host_writes_is_seen_by_the_next_load() {
        let mut line = SendOperation { sequence: 3, lkey: 9, sequence_check: 3, ..Default::default() };
        let host = &raw mut line;
        let view = HostLine::<SendOperation>::attach(&abi::HostLine::new(DeviceAddress::new(host as u64)));
        assert_eq!(view.snapshot(), SendOperation { sequence: 3, lkey: 9, sequence_check: 3, ..Default::default() });
        // SAFETY: the local; no reference to it exists.
        unsafe { (*host).sequence = 4 };
        assert_eq!(view.load_at::<{ core::mem::offset_of!(SendOperation, sequence) }>(), 4);
        assert_eq!(view.snapshot().sequence, 4);
        assert_eq!(view.words_at::<0, 1>(), [4]);
        assert_eq!(view.pair_at::<{ core::mem::offset_of!(SendOperation, lkey) }>(), (9, 0));
    }

    #[test]
    #[should_panic(expected = "0x85")]
    fn a_line_that_is_not_there_ends_the_process() {
        let _ = HostLine::attach(&abi::HostLine::<SendOperation>::default());
    }
}
