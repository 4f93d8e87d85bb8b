//! Context of the progress thread of image `allgather`: the thread that runs a communicator's protocol on the card, so
//! that the host has nothing to do between posting an operation and its end.
//!
//! It exchanges control messages over reliable queue pairs in DPA memory, one per peer; learns from receive contexts
//! and send workers by [`Signals`]; finds what multicast has lost in the bitmaps of closed receive contexts
//! ([`ReceiveView`]) and reads it from the left neighbour; and notifies the host by a [`ProgressReport`] and a
//! [`ProgressFlag`]. The host gives it commands over a control queue as receive threads have (see
//! [`crate::receive_thread`]), one at a time: the next one only after [`ProgressFlag::acknowledged`] shows the last.

use crate::layout::{abi_codes, abi_struct};
use crate::{
    BitmapMemory, CompletionQueueMemory, ContextAddress, ContextMemory, ContextRefusal, HostLine, KeptMemory,
    MessageMemory, Operation, Placement, ReceiveQueueMemory, Rpc, RunRow, SendQueueMemory, Shared, TableMemory,
};

/// Checks a progress thread's context and those of its peers, and posts its receives. A refusal has the number of the
/// peer at fault.
pub const PREPARE_PROGRESS: Rpc<ContextAddress<ProgressThread>, Result<(), ContextRefusal>> =
    Rpc::new("prepare_progress");

/// Value of [`ProgressCommand::flags`]: an operation is posted. It begins once all receive contexts are armed for it.
pub const COMMAND_POST: u32 = 1;
/// Likewise: the operation fails, for the reason in the command.
pub const COMMAND_FAIL: u32 = 8;
/// Likewise: a deadline that has passed counts. The host gives this command after [`ProgressReport::deadline_ps`], when
/// all receive contexts are complete, or closed and the progress thread knows that. Without it the progress thread sees
/// no cutoff and no bound.
pub const COMMAND_TIME: u32 = 16;
/// Likewise: multicast has stalled, and the receive contexts are closed: what their bitmaps lack is asked for.
pub const COMMAND_CUT_OFF: u32 = 32;

/// Likewise, with [`COMMAND_POST`]: the operation's data rides on the barrier. It begins at once, and no receive
/// context and no send worker has a part in it.
pub const COMMAND_EAGER: u32 = 64;
/// Likewise, with [`COMMAND_POST`]: from this operation on, or from here on no longer if it has been so, an empty write
/// follows messages on their connections. The peer's card then asks for one that is lost, where otherwise nothing
/// happens before the timeout of this one.
pub const COMMAND_FOLLOW: u32 = 128;

/// Likewise: the peer for which this rank waits, if there is one, is sent an empty write. Its card answers, or the
/// connection breaks: nothing else would show that a peer's process has ended.
pub const COMMAND_PROBE: u32 = 256;

/// Every bit that a command may have. It is part of the hash of the ABI: firmware that lacks one would take the command
/// and leave that part of it undone.
pub const COMMANDS: u32 =
    COMMAND_POST | COMMAND_FAIL | COMMAND_TIME | COMMAND_CUT_OFF | COMMAND_EAGER | COMMAND_FOLLOW | COMMAND_PROBE;

/// Value of [`ProgressReport::flags`]: the barrier of the operation is passed.
pub const REPORT_READY: u32 = 1;
/// Likewise: all blocks are in the user buffer.
pub const REPORT_EVERYTHING: u32 = 2;
/// Likewise: the operation is over on this rank, its sends included.
pub const REPORT_RELEASED: u32 = 4;
/// Likewise: it has failed.
pub const REPORT_FAILED: u32 = 8;
/// Likewise, with [`REPORT_FAILED`]: because two ranks have called different things; see
/// [`ProgressDetail::culprit_call`].
pub const REPORT_DISAGREES: u32 = 16;
/// Likewise: the protocol needs nothing more of the operation but the end of the own sends.
pub const REPORT_RELEASING: u32 = 32;
/// Likewise: reads from the left neighbour are under way, which the card writes to the receive buffer.
pub const REPORT_READING: u32 = 64;

