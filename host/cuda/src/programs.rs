//! The programs, compiled for the GPU that is there.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use crate::error::{CudaError, driver};

const TEXT: &str = include_str!("programs.cu");

/// Bytes that a thread copies at a time.
const VECTOR_BYTES: u32 = 16;
/// Threads that run in step: thread blocks are whole multiples.
const WARP: u32 = 32;
const MOST_THREADS: u32 = 256;
/// Enough thread blocks for any GPU; each takes several blocks of a long array.
const MOST_THREAD_BLOCKS: u32 = 1 << 16;

#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) scan: CudaFunction,
    pub(crate) copy_back: CudaFunction,
}

impl Programs {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let (major, minor) = context.compute_capability().map_err(driver("cuDeviceGetAttribute"))?;
        let architecture = format!("compute_{major}{minor}");
        let options = CompileOptions {
            name: Some("programs.cu".to_owned()),
            options: vec![format!("--gpu-architecture={architecture}")],
            ..CompileOptions::default()
        };
        let compiled = compile_ptx_with_opts(TEXT, options);
        let compiled = compiled.map_err(|source| CudaError::Compile { architecture, source })?;
        let module = context.load_module(compiled).map_err(driver("cuModuleLoadData"))?;
        let function = |name| module.load_function(name).map_err(driver("cuModuleGetFunction"));
        Ok(Self { scan: function("flexcast_scan")?, copy_back: function("flexcast_copy_back")? })
    }
}

/// Thread blocks, and threads of each, for so many blocks of an array.
pub(crate) const fn shape(blocks: u32, block_bytes: u32) -> (u32, u32) {
    let threads = block_bytes.div_ceil(VECTOR_BYTES).next_multiple_of(WARP);
    let threads = if threads < MOST_THREADS { threads } else { MOST_THREADS };
    (if blocks < MOST_THREAD_BLOCKS { blocks } else { MOST_THREAD_BLOCKS }, threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_copy_a_block_in_few_steps() {
        assert_eq!(shape(1, 4), (1, 32));
        assert_eq!(shape(100, 1024), (100, 64));
        assert_eq!(shape(u32::MAX - 1, 16 << 10), (1 << 16, 256));
    }
}
