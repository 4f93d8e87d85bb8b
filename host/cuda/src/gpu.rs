//! A GPU as a worker's accelerator.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DriverError, LaunchConfig, PinnedHostSlice, PushKernelArg as _, sys,
};
use flexcast_sparse::{Accelerator, Error, Result, Stretch};
use flexio::{PeerRegion, ProtectionDomain};

use crate::array::CudaArray;
use crate::error::{CudaError, driver};
use crate::programs::{Programs, shape};
use crate::staging::Staging;

/// The oldest driver with dma-bufs, as CUDA counts versions.
const LEAST_DRIVER: i32 = 11_070;

/// A GPU, the buffer in its memory, and its programs. See the crate's text.
#[derive(Debug)]
pub struct Cuda {
    staging: Staging,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    programs: Programs,
    /// Whether what cards have written is flushed before programs read it.
    flushes: bool,
    scans: VecDeque<Started>,
    copies: VecDeque<Started>,
    spare: Vec<Bits>,
}

/// A bitmap there and here.
#[derive(Debug)]
struct Bits {
    device: CudaSlice<u32>,
    host: PinnedHostSlice<u32>,
}

/// A program, and the copy of its bitmap, that may be under way.
#[derive(Debug)]
struct Started {
    bits: Bits,
    over: CudaEvent,
}

/// What the driver says, as an error of a worker.
fn cannot(what: &str) -> impl FnOnce(DriverError) -> Error {
    let what = what.to_owned();
    move |status| Error::Accelerator { what, source: Box::new(CudaError::Driver { call: "the driver", status }) }
}

impl Cuda {
    /// GPU `ordinal`, as the driver counts, with a buffer of at least `bytes` bytes that the card of the protection
    /// domain may write.
    ///
    /// # Errors
    /// [`Error::Accelerator`], whose source is a [`CudaError`]: there is no driver or compiler, no such GPU or no
    /// memory, or the card does not reach its memory.
    pub fn new(pd: &ProtectionDomain, ordinal: usize, bytes: usize) -> Result<Self> {
        Self::open(pd, ordinal, bytes).map_err(|error| Error::Accelerator {
            what: format!("be had, GPU {ordinal} with a buffer of {bytes} bytes"),
            source: Box::new(error),
        })
    }

