//! Collectives with their arguments, as [`Communicator::post`](crate::Communicator::post) takes them.
//!
//! They have the meaning of MPI's (MPI 4.1, chapter 6), with lengths in bytes. All ranks call the same operations, with
//! the same root, reduction and lengths, as far as each gives them; what differs is found, and named
//! ([`Communicator::disagreement`](crate::Communicator::disagreement)).
//!
//! ```no_run
//! use flexcast::reduce::DataType;
//! use flexcast::{Allgather, Allreduce, Gather};
//! # fn f(communicator: &flexcast::Communicator, [a, b, c, d, e]: [flexcast::Buffer; 5]) -> Result<(), Box<flexcast::Failed>> {
//! let sums = communicator.post(Allreduce::sum(DataType::F32).in_place(a))?;
//! let all = communicator.post(Allgather::counts(&[64, 128]).displs(&[0, 256]).buffers(b, c))?;
//! let gathered = communicator.post(Gather::to(0).buffers(d, e))?;
//! let sums = sums.wait()?.receive;
//! # Ok(())
//! # }
//! ```

use crate::op::buffer::Buffer;
use flexcast_proto::Kind;
use flexcast_reduce::{DataType, Operator, Reduction};
use flexcast_sparse::SparseOptions;

/// Lengths and offsets of each rank's block in a buffer, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'b> {
    /// Bytes of each rank's block, in the order of ranks.
    pub counts: &'b [u64],
    /// Where each begins.
    pub displs: &'b [u64],
}

/// A collective with its arguments and buffers.
#[derive(Debug)]
#[must_use = "it is not posted yet: `communicator.post(..)`"]
pub struct Call<'c> {
    pub(crate) kind: CallKind<'c>,
    pub(crate) send: Option<Buffer>,
    /// None where the rank receives nothing.
    pub(crate) receive: Option<Buffer>,
}

/// What a call does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallKind<'c> {
    Barrier,
    Broadcast { root: u32 },
    Allgather { counts: Option<&'c [u64]>, displs: Option<&'c [u64]> },
    Allreduce { reduction: Reduction, sparse: Option<SparseOptions> },
    Reduce { root: u32, reduction: Reduction },
    ReduceScatter { counts: Option<&'c [u64]>, reduction: Reduction },
    Alltoall { blocks: Option<[Blocks<'c>; 2]> },
    Gather { root: u32, blocks: Option<Blocks<'c>> },
    Scatter { root: u32, blocks: Option<Blocks<'c>> },
}

impl CallKind<'_> {
    /// Which operation it is.
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Barrier => Kind::Barrier,
            Self::Broadcast { .. } => Kind::Broadcast,
            Self::Allgather { counts: None, .. } => Kind::Allgather,
            Self::Allgather { counts: Some(_), .. } => Kind::Allgatherv,
            Self::Allreduce { .. } => Kind::Allreduce,
            Self::Reduce { .. } => Kind::Reduce,
            Self::ReduceScatter { counts: None, .. } => Kind::ReduceScatter,
            Self::ReduceScatter { counts: Some(_), .. } => Kind::ReduceScatterv,
            Self::Alltoall { blocks: None } => Kind::Alltoall,
            Self::Alltoall { blocks: Some(_) } => Kind::Alltoallv,
            Self::Gather { blocks: None, .. } => Kind::Gather,
            Self::Gather { blocks: Some(_), .. } => Kind::Gatherv,
            Self::Scatter { blocks: None, .. } => Kind::Scatter,
            Self::Scatter { blocks: Some(_), .. } => Kind::Scatterv,
        }
    }
}

/// The methods that give a call its buffers.
macro_rules! buffers {
    ($call:ident $(<$life:lifetime>)?, $in_place:literal, |$this:ident| $kind:expr) => {
        impl<'c> $call $(<$life>)? {
            fn kind(self) -> CallKind<'c> {
                let $this = self;
                $kind
            }

            /// With a buffer to send from and one to receive into.
            pub fn buffers(self, send: Buffer, receive: Buffer) -> Call<'c> {
                self.with(Some(send), receive)
            }

            #[doc = $in_place]
            pub fn in_place(self, buffer: Buffer) -> Call<'c> {
                self.with(None, buffer)
            }

            /// With two buffers, or in place without one to send from.
            pub fn with(self, send: Option<Buffer>, receive: Buffer) -> Call<'c> {
                Call { kind: self.kind(), send, receive: Some(receive) }
            }
        }
    };
}

