//! Signals, and the service manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Signals that have come.
#[derive(Debug)]
pub struct Signals {
    reload: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Signals {
    /// Takes note of signals from now on.
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

    /// Whether the daemon was told to stop since this was last asked.
    #[must_use]
    pub fn take_stop(&self) -> bool {
        self.stop.swap(false, Ordering::AcqRel)
    }

    /// Whether it was told to read its configuration again since this was last asked.
    #[must_use]
    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::AcqRel)
    }
}

/// Tells the service manager, if there is one.
pub fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager was not told");
    }
}
