//! Contexts of the receive workers, in DPA memory.

use crate::layout::{abi_codes, abi_struct};
use crate::{
    BitmapMemory, CompletionQueueMemory, HostLine, OperationState, Placement, ReceiveQueueMemory, RunRow,
    SendQueueMemory, Shared, Signals, Statistics, TableMemory,
};

abi_codes! {
    /// How chunks arrive.
    pub enum Transport {
        /// RDMA Write with immediate, straight into the user buffer.
        Uc = 1,
        /// Sends with immediate into staging slots, copied by loopback RDMA Writes.
        Ud = 2,
    }
}

abi_struct! {
    /// Staging slots of a UD worker, one per receive queue entry. Zero for UC.
    #[size = 16, align = 8]
    pub struct Staging {
        /// Address of slot 0 under `lkey`; the firmware never dereferences it.
        pub address: u64,
        /// Bytes from slot to slot: at least chunk bytes + 40, a multiple of 64.
        pub stride: u32,
        /// Memory key for receives into, and copies out of, the slots.
        pub lkey: u32,
    }
}

/// Value of [`Operation::flags`]: the receive context accepts no further chunk, waits until its copies are complete,
/// then answers the report request of the same line. From that answer on the receive context writes no user memory (UC:
/// the card may, until the key or the queue pair is gone), and bitmap and tail bitmap in host memory are final. The
/// host rewrites the line with the same `sequence`, this flag and a new `report_request`, and wakes the thread.
///
/// An answer whose status is [`crate::ReceiveStatus::CopyError`] leaves open what lies in the buffer: take every chunk
/// as missing.
pub const OPERATION_CLOSED: u32 = 1;

/// Value of [`Operation::flags`]: the receive context reports its bitmaps by itself, too: when three quarters of what
/// was missing at the report before have come, and, of the last two batches, before its thread sleeps. Reports take
/// turns between two copies ([`ReceiveContext::bitmap_host`]), so that the host can read one while the next is written.
pub const OPERATION_REPORTS: u32 = 4;

/// Value of [`crate::SendOperation::flags`]: nothing is posted, and nothing announced, before [`crate::Signals::go`]
/// has reached the operation's sequence number, which the progress thread announces by waking the worker. Where there
/// is no progress thread the host takes the flag away, with the same `sequence`; or the next operation replaces this
/// one, of which nothing was sent then. Closing the operation ends that, too.
pub const OPERATION_DEFERRED: u32 = 2;

abi_struct! {
    /// The operation, written by the host as one 64-byte line and taken over by the worker at its next activation when
    /// `sequence` differs from its own and equals `sequence_check`. After writing it the host wakes the worker (by a
    /// message to its thread's control queue) and waits until [`crate::ProgressLine::sequence`] shows that it is armed;
    /// only then may senders start.
    #[size = 64, align = 64]
    pub struct Operation {
        /// Number of the operation: 1, 2, 3, ... up to 2^32 - 1; the same for all workers of a group. 0: none yet.
        pub sequence: u64,
        /// Where the chunk with PSN 0 goes: virtual address under `rkey` (UD and the progress thread; unused with a
        /// table of rows).
        pub destination: u64,
        /// Memory key of the user buffer (UD; unused on UC).
        pub rkey: u32,
        /// Collective id, below 2^(32 - psn bits).
        pub collective_id: u32,
        /// Limit of the PSNs: 0 to chunks - 1, those of the own rank included. At most the bits of
        /// [`ReceiveContext::bitmap`] and 2^(psn bits). The worker expects all of them but [`Placement::own_chunks`];
        /// if that leaves none the operation is complete at once.
        pub chunks: u32,
        /// Bytes of every chunk but the last of a run; 1 to stride - 40 (UD), 1 to 2^31 - 1 (UC).
        pub chunk_bytes: u32,
        /// Bytes of the last chunk of every run, 1 to `chunk_bytes`. With a table of rows each row has its own
        /// ([`crate::RunRow::last_chunk_bytes`]) and this is unused.
        pub last_chunk_bytes: u32,
        /// [`OPERATION_CLOSED`], [`OPERATION_REPORTS`] or 0. The latter counts where the operation is taken over.
        pub flags: u32,
        /// Number of the last report the host asked for; when it differs from [`crate::ProgressLine::reported`] the
        /// worker copies its bitmap and statistics to host memory and answers. Raised without touching `sequence`.
        pub report_request: u64,
        /// Zero.
        pub reserved: u64,
        /// Equal to `sequence`; a mismatch means that the line is being written.
        pub sequence_check: u64,
    }
}

