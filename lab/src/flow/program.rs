//! Scripts of ranks: computation, calls and waits.

use flexcast_proto::service::{Delivery, LocalCopies};
use serde::{Deserialize, Serialize};

crate::options::named!(Kind);

/// Bytes of a Broadcast by hosts from which on it goes by scatter and ring rather than down a binomial tree.
const SCATTER_BYTES: u64 = 64 << 10;

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A block from each to each.
    Alltoallv,
    /// A block of each to all.
    Allgatherv,
    /// A value of few bytes, reduced and known to all; always carried out by the hosts. A barrier is one without data.
    Allreduce,
    /// The message of rank 0 to all.
    Broadcast,
    /// A block of each to all, by service processes through memory of their cards.
    Allgather,
}

/// Who carries a collective out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    /// Service processes on the cards, from host memory to host memory by alias keys; of an Allgatherv who copies
    /// inside a host.
    Service(LocalCopies),
    /// Service processes through memory of their cards.
    Staged(Delivery),
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
    /// It waits for any of those of one group.
    WaitAnyOf(u32),
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
pub(super) const fn steps(operation: &Operation, ranks: u32) -> u32 {
    let rounds = ranks.next_power_of_two().trailing_zeros();
    match operation.kind {
        Kind::Alltoallv | Kind::Allgatherv | Kind::Allgather => ranks - 1,
        Kind::Allreduce => rounds,
        Kind::Broadcast if operation.bytes >= SCATTER_BYTES => rounds + ranks - 1,
        Kind::Broadcast => rounds,
    }
}

/// A step of rank `rank`: of a pairwise exchange, a ring, a dissemination, or a binomial tree from rank 0.
pub(super) const fn exchange(operation: &Operation, ranks: u32, rank: u32, step: u32) -> Exchange {
    let bytes = operation.bytes;
    let rounds = ranks.next_power_of_two().trailing_zeros();
    let (distance, bytes) = match operation.kind {
        Kind::Alltoallv => (step + 1, bytes),
        Kind::Allreduce => (1 << step, bytes),
        Kind::Broadcast if step < rounds => {
            let is_scattered = bytes >= SCATTER_BYTES;
            return tree(ranks, rank, step, if is_scattered { bytes >> (step + 1) } else { bytes });
        }
        Kind::Broadcast => (1, bytes.div_ceil(ranks as u64)),
        Kind::Allgatherv | Kind::Allgather => (1, bytes),
    };
    let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance % ranks) % ranks);
    Exchange { send: Some((to, bytes)), receive: Some((from, bytes)) }
}

/// A step of a binomial tree: who has something sends to the rank that is `2^step` further.
const fn tree(ranks: u32, rank: u32, step: u32, bytes: u64) -> Exchange {
    let distance = 1 << step;
    if rank < distance {
        let to = rank + distance;
        return Exchange { send: if to < ranks { Some((to, bytes)) } else { None }, receive: None };
    }
    Exchange { send: None, receive: if rank < 2 * distance { Some((rank - distance, bytes)) } else { None } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_step_agree() {
        for kind in [Kind::Alltoallv, Kind::Allgatherv, Kind::Allreduce, Kind::Broadcast] {
            for (ranks, bytes) in [(1, 9), (2, 9), (3, 9), (7, 1 << 20), (8, 1 << 20)] {
                let operation = Operation { group: 0, kind, bytes, by: By::Hosts { window: 1 } };
                for step in 0..steps(&operation, ranks) {
                    for rank in 0..ranks {
                        let Exchange { send, receive } = exchange(&operation, ranks, rank, step);
                        if let Some((to, bytes)) = send {
                            assert_eq!(exchange(&operation, ranks, to, step).receive, Some((rank, bytes)), "{kind}");
                        }
                        if let Some((from, bytes)) = receive {
                            assert_eq!(exchange(&operation, ranks, from, step).send, Some((rank, bytes)), "{kind}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_tree_reaches_everybody_once() {
        for ranks in 1..20 {
            let operation = Operation { group: 0, kind: Kind::Broadcast, bytes: 5, by: By::Hosts { window: 1 } };
            let mut has = vec![false; ranks as usize];
            has[0] = true;
            for step in 0..steps(&operation, ranks) {
                let sends: Vec<_> = (0..ranks).map(|rank| exchange(&operation, ranks, rank, step).send).collect();
                for (rank, send) in sends.into_iter().enumerate() {
                    let Some((to, _)) = send else { continue };
                    assert!(has[rank] && !std::mem::replace(&mut has[to as usize], true));
                }
            }
            assert!(has.into_iter().all(|has| has));
        }
    }
}