/// Value of [`ProgressThreadState::follows`]: the network is expected to lose packets; [`COMMAND_FOLLOW`] changes it.
pub const FOLLOWS: u32 = 1;
/// Likewise: multicast has lost something of the operation begun last.
pub const LOSSY: u32 = 2;

/// No rank, no position.
pub const NOBODY: u32 = u32::MAX;
/// Words of a set of ranks.
pub const RANK_WORDS: usize = 16;
/// Rounds of the barrier among most ranks.
pub const ROUNDS: usize = 10;
/// Most reads under way: what a card takes from one requester.
pub const READS: usize = 8;

abi_struct! {
    /// What the threads of a communicator announce to one another, in DPA memory, in a line of its own. All but the
    /// numbers of threads is accessed by atomic instructions. A *count* is the low half of a sequence number in bits
    /// 63:32, and how many have reached it in bits 31:0.
    #[size = 64, align = 64]
    pub struct Signals {
        /// Receive contexts that are armed: a count (receive contexts).
        pub armed: u64,
        /// Sequence number of the last operation that all receive contexts have completed (last receive context).
        pub complete: u64,
        /// Sequence number of the last operation that the send workers may send (progress thread).
        pub go: u64,
        /// Send workers that have announced the end of their sends: a count (send workers).
        pub announced: u64,
        /// Send workers whose sends are over: a count (send workers).
        pub sent: u64,
        /// Activation id of the progress thread (host).
        pub progress: u32,
        /// Number of receive contexts (host).
        pub contexts: u32,
        /// Number of send workers (host).
        pub senders: u32,
        /// Zero.
        pub reserved: u32,
        /// Zero.
        pub reserved_2: u64,
    }
}

abi_struct! {
    /// A peer of the progress thread: a rank with which it exchanges control messages. Or, as the last of them and with
    /// rank [`NOBODY`], the connection over which it reads from the left neighbour: that has a send queue and nothing
    /// else.
    ///
    /// Its message slots lie one behind another at [`ProgressThread::messages`]: as many as the receive queue has
    /// entries, then as many as the send queue has.
    #[size = 128, align = 64, memory]
    pub struct ProgressPeer {
        /// Receive queue of the connection, 16-byte entries.
        pub receive_queue: ReceiveQueueMemory,
        /// Send queue of the connection, in basic blocks of 64 bytes, one per message.
        pub send_queue: SendQueueMemory,
        /// Its rank.
        pub rank: u32,
        /// 1 once the connection is broken (progress thread).
        pub broken: u32,
        /// Number of its first message slot.
        pub first_slot: u64,
        /// Entries written to the send queue (progress thread).
        pub produced: u64,
        /// Entries that are known to be complete (progress thread).
        pub completed: u64,
        /// Messages received (progress thread).
        pub received: u64,
        /// Address of the peer's rows for eager data (see [`ProgressSetUp::rows_host`]).
        pub rows_remote: u64,
        /// Their remote key.
        pub rows_rkey: u32,
        /// Entries written up to the last empty write, modulo 2^32 (progress thread).
        pub followed: u32,
        /// Entries after which the card has read the row last sent from; 0: it has (progress thread).
        pub reads_row_until: u64,
    }
}

