//! The file of the secret: 64 hexadecimal digits, for its owner alone.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use flexcast_proto::service::wire::{Secret, TAG_BYTES};
use thiserror::Error;

/// A file that gives no secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the secret in {}: {reason}", path.display())]
pub struct SecretError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// Reads a secret: 64 hexadecimal digits, as `openssl rand -hex 32` makes them, in a file that only its owner can read
/// and write (0600).
///
/// # Errors
/// [`SecretError`].
pub fn read(path: &Path) -> Result<Secret, SecretError> {
    let wrong = |reason: String| SecretError { path: path.to_owned(), reason };
    // What is checked is what is read: the file is opened once.
    let file = flexcast_files::open(path).map_err(|error| wrong(error.to_string()))?;
    let about = file.metadata().map_err(|error| wrong(error.to_string()))?;
    let mode = about.mode() & 0o7777;
    if mode & 0o177 != 0 {
        return Err(wrong(format!(
            "its mode is {mode:04o}, but must be 0600 at most: `chmod 600` it, and make a new one if others may have \
             read it"
        )));
    }
    let mut text = String::new();
    file.take(4096).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    let digits = text.trim();
    let form = || {
        wrong(format!(
            "it has {} characters, but must have 64 hexadecimal digits: `openssl rand -hex 32` makes them",
            digits.len()
        ))
    };
    if digits.len() != 2 * TAG_BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(form());
    }
    let mut bytes = [0; TAG_BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..digits.len()).step_by(2)) {
        *byte = digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or_else(form)?;
    }
    Ok(Secret::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_secret_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            read(&path).map(|secret| *secret.bytes()).map_err(|error| error.to_string())
        };
        let digits = "0f".repeat(32);
        assert_eq!(write(&format!("{digits}\n"), 0o600), Ok([15; 32]));
        assert_eq!(write(&digits, 0o400), Ok([15; 32]));
        for mode in [0o640, 0o604, 0o666, 0o700] {
            assert!(write(&digits, mode).is_err_and(|error| error.contains(&format!("{mode:04o}"))));
        }
        for text in ["", "0f", &digits[1..], &format!("{digits}00"), &"zz".repeat(32), &"é".repeat(32)] {
            assert!(write(text, 0o600).is_err_and(|error| error.contains("64 hexadecimal digits")), "{text}");
        }
        assert!(read(folder.path()).is_err_and(|error| error.to_string().contains("it is a folder")));
        let missing = read(&folder.path().join("none")).expect_err("no file").to_string();
        assert!(missing.contains("No such file"), "{missing}");
    }
}
