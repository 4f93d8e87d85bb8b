//! Allgather around the ring: each block is passed to the right P - 1 times. Each rank sends N(P - 1) to one neighbour,
//! in P - 1 steps.
//!
//! In segments, a rank passes the first part of a block on while the rest arrives, so that its link is not idle between
//! two steps.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::Start;
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ring {
    pub(super) place: RankInfo,
    /// Blocks of each contribution, at least 1; times the ranks, they fit a count.
    pub(super) segments: u32,
}

impl Ring {
    /// Message number `index` of a rank that is `distance` behind this one: first its own contribution, then those
    /// further behind.
    fn block(&self, distance: u32, index: u32) -> Span {
        let contribution = self.place.behind(distance + index / self.segments);
        Span::of(contribution * self.segments + index % self.segments)
    }
}

impl Plan for Ring {
    fn sends(&self) -> u32 {
        (self.place.ranks() - 1) * self.segments
    }

    fn send(&self, index: u32) -> Transfer {
        // The same segment must have come in the step before.
        let after = (index + 1).saturating_sub(self.segments);
        Transfer::in_place(self.place.right(), self.block(0, index), index, after)
    }

    fn receives(&self) -> u32 {
        self.sends()
    }

    fn receive(&self, tag: u32) -> Arrival {
        Arrival::receive(self.place.left(), self.block(1, tag))
    }

    fn start(&self) -> Option<Start> {
        let own = |first| Span { first, count: self.segments };
        Some(Start { from: own(0), to: own(self.place.rank() * self.segments) })
    }
}