abi_struct! {
    /// A command, written by the host before the message that wakes the progress thread.
    #[size = 192, align = 64]
    pub struct ProgressCommand {
        /// Number of the command: 1, 2, 3, ... 0: none yet.
        pub sequence: u64,
        /// The host's clock, in picoseconds: all times of the report are by this clock.
        pub now_ps: u64,
        /// `COMMAND_*`.
        pub flags: u32,
        /// Number of the operation ([`COMMAND_POST`], as all down to `address`).
        pub operation: u32,
        /// Code of the kind of operation in messages.
        pub kind: u32,
        /// Its root; the only contributor if `everybody` is 0.
        pub root: u32,
        /// Its bytes, or their digest.
        pub amount: u64,
        /// Bytes of a chunk.
        pub chunk_bytes: u32,
        /// Chains of the schedule.
        pub chains: u32,
        /// How long the barrier may take.
        pub barrier_timeout_ps: u64,
        /// From the end of the barrier to the cutoff.
        pub cutoff_ps: u64,
        /// From the end of the barrier to the failure.
        pub bound_ps: u64,
        /// Sequence number of the receive contexts' operation.
        pub receive_sequence: u64,
        /// Sequence number of the send workers' operation; 0: this rank does not send.
        pub send_sequence: u64,
        /// 1: all ranks contribute; 0: `root` alone.
        pub everybody: u32,
        /// Own chain; [`NOBODY`]: no turn.
        pub chain: u32,
        /// Position in the chain.
        pub step: u32,
        /// Position among the contributors of the one before; [`NOBODY`]: none.
        pub predecessor: u32,
        /// Of the one behind; [`NOBODY`]: none.
        pub successor: u32,
        /// Remote key of the receive buffer.
        pub rkey: u32,
        /// Address of the receive buffer, for the peer that reads it; the firmware never dereferences it.
        pub address: u64,
        /// Rank at fault ([`COMMAND_FAIL`], as the next two).
        pub culprit: u32,
        /// Rank that noticed.
        pub witness: u32,
        /// Cause, as `flexcast_proto::Cause::to_bits` gives it.
        pub cause: u32,
        /// Pieces of each block, of a posted operation.
        pub pieces: u32,
        /// Eager data of the own signal of each round ([`COMMAND_EAGER`]): so many bytes from the own block on in bits
        /// 15:0, and their offset behind the receiver's own block in bits 31:16. 0: none.
        pub eager: [u32; 10],
        /// Local key of the receive buffer ([`COMMAND_POST`]).
        pub lkey: u32,
        /// Zero.
        pub reserved: u32,
        /// Equal to `sequence`; a mismatch means that the command is being written.
        pub sequence_check: u64,
    }
}

/// Bytes of a [`ProgressCommand`], which go with their work queue entries.
pub const COMMAND_BYTES: usize = size_of::<ProgressCommand>();

abi_struct! {
    /// What the progress thread reports to the host, in host memory, in lines that only it writes: when an operation
    /// begins, when its barrier is passed, when at the end and on failure.
    ///
    /// There are two reports, which take turns: number n is written to the one with number n modulo 2, and announced in
    /// the [`ProgressFlag`] only then. Who finds number n announced before and after reading has read it whole. So have
    /// the [`ProgressDetail`]s, of which a report says which one is current.
    #[size = 128, align = 64]
    pub struct ProgressReport {
        /// Number of this report.
        pub number: u64,
        /// Reads posted in this operation.
        pub reads: u32,
        /// Zero.
        pub reserved: u32,
        /// Number of the operation that the rest is about.
        pub operation: u32,
        /// `REPORT_*`.
        pub flags: u32,
        /// When the host is to give [`COMMAND_TIME`], by its clock; 2^64 - 1: never.
        pub deadline_ps: u64,
        /// When all receive contexts were armed.
        pub armed_ps: u64,
        /// When the barrier was passed. 0, as all times: not yet.
        pub ready_ps: u64,
        /// When the own block began to be multicast.
        pub sending_ps: u64,
        /// When that was over.
        pub sent_ps: u64,
        /// When all receive contexts were complete.
        pub received_ps: u64,
        /// When everything was in the buffer.
        pub complete_ps: u64,
        /// When the operation was over.
        pub released_ps: u64,
        /// Messages sent since set-up, modulo 2^32: barrier, activate, fetch, acknowledge, final, failed.
        pub messages: [u32; 6],
        /// Fetch requests of the right neighbour in this operation.
        pub fetches: u32,
        /// Number of the current detail.
        pub detail: u32,
        /// Activations of the thread so far, modulo 2^32.
        pub activations: u32,
        /// Instructions retired in all activations before this one, modulo 2^32.
        pub instructions: u32,
    }
}

abi_struct! {
    /// What the progress thread reports to the host in single words, in a line that only it writes.
    #[size = 64, align = 64]
    pub struct ProgressFlag {
        /// Number of the last report in bits 31:0, that of the last operation that is over in bits 63:32.
        pub announced: u64,
        /// Number of the last command that was carried out.
        pub acknowledged: u64,
        /// Zero.
        pub reserved: [u64; 6],
    }
}

