//! Reduce-Scatter around the ring, and AllReduce as that and an Allgather around the ring (Rabenseifner; Patarasuk and
//! Yuan): in each of P - 1 steps a rank adds its own share to what has come from the left and passes it to the right. A
//! share ends, complete, at the rank of its number. Every rank sends N(P - 1)/P of N bytes, twice that with the
//! Allgather, to one neighbour, in P - 1 or 2(P - 1) steps: (P - 1)α + N(P - 1)/P·β, or twice that, which for large N
//! is the least possible.
//!
//! Share s is summed from rank s + 1 on around the ring to rank s: what has come is the left operand, the own share the
//! right one. That is no order of ranks, so that operators must commute. Each share is summed once, so that all ranks
//! have the same bits.
//!
//! Partial sums lie in temporary memory, which has all P shares; the last one comes to its place in the result. The
//! Allgather brings the shares that the Reduce-Scatter has sent. That those have been delivered is what it depends on;
//! that they have been acknowledged is not, and until then the card may read them again. So the complete shares go
//! elsewhere.

use super::blocks::Span;
use super::layout::Part;
use super::plan::{Arrival, Plan, Step, Transfer};
use super::reduction::{Reduction, Start};
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReduceRing {
    pub(super) place: RankInfo,
    /// Whether the complete shares go round, too.
    pub(super) gather: bool,
}

impl ReduceRing {
    /// Messages of the Reduce-Scatter, and as many of the Allgather.
    const fn steps(self) -> u32 {
        self.place.ranks() - 1
    }

    /// Where message number `index` of a rank that is `distance` behind this one comes to lie: first the share of its
    /// left neighbour, in the end the own one of its right neighbour; then, complete, its own and those further behind.
    fn target(self, distance: u32, index: u32) -> Part {
        match index.checked_sub(self.steps()) {
            Some(step) => self.complete(self.place.behind(distance + step)),
            None => {
                let share = self.place.behind(distance + index + 1);
                if index + 1 == self.steps() { self.complete(share) } else { Part::temporary(Span::of(share)) }
            }
        }
    }

    /// A share in the result; of a Reduce-Scatter that has no other.
    const fn complete(self, share: u32) -> Part {
        Part::receive(Span::of(if self.gather { share } else { 0 }))
    }
}

impl Plan for ReduceRing {
    fn sends(&self) -> u32 {
        self.steps() * if self.gather { 2 } else { 1 }
    }

    fn send(&self, index: u32) -> Transfer {
        let target = self.target(0, index);
        let source = match index {
            // Nothing but the first share is this rank's to begin with.
            0 => Part::send(Span::of(self.place.left())),
            index if index < self.steps() => Part::temporary(Span::of(self.place.behind(index + 1))),
            _ => target,
        };
        Transfer { to: self.place.right(), source, target, tag: index, after: index }
    }

    fn receives(&self) -> u32 {
        self.sends()
    }

    fn receive(&self, tag: u32) -> Arrival {
        Arrival { from: self.place.left(), target: self.target(1, tag) }
    }

    fn reduction(&self, index: u32) -> Option<Step> {
        let to = self.target(1, index);
        let own = Part::send(Span::of(self.place.behind(index + 2)));
        let reduction = Reduction { left: to, right: own, to };
        (index < self.steps()).then_some(Step { after: index + 1, reduction })
    }

    fn start(&self) -> Option<Start> {
        (self.steps() == 0).then_some(Start { from: Span::of(0), to: Span::of(0) })
    }
}
