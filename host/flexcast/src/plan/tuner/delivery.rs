//! Delivery of multicast: operations leave it where it does not arrive, and try it again later, on all ranks at the
//! same operation.
//!
//! After an operation by multicast each rank knows of which roots it has received less than half ([`Note::lost`]), and
//! each root whether it has sent its block at all ([`Note::withheld`]). These notes ride on the barrier of the next
//! operation by multicast. A rank that has passed that barrier has the notes of all ranks, so that all of them decide
//! alike.

use std::collections::BTreeMap;

use flexcast_proto::{RankInfo, RankSet};

use super::backoff::Backoff;
use crate::op::decision::LostMulticast;

/// Operations by multicast that are remembered, and how many of them must have lost most of a block before multicast is
/// left.
const REMEMBERED: u32 = 8;
const LOSSY: u32 = 3;

/// Observations of some ranks in an operation by multicast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// Roots of which a rank has received less than half of what they should have sent, and the lowest such rank.
    pub(crate) lost: BTreeMap<u32, u32>,
    /// Roots that have sent less than half, since all others had fetched it meanwhile: it is not lost.
    pub(crate) withheld: RankSet,
}

impl Note {
    /// Whether there is nothing to report.
    pub(crate) fn is_empty(&self) -> bool {
        self.lost.is_empty() && self.withheld.is_empty()
    }

    /// Adds the observations of other ranks.
    pub(crate) fn add(&mut self, other: &Self) {
        for (root, rank) in &other.lost {
            let known = self.lost.entry(*root).or_insert(*rank);
            *known = (*known).min(*rank);
        }
        self.withheld = self.withheld.or(&other.withheld);
    }

    /// The loss that it reports, if any.
    fn loss(&self) -> Option<LostMulticast> {
        let (root, rank) = self.lost.iter().find(|(root, _)| !self.withheld.contains(**root))?;
        Some(LostMulticast { root: *root, rank: *rank })
    }

    /// Its bytes among so many ranks, little-endian: the words of `withheld`, and root and rank of each loss, two bytes
    /// each. None if there is nothing to report.
    pub(crate) fn encode(&self, ranks: u32, to: &mut Vec<u8>) {
        if self.is_empty() {
            return;
        }
        let words = self.withheld.words().iter().copied().chain(std::iter::repeat(0)).take(words(ranks));
        words.for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
        for number in self.lost.iter().flat_map(|(root, rank)| [*root, *rank]) {
            to.extend_from_slice(&(number as u16).to_le_bytes());
        }
    }

    /// The note of such bytes; none if they are not one.
    pub(crate) fn decode(place: RankInfo, bytes: &[u8]) -> Option<Self> {
        let (withheld, lost) = bytes.split_at_checked(words(place.ranks()) * size_of::<u64>())?;
        let words = withheld.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let withheld = RankSet::from_words(words);
        let (pairs, []) = lost.as_chunks::<4>() else { return None };
        let pair = |[a, b, c, d]: &[u8; 4]| (u16::from_le_bytes([*a, *b]).into(), u16::from_le_bytes([*c, *d]).into());
        let lost: BTreeMap<u32, u32> = pairs.iter().map(pair).collect();
        let is_rank = |rank: u32| rank < place.ranks();
        let are_ranks =
            lost.iter().all(|(root, rank)| is_rank(*root) && is_rank(*rank)) && withheld.iter().all(is_rank);
        (are_ranks && lost.len() == pairs.len()).then_some(Self { lost, withheld })
    }
}

/// Words of a set among so many ranks.
fn words(ranks: u32) -> usize {
    ranks.div_ceil(u64::BITS) as usize
}

/// Whether multicast is used, as a function of what all ranks know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivery {
    /// Whether each of the last operations by multicast was lossy, the last in the lowest bit.
    recent: u8,
    backoff: Backoff,
    /// The loss for which multicast was left last.
    loss: Option<LostMulticast>,
    /// The last operation by multicast.
    last: Option<u32>,
}

// A bit for each operation that is remembered.
const _: () = assert!(REMEMBERED == u8::BITS);

impl Delivery {
    /// Why an operation has to do without multicast; none if it need not.
    pub(crate) fn avoids(&self, operation: u32) -> Option<LostMulticast> {
        self.loss.filter(|_| self.backoff.avoids(operation))
    }

    /// An operation by multicast begins. Whether the observations of the last one still count: not if multicast has
    /// been left since.
    pub(crate) fn begin(&mut self, operation: u32) -> bool {
        let last = self.last.replace(operation);
        last.is_some_and(|last| self.avoids(last.wrapping_add(1)).is_none())
    }

