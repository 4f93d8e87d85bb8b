//! Bytes that host and firmware write for one another: contexts, progress lines, the completion flag, statistics. Image
//! `allgather` has receive threads ([`receive_thread`], [`receive`], [`placement`]), send workers ([`send`]) and a
//! progress thread ([`progress`]).
//!
//! Every structure is `repr(C)`, little-endian, with explicit reserved fields, and has a [`Layout::HASH`] over its
//! field names, types and offsets. An entry function of an image records the hash of its argument type; the image's
//! note records [`ABI_VERSION`], [`ABI_MIN_VERSION`] and [`ABI_HASH`]. The host refuses an image whose hash is not its
//! own.
//!
//! Roles: *host* fields are written by the host while the thread that owns the structure cannot run (set-up); *worker*
//! fields by that thread alone. What the host rewrites while the thread runs lies outside, behind a [`HostLine`]. What
//! leads to memory is opaque: module [`memory`].
#![no_std]
// One unsafe trait is declared, in module `layout`.
#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the ABI is little-endian: contexts are copied byte by byte between host and DPA");

extern crate self as flexcast_abi;

mod address;
pub mod calibration;
mod layout;
pub mod memory;
pub mod pingpong;
pub mod placement;
pub mod progress;
pub mod receive;
pub mod receive_thread;
pub mod reference;
pub mod report;
pub mod rpc;
pub mod send;
pub mod sparse;

pub use address::DeviceAddress;
pub use flexcast_abi_macros::Layout;
pub use layout::{Fnv, Layout};
pub use memory::{
    BitmapMemory, CompletionQueueMemory, ContextMemory, HostLine, KeptMemory, MeasuredMemory, MessageMemory, Queue,
    QueueFault, ReceiveQueueMemory, Region, SendQueueMemory, Shared, SharedBitmapMemory, SpotMemory, TableMemory,
};
pub use pingpong::PingPongContext;
pub use placement::{Placement, RunRow};
pub use progress::{
    ClosedOperation, ProgressCall, ProgressCommand, ProgressDetail, ProgressFlag, ProgressPeer, ProgressReads,
    ProgressReport, ProgressSetUp, ProgressThread, ProgressThreadState, ProgressThreadStatus, ReceiveView, Signals,
};
pub use receive::{
    ContextFault, GroupContext, OPERATION_CLOSED, OPERATION_DEFERRED, OPERATION_REPORTS, Operation, ReceiveContext,
    ReceiveState, Staging, Transport,
};
pub use receive_thread::{OperationState, ReceiveThread, ReceiveThreadState};
pub use report::{CompletionFlag, FLAG_MAGIC, PROGRESS_EVERY, ProgressLine, ReceiveReport, ReceiveStatus, Statistics};
pub use rpc::{Activation, ContextAddress, ContextRefusal, Rpc, RpcAnswer, RpcArgument};
pub use send::{
    SendContext, SendContextState, SendOperation, SendReport, SendRun, SendStatus, SendThread, SendThreadState,
};
pub use sparse::{
    SPARSE_BLOCKS, SPARSE_LOOK_UNANSWERED, SPARSE_SENDS, SparseElement, SparseInstance, SparseInstanceState,
    SparseOperation, SparsePeer, SparseReport, SparseStatus, SparseThread, SparseThreadState,
};

/// Version of the byte layouts and command bits in this crate; raised with every change.
pub const ABI_VERSION: u32 = 14;

/// Oldest version whose host can still drive this firmware.
pub const ABI_MIN_VERSION: u32 = 8;

/// Hash over every structure of the ABI in a fixed order, and the bits of commands; what the image's note and every
/// context carry.
pub const ABI_HASH: u64 = Fnv::new()
    .u64(ABI_VERSION as u64)
    .u64(<ReceiveContext as Layout>::HASH)
    .u64(<GroupContext as Layout>::HASH)
    .u64(<ReceiveReport as Layout>::HASH)
    .u64(<CompletionFlag as Layout>::HASH)
    .u64(<PingPongContext as Layout>::HASH)
    .u64(<ReceiveThread as Layout>::HASH)
    .u64(<RunRow as Layout>::HASH)
    .u64(<SendThread as Layout>::HASH)
    .u64(<SendContext as Layout>::HASH)
    .u64(<SendReport as Layout>::HASH)
    .u64(<ProgressThread as Layout>::HASH)
    .u64(<ProgressPeer as Layout>::HASH)
    .u64(<ReceiveView as Layout>::HASH)
    .u64(<Signals as Layout>::HASH)
    .u64(progress::COMMANDS as u64)
    .finish();

/// What the RPC `bring_up` returns for `argument`: proves that the code runs and was built with this ABI.
#[must_use]
pub const fn bring_up_answer(argument: u64) -> u64 {
    (argument ^ ABI_HASH).rotate_left(17).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
