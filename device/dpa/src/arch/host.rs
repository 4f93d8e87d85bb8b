//! Stand-ins for unit tests on the host: fences of the language, counters that stand still. No test of memory ordering
//! belongs here; the emulator does those on the real ELF.

use core::sync::atomic::{Ordering, fence};

macro_rules! full_fence {
    ($($name:ident),*) => {$(
        #[inline(always)]
        pub(crate) fn $name() {
            fence(Ordering::SeqCst);
        }
    )*};
}
full_fence!(fence_r_r, fence_w_w, fence_rw_rw, fence_ow_ow, fence_ir_ir);

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

pub(crate) fn opaque_here(value: u64) -> u64 {
    core::hint::black_box(value)
}

/// # Safety
/// Each pointer on the way may be loaded from.
pub(crate) unsafe fn chase(at: u64, loads: u64) -> u64 {
    // SAFETY: by contract.
    (0..loads).fold(at, |at, _| unsafe { (at as *const u64).read_volatile() })
}

/// # Safety
/// All words from `at` to `end` may be loaded.
pub(crate) unsafe fn read_words(at: u64, end: u64) {
    for word in (at..end).step_by(8) {
        // SAFETY: by contract.
        opaque(unsafe { (word as *const u64).read_volatile() });
    }
}

/// # Safety
/// All words from `at` to `end` are the caller's to store to.
pub(crate) unsafe fn write_lines(at: u64, end: u64) {
    for word in (at..end).step_by(8) {
        // SAFETY: by contract.
        unsafe { (word as *mut u64).write_volatile(0) };
    }
}
