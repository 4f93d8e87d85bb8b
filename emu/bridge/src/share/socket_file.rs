//! The socket's place in the file system: one process at a time has it.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Where connections come in. The lock next to the socket is kept as long as the process, so that a socket whose lock
/// is free is one that was left.
#[derive(Debug)]
pub(crate) struct SocketFile {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    _lock: File,
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Takes a socket away that a process has left, which is known by the lock next to it: nobody has it. Only sockets are
/// taken away.
pub fn take_away(path: &Path) {
    let is_left = File::open(lock_path(path)).is_ok_and(|lock| lock.try_lock().is_ok());
    if is_left && fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        // Left behind, it is replaced by the next process.
        let _ = fs::remove_file(path);
    }
}

fn taken(path: &Path, mut lock: File) -> io::Error {
    let mut owner = String::new();
    let _ = lock.read_to_string(&mut owner);
    let text = format!(
        "process {} shares its cards at {} already: end it, or choose another socket",
        if owner.trim().is_empty() { "another" } else { owner.trim() },
        path.display()
    );
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

impl SocketFile {
    /// Takes the place, and listens for processes of the same user.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let lock =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(lock_path(path))?;
        let mut lock = match lock.try_lock() {
            Ok(()) => lock,
            Err(TryLockError::WouldBlock) => return Err(taken(path, lock)),
            Err(TryLockError::Error(error)) => return Err(error),
        };
        lock.set_len(0)?;
        write!(lock, "{}", std::process::id())?;
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "it is a file, and no socket: choose another path",
                ));
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Self { listener, path: path.to_owned(), _lock: lock })
    }
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Left behind, it is replaced by the next process.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_the_place_and_what_is_left_there_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let first = SocketFile::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = SocketFile::bind(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!("process {} shares", std::process::id())) && error.contains("card.sock"),
            "{error}"
        );
        drop(first);
        assert!(!path.exists());
        // As a process leaves it that is killed.
        drop(UnixListener::bind(&path).unwrap());
        take_away(&path);
        assert!(!path.exists());
        let again = SocketFile::bind(&path).unwrap();
        take_away(&path);
        assert!(path.exists(), "somebody has it");
        drop(again);
        drop(UnixListener::bind(&path).unwrap());
        drop(SocketFile::bind(&path).unwrap());
        fs::write(&path, "a letter").unwrap();
        assert!(SocketFile::bind(&path).unwrap_err().to_string().contains("no socket"));
        take_away(&path);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
    }
}
