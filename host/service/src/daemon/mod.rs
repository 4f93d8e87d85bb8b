//! `flexcast-service`: the service processes of one card as a daemon, with its configuration, metrics and status.

pub mod config;
pub mod metrics;
mod reload;
mod run;
pub mod status;

use std::path::{Path, PathBuf};

use flexcast_daemon::lock::LockError;
use flexcast_proto::service::wire::Secret;
use thiserror::Error;

pub use run::{serve, serve_on};

/// Reads the secret that a configuration names.
///
/// # Errors
/// [`ConfigError::Secret`].
pub fn read_secret(path: &Path) -> Result<Secret, ConfigError> {
    Ok(crate::secret::read(path)?)
}

use config::ConfigError;

/// Why the daemon does not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Its configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The card, or its service processes.
    #[error("{what}: {source}")]
    Service {
        /// What was begun.
        what: String,
        /// Why not.
        source: crate::Error,
    },
    /// Another daemon has the card.
    #[error(
        "another flexcast-service serves card {card:016x} ({device}) already, process {pid}: end that one, or name \
         another device; the lock is {}",
        lock.display()
    )]
    Taken {
        /// The card's system image GUID.
        card: u64,
        /// The device in the configuration.
        device: String,
        /// The other daemon.
        pid: String,
        /// The file that it has locked.
        lock: PathBuf,
    },
    /// The lock of the card.
    #[error(transparent)]
    Lock(LockError),
    /// The system refuses something.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: String,
        /// Why.
        source: std::io::Error,
    },
}

impl DaemonError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }

    pub(crate) fn service(what: impl Into<String>) -> impl FnOnce(crate::Error) -> Self {
        move |source| Self::Service { what: what.into(), source }
    }
}
