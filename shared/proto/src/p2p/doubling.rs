//! Allgather by recursive doubling, for any number of ranks with N(P - 1) sent per rank.
//!
//! The ranks are halved again and again, the left half taking the odd one; then halves that are complete exchange what
//! they hold, from pairs upwards. For a power of two that is the well-known exchange with the rank at distance 2^k:
//! log2 P messages and peers.
//!
//! Otherwise some halves differ by one, b + 1 against b ranks, and the last of the left has no partner. The usual fold
//! (the odd ones give their block to somebody and get everything at the end) makes that somebody send nearly twice as
//! much. Here the odd rank and the b ranks of the right half exchange their *own* blocks directly, b each way, and the
//! pairs leave the odd rank's block out: every left rank sends b blocks and every right one b + 1, which is what they
//! receive. The price is messages: b for the odd rank of an exchange, one more for each of the right half.

use super::blocks::Span;
use super::plan::{Arrival, Plan, Transfer};
use super::reduction::Start;
use crate::ranks::RankInfo;

/// Halvings of [`crate::MAX_RANKS`] ranks.
const MAX_DEPTH: usize = 10;

/// Ranks `low..high`, whose left half ends at `middle`.
#[derive(Clone, Copy, Debug, Default)]
struct Exchange {
    low: u32,
    middle: u32,
    high: u32,
}

/// What a rank is in an exchange; `index` counts within its half.
enum Role {
    Left { index: u32 },
    Odd,
    Right { index: u32 },
}

impl Exchange {
    const fn right_size(self) -> u32 {
        self.high - self.middle
    }

    /// The last of a left half that has one more than the right.
    fn odd(self) -> Option<u32> {
        (self.middle - self.low > self.right_size()).then(|| self.middle - 1)
    }

    fn role(self, rank: u32) -> Role {
        match rank.checked_sub(self.middle) {
            Some(index) => Role::Right { index },
            None if self.odd() == Some(rank) => Role::Odd,
            None => Role::Left { index: rank - self.low },
        }
    }

    /// Messages that a rank sends, which are as many as it receives.
    fn messages(self, rank: u32) -> u32 {
        match self.role(rank) {
            Role::Left { .. } => 1,
            Role::Odd => self.right_size(),
            Role::Right { .. } => 1 + u32::from(self.odd().is_some()),
        }
    }

    /// Blocks of the left half that the pairs exchange.
    const fn left_blocks(self) -> Span {
        Span { first: self.low, count: self.right_size() }
    }

    const fn right_blocks(self) -> Span {
        Span { first: self.middle, count: self.right_size() }
    }

    /// Whom a rank's message number `index` goes to, with what, and the message's number among those that the receiver
    /// gets here.
    fn send(self, rank: u32, index: u32) -> (u32, Span, u32) {
        match self.role(rank) {
            Role::Left { index: pair } => (self.middle + pair, self.left_blocks(), 0),
            Role::Odd => (self.middle + index, Span::of(rank), 1),
            Role::Right { index: pair } if index == 0 => (self.low + pair, self.right_blocks(), 0),
            Role::Right { index: pair } => (self.middle - 1, Span::of(rank), pair),
        }
    }

    fn receive(self, rank: u32, index: u32) -> Arrival {
        match self.role(rank) {
            Role::Left { index: pair } => Arrival::receive(self.middle + pair, self.right_blocks()),
            Role::Odd => Arrival::receive(self.middle + index, Span::of(self.middle + index)),
            Role::Right { index: pair } if index == 0 => Arrival::receive(self.low + pair, self.left_blocks()),
            Role::Right { .. } => Arrival::receive(self.middle - 1, Span::of(self.middle - 1)),
        }
    }
}

/// The exchanges of a rank, from the whole down to its pair.
struct Exchanges {
    list: [Exchange; MAX_DEPTH],
    count: usize,
}

