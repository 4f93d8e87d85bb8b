//! Reductions by direct messages: each rank sends share s of its contribution to rank s, which sums the P shares in the
//! order of ranks. So a Reduce-Scatter; then rank s sends its sum to everybody for an AllReduce, to the root for a
//! Reduce. All at once, as many connections as there are ranks.
//!
//! The sum is ((c0 ∘ c1) ∘ c2) ∘ ..., exactly what one core makes of the contributions in a loop over ranks, whatever
//! comes first, for any number of ranks: the reproducible order. A Reduce-Scatter sends N(P - 1)/P of N bytes per rank
//! in one step, an AllReduce twice that in two: α + N(P - 1)/P·β each where all ranks send and receive at the same
//! time. A Reduce sends as much as a Reduce-Scatter and then N/P to the root, which receives N(P - 1)/P both times.
//!
//! Temporary memory has a block for each other rank, in the order of ranks, as long as the own share. So the layout
//! depends on the rank where shares differ in length.

use super::blocks::Span;
use super::layout::Part;
use super::plan::{Arrival, Plan, Step, Transfer};
use super::reduction::{Reduction, Start};
use crate::ranks::RankInfo;

/// Where complete shares go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Complete {
    /// Nowhere: each rank keeps its own, which is all of its result.
    Kept,
    /// To everybody.
    ToAll,
    /// To this rank.
    ToRoot(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReduceExchange {
    pub(super) place: RankInfo,
    pub(super) complete: Complete,
}

/// A rank's number among those other than `own`.
const fn slot(rank: u32, own: u32) -> u32 {
    if rank < own { rank } else { rank - 1 }
}

/// The rank of such a number.
const fn other(slot: u32, own: u32) -> u32 {
    if slot < own { slot } else { slot + 1 }
}

impl ReduceExchange {
    const fn others(self) -> u32 {
        self.place.ranks() - 1
    }

    /// What rank `from` has for this rank's share.
    const fn part(self, from: u32) -> Part {
        let own = self.place.rank();
        if from == own { Part::send(Span::of(own)) } else { Part::temporary(Span::of(slot(from, own))) }
    }

    /// Where this rank makes its sum: at its place in the result, or, if it has none, in temporary memory.
    const fn sum(self) -> Part {
        match self.complete {
            Complete::Kept => Part::receive(Span::of(0)),
            Complete::ToRoot(root) if root != self.place.rank() => Part::temporary(Span::of(0)),
            Complete::ToAll | Complete::ToRoot(_) => Part::receive(Span::of(self.place.rank())),
        }
    }
}

impl Plan for ReduceExchange {
    fn sends(&self) -> u32 {
        self.others()
            + match self.complete {
                Complete::Kept => 0,
                Complete::ToAll => self.others(),
                Complete::ToRoot(root) => u32::from(root != self.place.rank()),
            }
    }

    fn send(&self, index: u32) -> Transfer {
        let own = self.place.rank();
        // The right neighbour first, so that no rank is everybody's first receiver.
        let Some(again) = index.checked_sub(self.others()) else {
            let to = self.place.ahead(index + 1);
            let tag = slot(own, to);
            let target = Part::temporary(Span::of(tag));
            return Transfer { to, source: Part::send(Span::of(to)), target, tag, after: 0 };
        };
        let to = match self.complete {
            Complete::ToRoot(root) => root,
            Complete::Kept | Complete::ToAll => self.place.ahead(again + 1),
        };
        let (target, tag) = (Part::receive(Span::of(own)), self.others() + slot(own, to));
        Transfer { to, source: self.sum(), target, tag, after: self.others() }
    }

    fn receives(&self) -> u32 {
        self.others()
            + match self.complete {
                Complete::ToAll => self.others(),
                Complete::ToRoot(root) if root == self.place.rank() => self.others(),
                Complete::Kept | Complete::ToRoot(_) => 0,
            }
    }

    fn receive(&self, tag: u32) -> Arrival {
        let own = self.place.rank();
        match tag.checked_sub(self.others()) {
            None => Arrival { from: other(tag, own), target: Part::temporary(Span::of(tag)) },
            Some(slot) => Arrival::receive(other(slot, own), Span::of(other(slot, own))),
        }
    }

    fn reduction(&self, index: u32) -> Option<Step> {
        if index >= self.others() {
            return None;
        }
        let left = if index == 0 { self.part(0) } else { self.sum() };
        // All of the ranks up to the right operand's must have come, but for the own share.
        let after = index + 2 - u32::from(self.place.rank() <= index + 1);
        Some(Step { after, reduction: Reduction { left, right: self.part(index + 1), to: self.sum() } })
    }

    fn start(&self) -> Option<Start> {
        (self.others() == 0).then_some(Start { from: Span::of(0), to: Span::of(0) })
    }
}
