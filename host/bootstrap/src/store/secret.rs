//! Pre-shared secret of the ranks of a job.

use std::ffi::OsString;
use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use hmac_sha256::HKDF;

/// The variable that names a file with the secret.
pub const SECRET_FILE: &str = "FLEXCAST_SECRET_FILE";
/// The variable that is the secret.
pub const SECRET: &str = "FLEXCAST_SECRET";

/// Names what the key is for: another use of the same file would get another key.
const SALT: &[u8] = b"flexcast tcp store, pre-shared key 1";

/// A secret that all ranks of a job share. With it the [`TcpStore`](super::TcpStore) takes ranks that have the same one
/// and no others, and encrypts what they exchange.
///
/// It has to be drawn at random, at least 128 bits of it. What two ranks send can be recorded, and guesses can be
/// compared with the record at any speed: a password that people remember is found that way. `head -c 32 /dev/urandom |
/// base64` makes a good one.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: [u8; 32],
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A secret that cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// No bytes, or only the end of a line.
    #[error("the secret in {from} is empty: write one with `head -c 32 /dev/urandom | base64`")]
    Empty {
        /// Where it came from: a file, a variable, the program.
        from: String,
    },
    /// The variable that names a file names none.
    #[error("{SECRET_FILE} is empty: set it to the path of a file with the secret, or unset it")]
    Unnamed,
    /// Fewer bytes than a secret has.
    #[error(
        "the secret in {from} has {found} bytes: at least {} are needed, drawn at random, as `head -c 32 /dev/urandom \
         | base64` does",
        Secret::LEAST_BYTES
    )]
    TooShort {
        /// Where it came from.
        from: String,
        /// Its bytes.
        found: usize,
    },
    /// More bytes than a secret may have.
    #[error(
        "the secret in {from} has more than {} bytes, which is the limit: is it the right file?",
        Secret::MOST_BYTES
    )]
    TooLong {
        /// Where it came from.
        from: String,
    },
    /// Others than the owner have access.
    #[error(
        "the secret file {path} is open to others than its owner (mode {mode:04o}): `chmod 600 {path}`, and draw \
         another secret if they may have read it"
    )]
    Open {
        /// The file.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    /// The file cannot be read.
    #[error("the secret file {path} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// Two secrets.
    #[error("both {SECRET_FILE} and {SECRET} are set: set one of them")]
    Both,
}

flexcast_error::debug_as_display!(SecretError);

impl Secret {
    /// Fewest bytes of a secret: 128 bits that are drawn at random and written in base64 or in hexadecimal digits have
    /// less.
    pub const LEAST_BYTES: usize = 32;
    /// Most bytes of a secret.
    pub const MOST_BYTES: usize = 4096;

