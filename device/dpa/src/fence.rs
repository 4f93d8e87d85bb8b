//! Fences, one function per reason. The instruction each one costs is given; sources are the DPA intrinsics header
//! (`dpaintrin.h`: MEMORY acts on the r and w bits, MMIO on the i and o bits, SYSTEM on all) and libsnap-rdma's
//! equivalents.

use crate::arch;

/// After a poll saw that an entry belongs to software, before its fields are read (`fence r, r`).
#[inline(always)]
pub fn memory_read() {
    arch::fence_r_r();
}

/// After stores that the NIC reads from memory (work queue entries), before the store that announces them in memory
/// (doorbell record) (`fence w, w`).
#[inline(always)]
pub fn memory_write() {
    arch::fence_w_w();
}

/// After the last read of entries, before the store that gives them back; and around hand-overs between threads
/// (`fence rw, rw`).
#[inline(always)]
pub fn memory() {
    arch::fence_rw_rw();
}

/// After stores to memory (doorbell record), before a doorbell store to the outbox (`fence ow, ow`).
#[inline(always)]
pub fn outbox() {
    arch::fence_ow_ow();
}

/// After stores to a window: writes their lines back so that the host sees them, before anything stored later
/// (`fence ow, ow`).
#[inline(always)]
pub fn window_writeback() {
    arch::fence_ow_ow();
}

/// Before loads from a window: drops the copies of its lines, so that the host's memory is loaded as it is now
/// (`fence ir, ir`).
#[inline(always)]
pub fn window_invalidate() {
    arch::fence_ir_ir();
}
