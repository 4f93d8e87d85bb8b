//! One daemon for each card: a locked file by the card's GUID.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use super::DaemonError;

/// Locks a card until the file is closed, by the end of the process too.
///
/// # Errors
/// [`DaemonError::Taken`]; the file cannot be made.
pub(super) fn lock(folder: &Path, card: u64, device: &str) -> Result<File, DaemonError> {
    std::fs::create_dir_all(folder).map_err(DaemonError::system(format!("the folder {}", folder.display())))?;
    let path = folder.join(format!("card-{card:016x}.lock"));
    let what = || format!("the lock {}", path.display());
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = file.map_err(DaemonError::system(what()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Who has it may just be writing.
            _ = file.take(32).read_to_string(&mut pid);
            let pid = pid.trim();
            let pid = if pid.is_empty() { "unknown" } else { pid }.to_owned();
            return Err(DaemonError::Taken { card, device: device.to_owned(), pid, lock: path });
        }
        Err(TryLockError::Error(error)) => return Err(DaemonError::system(what())(error)),
    }
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(DaemonError::system(what()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_one_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = lock(folder.path(), 7, "mlx5_0").expect("the first");
        let error = lock(folder.path(), 7, "mlx5_0").expect_err("the second").to_string();
        let told = format!("serves card 0000000000000007 (mlx5_0) already, process {}", std::process::id());
        assert!(error.contains(&told), "{error}");
        lock(folder.path(), 8, "mlx5_1").expect("another card");
        drop(first);
        lock(folder.path(), 7, "mlx5_0").expect("the next");
    }
}
