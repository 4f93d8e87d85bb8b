//! Collectives without multicast, to compare with: the algorithms of common libraries, as schedules of point-to-point
//! messages.
//!
//! A schedule is zero-copy: each message is written to its final place in the receiver's buffer, whose layout
//! ([`Blocks`]) all ranks know, and may be forwarded from there. So a [`Transfer`] is a run of blocks, at the same
//! place on both sides. An Allgather wants the own contribution in its place before it starts, a Broadcast the message
//! at the root.
//!
//! An Alltoall has two buffers with a block for each rank; its transfers name blocks of the sender's, its arrivals those
//! of the receiver's. Reductions have a work buffer of their own, and tell what to add when a message has come
//! ([`Schedule::reduction`]).
//!
//! One file per algorithm, each giving the messages of a rank as a function of its place (`plan`); [`Schedule`] runs
//! any of them.

mod binary;
mod blocks;
mod bruck;
mod chain;
mod doubling;
mod exchange;
mod knomial;
mod linear;
mod plan;
mod reduce_ring;
mod reduce_tree;
mod reduction;
mod relay;
mod ring;
mod scatter_ring;
mod schedule;

pub use blocks::{Blocks, BlocksError, Span};
pub use plan::{Arrival, Transfer};
pub use reduction::{Reduction, Start};
pub use schedule::{MessageError, Schedule, ScheduleError};

/// Allgather algorithms. In each of them every rank sends N(P - 1) bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Allgather {
    /// Around the ring: P - 1 steps, two neighbours.
    Ring,
    /// The ring with each contribution in segments, so that links are not idle between two steps.
    PipelinedRing {
        /// Of each contribution, at least 1.
        segments: u32,
    },
    /// P - 1 direct messages.
    Linear,
    /// Exchanges between ever larger halves: log2 P steps and peers if P is a power of two; otherwise more messages,
    /// but no more bytes.
    RecursiveDoubling,
    /// ⌈log2 P⌉ rounds for any P; runs of blocks that wrap round the end of the buffer.
    Bruck,
}

impl Allgather {
    /// All of them, without segments.
    pub const ALL: [Self; 4] = [Self::Ring, Self::Linear, Self::RecursiveDoubling, Self::Bruck];

    /// Blocks of each contribution.
    #[must_use]
    pub const fn segments(self) -> u32 {
        match self {
            Self::PipelinedRing { segments } => segments,
            Self::Ring | Self::Linear | Self::RecursiveDoubling | Self::Bruck => 1,
        }
    }

    /// The blocks that the algorithm works on, from those of the contributions.
    ///
    /// # Errors
    /// No segment, or too many.
    pub fn blocks(self, contributions: Blocks<'_>) -> Result<Blocks<'_>, BlocksError> {
        contributions.split(self.segments())
    }
}

/// Broadcast algorithms. Those on trees pass segments on; each rank receives N bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Broadcast {
    /// The k-nomial tree; binomial for radix 2.
    Knomial {
        /// At least 2.
        radix: u32,
    },
    /// The binary tree in which the children of v are 2v + 1 and 2v + 2.
    Heap,
    /// The binary tree whose subtrees are contiguous ranks, in NCCL's shape.
    InOrder,
    /// From rank to rank.
    Chain,
    /// Binomial scatter, then Allgather around the ring, on one share per rank: for large messages.
    ScatterAllgather,
}

impl Broadcast {
    /// The binomial tree.
    pub const BINOMIAL: Self = Self::Knomial { radix: 2 };

    /// How the algorithm divides a message of `bytes` among `ranks`: one share per rank, or segments of
    /// `segment_bytes`.
    ///
    /// # Errors
    /// Segments of no length, too many of them, or no ranks.
    pub fn blocks(self, bytes: u64, segment_bytes: u64, ranks: u32) -> Result<Blocks<'static>, BlocksError> {
        match self {
            Self::ScatterAllgather => Blocks::shares(bytes, ranks),
            Self::Knomial { .. } | Self::Heap | Self::InOrder | Self::Chain => Blocks::segments(bytes, segment_bytes),
        }
    }
}

/// Alltoall algorithms. In each of them every rank sends P - 1 blocks, directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Alltoall {
    /// Pairs of ranks exchange, with another partner in each round: P - 1 rounds on a power of two, otherwise P, in one
    /// of which a rank has nothing to do.
    Pairwise,
    /// In step k to the rank k ahead, from the one k behind.
    Ring,
    /// All at once.
    Linear,
}

impl Alltoall {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pairwise, Self::Ring, Self::Linear];
}

/// AllReduce algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Allreduce {
    /// Reduce-Scatter and Allgather around the ring, on one share per rank: each rank sends 2N(P - 1)/P.
    Ring,
    /// Up a binomial tree and down again, in segments.
    Tree {
        /// Of the message, at least 1.
        segments: u32,
    },
}

impl Allreduce {
    /// How the contribution is divided, of so many elements of `element_bytes`, among `ranks`: no element is cut.
    ///
    /// # Errors
    /// No segment, no ranks, or more than can be counted.
    pub fn contribution(self, elements: u64, element_bytes: u32, ranks: u32) -> Result<Blocks<'static>, BlocksError> {
        match self {
            Self::Ring => Blocks::shares(elements, ranks)?.in_units(element_bytes),
            Self::Tree { segments } => Blocks::equal(elements, 1)?.split(segments)?.in_units(element_bytes),
        }
    }

    /// The same of the work buffer, whose last [`Allreduce::contribution`] is the result.
    ///
    /// # Errors
    /// As [`Allreduce::contribution`].
    pub fn work(self, elements: u64, element_bytes: u32, ranks: u32) -> Result<Blocks<'static>, BlocksError> {
        match self {
            Self::Ring => Blocks::equal(elements, 2)?.split(ranks)?.in_units(element_bytes),
            Self::Tree { segments } => {
                let areas = reduce_tree::levels(ranks.max(1)) + 1;
                Blocks::equal(elements, areas)?.split(segments)?.in_units(element_bytes)
            }
        }
    }
}

/// What a schedule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Everybody's contribution to everybody, on the blocks of [`Allgather::blocks`].
    Allgather(Allgather),
    /// The root's message to everybody.
    Broadcast {
        /// The algorithm.
        algorithm: Broadcast,
        /// Who has the message.
        root: u32,
        /// Blocks of the message ([`Broadcast::blocks`]).
        blocks: u32,
    },
    /// A block of each rank to each rank.
    Alltoall(Alltoall),
    /// The sum of all contributions, a share of it to each rank, around the ring.
    ReduceScatter,
    /// The sum of all contributions to everybody, on the blocks of [`Allreduce::work`].
    Allreduce(Allreduce),
}
