//! Contexts of image `sparse`: threads that aggregate shards of a sparse AllReduce.
//!
//! No other image has them: [`crate::ABI_HASH`] leaves them out, and the thread's context carries the hash of its own
//! layout, which covers all that it leads to.

use crate::layout::{abi_codes, abi_struct};
use crate::{
    CompletionQueueMemory, ContextAddress, ContextMemory, ContextRefusal, HostLine, ReceiveQueueMemory, Rpc,
    SendQueueMemory, SpotMemory,
};

/// Checks a thread's context, its instances and workers, and posts receives. A refusal has the number of the instance
/// or worker at fault.
pub const PREPARE: Rpc<ContextAddress<SparseThread>, Result<(), ContextRefusal>> = Rpc::new("prepare");

/// Most blocks of a message: each has a bit in the immediate.
pub const SPARSE_BLOCKS: usize = 32;
/// Basic blocks of a worker's send queue at least: so many answers may be posted and not yet known to be complete.
pub const SPARSE_SENDS: u64 = 8;
/// Of [`SparseReport::look`]: a worker has not acknowledged all of its answers.
pub const SPARSE_LOOK_UNANSWERED: u64 = 1 << 31;

abi_codes! {
    /// What the elements of an operation are, all summed with wraparound.
    pub enum SparseElement {
        /// 32-bit integers.
        I32 = 1,
        /// 64-bit integers; pairs of fixed-point numbers, too.
        I64 = 2,
    }
}

abi_codes! {
    /// How an instance is, and why it has stopped. What [`SparseReport::found`] and [`SparseReport::limit`] mean is
    /// said with each.
    pub enum SparseStatus {
        /// It waits for messages, or for the next operation.
        Running = 0,
        /// A message of another length than its immediate says. Found: bytes; limit: bytes that it should have.
        Length = 1,
        /// A displacement with bits behind the last global block. Found: its bits; limit: global blocks.
        Displacement = 2,
        /// Block indices that do not ascend. Found: the index; limit: the one before it.
        Order = 3,
        /// A block index that is not behind the global ones. Found: the index; limit: the last global one.
        Behind = 4,
        /// A block index after a list of global indices that was not full. Found: the index; limit: indices of that
        /// list.
        AfterEnd = 5,
        /// Another element than there is. Found: its code; limit: the last code.
        Element = 6,
        /// A completion that is no send with immediate. Found: its owner and opcode byte.
        Opcode = 7,
        /// The connection to a worker is broken. Found: the syndrome of the completion.
        Connection = 8,
    }
}

abi_struct! {
    /// A thread that serves instances. Its device address is the argument of the event handler `sparse`. The host
    /// writes it once.
    #[size = 192, align = 64, memory]
    pub struct SparseThread {
        /// [`crate::Layout::HASH`] of this structure.
        pub layout_hash: u64,
        /// Outbox of the thread.
        pub outbox_id: u32,
        /// Window of the thread.
        pub window_id: u32,
        /// Memory key of the window.
        pub window_mkey: u32,
        /// Memory key of the slots.
        pub lkey: u32,
        /// Completions after which an activation lets others run.
        pub budget: u32,
        /// Number of the thread.
        pub thread: u32,
        /// CQ of all queue pairs of its instances.
        pub cq: CompletionQueueMemory,
        /// The instances.
        pub instances: ContextMemory<SparseInstance>,
        /// Their workers, those of an instance one behind another. The user index of a queue pair is its worker's place
        /// here.
        pub peers: ContextMemory<SparsePeer>,
        /// Receive and transmit slots of all instances.
        pub spots: SpotMemory,
        /// Host memory of [`SparseReport`]s: of the instances in their order.
        pub report_host: u64,
        /// Zero.
        pub reserved: u64,
        /// What it remembers (worker).
        pub state: SparseThreadState,
    }
}

abi_struct! {
    /// What a thread remembers. The host writes zeros at set-up.
    #[size = 64, align = 64]
    pub struct SparseThreadState {
        /// Completions consumed; never wraps.
        pub consumed: u64,
        /// Activations.
        pub activations: u64,
        /// Instructions in them.
        pub instructions: u64,
        /// Completions of no worker: of a queue pair with a user index that is none.
        pub strange: u64,
        /// Messages taken.
        pub messages: u64,
        /// 1 once outbox and window of the thread are configured.
        pub configured: u32,
        /// 1 after RPC `prepare` accepted the context.
        pub prepared: u32,
        /// The last [`SparseOperation::question`] that it has answered.
        pub answered: u64,
        /// Zero.
        pub reserved: u64,
    }
}