impl Exchanges {
    fn of(rank: u32, ranks: u32) -> Self {
        let mut this = Self { list: [Exchange::default(); MAX_DEPTH], count: 0 };
        let (mut low, mut high) = (0, ranks);
        while high - low > 1 && this.count < MAX_DEPTH {
            let middle = low + (high - low).div_ceil(2);
            this.list[this.count] = Exchange { low, middle, high };
            this.count += 1;
            if rank < middle { high = middle } else { low = middle }
        }
        this
    }

    /// Number of messages before the exchange of the whole range `low..high`, or of all.
    fn messages_below(&self, rank: u32, size: u32) -> u32 {
        let below = self.list[..self.count].iter().filter(|exchange| exchange.high - exchange.low < size);
        below.map(|exchange| exchange.messages(rank)).sum()
    }

    /// The exchange that a message belongs to, its number in it, and the number of messages before.
    fn find(&self, rank: u32, message: u32) -> (Exchange, u32, u32) {
        let mut before = 0;
        for exchange in self.list[..self.count].iter().rev() {
            let messages = exchange.messages(rank);
            if message - before < messages {
                return (*exchange, message - before, before);
            }
            before += messages;
        }
        (self.list[0], 0, before)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Doubling(pub(super) RankInfo);

impl Doubling {
    fn exchanges(self) -> Exchanges {
        Exchanges::of(self.0.rank(), self.0.ranks())
    }
}

impl Plan for Doubling {
    fn sends(&self) -> u32 {
        self.exchanges().messages_below(self.0.rank(), u32::MAX)
    }

    fn send(&self, index: u32) -> Transfer {
        let (exchange, index, after) = self.exchanges().find(self.0.rank(), index);
        let (to, blocks, tag) = exchange.send(self.0.rank(), index);
        let before = Exchanges::of(to, self.0.ranks()).messages_below(to, exchange.high - exchange.low);
        Transfer::in_place(to, blocks, before + tag, after)
    }

    fn receives(&self) -> u32 {
        self.sends()
    }

    fn receive(&self, tag: u32) -> Arrival {
        let (exchange, index, _) = self.exchanges().find(self.0.rank(), tag);
        exchange.receive(self.0.rank(), index)
    }

    fn start(&self) -> Option<Start> {
        Some(Start { from: Span::of(0), to: Span::of(self.0.rank()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn sends(rank: u32, ranks: u32) -> Vec<(u32, u32, u32)> {
        let plan = Doubling(RankInfo::new(rank, ranks).unwrap());
        (0..plan.sends()).map(|i| plan.send(i)).map(|t| (t.to, t.source.blocks.first, t.source.blocks.count)).collect()
    }

    #[test]
    fn powers_of_two_exchange_at_doubling_distances() {
        assert_eq!(sends(5, 8), [(4, 5, 1), (7, 4, 2), (1, 4, 4)]);
        for rank in (0..1024).step_by(if cfg!(miri) { 341 } else { 1 }) {
            let peers: Vec<u32> = sends(rank, 1024).iter().map(|send| send.0 ^ rank).collect();
            assert_eq!(peers, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        }
    }

    #[test]
    fn the_odd_rank_exchanges_own_blocks_with_the_other_half() {
        // Halves 0 1 2 and 3 4, where 2 is odd; the left one's are 0 1 and 2, where 1 is.
        assert_eq!(sends(0, 5), [(1, 0, 1), (2, 0, 1), (3, 0, 2)]);
        assert_eq!(sends(1, 5), [(0, 1, 1), (2, 1, 1), (4, 0, 2)]);
        assert_eq!(sends(2, 5), [(0, 2, 1), (1, 2, 1), (3, 2, 1), (4, 2, 1)]);
        assert_eq!(sends(3, 5), [(4, 3, 1), (0, 3, 2), (2, 3, 1)]);
        assert_eq!(sends(4, 5), [(3, 4, 1), (1, 3, 2), (2, 4, 1)]);
    }
}
