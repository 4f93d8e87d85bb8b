//! Queue memory in the host or at a card's Arm cores: allocated here, reachable for the emulated card.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use emu_machine::FunctionId;
use emu_machine::nic::QueueMemory;

use crate::card;
use crate::card::request::Request;
use crate::errno::{Errno, Result};

/// Alignment of queue memory: a page, as the real library's.
const ALIGN: usize = 4096;

/// Zeroed memory that a card may read and write while it exists.
#[derive(Debug)]
pub(crate) struct QueueBuffer {
    base: NonNull<u8>,
    layout: Layout,
    id: FunctionId,
}

// SAFETY: the bytes are reached by raw-pointer copies only, here and by the card.
unsafe impl Send for QueueBuffer {}
// SAFETY: as above; concurrent access to one queue is excluded by the queue's lock, and what the card reads or
// writes is reached under the machine's lock (`load`, `store`), which orders everything written before.
unsafe impl Sync for QueueBuffer {}

impl QueueBuffer {
    /// Memory of the programs at a function.
    pub(crate) fn new(id: FunctionId, bytes: usize) -> Result<Self> {
        let layout = Layout::from_size_align(bytes.max(64), ALIGN)
            .map_err(|_| Errno::new(libc::ENOMEM, format!("{bytes} bytes of queue memory")))?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })
            .ok_or_else(|| Errno::new(libc::ENOMEM, format!("{bytes} bytes of queue memory")))?;
        let this = Self { base, layout, id };
        // The allocation lives until `drop`, which takes the registration back first.
        card::done(id, Request::RegisterMemory { addr: this.addr(), len: layout.size() as u64 })?;
        Ok(this)
    }

    pub(crate) fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The place of a byte, for the card.
    pub(crate) fn place(&self, offset: usize) -> QueueMemory {
        QueueMemory { space: self.id.function.space(), addr: self.addr() + offset as u64 }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size(), "offset {offset:#x} lies inside the queue buffer");
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes in that the card may read as soon as they are there.
    ///
    /// # Errors
    /// There is no machine.
    pub(crate) fn store(&self, offset: usize, data: &[u8]) -> Result<()> {
        card::access_shared(|| self.write(offset, data))
    }

    /// Copies bytes in; the range must lie inside, and the card must not read there.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.layout.size(), "a store lies inside the queue buffer");
        // SAFETY: in range; `data` is a Rust slice, and no Rust reference to queue memory exists.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at(offset), data.len()) };
    }

    /// The word at an offset that is a multiple of 8. What the card wrote before that word is found by later reads.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        let inside = offset.is_multiple_of(8) && offset + 8 <= self.layout.size();
        assert!(inside, "a load of a word lies inside the queue buffer");
        // SAFETY: in range, and aligned as the buffer is; a card of this process writes it as an atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }.load(Ordering::Acquire)
    }

    /// Copies bytes out; the range must lie inside. What the card writes is read under the machine's lock.
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.layout.size(), "a load lies inside the queue buffer");
        let mut out = [0; N];
        // SAFETY: in range; `out` is a local array.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset), out.as_mut_ptr(), N) };
        out
    }
}

impl Drop for QueueBuffer {
    fn drop(&mut self) {
        let (addr, bytes) = (self.addr(), self.layout.size() as u64);
        if card::done(self.id, Request::DeregisterMemory { addr, len: bytes }).is_ok() {
            // SAFETY: allocated in `new` with this layout; no card can reach it any more.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        } else {
            // Another machine (another thread's, or one that has been replaced) may still reach it: leak it.
            tracing::debug!(addr, bytes, "queue memory outlives its machine");
        }
    }
}
