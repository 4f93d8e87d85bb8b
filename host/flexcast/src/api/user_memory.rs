//! Memory that somebody else has allocated, such as a C program, under registrations that are kept for the next
//! operation.
#![allow(unsafe_code)] // What is registered is memory by its address: only its owner knows that it is there.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flexio::{Access, MemoryRegion, ProtectionDomain};

use crate::carrier::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::registration::{CacheStatistics, Limits, Range, RegistrationCache};
use crate::memory::watch::Watch;
use crate::op::buffer::{Buffer, REACHABLE};
use crate::op::region::{Region, Shared};

fn null(len: usize) -> Error {
    let reason = format!("a null pointer for {len} bytes: give the address of allocated memory");
    Error::Argument { operation: "user memory", reason }
}

/// Makes [`Buffer`]s of memory that the caller has allocated. Registrations are kept in a [`RegistrationCache`]:
/// whoever frees the memory calls [`UserMemory::invalidate`] before.
#[derive(Debug)]
pub struct UserMemory {
    endpoint: Endpoint,
    cache: Mutex<RegistrationCache<Region>>,
    watch: Option<Watch>,
}

impl UserMemory {
    /// An empty cache of registrations with an endpoint.
    #[must_use]
    pub fn new(endpoint: &Endpoint, limits: Limits) -> Self {
        Self { endpoint: endpoint.clone(), cache: Mutex::new(RegistrationCache::new(limits)), watch: None }
    }

    /// The same for a program whose memory is freed without a call of [`UserMemory::invalidate`]: memory that is
    /// registered is watched (userfaultfd), and a registration of pages that were unmapped, moved or emptied is not
    /// used again. Pages that cannot be watched, such as those of files, are registered anew for each operation. Pages
    /// stay pinned until the next operation or reading of the statistics.
    ///
    /// # Errors
    /// [`Error::Watch`] where the system has no userfaultfd, or does not let the process have it.
    pub fn watched(endpoint: &Endpoint, limits: Limits) -> Result<Self> {
        // Without registrations there is nothing to watch.
        let watch = endpoint.pd().map(|_| Watch::new()).transpose()?;
        Ok(Self { watch, ..Self::new(endpoint, limits) })
    }

