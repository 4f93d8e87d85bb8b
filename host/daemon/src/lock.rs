//! Lock files: at most one daemon holds each, until it ends.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a file cannot be locked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process holds it.
    #[error("process {pid} holds the lock {}: end that process, or use another lock", lock.display())]
    Taken {
        /// The process, as it has written itself into the file, or `unknown`.
        pid: String,
        /// The file.
        lock: PathBuf,
    },
    /// The system refuses the file.
    #[error("the lock {}: {source}", lock.display())]
    System {
        /// The file.
        lock: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// A file that this process has locked. The lock ends when this is dropped, or with the process.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
}

impl LockFile {
    /// Makes the file and its folder where they are missing, locks it, and writes the number of this process into it.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn new(path: &Path) -> Result<Self, LockError> {
        let system = |source| LockError::System { lock: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(system)?;
        }
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(system)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // The holder may not have written its number yet.
                _ = file.take(32).read_to_string(&mut pid);
                let pid = pid.trim();
                let pid = if pid.is_empty() { "unknown" } else { pid }.to_owned();
                return Err(LockError::Taken { pid, lock: path.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(system(error)),
        }
        let pid = std::process::id();
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{pid}")).map_err(system)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_locked_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("made/7.lock");
        let first = LockFile::new(&path).expect("the first");
        let error = LockFile::new(&path).expect_err("the second").to_string();
        let expected = format!("process {} holds the lock {}", std::process::id(), path.display());
        assert!(error.starts_with(&expected), "{error}");
        LockFile::new(&folder.path().join("8.lock")).expect("another file");
        drop(first);
        LockFile::new(&path).expect("the next");
        let error = LockFile::new(&path.join("9.lock")).expect_err("a file is no folder").to_string();
        assert!(error.contains("9.lock: "), "{error}");
    }
}
