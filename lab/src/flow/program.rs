//! What ranks do: scripts of computation, calls and waits.

use serde::{Deserialize, Serialize};

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum, derive_more::Display)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A block from each to each.
    #[display("alltoallv")]
    Alltoallv,
    /// A block of each to all.
    #[display("allgatherv")]
    Allgatherv,
    /// A value of few bytes, reduced and known to all; always carried out by the hosts. A barrier is one without data.
    #[display("allreduce")]
    Allreduce,
}

/// Who carries a collective out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    /// Service processes on the cards.
    Service,
    /// The ranks, in calls of the library, with so many steps of the algorithm under way at once.
    Hosts {
        /// Steps at once, at least 1.
        window: u32,
    },
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Number of the group.
    pub group: u32,
    /// What is called.
    pub kind: Kind,
    /// Bytes of each block.
    pub bytes: u64,
    /// Who carries it out.
    pub by: By,
}

/// One thing that a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It computes for so many picoseconds. The library is not called meanwhile.
    Compute(u64),
    /// It posts a call.
    Post(Operation),
    /// It waits for any of its calls that are under way (`MPI_Waitany`).
    WaitAny,
    /// It waits for all of them.
    WaitAll,
    /// The time is noted under a number.
    Mark(u32),
}

/// A barrier of a group.
#[must_use]
pub const fn barrier(group: u32) -> Operation {
    Operation { group, kind: Kind::Allreduce, bytes: 0, by: By::Hosts { window: 1 } }
}

/// Where a rank's time has gone, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// In computation.
    pub compute_ps: u64,
    /// In calls that post.
    pub call_ps: u64,
    /// In waits.
    pub wait_ps: u64,
}

/// What is sent and received in one step of a host's algorithm: with whom, and how many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) send: Option<(u32, u64)>,
    pub(super) receive: Option<(u32, u64)>,
}

/// Steps of a host's algorithm among `ranks`.
pub(super) const fn steps(kind: Kind, ranks: u32) -> u32 {
    match kind {
        Kind::Alltoallv | Kind::Allgatherv => ranks - 1,
        Kind::Allreduce => ranks.next_power_of_two().trailing_zeros(),
    }
}

/// A step of rank `rank`: pairwise exchange, ring, or dissemination.
pub(super) const fn exchange(operation: &Operation, ranks: u32, rank: u32, step: u32) -> Exchange {
    let distance = match operation.kind {
        Kind::Alltoallv => step + 1,
        Kind::Allgatherv => 1,
        Kind::Allreduce => 1 << step,
    };
    let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance % ranks) % ranks);
    Exchange { send: Some((to, operation.bytes)), receive: Some((from, operation.bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_step_agree() {
        for kind in [Kind::Alltoallv, Kind::Allgatherv, Kind::Allreduce] {
            for ranks in [1, 2, 3, 7, 8] {
                let operation = Operation { group: 0, kind, bytes: 9, by: By::Hosts { window: 1 } };
                for step in 0..steps(kind, ranks) {
                    for rank in 0..ranks {
                        let (to, bytes) = exchange(&operation, ranks, rank, step).send.unwrap();
                        assert_eq!(
                            exchange(&operation, ranks, to, step).receive,
                            Some((rank, bytes)),
                            "{kind} {ranks}"
                        );
                    }
                }
            }
        }
        assert_eq!([1, 2, 3, 8].map(|ranks| steps(Kind::Allreduce, ranks)), [0, 1, 2, 3]);
    }
}
