//! Safe access to what a DPA thread works with: its context, completion, receive and send queues, the window to host
//! memory, the doorbells of the outbox, fences and counters.
//!
//! **Trust.** What leads to memory ([`abi::memory`]) comes out of a context that the host wrote and whose layout hash
//! it compared. Firmware without unsafe code cannot make it, change its extent, take it for another kind's, or copy it
//! out of its context. Views made of it stay inside:
//!
//! - Queues, bitmaps, tables, messages and windows are accessed word by word, never through references, since the card,
//!   the host and other views of the same thread access them, too. Views hold raw pointers, so that none gets to
//!   another thread.
//! - Contexts and states are borrowed exclusively, and so is what names them. Nobody else writes them while the
//!   thread runs: what the host rewrites lies behind a [`HostLine`], what threads share behind atomics ([`Signals`],
//!   [`group::Group`]).
//!
//! What the host names wrongly it can only break in its own process. What a memory key covers the card may write: keys
//! are numbers, and those that cover a process's contexts are for its host alone.
//!
//! **Unsafe.** This crate and `rt-emu` hold the unsafe code and all assembly of the firmware; images deny it, except
//! for the pointer chases of image `calibration` ([`microbench::Lines::follow`]).
//!
//! On other targets than RISC-V the crate builds with plain memory in place of registers (module `arch`), so that queue
//! logic can be unit-tested where it is written.
#![cfg_attr(target_arch = "riscv64", no_std)]
// Raw queue memory, MMIO, exported symbols and assembly: see above.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "riscv64", not(target_feature = "zbb")))]
compile_error!(
    "the DPA images need -C target-feature=+zbb,+zbs (RUSTFLAGS in the environment replaces the flags of the build \
     command): build with `cargo xtask build`"
);
#[cfg(all(target_arch = "riscv64", not(target_feature = "zbs")))]
compile_error!("the DPA images need -C target-feature=+zbs: build with `cargo xtask build`");

extern crate self as dpa;

mod arch;
pub mod array;
pub mod bitmap;
pub mod completion;
pub mod entry;
pub mod fence;
pub mod group;
#[cfg(feature = "log")]
pub mod log;
pub mod microbench;
pub mod notify;
pub mod outbox;
pub mod panic;
pub mod post;
#[cfg(target_arch = "riscv64")]
pub mod probe;
pub mod receive;
pub mod send;
pub mod shared;
pub mod slots;
pub mod state;
pub mod sys;
pub mod thread;
pub mod window;

pub use array::{ContextArray, Table};
pub use bitmap::{BitmapReader, BitmapView, BitmapWindow, ClearRun};
pub use completion::{CompletionQueue, CqeRef, Poll, Segment};
pub use dpa_macros::{event_handler, rpc};
pub use entry::Next;
pub use notify::Signals;
pub use outbox::Outbox;
pub use post::{PostCursor, PostedEntry};
pub use receive::ReceiveQueue;
pub use send::{PairedSegment, SendQueue, WriteSlot};
pub use shared::HostLine;
pub use slots::Slots;
pub use state::{Messages, State};
pub use thread::{Counters, Thread};
pub use window::{Entity, Window, WindowCell, WindowError, WindowWords};

pub use flexcast_abi as abi;
pub use flexcast_hw as hw;
pub use flexcast_proto as proto;

/// Error codes with which firmware ends its process (`flexio_dev_error`, user range 128 to 255).
pub mod error {
    /// A Rust panic; details in the panic record.
    pub const PANIC: u8 = 0x81;
    /// An entry was called with a null or misaligned context address.
    pub const BAD_ARGUMENT: u8 = 0x82;
    /// An event handler ran on a context that its RPC `prepare` has not accepted, or for another handler.
    pub const NOT_PREPARED: u8 = 0x83;
    /// The runtime refused the outbox or the window that the context names.
    pub const NO_RESOURCE: u8 = 0x84;
    /// The context names no memory where the firmware needs some: a queue, a line, a group that is not there.
    pub const NO_MEMORY: u8 = 0x85;
}

/// Ends the process with a user error code (128 to 255; see [`error`]).
#[cold]
pub fn fatal(code: u8) -> ! {
    sys::error(code)
}

/// An address that leads to memory.
#[inline(always)]
fn there(address: u64) -> u64 {
    if address == 0 {
        no_memory();
    }
    address
}

// One function for all, so that the way there is the same branch wherever it is compiled into.
#[cold]
#[inline(never)]
fn no_memory() -> ! {
    fatal(error::NO_MEMORY)
}
