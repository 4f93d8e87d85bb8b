//! Errors, with the next step.

use cudarc::driver::DriverError;
use cudarc::nvrtc::CompileError;

/// Why an accelerator cannot be had, or what it has failed to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No driver.
    #[error(
        "there is no CUDA driver: libcuda.so.1 cannot be loaded; install the GPU's driver, or add the library's folder \
         to LD_LIBRARY_PATH"
    )]
    NoDriver,
    /// No compiler.
    #[error(
        "there is no CUDA compiler: libnvrtc.so.12 cannot be loaded; install NVRTC (CUDA toolkit 12, or the Python \
         package nvidia-cuda-nvrtc-cu12), or add the library's folder to LD_LIBRARY_PATH"
    )]
    NoCompiler,
    /// The driver is of another time.
    #[error("the CUDA driver has version {major}.{minor}; update it to {least_major}.{least_minor} or later", major = .found / 1000, minor = .found % 1000 / 10, least_major = .least / 1000, least_minor = .least % 1000 / 10)]
    OldDriver {
        /// Its version, as CUDA counts.
        found: i32,
        /// The oldest that will do.
        least: i32,
    },
    /// No such accelerator.
    #[error(
        "there is no GPU {ordinal}: the driver has {count}; choose one below that (CUDA_VISIBLE_DEVICES hides some)"
    )]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// Number of those there are.
        count: i32,
    },
    /// The programs cannot be compiled.
    #[error("the programs cannot be compiled for {architecture}; does this NVRTC know that GPU?")]
    Compile {
        /// What they were compiled for.
        architecture: String,
        /// What the compiler says.
        #[source]
        source: CompileError,
    },
    /// The driver refused something.
    #[error("{call} failed: {}{}", name(*.status), next(.call))]
    Driver {
        /// The C function, or what it was for.
        call: &'static str,
        /// Its status.
        status: DriverError,
    },
    /// The card does not reach the buffer.
    #[error("the card cannot be given the GPU's memory; by a dma-buf: {dma_buf}")]
    Registration {
        /// Why not by a dma-buf.
        dma_buf: String,
        /// Why not by its address.
        #[source]
        source: flexio::Error,
    },
}

flexcast_error::debug_as_display!(CudaError);

fn name(status: DriverError) -> String {
    let text = status.error_string().ok().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|| format!("status {:?}", status.0))
}

/// What may help.
fn next(call: &str) -> &'static str {
    match call {
        "cuModuleLoadData" => "; is this NVRTC newer than the driver? Take one of the driver's version",
        "cuMemAlloc" => "; choose a shorter buffer, or free memory of the GPU",
        _ => "",
    }
}

/// Why a call failed.
pub(crate) const fn driver(call: &'static str) -> impl FnOnce(DriverError) -> CudaError {
    move |status| CudaError::Driver { call, status }
}
