//! Reports of firmware in host memory, written through its window. Windows are written back in whole 64-byte lines, so
//! every writer has lines of its own.

use crate::layout::{abi_codes, abi_struct};

/// Base of the completion flag: the flag of operation `n` is `FLAG_MAGIC + n`.
pub const FLAG_MAGIC: u64 = 0xF1EC_CA57_0000_0000;

abi_struct! {
    /// The completion flag of a group of workers, in host memory, in a line of its own.
    #[size = 64, align = 64]
    pub struct CompletionFlag {
        /// 0 before the first operation; then [`FLAG_MAGIC`] + sequence number of the last complete operation. Written
        /// by the worker that finishes last, after all chunks of all workers lie in the user buffer.
        pub value: u64,
        /// Zero.
        pub reserved: [u64; 7],
    }
}

/// Completions after which a receive context writes its [`ProgressLine`], whatever the length of a batch. It also does
/// before its thread gives the processor back. So the host does not take a busy thread for a stream that has stalled. A
/// power of two.
pub const PROGRESS_EVERY: u32 = 64;

abi_struct! {
    /// Progress of one worker, in host memory. `receives_posted` is written with every batch; all of it after
    /// [`PROGRESS_EVERY`] completions of a longer one, and when the worker goes to sleep, ends an activation, finishes,
    /// reports or fails.
    #[size = 64, align = 64]
    pub struct ProgressLine {
        /// Sequence number of the operation the worker is armed for: its bitmap is clear and its receives are posted;
        /// or which it has refused ([`ReceiveStatus::InvalidOperation`]). 0: none.
        pub sequence: u64,
        /// Receives posted since set-up: the credit of the senders. A sender that never has sent more messages than
        /// this since set-up cannot overrun the receive queue. 0 until the first activation; then at least the receive
        /// depth; never decreases. A lost message uses no receive: a sender that sees no change for longer than
        /// messages live may count what is in flight as lost.
        pub receives_posted: u64,
        /// Receive completions consumed since set-up, good or bad.
        pub consumed: u64,
        /// Chunks of the operation not yet received.
        pub remaining: u64,
        /// Number of the last report request answered: bitmap and statistics in host memory are up to date for it.
        pub reported: u64,
        /// A [`ReceiveStatus`] code.
        pub status: u32,
        /// Detail of the status: an error syndrome or a [`crate::ContextFault`] code; 0 when there is none.
        pub detail: u32,
        /// Copies (UD) issued and not yet completed.
        pub outstanding: u64,
        /// Number of the last report, asked for or not, since set-up: bitmap and statistics in host memory are up to
        /// date for it.
        pub reports: u64,
    }
}

abi_struct! {
    /// Counters of one worker since set-up, except where said.
    #[size = 128, align = 64]
    pub struct Statistics {
        /// Receive completions consumed.
        pub cqes: u64,
        /// Chunks accepted: their bit went from 0 to 1.
        pub accepted: u64,
        /// Chunks discarded because their bit was set.
        pub duplicates: u64,
        /// Chunks discarded because their PSN is not below the operation's chunk count.
        pub out_of_range: u64,
        /// Chunks discarded because of another collective id or user index, or because their operation is closed.
        pub wrong_id: u64,
        /// Chunks discarded because of their length.
        pub wrong_length: u64,
        /// Completions with an opcode that the transport does not produce.
        pub unexpected_opcode: u64,
        /// Error completions, receive and copy.
        pub error_cqes: u64,
        /// Activations of the thread; of a receive context: how often it got something to do after it had none.
        pub activations: u64,
        /// Completions of copies (UD: one per batch and one per drained partial batch).
        pub copy_cqes: u64,
        /// Instructions retired, from handler entry to the end of the loop, summed over activations; of a receive
        /// context: those spent on it.
        pub instructions: u64,
        /// Cycles, likewise.
        pub cycles: u64,
        /// Completions consumed in drain loops: from the first poll of a round to the poll that finds the ring empty.
        pub loop_cqes: u64,
        /// Instructions retired there, batches that an empty ring cut short included.
        pub loop_instructions: u64,
        /// Cycles there.
        pub loop_cycles: u64,
        /// Cycles of the longest activation; of a receive context: of its longest turn.
        pub longest_activation_cycles: u64,
    }
}

abi_struct! {
    /// Host memory of one worker: three lines that only this worker writes.
    #[size = 192, align = 64]
    pub struct ReceiveReport {
        /// Progress, updated all the time.
        pub progress: ProgressLine,
        /// Counters, updated on completion, on report requests and on errors.
        pub statistics: Statistics,
    }
}

abi_codes! {
    /// State of a worker as [`ProgressLine::status`] gives it.
    pub enum ReceiveStatus {
        /// No operation yet.
        Idle = 0,
        /// Receiving.
        Armed = 1,
        /// All chunks of this worker lie in the user buffer.
        Complete = 2,
        /// An error completion on the receive queue; detail = syndrome. The thread stays armed.
        ReceiveError = 3,
        /// A copy failed; detail = syndrome. The operation cannot complete.
        CopyError = 4,
        /// The operation does not fit the context; detail = [`crate::ContextFault`]. It is ignored.
        InvalidOperation = 5,
        /// A completion with an opcode that the transport does not produce; detail = the owner and opcode byte.
        UnexpectedOpcode = 6,
        /// An error completion on the control queue of the receive context's thread; detail = syndrome. The thread goes
        /// on with what it has and can no longer take messages.
        ControlError = 7,
    }
}

impl ReceiveStatus {
    /// Whether the status is a failure.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self as u32 >= Self::ReceiveError as u32
    }
}