abi_struct! {
    /// One shard: a coroutine of the thread.
    #[size = 384, align = 64, memory]
    pub struct SparseInstance {
        /// Number of the shard.
        pub shard: u32,
        /// Workers.
        pub workers: u32,
        /// Bytes of a block; a multiple of 128.
        pub block_bytes: u32,
        /// Most blocks of a message.
        pub blocks_per_message: u32,
        /// Place of its first worker among the thread's.
        pub first_peer: u32,
        /// Bytes from slot to slot: those of the longest message, and a multiple of 64.
        pub spot_bytes: u32,
        /// Offset of its slots among the thread's: two transmit slots, then a receive slot for each worker.
        pub first_spot: u64,
        /// The operation, which the host writes before its own worker votes, and only if it is of another element than
        /// the one before.
        pub operation: HostLine<SparseOperation>,
        /// Zero.
        pub reserved: [u64; 3],
        /// What it remembers (thread).
        pub state: SparseInstanceState,
    }
}

abi_struct! {
    /// What an instance remembers. The host writes zeros at set-up.
    #[size = 320, align = 64]
    pub struct SparseInstanceState {
        /// Answers given, of all operations; never wraps.
        pub answers: u64,
        /// Operations that are over.
        pub operations: u64,
        /// Iteration of the operation under way, 0 being the one that only votes.
        pub iteration: u32,
        /// Messages of this iteration.
        pub arrived: u32,
        /// Blocks of this iteration: global indices.
        pub blocks: u32,
        /// Zero.
        pub reserved: u32,
        /// Votes are behind this index less one: behind the last global one.
        pub floor: u64,
        /// Which of `lists` has the best votes so far: 0 or 1.
        pub list: u32,
        /// A [`SparseElement`] code: of the operation under way.
        pub element: u32,
        /// A [`SparseStatus`] code.
        pub status: u32,
        /// Whose fault it is that the instance has stopped: the worker's number plus 1, as workers are notified.
        pub culprit: u32,
        /// Zero.
        pub reserved_2: u64,
        /// Ascending indices with the sentinel behind the last.
        pub lists: [[u32; SPARSE_BLOCKS]; 2],
    }
}

abi_struct! {
    /// A worker of an instance, and the queue pair to it.
    #[size = 128, align = 64, memory]
    pub struct SparsePeer {
        /// Receive queue: always one receive is posted, into the worker's slot.
        pub receive_queue: ReceiveQueueMemory,
        /// Send queue, [`SPARSE_SENDS`] basic blocks or more.
        pub send_queue: SendQueueMemory,
        /// Place of its instance among the thread's.
        pub instance: u32,
        /// Bytes of an answer that waits for room in the send queue; 0: none does (thread).
        pub owed_bytes: u32,
        /// Messages taken; never wraps (thread).
        pub received: u64,
        /// Entries posted to the send queue; never wraps (thread).
        pub produced: u64,
        /// Entries known to be complete (thread).
        pub completed: u64,
        /// Where the answer that waits lies (thread).
        pub owed_address: u64,
        /// Where the next block of its message lies among the thread's slots (thread).
        pub next_block: u64,
        /// Bit j: its message has block j (thread).
        pub present: u32,
        /// Zero.
        pub reserved: u32,
        /// Zero.
        pub reserved_2: u64,
    }
}

abi_struct! {
    /// What depends on an operation, in a line that the host rewrites.
    #[size = 64, align = 64]
    pub struct SparseOperation {
        /// A [`SparseElement`] code.
        pub element: u64,
        /// Number of the host's last question how far the thread is ([`SparseReport::look`]); 0: none. The host wakes
        /// the thread after it has written it.
        pub question: u64,
        /// Zero.
        pub reserved: [u64; 6],
    }
}

abi_struct! {
    /// What an instance reports in host memory when it stops: once. All zeros until then, but for what the host has
    /// asked for.
    #[size = 64, align = 64]
    pub struct SparseReport {
        /// A [`SparseStatus`] code. Written last.
        pub status: u64,
        /// The worker whose fault it is.
        pub worker: u64,
        /// Iteration of the operation under way, 0 being the one that only votes.
        pub iteration: u64,
        /// Operations that were over.
        pub operations: u64,
        /// See [`SparseStatus`].
        pub found: u64,
        /// See [`SparseStatus`].
        pub limit: u64,
        /// Of a thread's first instance, how far the thread is: the lower 32 bits of [`SparseOperation::question`] in
        /// the upper ones, [`SPARSE_LOOK_UNANSWERED`], and in bits 30:0 the number plus 1 of a worker whose message an
        /// operation under way waits for, 0 if there is none.
        pub look: u64,
        /// Zero.
        pub reserved: u64,
    }
}
