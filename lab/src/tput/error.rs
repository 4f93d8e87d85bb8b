//! Errors of a throughput run.

use flexcast_abi::ContextFault;
use flexcast_abi::reference::ReferenceStatus;

use super::plan::PlanError;

/// Any failure of a run.
#[derive(Debug, thiserror::Error)]
pub enum TputError {
    /// The parameters cannot be run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Memory has no room for the buffer.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// A library or device failure.
    #[error(transparent)]
    Flexio(#[from] flexio::Error),
    /// The image answered the bring-up call with a wrong value.
    #[error(
        "bring-up: the image answered {answer:#x} to {argument:#x} instead of {expected:#x}; rebuild image and host \
         from one source"
    )]
    BringUp {
        /// What was passed.
        argument: u64,
        /// What came back.
        answer: u64,
        /// What should have.
        expected: u64,
    },
    /// The image refused a worker's context.
    #[error("worker {worker}: the image refused its context: {}", fault_name(.code))]
    Context {
        /// Index of the worker.
        worker: usize,
        /// A [`ContextFault`] code.
        code: u64,
    },
    /// The collective library refused something, or the operation failed.
    #[error(transparent)]
    Collective(flexcast::Error),
    /// The two processes do not come together, or have different options.
    #[error(transparent)]
    Peer(#[from] crate::agreement::AgreementError),
    /// What the other process sent cannot be read.
    #[error("rank {rank} sent no figures of this command: run one build on both hosts")]
    Figures {
        /// The rank.
        rank: u32,
    },
    /// An option whose value the communicator cannot have.
    #[error("{option} {value}: must be {limit}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        limit: String,
    },
    /// A published kernel ended an iteration before its end.
    #[error("worker {worker} of image reference ended early: {} (detail {detail:#x}); it repairs no loss", kernel_status(.status))]
    Kernel {
        /// Index of the worker.
        worker: usize,
        /// A [`ReferenceStatus`] code.
        status: u32,
        /// Chunk number, or owner and opcode byte.
        detail: u32,
    },
    /// Nothing moves any more.
    #[error("nothing has moved for {quiet_us} us: something was lost, which the published kernels do not repair")]
    Stalled {
        /// How long.
        quiet_us: u64,
    },
    /// Bytes that are not those sent.
    #[error("iteration {iteration}: bytes differ from those sent; this is a bug of the image")]
    Differs {
        /// Which one, from 0.
        iteration: u32,
    },
    /// The parameters of the published kernels cannot be run.
    #[error(transparent)]
    Reference(#[from] crate::reference::plan::PlanError),
    /// A queue of the receiving card failed, and no completion reports it.
    #[error("the card reports: {event}")]
    Card {
        /// What the card reported first.
        event: flexio::AsyncEvent,
    },
    /// The emulated machine saw accesses to memory that its owner had given away, or not yet given.
    #[error(
        "races for memory: {count}, the first: {}; between two accesses a fence, a writeback or a completion is missing", first.kind
    )]
    Races {
        /// How many, repetitions included.
        count: u64,
        /// The first.
        first: Box<emu_machine::Race>,
    },
    /// The emulated machine refused something.
    #[error(transparent)]
    Emulator(#[from] emu_machine::MachineError),
}

fn fault_name(code: &u64) -> String {
    let fault = u32::try_from(*code).ok().and_then(|code| ContextFault::from_raw(code).ok());
    fault.map_or_else(|| format!("unknown fault {code}"), |fault| format!("{fault:?} (fault {code})"))
}

fn kernel_status(code: &u32) -> String {
    ReferenceStatus::from_raw(*code)
        .map_or_else(|code| format!("unknown status {code}"), |status| format!("{status:?}"))
}

impl From<flexcast::Error> for TputError {
    /// Parameters of the communicator have the names of the options that they come from.
    fn from(error: flexcast::Error) -> Self {
        let flexcast::Error::Config { what, value, limit } = error else { return Self::Collective(error) };
        let option = match what {
            "subgroups" | "receive_threads" => "--threads",
            "send_threads" => "--send-threads",
            "chunk_bytes" => "--chunk",
            "receive_batch" => "--batch",
            "slots" => "--slots",
            _ => return Self::Collective(flexcast::Error::Config { what, value, limit }),
        };
        Self::Option { option, value, limit }
    }
}
