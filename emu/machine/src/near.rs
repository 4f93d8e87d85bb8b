//! Memory of the machine that runs the emulator: prefetching, and large pages.
//!
//! Among hundreds of cards a thread runs a few instructions, and then hundreds of others do: hardly anything of its
//! state is in the caches of the processor when its next turn comes. Asked for one turn ahead, it is. Nor does the
//! processor keep the translations of as many pages of 4 KiB as they all use.

use std::collections::BTreeSet;

/// Bytes of a large page.
pub(crate) const LARGE_PAGE_BYTES: usize = 2 << 20;

/// How far it is to the start of the first large page in `memory`.
pub(crate) fn to_large_page(memory: &[u8]) -> usize {
    memory.as_ptr().addr().wrapping_neg() % LARGE_PAGE_BYTES
}

/// Asks the operating system to back memory with large pages. It may not: then everything takes a little longer.
#[allow(unsafe_code)]
pub(crate) fn ask_for_large_pages(memory: &mut [u8]) {
    let start = to_large_page(memory);
    let bytes = memory.len().saturating_sub(start) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    #[cfg(all(target_os = "linux", not(miri)))]
    if let Some(whole) = memory.get_mut(start..start + bytes).filter(|whole| !whole.is_empty()) {
        // SAFETY: the range is of whole pages, all within memory that is exclusively borrowed, and the advice changes
        // no byte of it.
        unsafe { libc::madvise(whole.as_mut_ptr().cast(), whole.len(), libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = bytes;
}

/// Asks the operating system to gather, in large pages, the memory in which these addresses lie, with what lies next to
/// them. It may not.
#[allow(unsafe_code)]
pub(crate) fn gather(addrs: impl Iterator<Item = usize>) {
    let pages: BTreeSet<usize> = addrs.map(|addr| addr / LARGE_PAGE_BYTES).collect();
    #[cfg(all(target_os = "linux", not(miri)))]
    for page in pages {
        let start = std::ptr::without_provenance_mut(page * LARGE_PAGE_BYTES);
        // SAFETY: the system moves the bytes of the page to where they are physically together. Whoever has them finds
        // them unchanged, at the same addresses.
        unsafe { libc::madvise(start, LARGE_PAGE_BYTES, libc::MADV_COLLAPSE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = pages;
}

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
