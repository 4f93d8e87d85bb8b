//! The status of the daemon.

use std::path::Path;

use flexcast_daemon::status::StatusError;
use serde::{Deserialize, Serialize};

use super::config::{Bounds, Times};
use crate::net::processes::ProcessStatus;

/// What a daemon is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It serves.
    #[default]
    Serving,
    /// It stops: no new connections.
    Stopping,
}

/// The status of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Release of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// What it is doing.
    pub state: State,
    /// Seconds since it has started.
    pub uptime_s: u64,
    /// RDMA device of the card's Arm function.
    pub device: String,
    /// System image GUID of the card, in hexadecimal.
    pub card: String,
    /// Bounds of each process.
    pub limits: Bounds,
    /// Bounds of time.
    pub times: Times,
    /// The service processes.
    pub processes: Vec<ProcessStatus>,
}

/// Asks a daemon.
///
/// # Errors
/// [`StatusError`].
pub fn ask(socket: &Path) -> Result<Status, StatusError> {
    flexcast_daemon::status::ask(socket, "flexcast-service")
}
