//! What a simulation is asked to do.

use flexcast::Config;
use serde::Serialize;

use super::SimError;

/// The collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// One rank's bytes to all.
    Broadcast,
    /// Every rank's bytes to all.
    Allgather,
    /// Every rank's bytes to all, with lengths that differ from rank to rank.
    Allgatherv,
}

impl Operation {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Broadcast => "broadcast",
            Operation::Allgather => "allgather",
            Operation::Allgatherv => "allgatherv",
        }
    }
}

/// Parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimParams {
    /// Ranks.
    pub ranks: u32,
    /// Ranks that share a card.
    pub ranks_per_card: u32,
    /// What they do.
    pub operation: Operation,
    /// Bytes that each rank contributes; with Allgatherv the mean.
    pub bytes: u64,
    /// Root of a Broadcast.
    pub root: u32,
    /// Times that they do it before anything is counted: rings are built for a buffer when it is first used.
    pub warm_up: u32,
    /// Times that they do it then.
    pub iterations: u32,
    /// Seed of the bytes.
    pub seed: u64,
    /// The communicator.
    pub config: Config,
    /// What happens to ranks and workers on the way.
    pub trouble: Vec<Trouble>,
}

/// Something that happens in the first operation, besides what a fault script does to links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// A rank's host does nothing more from a time on, counted from the first post.
    Dead {
        /// The rank.
        rank: u32,
        /// When.
        after_ps: u64,
    },
    /// A rank cancels its operation.
    Cancel {
        /// The rank.
        rank: u32,
        /// When.
        after_ps: u64,
    },
    /// A DPA thread stands still.
    Stall {
        /// Whose card it is on.
        rank: u32,
        /// Its execution unit.
        unit: u32,
        /// When.
        after_ps: u64,
        /// For how long.
        for_ps: u64,
    },
    /// A rank calls the operation with another length.
    Disagree {
        /// The rank.
        rank: u32,
    },
}

impl SimParams {
    /// Checks what no other part does.
    ///
    /// # Errors
    /// [`SimError::Parameter`].
    pub fn check(&self) -> Result<(), SimError> {
        let refuse = |what, reason: String| Err(SimError::Parameter { what, reason });
        let most = flexcast_proto::MAX_RANKS;
        if self.ranks == 0 || self.ranks > most {
            return refuse("--ranks", format!("{} ranks: give 1 to {most}", self.ranks));
        }
        if self.ranks_per_card == 0 {
            return refuse("--ranks-per-card", "0 ranks on a card: give at least 1".to_owned());
        }
        if self.root >= self.ranks {
            return refuse(
                "--root",
                format!("{} of {} ranks: roots run from 0 to {}", self.root, self.ranks, self.ranks - 1),
            );
        }
        if self.iterations == 0 {
            return refuse("--iterations", "0 operations: give at least 1".to_owned());
        }
        Ok(())
    }

    /// Cards that the ranks need.
    #[must_use]
    pub fn cards(&self) -> usize {
        self.ranks.div_ceil(self.ranks_per_card.max(1)) as usize
    }

    /// What each rank contributes.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        (0..self.ranks)
            .map(|rank| match self.operation {
                Operation::Broadcast => {
                    if rank == self.root {
                        self.bytes
                    } else {
                        0
                    }
                }
                Operation::Allgather => self.bytes,
                // From nothing to twice the mean, in an order that is not ascending.
                Operation::Allgatherv => {
                    self.bytes * 2 * u64::from(rank * 7 % self.ranks) / u64::from(self.ranks.max(2) - 1)
                }
            })
            .collect()
    }

    /// Bytes that every rank has in the end.
    #[must_use]
    pub fn receive_bytes(&self) -> u64 {
        self.counts().iter().sum()
    }
}
