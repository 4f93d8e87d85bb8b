//! Failures of collectives, refusals of events, and counts of messages that change nothing.

use thiserror::Error;

use super::message::Operation;
use crate::failure::FailureCode;

/// What a completion's code says in words.
pub(super) fn of_completion(code: u16) -> FailureCode {
    FailureCode::of_completion(code.into())
}

/// Why a collective has failed for the ranks of a service process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("{failed_rank} {cause}")]
pub struct Failure {
    /// Who is at fault.
    pub failed_rank: FailedParty,
    /// What happened.
    pub cause: Cause,
}

/// A rank or a service process of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailedParty {
    /// A rank.
    Rank(u32),
    /// A service process.
    Process(u32),
}

impl core::fmt::Display for FailedParty {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Process(process) => write!(f, "service process {process}"),
        }
    }
}

/// What has happened to a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Cause {
    /// The failed rank is gone. All collectives of the group that are not over fail, and no other can follow.
    #[error("has died: make a new communicator without it")]
    Died,
    /// A Read from or into the failed rank's memory failed. The code is that of the completion.
    #[error("has memory that a Read failed on ({}, completion code {code}): check its memory keys and its network", of_completion(*.0), code = .0)]
    Read(u16),
    /// The failed rank sends another number of bytes than the detecting rank has room for.
    #[error(
        "sends {found} bytes, but rank {detecting_rank} expects {expected}: give both the same count and datatype size"
    )]
    Bytes {
        /// Who expects something else.
        detecting_rank: u32,
        /// What the failed rank sends.
        found: u64,
        /// What the detecting rank expects.
        expected: u64,
    },
    /// The failed rank has called another collective.
    #[error("has called {found}, but a rank of another service process {expected}: call the same on all ranks")]
    Operation {
        /// What the failed rank has called.
        found: Operation,
        /// What was called before.
        expected: Operation,
    },
}

/// An event that a service process refuses. It has changed nothing, so that it can be offered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A limit that cannot work.
    #[error("limit {name} is {value}: give at least 1")]
    Limit {
        /// Which one.
        name: &'static str,
        /// What was given.
        value: u32,
    },
    /// More groups than there is room for.
    #[error("{groups} groups, but this service process has room for {limit}: remove one, or raise `groups`")]
    Groups {
        /// What there would be.
        groups: u32,
        /// The limit.
        limit: u32,
    },
    /// A group whose announcements there is no room for in the worst case.
    #[error(
        "{announcements} announcements may wait at once with this group, but there is room for {limit}: raise \
         `announcements`, or lower `collectives`"
    )]
    Announcements {
        /// What may wait at once.
        announcements: u64,
        /// The limit.
        limit: u64,
    },
    /// A group that is there already.
    #[error("group {group} is there already: remove it first, or take another number")]
    GroupTwice {
        /// Its number.
        group: u32,
    },
    /// A group that is not there.
    #[error("group {group} is not known: add it first")]
    NoGroup {
        /// Its number.
        group: u32,
    },
    /// A service process that the group does not have.
    #[error("service process {process} of {processes}: a group's processes are numbered from 0")]
    Process {
        /// What was given.
        process: u32,
        /// Processes of the group.
        processes: u32,
    },
    /// A rank that this process does not serve.
    #[error("rank {rank} is not served by service process {process}: ask the topology who serves it")]
    NotServed {
        /// The rank.
        rank: u32,
        /// This process.
        process: u32,
    },
    /// A collective too far ahead of the oldest one that is not over.
    #[error(
        "collective {collective} of group {group}, but {oldest} is not over and {limit} may be under way: offer it \
         again after a completion, or raise `collectives`"
    )]
    Collectives {
        /// The group.
        group: u32,
        /// What was called.
        collective: u32,
        /// The oldest that is not over.
        oldest: u32,
        /// How many may be under way.
        limit: u32,
    },
    /// A rank calls a collective that is over, or for the second time.
    #[error("rank {rank} has called collective {collective} of group {group} already: count collectives up")]
    CalledTwice {
        /// The rank.
        rank: u32,
        /// The group.
        group: u32,
        /// The collective.
        collective: u32,
    },
    /// A call for another number of ranks.
    #[error("call with {found} blocks in a group of {ranks} ranks: give one block per rank")]
    Blocks {
        /// Blocks of the call.
        found: usize,
        /// Ranks of the group.
        ranks: u32,
    },
}

/// Messages and events that were ignored, by reason. They have changed nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ignored {
    /// Came a second time.
    pub duplicates: u64,
    /// Of a collective that is over.
    pub stale: u64,
    /// Of no group, rank or process that can have sent it, or to a process that it is not for.
    pub foreign: u64,
}

impl Ignored {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.duplicates + self.stale + self.foreign
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;
    use crate::service::StagedCause;

    #[test]
    fn codes_of_completions_are_given_in_words() {
        for text in [Cause::Read(12).to_string(), StagedCause::Transfer(12).to_string()] {
            assert!(text.contains("(retries exceeded, completion code 12)"), "{text}");
        }
        let unknown = Cause::Read(200).to_string();
        assert!(unknown.contains("completion code 200"), "{unknown}");
    }
}
