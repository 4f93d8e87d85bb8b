//! Host memory that cards may reach.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use verbs_sys as sys;

use crate::addr::HostAddr;
use crate::buffer::HostBuffer;
use crate::device::{ProtectionDomain, non_null, verbs_ok, warn_unless_ok};
use crate::error::{Error, Refused, Result};
use crate::raw::Raw;

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
/// The card may change the bytes at any time, so they are only copied in and out, never borrowed. One thread at a time
/// copies: a region may go from thread to thread, and not be shared.
#[derive(Debug)]
pub struct MemoryRegion {
    registration: Keeper,
    start: NonNull<u8>,
    len: usize,
}

/// Who has a registration: one region, which then needs no memory of its own for it, or several.
#[derive(Debug)]
enum Keeper {
    Alone(Registration),
    Shared(Arc<Registration>),
}

impl Deref for Keeper {
    type Target = Registration;

    fn deref(&self) -> &Registration {
        match self {
            Keeper::Alone(registration) => registration,
            Keeper::Shared(registration) => registration,
        }
    }
}

// SAFETY: the bytes belong to the region and its views; nothing ties them to the thread that registered them. That two
// threads do not access them at a time is what a region without `Sync` and the condition of `SharedRegion::view` are
// for.
unsafe impl Send for MemoryRegion {}

/// What the card knows, until the region and its views are gone.
#[derive(Debug)]
struct Registration {
    pd: ProtectionDomain,
    raw: Raw<sys::ibv_mr>,
    access: Access,
    owned: Option<HostBuffer>,
    ended: bool,
}

impl MemoryRegion {
    /// Registers a buffer, which the region owns until [`MemoryRegion::into_buffer`].
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn register(pd: &ProtectionDomain, buffer: HostBuffer, access: Access) -> Result<Self> {
        let (start, len) = (buffer.start(), buffer.len());
        let raw = register(pd, start, len, access)?;
        Ok(Self::of(pd, (raw, access), start, len, Some(buffer)))
    }

    /// Registers memory of somebody else by its address.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::OutOfRange`] for no bytes.
    ///
    /// # Safety
    /// All `len` bytes from `start` on are allocated and stay so until the region and every view of it are gone. While
    /// a card may reach them, or a method of a region or view runs, no reference to them exists and nothing else
    /// accesses them.
    pub unsafe fn register_raw(pd: &ProtectionDomain, start: NonNull<u8>, len: usize, access: Access) -> Result<Self> {
        if len == 0 {
            return Err(Error::OutOfRange {
                what: "length of a memory region",
                value: 0,
                limit: "at least 1".to_owned(),
            });
        }
        let raw = register(pd, start, len, access)?;
        Ok(Self::of(pd, (raw, access), start, len, None))
    }

    pub(crate) fn of(
        pd: &ProtectionDomain,
        (raw, access): (Raw<sys::ibv_mr>, Access),
        start: NonNull<u8>,
        len: usize,
        owned: Option<HostBuffer>,
    ) -> Self {
        let registration = Registration { pd: pd.clone(), raw, access, owned, ended: false };
        Self { registration: Keeper::Alone(registration), start, len }
    }

    /// Registers the memory anew, under other keys with the same rights: whoever has the old ones cannot reach it any
    /// more.
    ///
    /// # Errors
    /// [`Error::Verbs`]: then nobody may reach the memory by a new key, and those who have the old one may still do so.
    /// [`Error::OutOfRange`] for a part of a region, whose keys are those of other parts, too.
    pub fn renew(&mut self) -> Result<()> {
        let Keeper::Alone(registration) = &mut self.registration else {
            let limit = "1: the keys of parts are renewed together, by registering the whole anew".to_owned();
            return Err(Error::OutOfRange { what: "number of regions under these keys", value: 2, limit });
        };
        let raw = register(&registration.pd, self.start, self.len, registration.access)?;
        // SAFETY: both are registered; one of them goes, and is not used again.
        let deregister =
            |raw: Raw<_>| unsafe { (registration.pd.device().provider().verbs().ibv_dereg_mr)(raw.as_ptr()) };
        let errno = deregister(registration.raw);
        if errno == 0 {
            registration.raw = raw;
            return Ok(());
        }
        warn_unless_ok("ibv_dereg_mr", deregister(raw));
        verbs_ok("ibv_dereg_mr", errno, || "to renew the keys of a memory region".to_owned())
    }