    fn cache(&self) -> MutexGuard<'_, RegistrationCache<Region>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = &self.watch {
            watch.take(|range| _ = cache.invalidate(range));
        }
        cache
    }

    /// A buffer of `len` bytes from `start` on, for operations of communicators of the same endpoint. With 0 bytes
    /// `start` is not used.
    ///
    /// # Errors
    /// [`Error::Argument`] for a null pointer or bytes beyond the address space, [`Error::Flexio`] when the memory
    /// cannot be registered.
    ///
    /// # Safety
    /// All bytes are allocated, readable and writable, and stay so until the buffer is dropped *and*
    /// [`UserMemory::invalidate`] has been called for them or this object is gone. From now until the buffer is dropped
    /// nobody else accesses them, except for other buffers that are only read from.
    pub unsafe fn buffer(&self, start: *mut u8, len: usize) -> Result<Buffer> {
        // SAFETY: the caller promises just that.
        unsafe { self.view(start, len, REACHABLE) }
    }

    /// A buffer to send from: the card is not allowed to write to it, so that it may be memory that cannot be written.
    ///
    /// # Errors
    /// As [`UserMemory::buffer`].
    ///
    /// # Safety
    /// As for [`UserMemory::buffer`], except that the bytes need not be writable. The buffer is only given to an
    /// operation as its send buffer, and not written to.
    pub unsafe fn source(&self, start: *const u8, len: usize) -> Result<Buffer> {
        // SAFETY: the caller promises just that: by a key without rights no card writes to the bytes.
        unsafe { self.view(start.cast_mut(), len, Access::empty()) }
    }

    /// The same without a registration, for a sparse AllReduce, which copies blocks and needs none; see
    /// [`Allreduce::sparse`](crate::Allreduce::sparse).
    ///
    /// # Errors
    /// [`Error::Argument`] for a null pointer.
    ///
    /// # Safety
    /// As for [`UserMemory::buffer`], or, of a buffer that is only given as a send buffer, as for
    /// [`UserMemory::source`]; but once the buffer is dropped the memory may go.
    pub unsafe fn unregistered(&self, start: *mut u8, len: usize) -> Result<Buffer> {
        if len == 0 {
            return Buffer::of_host(0);
        }
        let start = NonNull::new(start).ok_or_else(|| null(len))?;
        // SAFETY: the caller promises just that.
        Ok(unsafe { Buffer::of_address(start, len) })
    }

    /// A buffer whose card may do this much with the memory.
    ///
    /// # Safety
    /// As for [`UserMemory::buffer`], or with no rights as for [`UserMemory::source`].
    unsafe fn view(&self, start: *mut u8, len: usize, access: Access) -> Result<Buffer> {
        if len == 0 {
            return self.endpoint.buffer(0);
        }
        let Some(pd) = self.endpoint.pd() else {
            let start = NonNull::new(start).ok_or_else(|| null(len))?;
            // SAFETY: the caller promises just that.
            return Ok(unsafe { Buffer::of_address(start, len) });
        };
        // SAFETY: the caller promises more than that.
        let registration = unsafe { self.registration(pd, start, len, access) }?;
        let offset = start as u64 - registration.range().address();
        // SAFETY: only buffers access the bytes, and those that share some are only read from, as the caller promises.
        let view = unsafe { registration.region.view(offset as usize, len) }?;
        Ok(Buffer::of_user(view, len, registration))
    }

    /// Registers memory before its first use; nothing is different later if this is left out.
    ///
    /// # Errors
    /// As [`UserMemory::buffer`].
    ///
    /// # Safety
    /// The bytes are allocated, readable and writable, and stay so until [`UserMemory::invalidate`] or the end of this
    /// object.
    pub unsafe fn register(&self, start: *mut u8, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let Some(pd) = self.endpoint.pd() else { return Ok(()) };
        // SAFETY: the caller promises just that.
        unsafe { self.registration(pd, start, len, REACHABLE) }.map(drop)
    }

    /// The registration of memory, a new one or one that is there.
    ///
    /// # Safety
    /// As for [`UserMemory::register`]; with no rights the bytes need not be writable. While a buffer of them exists
    /// nobody else accesses them.
    unsafe fn registration(&self, pd: &ProtectionDomain, start: *mut u8, len: usize, access: Access) -> Result<Shared> {
        let pointer = NonNull::new(start).ok_or_else(|| null(len))?;
        let range = Range::new(start as u64, len as u64)
            .map_err(|error| Error::Argument { operation: "user memory", reason: error.to_string() })?;
        let mut cache = self.cache();
        let register = |_, access| {
            // SAFETY: the caller vouches for the memory until it is invalidated or the cache is gone, and for nobody
            // else accessing it while a buffer exists; while none exists no peer has its key.
            let region = unsafe { MemoryRegion::register_raw(pd, pointer, len, access) }?;
            // Where nothing reports that its pages are unmapped, a registration is not used a second time.
            let unwatched = self.watch.as_ref().is_some_and(|watch| !watch.add(range));
            Ok::<_, flexio::Error>(Region { region: region.share(), exposed: AtomicBool::new(unwatched) })
        };
        let before = cache.statistics().misses;
        let found = cache.get(range, access, register)?;
        let is_new = cache.statistics().misses > before;
        if is_new || !found.exposed.load(Ordering::Relaxed) {
            return Ok(found);
        }
        let exposed = found.range();
        drop(found);
        cache.invalidate(exposed);
        Ok(cache.get(range, access, register)?)
    }

    /// Memory in this range is about to be freed or unmapped: its registrations are forgotten. Gives the number of
    /// those that buffers still use; they exist until these buffers are dropped, and the memory must, too.
    pub fn invalidate(&self, start: *const u8, len: usize) -> usize {
        match Range::new(start as u64, len as u64) {
            Ok(range) => self.cache().invalidate(range),
            Err(_) => 0,
        }
    }

    /// What the cache has done.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.cache().statistics()
    }
}
