//! Workers of sparse AllReduces whose arrays are in the memory of an NVIDIA GPU. **Untested on hardware**: no part of
//! it has run on a GPU.
//!
//! [`Cuda`] is an [`Accelerator`](flexcast_sparse::Accelerator): a buffer in the GPU's memory that a card reaches
//! (GPUDirect RDMA), and two programs. One scans an array and copies it to the buffer in the same pass; the other
//! copies sums back. Their text is `programs.cu`, which NVRTC compiles for the GPU that is there. Driver and compiler
//! are loaded when they are needed: this crate builds, and programs with it start, where neither is. docs/gpu-worker.md
//! has what has been tested and how to try it.
//!
//! ```no_run
//! # use flexcast_sparse::{Call, Config, Order, Result, Settings, Worker};
//! # use flexcast_reduce::{DataType, Operator, Reduction};
//! # use flexcast_cuda::{Cuda, CudaArray};
//! # use flexio::{Device, ProtectionDomain};
//! # fn exchange(_: Vec<u8>) -> Vec<Vec<u8>> { Vec::new() }
//! # fn run(device: &Device, pd: &ProtectionDomain, own: u32, address: u64, bytes: u64, sum: Reduction) -> Result<()> {
//! // GPU 0, with a buffer for arrays of up to 256 MiB.
//! let gpu = Cuda::new(pd, 0, 256 << 20)?;
//! let settings = Settings::new(6, 2, 1, 1024, 16)?;
//! let (pending, info) = Worker::staged(gpu, settings, own, Config::default())?;
//! let mut worker = pending.connect(&exchange(info))?;
//! // SAFETY: `bytes` bytes at `address`, the GPU's, which no other work uses until the operation is over.
//! let mut array = unsafe { CudaArray::in_place(address, bytes) };
//! worker.begin(Call { bytes, shards_of_each: 1, reduction: sum, order: Order::Arrival })?;
//! while !worker.is_complete() {
//!     worker.progress(&mut array)?;
//!     device.provider().relax().relax();
//! }
//! # Ok(())
//! # }
//! ```

// Addresses of another device's memory, and calls of its driver; each says why it is sound.
#![allow(unsafe_code)]

mod array;
mod error;
mod gpu;
mod programs;
mod staging;

pub use array::CudaArray;
pub use error::CudaError;
pub use gpu::Cuda;
