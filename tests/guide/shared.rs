//! Structures that host program and image share.

use flexcast_abi::{CompletionQueueMemory, HostLine, Layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Numbers in host memory to add up: argument of RPC `sum`.
#[derive(Layout, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Job {
    /// Window of the process, and the memory key of what it shows.
    pub(crate) window_id: u32,
    pub(crate) window_mkey: u32,
    /// Host address of the numbers, 64-byte aligned, and how many there are.
    pub(crate) numbers: u64,
    pub(crate) count: u64,
    /// Host address of the [`Answer`], 64-byte aligned.
    pub(crate) answer: u64,
}

/// The answer, in host memory: a line that only the firmware writes.
#[derive(Layout, FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Answer {
    pub(crate) sum: u64,
    pub(crate) largest: u64,
    /// 1, written last: the rest is there.
    pub(crate) done: u64,
    pub(crate) reserved: [u64; 5],
}

/// What the event handler `watch` is given. It leads to memory: firmware can neither make nor copy one.
#[derive(Layout, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Watch {
    /// A completion queue.
    pub(crate) queue: CompletionQueueMemory,
    /// A number that the host rewrites whenever it wants.
    pub(crate) limit: HostLine<u64>,
    /// As in [`Job`].
    pub(crate) window_id: u32,
    pub(crate) window_mkey: u32,
    pub(crate) answer: u64,
    /// Activations so far (firmware).
    pub(crate) activations: u64,
}