abi_struct! {
    /// What a worker remembers between activations. The host writes zeros at set-up and never touches it again.
    #[size = 320, align = 64]
    pub struct ReceiveState {
        /// Copy of the operation the worker is armed for; `armed.sequence` is what [`crate::ProgressLine::sequence`]
        /// shows.
        pub armed: Operation,
        /// Receive completions consumed; never wraps. Also the number of copies built (UD).
        pub consumed: u64,
        /// Value of `consumed` at the last doorbell: everything before it is handed back or, on UD, handed to the
        /// hardware.
        pub posted: u64,
        /// Copies known to be complete (UD).
        pub completed: u64,
        /// Send completions consumed (UD).
        pub send_consumed: u64,
        /// Chunks still missing.
        pub remaining: u64,
        /// Last report request answered.
        pub reported: u64,
        /// Number (as in `consumed`) of the last copy that was shortened for a short chunk and is not known to be
        /// complete, plus one; 0: none.
        pub shortened: u64,
        /// Current status, a [`crate::ReceiveStatus`] code.
        pub status: u32,
        /// Detail of the status.
        pub detail: u32,
        /// Chunk bytes for which the send queue's entries were built; 0: none.
        pub built_chunk_bytes: u32,
        /// Memory key for which they were built.
        pub built_rkey: u32,
        /// 1 when the completion of the operation was counted in the group.
        pub counted: u32,
        /// 1 while chunks come one by one, or of several roots in turn: in no runs of consecutive numbers that are
        /// worth one check.
        pub interleaved: u32,
        /// Copies that the hardware has completed with an error (UD).
        pub failed_copies: u64,
        /// User index and immediate of the armed operation's PSN 0, as the hot loop compares them.
        pub key: u64,
        /// The next report by itself is due when no more chunks than these are missing; 0: none is.
        pub report_at: u64,
        /// Value of `consumed` at the last report.
        pub reported_at: u64,
        /// Reports since set-up.
        pub reports: u64,
        /// Zero.
        pub reserved_2: u64,
        /// Counters.
        pub statistics: Statistics,
    }
}

abi_struct! {
    /// Everything a receive worker needs: a *receive context*, one of the array that a [`crate::ReceiveThread`] serves.
    /// Its identity is `worker`, never a shared counter. How it is set up and driven is said there.
    ///
    /// Positions out of the ordinary. A receive context's hot loop takes only chunks of full length whose bit is clear.
    /// When a receive context takes over an operation it sets the bits of what that loop must leave alone: the own
    /// rank's PSNs, which are not expected, and the last PSN of each run whose last chunk is short. Whether such a
    /// short chunk is there is given by one bit per run, the *tail bitmap*, which lie behind the bitmap's words in the
    /// host copy. The own rank's edge is set from the start. So PSN p is missing if its bit is clear, or if p is the
    /// last of run r, that run's last chunk is short, and bit r of the tail bitmap is clear (`flexcast_proto::missing`
    /// computes it).
    #[size = 768, align = 64, memory]
    pub struct ReceiveContext {
        /// [`crate::ABI_HASH`].
        pub abi_hash: u64,
        /// [`crate::ABI_VERSION`].
        pub abi_version: u32,
        /// Number of this worker, 0 to `workers` - 1.
        pub worker: u32,
        /// Workers in the group, at least 1.
        pub workers: u32,
        /// A [`Transport`] code; must match the event handler.
        pub transport: u32,
        /// Completions per doorbell: a power of two from 2 to half the receive depth. UD copies are signalled once per
        /// batch.
        pub batch: u32,
        /// Completions after which the receive context's turn ends; at least 1, rounded up to whole batches, or to 64
        /// completions where a batch is longer.
        pub budget: u32,
        /// Low bits of the immediate that hold the PSN, 1 to 31.
        pub psn_bits: u32,
        /// User index given to the receiving queue pair at creation (0 unless set), 24 bits.
        pub user_index: u32,
        /// CQ of the receives, bound to this thread. Depth at least the receive depth.
        pub receive_cq: CompletionQueueMemory,
        /// Receive queue of the UC or UD queue pair. RQ entries are 16 bytes.
        pub receive_queue: ReceiveQueueMemory,
        /// CQ of the copies, bound to this thread (UD). Depth at least the send depth.
        pub send_cq: CompletionQueueMemory,
        /// Send queue of the loopback RC queue pair (UD). Depth equal to the receive depth: copy slot i belongs to
        /// staging slot i.
        pub send_queue: SendQueueMemory,
        /// Staging slots (UD).
        pub staging: Staging,
        /// One bit per chunk; used by this worker alone.
        pub bitmap: BitmapMemory,
        /// Tail bitmap, one bit per run; used by this worker alone.
        pub tails: BitmapMemory,
        /// Table of an operation's runs with unequal contributions; none: no operation has any. The host rewrites the
        /// rows before an operation that has them, when no thread reads them.
        pub rows: TableMemory<RunRow>,
        /// The group's [`GroupContext`].
        pub group: Shared<GroupContext>,
        /// The [`Signals`] by which a receive context notifies the progress thread that it is armed, and the last of a
        /// group that all are complete; none: nobody is to be notified.
        pub signals: Shared<Signals>,
        /// The operation (host), written after, or in one Write with, `placement`.
        pub operation: HostLine<Operation>,
        /// Where the operation's chunks go (host).
        pub placement: HostLine<Placement>,
        /// Host address of the group's [`crate::CompletionFlag`], 64-byte aligned.
        pub flag_host: u64,
        /// Host address of this worker's [`crate::ReceiveReport`], 64-byte aligned.
        pub report_host: u64,
        /// Host address of a copy of the bitmap and of the tail bitmap behind it, as many words as both have, rounded
        /// up to 64 bytes, 64-byte aligned; 0: no copy wanted. A receive context copies only the words that hold a bit
        /// of its operation; the rest is stale. Behind it there is a second copy, needed by operations with
        /// [`OPERATION_REPORTS`] alone: the report with an odd number ([`crate::ProgressLine::reports`]) lies there.
        pub bitmap_host: u64,
        /// Zero.
        pub reserved: [u64; 4],
        /// State (worker).
        pub state: ReceiveState,
        /// What it remembers of the placement and of the host's line (worker).
        pub op: OperationState,
    }
}

