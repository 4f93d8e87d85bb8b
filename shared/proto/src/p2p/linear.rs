//! Allgather by P - 1 direct messages: each rank sends its block to all others, its right neighbour first, so that no
//! rank is everybody's first receiver. N(P - 1) sent per rank, over P - 1 connections, in one step.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::Start;
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Linear(pub(super) RankInfo);

impl Plan for Linear {
    fn sends(&self) -> u32 {
        self.0.ranks() - 1
    }

    fn send(&self, index: u32) -> Transfer {
        // The sender is as far behind the receiver as the receiver is ahead of the sender.
        Transfer::in_place(self.0.ahead(index + 1), Span::of(self.0.rank()), index, 0)
    }

    fn receives(&self) -> u32 {
        self.0.ranks() - 1
    }

    fn receive(&self, tag: u32) -> Arrival {
        let from = self.0.behind(tag + 1);
        Arrival::receive(from, Span::of(from))
    }

    fn start(&self) -> Option<Start> {
        Some(Start { from: Span::of(0), to: Span::of(self.0.rank()) })
    }
}
