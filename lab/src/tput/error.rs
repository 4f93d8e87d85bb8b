//! Errors of a throughput run.

use flexcast_abi::{ContextFault, WorkerStatus};

use super::plan::PlanError;

/// Any failure of a run. Missing chunks are a result, not a failure.
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
        "bring-up: the image answered {answer:#x} to {argument:#x} instead of {expected:#x}; rebuild image and host from one source"
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
    /// A worker reported a failure.
    #[error("worker {worker} failed: {} (detail {detail:#x})", status_name(.status))]
    Worker {
        /// Index of the worker.
        worker: usize,
        /// A [`WorkerStatus`] code.
        status: u32,
        /// Syndrome, or [`ContextFault`] code.
        detail: u32,
    },
    /// A queue of the receiving card failed, and no completion tells it.
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
    /// The workers disagree with their own bitmaps.
    #[error(
        "worker {worker} says {remaining} chunks are missing, its bitmap lacks {missing}; this is a bug of the image"
    )]
    Inconsistent {
        /// Index of the worker.
        worker: usize,
        /// What its progress line says.
        remaining: u64,
        /// Clear bits of its bitmap.
        missing: u64,
    },
}

fn fault_name(code: &u64) -> String {
    let fault = u32::try_from(*code).ok().and_then(|code| ContextFault::from_raw(code).ok());
    fault.map_or_else(|| format!("unknown fault {code}"), |fault| format!("{fault:?} (fault {code})"))
}

fn status_name(code: &u32) -> String {
    WorkerStatus::from_raw(*code).map_or_else(|code| format!("unknown status {code}"), |status| format!("{status:?}"))
}
