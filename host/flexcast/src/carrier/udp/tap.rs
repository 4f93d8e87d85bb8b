//! Access of tests to what the network brings.

use std::sync::Arc;

/// Makes the tap of a communicator of so many ranks, on this rank.
#[doc(hidden)]
pub type MakeTap = Arc<dyn Fn(u32, u32) -> Box<dyn Tap> + Send + Sync>;

/// Sees each datagram that comes, and decides what of it is delivered.
#[doc(hidden)]
pub trait Tap: Send {
    /// Delivers what the datapath is to see instead of `datagram`: it, nothing, something else, or something that came
    /// before.
    fn take(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8]));
}
