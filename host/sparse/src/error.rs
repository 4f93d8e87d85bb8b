//! Errors of sparse AllReduces over reliable connections, with the one concerned.

use std::fmt;

use flexcast_proto::sparse::{FixedPointError, ParameterError, ShardError};

/// A worker or an aggregator, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// One whose array is summed up.
    Worker(u32),
    /// One who adds.
    Aggregator(u32),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(number) => write!(f, "worker {number}"),
            Self::Aggregator(number) => write!(f, "aggregator {number}"),
        }
    }
}

/// Any failure of a sparse AllReduce over reliable connections.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter outside its range.
    #[error("{what} is {value}: must be {limit}")]
    OutOfRange {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        limit: String,
    },
    /// Parameters that cannot be.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    /// An array that cannot be divided like this.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// A contribution that is no fixed-point number.
    #[error(transparent)]
    FixedPoint(#[from] FixedPointError),
    /// The card or its library refused something.
    #[error(transparent)]
    Flexio(#[from] flexio::Error),
    /// The accelerator, or its driver, refused something.
    #[error("the accelerator cannot {what}")]
    Accelerator {
        /// What was asked for.
        what: String,
        /// Why, and what may help.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The accelerator's programs do not end.
    #[error(
        "waited {waited_us} us ({polls} polls) for the accelerator; is it busy with something else? If so, raise the \
         bound"
    )]
    AcceleratorTimeout {
        /// Time without progress, by the provider's clock.
        waited_us: u64,
        /// Polls in vain.
        polls: u64,
    },
    /// What a worker or aggregator sent of its queue pairs cannot be used.
    #[error("connection information of {party}: {reason}")]
    ConnectInfo {
        /// Whose it is.
        party: Party,
        /// What is wrong with it.
        reason: String,
    },
    /// One at a time.
    #[error("an operation is not complete: drive it to its end before the next")]
    Busy,
    /// After a failure the state of the connections is not known.
    #[error("an earlier operation on these connections has failed: make new ones")]
    Failed,
    /// Somebody sent what it should not.
    #[error("from {party}: {reason}")]
    Protocol {
        /// Who.
        party: Party,
        /// What it was.
        reason: String,
    },
    /// A connection broke.
    #[error("the connection to {party} broke; is it still there?")]
    Connection {
        /// Who was at its other end.
        party: Party,
        /// What its completion says.
        #[source]
        source: flexio::Error,
    },
    /// An aggregator has ended the operation.
    #[error(
        "aggregator {aggregator} has ended the operation because of {}: check its process and its network",
        failed_rank(*aggregator, *worker)
    )]
    Ended {
        /// Who says so.
        aggregator: u32,
        /// Whose fault it is; none: its own.
        worker: Option<u32>,
    },
    /// Nothing happened for too long.
    #[error("waited {waited_us} us ({polls} polls) for {party}; is it still there, and has it called the same?")]
    Timeout {
        /// Who owes the first thing that is missing.
        party: Party,
        /// Time without progress, by the provider's clock.
        waited_us: u64,
        /// Polls in vain.
        polls: u64,
    },
}

/// Whose fault the end of an operation is.
const fn failed_rank(aggregator: u32, worker: Option<u32>) -> Party {
    match worker {
        Some(worker) => Party::Worker(worker),
        None => Party::Aggregator(aggregator),
    }
}

flexcast_error::debug_as_display!(Error);

/// What a sparse AllReduce returns.
pub type Result<T> = std::result::Result<T, Error>;
