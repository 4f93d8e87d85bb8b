//! The buffer in the GPU's memory, and its registration with a card.

use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};
use flexio::{Access, PeerRegion, ProtectionDomain};

use crate::error::{CudaError, driver};

/// Pages of the GPU's memory that are given to others are of so many bytes at most: an allocation of whole ones shares
/// none with another.
const PAGE_BYTES: usize = 2 << 20;

#[derive(Debug)]
pub(crate) struct Staging {
    // Goes before the memory.
    region: PeerRegion,
    memory: Memory,
}

/// An allocation that cards can be given: memory of the stream-ordered allocator cannot.
#[derive(Debug)]
struct Memory {
    context: Arc<CudaContext>,
    address: u64,
    bytes: usize,
}

impl Staging {
    pub(crate) fn new(pd: &ProtectionDomain, context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        let memory = Memory::new(context, bytes)?;
        let region = memory.register(pd)?;
        Ok(Self { region, memory })
    }

    pub(crate) const fn region(&self) -> &PeerRegion {
        &self.region
    }

    pub(crate) const fn address(&self) -> u64 {
        self.memory.address
    }
}

impl Memory {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX);
        context.bind_to_thread().map_err(driver("cuCtxSetCurrent"))?;
        // SAFETY: the context is this thread's.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(driver("cuMemAlloc"))?;
        let memory = Self { context: Arc::clone(context), address, bytes };
        // Copies that are said to be over are over for others on the bus as well.
        let yes: u32 = 1;
        // SAFETY: allocated just now; the attribute is a 32-bit number.
        let status = unsafe {
            sys::cuPointerSetAttribute(
                (&raw const yes).cast(),
                sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                address,
            )
        };
        status.result().map_err(driver("cuPointerSetAttribute"))?;
        Ok(memory)
    }

    /// By a dma-buf, or else by the address, which needs a module of the kernel.
    fn register(&self, pd: &ProtectionDomain) -> Result<PeerRegion, CudaError> {
        let dma_buf = match self.by_dma_buf(pd) {
            Ok(region) => return Ok(region),
            Err(why) => why,
        };
        tracing::debug!(%dma_buf, "the GPU's memory is registered by its address");
        // SAFETY: the memory is this object's, which outlives the region (`Staging`). Programs that access it run only
        // while no card is to.
        let region = unsafe { PeerRegion::by_address(pd, self.address, self.bytes, Access::LOCAL_WRITE) };
        region.map_err(|source| CudaError::Registration { dma_buf, source })
    }

    fn by_dma_buf(&self, pd: &ProtectionDomain) -> Result<PeerRegion, String> {
        let supported = self.context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
        if !supported.is_ok_and(|supported| supported != 0) {
            return Err("driver or GPU has none (NVIDIA's open kernel modules, 515 or later, have)".to_owned());
        }
        let mut descriptor = -1_i32;
        // SAFETY: the range is one allocation, in whole pages; the handle is a file descriptor, for which there is
        // room.
        let status = unsafe {
            sys::cuMemGetHandleForAddressRange(
                (&raw mut descriptor).cast(),
                self.address,
                self.bytes,
                sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            )
        };
        status.result().map_err(|error| driver("cuMemGetHandleForAddressRange")(error).to_string())?;
        // SAFETY: made just now, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: as in `register`; the dma-buf is of this memory.
        let region = unsafe {
            PeerRegion::by_dma_buf(pd, descriptor.as_fd(), 0, (self.address, self.bytes), Access::LOCAL_WRITE)
        };
        region.map_err(|error| error.to_string())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let bound = self.context.bind_to_thread();
        // SAFETY: allocated in `new`, and freed only here; the programs that use it are over, and the card's key is
        // gone.
        let freed = bound.and_then(|()| unsafe { result::free_sync(self.address) });
        if let Err(error) = freed {
            tracing::warn!(%error, "memory of the GPU could not be freed");
        }
    }
}
