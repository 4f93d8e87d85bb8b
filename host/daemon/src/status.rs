//! The status of a daemon: one JSON document for each connection to a Unix socket.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Longest that either side waits for the other.
const BOUND: Duration = Duration::from_secs(2);
/// Longest document.
const MOST_BYTES: u64 = 4 << 20;

/// Why there is no status.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StatusError {
    /// Nobody answers.
    #[error("no {program} answers at {} ({source}): start it, or give the `status_socket` of its configuration", socket.display())]
    Absent {
        /// The daemon that was expected.
        program: &'static str,
        /// The socket.
        socket: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The answer is no status.
    #[error("what answers at {} is no {program} of this release: {reason}", socket.display())]
    Foreign {
        /// The daemon that was expected.
        program: &'static str,
        /// The socket.
        socket: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Asks the daemon `program` for its status.
///
/// # Errors
/// [`StatusError`].
pub fn ask<T: DeserializeOwned>(socket: &Path, program: &'static str) -> Result<T, StatusError> {
    let absent = |source| StatusError::Absent { program, socket: socket.to_owned(), source };
    let foreign = |reason: String| StatusError::Foreign { program, socket: socket.to_owned(), reason };
    let stream = UnixStream::connect(socket).map_err(absent)?;
    stream.set_read_timeout(Some(BOUND)).map_err(absent)?;
    let mut text = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut text).map_err(|error| foreign(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))
}

/// The socket of a daemon's status. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct StatusSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl StatusSocket {
    /// Listens at `path`, for the owner and the group of the daemon. The folder is made where it is missing. A socket
    /// that a dead daemon has left there is replaced.
    ///
    /// # Errors
    /// The system refuses, or another daemon answers there.
    pub fn new(path: &Path) -> std::io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        if UnixStream::connect(path).is_ok() {
            let reason = "another daemon answers there: give each daemon its own";
            return Err(std::io::Error::new(ErrorKind::AddrInUse, reason));
        }
        if std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers all connections that wait; `status` gives the document. It does not wait for new ones.
    pub fn serve<T: Serialize>(&self, status: impl Fn() -> T) {
        while let Ok((stream, _)) = self.listener.accept() {
            if let Err(error) = send(stream, &status()) {
                tracing::debug!(%error, "a status was not taken");
            }
        }
    }
}

impl AsFd for StatusSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.path);
    }
}

fn send(mut to: UnixStream, status: &impl Serialize) -> std::io::Result<()> {
    to.set_write_timeout(Some(BOUND))?;
    let text = serde_json::to_string(status).map_err(std::io::Error::other)?;
    to.write_all(text.as_bytes())?;
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_document_of_its_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("made/status");
        let absent = ask::<u32>(&path, "daemon").expect_err("nobody is there").to_string();
        assert!(absent.starts_with("no daemon answers at "), "{absent}");
        let socket = StatusSocket::new(&path).expect("it listens");
        let taken = StatusSocket::new(&path).expect_err("it is taken").to_string();
        assert!(taken.contains("give each daemon its own"), "{taken}");
        // The question of the second daemon is one connection, too.
        socket.serve(|| 0);
        let asked = std::thread::scope(|scope| {
            let threads =
                [(); 2].map(|()| scope.spawn(|| ask::<u32>(&path, "daemon").map_err(|error| error.to_string())));
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                socket.serve(|| 7);
                std::thread::sleep(Duration::from_millis(1));
            }
            threads.map(|thread| thread.join().expect("it ends"))
        });
        assert_eq!(asked, [Ok(7), Ok(7)]);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("status");
        drop(UnixListener::bind(&path).expect("a socket"));
        StatusSocket::new(&path).expect("it listens");
        std::fs::write(&path, "a file of somebody else").expect("written");
        StatusSocket::new(&path).expect_err("a file is not removed");
        assert!(path.exists());
    }
}
