//! Signals: SIGTERM and SIGINT stop a daemon, SIGHUP makes it read its configuration again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Signals that have arrived.
#[derive(Debug)]
pub struct Signals {
    reload: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Signals {
    /// Catches signals from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> std::io::Result<Self> {
        let this = Self { reload: Arc::default(), stop: Arc::default() };
        for (signal, flag) in [(SIGHUP, &this.reload), (SIGTERM, &this.stop), (SIGINT, &this.stop)] {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
        }
        Ok(this)
    }

    /// Whether a signal to stop has arrived since the last call.
    #[must_use]
    pub fn take_stop(&self) -> bool {
        self.stop.swap(false, Ordering::AcqRel)
    }

    /// Whether a signal to read the configuration again has arrived since the last call.
    #[must_use]
    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::AcqRel)
    }
}
