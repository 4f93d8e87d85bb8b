//! Errors that end a calibration. A prediction that is wrong is a result, not a failure.

use emu_config::ConfigError;
use emu_machine::MachineError;
use emu_machine::timing::ParametersError;

use crate::tput::TputError;

/// Any failure of a calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A run of the receive kernels failed.
    #[error(transparent)]
    Run(#[from] TputError),
    /// Memory has no room for what is sent.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// A library or device failure.
    #[error(transparent)]
    Flexio(#[from] flexio::Error),
    /// A machine that cannot be.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The same, from its description.
    #[error(transparent)]
    Params(#[from] ConfigError),
    /// A parameter that cannot be.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The image refused a kernel's context.
    #[error("kernel {kernel}, thread {thread}: the image refused its context (fault {code})")]
    Context {
        /// What was to run.
        kernel: String,
        /// Which of its threads.
        thread: usize,
        /// A `ContextFault` code.
        code: u64,
    },
    /// A kernel met what it must not meet.
    #[error("kernel {kernel}: {errors} completions were not the expected ones; the figures would mean nothing")]
    Kernel {
        /// What ran.
        kernel: String,
        /// How many.
        errors: u64,
    },
    /// Packets stopped coming.
    #[error(
        "kernel {kernel}: nothing has moved for {quiet_us} us of virtual time after {done} of {wanted} messages; lost \
         on the way: {lost}"
    )]
    Stalled {
        /// What ran.
        kernel: String,
        /// How long.
        quiet_us: u64,
        /// Messages that came through.
        done: u64,
        /// Messages sent in all.
        wanted: u64,
        /// What ports and cards have dropped, by reason.
        lost: String,
    },
    /// A run without loss lost something, or delivered other bytes than were sent.
    #[error("{what}: {missing} chunks missing, bytes {}", if *.equal { "equal" } else { "DIFFER" })]
    Data {
        /// The run.
        what: String,
        /// Chunks.
        missing: u64,
        /// Whether what came is what was sent.
        equal: bool,
    },
    /// A run panicked: a bug of this program.
    #[error("{job} panicked: {message}; please report it with the command that was run")]
    Panicked {
        /// The run.
        job: String,
        /// What it said.
        message: String,
    },
    /// A machine without a timing model counts no accesses.
    #[error("the machine has no timing model: no accesses are counted")]
    Untimed,
}
