//! Errors of service processes and of ranks that use them.

use flexcast_proto::service::wire::{FormatError, KeyRefusal, Refused};
use flexcast_proto::service::{CallError, Failure, ListError, Refusal, StagedFailure};
use thiserror::Error;

/// What can go wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The card, or its library.
    #[error(transparent)]
    Card(#[from] flexio::Error),
    /// A message that cannot be: what a caller has given cannot be encoded.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Counts and displacements that cannot be.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The service process has refused a key.
    #[error("the service process makes no alias of the key: {0}")]
    Key(KeyRefusal),
    /// It has refused the group or a call.
    #[error("the service process refuses: {0}")]
    Refused(Refused),
    /// A collective has failed.
    #[error("the collective has failed: {0}")]
    Failed(Failure),
    /// The staged collectives of a group have failed: all that are not over. Buffers may still be written to until
    /// their keys are taken back.
    #[error("the staged collectives of the group have failed: {0}")]
    StagedFailed(StagedFailure),
    /// The connection to the service process is gone, and with it all that it carries out.
    #[error("the service process is gone: start it anew, and make a new connection to it")]
    Gone,
    /// A limit that cannot be.
    #[error(transparent)]
    Limit(#[from] Refusal),
    /// The shared list of the card has no room.
    #[error(transparent)]
    List(#[from] ListError),
    /// The system refuses a call on a socket.
    #[error("{call}: {source}")]
    Socket {
        /// The call.
        call: &'static str,
        /// Its error.
        source: std::io::Error,
    },
    /// Something that was called in the wrong order.
    #[error("{what}: {next}")]
    Order {
        /// What was called.
        what: &'static str,
        /// What to do first.
        next: &'static str,
    },
}

impl Error {
    pub(crate) fn socket(call: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Socket { call, source }
    }

    pub(crate) fn socket_errno(call: &'static str) -> impl Fn(nix::errno::Errno) -> Self {
        move |errno| Self::Socket { call, source: errno.into() }
    }
}

/// A result with an [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
