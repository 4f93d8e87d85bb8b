//! Reason for which an aggregator's shard has stopped.

use std::fmt;

use flexcast_abi::{SparseReport, SparseStatus};
use flexcast_proto::FailureCode;

/// Why a shard has stopped: value, limit and next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregatorFailure {
    /// The shard.
    pub shard: u32,
    /// The worker whose fault it is.
    pub worker: u32,
    /// Iteration of the operation under way; 0 is the one that only votes.
    pub iteration: u32,
    /// Operations of the shard that were over.
    pub operations: u64,
    /// What was wrong; a code that this library does not know as it is.
    pub status: Result<SparseStatus, u64>,
    /// What was found.
    pub found: u64,
    /// What may be.
    pub limit: u64,
}

impl AggregatorFailure {
    pub(super) fn of(shard: u32, report: &SparseReport) -> Self {
        let status = u32::try_from(report.status).ok().and_then(|code| SparseStatus::from_raw(code).ok());
        Self {
            shard,
            worker: report.worker as u32,
            iteration: report.iteration as u32,
            operations: report.operations,
            status: status.ok_or(report.status),
            found: report.found,
            limit: report.limit,
        }
    }
}

impl fmt::Display for AggregatorFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shard, worker, iteration, operations, status, found, limit } = self;
        write!(f, "shard {shard} has stopped in iteration {iteration} after {operations} operations: ")?;
        match status {
            Ok(SparseStatus::Length) => write!(
                f,
                "message of {found} bytes from worker {worker}, but its displacement says {limit}; give all ranks the \
                 same parameters"
            ),
            Ok(SparseStatus::Displacement) => write!(
                f,
                "displacement {found:#x} of worker {worker}, but the iteration has {limit} blocks; its bits behind \
                 them have to be clear"
            ),
            Ok(SparseStatus::Order) => write!(
                f,
                "block index {found} of worker {worker} follows {limit}; indices ascend, with {} behind the last",
                u32::MAX
            ),
            Ok(SparseStatus::Behind) => write!(
                f,
                "block index {found} of worker {worker}, but the iteration is at {limit} already; indices only ascend \
                 from message to message"
            ),
            Ok(SparseStatus::AfterEnd) => write!(
                f,
                "block index {found} of worker {worker} after a list that was not full; a worker votes for all that it \
                 has"
            ),
            Ok(SparseStatus::Element) => write!(
                f,
                "element code {found}, but codes run from 1 to {limit}; use host and firmware of the same release"
            ),
            Ok(SparseStatus::Opcode) => write!(
                f,
                "completion {found:#x} on the connection to worker {worker}, which is no message with an immediate; \
                 use workers of the same release"
            ),
            Ok(SparseStatus::Connection) => write!(
                f,
                "the connection to worker {worker} is broken: {} (syndrome {found:#x}); check its process and its \
                 network",
                u8::try_from(*found).map_or(FailureCode::Completion, FailureCode::of_syndrome)
            ),
            Ok(SparseStatus::Running) => write!(f, "it runs"),
            Err(code) => write!(f, "status {code}; use host and firmware of the same release"),
        }
    }
}

impl std::error::Error for AggregatorFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_reported_in_words() {
        let (status, found, limit) = (Ok(SparseStatus::Connection), 0x15, 0);
        let failure = AggregatorFailure { shard: 0, worker: 3, iteration: 1, operations: 2, status, found, limit };
        let text = failure.to_string();
        assert!(text.contains("the connection to worker 3 is broken: retries exceeded (syndrome 0x15)"), "{text}");
        let text = AggregatorFailure { found: 0x1234, ..failure }.to_string();
        assert!(text.contains("an error of another kind (syndrome 0x1234)"), "{text}");
    }
}