abi_struct! {
    /// What a rank has called.
    #[size = 32, align = 8]
    pub struct ProgressCall {
        /// Code of the kind of its operation.
        pub kind: u32,
        /// Code of its algorithm.
        pub algorithm: u32,
        /// Its root.
        pub root: u32,
        /// Bytes of its chunks.
        pub chunk_bytes: u32,
        /// Its bytes, or their digest.
        pub amount: u64,
        /// Its chains.
        pub chains: u32,
        /// Zero.
        pub reserved: u32,
    }
}

abi_struct! {
    /// What the progress thread reports to the host only where something is wrong.
    #[size = 128, align = 64]
    pub struct ProgressDetail {
        /// Number of this detail. 0: nothing to report yet.
        pub number: u32,
        /// A [`ProgressThreadStatus`] code.
        pub status: u32,
        /// Detail of the status.
        pub detail: u32,
        /// Rank at fault ([`REPORT_FAILED`], as the next two).
        pub culprit: u32,
        /// Rank that noticed.
        pub witness: u32,
        /// Cause, as `flexcast_proto::Cause::to_bits` gives it.
        pub cause: u32,
        /// What the rank at fault has called ([`REPORT_DISAGREES`], as the next).
        pub culprit_call: ProgressCall,
        /// What the rank that noticed has called.
        pub witness_call: ProgressCall,
        /// Zero.
        pub reserved: [u64; 5],
    }
}

/// Bytes of both reports and both details, which lie one behind another.
pub const REPORTS_BYTES: usize = 2 * (size_of::<ProgressReport>() + size_of::<ProgressDetail>());

abi_codes! {
    /// State of the progress thread as [`ProgressReport::status`] gives it.
    pub enum ProgressThreadStatus {
        /// All is well.
        Running = 0,
        /// An error completion on the control queue; detail = syndrome. It can no longer take commands.
        ControlError = 1,
        /// A command that makes no sense; detail = its flags. It was not carried out.
        InvalidCommand = 2,
    }
}

abi_struct! {
    /// What a progress thread is set up with, which nobody writes any more.
    #[size = 256, align = 64, memory]
    pub struct ProgressSetUp {
        /// Number of the communicator in messages.
        pub communicator: u64,
        /// Own rank.
        pub rank: u32,
        /// Ranks of the communicator.
        pub ranks: u32,
        /// Messages and actions after which an activation ends and asks to be run again; at least 1.
        pub budget: u32,
        /// Memory key of the message slots.
        pub message_lkey: u32,
        /// CQ of all peers' queues, bound to this thread. Depth at least the sum of theirs.
        pub message_cq: CompletionQueueMemory,
        /// The communicator's [`Signals`].
        pub signals: Shared<Signals>,
        /// CQ of the control queue, as in [`crate::ReceiveThread`].
        pub control_cq: CompletionQueueMemory,
        /// Receive queue of the control connection, likewise.
        pub control_queue: ReceiveQueueMemory,
        /// The command (host).
        pub command: HostLine<ProgressCommand>,
        /// Host address of two rows for eager data, `rows_bytes` from one to the next: of operations with even and with
        /// odd numbers. Peers write from there on, and the own block ends there. The card alone reaches them; the
        /// firmware never dereferences the address.
        pub rows_host: u64,
        /// From one row to the next; 0: there are none, and no eager operations.
        pub rows_bytes: u32,
        /// Local key of the rows.
        pub rows_lkey: u32,
        /// Host address of two [`ProgressReport`]s and, behind them, two [`ProgressDetail`]s, 64-byte aligned.
        pub report_host: u64,
        /// Host address of the [`ProgressFlag`], 64-byte aligned.
        pub flag_host: u64,
        /// Activation ids of the send workers, as many as [`Signals::senders`].
        pub senders: TableMemory<u64>,
        /// Outbox of the thread.
        pub outbox_id: u32,
        /// Window of the thread.
        pub window_id: u32,
        /// Memory key of the host memory that holds reports and flag.
        pub window_mkey: u32,
        /// Number of the first operation.
        pub first_operation: u32,
        /// [`crate::ABI_HASH`].
        pub abi_hash: u64,
        /// [`crate::ABI_VERSION`].
        pub abi_version: u32,
        /// Zero.
        pub reserved: u32,
        /// Zero.
        pub reserved_2: [u64; 5],
    }
}

