//! Aggregators of sparse AllReduce that are no ranks: [`server`] has the process that sums up, the other modules its
//! daemon `flexcast-aggregator`, with options, configuration, status and metrics.

pub mod budget;
pub mod daemon;
pub mod metrics;
pub mod options;
pub mod server;

use std::path::PathBuf;

use flexcast_daemon::status::StatusError;
use thiserror::Error;

pub use server::{Server, Settings, Status};

/// Result of this crate's functions.
pub type Result<T, E = AggregatorError> = std::result::Result<T, E>;

/// Why the program does not do what it was asked for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AggregatorError {
    /// The file cannot be read.
    #[error("the configuration {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no TOML, or has a key that there is not, or a value that cannot be.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// The system refuses something.
    #[error("{what}: {source}{next}")]
    System {
        /// What.
        what: String,
        /// Why.
        source: std::io::Error,
        /// What helps.
        next: &'static str,
    },
    /// The secret cannot be used.
    #[error(transparent)]
    Secret(#[from] flexcast_bootstrap::SecretError),
    /// The RDMA card cannot be opened.
    #[error("--device {device}: {source}")]
    Device {
        /// The device.
        device: String,
        /// Why.
        source: flexio::Error,
    },
    /// A thread has ended.
    #[error("a thread of aggregators has failed: see the log, and start the program again")]
    Died,
    /// There is no status.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// Parameters of a budget that cannot be.
    #[error("{0}")]
    Budget(String),
}

impl AggregatorError {
    fn system(what: impl Into<String>, next: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what: what.into(), source, next }
    }
}
