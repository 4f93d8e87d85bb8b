//! Poll scheduler: the hosts that have a reason to poll. All hosts poll all the time; those that would find what they
//! found last are not asked, so that a thousand ranks take as long as what happens to them.

use emu_machine::{MachineError, with_world};

/// Longest time between two polls of a rank: failures are reported by events that write no memory.
const LONGEST_PS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug)]
struct Poll {
    /// Writes of the card at the last poll; none if that found something, and may have left more.
    writes: Option<u64>,
    /// When to poll, whatever comes.
    by_ps: u64,
}

/// The last polls of all ranks.
#[derive(Debug)]
pub(super) struct Polls {
    ranks: Vec<Poll>,
    /// The card of each.
    cards: Vec<usize>,
    /// By card.
    writes: Vec<u64>,
}

impl Polls {
    /// Of ranks on these cards that have not polled.
    pub(super) fn new(cards: impl Iterator<Item = usize>) -> Self {
        let cards: Vec<usize> = cards.collect();
        Self { ranks: vec![Poll { writes: None, by_ps: 0 }; cards.len()], cards, writes: Vec::new() }
    }

    /// Takes note of what cards have written until now.
    pub(super) fn refresh(&mut self) -> Result<(), MachineError> {
        with_world(|world| {
            self.writes.clear();
            self.writes.extend(world.host.writes());
        })
    }

    fn now(&self, rank: usize) -> Option<u64> {
        self.writes.get(self.cards[rank]).copied()
    }

    /// Whether a rank has a reason to poll.
    pub(super) fn is_due(&self, rank: usize, now_ps: u64) -> bool {
        let Poll { writes, by_ps } = self.ranks[rank];
        by_ps <= now_ps || writes.is_none() || writes != self.now(rank)
    }

    /// Whether its card has written since a poll that found nothing.
    pub(super) fn has_news(&self, rank: usize) -> bool {
        let Poll { writes, .. } = self.ranks[rank];
        writes.is_some() && writes != self.now(rank)
    }

    /// A rank that was due has polled. `moved`: whether it did anything; `by_ps`: when it wants to poll again.
    pub(super) fn polled(&mut self, rank: usize, now_ps: u64, moved: bool, by_ps: Option<u64>) {
        let by_ps = by_ps.unwrap_or(u64::MAX).min(now_ps + LONGEST_PS);
        self.ranks[rank] = Poll { writes: if moved { None } else { self.now(rank) }, by_ps };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_polls_again_for_news_for_time_and_after_it_has_moved() {
        let mut polls = Polls { writes: vec![5, 7], ..Polls::new([0, 0, 1, 1].into_iter()) };
        assert!((0..4).all(|rank| polls.is_due(rank, 0)), "nobody has polled");
        (0..4).for_each(|rank| polls.polled(rank, 0, rank == 1, (rank == 2).then_some(300)));
        assert_eq!([0, 1, 2, 3].map(|rank| polls.is_due(rank, 299)), [false, true, false, false]);
        assert_eq!([0, 1, 2, 3].map(|rank| polls.is_due(rank, 300)), [false, true, true, false]);
        assert!((0..4).all(|rank| polls.is_due(rank, LONGEST_PS)));
        polls.writes[0] += 1;
        assert_eq!([0, 1, 2, 3].map(|rank| polls.is_due(rank, 1)), [true, true, false, false]);
    }
}