/// Ends on no rank before all have called it.
#[derive(Clone, Copy, Debug)]
pub struct Barrier;

impl From<Barrier> for Call<'_> {
    fn from(_: Barrier) -> Self {
        Self { kind: CallKind::Barrier, send: None, receive: None }
    }
}

/// Bytes of a buffer from the root to all.
#[derive(Clone, Copy, Debug)]
pub struct Broadcast {
    root: u32,
}

impl Broadcast {
    /// From this rank.
    #[must_use]
    pub const fn from(root: u32) -> Self {
        Self { root }
    }

    /// On the root the buffer is read, elsewhere written.
    pub fn buffer(self, buffer: Buffer) -> Call<'static> {
        Call { kind: CallKind::Broadcast { root: self.root }, send: None, receive: Some(buffer) }
    }
}

/// The bytes of every rank to every rank, in the order of ranks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allgather<'c> {
    counts: Option<&'c [u64]>,
    displs: Option<&'c [u64]>,
}

impl<'c> Allgather<'c> {
    /// As many bytes of every rank: the receive buffer is `size()` times as long as the send buffer.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: None, displs: None }
    }

    /// `counts[r]` bytes of rank r, one rank's after another's (`MPI_Allgatherv`). Alike on all ranks.
    #[must_use]
    pub const fn counts(counts: &'c [u64]) -> Self {
        Self { counts: Some(counts), displs: None }
    }

    /// Rank r's bytes to `displs[r]` in the receive buffer, which may be longer than needed; what belongs to no block
    /// stays as it is. Alike on all ranks: what a rank has lost it reads from where its neighbour has it.
    #[must_use]
    pub const fn displs(self, displs: &'c [u64]) -> Self {
        Self { displs: Some(displs), ..self }
    }
}

buffers!(Allgather<'c>, "The own bytes are at their offset in the buffer already.", |call| CallKind::Allgather {
    counts: call.counts,
    displs: call.displs
});

/// The reduction of the contributions of all ranks, on all of them.
#[derive(Clone, Copy, Debug)]
pub struct Allreduce {
    reduction: Reduction,
    sparse: Option<SparseOptions>,
}

impl Allreduce {
    /// By this reduction.
    #[must_use]
    pub const fn new(reduction: Reduction) -> Self {
        Self { reduction, sparse: None }
    }

    /// The sum of numbers.
    #[must_use]
    pub const fn sum(data_type: DataType) -> Self {
        Self::new(sum(data_type))
    }

    /// Of contributions much of which is zero: blocks that are zero are neither sent nor summed, and nobody has to say
    /// where they are. A block is zero if all of its bits are, so that -0.0 and NaN travel. For minimum and maximum a
    /// block that is zero is one that the rank does not have. Every rank sums up a part of the array, on its processor
    /// or on its card's DPA ([`Config::sparse_aggregation`](crate::Config::sparse_aggregation)). Over an Ethernet
    /// interface sums go as without this, zeros included, where that is expected to be faster: short arrays, and of
    /// others those in which the last operation on an array of that length has found too few zeros
    /// ([`SparseCost`](crate::SparseCost); the report says by which algorithm, and what either was expected to take).
    /// There -0.0 of one rank and 0.0 of the others are 0.0. After a failure the receive buffer is part old and part
    /// new.
    ///
    /// Over an RDMA card the array is never given to the card, which sends from and receives into a ring of 2d blocks
    /// for each part of it. So it may be memory that is not registered
    /// ([`UserMemory::unregistered`](crate::UserMemory::unregistered)).
    ///
    /// With [`Config::reproducible`](crate::Config::reproducible) blocks are added in the order of ranks; otherwise in
    /// the order in which they come, and sums of floating-point numbers differ from call to call in their last bits.
    /// Sums of `f32` that DPAs add as fixed-point numbers
    /// ([`Config::sparse_fixed_point`](crate::Config::sparse_fixed_point)) have no order; -0.0 becomes 0.0 there, and a
    /// number beyond the bound fails the operation ([`Error::Contribution`](crate::Error::Contribution)).
    #[must_use]
    pub const fn sparse(self, options: SparseOptions) -> Self {
        Self { sparse: Some(options), ..self }
    }
}

buffers!(Allreduce, "The contribution is in the buffer that gets the result.", |call| CallKind::Allreduce {
    reduction: call.reduction,
    sparse: call.sparse
});

/// The reduction of the contributions of all ranks, on the root. Elsewhere the receive buffer is not touched, and may
/// be empty.
#[derive(Clone, Copy, Debug)]
pub struct Reduce {
    root: u32,
    reduction: Reduction,
}

