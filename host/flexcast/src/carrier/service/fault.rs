//! Failures of operations by service processes, as failures of the communicator.

use std::fmt;

use flexcast_proto::service::{self, FailedParty, StagedCause, Topology};
use flexcast_proto::{Cause, Failure, FailureCode, WaitedFor};
use flexcast_service::Error as ServiceError;

use crate::engine::offload::OffloadFault;
use crate::error::Error;

/// What has failed.
#[derive(Debug)]
pub(super) enum ServiceFault {
    Service(ServiceError),
    Own(Error),
    /// No end within the bound.
    Late,
}

impl fmt::Display for ServiceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(error) => error.fmt(f),
            Self::Own(error) => error.fmt(f),
            Self::Late => f.write_str(
                "it has not ended in time: raise `operation` of the service options, or find \
                the rank that has not called it",
            ),
        }
    }
}

impl ServiceFault {
    /// What ranks have called, in words, if that is what service processes have found to differ.
    fn calls(&self) -> Option<String> {
        let Self::Service(ServiceError::Failed(failure)) = self else { return None };
        let failed_rank = failure.failed_rank;
        match failure.cause {
            service::Cause::Bytes { detecting_rank, found, expected } => Some(format!(
                "{failed_rank} sends {found} bytes to rank {detecting_rank}; rank {detecting_rank} expects {expected} \
                 bytes"
            )),
            service::Cause::Operation { found, expected } => {
                Some(format!("{failed_rank} called {found}; a rank of another service process called {expected}"))
            }
            service::Cause::Died | service::Cause::Read(_) => None,
        }
    }

    /// The failure of the communicator that it is, on rank `own`.
    pub(super) fn reported(&self, own: u32, topology: &Topology) -> OffloadFault {
        let rank_of = |failed_rank| match failed_rank {
            FailedParty::Rank(rank) => rank,
            // The first rank that it serves stands for it.
            FailedParty::Process(process) => topology.served_by(process).next().unwrap_or(own),
        };
        let of_process = |failed_rank| match failed_rank {
            FailedParty::Rank(_) => Cause::Connection(FailureCode::Program),
            FailedParty::Process(_) => Cause::Device(FailureCode::ServiceProcess),
        };
        tracing::warn!(rank = own, fault = %self, "an operation by service processes has failed");
        let (failed_rank, cause) = match self {
            Self::Service(ServiceError::Failed(failure)) => {
                let cause = match failure.cause {
                    service::Cause::Died => of_process(failure.failed_rank),
                    service::Cause::Read(status) => Cause::Connection(FailureCode::of_completion(status.into())),
                    service::Cause::Bytes { .. } | service::Cause::Operation { .. } => Cause::Disagrees,
                };
                (rank_of(failure.failed_rank), cause)
            }
            Self::Service(ServiceError::StagedFailed(failure)) => {
                let cause = match failure.cause {
                    StagedCause::Died => of_process(failure.failed_rank),
                    StagedCause::Transfer(status) => Cause::Connection(FailureCode::of_completion(status.into())),
                    StagedCause::Disagrees => Cause::Disagrees,
                };
                (rank_of(failure.failed_rank), cause)
            }
            Self::Late => (own, Cause::Silent(WaitedFor::Block)),
            Self::Service(_) | Self::Own(_) => (own, Cause::Device(FailureCode::ServiceProcess)),
        };
        OffloadFault { failure: Failure { failed_rank, detecting_rank: own, cause }, calls: self.calls() }
    }
}
