//! Output files that are there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that are tried for a file that is not complete: one is taken only if a program of the same number was killed.
const MOST_NAMES: u32 = 1000;

/// An output file that is written under a temporary name in the same folder, and moved to its place by
/// [`NewFile::finish`]: after a full disk or an interruption there is the file of before, or none. Dropped before, it
/// leaves nothing.
///
/// What is no regular file (a pipe, a terminal, `/dev/null`) is written where it is. A symbolic link stays one, and the
/// file that it leads to is replaced.
#[derive(Debug)]
pub struct NewFile {
    file: BufWriter<File>,
    /// Where it is until it is complete; `None` for what is written where it is.
    temporary: Option<PathBuf>,
    place: PathBuf,
}

impl NewFile {
    /// Begins a file. What would keep it from its place shows here: a missing folder, rights, a folder of that name.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let (place, old) = match fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(there) => {
                // A file that may not be written is not replaced either.
                let open = OpenOptions::new().write(true).open(path)?;
                if !there.is_file() {
                    return Ok(Self { file: BufWriter::new(open), temporary: None, place: path.to_owned() });
                }
                (path.canonicalize()?, Some(there))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => (path.to_owned(), None),
            Err(error) => return Err(error),
        };
        if place.as_os_str().as_encoded_bytes().last() == Some(&b'/') {
            return Err(ErrorKind::IsADirectory.into());
        }
        if place.file_name().is_none() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no name of a file"));
        }
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (file, temporary) = create_temporary(folder)?;
        let this = Self { file: BufWriter::new(file), temporary: Some(temporary), place };
        if let Some(old) = old {
            this.file.get_ref().set_permissions(old.permissions())?;
        }
        Ok(this)
    }

    /// Writes what has gathered, and moves the file to its place.
    ///
    /// # Errors
    /// It could not be written whole; nothing is left of it, and what was at its place still is.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.place)?;
            self.temporary = None;
        }
        Ok(())
    }
}

/// A file of a name that no other has: short, so that it does not exceed what the name of the file itself keeps.
fn create_temporary(folder: &Path) -> io::Result<(File, PathBuf)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    for _ in 0..MOST_NAMES {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!(".part-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, format!("too many files .part-* in {}", folder.display())))
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // Not complete; that it stays is no failure of its own.
            drop(fs::remove_file(temporary));
        }
    }
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// As [`NewFile::create`] and [`NewFile::finish`].
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes.as_ref())?;
    file.finish()
}

/// Tries whether a file can be made, and leaves things as they are. A pipe or device is not opened: who reads a pipe
/// would see its end.
///
/// # Errors
/// As [`NewFile::create`].
pub fn attempt(path: impl AsRef<Path>) -> io::Result<()> {
    match fs::metadata(path.as_ref()) {
        Ok(there) if !there.is_file() && !there.is_dir() => Ok(()),
        _ => NewFile::create(path).map(drop),
    }
}

/// Makes a folder if it is not there, and tries whether files can be made in it.
///
/// # Errors
/// They cannot.
pub fn attempt_folder(folder: impl AsRef<Path>) -> io::Result<()> {
    let folder = folder.as_ref();
    fs::create_dir_all(folder)?;
    create_temporary(folder).and_then(|(_, temporary)| fs::remove_file(temporary))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_at_its_place_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a.json");
        fs::write(&place, "old").unwrap();
        let mut file = NewFile::create(&place).unwrap();
        file.write_all(b"new").unwrap();
        file.flush().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"old");
        file.finish().unwrap();
        assert_eq!((fs::read(&place).unwrap(), names(folder.path())), (b"new".to_vec(), vec!["a.json".to_owned()]));
        // Given up: everything as it was.
        let mut file = NewFile::create(&place).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!((fs::read(&place).unwrap(), names(folder.path())), (b"new".to_vec(), vec!["a.json".to_owned()]));
    }

    #[test]
    fn attempts_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        attempt(folder.path().join("x")).unwrap();
        attempt_folder(folder.path().join("made/deep")).unwrap();
        assert_eq!(names(folder.path()), ["made"]);
        assert!(names(&folder.path().join("made/deep")).is_empty());
        for wrong in ["no/such/x", "made", "made/", "new/", "", "made/.."] {
            let wrong = if wrong.is_empty() { PathBuf::new() } else { folder.path().join(wrong) };
            assert!(attempt(&wrong).is_err(), "{}", wrong.display());
        }
        assert!(attempt(folder.path().join("n".repeat(256))).is_err());
        attempt(folder.path().join("n".repeat(255))).unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(attempt_folder(folder.path().join("file")).is_err());
    }

    #[test]
    fn links_rights_and_devices_stay() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        write(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        write("/dev/null", "nowhere").unwrap();
        // A device that is always full: the failure is reported, and not lost in a buffer.
        assert_eq!(write("/dev/full", "x").unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
