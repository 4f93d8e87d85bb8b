//! Bounds of waits between machines.

use std::time::Duration;

/// Longest sleep of a machine to which nothing happens.
pub(crate) const IDLE: Duration = Duration::from_millis(50);
/// How long a full window is believed in while nothing has ever been received from the other end. Then nobody is there,
/// and frames go out as they come until somebody is.
pub(crate) const GIVE_UP: Duration = Duration::from_millis(250);
/// How long a peer that has been there may be silent while something waits for it, unless said otherwise. Virtual time,
/// and with it the bounds of programs, may stand still meanwhile: it is less than the 10 s after which ranks name one
/// that is silent, so that a stopped one is not waited for twice as long.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(8);
/// The environment variable that stands above `bridge.peer_timeout_ms` and `attach.timeout_ms` of that file.
pub const PEER_TIMEOUT_VARIABLE: &str = "FLEXCAST_PEER_TIMEOUT_MS";
