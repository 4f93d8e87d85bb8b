//! Ring of a worker's blocks: 2d slots of registered memory that are sent from and received into.
//!
//! From the head on there are the blocks of the message under way, then the candidates, which the message votes for;
//! the rest of the ring receives sums. At most d blocks are sent, at most d are candidates, and at most d sums come.
//! The slots that receive sums overlap with those that were sent, and never with candidates: an aggregator answers only
//! what it has taken.

use core::ops::Range;

/// Consecutive slots of a ring, as at most two ranges: entries of a gather or scatter list. The indices of a message
/// take one entry more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots {
    first: u32,
    count: u32,
    ring: u32,
}

impl Slots {
    /// Slots of a ring of `ring` slots. The first is one of them, and there are not more than the ring has.
    #[inline]
    pub(super) const fn new(first: u32, count: u32, ring: u32) -> Self {
        Self { first, count, ring }
    }

    /// Number of slots.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> u32 {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The slots up to the end of the ring, and those from its beginning on. Either may be empty.
    #[must_use]
    #[inline]
    pub const fn ranges(&self) -> [Range<u32>; 2] {
        let end = self.first + self.count;
        if end <= self.ring { [self.first..end, 0..0] } else { [self.first..self.ring, 0..end - self.ring] }
    }

    /// The slot at a position; beyond the last it goes on round the ring.
    #[must_use]
    #[inline]
    pub const fn get(&self, position: u32) -> u32 {
        wrap(self.first + wrap(position, self.ring), self.ring)
    }

    /// The slots in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let [before, after] = self.ranges();
        before.chain(after)
    }

    /// `count` slots behind these.
    #[inline]
    pub(super) const fn followed_by(&self, count: u32) -> Self {
        Self { first: self.get(self.count), count, ring: self.ring }
    }
}

/// A number below twice the slots, as a slot. Slots are few, and firmware divides slowly.
const fn wrap(number: u32, ring: u32) -> u32 {
    if number >= ring { number - ring } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Every width, head and amount of sent blocks, candidates and sums.
    #[test]
    fn any_part_is_at_most_two_ranges_and_sums_never_meet_candidates() {
        for width in 1..=32 {
            let ring = 2 * width;
            for head in 0..ring {
                for sent in 0..=width {
                    // Candidates are at most d, sums too.
                    for (candidates, sums) in [(0, width), (width, width), (width / 2, width), (width, 1), (1, 0)] {
                        let sent = Slots::new(head, sent, ring);
                        let candidates = sent.followed_by(candidates);
                        let sums = candidates.followed_by(sums);
                        for slots in [sent, candidates, sums] {
                            let all: Vec<u32> = slots.iter().collect();
                            assert_eq!(all.len(), slots.len() as usize);
                            assert!(all.iter().all(|slot| *slot < ring));
                            assert!((0..slots.len()).map(|at| slots.get(at)).eq(all.iter().copied()));
                            let [before, after] = slots.ranges();
                            assert!(after.is_empty() || (before.end == ring && after.start == 0));
                        }
                        assert!(sums.iter().all(|slot| candidates.iter().all(|candidate| candidate != slot)));
                        assert!(sent.iter().all(|slot| candidates.iter().all(|candidate| candidate != slot)));
                    }
                }
            }
        }
    }
}