abi_struct! {
    /// A progress thread. Its device address is the argument of the event handler `progress`.
    ///
    /// Life: as a [`crate::ReceiveThread`]'s, with RPC `prepare_progress`.
    #[size = 1344, align = 64, memory]
    pub struct ProgressThread {
        /// What it is set up with.
        pub set_up: ProgressSetUp,
        /// The peers; peer number i has user index i.
        pub contexts: ContextMemory<ProgressPeer>,
        /// Message slots, [`MESSAGE_BYTES`] bytes each.
        pub messages: MessageMemory,
        /// Memory for the machine of the protocol, [`MACHINE_BYTES`] bytes.
        pub machine: KeptMemory,
        /// The receive contexts of the communicator.
        pub views: ContextMemory<ReceiveView>,
        /// State (progress thread).
        pub state: ProgressThreadState,
    }
}

abi_struct! {
    /// What a progress thread remembers of a receive context's closed operation: fields of [`Operation`] and
    /// [`Placement`].
    #[size = 64, align = 64]
    pub struct ClosedOperation {
        /// Its chunks; 0: there is nothing to read for this receive context.
        pub chunks: u32,
        /// Bytes of a chunk.
        pub chunk_bytes: u32,
        /// Bytes of the last chunk of a run.
        pub last_chunk_bytes: u32,
        /// Chunks of a run; 0: as the rows say.
        pub run_chunks: u32,
        /// Position of run 0's root among the roots.
        pub first_root: u32,
        /// Number of runs.
        pub roots: u32,
        /// Chunks of each piece of a block.
        pub piece_chunks: u32,
        /// Zero.
        pub reserved: u32,
        /// Number of the first chunk of a run within its root's block.
        pub first_chunk: u64,
        /// Where the chunk with PSN 0 goes.
        pub destination: u64,
        /// Bytes between the end of a run and the start of the next.
        pub run_gap: u64,
        /// Zero.
        pub reserved_2: u64,
    }
}

abi_struct! {
    /// A receive context as the progress thread sees it, which reads bitmaps when the context is closed: its own
    /// thread leaves them alone from then on until the next operation.
    #[size = 128, align = 64, memory]
    pub struct ReceiveView {
        /// [`crate::ReceiveContext::bitmap`].
        pub bitmap: BitmapMemory,
        /// [`crate::ReceiveContext::tails`].
        pub tails: BitmapMemory,
        /// [`crate::ReceiveContext::rows`].
        pub rows: TableMemory<RunRow>,
        /// [`crate::ReceiveContext::operation`].
        pub operation: HostLine<Operation>,
        /// [`crate::ReceiveContext::placement`].
        pub placement: HostLine<Placement>,
        /// What the thread needs of the closed operation (progress thread).
        pub closed: ClosedOperation,
    }
}

abi_struct! {
    /// What a progress thread remembers of its reads from the left neighbour.
    #[size = 384, align = 64]
    pub struct ProgressReads {
        /// Pieces that the left neighbour has and that are not read yet.
        pub unread: [u64; 16],
        /// Those of them of which no read is posted.
        pub wanted: [u64; 16],
        /// The piece whose reads are being posted, plus one; 0: none.
        pub piece: u32,
        /// Number of the receive context in which the rest of it is searched.
        pub context: u32,
        /// PSN there from which on.
        pub psn: u64,
        /// 1 while pieces wait for reads to be posted.
        pub waits: u32,
        /// 1 once a read of that piece is posted.
        pub begun: u32,
        /// The rank that is read from.
        pub from: u32,
        /// Key of its receive buffer.
        pub rkey: u32,
        /// Address of its receive buffer.
        pub address: u64,
        /// Reads posted, modulo 2^32.
        pub posted: u32,
        /// Reads that are over, modulo 2^32.
        pub over: u32,
        /// Of each read under way, in turn: number of its entry, modulo 2^32.
        pub entries: [u32; 8],
        /// Likewise: the pieces that are whole when it is over, the first in bits 15:0, how many in bits 31:16.
        pub ends: [u32; 8],
        /// Number of the peer over whose connection they go.
        pub over_peer: u32,
        /// Zero.
        pub reserved: u32,
        /// Zero.
        pub reserved_2: u64,
    }
}

