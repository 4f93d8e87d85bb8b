//! A value that some instances of a generic thread have and others have not.

use core::mem::MaybeUninit;
use core::ops::Deref;

/// A `T` if `THERE`, and nothing otherwise: a queue that only one transport has. Whether it is there is known when the firmware is compiled, so
/// that asking costs nothing.
#[derive(Debug)]
pub struct OnlyIf<const THERE: bool, T>(MaybeUninit<T>);

impl<const THERE: bool, T> OnlyIf<THERE, T> {
    /// What `make` gives, which is called only if `THERE`.
    #[inline(always)]
    #[must_use]
    pub fn new(make: impl FnOnce() -> T) -> Self {
        Self(if THERE { MaybeUninit::new(make()) } else { MaybeUninit::uninit() })
    }
}

/// If it is not there the process ends with [`crate::error::NO_MEMORY`].
impl<const THERE: bool, T> Deref for OnlyIf<THERE, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        if !THERE {
            crate::no_memory();
        }
        // SAFETY: `new`, the only way to one, has made it.
        unsafe { self.0.assume_init_ref() }
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_reached() {
        assert_eq!(*OnlyIf::<true, u64>::new(|| 7), 7);
    }

    #[test]
    #[should_panic(expected = "0x85")]
    fn what_is_not_there_is_not_made_and_ends_the_process() {
        let none = OnlyIf::<false, u64>::new(|| unreachable!());
        let _ = *none;
    }
}
