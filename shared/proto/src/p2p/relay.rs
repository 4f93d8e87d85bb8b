//! Broadcast down a tree, segment by segment: a rank passes each segment to all its children as soon as it has arrived.
//! N received per rank.
//!
//! Trees are those of ranks counted from the root, which is 0 in them.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::{binary, chain, knomial};
use crate::ranks::RankInfo;

/// Who is whose child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Tree {
    Knomial { radix: u32 },
    Heap,
    InOrder,
    Chain,
}

impl Tree {
    pub(super) fn parent(self, rank: u32, ranks: u32) -> Option<u32> {
        match self {
            Self::Knomial { radix } => knomial::parent(rank, radix, ranks),
            Self::Heap => binary::heap::parent(rank),
            Self::InOrder => binary::in_order::parent(rank, ranks),
            Self::Chain => chain::parent(rank),
        }
    }

    /// Child number `index`; none behind the last.
    pub(super) fn child(self, rank: u32, index: u32, ranks: u32) -> Option<u32> {
        match self {
            Self::Knomial { radix } => knomial::child(rank, index, radix, ranks),
            Self::Heap => binary::heap::child(rank, index, ranks),
            Self::InOrder => binary::in_order::child(rank, index, ranks),
            Self::Chain => chain::child(rank, index, ranks),
        }
    }

    fn children(self, rank: u32, ranks: u32) -> u32 {
        (0..ranks).take_while(|&index| self.child(rank, index, ranks).is_some()).count() as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Relay {
    tree: Tree,
    /// Counted from the root.
    own: u32,
    root: RankInfo,
    parent: Option<u32>,
    children: u32,
    segments: u32,
}

impl Relay {
    /// `root` is the root's place; `segments` of a tree with children fit a count of messages (see `Schedule::new`).
    pub(super) fn new(tree: Tree, rank: u32, root: RankInfo, segments: u32) -> Self {
        let (own, ranks) = (from_root(rank, root), root.ranks());
        let parent = tree.parent(own, ranks).map(|parent| root.ahead(parent));
        Self { tree, own, root, parent, children: tree.children(own, ranks), segments }
    }

    pub(super) const fn children(&self) -> u32 {
        self.children
    }

    pub(super) const fn with_segments(self, segments: u32) -> Self {
        Self { segments, ..self }
    }
}

/// How far a rank is ahead of the root.
pub(super) fn from_root(rank: u32, root: RankInfo) -> u32 {
    (rank + root.ranks() - root.rank()) % root.ranks()
}

impl Plan for Relay {
    fn sends(&self) -> u32 {
        self.children.saturating_mul(self.segments)
    }

    fn send(&self, index: u32) -> Transfer {
        let (segment, child) = (index / self.children, index % self.children);
        let child = self.tree.child(self.own, child, self.root.ranks()).unwrap_or(self.own);
        let after = if self.parent.is_some() { segment + 1 } else { 0 };
        Transfer::in_place(self.root.ahead(child), Span::of(segment), segment, after)
    }

    fn receives(&self) -> u32 {
        if self.parent.is_some() { self.segments } else { 0 }
    }

    fn receive(&self, tag: u32) -> Arrival {
        Arrival::receive(self.parent.unwrap_or(self.root.rank()), Span::of(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tree_has_every_rank_once() {
        let trees = [2, 3, 4, 8, 300].map(|radix| Tree::Knomial { radix });
        for tree in trees.into_iter().chain([Tree::Heap, Tree::InOrder, Tree::Chain]) {
            for ranks in 1..=if cfg!(miri) { 5 } else { 257 } {
                assert_eq!(tree.parent(0, ranks), None);
                let mut found = 1;
                for rank in 0..ranks {
                    for index in 0..tree.children(rank, ranks) {
                        let child = tree.child(rank, index, ranks).unwrap();
                        assert!(child < ranks);
                        assert_eq!(tree.parent(child, ranks), Some(rank), "{tree:?} of {ranks}: child {child}");
                        found += 1;
                    }
                    let mut above = rank;
                    for _ in 0..ranks {
                        above = tree.parent(above, ranks).unwrap_or(0);
                    }
                    assert_eq!(above, 0, "{tree:?} of {ranks}: rank {rank} does not hang on the root");
                }
                assert_eq!(found, ranks, "{tree:?}");
            }
        }
    }
}
