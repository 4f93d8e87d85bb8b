//! Collectives without multicast, to compare with: the algorithms of common libraries, as schedules of point-to-point
//! messages.
//!
//! A schedule is zero-copy: each message is written to its final place in the receiver's buffers, and may be forwarded
//! from there. A rank has up to three ([`Memory`]), in blocks ([`Blocks`], [`Layout`]): the send buffer with its
//! contribution, the receive buffer for its result, and, for some reductions, temporary memory. A [`Transfer`] names
//! blocks of the sender's buffers and those of the receiver's where they go; an [`Arrival`] the latter. [`Operation`]
//! says what the blocks are.
//!
//! Whoever carries a schedule out on a rank
//!
//! 1. copies the own part ([`Schedule::start`]), unless it lies in its place;
//! 2. lets peers write to the receive buffer and to temporary memory;
//! 3. posts what [`Schedule::poll`] gives, and reports what is sent ([`Schedule::sent`]);
//! 4. reports what has come ([`Schedule::arrived`]), and combines what [`Schedule::reduce`] gives then;
//! 5. ends when [`Schedule::is_complete`].
//!
//! What a posted message is read from is neither written by peers nor by reductions until the operation is complete, so
//! that a card may read it again.
//!
//! One file per algorithm, each giving the messages of a rank as a function of its place (`plan`); [`Schedule`] runs
//! any of them. Costs are in their headers: α is the time of a message of no bytes, β that of a byte on a link.

mod binary;
mod blocks;
mod bruck;
mod chain;
mod dissemination;
mod doubling;
mod exchange;
mod knomial;
mod layout;
mod linear;
mod plan;
mod reduce_doubling;
mod reduce_exchange;
mod reduce_ring;
mod reduce_tree;
mod reducing;
mod reduction;
mod relay;
mod ring;
mod rooted;
mod scatter_ring;
mod schedule;

pub use blocks::{Blocks, BlocksError, Span};
pub use layout::{Layout, Memory, Part};
pub use plan::{Arrival, Transfer};
pub use reducing::{Allreduce, Reduce, ReduceScatter};
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

/// What a schedule is for, and what the blocks of the buffers are. Reductions have functions for that: "layout".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Everybody's contribution to everybody. The receive buffer has the blocks of [`Allgather::blocks`], the send
    /// buffer, from which nothing is sent, as many as one contribution.
    Allgather(Allgather),
    /// The root's message to everybody, from receive buffer to receive buffer.
    Broadcast {
        /// The algorithm.
        algorithm: Broadcast,
        /// Who has the message.
        root: u32,
        /// Blocks of the message ([`Broadcast::blocks`]).
        blocks: u32,
    },
    /// A block of each rank to each rank: both buffers have one for each rank, of any length on which the two agree.
    Alltoall(Alltoall),
    /// The sum of all contributions, a share of it to each rank ([`ReduceScatter::layout`]).
    ReduceScatter(ReduceScatter),
    /// The sum of all contributions to everybody ([`Allreduce::layout`]).
    Allreduce(Allreduce),
    /// The sum of all contributions to the root ([`Reduce::layout`]).
    Reduce {
        /// The algorithm.
        algorithm: Reduce,
        /// Who gets the sum.
        root: u32,
    },
    /// A contribution of each rank to the root, directly: each send buffer is one block, and the root's receive buffer
    /// has one for each rank, of any length on which the two agree. The others' receive buffers are not used.
    Gather {
        /// Who gets the contributions.
        root: u32,
    },
    /// A block of the root to each rank, directly: the root's send buffer has one for each rank, and each receive
    /// buffer is one block. The others' send buffers are not used.
    Scatter {
        /// Who has the blocks.
        root: u32,
    },
    /// Nobody ends before everybody has begun. No buffer is used; messages are empty.
    Barrier,
}

impl Operation {
    /// Whether contributions may lie in the receive buffer, but for the own share, which is written before it is used:
    /// every other share is written for the first time with its sum, which depends on the contribution having been
    /// delivered. So the caller keeps a copy of the own share alone, if bytes that were delivered are not read again.
    /// Other reductions need a copy of all.
    #[must_use]
    pub const fn overwrites_own_share_alone(self) -> bool {
        matches!(self, Self::Allreduce(Allreduce::Ring | Allreduce::Exchange))
    }

    /// Whether contributions are combined in the order of ranks, 0 first, so that an operator need be associative only.
    /// For the other reductions it must also be commutative. True for what is no reduction.
    #[must_use]
    pub const fn keeps_order(self) -> bool {
        match self {
            Self::ReduceScatter(ReduceScatter::Ring) | Self::Allreduce(Allreduce::Ring) => false,
            // From the root on.
            Self::Reduce { algorithm: Reduce::Tree { .. }, root } => root == 0,
            _ => true,
        }
    }
}
