//! Parts of the library of which host/aggregator makes aggregators that are no ranks: how an operation is split, its
//! sums, and the nodes of threads. Ranks that aggregate themselves have the same. For that crate alone.

pub use crate::memory::nodes;
pub use crate::op::sparse_options::Split;
pub use crate::p2p::local::Begun;
pub use crate::p2p::sparse::messages::{Outgoing, Spare, Sums, Tag};
pub use crate::p2p::sparse::settings_of;