    /// The same for regions of parts of it, which may overlap.
    #[must_use]
    pub fn share(self) -> SharedRegion {
        let registration = match self.registration {
            Keeper::Alone(registration) => Arc::new(registration),
            Keeper::Shared(registration) => registration,
        };
        SharedRegion { registration, start: self.start, len: self.len }
    }

    /// Two parts of the region under the same keys, the first of `at` bytes.
    ///
    /// # Errors
    /// [`Error::RegionRange`] unless both have at least one byte.
    pub fn split_at(self, at: usize) -> Result<(Self, Self)> {
        if at == 0 || at >= self.len {
            let (offset, region_len) = (at as u64, self.len as u64);
            return Err(Error::RegionRange { offset, len: 1, region: self.addr(), region_len });
        }
        let (len, shared) = (self.len, self.share());
        // SAFETY: the parts have no byte in common, and nothing else is made of the shared region.
        unsafe { Ok((shared.view(0, at)?, shared.view(at, len - at)?)) }
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.registration.pd
    }

    /// Rights of its keys.
    #[must_use]
    pub fn access(&self) -> Access {
        self.registration.access
    }

    /// Key for the own card.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is registered; the library filled the field and never changes it.
        unsafe { (*self.registration.raw.as_ptr()).lkey }
    }

    /// Key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { (*self.registration.raw.as_ptr()).rkey }
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
        part(self.start, self.len, offset, len)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let mut from = self.at(offset, out.len())?;
        // Atomics, because the card writes meanwhile, an emulated one from another thread; words where alignment
        // allows, for speed.
        let mut out = out;
        while !out.is_empty() {
            if out.len() >= 8 && (from as usize).is_multiple_of(8) {
                let (word, rest) = out.split_at_mut(8);
                // SAFETY: `at` checked the range, which stays mapped while registered; the address is aligned.
                let shared = unsafe { AtomicU64::from_ptr(from.cast()) };
                word.copy_from_slice(&shared.load(Ordering::Relaxed).to_ne_bytes());
                (from, out) = (from.wrapping_add(8), rest);
            } else {
                let (byte, rest) = out.split_at_mut(1);
                // SAFETY: as above, for one byte.
                byte[0] = unsafe { AtomicU8::from_ptr(from) }.load(Ordering::Relaxed);
                (from, out) = (from.wrapping_add(1), rest);
            }
        }
        Ok(())
    }

    /// Reads a little-endian word at an offset that is a multiple of 8, in one access. What the card wrote before that
    /// word is found by later reads.
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
        // SAFETY: in range, aligned, and mapped while registered.
        let word = unsafe { AtomicU64::from_ptr(from.cast()) };
        // What the card wrote before this word must not be read before it.
        Ok(u64::from_le(word.load(Ordering::Acquire)))
    }

    /// Copies `len` bytes from offset `start` of another region, or of this one, to `offset`; the ranges may overlap.
    /// What the card writes meanwhile may be copied in part.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn copy_from(&self, offset: usize, from: &Self, start: usize, len: usize) -> Result<()> {
        let (to, from) = (self.at(offset, len)?, from.at(start, len)?);
        // SAFETY: `at` checked both ranges, which stay mapped while registered. Their bytes are reached by raw pointer
        // only, here and by the card; `copy` allows for ranges that overlap.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    /// Copies `len` bytes from offset `start` of another region to `offset`, and returns whether any bit of them is
    /// set: one pass over them.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn load_from(&self, offset: usize, from: &Self, start: usize, len: usize) -> Result<bool> {
        let (to, from) = (self.at(offset, len)?, from.at(start, len)?);
        // SAFETY: `at` checked both ranges, which stay mapped while registered; their bytes are reached by raw pointer
        // only.
        Ok(unsafe { copy_tested(to, from, len) })
    }

    /// The same for bytes of this process.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn load(&self, offset: usize, bytes: &[u8]) -> Result<bool> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: as above; the slice is borrowed.
        Ok(unsafe { copy_tested(to, bytes.as_ptr(), bytes.len()) })
    }

    /// Sets `len` bytes from an offset on to zero.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn clear(&self, offset: usize, len: usize) -> Result<()> {
        let to = self.at(offset, len)?;
        // SAFETY: `at` checked the range; see `write`.
        unsafe { to.write_bytes(0, len) };
        Ok(())
    }

    /// Copies bytes in, upwards: a card that finds the last word of them finds what was written before it.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let mut to = self.at(offset, bytes.len())?;
        let mut bytes = bytes;
        while let Some((&byte, rest)) = bytes.split_first() {
            let order = if bytes.len() <= 8 { Ordering::Release } else { Ordering::Relaxed };
            if let Some((word, rest)) = bytes.split_first_chunk::<8>()
                && (to as usize).is_multiple_of(8)
            {
                // SAFETY: `at` checked the range, which stays mapped while registered; the address is aligned. Writing
                // through `&self` is sound: the bytes are reached by raw pointer only, here and by the card.
                let shared = unsafe { AtomicU64::from_ptr(to.cast()) };
                shared.store(u64::from_ne_bytes(*word), order);
                (to, bytes) = (to.wrapping_add(8), rest);
            } else {
                // SAFETY: as above, for one byte.
                unsafe { AtomicU8::from_ptr(to) }.store(byte, order);
                (to, bytes) = (to.wrapping_add(1), rest);
            }
        }
        Ok(())
    }

    /// Sets every byte.
    pub fn fill(&self, value: u8) {
        let start = self.start.as_ptr();
        let head = start.align_offset(8).min(self.len);
        let words = (self.len - head) / 8;
        let tail = head + 8 * words;
        for offset in (0..head).chain(tail..self.len) {
            // SAFETY: inside the region; see `write`.
            unsafe { AtomicU8::from_ptr(start.add(offset)) }.store(value, Ordering::Relaxed);
        }
        for index in 0..words {
            // SAFETY: as above; aligned behind the head.
            let word = unsafe { AtomicU64::from_ptr(start.add(head).cast::<u64>().add(index)) };
            word.store(u64::from_ne_bytes([value; 8]), Ordering::Relaxed);
        }
    }

    /// The bytes, for reading.
    ///
    /// # Safety
    /// While the slice exists, no card writes to the bytes and no method of the region or a view does: nothing is
    /// posted that would, and no peer has a key by which it may.
    #[must_use]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are allocated and were initialised by their owner; nothing writes to them, as the caller
        // promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, for reading and writing.
    ///
    /// # Safety
    /// While the slice exists, no card reads or writes the bytes and no method of a view does; see
    /// [`MemoryRegion::as_slice`].
    #[must_use]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; nothing else accesses the bytes, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Ends the registration of memory of somebody else, or of a part of a region if it is the last one.
    ///
    /// # Errors
    /// The region comes back with [`Error::Verbs`] if the card does not let go of the memory: it may still be reached
    /// by the keys.
    pub fn end(mut self) -> std::result::Result<(), Refused<Self>> {
        let registration = match &mut self.registration {
            Keeper::Alone(registration) => registration,
            Keeper::Shared(registration) => match Arc::get_mut(registration) {
                Some(registration) => registration,
                None => return Ok(()),
            },
        };
        match registration.deregister() {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// Ends the registration and gives the buffer back; `None` for memory of somebody else, while views are left, and
    /// if the card does not let go of the memory, which then is never used again.
    #[must_use]
    pub fn into_buffer(mut self) -> Option<HostBuffer> {
        let registration = match &mut self.registration {
            Keeper::Alone(registration) => registration,
            Keeper::Shared(registration) => Arc::get_mut(registration)?,
        };
        registration.end();
        registration.owned.take()
    }
}

/// Registered memory of which several regions are views.
#[derive(Debug)]
pub struct SharedRegion {
    registration: Arc<Registration>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: as for `MemoryRegion`.
unsafe impl Send for SharedRegion {}
// SAFETY: no method accesses the bytes.
unsafe impl Sync for SharedRegion {}

impl SharedRegion {
    /// Part of the region under the same keys. The registration ends with the last of this and its views.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    ///
    /// # Safety
    /// No method of another view accesses bytes of this one while another thread accesses them.
    pub unsafe fn view(&self, offset: usize, len: usize) -> Result<MemoryRegion> {
        let start = NonNull::new(part(self.start, self.len, offset, len)?).unwrap_or(self.start);
        Ok(MemoryRegion { registration: Keeper::Shared(Arc::clone(&self.registration)), start, len })
    }
}

/// Copies `len` bytes, and returns whether any bit of them is set.
///
/// # Safety
/// The bytes at both addresses are allocated, those of `from` initialised, and no reference to those of `to` exists. If
/// the ranges overlap, bytes that are copied already may be copied again.
unsafe fn copy_tested(to: *mut u8, from: *const u8, len: usize) -> bool {
    const LINE_BYTES: usize = 64;
    let (mut any, mut at) = ([0_u64; LINE_BYTES / 8], 0);
    while at + LINE_BYTES <= len {
        // SAFETY: within both ranges, as the caller promises; a line at a time, which the compiler makes vector
        // instructions of.
        unsafe {
            let line: [u64; LINE_BYTES / 8] = from.add(at).cast::<[u64; LINE_BYTES / 8]>().read_unaligned();
            any.iter_mut().zip(line).for_each(|(any, word)| *any |= word);
            to.add(at).cast::<[u64; LINE_BYTES / 8]>().write_unaligned(line);
        }
        at += LINE_BYTES;
    }
    let mut set = any.iter().any(|word| *word != 0);
    while at < len {
        // SAFETY: as above, for one byte.
        unsafe {
            let byte = from.add(at).read();
            set |= byte != 0;
            to.add(at).write(byte);
        }
        at += 1;
    }
    set
}

/// The first byte of a part of a region.
fn part(start: NonNull<u8>, region_len: usize, offset: usize, len: usize) -> Result<*mut u8> {
    if offset.checked_add(len).is_none_or(|end| end > region_len) {
        return Err(Error::RegionRange {
            offset: offset as u64,
            len: len as u64,
            region: HostAddr(start.as_ptr() as u64),
            region_len: region_len as u64,
        });
    }
    Ok(start.as_ptr().wrapping_add(offset))
}

impl Registration {
    /// Takes the keys from the card, once.
    fn deregister(&mut self) -> Result<()> {
        if self.ended {
            return Ok(());
        }
        // SAFETY: registered by the constructor, and not deregistered yet; work requests that still name the key fail
        // at the card's key check.
        let errno = unsafe { (self.pd.device().provider().verbs().ibv_dereg_mr)(self.raw.as_ptr()) };
        self.ended = errno == 0;
        verbs_ok("ibv_dereg_mr", errno, || "to end a memory region".to_owned())
    }

    fn end(&mut self) {
        let Err(error) = self.deregister() else { return };
        tracing::warn!(%error, "a memory region is not ended");
        self.ended = true;
        if let Some(buffer) = self.owned.take() {
            // The card may still reach the bytes: leaking them is the lesser evil.
            std::mem::forget(buffer);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

fn register(pd: &ProtectionDomain, start: NonNull<u8>, len: usize, access: Access) -> Result<Raw<sys::ibv_mr>> {
    // SAFETY: the domain is live; the range is owned by the region under construction, or promised by its maker, so it
    // stays mapped, and no reference to it exists while it is registered.
    let raw = unsafe {
        (pd.device().provider().verbs().ibv_reg_mr)(pd.raw(), start.as_ptr().cast(), len, access.bits() as i32)
    };
    non_null("ibv_reg_mr", raw, || format!("{len} bytes with {access:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_returns_whether_any_bit_is_set() {
        for len in [0, 1, 7, 63, 64, 65, 200, 256] {
            for set in (0..len).map(Some).chain([None]) {
                let mut from = vec![0_u8; len];
                set.into_iter().for_each(|at| from[at] = 0x40);
                let mut to = vec![0xa5_u8; len + 1];
                // SAFETY: both are as long.
                let any = unsafe { copy_tested(to.as_mut_ptr(), from.as_ptr(), len) };
                assert_eq!((any, &to[..len], to[len]), (set.is_some(), &from[..], 0xa5), "{len} {set:?}");
            }
        }
    }
}
