//! Blocks that ranks are to copy from one another: a program learns of no more at a time than the receives at either
//! end hold.
//!
//! A program that computes takes no messages. What comes behind its last receive its card refuses, and the card of this
//! process tries again after the time that the refusal names, which is long compared with a copy; so it is with answers
//! that come all at once, when the program has computed. Further blocks therefore wait here, where each answer makes
//! room for one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flexcast_proto::service::{ContextId, Region};

use crate::links::{PeerId, RECEIVES};

/// Blocks that a program may owe an answer for. The other receives of a connection are for all other messages.
const MOST: usize = RECEIVES as usize * 3 / 4;

/// A block that a rank is to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) context: ContextId,
    /// Into whose receive buffer.
    pub(super) rank: u32,
    /// Whose block.
    pub(super) source: u32,
    /// Which rank has it.
    pub(super) holder: u32,
    pub(super) region: Region,
}

impl Offer {
    const fn name(&self) -> (ContextId, u32, u32) {
        (self.context, self.rank, self.source)
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// By collective, rank and source: those that the program has been sent and has not answered.
    unanswered: BTreeSet<(ContextId, u32, u32)>,
    waiting: VecDeque<Offer>,
}

/// Blocks to copy, by the connection to the program.
#[derive(Debug, Default)]
pub(super) struct Offers(BTreeMap<PeerId, Queue>);

impl Offers {
    /// Adds one for a program.
    pub(super) fn add(&mut self, to: PeerId, offer: Offer) {
        self.0.entry(to).or_default().waiting.push_back(offer);
    }

    /// A block is copied.
    pub(super) fn answered(&mut self, from: PeerId, context: ContextId, rank: u32, source: u32) {
        if let Some(queue) = self.0.get_mut(&from) {
            queue.unanswered.remove(&(context, rank, source));
        }
    }

    /// A rank's part in a collective is over: nothing of it is copied any more.
    pub(super) fn end(&mut self, of: PeerId, context: ContextId, rank: u32) {
        if let Some(queue) = self.0.get_mut(&of) {
            queue.unanswered.retain(|(of, by, _)| (*of, *by) != (context, rank));
            queue.waiting.retain(|offer| (offer.context, offer.rank) != (context, rank));
        }
    }

    /// A program is gone.
    pub(super) fn part_with(&mut self, peer: PeerId) {
        self.0.remove(&peer);
    }

    /// The next one that a program has room for.
    pub(super) fn next(&mut self, to: PeerId) -> Option<Offer> {
        let queue = self.0.get_mut(&to)?;
        if queue.unanswered.len() >= MOST {
            return None;
        }
        let offer = queue.waiting.pop_front()?;
        queue.unanswered.insert(offer.name());
        Some(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId::of_test(3);

    fn offer(collective: u32, source: u32) -> Offer {
        let context = ContextId { group: 1, collective };
        Offer { context, rank: 5, source, holder: 6, region: Region { address: 64, bytes: 8, key: 9 } }
    }

    fn sent(offers: &mut Offers) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| offers.next(PEER)).map(|offer| (offer.context.collective, offer.source)).collect()
    }

    #[test]
    fn a_program_is_sent_as_many_as_its_receives_hold_and_one_more_for_each_answer() {
        let mut offers = Offers::default();
        (0..40).for_each(|source| offers.add(PEER, offer(0, source)));
        assert_eq!(sent(&mut offers), (0..MOST as u32).map(|source| (0, source)).collect::<Vec<_>>());
        assert_eq!(sent(&mut offers), []);
        let context = offer(0, 0).context;
        offers.answered(PEER, context, 5, 2);
        // Twice, and for one that it has not been sent: no room for more.
        offers.answered(PEER, context, 5, 2);
        offers.answered(PEER, context, 5, 39);
        offers.answered(PEER, context, 4, 3);
        assert_eq!(sent(&mut offers), [(0, MOST as u32)]);
    }

    #[test]
    fn what_is_not_answered_holds_up_no_other_collective() {
        let mut offers = Offers::default();
        (0..40).for_each(|source| offers.add(PEER, offer(0, source)));
        (0..3).for_each(|source| offers.add(PEER, offer(1, source)));
        sent(&mut offers);
        offers.end(PEER, offer(0, 0).context, 5);
        assert_eq!(sent(&mut offers), [(1, 0), (1, 1), (1, 2)]);
        offers.part_with(PEER);
        assert_eq!(sent(&mut offers), []);
    }
}
