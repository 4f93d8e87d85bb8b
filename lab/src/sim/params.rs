//! Parameters of a simulation.

use std::time::Duration;

use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{Config, DatapathKind, Transport};
use serde::{Deserialize, Serialize};

use super::SimError;
use super::algorithm::Algorithm;
use super::side::Side;
use super::skew::{MAX_SKEW_US, PostSkew};
use crate::memory;

/// Bytes beyond which nothing is computed from them: no machine has room for so many, and nothing overflows below.
const MOST_BYTES: u64 = 1 << 40;
/// Longest time that a chunk takes its receiver.
const MOST_CHUNK_TIME: Duration = Duration::from_millis(1);

/// What reductions do: exact in any order, so that every algorithm gives the same bytes.
pub(crate) const REDUCTION: Reduction = Reduction::of(Operator::Sum, DataType::I32).expect("sums of integers");

/// The collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// One rank's bytes to all.
    #[value(alias = "bcast")]
    Broadcast,
    /// Every rank's bytes to all.
    Allgather,
    /// Every rank's bytes to all, with lengths that differ from rank to rank.
    Allgatherv,
    /// A block of every rank to every rank.
    #[value(alias = "alltoallv")]
    Alltoall,
    /// The sum of all ranks' 32-bit integers, a share of it to each.
    ReduceScatter,
    /// The sum of all ranks' 32-bit integers to all.
    Allreduce,
    /// The same without the blocks that are zero.
    SparseAllreduce,
}

impl Operation {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Broadcast => "broadcast",
            Operation::Allgather => "allgather",
            Operation::Allgatherv => "allgatherv",
            Operation::Alltoall => "alltoall",
            Operation::ReduceScatter => "reduce-scatter",
            Operation::Allreduce => "allreduce",
            Operation::SparseAllreduce => "sparse-allreduce",
        }
    }

    /// Whether ranks' contributions are added up.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Operation::ReduceScatter | Operation::Allreduce | Operation::SparseAllreduce)
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
    /// How.
    pub algorithm: Algorithm,
    /// What moves the data of communicators: DPA threads, or the hosts' processors ([`DatapathKind::Verbs`]).
    pub datapath: DatapathKind,
    /// Virtual time that a chunk takes the processor which receives it; for [`DatapathKind::Verbs`] alone.
    pub chunk_time: Duration,
    /// Bytes that each rank contributes; with Allgatherv the mean, with Alltoall those for each rank.
    pub bytes: u64,
    /// Bytes of an Allgather in all, cut evenly over the ranks; `bytes` means nothing then.
    pub total_bytes: Option<u64>,
    /// Root of a Broadcast.
    pub root: u32,
    /// Times that they do it before anything is counted: rings are built for a buffer when it is first used.
    pub warm_up: u32,
    /// Times that they do it then.
    pub iterations: u32,
    /// Whether they do it as often again while their hosts compute, to see how much of it goes on meanwhile;
    /// communicators alone.
    pub overlap: bool,
    /// Seed of the bytes and of the skew.
    pub seed: u64,
    /// Skew between the posts, at most [`MAX_SKEW_US`].
    pub skew: PostSkew,
    /// What else there is on the cards, and where the bytes are.
    pub side: Side,
    /// The communicator; its algorithms are multicast alone unless `algorithm` is the library's choice.
    pub config: Config,
    /// What happens to ranks and workers on the way.
    pub host_faults: Vec<HostFault>,
    /// Longest that it may take in wall time, multicast alone.
    pub wall_limit: Option<Duration>,
}

/// Something that happens in the first operation, besides what a fault script does to links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostFault {
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
    /// A rank's host polls at most so often.
    Slow {
        /// The rank.
        rank: u32,
        /// Time between two polls.
        every_ps: u64,
    },
}

impl Default for SimParams {
    /// An Allgather of 1 MiB from each of 8 ranks by multicast, once after a warm-up.
    fn default() -> Self {
        Self {
            ranks: 8,
            ranks_per_card: 1,
            operation: Operation::Allgather,
            algorithm: Algorithm::Multicast,
            datapath: DatapathKind::Dpa,
            chunk_time: Duration::ZERO,
            bytes: 1 << 20,
            total_bytes: None,
            root: 0,
            warm_up: 1,
            iterations: 1,
            overlap: false,
            seed: 1,
            skew: PostSkew::default(),
            side: Side::default(),
            config: Config::default(),
            host_faults: Vec::new(),
            wall_limit: None,
        }
    }
}

