//! Signals that ask a command to end, for commands that have something to remove before they do.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::flag;

/// A request to end by SIGINT, SIGTERM, SIGHUP or SIGPIPE. However many come, the command removes what it has made;
/// that takes bounded time.
pub(crate) struct Interrupt {
    /// Set by the first of them.
    pub(crate) stop: Arc<AtomicBool>,
    /// Number of the last.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Takes these signals from now on: none of them ends the process any more. `timeout` sends its signal twice,
    /// once to the process and once to its group. A write to a pipe that nobody reads fails instead.
    pub(crate) fn register() -> io::Result<Self> {
        let interrupt = Self { stop: Arc::default(), signal: Arc::default() };
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGPIPE] {
            flag::register_usize(signal, Arc::clone(&interrupt.signal), signal.unsigned_abs() as usize)?;
            flag::register(signal, Arc::clone(&interrupt.stop))?;
        }
        Ok(interrupt)
    }

    /// What shells expect of a program that a signal has ended: 128 and the number of the signal.
    pub(crate) fn code(&self) -> ExitCode {
        let signal = self.signal.load(Ordering::Relaxed);
        ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }
}