abi_struct! {
    /// Shared by the workers of a group, in DPA memory, in a line of its own.
    #[size = 64, align = 64]
    pub struct GroupContext {
        /// Low 32 bits of the operation's sequence number in bits 63:32, workers finished in bits 31:0. A worker that
        /// finishes a newer operation restarts the count, so nobody has to reset it. The host writes 0 at set-up.
        pub finished: u64,
        /// Zero.
        pub reserved: [u64; 7],
    }
}

abi_codes! {
    /// Why a context or an operation was refused; returned by RPCs that prepare a context (`prepare_receive` and
    /// `prepare_send`: with the number of the receive context at fault in bits 63:32) and given as detail of
    /// [`crate::ReceiveStatus::InvalidOperation`] and [`crate::SendStatus::InvalidOperation`].
    pub enum ContextFault {
        /// `abi_hash` is not the firmware's.
        AbiHash = 1,
        /// `transport` is unknown.
        Transport = 2,
        /// `batch` is not a power of two from 2 to half the receive depth.
        Batch = 3,
        /// `budget` is 0.
        Budget = 4,
        /// `psn_bits` is not 1 to 31.
        PsnBits = 5,
        /// `worker` is not below `workers`.
        Worker = 6,
        /// A ring or doorbell record address is null or misaligned.
        QueueAddress = 7,
        /// A `log_depth` is not 1 to 15, or depths do not fit one another.
        QueueDepth = 8,
        /// Bitmap, group, operation or placement are not there or misaligned.
        DeviceMemory = 9,
        /// Staging stride is not a multiple of 64 above 40.
        Staging = 10,
        /// Flag, report or bitmap copy address is null (flag, report) or not 64-byte aligned.
        HostAddress = 11,
        /// `chunks` exceeds the bitmap or the PSN space.
        Chunks = 12,
        /// `chunk_bytes` is 0 or does not fit the staging slot, or `last_chunk_bytes` is 0 or larger.
        ChunkBytes = 13,
        /// `collective_id` needs more than 32 - psn bits.
        CollectiveId = 14,
        /// `prepare` has not accepted the context.
        NotPrepared = 15,
        /// The runtime refused the outbox.
        Outbox = 16,
        /// The runtime refused the window.
        Window = 17,
        /// The number of receive contexts is 0, or the array is not there or not 64-byte aligned.
        Contexts = 18,
        /// `roots` exceeds the tail bitmap, or `run_chunks` x `roots` is not `chunks`.
        Runs = 19,
        /// The rows are more than the table has, or not the PSNs 0 to `chunks` - 1 in ascending order.
        Rows = 20,
        /// The own PSNs exceed `chunks`.
        OwnChunks = 21,
        /// `flags` has an unknown bit.
        Flags = 22,
        /// A queue of this receive context is dead since an error: its QP must be made anew.
        DeadQueue = 23,
    }
}
