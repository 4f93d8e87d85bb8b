//! Host memory that cards may reach.

use std::marker::PhantomData;
use std::ptr::NonNull;

use verbs_sys as sys;

use crate::addr::HostAddr;
use crate::buffer::HostBuffer;
use crate::device::{ProtectionDomain, non_null, warn_unless_ok};
use crate::error::{Error, Result};

bitflags::bitflags! {
    /// What a memory key allows. Local reads are always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u32 {
        /// The own card may write: receives, reads that land here.
        const LOCAL_WRITE = 1;
        /// A peer may write; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
    }
}

/// Registered host memory.
///
/// The card may change the bytes at any time, so they are only copied in and out, never borrowed.
#[derive(Debug)]
pub struct MemoryRegion<'a> {
    pd: &'a ProtectionDomain<'a>,
    raw: NonNull<sys::ibv_mr>,
    start: NonNull<u8>,
    len: usize,
    owned: Option<HostBuffer>,
    /// The registration is another region's.
    view: bool,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> MemoryRegion<'a> {
    /// Registers a buffer, which the region owns until [`MemoryRegion::into_buffer`].
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn register(pd: &'a ProtectionDomain<'a>, buffer: HostBuffer, access: Access) -> Result<Self> {
        let (start, len) = (buffer.start(), buffer.len());
        let raw = register(pd, start, len, access)?;
        Ok(Self { pd, raw, start, len, owned: Some(buffer), view: false, borrowed: PhantomData })
    }

    /// Registers a buffer of somebody else, borrowed for as long as the region exists.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::OutOfRange`] for an empty buffer.
    ///
    /// # Safety
    /// The region must be dropped, not leaked (`std::mem::forget`, a reference cycle): its destructor is what ends the
    /// card's access, and once the borrow is over the owner of the bytes may use or free them.
    pub unsafe fn register_borrowed(
        pd: &'a ProtectionDomain<'a>,
        buffer: &'a mut [u8],
        access: Access,
    ) -> Result<Self> {
        let len = buffer.len();
        if len == 0 {
            return Err(Error::OutOfRange {
                what: "length of a memory region",
                value: 0,
                limit: "at least 1".to_owned(),
            });
        }
        let start = NonNull::from(buffer).cast();
        let raw = register(pd, start, len, access)?;
        Ok(Self { pd, raw, start, len, owned: None, view: false, borrowed: PhantomData })
    }

    /// Registers memory of somebody else by its address.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::OutOfRange`] for no bytes.
    ///
    /// # Safety
    /// All `len` bytes from `start` on are allocated and stay so until the region and every view of it are gone. While a card may reach
    /// them, or a method of a region or view runs, no reference to them exists and nothing else accesses them.
    pub unsafe fn register_raw(
        pd: &'a ProtectionDomain<'a>,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        if len == 0 {
            return Err(Error::OutOfRange {
                what: "length of a memory region",
                value: 0,
                limit: "at least 1".to_owned(),
            });
        }
        let raw = register(pd, start, len, access)?;
        Ok(Self { pd, raw, start, len, owned: None, view: false, borrowed: PhantomData })
    }

    /// Part of the region under the same keys.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    ///
    /// # Safety
    /// The view must be dropped before the region.
    pub unsafe fn view(&self, offset: usize, len: usize) -> Result<Self> {
        let start = NonNull::new(self.at(offset, len)?).unwrap_or(self.start);
        Ok(Self { pd: self.pd, raw: self.raw, start, len, owned: None, view: true, borrowed: PhantomData })
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &'a ProtectionDomain<'a> {
        self.pd
    }

    /// Key for the own card.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is registered; the library filled the field and never changes it.
        unsafe { self.raw.as_ref().lkey }
    }

    /// Key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn addr(&self) -> HostAddr {
        HostAddr(self.start.as_ptr() as u64)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always `false`; present because `len` is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::RegionRange {
                offset: offset as u64,
                len: len as u64,
                region: self.addr(),
                region_len: self.len as u64,
            });
        }
        Ok(self.start.as_ptr().wrapping_add(offset))
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let mut from = self.at(offset, out.len())?;
        // Volatile, because the card writes behind the compiler's back; words where alignment allows, for speed.
        let mut out = out;
        while !out.is_empty() {
            if out.len() >= 8 && (from as usize).is_multiple_of(8) {
                let (word, rest) = out.split_at_mut(8);
                // SAFETY: `at` checked the range, which stays mapped while registered; the address is aligned.
                word.copy_from_slice(&unsafe { from.cast::<u64>().read_volatile() }.to_ne_bytes());
                (from, out) = (from.wrapping_add(8), rest);
            } else {
                let (byte, rest) = out.split_at_mut(1);
                // SAFETY: as above, for one byte.
                byte[0] = unsafe { from.read_volatile() };
                (from, out) = (from.wrapping_add(1), rest);
            }
        }
        Ok(())
    }

    /// Reads a little-endian word at an offset that is a multiple of 8, in one access.
    ///
    /// # Errors
    /// [`Error::RegionRange`] outside the region, [`Error::OutOfRange`] for an offset that is not a multiple of 8.
    pub fn read_u64(&self, offset: usize) -> Result<u64> {
        let from = self.at(offset, 8)?;
        if !(from as usize).is_multiple_of(8) {
            return Err(Error::OutOfRange {
                what: "address of a 64-bit word",
                value: from as u64,
                limit: "a multiple of 8".to_owned(),
            });
        }
        // SAFETY: in range and aligned; volatile because the card writes it.
        let word = u64::from_le(unsafe { from.cast::<u64>().read_volatile() });
        // What the card wrote before this word must not be read before it.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        Ok(word)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let mut to = self.at(offset, bytes.len())?;
        let mut bytes = bytes;
        while let Some((&byte, rest)) = bytes.split_first() {
            if let Some((word, rest)) = bytes.split_first_chunk::<8>()
                && (to as usize).is_multiple_of(8)
            {
                // SAFETY: `at` checked the range, which stays mapped while registered; the address is aligned. Writing
                // through `&self` is sound: the bytes are reached by raw pointer only, here and by the card.
                unsafe { to.cast::<u64>().write_volatile(u64::from_ne_bytes(*word)) };
                (to, bytes) = (to.wrapping_add(8), rest);
            } else {
                // SAFETY: as above, for one byte.
                unsafe { to.write_volatile(byte) };
                (to, bytes) = (to.wrapping_add(1), rest);
            }
        }
        Ok(())
    }

    /// Sets every byte.
    pub fn fill(&self, value: u8) {
        for offset in 0..self.len {
            // SAFETY: inside the region; see `write`.
            unsafe { self.start.as_ptr().add(offset).write_volatile(value) };
        }
    }

    /// Ends the registration and gives the buffer back; `None` for a borrowed one.
    #[must_use]
    pub fn into_buffer(mut self) -> Option<HostBuffer> {
        let owned = self.owned.take();
        drop(self);
        owned
    }
}

impl Drop for MemoryRegion<'_> {
    fn drop(&mut self) {
        if self.view {
            return;
        }
        // SAFETY: registered by the constructor, deregistered only here; work requests that still name the key fail at
        // the card's key check.
        let errno = unsafe { (self.pd.device().provider().verbs.ibv_dereg_mr)(self.raw.as_ptr()) };
        warn_unless_ok("ibv_dereg_mr", errno);
        if errno != 0
            && let Some(buffer) = self.owned.take()
        {
            // The card may still reach the bytes: leaking them is the lesser evil.
            std::mem::forget(buffer);
        }
    }
}

fn register(pd: &ProtectionDomain<'_>, start: NonNull<u8>, len: usize, access: Access) -> Result<NonNull<sys::ibv_mr>> {
    // SAFETY: the domain is live; the range is owned or exclusively borrowed by the region under construction, so it stays
    // mapped, and no reference to it exists while it is registered.
    let raw = unsafe {
        (pd.device().provider().verbs.ibv_reg_mr)(pd.raw(), start.as_ptr().cast(), len, access.bits() as i32)
    };
    non_null("ibv_reg_mr", raw, || format!("{len} bytes with {access:?}"))
}
