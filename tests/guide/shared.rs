//! What host program and image share.

use flexcast_abi::{CompletionQueueMemory, HostLine, Layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Numbers in host memory to add up: argument of RPC `sum`.
#[derive(Layout, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Job {
    /// Window of the process, and the memory key of what it shows.
    pub window_id: u32,
    pub window_mkey: u32,
    /// Host address of the numbers, 64-byte aligned, and how many there are.
    pub numbers: u64,
    pub count: u64,
    /// Host address of the [`Answer`], 64-byte aligned.
    pub answer: u64,
}

/// The answer, in host memory: a line that only the firmware writes.
#[derive(Layout, FromBytes, IntoBytes, Immutable, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Answer {
    pub sum: u64,
    pub largest: u64,
    pub reserved: [u64; 6],
}

/// What the event handler `watch` is given. It leads to memory: firmware can neither make nor copy one.
#[derive(Layout, IntoBytes, Immutable)]
#[repr(C)]
pub struct Watch {
    /// A completion queue.
    pub queue: CompletionQueueMemory,
    /// A number that the host rewrites whenever it wants.
    pub limit: HostLine<u64>,
    /// As in [`Job`].
    pub window_id: u32,
    pub window_mkey: u32,
    pub answer: u64,
    /// Activations so far (firmware).
    pub activations: u64,
}