    /// The barrier of an operation by multicast is passed: all ranks know this of the one before. The loss for which
    /// multicast is left now.
    pub(crate) fn passed(&mut self, operation: u32, note: &Note) -> Option<LostMulticast> {
        let loss = note.loss();
        self.recent = self.recent << 1 | u8::from(loss.is_some());
        let Some(loss) = loss else {
            self.backoff.went_well(operation);
            return None;
        };
        // One is enough where it was left not long ago.
        if self.recent.count_ones() < LOSSY && !self.backoff.is_active() {
            return None;
        }
        self.recent = 0;
        self.backoff.stalled(operation);
        self.loss = Some(loss);
        Some(loss)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(rank: u32, ranks: u32) -> RankInfo {
        RankInfo::new(rank, ranks).unwrap()
    }

    fn lost(root: u32, rank: u32) -> Note {
        Note { lost: BTreeMap::from([(root, rank)]), withheld: RankSet::EMPTY }
    }

    fn bytes(note: &Note, ranks: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        note.encode(ranks, &mut bytes);
        bytes
    }

    #[test]
    fn multicast_is_left_after_three_lossy_operations_of_eight_and_tried_again_after_64() {
        let mut delivery = Delivery::default();
        let expected = LostMulticast { root: 2, rank: 5 };
        let mut operation = 1;
        for (note, left) in
            [(lost(2, 5), None), (Note::default(), None), (lost(2, 5), None), (lost(2, 5), Some(expected))]
        {
            assert_eq!(delivery.avoids(operation), None);
            delivery.begin(operation);
            assert_eq!(delivery.passed(operation, &note), left, "operation {operation}");
            operation += 1;
        }
        assert!((operation..operation + 64).all(|operation| delivery.avoids(operation) == Some(expected)));
        operation += 64;
        assert_eq!(delivery.avoids(operation), None, "tried again");
        // What the last operation before had lost does not count; one lossy operation does.
        assert!(!delivery.begin(operation));
        assert_eq!(delivery.passed(operation, &Note::default()), None);
        assert!(delivery.begin(operation + 1));
        assert_eq!(delivery.passed(operation + 1, &lost(2, 5)), Some(expected));
        assert!((2..130).all(|later| delivery.avoids(operation + later).is_some()));
        assert!(delivery.avoids(operation + 130).is_none(), "twice as long");
    }

    #[test]
    fn losses_that_are_rare_and_blocks_that_were_not_sent_change_nothing() {
        let mut delivery = Delivery::default();
        for operation in 1..100 {
            let note = if operation % 4 == 0 { lost(1, 0) } else { Note::default() };
            assert!(delivery.begin(operation) || operation == 1);
            assert_eq!(delivery.passed(operation, &note), None);
            let mut note = lost(3, 1);
            note.add(&Note { withheld: RankSet::of(3), ..Note::default() });
            assert_eq!(note.loss(), None);
        }
    }

    #[test]
    fn the_first_root_that_has_sent_its_block_is_named_with_who_lacks_it() {
        let mut note = lost(0, 1);
        note.add(&lost(1, 2));
        note.add(&lost(1, 4));
        assert_eq!(note.loss(), Some(LostMulticast { root: 0, rank: 1 }));
        note.add(&Note { withheld: RankSet::of(0), ..Note::default() });
        assert_eq!(note.loss(), Some(LostMulticast { root: 1, rank: 2 }));
    }

    #[test]
    fn bytes_that_are_no_note_are_refused() {
        let note = lost(2, 1);
        let whole = bytes(&note, 3);
        assert_eq!(whole, [0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0]);
        assert_eq!(Note::decode(place(0, 3), &whole), Some(note));
        assert_eq!(Note::decode(place(0, 3), &whole[..11]), None);
        assert_eq!(Note::decode(place(0, 3), &whole[..7]), None);
        assert_eq!(Note::decode(place(0, 3), &[&whole[..], &[0]].concat()), None);
        assert_eq!(Note::decode(place(0, 3), &[&whole[..], &whole[8..]].concat()), None, "a root twice");
        assert_eq!(Note::decode(place(0, 2), &whole), None, "there is no rank 2");
        assert!(bytes(&Note::default(), 3).is_empty());
    }

    proptest! {
        #[test]
        fn notes_are_read_as_they_were_written_and_add_up_in_any_order(
            ranks in 1u32..=1024, lost: [[u16; 2]; 3], more: [[u16; 2]; 2], withheld: [u16; 2],
        ) {
            let pairs = |pairs: &[[u16; 2]]| {
                let of = |pair: &[u16; 2]| pair.map(|rank| u32::from(rank) % ranks).into();
                pairs.iter().map(of).collect()
            };
            let withheld = withheld.iter().map(|rank| u32::from(*rank) % ranks).collect();
            let one = Note { lost: pairs(&lost), withheld };
            let other = Note { lost: pairs(&more), withheld: RankSet::EMPTY };
            prop_assert_eq!(Note::decode(place(0, ranks), &bytes(&one, ranks)), Some(one.clone()));
            let (mut left, mut right) = (one.clone(), other.clone());
            left.add(&other);
            right.add(&one);
            prop_assert_eq!(left, right);
        }
    }
}
