//! The status of a daemon: one JSON document on a Unix socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::config::{Bounds, Times};
use crate::net::processes::ProcessLook;

/// Longest that either side waits for the other.
pub(super) const BOUND: Duration = Duration::from_secs(2);
/// Longest document: 64 processes have far less.
const MOST_BYTES: u64 = 4 << 20;

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
    pub processes: Vec<ProcessLook>,
}

/// Why there is no status.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StatusError {
    /// Nobody answers.
    #[error("no flexcast-service answers at {} ({source}): start it, or give the `status_socket` of its configuration", socket.display())]
    Absent {
        /// The socket.
        socket: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// What has come is no status.
    #[error("what answers at {} is no flexcast-service of this release: {reason}", socket.display())]
    Foreign {
        /// The socket.
        socket: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Asks a daemon.
///
/// # Errors
/// [`StatusError`].
pub fn ask(socket: &Path) -> Result<Status, StatusError> {
    let absent = |source| StatusError::Absent { socket: socket.to_owned(), source };
    let foreign = |reason: String| StatusError::Foreign { socket: socket.to_owned(), reason };
    let stream = UnixStream::connect(socket).map_err(absent)?;
    stream.set_read_timeout(Some(BOUND)).map_err(absent)?;
    let mut text = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut text).map_err(|error| foreign(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))
}

/// Tells one that asks.
pub(super) fn tell(mut to: UnixStream, status: &Status) {
    let told = to.set_write_timeout(Some(BOUND)).and_then(|()| {
        let text = serde_json::to_string(status).map_err(std::io::Error::other)?;
        to.write_all(text.as_bytes())?;
        to.write_all(b"\n")
    });
    if let Err(error) = told {
        tracing::debug!(%error, "a status was not taken");
    }
}
