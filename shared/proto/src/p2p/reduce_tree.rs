//! Reduce up a binomial tree to the root, and AllReduce as that to rank 0 and a Broadcast down the same tree, segment
//! by segment. ⌈log2 P⌉ levels each way; the message crosses each edge of the tree once each way: N(P - 1) over all
//! ranks for a Reduce, twice that for an AllReduce. ⌈log2 P⌉(α + Nβ) each way; with segments of N/S bytes about (S +
//! ⌈log2 P⌉)(α + N/S·β·C), where a rank has up to C = ⌈log2 P⌉ children.
//!
//! Ranks are counted from the root, which is 0 in the tree; a rank whose lowest set bit is l is a child at level l, and
//! its subtree is the 2^l ranks from it on. A rank takes its children from level 0 up, so that what it has is the left
//! operand each time and the child's sum the right one: contributions are combined in the order of ranks from the root
//! on.
//!
//! Temporary memory has an area as long as the message for each child, since several write at the same time. A rank
//! adds up in that of its first child. The root's last child writes to the result, where the last sum is made: one area
//! less than levels.

use super::blocks::Span;
use super::layout::Part;
use super::plan::{Arrival, Plan, Step, Transfer};
use super::reduction::{Reduction, Start};
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReduceTree {
    /// Counted from the root.
    own: u32,
    root: RankInfo,
    /// Blocks of an area, at least 1; times areas and ranks, they fit a count.
    segments: u32,
    /// Whether the sum goes down again.
    broadcast: bool,
}

/// Levels of a binomial tree, and rounds after which every rank has something of every other: ⌈log2 P⌉.
pub(super) const fn levels(ranks: u32) -> u32 {
    u32::BITS - (ranks - 1).leading_zeros()
}

/// Areas of temporary memory.
pub(super) const fn areas(ranks: u32) -> u32 {
    levels(ranks).saturating_sub(1)
}

impl ReduceTree {
    pub(super) fn new(place: RankInfo, root: RankInfo, segments: u32, broadcast: bool) -> Self {
        Self { own: place.behind(root.rank()), root, segments, broadcast }
    }

    pub(super) const fn with_segments(self, segments: u32) -> Self {
        Self { segments, ..self }
    }

    /// The level at which a rank is a child; for the root the number of levels.
    const fn level(self, rank: u32) -> u32 {
        if rank == 0 { levels(self.root.ranks()) } else { rank.trailing_zeros() }
    }

    /// Children of a rank: at level 0 up, each twice as far away.
    const fn children(self, rank: u32) -> u32 {
        let (level, room) = (self.level(rank), levels(self.root.ranks() - rank));
        if level < room { level } else { room }
    }

    /// Where a segment of a child's sum comes to lie at its parent.
    const fn lands(self, parent: u32, child: u32, segment: u32) -> Part {
        if parent == 0 && child + 1 == self.children(0) {
            return Part::receive(Span::of(segment));
        }
        Part::temporary(Span::of(child * self.segments + segment))
    }

    /// The parent, and the number of its child that this rank is.
    const fn parent(self) -> Option<(u32, u32)> {
        let level = self.level(self.own);
        if self.own == 0 { None } else { Some((self.own - (1 << level), level)) }
    }

    /// Messages that go up from the children.
    const fn up(self) -> u32 {
        self.children(self.own) * self.segments
    }
}

impl Plan for ReduceTree {
    fn sends(&self) -> u32 {
        let up = if self.parent().is_some() { self.segments } else { 0 };
        up + if self.broadcast { self.up() } else { 0 }
    }

    fn send(&self, index: u32) -> Transfer {
        let children = self.children(self.own);
        match self.parent() {
            Some((parent, level)) if index < self.segments => {
                // The parent counts segment by segment, children in order.
                let tag = index * self.children(parent) + level;
                let own = Span::of(index);
                let source = if children == 0 { Part::send(own) } else { Part::temporary(own) };
                let target = self.lands(parent, level, index);
                Transfer { to: self.root.ahead(parent), source, target, tag, after: (index + 1) * children }
            }
            parent => {
                let down = index - if parent.is_some() { self.segments } else { 0 };
                let (segment, child) = (down / children, down % children);
                let to = self.own + (1 << child);
                let tag = self.children(to) * self.segments + segment;
                // The root needs all of a segment's sum; the others that it has come down.
                let after = if parent.is_some() { self.up() + segment + 1 } else { (segment + 1) * children };
                Transfer::in_place(self.root.ahead(to), Span::of(segment), tag, after)
            }
        }
    }

    fn receives(&self) -> u32 {
        let down = self.broadcast && self.parent().is_some();
        self.up() + if down { self.segments } else { 0 }
    }

    fn receive(&self, tag: u32) -> Arrival {
        let children = self.children(self.own);
        match (tag.checked_sub(self.up()), self.parent()) {
            (Some(segment), Some((parent, _))) => Arrival::receive(self.root.ahead(parent), Span::of(segment)),
            _ => {
                let (segment, child) = (tag / children, tag % children);
                let from = self.root.ahead(self.own + (1 << child));
                Arrival { from, target: self.lands(self.own, child, segment) }
            }
        }
    }

    fn reduction(&self, index: u32) -> Option<Step> {
        let children = self.children(self.own);
        if index >= self.up() {
            return None;
        }
        let (segment, child) = (index / children, index % children);
        let (own, sum) = (Span::of(segment), Part::temporary(Span::of(segment)));
        let right = self.lands(self.own, child, segment);
        let left = if child == 0 { Part::send(own) } else { sum };
        let to = if right.memory == super::Memory::Receive { right } else { sum };
        Some(Step { after: index + 1, reduction: Reduction { left, right, to } })
    }

    fn start(&self) -> Option<Start> {
        let all = Span { first: 0, count: self.segments };
        (self.root.ranks() == 1).then_some(Start { from: all, to: all })
    }
}
