//! Reduce-Scatter around the ring, and AllReduce as that and an Allgather around the ring (Rabenseifner; Patarasuk and
//! Yuan): in each of P - 1 steps a rank adds its own share to what has come from the left and passes it to the right. A
//! share ends, complete, at the rank of its number. N(P - 1) sent per rank for shares of N bytes, twice that with the
//! Allgather.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::Reduction;
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReduceRing {
    pub(super) place: RankInfo,
    /// Whether the complete shares go round, too.
    pub(super) gather: bool,
}

impl ReduceRing {
    /// The share in message number `index` of a rank that is `distance` behind this one: first that of its left
    /// neighbour, in the end the own one of its right neighbour; then, complete, its own and those further behind.
    fn share(self, distance: u32, index: u32) -> Span {
        let steps = self.place.ranks() - 1;
        let behind = if index < steps { index + 1 } else { index - steps };
        Span::of(self.place.behind(distance + behind))
    }

    pub(super) fn start(self) -> Span {
        Span::of(self.place.left())
    }

    pub(super) fn reduction(self, tag: u32) -> Option<Reduction> {
        (tag < self.place.ranks() - 1).then_some(Reduction::AddOwn)
    }
}

impl Plan for ReduceRing {
    fn sends(&self) -> u32 {
        (self.place.ranks() - 1) * if self.gather { 2 } else { 1 }
    }

    fn send(&self, index: u32) -> Transfer {
        // Nothing but the first share is this rank's to begin with.
        Transfer { to: self.place.right(), blocks: self.share(0, index), tag: index, after: index }
    }

    fn receives(&self) -> u32 {
        self.sends()
    }

    fn receive(&self, tag: u32) -> Arrival {
        Arrival { from: self.place.left(), blocks: self.share(1, tag) }
    }
}
