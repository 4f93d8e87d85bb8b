//! Gather and Scatter by direct messages, all at once: N of each other rank to the root, or from it. The root receives,
//! or sends, N(P - 1) in one step: α + N(P - 1)β, which no algorithm can do with fewer bytes.

use super::blocks::Span;
use super::layout::Part;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::Start;
use crate::ranks::RankInfo;

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// Gather.
    ToRoot,
    /// Scatter.
    FromRoot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rooted {
    pub(super) place: RankInfo,
    pub(super) root: RankInfo,
    pub(super) way: Way,
}

/// The whole buffer of a rank that is not the root, which is one block.
const ALL: Span = Span::of(0);

impl Rooted {
    fn is_root(self) -> bool {
        self.place == self.root
    }

    /// Messages at this rank, if they go this way.
    fn messages(self, way: Way) -> u32 {
        match (self.is_root(), self.way == way) {
            (true, true) => self.place.ranks() - 1,
            (false, false) => 1,
            _ => 0,
        }
    }
}

impl Plan for Rooted {
    fn sends(&self) -> u32 {
        self.messages(Way::FromRoot)
    }

    fn send(&self, index: u32) -> Transfer {
        if self.is_root() {
            let to = self.root.ahead(index + 1);
            return Transfer { to, source: Part::send(Span::of(to)), target: Part::receive(ALL), tag: 0, after: 0 };
        }
        let own = self.place.rank();
        let tag = self.place.behind(self.root.rank() + 1);
        let target = Part::receive(Span::of(own));
        Transfer { to: self.root.rank(), source: Part::send(ALL), target, tag, after: 0 }
    }

    fn receives(&self) -> u32 {
        self.messages(Way::ToRoot)
    }

    fn receive(&self, tag: u32) -> Arrival {
        if self.is_root() {
            let from = self.root.ahead(tag + 1);
            return Arrival::receive(from, Span::of(from));
        }
        Arrival::receive(self.root.rank(), ALL)
    }

    fn start(&self) -> Option<Start> {
        let own = Span::of(self.root.rank());
        self.is_root().then_some(match self.way {
            Way::ToRoot => Start { from: ALL, to: own },
            Way::FromRoot => Start { from: own, to: ALL },
        })
    }
}