/// Bytes of a message slot.
pub const MESSAGE_BYTES: u64 = 192;
/// Bytes of the memory at [`ProgressThread::machine`].
pub const MACHINE_BYTES: u64 = 4096;

abi_struct! {
    /// What a progress thread remembers besides the machine. The host writes zeros at set-up and never touches it
    /// again.
    #[size = 1024, align = 64]
    pub struct ProgressThreadState {
        /// The report as it is to be written next.
        pub report: ProgressReport,
        /// Completions of messages consumed; never wraps.
        pub consumed: u64,
        /// Control completions consumed.
        pub control_consumed: u64,
        /// Number of the command carried out last.
        pub acknowledged: u64,
        /// Peers to which a row is being sent.
        pub reading: u32,
        /// 1 while the signals of the operation begun last wait until the rows of the one before are sent.
        pub held: u32,
        /// The host's clock less the device's, modulo 2^64.
        pub clock_ps: u64,
        /// Sequence number of the receive contexts' operation.
        pub receive_sequence: u64,
        /// Of the send workers'; 0: none.
        pub send_sequence: u64,
        /// The own receive buffer.
        pub address: u64,
        /// Its key.
        pub rkey: u32,
        /// 1 while an operation is posted and its receive contexts are not all armed.
        pub posted: u32,
        /// 1 while it sends and the end is not announced.
        pub sending: u32,
        /// 1 while its sends are not over.
        pub unsent: u32,
        /// 1 while its receive contexts are not all complete.
        pub unreceived: u32,
        /// 1 while the report is not written.
        pub unreported: u32,
        /// 1 while the detail is not written.
        pub undetailed: u32,
        /// 1 while the host's command has not been read.
        pub pending: u32,
        /// 1 once outbox and window of the thread are configured.
        pub configured: u32,
        /// 1 after RPC `prepare_progress` accepted the context.
        pub prepared: u32,
        /// 1 while the next check of the clock counts.
        pub due: u32,
        /// Peers whose send queues have no room for a message.
        pub full: u32,
        /// 1: the data of the operation begun last rides on its barrier.
        pub eager: u32,
        /// Number of the last operation that is over.
        pub over: u32,
        /// 1 while the command carried out last is not acknowledged.
        pub unacknowledged: u32,
        /// Zero.
        pub reserved_3: u32,
        /// 1 while it is not announced that an operation is over of which there is nothing to report.
        pub unannounced: u32,
        /// Not 0: an empty write follows messages. [`FOLLOWS`] and [`LOSSY`].
        pub follows: u32,
        /// Eager data of the own signals, as in the command, two rounds in a word.
        pub carried: [u64; 5],
        /// Own turn of the posted operation, as in the command.
        pub turn: [u32; 4],
        /// Descriptor of the posted operation: kind, root, chunk bytes, chains.
        pub descriptor: [u32; 4],
        /// Likewise: amount, barrier timeout, cutoff, bound.
        pub spans: [u64; 4],
        /// 1: all ranks contribute.
        pub everybody: u32,
        /// Pieces of each block of the posted operation.
        pub pieces: u32,
        /// A signal of the barrier of the operation under way, as it is sent, of round 0.
        pub signal: [u64; 6],
        /// Numbers of the peers to which the signals of each round go.
        pub partners: [u16; 12],
        /// Local key of the own receive buffer.
        pub lkey: u32,
        /// Zero.
        pub reserved: u32,
        /// Zero.
        pub reserved_2: [u64; 7],
        /// The detail as it is to be written next.
        pub detail: ProgressDetail,
        /// Reads from the left neighbour.
        pub reads: ProgressReads,
    }
}
