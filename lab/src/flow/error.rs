//! Errors of the flow-level simulation.

use flexcast_proto::service::{Failure, ListError, Refusal, StagedFailure, StagedRefusal, TopologyError};
use thiserror::Error;

/// A simulation that cannot be made, or does not end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FlowError {
    /// Ranks and hosts that cannot be.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A service process refuses an event.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The shared list of a card does.
    #[error(transparent)]
    List(#[from] ListError),
    /// A service process says that a collective has failed. Nothing fails here.
    #[error("a collective has failed: {0}")]
    Failed(Failure),
    /// A service process refuses an event of a staged collective.
    #[error(transparent)]
    StagedRefused(#[from] StagedRefusal),
    /// A service process says that the staged collectives of a group have failed.
    #[error("staged collectives have failed: {0}")]
    StagedFailed(StagedFailure),
    /// A parameter.
    #[error("{what}: {value}, {limit}")]
    Parameter {
        /// Which one.
        what: &'static str,
        /// What was given.
        value: u64,
        /// What would do.
        limit: &'static str,
    },
    /// A rank has not come to the end of its script.
    #[error(
        "rank {rank} is at step {step} of {steps}, and nothing more happens: the calls of the ranks of a group must be \
         the same in the same order"
    )]
    Stuck {
        /// The rank.
        rank: u32,
        /// Where it is.
        step: usize,
        /// Steps of its script.
        steps: usize,
    },
    /// Ranks of a group that call different things.
    #[error("group {group}, collective {collective}: rank {rank} calls another one than the rank before")]
    Disagree {
        /// The group.
        group: u32,
        /// The collective.
        collective: u32,
        /// The rank.
        rank: u32,
    },
}
