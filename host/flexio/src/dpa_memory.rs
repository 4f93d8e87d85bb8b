//! Memory of a DPA process.

use std::sync::Arc;

use flexcast_abi::{ContextAddress, DeviceAddress, Layout};
use flexio_sys as sys;
use zerocopy::{Immutable, IntoBytes};

use crate::addr::DevAddr;
use crate::error::{Error, Result};
use crate::memory::Access;
use crate::process::{Process, handle, number, warn_unless_destroyed};
use crate::raw::Raw;

/// Alignment of every device buffer: a cache line.
pub const DEVICE_ALIGN_BYTES: u64 = 64;

/// An allocation in the heap of a DPA process, until this and its memory keys are gone. The host can fill it, but not
/// read it back.
#[derive(Debug)]
pub struct DeviceBuffer(Arc<Allocation>);

#[derive(Debug)]
struct Allocation {
    process: Process,
    /// What the library returned, to be freed.
    allocation: DevAddr,
    addr: DevAddr,
    len: u64,
}

impl DeviceBuffer {
    /// Allocates `len` zeroed bytes, aligned to [`DEVICE_ALIGN_BYTES`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for 0 bytes, [`Error::FlexIo`] when the heap is full.
    pub fn zeroed(process: &Process, len: u64) -> Result<Self> {
        let this = Self::allocate(process, len)?;
        this.fill(0, len, 0)?;
        Ok(this)
    }

    /// Allocates a copy of `bytes`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::zeroed`].
    pub fn from_bytes(process: &Process, bytes: &[u8]) -> Result<Self> {
        let this = Self::allocate(process, bytes.len() as u64)?;
        this.write(0, bytes)?;
        Ok(this)
    }

    fn allocate(process: &Process, len: u64) -> Result<Self> {
        if len == 0 {
            return Err(Error::OutOfRange {
                what: "length of a device buffer",
                value: 0,
                limit: "at least 1".to_owned(),
            });
        }
        let allocation = raw_allocate(process, len)?;
        if allocation.is_aligned_to(DEVICE_ALIGN_BYTES) {
            return Ok(Self::of(process, allocation, allocation, len));
        }
        // The library promises no alignment: pay for it with a larger allocation.
        raw_free(process, allocation);
        let allocation = raw_allocate(process, len + DEVICE_ALIGN_BYTES - 1)?;
        let addr = DevAddr(allocation.get().next_multiple_of(DEVICE_ALIGN_BYTES));
        Ok(Self::of(process, allocation, addr, len))
    }

    fn of(process: &Process, allocation: DevAddr, addr: DevAddr, len: u64) -> Self {
        Self(Arc::new(Allocation { process: process.clone(), allocation, addr, len }))
    }

    fn process(&self) -> &Process {
        &self.0.process
    }

    /// Address of the first byte.
    #[must_use]
    pub fn addr(&self) -> DevAddr {
        self.0.addr
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Always `false`; present because `len` is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    fn at(&self, offset: u64, len: u64) -> Result<DevAddr> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(Error::DeviceRange { offset, len, buffer: self.addr(), buffer_len: self.len() });
        }
        Ok(self.addr().offset(offset))
    }

    /// Copies bytes to the device. Blocks until they are there.
    ///
    /// # Errors
    /// [`Error::DeviceRange`], [`Error::FlexIo`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.at(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the source is readable for its length and only read, the constness is C's omission; the target was
        // checked to lie inside this allocation.
        let status = unsafe {
            (self.process().api().flexio_host2dev_memcpy)(
                self.process().raw(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                to.get(),
            )
        };
        self.process().ok("flexio_host2dev_memcpy", status, || format!("{} bytes to {to}", bytes.len()))
    }

    /// Copies a context to the device. Its address is what RPCs take that prepare it.
    ///
    /// # Errors
    /// As [`DeviceBuffer::write`].
    pub fn write_context<T: Layout + IntoBytes + Immutable>(
        &self,
        offset: u64,
        context: &T,
    ) -> Result<ContextAddress<T>> {
        self.write(offset, context.as_bytes())?;
        self.context_at(offset)
    }

    /// Address of a context that has been written at `offset`.
    ///
    /// # Errors
    /// [`Error::DeviceRange`].
    pub fn context_at<T: Layout>(&self, offset: u64) -> Result<ContextAddress<T>> {
        let at = self.at(offset, size_of::<T>() as u64)?;
        Ok(ContextAddress::new(DeviceAddress::new(at.get())))
    }

    /// Sets `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::DeviceRange`], [`Error::FlexIo`].
    pub fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        let to = self.at(offset, len)?;
        // SAFETY: the target was checked to lie inside this allocation.
        let status = unsafe {
            (self.process().api().flexio_buf_dev_memset)(self.process().raw(), i32::from(value), len as usize, to.get())
        };
        self.process().ok("flexio_buf_dev_memset", status, || format!("{len} bytes at {to}"))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        raw_free(&self.process, self.allocation);
    }
}

fn raw_allocate(process: &Process, len: u64) -> Result<DevAddr> {
    let mut addr = 0;
    // SAFETY: the process is live and `addr` writable.
    let status = unsafe { (process.api().flexio_buf_dev_alloc)(process.raw(), len as usize, &raw mut addr) };
    process.ok("flexio_buf_dev_alloc", status, || {
        let heap = process.heap().map_or_else(|e| e.to_string(), |heap| format!("{heap:?}"));
        format!("{len} bytes; {heap}")
    })?;
    Ok(DevAddr(addr))
}

fn raw_free(process: &Process, addr: DevAddr) {
    // SAFETY: `addr` came from `raw_allocate` on this process and is freed once.
    let status = unsafe { (process.api().flexio_buf_dev_free)(process.raw(), addr.get()) };
    warn_unless_destroyed("device buffer", status);
}

/// A memory key over a device buffer, for the card's own reads and writes of DPA memory.
#[derive(Debug)]
pub struct MemoryKey {
    buffer: DeviceBuffer,
    raw: Raw<sys::flexio_mkey>,
    id: u32,
}

impl MemoryKey {
    /// Makes a key for the whole buffer in the process's protection domain.
    ///
    /// # Errors
    /// [`Error::FlexIo`].
    pub fn new(buffer: &DeviceBuffer, access: Access) -> Result<Self> {
        let process = buffer.process();
        let mut attr = sys::flexio_mkey_attr {
            pd: process.pd().raw().cast(),
            daddr: buffer.addr().get(),
            len: buffer.len() as usize,
            access: access.bits() as i32,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: process and domain are live; the range is that of the buffer, of which the key holds a count.
        let status = unsafe { (process.api().flexio_device_mkey_create)(process.raw(), &raw mut attr, &raw mut raw) };
        process.ok("flexio_device_mkey_create", status, || format!("{} bytes at {}", buffer.len(), buffer.addr()))?;
        let raw = handle("flexio_device_mkey_create", raw)?;
        let mut this = Self { buffer: DeviceBuffer(Arc::clone(&buffer.0)), raw, id: 0 };
        // SAFETY: the key is live.
        this.id = number("flexio_mkey_get_id", unsafe { (process.api().flexio_mkey_get_id)(raw.as_ptr()) })?;
        Ok(this)
    }

    /// The key, local and remote.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The buffer it covers.
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }
}

impl Drop for MemoryKey {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed only here.
        let status = unsafe { (self.buffer.process().api().flexio_device_mkey_destroy)(self.raw.as_ptr()) };
        warn_unless_destroyed("memory key", status);
    }
}
