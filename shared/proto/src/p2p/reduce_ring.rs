//! Reduce-Scatter around the ring, and AllReduce as that and an Allgather around the ring (Rabenseifner; Patarasuk and
//! Yuan): in each of P - 1 steps a rank adds its own share to what has come from the left and passes it to the right. A
//! share ends, complete, at the rank of its number. N(P - 1) sent per rank for shares of N bytes, twice that with the
//! Allgather.
//!
//! The work buffer of an AllReduce has two areas of P shares: the sums that are passed on, and the result. The Allgather
//! brings the shares that the Reduce-Scatter has sent. That those have been delivered is what it depends on; that they have
//! been acknowledged is not, and until then the card may read them again. So the complete shares go elsewhere.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::{Reduction, Start};
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
        match index.checked_sub(steps) {
            None => Span::of(self.place.behind(distance + index + 1)),
            Some(step) => self.complete(self.place.behind(distance + step)),
        }
    }

    /// Where a share lies in the area of the result.
    const fn complete(self, share: u32) -> Span {
        Span::of(self.place.ranks() + share)
    }

    /// The share that is passed on first, and, where complete shares have their own area, the one that is added to last.
    pub(super) fn starts(self) -> [Option<Start>; 2] {
        let (left, own) = (Span::of(self.place.left()), Span::of(self.place.rank()));
        let result = self.gather.then(|| Start { from: own, to: self.complete(self.place.rank()) });
        [Some(Start { from: left, to: left }), result]
    }

    pub(super) fn reduction(self, tag: u32) -> Option<Reduction> {
        let last = self.place.ranks().saturating_sub(2);
        match tag {
            tag if tag > last || self.place.ranks() == 1 => None,
            tag if tag == last && self.gather => Some(Reduction::AddTo(self.complete(self.place.rank()))),
            _ => Some(Reduction::AddOwn),
        }
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
