//! Allgather around the ring: each block is passed to the right P - 1 times. Each rank sends N(P - 1) to one neighbour,
//! in P - 1 steps.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use crate::ranks::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ring(pub(super) Place);

impl Plan for Ring {
    fn sends(&self) -> u32 {
        self.0.ranks() - 1
    }

    fn send(&self, index: u32) -> Transfer {
        Transfer { to: self.0.right(), blocks: Span::of(self.0.behind(index)), tag: index, after: index }
    }

    fn receives(&self) -> u32 {
        self.0.ranks() - 1
    }

    fn receive(&self, tag: u32) -> Arrival {
        Arrival { from: self.0.left(), blocks: Span::of(self.0.behind(tag + 1)) }
    }
}
