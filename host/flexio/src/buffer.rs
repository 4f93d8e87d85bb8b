//! Host memory that a card may be given: page-aligned, zeroed, not moved by reallocation.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::error::{Error, Result};

/// Alignment of every host buffer: a page, so that no foreign data shares a cache line with it.
pub const HOST_BUFFER_ALIGN_BYTES: usize = 4096;

/// An owned, zeroed, page-aligned range of host memory.
#[derive(Debug)]
pub struct HostBuffer {
    start: NonNull<u8>,
    /// The allocation that it lies in.
    allocation: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the buffer owns its allocation exclusively and has no thread affinity, like a `Box<[u8]>`.
unsafe impl Send for HostBuffer {}
// SAFETY: shared access only hands out `&[u8]`, as with `Box<[u8]>`.
unsafe impl Sync for HostBuffer {}

/// `len` zeroes, in memory that nothing is registered of. `what` is the name of the length in the error.
///
/// # Errors
/// [`Error::OutOfRange`]: there is not so much memory.
pub fn zeroes(what: &'static str, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Error::no_memory(what, len as u64))?;
    bytes.resize(len, 0);
    Ok(bytes)
}

impl HostBuffer {
    /// Allocates `len` zeroed bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for 0 bytes, more than the address space holds, or more than there is memory for.
    pub fn zeroed(len: usize) -> Result<Self> {
        // Aligned here: allocators give memory that the system has zeroed, and that takes no room until it is used, for
        // small alignments only.
        let layout = len
            .checked_add(HOST_BUFFER_ALIGN_BYTES)
            .filter(|_| len > 0)
            .and_then(|size| Layout::from_size_align(size, 1).ok())
            .ok_or_else(|| Error::OutOfRange {
                what: "length of a host buffer",
                value: len as u64,
                limit: format!("1 to {} bytes", isize::MAX as usize - HOST_BUFFER_ALIGN_BYTES),
            })?;
        // SAFETY: the layout has a non-zero size.
        let allocation = unsafe { alloc_zeroed(layout) };
        let allocation =
            NonNull::new(allocation).ok_or_else(|| Error::no_memory("length of a host buffer", len as u64))?;
        let offset = allocation.align_offset(HOST_BUFFER_ALIGN_BYTES);
        // SAFETY: an aligned address is less than the alignment away, by which the allocation is longer than `len`.
        let start = unsafe { allocation.add(offset) };
        Ok(Self { start, allocation, layout, len })
    }

    /// A buffer with a copy of `bytes`.
    ///
    /// # Errors
    /// As [`HostBuffer::zeroed`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut this = Self::zeroed(bytes.len())?;
        this.as_mut_slice().copy_from_slice(bytes);
        Ok(this)
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` points at `len` initialised bytes that this object owns, and `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always `false`; present because `len` is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout and not freed since.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_writable() {
        let mut buffer = HostBuffer::zeroed(100).unwrap();
        assert_eq!(buffer.start().as_ptr() as usize % HOST_BUFFER_ALIGN_BYTES, 0);
        assert_eq!(buffer.as_slice(), [0; 100]);
        buffer.as_mut_slice()[99] = 7;
        assert_eq!(buffer.as_slice()[99], 7);
        assert_eq!(HostBuffer::from_bytes(b"abc").unwrap().as_slice(), b"abc");
    }

    #[test]
    fn empty_and_impossible_buffers_are_refused() {
        // The last is a length that no computer has memory for.
        for len in [0, usize::MAX, isize::MAX as usize, 1 << 62] {
            assert!(HostBuffer::zeroed(len).is_err(), "{len}");
        }
    }
}
