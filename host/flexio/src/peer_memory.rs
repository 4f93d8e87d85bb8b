//! Memory of other devices on the bus, such as graphics processors, that cards may reach.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::addr::HostAddr;
use crate::device::ProtectionDomain;
use crate::error::{Error, Result};
use crate::memory::{Access, MemoryRegion};
use crate::posting::LocalSlice;
use crate::raw::Raw;

const PEER_MODULE: &str = "load the kernel module by which cards reach that device's memory (NVIDIA: modprobe \
    nvidia-peermem), or register the memory by its dma-buf";
const DMA_BUF: &str = "a dma-buf needs Linux 5.12, a card's driver that takes it, and the device's open kernel modules \
    (NVIDIA: 515 or later); or load nvidia-peermem and register the memory by its address";

/// Registered memory of another device. The host's processor never touches its bytes: there is no method that would.
/// Cards reach them by [`PeerRegion::slice`].
#[derive(Debug)]
pub struct PeerRegion(MemoryRegion);

impl PeerRegion {
    /// Registers memory by its address in this process, which the kernel module of the device's maker has to know.
    ///
    /// # Errors
    /// [`Error::PeerMemory`] if card or kernel refuses it; [`Error::OutOfRange`] for no bytes.
    ///
    /// # Safety
    /// All `len` bytes from `addr` on are allocated and stay so until the region is gone. While a card may reach them,
    /// whoever else accesses them allows for that.
    pub unsafe fn by_address(pd: &ProtectionDomain, addr: u64, len: usize, access: Access) -> Result<Self> {
        let start = start(addr, len)?;
        // SAFETY: the caller vouches for the memory. No method of the region that accesses bytes is ever called.
        let region = unsafe { MemoryRegion::register_raw(pd, start, len, access) };
        region.map(Self).map_err(|error| refused(error, addr, len, PEER_MODULE))
    }

    /// Registers memory by the dma-buf that its driver has made of it: `len` bytes at `offset` of that, which have the
    /// address `addr` in this process. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// As [`PeerRegion::by_address`].
    ///
    /// # Safety
    /// As [`PeerRegion::by_address`]; the dma-buf is of that memory.
    pub unsafe fn by_dma_buf(
        pd: &ProtectionDomain,
        dma_buf: BorrowedFd<'_>,
        offset: u64,
        (addr, len): (u64, usize),
        access: Access,
    ) -> Result<Self> {
        let start = start(addr, len)?;
        // SAFETY: the domain is live; the caller vouches for the memory, and the descriptor is open.
        let raw = unsafe {
            (pd.device().provider().verbs().ibv_reg_dmabuf_mr)(
                pd.raw(),
                offset,
                len,
                addr,
                dma_buf.as_raw_fd(),
                access.bits() as i32,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let errno = std::io::Error::last_os_error();
            let (call, bytes) = ("ibv_reg_dmabuf_mr", len as u64);
            return Err(Error::PeerMemory { call, errno, addr: HostAddr(addr), bytes, next: DMA_BUF });
        };
        Ok(Self(MemoryRegion::of(pd, (Raw::new(raw), access), start, len, None)))
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Always `false`; present because `len` is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `len` bytes at `offset` for a work request.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn slice(&self, offset: u64, len: u32) -> Result<LocalSlice> {
        self.0.slice(offset, len)
    }
}

// SAFETY: no method accesses the bytes.
unsafe impl Sync for PeerRegion {}

fn start(addr: u64, len: usize) -> Result<NonNull<u8>> {
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut(addr as usize));
    let limit = |limit: &str| limit.to_owned();
    match start {
        None => {
            Err(Error::OutOfRange { what: "address of another device's memory", value: 0, limit: limit("allocated") })
        }
        Some(_) if len == 0 => {
            Err(Error::OutOfRange { what: "length of a memory region", value: 0, limit: limit("at least 1") })
        }
        Some(start) => Ok(start),
    }
}

/// What a failed registration is when the memory is another device's.
fn refused(error: Error, addr: u64, len: usize, next: &'static str) -> Error {
    match error {
        Error::Verbs { call, errno, .. } => {
            Error::PeerMemory { call, errno, addr: HostAddr(addr), bytes: len as u64, next }
        }
        other => other,
    }
}
