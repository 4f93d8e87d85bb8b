//! Barrier by dissemination (Hensgen, Finkel and Manber): in round k each rank sends an empty message to the one 2^k
//! ahead, and receives one from the one 2^k behind. ⌈log2 P⌉ rounds for any P, after which every rank knows that all
//! have entered: ⌈log2 P⌉α.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::reduce_tree::levels;
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Dissemination(pub(super) RankInfo);

impl Plan for Dissemination {
    fn sends(&self) -> u32 {
        levels(self.0.ranks())
    }

    fn send(&self, index: u32) -> Transfer {
        Transfer::in_place(self.0.ahead(1 << index), Span::NONE, index, index)
    }

    fn receives(&self) -> u32 {
        self.sends()
    }

    fn receive(&self, tag: u32) -> Arrival {
        Arrival::receive(self.0.behind(1 << tag), Span::NONE)
    }
}
