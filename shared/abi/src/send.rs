//! Contexts of the send workers of image `allgather`, and what they report to the host.

use crate::layout::{abi_codes, abi_struct};
use crate::{
    CompletionQueueMemory, ContextAddress, ContextMemory, ContextRefusal, HostLine, ReceiveQueueMemory, Rpc,
    SendQueueMemory, Shared, Signals,
};

/// Checks a send worker's context and those of its receive contexts, and posts its control receives. A refusal has the
/// number of the context at fault.
pub const PREPARE_SEND: Rpc<ContextAddress<SendThread>, Result<(), ContextRefusal>> = Rpc::new("prepare_send");

abi_struct! {
    /// What to send, written by the host as one 64-byte line after the [`SendRun`]s of the send contexts, and followed
    /// by a message to the thread's control queue (see [`crate::receive_thread`]). The worker takes it over when
    /// `sequence` differs from its own and equals `sequence_check`, after what it sends is complete.
    #[size = 64, align = 64]
    pub struct SendOperation {
        /// Number of the operation: 1, 2, 3, ... up to 2^32 - 1. 0: none yet.
        pub sequence: u64,
        /// Bytes of every chunk but the last of a run; 1 to 2^31 - 1 (UC), on UD at most the path's MTU, which the
        /// worker cannot check.
        pub chunk_bytes: u32,
        /// Collective id, below 2^(32 - psn bits).
        pub collective_id: u32,
        /// Memory key of the source.
        pub lkey: u32,
        /// The operation is announced ([`SendReport::announced`]) as soon as the card has no more than this many chunks
        /// of all send contexts left to send, as far as completions show: the lookahead with which the next root may be
        /// activated. 0: when all are sent.
        pub lookahead_chunks: u32,
        /// [`crate::OPERATION_DEFERRED`], [`crate::OPERATION_CLOSED`] or 0. The host rewrites the line with the same
        /// `sequence` and the flag, and wakes the thread: the worker posts nothing more, waits for what is posted and
        /// finishes with [`SendStatus::Closed`].
        pub flags: u32,
        /// Zero.
        pub reserved: u32,
        /// Zero.
        pub reserved_2: [u64; 3],
        /// Equal to `sequence`; a mismatch means that the line is being written.
        pub sequence_check: u64,
    }
}

abi_struct! {
    /// The own block's run in one send context, written by the host as one 64-byte line before the [`SendOperation`].
    #[size = 64, align = 64]
    pub struct SendRun {
        /// Address of its first byte under the operation's `lkey`; the firmware never dereferences it.
        pub source: u64,
        /// Where the first chunk goes at the receivers: virtual address under `rkey` (UC; unused on UD).
        pub remote_address: u64,
        /// PSN of its first chunk; `first_psn` + `chunks` is at most 2^(psn bits).
        pub first_psn: u32,
        /// Number of chunks; may be 0.
        pub chunks: u32,
        /// Bytes of the last chunk, 1 to `chunk_bytes`; unused if there is none.
        pub last_chunk_bytes: u32,
        /// Memory key at the receivers (UC; unused on UD).
        pub rkey: u32,
        /// Zero.
        pub reserved: [u64; 4],
    }
}

abi_struct! {
    /// What a send context remembers. The host writes zeros at set-up and never touches it again.
    #[size = 64, align = 64]
    pub struct SendContextState {
        /// Basic blocks written to the send queue; never wraps.
        pub produced: u64,
        /// Basic blocks known to be complete.
        pub completed: u64,
        /// Send completions consumed.
        pub consumed: u64,
        /// Address of the next chunk of the run, under the operation's key.
        pub source: u64,
        /// Where it goes at the receivers (UC).
        pub remote_address: u64,
        /// Its PSN.
        pub psn: u32,
        /// [`SendRun::rkey`].
        pub rkey: u32,
        /// [`SendRun::last_chunk_bytes`].
        pub last_chunk_bytes: u32,
        /// Zero.
        pub reserved: u32,
        /// Chunks of the run not yet posted.
        pub left: u32,
        /// 1 once the queue is dead: an error completion came.
        pub dead: u32,
    }
}

abi_struct! {
    /// One queue pair of a send worker.
    #[size = 192, align = 64, memory]
    pub struct SendContext {
        /// Send queue; depth in basic blocks of 64 bytes. A chunk takes two on UD, one on UC.
        pub send_queue: SendQueueMemory,
        /// CQ of the sends, bound to this thread. Depth at least the number of chunks that fit the send queue.
        pub send_cq: CompletionQueueMemory,
        /// The 48 bytes of the address vector as they go into every entry (UD): queue key, destination QP number, GRH,
        /// MAC; see the datagram segment of the hardware layouts. Zero on UC.
        pub address_vector: [u64; 6],
        /// What to send (host).
        pub run: HostLine<SendRun>,
        /// Zero.
        pub reserved: u64,
        /// State (worker).
        pub state: SendContextState,
    }
}

