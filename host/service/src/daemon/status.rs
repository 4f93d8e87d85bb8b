//! The status of a daemon: one JSON document on a Unix socket.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
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
    #[error("no {program} answers at {} ({source}): start it, or give the `status_socket` of its configuration", socket.display())]
    Absent {
        /// Who should answer.
        program: &'static str,
        /// The socket.
        socket: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// What has come is no status.
    #[error("what answers at {} is no {program} of this release: {reason}", socket.display())]
    Foreign {
        /// Who should answer.
        program: &'static str,
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
    ask_program(socket, "flexcast-service")
}

/// Asks another program that tells its status in this way.
///
/// # Errors
/// [`StatusError`].
pub fn ask_program<T: DeserializeOwned>(socket: &Path, program: &'static str) -> Result<T, StatusError> {
    let absent = |source| StatusError::Absent { program, socket: socket.to_owned(), source };
    let foreign = |reason: String| StatusError::Foreign { program, socket: socket.to_owned(), reason };
    let stream = UnixStream::connect(socket).map_err(absent)?;
    stream.set_read_timeout(Some(BOUND)).map_err(absent)?;
    let mut text = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut text).map_err(|error| foreign(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))
}

/// Listens on the socket of the status. One that nobody listens on any more is taken over.
///
/// # Errors
/// The system refuses, or another daemon has it.
pub fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    if UnixStream::connect(path).is_ok() {
        let reason = "another daemon answers there: give each daemon its own";
        return Err(std::io::Error::new(std::io::ErrorKind::AddrInUse, reason));
    }
    if std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let socket = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Tells one that asks.
pub fn tell(mut to: UnixStream, status: &impl Serialize) {
    let told = to.set_write_timeout(Some(BOUND)).and_then(|()| {
        let text = serde_json::to_string(status).map_err(std::io::Error::other)?;
        to.write_all(text.as_bytes())?;
        to.write_all(b"\n")
    });
    if let Err(error) = told {
        tracing::debug!(%error, "a status was not taken");
    }
}
