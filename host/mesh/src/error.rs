//! Errors of connections, with the value, the limit and the next step.

use std::io;

use crate::aggregator::MOST_AGGREGATORS;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any failure of this crate. What happens to a connection that has been made is none: [`Mesh::take_broken`] and
/// [`Mesh::fault`] say that.
///
/// [`Mesh::take_broken`]: crate::Mesh::take_broken
/// [`Mesh::fault`]: crate::Mesh::fault
#[derive(thiserror::Error)]
pub enum Error {
    /// The system refuses a socket, or something of it.
    #[error("{what}: {source}; {next}")]
    Socket {
        /// What was refused.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
        /// What helps.
        next: &'static str,
    },
    /// A rank is not reached, or does not connect in time.
    #[error("rank {rank} {reason}")]
    Peer {
        /// The rank.
        rank: u32,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// More aggregators than a job may have.
    #[error("number of aggregators is {given}: must be at most {MOST_AGGREGATORS}")]
    TooManyAggregators {
        /// How many were given.
        given: u64,
    },
    /// An aggregator has no address to connect to.
    #[error("aggregators: {name:?} {reason}: give host:port of a flexcast-aggregator")]
    AggregatorAddress {
        /// The aggregator, as it was given.
        name: String,
        /// What is wrong with that.
        reason: String,
    },
}

flexcast_error::debug_as_display!(Error);