abi_struct! {
    /// A send worker: posts the own block in batches, one doorbell and one signalled completion per batch, send context
    /// by send context in turn. Its device address is the argument of the event handler `send_blocks`.
    ///
    /// Life: as a [`crate::ReceiveThread`]'s, with RPC `prepare_send`.
    #[size = 384, align = 64, memory]
    pub struct SendThread {
        /// [`crate::ABI_HASH`].
        pub abi_hash: u64,
        /// [`crate::ABI_VERSION`].
        pub abi_version: u32,
        /// A [`crate::Transport`] code: UD sends with immediate, or UC writes with immediate.
        pub transport: u32,
        /// Chunks per doorbell and per signalled completion, 1 to half of what fits each send queue.
        pub batch: u32,
        /// Chunks after which an activation ends and asks to be run again; at least 1, rounded up to whole batches.
        pub budget: u32,
        /// Low bits of the immediate that hold the PSN, 1 to 31.
        pub psn_bits: u32,
        /// Outbox of the thread.
        pub outbox_id: u32,
        /// Window of the thread.
        pub window_id: u32,
        /// Memory key of the host memory that holds the report.
        pub window_mkey: u32,
        /// Number of this thread, for logs.
        pub thread: u32,
        /// Zero.
        pub reserved: u32,
        /// The send contexts, at least one; 64-byte aligned, of this thread alone.
        pub contexts: ContextMemory<SendContext>,
        /// Host address of this worker's [`SendReport`], 64-byte aligned.
        pub report_host: u64,
        /// The [`Signals`] by which the progress thread says when to send, and learns of announcement and end; none:
        /// the host does.
        pub signals: Shared<Signals>,
        /// The operation (host).
        pub operation: HostLine<SendOperation>,
        /// CQ of the control queue, as in [`crate::ReceiveThread`].
        pub control_cq: CompletionQueueMemory,
        /// Receive queue of the control connection, likewise.
        pub control_queue: ReceiveQueueMemory,
        /// Zero.
        pub reserved_2: [u64; 5],
        /// State (thread).
        pub state: SendThreadState,
    }
}

abi_struct! {
    /// What a send worker remembers between activations. The host writes zeros at set-up and never touches it again.
    #[size = 192, align = 64]
    pub struct SendThreadState {
        /// Copy of the operation under way.
        pub armed: SendOperation,
        /// Control completions consumed; never wraps.
        pub control_consumed: u64,
        /// Chunks of the operation not yet posted, all send contexts.
        pub left: u64,
        /// See [`SendReport::announced`].
        pub announced: u64,
        /// See [`SendReport::finished`].
        pub finished: u64,
        /// See [`SendReport::posted`].
        pub posted: u64,
        /// See [`SendReport::doorbells`].
        pub doorbells: u64,
        /// Activations.
        pub activations: u64,
        /// Instructions retired in them.
        pub instructions: u64,
        /// See [`SendReport::loop_instructions`].
        pub loop_instructions: u64,
        /// Send context whose turn is next.
        pub next_context: u32,
        /// Current status, a [`SendStatus`] code.
        pub status: u32,
        /// Detail of the status.
        pub detail: u32,
        /// 1 once the outbox and the window of the thread are configured.
        pub configured: u32,
        /// 1 after RPC `prepare_send` accepted the context.
        pub prepared: u32,
        /// 1 while the host's line holds something that the worker has not acted on.
        pub pending: u32,
        /// Zero.
        pub reserved: [u64; 4],
    }
}

abi_struct! {
    /// Progress of a send worker, in host memory, in a line that only this worker writes: when it announces, finishes,
    /// fails, and when it goes to sleep.
    #[size = 64, align = 64]
    pub struct SendReport {
        /// Sequence number of the last operation of which no more than `lookahead_chunks` chunks were left to send; or
        /// that has failed.
        pub announced: u64,
        /// Sequence number of the last operation that is over: the completions of the last batches of all send contexts
        /// have come, or it was closed or has failed and the card is done with what was posted of it. `status` says
        /// which; the source is no longer read.
        pub finished: u64,
        /// A [`SendStatus`] code.
        pub status: u32,
        /// Detail of the status: an error syndrome or a [`crate::ContextFault`] code; 0 when there is none.
        pub detail: u32,
        /// Chunks posted since set-up.
        pub posted: u64,
        /// Doorbells rung since set-up, one per batch.
        pub doorbells: u64,
        /// Activations of the thread so far.
        pub activations: u64,
        /// Instructions retired in all activations before this one.
        pub instructions: u64,
        /// Instructions retired in posting loops since set-up: divided by `posted` what a chunk costs.
        pub loop_instructions: u64,
    }
}

abi_codes! {
    /// State of a send worker as [`SendReport::status`] gives it.
    pub enum SendStatus {
        /// No operation yet.
        Idle = 0,
        /// Sending.
        Sending = 1,
        /// All chunks of the operation are sent.
        Finished = 2,
        /// The operation was closed before all its chunks were posted; what was posted is sent.
        Closed = 3,
        /// A send failed; detail = syndrome. Nothing more was posted. Its queue is dead: later operations are refused
        /// ([`crate::ContextFault::DeadQueue`]).
        SendError = 4,
        /// The operation does not fit the context; detail = [`crate::ContextFault`]. It is ignored.
        InvalidOperation = 5,
        /// An error completion on the control queue; detail = syndrome. The worker completes what it has and can no
        /// longer take messages.
        ControlError = 6,
        /// A completion with an opcode that a send does not produce; detail = the owner and opcode byte. Treated as a
        /// failed send.
        UnexpectedOpcode = 7,
    }
}

impl SendStatus {
    /// Whether the status is a failure.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self as u32 >= Self::SendError as u32
    }
}