    fn open(pd: &ProtectionDomain, ordinal: usize, bytes: usize) -> std::result::Result<Self, CudaError> {
        // Everything else of the driver and the compiler takes for granted that they are there.
        // SAFETY: the initialisers that run are those of the vendor's libraries.
        let (has_driver, has_compiler) = unsafe { (sys::is_culib_present(), cudarc::nvrtc::sys::is_culib_present()) };
        if !has_driver {
            return Err(CudaError::NoDriver);
        }
        if !has_compiler {
            return Err(CudaError::NoCompiler);
        }
        let mut found = 0;
        // SAFETY: there is room for the number.
        unsafe { sys::cuDriverGetVersion(&raw mut found) }.result().map_err(driver("cuDriverGetVersion"))?;
        if found < LEAST_DRIVER {
            return Err(CudaError::OldDriver { found, least: LEAST_DRIVER });
        }
        cudarc::driver::result::init().map_err(driver("cuInit"))?;
        let count = CudaContext::device_count().map_err(driver("cuDeviceGetCount"))?;
        if ordinal >= usize::try_from(count).unwrap_or(0) {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(driver("cuDevicePrimaryCtxRetain"))?;
        let stream = context.new_stream().map_err(driver("cuStreamCreate"))?;
        let programs = Programs::new(&context)?;
        let flushes = flushes(&context).map_err(driver("cuDeviceGetAttribute"))?;
        let staging = Staging::new(pd, &context, bytes)?;
        let (scans, copies, spare) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Ok(Self { staging, context, stream, programs, flushes, scans, copies, spare })
    }

    /// A bitmap with room for so many words.
    fn bits(&mut self, words: usize) -> std::result::Result<Bits, DriverError> {
        if let Some(at) = self.spare.iter().position(|bits| bits.host.len() >= words) {
            return Ok(self.spare.swap_remove(at));
        }
        let device = self.stream.alloc_zeros(words)?;
        // SAFETY: whatever it holds is a number; it is written before it is read.
        let host = unsafe { self.context.alloc_pinned_with_flags(words, 0) }?;
        Ok(Bits { device, host })
    }

    fn start_scan(&mut self, contribution: u64, stretch: Stretch) -> std::result::Result<(), DriverError> {
        let words = stretch.words();
        let Bits { mut device, mut host } = self.bits(words)?;
        self.stream.memset_zeros(&mut device.slice_mut(..words))?;
        let addresses = (contribution + stretch.first_byte, self.staging.address() + stretch.first_byte);
        let mut launch = self.stream.launch_builder(&self.programs.scan);
        launch.arg(&addresses.0).arg(&addresses.1).arg(&stretch.bytes).arg(&stretch.block_bytes).arg(&mut device);
        // SAFETY: the arguments are those of the program. The stretch is in the array, which its maker vouches for, and
        // in the buffer, of which the worker has asked for the length; the bitmap has a bit for each block.
        unsafe { launch.launch(config(&stretch)) }?;
        self.stream.memcpy_dtoh(&device, &mut host)?;
        let over = self.stream.record_event(None)?;
        self.scans.push_back(Started { bits: Bits { device, host }, over });
        Ok(())
    }

    fn start_copy(
        &mut self,
        (result, clears): (u64, bool),
        stretch: Stretch,
        sums: &[u32],
    ) -> std::result::Result<(), DriverError> {
        if self.flushes {
            self.context.bind_to_thread()?;
            // SAFETY: the context is this thread's.
            let status = unsafe {
                sys::cuFlushGPUDirectRDMAWrites(
                    sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                    sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
                )
            };
            status.result()?;
        }
        let words = sums.len();
        // Both are as long: all of it is copied, and the program reads the first words.
        let Bits { mut device, mut host } = self.bits(words)?;
        host.as_mut_slice()?[..words].copy_from_slice(sums);
        self.stream.memcpy_htod(&host, &mut device)?;
        let addresses = (result + stretch.first_byte, self.staging.address() + stretch.first_byte);
        let clears = u32::from(clears);
        let mut launch = self.stream.launch_builder(&self.programs.copy_back);
        launch.arg(&addresses.0).arg(&addresses.1).arg(&stretch.bytes).arg(&stretch.block_bytes).arg(&device);
        launch.arg(&clears);
        // SAFETY: as in `start_scan`.
        unsafe { launch.launch(config(&stretch)) }?;
        let over = self.stream.record_event(None)?;
        self.copies.push_back(Started { bits: Bits { device, host }, over });
        Ok(())
    }
}

/// Whether the driver has a flush for cards' writes, and the GPU needs it.
fn flushes(context: &CudaContext) -> std::result::Result<bool, DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let ordering = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
    let options = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
    let (owner, host) = (
        sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32,
        sys::CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as i32,
    );
    Ok(ordering < owner && options & host != 0)
}

fn config(stretch: &Stretch) -> LaunchConfig {
    let (blocks, threads) = shape(stretch.blocks(), stretch.block_bytes);
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

impl Accelerator for Cuda {
    type Array = CudaArray;

    fn staging(&self) -> &PeerRegion {
        self.staging.region()
    }

    fn bytes(&self, array: &CudaArray) -> u64 {
        array.bytes()
    }

    fn scan(&mut self, array: &CudaArray, stretch: Stretch) -> Result<()> {
        self.start_scan(array.contribution(), stretch).map_err(cannot("scan an array"))
    }

    fn scanned(&mut self, found: &mut [u32]) -> Result<bool> {
        let why = || cannot("scan an array");
        let Some(first) = self.scans.front() else { return Ok(false) };
        if !first.over.try_is_complete().map_err(why())? {
            return Ok(false);
        }
        let Some(Started { bits, .. }) = self.scans.pop_front() else { return Ok(false) };
        found.copy_from_slice(&bits.host.as_slice().map_err(why())?[..found.len()]);
        self.spare.push(bits);
        Ok(true)
    }

    fn copy_back(&mut self, array: &mut CudaArray, stretch: Stretch, sums: &[u32]) -> Result<()> {
        self.start_copy((array.result(), array.clears()), stretch, sums).map_err(cannot("copy sums to an array"))
    }

    fn is_copied(&mut self) -> Result<bool> {
        while let Some(first) = self.copies.front() {
            if !first.over.try_is_complete().map_err(cannot("copy sums to an array"))? {
                return Ok(false);
            }
            self.spare.extend(self.copies.pop_front().map(|started| started.bits));
        }
        Ok(true)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Programs may still use arrays and the buffer.
        if let Err(error) = self.stream.synchronize() {
            tracing::warn!(%error, "programs of the GPU have failed");
        }
    }
}
