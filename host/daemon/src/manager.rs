//! Messages to the service manager (systemd), where one has started the daemon.

use std::time::Duration;

pub use sd_notify::NotifyState;

/// Sends states to the service manager. Without one nothing happens.
pub fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager was not notified");
    }
}

/// Longest time between two [`NotifyState::Watchdog`] that the service manager accepts; none: it wants no such state.
#[must_use]
pub fn watchdog_timeout() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// States at the beginning of a reload, which [`NotifyState::Ready`] ends.
pub fn notify_reload() {
    let begun = NotifyState::monotonic_usec_now().ok();
    notify(&begun.into_iter().chain([NotifyState::Reloading]).collect::<Vec<_>>());
}
