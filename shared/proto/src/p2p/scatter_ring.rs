//! Broadcast of a large message by scatter and Allgather (van de Geijn): the message is cut into P shares, a binomial
//! tree scatters them, and an Allgather around the ring completes them. About 2N sent per rank, whatever P.
//!
//! The ring is the plain one, as in MPICH: every rank takes P - 1 shares from its left neighbour, also those that it
//! has from the scatter (the same bytes again). Leaving them out would save at most log2 P shares per rank; published
//! traffic figures are of the plain one. A rank may still be sending them on then, so that a race detector reports one
//! for bytes that do not change.

use super::blocks::Span;
use super::knomial;
use super::plan::{Arrival, Plan, Transfer};
use super::relay::from_root;
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScatterRing {
    /// Counted from the root; also the number of the own share.
    own: u32,
    root: RankInfo,
    children: u32,
}

impl ScatterRing {
    pub(super) fn new(rank: u32, root: RankInfo) -> Self {
        let (own, ranks) = (from_root(rank, root), root.ranks());
        let children = (0..ranks).take_while(|&index| knomial::child(own, index, 2, ranks).is_some()).count();
        Self { own, root, children: children as u32 }
    }

    const fn ranks(&self) -> u32 {
        self.root.ranks()
    }

    /// Messages of the scatter that a rank gets.
    fn scatters(rank: u32) -> u32 {
        u32::from(rank != 0)
    }

    /// The shares below a rank in the tree, its own first.
    fn below(&self, rank: u32) -> Span {
        let most = if rank == 0 { self.ranks() } else { rank & rank.wrapping_neg() };
        Span { first: rank, count: most.min(self.ranks() - rank) }
    }

    fn behind(&self, distance: u32) -> u32 {
        (self.own + self.ranks() - distance) % self.ranks()
    }
}

impl Plan for ScatterRing {
    fn sends(&self) -> u32 {
        self.children + self.ranks() - 1
    }

    fn send(&self, index: u32) -> Transfer {
        let scatters = Self::scatters(self.own);
        let Some(step) = index.checked_sub(self.children) else {
            let child = knomial::child(self.own, index, 2, self.ranks()).unwrap_or(self.own);
            return Transfer::in_place(self.root.ahead(child), self.below(child), 0, scatters);
        };
        let right = (self.own + 1) % self.ranks();
        // The root has everything from the start.
        let after = if self.own == 0 { 0 } else { scatters + step };
        let tag = Self::scatters(right) + step;
        Transfer::in_place(self.root.ahead(right), Span::of(self.behind(step)), tag, after)
    }

    fn receives(&self) -> u32 {
        Self::scatters(self.own) + self.ranks() - 1
    }

    fn receive(&self, tag: u32) -> Arrival {
        let Some(step) = tag.checked_sub(Self::scatters(self.own)) else {
            let parent = knomial::parent(self.own, 2, self.ranks()).unwrap_or(0);
            return Arrival::receive(self.root.ahead(parent), self.below(self.own));
        };
        Arrival::receive(self.root.ahead(self.behind(1)), Span::of(self.behind(step + 1)))
    }
}