impl SimParams {
    /// Checks what no other part does.
    ///
    /// # Errors
    /// [`SimError::Parameter`], or [`SimError::Memory`] where this process cannot get the memory that the buffers take.
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
        if self.warm_up.checked_add(self.iterations).is_none() {
            return refuse("--warm-up", format!("{} operations more: give fewer", self.warm_up));
        }
        let skew_us = self.skew.skew_us;
        if skew_us > MAX_SKEW_US {
            return refuse("--skew-us", format!("{skew_us} us between posts: give 0 to {MAX_SKEW_US}"));
        }
        let most = match self.operation {
            Operation::Broadcast => self.bytes,
            // The largest contribution is twice the mean.
            Operation::Allgather | Operation::Allgatherv => {
                self.total_bytes.unwrap_or(self.bytes.saturating_mul(2 * u64::from(self.ranks)))
            }
            Operation::Alltoall | Operation::ReduceScatter | Operation::Allreduce | Operation::SparseAllreduce => {
                self.bytes.saturating_mul(u64::from(self.ranks))
            }
        };
        let needed = if most > MOST_BYTES { most.saturating_mul(self.ranks.into()) } else { self.memory_bytes() };
        let (what, bytes) = match self.total_bytes {
            Some(total) => ("--file of", total),
            None => ("--bytes", self.bytes),
        };
        let value = format!("{bytes} with {} ranks", self.ranks);
        memory::require(what, value, needed, "give fewer bytes or ranks")?;
        if self.operation == Operation::Allgather && !self.is_even() {
            let reason = format!("{:?} bytes are not the same for each of {} ranks", self.total_bytes, self.ranks);
            return refuse("--op allgather", reason);
        }
        if self.operation.reduces() && !self.bytes.is_multiple_of(REDUCTION.element_bytes().into()) {
            let reason = format!("{} bytes are no whole number of 32-bit integers: give a multiple of 4", self.bytes);
            return refuse("--bytes", reason);
        }
        self.algorithm.check(self.operation)?;
        self.check_datapath()?;
        self.side.check(self)?;
        if !self.algorithm.is_communicator() && self.overlap {
            let reason =
                "the hosts carry these algorithms out themselves: give --algorithm multicast or auto".to_owned();
            return refuse("--overlap", reason);
        }
        if !self.algorithm.is_communicator() && !self.host_faults.is_empty() {
            return refuse("--algorithm", "troubles happen to communicators alone: give multicast or auto".to_owned());
        }
        Ok(())
    }

    fn check_datapath(&self) -> Result<(), SimError> {
        let refuse = |what, reason: &str| Err(SimError::Parameter { what, reason: reason.to_owned() });
        let is_verbs = self.datapath == DatapathKind::Verbs;
        if !is_verbs && self.datapath != DatapathKind::Dpa {
            return refuse("--datapath", "emulated cards have dpa and verbs");
        }
        if is_verbs && !self.algorithm.is_communicator() {
            return refuse("--datapath", "algorithms to compare with have none: give --algorithm multicast or auto");
        }
        if !is_verbs && self.chunk_time > Duration::ZERO {
            return refuse("--chunk-ns", "the DPA takes what its instructions take: give --datapath verbs");
        }
        if self.chunk_time > MOST_CHUNK_TIME {
            return refuse("--chunk-ns", "at most 1000000");
        }
        Ok(())
    }

    /// What a chunk takes the processor that receives it, in picoseconds.
    pub(super) fn chunk_ps(&self) -> u64 {
        self.chunk_time.as_nanos() as u64 * 1000
    }

    /// Whether cards run firmware.
    #[must_use]
    pub fn needs_image(&self) -> bool {
        self.algorithm.is_communicator() && self.datapath == DatapathKind::Dpa
    }

    /// Whether all ranks contribute equally.
    fn is_even(&self) -> bool {
        self.total_bytes.is_none_or(|total| total.is_multiple_of(u64::from(self.ranks)))
    }

    /// The same for a file of `total` bytes: from the root of a Broadcast, or cut evenly over the ranks. An Allgather
    /// that does not divide becomes one of unequal contributions.
    #[must_use]
    pub fn of_file(self, total: u64) -> Self {
        let even = total.is_multiple_of(u64::from(self.ranks.max(1)));
        match self.operation {
            Operation::Broadcast => Self { bytes: total, ..self },
            Operation::Allgather if !even => {
                Self { operation: Operation::Allgatherv, total_bytes: Some(total), ..self }
            }
            Operation::Allgather | Operation::Allgatherv => Self { total_bytes: Some(total), ..self },
            // Each rank has bytes of its own.
            Operation::Alltoall | Operation::ReduceScatter | Operation::Allreduce | Operation::SparseAllreduce => self,
        }
    }

    /// Memory of this process that the buffers of all ranks take: what they contribute, as one piece and in the buffers
    /// of each, what they receive, and one such buffer to compare; with reductions the contributions once more and
    /// where each rank adds up. The cards' own memory is not in it.
    fn memory_bytes(&self) -> u64 {
        let (source, ranks) = (self.source_bytes(), u64::from(self.ranks));
        let reductions =
            if self.operation.reduces() { source.saturating_add(self.bytes.saturating_mul(ranks)) } else { 0 };
        let gaps = self.side.gap.unwrap_or_default().saturating_mul(ranks + 1);
        let received = self.receive_bytes().saturating_add(gaps).saturating_mul(ranks + 1);
        // The parts of a communicator have no more than all of it.
        let communicators = u64::from(self.side.communicators) + u64::from(self.side.split.is_some());
        source.saturating_mul(2).saturating_add(received).saturating_mul(communicators).saturating_add(reductions)
    }

    /// Whether the cards must be of the hypothetical kind whose UC queue pairs take part in multicast.
    #[must_use]
    pub fn needs_uc_multicast(&self) -> bool {
        self.algorithm.is_communicator() && self.config.transport == Transport::UcMulticast
    }

    /// Cards that the ranks need.
    #[must_use]
    pub fn cards(&self) -> usize {
        self.ranks.div_ceil(self.ranks_per_card.max(1)) as usize
    }

    /// The card of a rank, by number.
    #[must_use]
    pub fn card_of(&self, rank: u32) -> usize {
        (rank / self.ranks_per_card.max(1)) as usize
    }

    /// What each rank contributes, in bytes.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        let ranks = u64::from(self.ranks);
        (0..self.ranks)
            .map(|rank| match (self.operation, self.total_bytes) {
                (Operation::Broadcast, _) if rank == self.root => self.bytes,
                (Operation::Broadcast, _) => 0,
                (Operation::Alltoall, _) => self.bytes * ranks,
                (Operation::ReduceScatter | Operation::Allreduce | Operation::SparseAllreduce, _) => self.bytes,
                (_, Some(total)) => total / ranks + u64::from(u64::from(rank) < total % ranks),
                (Operation::Allgather, None) => self.bytes,
                // From nothing to twice the mean, in an order that is not ascending.
                (Operation::Allgatherv, None) => {
                    self.bytes * 2 * u64::from(rank * 7 % self.ranks) / ranks.max(2).saturating_sub(1)
                }
            })
            .collect()
    }

    /// What all ranks contribute, in bytes.
    #[must_use]
    pub fn source_bytes(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Bytes that every rank has in the end; with a Reduce-Scatter rank 0, no rank has more.
    #[must_use]
    pub fn receive_bytes(&self) -> u64 {
        match self.operation {
            Operation::Broadcast | Operation::Allgather | Operation::Allgatherv => self.source_bytes(),
            Operation::Alltoall => self.bytes * u64::from(self.ranks),
            Operation::ReduceScatter => {
                let element = u64::from(REDUCTION.element_bytes());
                (self.bytes / element).div_ceil(self.ranks.into()) * element
            }
            Operation::Allreduce | Operation::SparseAllreduce => self.bytes,
        }
    }

    /// The same of the communicator that has the most, parts of a split among them.
    #[must_use]
    pub fn most_receive_bytes(&self) -> u64 {
        let sizes = self.side.split.filter(|colours| *colours > 0).map(|colours| {
            [self.ranks / colours, self.ranks.div_ceil(colours)].map(|ranks| ranks.clamp(1, self.ranks.max(1)))
        });
        let of = |ranks| Self { ranks, root: 0, ..self.clone() }.receive_bytes();
        sizes.into_iter().flatten().map(of).fold(self.receive_bytes(), u64::max)
    }
}
