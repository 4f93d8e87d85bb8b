//! Bounded reader of the files that users name: regular files, of no more bytes than their kind has.
//!
//! A device without an end takes no memory, and a pipe without a writer does not wait. Errors are those of the system
//! with the next step behind them; whoever reads adds what the file is, and its path.
//!
//! ```
//! let error = flexcast_files::text("/dev/zero".as_ref(), flexcast_files::CONFIGURATION).unwrap_err();
//! assert_eq!(error.to_string(), "it is a device, and only regular files are read; give the path of one");
//! ```
#![forbid(unsafe_code)]

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;

/// Most bytes of a configuration: of a daemon, of a machine, of a model.
pub const CONFIGURATION: u64 = 1 << 20;
/// Most bytes of a table: a topology, a fault script, a tuning, a trace, what has been measured.
pub const TABLE: u64 = 64 << 20;
/// Most bytes of a program for the DPA, or another one that is loaded.
pub const IMAGE: u64 = 256 << 20;
/// Most bytes of a record of a run.
pub const RECORD: u64 = 1 << 30;

/// Reads a file of `most` bytes at most.
///
/// # Errors
/// It cannot be opened or read, is no regular file, or has more bytes.
pub fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    of_opened(open(path)?, most)
}

/// Reads a text of `most` bytes at most.
///
/// # Errors
/// As [`bytes`], or it is no UTF-8.
pub fn text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(bytes(path, most)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(
            ErrorKind::InvalidData,
            format!("it is no text of UTF-8 from byte {at} on; give the path of another file"),
        )
    })
}

/// Opens a regular file, or what a link leads to, to be read. What is checked is what is opened.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Without that a pipe is opened only once somebody writes to it.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(with_next)?;
    let kind = file.metadata().map_err(with_next)?.file_type();
    if !kind.is_file() {
        let (error, what) = name(kind);
        let text = format!("it is {what}, and only regular files are read; give the path of one");
        return Err(io::Error::new(error, text));
    }
    Ok(file)
}

/// Reads what has been opened.
fn of_opened(file: File, most: u64) -> io::Result<Vec<u8>> {
    let too_long = |has: String| {
        io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it has {has} bytes, and at most {most} are read; give a smaller file"),
        )
    };
    let length = file.metadata().map_err(with_next)?.len();
    if length > most {
        return Err(too_long(length.to_string()));
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(1);
    bytes.try_reserve_exact(room).map_err(|_| {
        let text = format!("there is no memory for its {length} bytes; free some, or raise the limit (ulimit -v)");
        io::Error::new(ErrorKind::OutOfMemory, text)
    })?;
    // Some files of the system state no length, and others grow.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(with_next)?;
    if bytes.len() as u64 > most {
        return Err(too_long(format!("more than {most}")));
    }
    Ok(bytes)
}

fn name(kind: FileType) -> (ErrorKind, &'static str) {
    if kind.is_dir() {
        (ErrorKind::IsADirectory, "a folder")
    } else if kind.is_fifo() {
        (ErrorKind::InvalidInput, "a pipe")
    } else if kind.is_char_device() || kind.is_block_device() {
        (ErrorKind::InvalidInput, "a device")
    } else {
        (ErrorKind::InvalidInput, "no file")
    }
}

/// The same error with what helps.
fn with_next(error: io::Error) -> io::Error {
    let next = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => "correct its path",
        ErrorKind::PermissionDenied => "let this user read it (`chmod`), or give the path of another",
        _ => "give the path of a regular file that can be read",
    };
    io::Error::new(error.kind(), format!("{error}; {next}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn regular_files_are_read_as_far_as_their_kind_allows() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "12345").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!((bytes(&file, 5).unwrap(), text(&link, 5).unwrap()), (b"12345".to_vec(), "12345".to_owned()));
        let long = bytes(&file, 4).unwrap_err().to_string();
        assert_eq!(long, "it has 5 bytes, and at most 4 are read; give a smaller file");
        // It states no length.
        assert!(text(Path::new("/proc/self/status"), 1 << 20).unwrap().contains("VmSize"));
        let long = bytes(Path::new("/proc/self/status"), 4).unwrap_err().to_string();
        assert!(long.starts_with("it has more than 4 bytes"), "{long}");
        std::fs::write(&file, b"ab\xFF").unwrap();
        let binary = text(&file, 5).unwrap_err().to_string();
        assert!(binary.contains("from byte 2 on"), "{binary}");
    }

    #[test]
    fn what_is_no_regular_file_neither_waits_nor_takes_memory() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let socket = folder.path().join("socket");
        let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (Path::new("/dev/zero"), "it is a device"),
            (&pipe, "it is a pipe"),
            (folder.path(), "it is a folder"),
            (&socket, "give the path of a regular file"),
            (&folder.path().join("none"), "No such file or directory (os error 2); correct its path"),
            (Path::new("/dev/null/x"), "correct its path"),
        ] {
            let error = bytes(path, 10).unwrap_err().to_string();
            assert!(error.contains(what), "{}: {error}", path.display());
        }
    }
}
