//! AllReduce up a binomial tree to rank 0 and down again, segment by segment. ⌈log2 P⌉ levels each way; the message
//! crosses each edge of the tree twice, 2N(P - 1) over all ranks.
//!
//! The work buffer has an area for each level and one for the result, all as long as the message, since several
//! children write at the same time. A rank whose lowest set bit is l is a child at level l: it adds up in area l, from
//! where its sum goes to area l of its parent. Rank 0 adds up in the last area, which is the result's.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::Reduction;
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReduceTree {
    pub(super) place: RankInfo,
    /// Blocks of an area, at least 1; times areas and ranks, they fit a count.
    pub(super) segments: u32,
}

/// Levels of the tree: ⌈log2 P⌉.
pub(super) const fn levels(ranks: u32) -> u32 {
    u32::BITS - (ranks - 1).leading_zeros()
}

impl ReduceTree {
    /// The level at which a rank is a child; for rank 0 the number of levels.
    const fn level(self, rank: u32) -> u32 {
        if rank == 0 { levels(self.place.ranks()) } else { rank.trailing_zeros() }
    }

    /// Children of a rank: at level 0 up, each twice as far away.
    const fn children(self, rank: u32) -> u32 {
        let (level, room) = (self.level(rank), levels(self.place.ranks() - rank));
        if level < room { level } else { room }
    }

    const fn block(self, area: u32, segment: u32) -> Span {
        Span::of(area * self.segments + segment)
    }

    const fn parent(self) -> Option<(u32, u32)> {
        let (rank, level) = (self.place.rank(), self.level(self.place.rank()));
        if rank == 0 { None } else { Some((rank - (1 << level), level)) }
    }

    pub(super) const fn area(self) -> Span {
        Span { first: self.level(self.place.rank()) * self.segments, count: self.segments }
    }

    pub(super) fn reduction(self, tag: u32) -> Option<Reduction> {
        let rank = self.place.rank();
        let children = self.children(rank);
        (tag < children * self.segments).then(|| Reduction::AddTo(self.block(self.level(rank), tag / children)))
    }
}

impl Plan for ReduceTree {
    fn sends(&self) -> u32 {
        let up = u32::from(self.parent().is_some());
        (up + self.children(self.place.rank())) * self.segments
    }

    fn send(&self, index: u32) -> Transfer {
        let (rank, segments) = (self.place.rank(), self.segments);
        let children = self.children(rank);
        let up = children * segments;
        match self.parent() {
            Some((parent, level)) if index < segments => {
                // The parent counts segment by segment, children in order.
                let tag = index * self.children(parent) + level;
                Transfer { to: parent, blocks: self.block(level, index), tag, after: (index + 1) * children }
            }
            parent => {
                let down = index - if parent.is_some() { segments } else { 0 };
                let (segment, child) = (down / children, down % children);
                let to = rank + (1 << child);
                let tag = self.children(to) * segments + segment;
                let result = levels(self.place.ranks());
                // The root needs all of a segment's sum; the others that it has come down.
                let after = if parent.is_some() { up + segment + 1 } else { (segment + 1) * children };
                Transfer { to, blocks: self.block(result, segment), tag, after }
            }
        }
    }

    fn receives(&self) -> u32 {
        let down = u32::from(self.parent().is_some());
        (self.children(self.place.rank()) + down) * self.segments
    }

    fn receive(&self, tag: u32) -> Arrival {
        let rank = self.place.rank();
        let children = self.children(rank);
        let up = children * self.segments;
        match self.parent() {
            Some((parent, _)) if tag >= up => {
                Arrival { from: parent, blocks: self.block(levels(self.place.ranks()), tag - up) }
            }
            _ => {
                let (segment, child) = (tag / children, tag % children);
                Arrival { from: rank + (1 << child), blocks: self.block(child, segment) }
            }
        }
    }
}
