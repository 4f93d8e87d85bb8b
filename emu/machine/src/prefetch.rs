//! Prefetching of memory on the machine that runs the emulator.
//!
//! Among hundreds of cards a thread runs a few instructions, and then hundreds of others do: hardly anything of its state is in the caches
//! of the processor when its next turn comes. Asked for one turn ahead, it is.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Brings the line at an address nearer. Nothing else happens, wherever the address is.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn line(addr: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint. It reads nothing that a program could see, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(addr)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = addr;
}

/// Brings the lines of an object nearer; address 0 stands for none.
#[inline(always)]
pub(crate) fn object<T>(addr: usize) {
    if addr != 0 {
        (0..size_of::<T>()).step_by(LINE_BYTES).for_each(|offset| line(addr.wrapping_add(offset)));
    }
}
