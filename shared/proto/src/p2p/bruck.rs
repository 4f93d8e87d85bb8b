//! Allgather after Bruck et al.: in round k each rank sends what it holds to the rank 2^k behind and gets as much from
//! the one 2^k ahead. ⌈log2 P⌉ rounds for any P, N(P - 1) sent per rank: the last round takes only what is missing.
//!
//! The published form collects blocks from the start of the buffer, the own one first, and rotates the buffer at the
//! end. Here each block goes to its final place at once ("displaced"): a message is a run of blocks that may go on at
//! the buffer's beginning, so at most two writes, and there is nothing to rotate.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::Start;
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bruck(pub(super) RankInfo);

impl Bruck {
    /// Rounds: ⌈log2 P⌉.
    const fn rounds(self) -> u32 {
        u32::BITS - (self.0.ranks() - 1).leading_zeros()
    }

    /// Blocks of a round's message: all that the sender holds, or what its receiver still lacks.
    fn blocks(self, round: u32) -> u32 {
        (1 << round).min(self.0.ranks() - (1 << round))
    }
}

impl Plan for Bruck {
    fn sends(&self) -> u32 {
        self.rounds()
    }

    fn send(&self, index: u32) -> Transfer {
        let blocks = Span { first: self.0.rank(), count: self.blocks(index) };
        Transfer::in_place(self.0.behind(1 << index), blocks, index, index)
    }

    fn receives(&self) -> u32 {
        self.rounds()
    }

    fn receive(&self, tag: u32) -> Arrival {
        let from = self.0.ahead(1 << tag);
        Arrival::receive(from, Span { first: from, count: self.blocks(tag) })
    }

    fn start(&self) -> Option<Start> {
        Some(Start { from: Span::of(0), to: Span::of(self.0.rank()) })
    }
}
