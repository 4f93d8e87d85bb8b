//! Context of the receive threads of image `allgather`: each serves an array of [`crate::ReceiveContext`]s.
//!
//! The host drives a thread through a reliable connection between one of its queue pairs and one whose receive queue
//! lies in DPA memory, the thread's *control queue*. It writes lines into DPA memory by plain RDMA Writes
//! ([`crate::Placement`] and [`crate::Operation`] of one or more receive contexts) and ends with one Write with
//! immediate of no bytes, whose completion wakes the thread. What was written before on the same connection lies in
//! memory by then. The thread checks the operations of all its receive contexts after every such completion, and at
//! no other time. The immediate's value is free.

use crate::layout::abi_struct;
use crate::{
    CompletionQueueMemory, ContextAddress, ContextMemory, ContextRefusal, Placement, ReceiveContext,
    ReceiveQueueMemory, Rpc,
};

/// Checks a receive thread's context and its receive contexts, builds ring entries and posts receives. A refusal has
/// the number of the receive context at fault.
pub const PREPARE_RECEIVE: Rpc<ContextAddress<ReceiveThread>, Result<(), ContextRefusal>> = Rpc::new("prepare_receive");

abi_struct! {
    /// What a receive context remembers besides [`crate::ReceiveState`]. The host writes zeros at set-up and never
    /// touches it again.
    #[size = 128, align = 64]
    pub struct OperationState {
        /// Copy of the placement of the armed operation.
        pub placed: Placement,
        /// 2^64 / run chunks, rounded up; 0 where no division is needed.
        pub reciprocal: u64,
        /// Bytes from PSN to PSN where no division is needed.
        pub stride: u64,
        /// Destination of the current row, less first PSN x chunk bytes, modulo 2^64.
        pub row_base: u64,
        /// First PSN of the current row.
        pub row_first: u32,
        /// Chunks of the current row.
        pub row_chunks: u32,
        /// How addresses are computed: 0 by `stride`, 1 by `reciprocal`, 2 by the current row.
        pub mode: u32,
        /// Current row.
        pub row: u32,
        /// 1 once the armed operation is closed.
        pub closed: u32,
        /// 1 while the host's line holds something that the receive context has not acted on.
        pub pending: u32,
        /// 1 while the receive context must be settled before its thread sleeps.
        pub unsettled: u32,
        /// 1 once the copies' queue is dead (UD).
        pub dead: u32,
        /// Report request that came with the host's line.
        pub request: u64,
    }
}

abi_struct! {
    /// A thread that serves receive contexts. Its device address is the argument of the event handler `uc_receive` or
    /// `ud_receive`.
    ///
    /// Life: host creates queues, writes the receive contexts' contexts and this one, calls RPC `prepare_receive` with
    /// its address (which checks all, builds the ring entries, posts all receives; returns 0, or a
    /// [`crate::ContextFault`] in bits 31:0 and the receive context's number in bits 63:32), runs the event handler,
    /// wakes the thread once (RPC `activate`; from then on its queues are armed), then writes operations.
    #[size = 192, align = 64, memory]
    pub struct ReceiveThread {
        /// [`crate::ABI_HASH`].
        pub abi_hash: u64,
        /// [`crate::ABI_VERSION`].
        pub abi_version: u32,
        /// A [`crate::Transport`] code, the same as each receive context's; must match the event handler.
        pub transport: u32,
        /// Completions of all receive contexts after which an activation ends and asks to be run again; at least 1.
        /// Each receive context in its turn takes at most its own `budget`, rounded up to whole batches.
        pub budget: u32,
        /// Outbox of the thread.
        pub outbox_id: u32,
        /// Window of the thread.
        pub window_id: u32,
        /// Memory key of the host memory that holds flags, reports and bitmap copies of all receive contexts.
        pub window_mkey: u32,
        /// Number of this thread, for logs.
        pub thread: u32,
        /// Zero.
        pub reserved: u32,
        /// The receive contexts, at least one; 64-byte aligned, of this thread alone.
        pub contexts: ContextMemory<ReceiveContext>,
        /// Zero.
        pub reserved_2: u64,
        /// CQ of the control queue, bound to this thread. Depth at least the control queue's.
        pub control_cq: CompletionQueueMemory,
        /// Receive queue of the control connection (RC), 16-byte entries; each is posted without a scatter element's
        /// bytes, so that only Writes with immediate, and sends of no bytes, fit. The host keeps at most its depth of
        /// messages under way that the thread has not answered (by a progress line).
        pub control_queue: ReceiveQueueMemory,
        /// State (thread).
        pub state: ReceiveThreadState,
    }
}

abi_struct! {
    /// What a receive thread remembers between activations. The host writes zeros at set-up and never touches it again.
    #[size = 64, align = 64]
    pub struct ReceiveThreadState {
        /// Control completions consumed; never wraps.
        pub control_consumed: u64,
        /// Activations.
        pub activations: u64,
        /// Instructions retired in them.
        pub instructions: u64,
        /// Receive context whose turn is next.
        pub next_context: u32,
        /// 1 once the outbox and the window of the thread are configured.
        pub configured: u32,
        /// 1 after RPC `prepare_receive` accepted the context.
        pub prepared: u32,
        /// Zero.
        pub reserved: u32,
        /// Zero.
        pub reserved_2: [u64; 3],
    }
}
