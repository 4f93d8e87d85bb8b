//! AllReduce by recursive doubling: in round k each rank exchanges all that it has summed with the rank at distance
//! 2^k. For small messages: ⌊log2 P⌋ rounds on a power of two, in each of which every rank sends N: log2 P·(α + Nβ).
//!
//! Otherwise there are r ranks more than the largest power of two. Of the first 2r ranks each even one gives its
//! contribution to the next and gets the sum from it in the end, as in MPICH; the others exchange. Two rounds more, and
//! 2rN bytes.
//!
//! Whoever exchanges has the sum of a run of ranks, and its partner that of the run next to it. The lower run is the
//! left operand on both, so that contributions are combined in the order of ranks, and everybody has the same bits.
//!
//! What is sent must not change while it is, so that each round's message has an area of its own, as long as the
//! message, where the sum of that round is made and sent from in the next. The last one is the result. One more, the
//! first, is for what is given before.

use super::blocks::Span;
use super::layout::Part;
use super::plan::{Arrival, Plan, Step, Transfer};
use super::reduction::{Reduction, Start};
use crate::ranks::RankInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReduceDoubling(pub(super) RankInfo);

/// What a rank does.
enum Role {
    /// Gives its contribution to the next rank.
    Gives,
    /// Exchanges, as this one of a power of two. `takes`: the contribution of the rank before it first.
    Exchanges { number: u32, takes: bool },
}

/// Rounds of exchanges.
const fn rounds(ranks: u32) -> u32 {
    ranks.ilog2()
}

/// Pairs of ranks, the first ones, of which only one exchanges.
const fn pairs(ranks: u32) -> u32 {
    ranks - (1 << rounds(ranks))
}

/// Areas of temporary memory.
pub(super) const fn areas(ranks: u32) -> u32 {
    rounds(ranks).saturating_sub(1) + if pairs(ranks) > 0 { 1 } else { 0 }
}

/// The whole message, which is one block.
const ALL: Span = Span::of(0);

impl ReduceDoubling {
    const fn rounds(self) -> u32 {
        rounds(self.0.ranks())
    }

    const fn role(self) -> Role {
        let (rank, pairs) = (self.0.rank(), pairs(self.0.ranks()));
        if rank >= 2 * pairs {
            return Role::Exchanges { number: rank - pairs, takes: false };
        }
        if rank % 2 == 0 { Role::Gives } else { Role::Exchanges { number: rank / 2, takes: true } }
    }

    /// The rank that exchanges as this one of a power of two, and whether it takes a contribution first.
    const fn at(self, number: u32) -> (u32, bool) {
        let pairs = pairs(self.0.ranks());
        if number < pairs { (2 * number + 1, true) } else { (number + pairs, false) }
    }

    /// Where a round's message comes to lie, and the sum of that round.
    const fn lands(self, round: u32) -> Part {
        if round + 1 == self.rounds() {
            return Part::receive(ALL);
        }
        let given = if pairs(self.0.ranks()) > 0 { 1 } else { 0 };
        Part::temporary(Span::of(given + round))
    }

    /// What a rank has before a round.
    const fn held(self, round: u32, takes: bool) -> Part {
        match round.checked_sub(1) {
            Some(before) => self.lands(before),
            None if takes => Part::temporary(ALL),
            None => Part::send(ALL),
        }
    }
}

impl Plan for ReduceDoubling {
    fn sends(&self) -> u32 {
        match self.role() {
            Role::Gives => 1,
            Role::Exchanges { takes, .. } => self.rounds() + u32::from(takes),
        }
    }

    fn send(&self, index: u32) -> Transfer {
        match self.role() {
            Role::Gives => {
                let target = Part::temporary(ALL);
                Transfer { to: self.0.right(), source: Part::send(ALL), target, tag: 0, after: 0 }
            }
            Role::Exchanges { number, takes } if index < self.rounds() => {
                let (to, other_takes) = self.at(number ^ 1 << index);
                let [tag, after] = [other_takes, takes].map(|takes| index + u32::from(takes));
                Transfer { to, source: self.held(index, takes), target: self.lands(index), tag, after }
            }
            Role::Exchanges { .. } => Transfer::in_place(self.0.left(), ALL, 0, self.receives()),
        }
    }

    fn receives(&self) -> u32 {
        self.sends()
    }

    fn receive(&self, tag: u32) -> Arrival {
        match self.role() {
            Role::Gives => Arrival::receive(self.0.right(), ALL),
            Role::Exchanges { takes: true, .. } if tag == 0 => {
                Arrival { from: self.0.left(), target: Part::temporary(ALL) }
            }
            Role::Exchanges { number, takes } => {
                let round = tag - u32::from(takes);
                Arrival { from: self.at(number ^ 1 << round).0, target: self.lands(round) }
            }
        }
    }

    fn reduction(&self, index: u32) -> Option<Step> {
        let Role::Exchanges { number, takes } = self.role() else { return None };
        if index >= self.receives() {
            return None;
        }
        let came = self.receive(index).target;
        let reduction = match index.checked_sub(u32::from(takes)) {
            None => Reduction { left: came, right: Part::send(ALL), to: came },
            Some(round) => {
                let held = self.held(round, takes);
                let is_lower = number >> round & 1 == 0;
                let (left, right) = if is_lower { (held, came) } else { (came, held) };
                Reduction { left, right, to: came }
            }
        };
        Some(Step { after: index + 1, reduction })
    }

    fn start(&self) -> Option<Start> {
        (self.0.ranks() == 1).then_some(Start { from: ALL, to: ALL })
    }
}
