//! Capture file of a machine.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

/// The capture file as the bridge has it.
#[derive(Debug)]
pub(crate) struct Flush(pub(crate) Arc<Mutex<BufWriter<File>>>);

impl Flush {
    /// Writes what has gathered; a failure shows with the next frame.
    pub(crate) fn now(&self) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}
