//! Links between emulated cards. Time is an input; what arrives where and when is the output.
//!
//! The crate knows nothing of what a frame says, only how long it is. Times are picoseconds of virtual time.

mod drop;
mod link;

pub use drop::{FaultError, SeededDrop};
pub use link::{BackToBack, Delivery, Link, LinkConfig, LinkError, PortCounters, Rate};

/// What a link needs to know of a frame.
pub trait Frame {
    /// Bytes that occupy the link: the frame with its preamble, check sequence and the gap after it.
    fn wire_bytes(&self) -> u64;
}
