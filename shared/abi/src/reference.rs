//! Contexts of image `reference`, the published receive kernels.
//!
//! No other image has them: [`crate::ABI_HASH`] leaves them out, and each context carries the hash of its own layout.

use crate::layout::{abi_codes, abi_struct};
use crate::{
    BitmapMemory, CompletionQueueMemory, ContextAddress, ContextRefusal, GroupContext, HostLine, ReceiveQueueMemory,
    Rpc, SendQueueMemory, Shared, Staging,
};

/// Checks a context, writes its receives and posts them.
pub const PREPARE: Rpc<ContextAddress<ReferenceContext>, Result<(), ContextRefusal>> = Rpc::new("prepare");

abi_codes! {
    /// How an iteration of a kernel has ended.
    pub enum ReferenceStatus {
        /// All chunks of this worker are there.
        Complete = 1,
        /// A chunk did not follow the one before it; detail = its number. The published kernels do not repair losses.
        Gap = 2,
        /// A completion with another opcode than the transport's; detail = the owner and opcode byte.
        Opcode = 3,
        /// The completion of a copy with another opcode than a requester's; detail = the owner and opcode byte.
        CopyOpcode = 4,
    }
}

abi_struct! {
    /// A worker of image `reference`. The host writes it before the thread runs, and the line of `iteration` between
    /// two iterations.
    #[size = 256, align = 64, memory]
    pub struct ReferenceContext {
        /// [`crate::Layout::HASH`] of this structure.
        pub layout_hash: u64,
        /// A [`crate::Transport`] code; must match the event handler.
        pub transport: u32,
        /// Workers that count themselves in `group`, at least 1.
        pub workers: u32,
        /// Outbox of the thread.
        pub outbox_id: u32,
        /// Window of the thread.
        pub window_id: u32,
        /// Memory key of the host memory that holds flag and report.
        pub window_mkey: u32,
        /// 1 once outbox and window are configured. The host writes 0.
        pub configured: u32,
        /// CQ of the receives, bound to this thread.
        pub receive_cq: CompletionQueueMemory,
        /// Receive queue of the UC or UD queue pair.
        pub receive_queue: ReceiveQueueMemory,
        /// CQ of the copies (UD).
        pub copy_cq: CompletionQueueMemory,
        /// Send queue of the loopback RC queue pair (UD): as deep as the receive queue.
        pub copy_queue: SendQueueMemory,
        /// Staging slots (UD).
        pub staging: Staging,
        /// Bitmap: a bit for each chunk of an iteration.
        pub bitmap: BitmapMemory,
        /// Where all workers count themselves.
        pub group: Shared<GroupContext>,
        /// Host address of the [`crate::CompletionFlag`].
        pub flag_host: u64,
        /// Host address of the [`ReferenceReport`].
        pub report_host: u64,
        /// Receive completions consumed since set-up.
        pub consumed: u64,
        /// Completions of copies consumed since set-up.
        pub copies_consumed: u64,
        /// Number of the last iteration that has ended.
        pub ended: u64,
        /// The iteration to carry out.
        pub iteration: HostLine<ReferenceIteration>,
        /// Zero.
        pub reserved: u64,
    }
}

abi_struct! {
    /// An iteration: one buffer.
    #[size = 64, align = 64]
    pub struct ReferenceIteration {
        /// Its number: 1, 2, 3, ... up to 2^32 - 1; the same for all workers. 0: none yet.
        pub sequence: u64,
        /// Where the first chunk goes: virtual address under `rkey` (UD).
        pub destination: u64,
        /// Memory key of the user buffer (UD).
        pub rkey: u32,
        /// Chunks, which come in order; at most the bits of the bitmap.
        pub chunks: u32,
        /// Bytes from chunk to chunk (UD).
        pub chunk_bytes: u32,
        /// Whether each completion is counted by itself, as published ([`ReferenceReport::poll_instructions`]): 1 or 0.
        pub counted: u32,
        /// Zero.
        pub reserved: [u64; 4],
    }
}

abi_struct! {
    /// What a worker reports in host memory when an iteration has ended. Counts are of this iteration.
    #[size = 128, align = 64]
    pub struct ReferenceReport {
        /// Completions consumed.
        pub cqes: u64,
        /// Instructions retired from the first completion seen to the last, polls of an empty queue among them.
        pub instructions: u64,
        /// Cycles, likewise.
        pub cycles: u64,
        /// Instructions of all polls that found a completion, from the poll on, counters included (counted iterations
        /// only).
        pub poll_instructions: u64,
        /// Cycles, likewise.
        pub poll_cycles: u64,
        /// Instructions of the loop's body alone (counted iterations only).
        pub body_instructions: u64,
        /// Cycles, likewise.
        pub body_cycles: u64,
        /// Completions of copies.
        pub copy_cqes: u64,
        /// A [`ReferenceStatus`] code.
        pub status: u32,
        /// Detail of the status.
        pub detail: u32,
        /// Zero.
        pub reserved: [u64; 6],
        /// Number of the iteration, written last.
        pub sequence: u64,
    }
}