impl Reduce {
    /// To this rank.
    #[must_use]
    pub const fn to(root: u32, reduction: Reduction) -> Self {
        Self { root, reduction }
    }
}

buffers!(
    Reduce,
    "The contribution is in the buffer that gets the result on the root, and is not touched elsewhere.",
    |call| CallKind::Reduce { root: call.root, reduction: call.reduction }
);

/// The reduction of the contributions of all ranks, a share to each.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatter<'c> {
    counts: Option<&'c [u64]>,
    reduction: Reduction,
}

impl<'c> ReduceScatter<'c> {
    /// Rank r gets the r-th of `size()` equal parts: the send buffer is `size()` times as long as the receive buffer.
    #[must_use]
    pub const fn new(reduction: Reduction) -> Self {
        Self { counts: None, reduction }
    }

    /// Shares of `counts[r]` bytes, one rank's after another's in the send buffer. Alike on all ranks.
    #[must_use]
    pub const fn counts(self, counts: &'c [u64]) -> Self {
        Self { counts: Some(counts), ..self }
    }
}

buffers!(ReduceScatter<'c>, "The contribution is in the buffer, whose beginning gets the own share.", |call| {
    CallKind::ReduceScatter { counts: call.counts, reduction: call.reduction }
});

/// Block r of every rank's send buffer to rank r, where it becomes the block of that rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alltoall<'c> {
    blocks: Option<[Blocks<'c>; 2]>,
}

impl<'c> Alltoall<'c> {
    /// Both buffers have `size()` blocks of one length.
    #[must_use]
    pub const fn new() -> Self {
        Self { blocks: None }
    }

    /// Blocks at any offset (`MPI_Alltoallv`), which do not overlap where they are received. What rank r sends to this
    /// one and what this one receives of r have one length. In place the received ones count.
    #[must_use]
    pub const fn blocks(sent: Blocks<'c>, received: Blocks<'c>) -> Self {
        Self { blocks: Some([sent, received]) }
    }
}

buffers!(
    Alltoall<'c>,
    "The blocks of the own contribution are in the buffer, and those of the others replace them.",
    |call| CallKind::Alltoall { blocks: call.blocks }
);

/// The bytes of every rank to the root. Elsewhere the receive buffer is not touched, and may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'c> {
    root: u32,
    blocks: Option<Blocks<'c>>,
}

impl<'c> Gather<'c> {
    /// To this rank, one rank's bytes after another's.
    #[must_use]
    pub const fn to(root: u32) -> Self {
        Self { root, blocks: None }
    }

    /// To where the root's blocks say (`MPI_Gatherv`); elsewhere they are not read.
    #[must_use]
    pub const fn blocks(self, blocks: Blocks<'c>) -> Self {
        Self { blocks: Some(blocks), ..self }
    }
}

buffers!(
    Gather<'c>,
    "On the root, with its own block at its offset in the buffer already; all others give two buffers.",
    |call| CallKind::Gather { root: call.root, blocks: call.blocks }
);

/// Block r of the root's send buffer to rank r. Elsewhere the send buffer is not read, and may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Scatter<'c> {
    root: u32,
    blocks: Option<Blocks<'c>>,
}

impl<'c> Scatter<'c> {
    /// From this rank, whose send buffer is `size()` times as long as every receive buffer.
    #[must_use]
    pub const fn from(root: u32) -> Self {
        Self { root, blocks: None }
    }

    /// From where the root's blocks say (`MPI_Scatterv`); elsewhere they are not read.
    #[must_use]
    pub const fn blocks(self, blocks: Blocks<'c>) -> Self {
        Self { blocks: Some(blocks), ..self }
    }

    /// With a buffer to send from and one to receive into.
    pub fn buffers(self, send: Buffer, receive: Buffer) -> Call<'c> {
        let kind = CallKind::Scatter { root: self.root, blocks: self.blocks };
        Call { kind, send: Some(send), receive: Some(receive) }
    }

    /// On the root, whose own block stays where it is; all others give two buffers.
    pub fn in_place(self, send: Buffer) -> Call<'c> {
        Call { kind: CallKind::Scatter { root: self.root, blocks: self.blocks }, send: Some(send), receive: None }
    }
}

/// Sums exist of all numbers.
pub(crate) const fn sum(data_type: DataType) -> Reduction {
    Reduction::of(Operator::Sum, data_type).expect("sums of numbers")
}
