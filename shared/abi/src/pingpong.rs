//! Context of the `pingpong` image.

use crate::layout::abi_struct;
use crate::{CompletionQueueMemory, ContextAddress, ContextRefusal, ReceiveQueueMemory, Rpc, SendQueueMemory};

/// Returns its argument.
pub const ECHO: Rpc<u64, u64> = Rpc::new("echo");
/// Builds the ring entries of a context and posts its receives.
pub const PREPARE: Rpc<ContextAddress<PingPongContext>, Result<(), ContextRefusal>> = Rpc::new("prepare");

abi_struct! {
    /// A worker that answers every message on an RC or UC queue pair with a send of the same bytes. Its device address
    /// is the argument of the event handler `pong`. The host writes it once; both CQs are bound to the thread.
    #[size = 256, align = 64, memory]
    pub struct PingPongContext {
        /// [`crate::ABI_HASH`].
        pub abi_hash: u64,
        /// Outbox of the thread.
        pub outbox_id: u32,
        /// Memory key of the buffers.
        pub lkey: u32,
        /// Address of buffer 0 under `lkey`; one buffer per receive queue entry, received into and answered from.
        pub buffers: u64,
        /// Bytes from buffer to buffer, and capacity of each.
        pub buffer_bytes: u32,
        /// 1 once the ring entries are built and all receives posted (RPC `prepare`).
        pub prepared: u32,
        /// CQ of the receives.
        pub receive_cq: CompletionQueueMemory,
        /// Receive queue, 16-byte entries.
        pub receive_queue: ReceiveQueueMemory,
        /// CQ of the answers.
        pub send_cq: CompletionQueueMemory,
        /// Send queue, as deep as the receive queue.
        pub send_queue: SendQueueMemory,
        /// Messages received; never wraps (worker).
        pub consumed: u64,
        /// Answers completed (worker).
        pub completed: u64,
        /// Send completions consumed (worker).
        pub send_consumed: u64,
        /// Error completions (worker).
        pub errors: u64,
        /// 1 once the outbox is configured (worker).
        pub configured: u64,
        /// Zero.
        pub reserved: [u64; 7],
    }
}
