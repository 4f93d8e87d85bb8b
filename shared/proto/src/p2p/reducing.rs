//! Reductions and their buffers.

use super::blocks::{Blocks, BlocksError, Span};
use super::layout::Layout;
use super::{reduce_doubling, reduce_tree};
use crate::ranks::RankInfo;

/// Reduce-Scatter algorithms. In each of them every rank sends N(P - 1)/P of a contribution of N bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceScatter {
    /// Around the ring: P - 1 steps, two neighbours. The order is that of the ring: for operators that commute.
    Ring,
    /// P - 1 direct messages, summed in the order of ranks, as one core would: the same bits as a loop over ranks.
    Exchange,
}

/// AllReduce algorithms. All ranks get the same bits in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Allreduce {
    /// Reduce-Scatter and Allgather around the ring, on one share per rank: each rank sends 2N(P - 1)/P, in 2(P - 1)
    /// steps. For large messages, and operators that commute.
    Ring,
    /// Up a binomial tree and down again, in segments: 2N(P - 1) over all ranks, 2⌈log2 P⌉ steps.
    Tree {
        /// Of the message, at least 1.
        segments: u32,
    },
    /// Exchanges of the whole message: log2 P rounds, in each of which every rank sends N, and two more for other P
    /// than powers of two. For small messages.
    RecursiveDoubling,
    /// P - 1 direct messages with shares, summed in the order of ranks, as one core would, and P - 1 with their sums:
    /// the same bits as a loop over ranks. Each rank sends 2N(P - 1)/P, in two steps.
    Exchange,
}

/// Reduce algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reduce {
    /// Up a binomial tree, in segments: every rank but the root sends N, ⌈log2 P⌉ steps. The order is that of ranks
    /// from the root on: for operators that commute, unless rank 0 is the root.
    Tree {
        /// Of the message, at least 1.
        segments: u32,
    },
    /// P - 1 direct messages with shares, summed in the order of ranks, as one core would, and one with the sum to the
    /// root: the same bits as a loop over ranks, whatever root. Each rank sends N(P - 1)/P, and all but the root N/P
    /// again.
    Exchange,
}

impl ReduceScatter {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ring, Self::Exchange];

    /// The buffers of a rank, from the division of the contribution into shares: block r of it, in bytes, is what rank
    /// r gets the sum of. For equal shares that is [`Blocks::shares`] of elements, for others [`Blocks::unequal`], both
    /// [`in_units`](Blocks::in_units) of an element, which must not be cut. The receive buffer is one block, the own
    /// share.
    ///
    /// # Errors
    /// Another number of shares than of ranks, or more temporary memory than can be counted.
    pub fn layout(self, shares: Blocks<'_>, place: RankInfo) -> Result<Layout<'_>, BlocksError> {
        check(&shares, place)?;
        let own = shares.bytes(Span::of(place.rank()));
        let temporary = match self {
            Self::Ring => several(place, shares),
            Self::Exchange => slots(own, place)?,
        };
        Ok(Layout { send: shares, temporary, receive: Blocks::equal(own, 1)? })
    }
}

impl Allreduce {
    /// The buffers of a rank, for contributions of `elements` elements of `element_bytes` bytes, none of which is cut.
    /// Send and receive buffer have the same blocks.
    ///
    /// # Errors
    /// No segment, elements of no bytes, or more than can be counted.
    pub fn layout(self, elements: u64, element_bytes: u32, place: RankInfo) -> Result<Layout<'static>, BlocksError> {
        let message = Message { elements, element_bytes };
        let (blocks, temporary) = match self {
            Self::Ring => {
                let shares = message.shares(place)?;
                (shares, several(place, shares))
            }
            Self::Tree { segments } => {
                (message.areas(1, segments)?, message.temporary(reduce_tree::areas(place.ranks()), segments)?)
            }
            Self::RecursiveDoubling => {
                (message.areas(1, 1)?, message.temporary(reduce_doubling::areas(place.ranks()), 1)?)
            }
            Self::Exchange => {
                let shares = message.shares(place)?;
                (shares, slots(shares.bytes(Span::of(place.rank())), place)?)
            }
        };
        Ok(Layout { send: blocks, temporary, receive: blocks })
    }
}

impl Reduce {
    /// The buffers of a rank, for contributions of `elements` elements of `element_bytes` bytes, none of which is cut.
    /// The root's receive buffer has the same blocks as the send buffer, those of the others are empty.
    ///
    /// # Errors
    /// No segment, elements of no bytes, or more than can be counted.
    pub fn layout(
        self,
        elements: u64,
        element_bytes: u32,
        root: u32,
        place: RankInfo,
    ) -> Result<Layout<'static>, BlocksError> {
        let same = match self {
            Self::Tree { segments } => Allreduce::Tree { segments },
            Self::Exchange => Allreduce::Exchange,
        };
        let layout = same.layout(elements, element_bytes, place)?;
        Ok(if root == place.rank() { layout } else { Layout { receive: Blocks::EMPTY, ..layout } })
    }
}

/// What each rank contributes.
#[derive(Clone, Copy)]
struct Message {
    elements: u64,
    element_bytes: u32,
}

impl Message {
    fn shares(self, place: RankInfo) -> Result<Blocks<'static>, BlocksError> {
        Blocks::shares(self.elements, place.ranks())?.in_units(self.element_bytes)
    }

    /// As many areas, each as long as the message and of as many segments.
    fn areas(self, areas: u32, segments: u32) -> Result<Blocks<'static>, BlocksError> {
        Blocks::equal(self.elements, areas)?.split(segments)?.in_units(self.element_bytes)
    }

    /// The same of temporary memory; none for no area.
    fn temporary(self, areas: u32, segments: u32) -> Result<Option<Blocks<'static>>, BlocksError> {
        if areas == 0 { Ok(None) } else { self.areas(areas, segments).map(Some) }
    }
}

fn check(shares: &Blocks<'_>, place: RankInfo) -> Result<(), BlocksError> {
    let (blocks, ranks) = (shares.count(), place.ranks());
    if blocks == ranks { Ok(()) } else { Err(BlocksError::Shares { blocks, ranks }) }
}

/// Temporary memory with one block for each share; none for one or two ranks, whose only message brings the own share.
fn several(place: RankInfo, shares: Blocks<'_>) -> Option<Blocks<'_>> {
    (place.ranks() > 2).then_some(shares)
}

/// Temporary memory with one block for each other rank; none if there is no other.
fn slots(share_bytes: u64, place: RankInfo) -> Result<Option<Blocks<'static>>, BlocksError> {
    let others = place.ranks() - 1;
    if others == 0 { Ok(None) } else { Blocks::equal(share_bytes, others).map(Some) }
}