    /// A secret of these bytes. One end of a line behind them does not count.
    ///
    /// # Errors
    /// Fewer than [`Secret::LEAST_BYTES`], or more than [`Secret::MOST_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        Self::of(bytes, "the program")
    }

    /// The secret that a file holds.
    ///
    /// # Errors
    /// The file cannot be read, others than its owner may read or write it, or what it holds is no secret, as
    /// [`Secret::new`] says.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let shown = || path.display().to_string();
        let unreadable = |reason: String| SecretError::Unreadable { path: shown(), reason };
        let failed = |error: std::io::Error| unreadable(error.to_string());
        let file = flexcast_files::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Open { path: shown(), mode });
        }
        let mut bytes = Vec::new();
        file.take(Self::MOST_BYTES as u64 + 3).read_to_end(&mut bytes).map_err(failed)?;
        Self::of(&bytes, &shown())
    }

    /// The secret that `FLEXCAST_SECRET_FILE` names or `FLEXCAST_SECRET` is; none if neither is set.
    ///
    /// # Errors
    /// Both are set, or as [`Secret::read`]. A variable that is set and empty is an empty secret.
    pub fn from_env() -> Result<Option<Self>, SecretError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    pub(super) fn from_variables(read: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, SecretError> {
        match (read(SECRET_FILE), read(SECRET)) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(SecretError::Both),
            (Some(path), None) if path.is_empty() => Err(SecretError::Unnamed),
            (Some(path), None) => Self::read(&PathBuf::from(path)).map(Some),
            (None, Some(value)) => Self::of(value.as_encoded_bytes(), SECRET).map(Some),
        }
    }

    fn of(bytes: &[u8], from: &str) -> Result<Self, SecretError> {
        let line = bytes.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let bytes = line.unwrap_or(bytes);
        let from = || from.to_owned();
        match bytes.len() {
            0 => Err(SecretError::Empty { from: from() }),
            found if found < Self::LEAST_BYTES => Err(SecretError::TooShort { from: from(), found }),
            found if found > Self::MOST_BYTES => Err(SecretError::TooLong { from: from() }),
            _ => Ok(Self { key: HKDF::extract(SALT, bytes) }),
        }
    }

    /// A key for another use of the secret, which `purpose` names. Keys of two uses reveal nothing of one another.
    #[must_use]
    pub fn derived(&self, purpose: &str) -> [u8; 32] {
        let mut key = [0; 32];
        HKDF::expand(&mut key, self.key, purpose);
        key
    }

    /// The pre-shared key of the handshake.
    pub(super) fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "mC3Vb1rJ0m8nC0hX4cV7oQe2yJt5uWkS9aPzLdFgHrE=";

    fn file(contents: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    fn refused(contents: &[u8], mode: u32) -> String {
        let (_folder, path) = file(contents, mode);
        Secret::read(&path).unwrap_err().to_string()
    }

    #[test]
    fn files_that_are_no_secret_are_refused_in_words() {
        for mode in [0o640, 0o604, 0o620, 0o666] {
            let text = refused(GOOD.as_bytes(), mode);
            assert!(text.contains(&format!("(mode {mode:04o}): `chmod 600 /")), "{text}");
        }
        assert!(refused(b"", 0o600).contains("is empty"));
        assert!(refused(b"\n", 0o600).contains("is empty"));
        let text = refused(&[b'x'; 31], 0o600);
        assert!(text.contains("has 31 bytes: at least 32 are needed") && text.contains("/dev/urandom"), "{text}");
        let text = refused(&[b'x'; 5000], 0o400);
        assert!(text.contains("more than 4096 bytes"), "{text}");
        let (folder, _path) = file(GOOD.as_bytes(), 0o600);
        let text = Secret::read(folder.path()).unwrap_err().to_string();
        assert!(text.contains("it is a folder"), "{text}");
        let text = Secret::read(&folder.path().join("none")).unwrap_err().to_string();
        assert!(text.contains("/none cannot be read: No such file"), "{text}");
    }

    #[test]
    fn the_same_bytes_are_the_same_secret_and_are_never_shown() {
        let (_folder, path) = file(format!("{GOOD}\n").as_bytes(), 0o600);
        let secret = Secret::read(&path).unwrap();
        assert_eq!(secret, Secret::new(GOOD.as_bytes()).unwrap());
        assert_ne!(secret, Secret::new(format!("{GOOD} ").as_bytes()).unwrap());
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        // HKDF-SHA256, extract: RFC 5869, A.1, has the same function.
        assert_eq!(*secret.key(), hmac_sha256::HMAC::mac(GOOD, SALT));
        // The same, expand: one block of it.
        assert_eq!(secret.derived("use"), hmac_sha256::HMAC::mac(b"use\x01", secret.key()));
        assert_ne!(secret.derived("use"), secret.derived("other use"));
    }

    #[test]
    fn variables_give_one_secret() {
        let (_folder, path) = file(GOOD.as_bytes(), 0o600);
        let from = |variables: &[(&str, &str)]| {
            let read =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
            Secret::from_variables(read).map_err(|error| error.to_string())
        };
        let path = path.to_str().unwrap();
        let secret = Secret::new(GOOD.as_bytes()).unwrap();
        assert_eq!(from(&[]), Ok(None));
        assert_eq!(from(&[(SECRET_FILE, path)]), Ok(Some(secret.clone())));
        assert_eq!(from(&[(SECRET, GOOD)]), Ok(Some(secret)));
        assert!(from(&[(SECRET, GOOD), (SECRET_FILE, path)]).unwrap_err().contains("set one of them"));
        assert!(from(&[(SECRET, "")]).unwrap_err().contains("FLEXCAST_SECRET is empty"));
        assert!(from(&[(SECRET_FILE, "")]).unwrap_err().contains("FLEXCAST_SECRET_FILE is empty"));
        let short = from(&[(SECRET, "swordfish")]).unwrap_err();
        assert!(short.contains("9 bytes") && !short.contains("swordfish"), "{short}");
    }
}
