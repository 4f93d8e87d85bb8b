//! Stand-ins for unit tests on the host: fences of the language, counters that stand still. No test of memory ordering belongs
//! here; the emulator does those on the real ELF.

use core::sync::atomic::{Ordering, fence};

macro_rules! full_fence {
    ($($name:ident),*) => {$(
        #[inline(always)]
        pub(crate) fn $name() {
            fence(Ordering::SeqCst);
        }
    )*};
}
full_fence!(fence_r_r, fence_w_w, fence_rw_rw, fence_ow_ow);

pub(crate) fn cycles() -> u64 {
    0
}

pub(crate) fn instructions() -> u64 {
    0
}

pub(crate) fn time() -> u64 {
    0
}

pub(crate) fn opaque(value: u64) -> u64 {
    core::hint::black_box(value)
}
