//! Registration of memory that somebody else has allocated.

use std::sync::atomic::{AtomicBool, Ordering};

use flexio::SharedRegion;

use crate::memory::registration::Registration;

/// A registration, and whether it is for one operation alone: peers of a failed one may still hold its key, or nothing
/// reports when its pages are unmapped.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) region: SharedRegion,
    pub(crate) exposed: AtomicBool,
}

/// A registration in use.
pub(crate) type Shared = Registration<Region>;

impl Region {
    /// The next operation on this memory gets another key.
    pub(crate) fn expose(&self) {
        self.exposed.store(true, Ordering::Relaxed);
    }
}
