//! Alltoall: every rank has a block for every other. Each goes directly to its receiver, so that each rank sends, and
//! receives, P - 1 blocks; the schedules differ in who talks to whom at the same time.
//!
//! It goes from the block of the sender's send buffer that is for the receiver to that of the receiver's receive buffer
//! that is from the sender. The own block is copied by whoever carries the schedule out (`Schedule::start`).

use super::Alltoall;
use super::blocks::Span;
use super::layout::Part;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::Start;
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Exchange {
    pub(super) place: RankInfo,
    pub(super) algorithm: Alltoall,
}

impl Exchange {
    /// With whom this rank exchanges in a round, from 0 to P - 1: itself in one of them. Each is the other's partner.
    /// On a power of two the numbers differ by one pattern of bits, so that the first round exchanges nothing; for any
    /// other P they add up to the round, modulo P.
    const fn partner(self, round: u32) -> u32 {
        let (rank, ranks) = (self.place.rank(), self.place.ranks());
        if ranks.is_power_of_two() { rank ^ round } else { (round + ranks - rank) % ranks }
    }

    /// The round in which it has itself as a partner, at an index among its messages, and those after it.
    const fn round(self, index: u32) -> u32 {
        let (rank, ranks) = (self.place.rank(), self.place.ranks());
        let own = if ranks.is_power_of_two() { 0 } else { 2 * rank % ranks };
        if index < own { index } else { index + 1 }
    }

    const fn to(self, index: u32) -> u32 {
        match self.algorithm {
            Alltoall::Pairwise => self.partner(self.round(index)),
            Alltoall::Ring | Alltoall::Linear => self.place.ahead(index + 1),
        }
    }

    const fn from(self, index: u32) -> u32 {
        match self.algorithm {
            Alltoall::Pairwise => self.to(index),
            Alltoall::Ring | Alltoall::Linear => self.place.behind(index + 1),
        }
    }

    /// The number that a message to `to`, this rank's number `index`, has among those that `to` gets.
    const fn tag(self, to: u32, index: u32) -> u32 {
        match self.algorithm {
            Alltoall::Pairwise => {
                let (ranks, round) = (self.place.ranks(), self.round(index));
                let own = if ranks.is_power_of_two() { 0 } else { 2 * to % ranks };
                if round < own { round } else { round - 1 }
            }
            Alltoall::Ring | Alltoall::Linear => index,
        }
    }
}

impl Plan for Exchange {
    fn sends(&self) -> u32 {
        self.place.ranks() - 1
    }

    fn send(&self, index: u32) -> Transfer {
        let to = self.to(index);
        // One partner at a time, or all at once.
        let after = match self.algorithm {
            Alltoall::Pairwise | Alltoall::Ring => index,
            Alltoall::Linear => 0,
        };
        let [source, target] = [Part::send(Span::of(to)), Part::receive(Span::of(self.place.rank()))];
        Transfer { to, source, target, tag: self.tag(to, index), after }
    }

    fn receives(&self) -> u32 {
        self.sends()
    }

    fn receive(&self, tag: u32) -> Arrival {
        let from = self.from(tag);
        Arrival::receive(from, Span::of(from))
    }

    fn start(&self) -> Option<Start> {
        let own = Span::of(self.place.rank());
        Some(Start { from: own, to: own })
    }
}
