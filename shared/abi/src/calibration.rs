//! Contexts of image `calibration`, whose kernels repeat published measurements.
//!
//! No other image has them: [`crate::ABI_HASH`] leaves them out, and each context carries the hash of its own layout.

use crate::layout::{abi_codes, abi_struct};
use crate::{
    Activation, CompletionQueueMemory, ContextAddress, ContextRefusal, MeasuredMemory, ReceiveQueueMemory, Rpc,
    SendQueueMemory, Shared, SharedBitmapMemory, TableMemory,
};

/// Builds the entries of a context's receive queue and posts them.
pub const PREPARE: Rpc<ContextAddress<KernelContext>, Result<(), ContextRefusal>> = Rpc::new("prepare");
/// Wakes all threads of [`KernelContext::activation_ids`].
pub const START: Rpc<ContextAddress<KernelContext>, Activation> = Rpc::new("start");

abi_codes! {
    /// What the event handler `measure` does.
    pub enum Kernel {
        /// Follows pointers through DPA memory.
        ChaseMemory = 1,
        /// The same through the window.
        ChaseHost = 2,
        /// Reads words of DPA memory one after the other.
        ReadMemory = 3,
        /// The same through the window.
        ReadHost = 4,
        /// Writes lines of DPA memory.
        WriteMemory = 5,
        /// The same through the window.
        WriteHost = 6,
        /// Operations of ten dependent loads from DPA memory and two through the window.
        Chain = 7,
    }
}

/// The line that follows line `line` in the chain's ring of `lines` lines, a power of two: a linear congruential
/// generator of full period (factor 1 modulo 4, increment odd), an order that no prefetcher knows.
#[must_use]
pub const fn next_line(line: u64, lines: u64) -> u64 {
    line.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & lines.wrapping_sub(1)
}

abi_struct! {
    /// A thread of image `calibration`. The host writes it once, before the thread runs.
    #[size = 384, align = 64, memory]
    pub struct KernelContext {
        /// [`crate::Layout::HASH`] of this structure.
        pub layout_hash: u64,
        /// A [`Kernel`] code; unused by the handlers `packets` and `echo`.
        pub kernel: u32,
        /// Threads that begin together, at the barrier.
        pub threads: u32,
        /// Outbox of the thread.
        pub outbox_id: u32,
        /// Window of the thread.
        pub window_id: u32,
        /// Memory key of the window.
        pub window_mkey: u32,
        /// Key of `buffers` (echo).
        pub lkey: u32,
        /// The barrier that all threads share.
        pub barrier: Shared<BarrierLine>,
        /// Memory of this thread, or of all (chain, where it has a power of two of lines).
        pub memory: MeasuredMemory,
        /// Activation ids of the threads that RPC `start` wakes.
        pub activation_ids: TableMemory<u64>,
        /// Host memory of this thread, or of all (chain), under `window_mkey`: whole lines.
        pub host: u64,
        /// Its bytes; a power of two (chain).
        pub host_bytes: u64,
        /// First of the lines of `memory` that this thread makes part of the ring (chain).
        pub first_line: u64,
        /// How many these are.
        pub own_lines: u64,
        /// What is measured: loads, passes over the memory, operations, packets or datagrams.
        pub count: u64,
        /// Bits of packets, shared by all threads (packets).
        pub packet_bits: SharedBitmapMemory,
        /// [`MessageRow`]s by message number (packets).
        pub messages: TableMemory<MessageRow>,
        /// Zero.
        pub reserved: u32,
        /// Bytes from buffer to buffer (echo).
        pub buffer_bytes: u32,
        /// Bits of bitmap chunks in host memory (packets): whole words of this thread.
        pub chunk_bits_host: u64,
        /// [`KernelResult`] in host memory.
        pub result_host: u64,
        /// Buffers of the receive entries, under `lkey` (echo).
        pub buffers: u64,
        /// Line of `memory` at which this thread begins to follow the ring (chain).
        pub start_line: u64,
        /// CQ of the receives (packets, echo).
        pub receive_cq: CompletionQueueMemory,
        /// Receive queue (packets, echo).
        pub receive_queue: ReceiveQueueMemory,
        /// CQ of the sends (echo).
        pub send_cq: CompletionQueueMemory,
        /// Send queue; two basic blocks an entry (echo).
        pub send_queue: SendQueueMemory,
        /// Whom to answer: an address vector (echo).
        pub address_vector: [u64; 6],
        /// Zero.
        pub reserved_2: [u64; 3],
    }
}

abi_struct! {
    /// Where threads wait for one another.
    #[size = 64, align = 64]
    pub struct BarrierLine {
        /// Threads that have come; 0 at set-up.
        pub arrived: u64,
        /// Zero.
        pub reserved: [u64; 7],
    }
}

abi_struct! {
    /// A message that packets belong to (packets).
    #[size = 16, align = 8]
    pub struct MessageRow {
        /// Word of the packet bits with the first packet's.
        pub first_word: u64,
        /// log2 of the packets of a bitmap chunk, 0 to 6.
        pub log_chunk: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// What a kernel reports through its window when it has ended.
    #[size = 64, align = 64]
    pub struct KernelResult {
        /// Time of the device at which what is measured began, in nanoseconds.
        pub begin_ns: u64,
        /// The same of the end.
        pub end_ns: u64,
        /// Cycles in between.
        pub cycles: u64,
        /// Instructions in between.
        pub instructions: u64,
        /// Completions that were no receives, or other things that must not be.
        pub errors: u64,
        /// Depends on what the loads found, so that none can be left out.
        pub found: u64,
        /// Zero.
        pub reserved: u64,
        /// 1, written last.
        pub done: u64,
    }
}
