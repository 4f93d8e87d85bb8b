//! Memory that a program registers: whether it could be pinned for a card, as the kernel finds out for a real one.
//!
//! No page is touched but the first and the last: that the range is mapped the kernel knows without. Pages in between
//! that may not be read or written are not found.

use crate::errno::{Errno, Result};

/// Bytes of the shortest page of all processors that this runs on.
const PAGE_BYTES: u64 = 4096;

/// Refuses memory that is not mapped, or at whose ends the program itself may not read, or `writes` where the card may.
///
/// # Errors
/// EFAULT.
pub(crate) fn check(addr: u64, len: u64, writes: bool) -> Result<()> {
    let refuse = |what: &str| {
        let reason = format!("{len} bytes at {addr:#x} {what}: a card cannot pin them");
        Err(Errno::new(libc::EFAULT, reason))
    };
    let last = addr.saturating_add(len.saturating_sub(1));
    if !is_mapped(addr, last) {
        return refuse("are not all mapped");
    }
    if ![addr, last].into_iter().all(is_readable) {
        return refuse("may not be read by this program");
    }
    if writes && ![addr, last].into_iter().all(is_writable) {
        return refuse("may not be written by this program, but the access flags let the card write there");
    }
    Ok(())
}

/// Whether all pages from that of one address to that of another belong to mappings.
fn is_mapped(first: u64, last: u64) -> bool {
    let start = first & !(PAGE_BYTES - 1);
    let bytes = usize::try_from(last - start).unwrap_or(usize::MAX);
    // SAFETY: with MS_ASYNC the kernel checks whether the range is mapped, and does nothing with it. Where its pages
    // are larger it refuses an address that does not begin one with EINVAL, which says nothing of mappings.
    let found = unsafe { libc::msync(std::ptr::without_provenance_mut(start as usize), bytes.max(1), libc::MS_ASYNC) };
    found == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
}

fn is_readable(addr: u64) -> bool {
    let mut byte = 0_u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: std::ptr::without_provenance_mut(addr as usize), iov_len: 1 };
    // SAFETY: the kernel writes to `byte` alone, and reads no memory that is not there.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    // Where that call is forbidden nothing is known.
    read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Adds 0 to a word of the page, atomically and by the kernel: nobody sees a change, and what may not be written is
/// EFAULT.
fn is_writable(addr: u64) -> bool {
    // FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_LT, -2048): threads that wait at the word are woken at the least of
    // numbers alone, and may be at any time.
    const ADD_NOTHING: u32 = 1 << 28 | 2 << 24 | 0x800;
    let own = 0_u32;
    let word = std::ptr::without_provenance_mut::<u32>((addr & !3) as usize);
    let op = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel wakes nobody at `own`, where nobody can wait, and changes no value of the other word; it
    // writes no memory that is not there.
    let woken = unsafe { libc::syscall(libc::SYS_futex, &raw const own, op, 0, 0_usize, word, ADD_NOTHING) };
    woken >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}
