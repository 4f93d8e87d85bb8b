//! Delivery of multicast: operations leave it where it does not arrive, and try it again later, on all ranks at the same operation.
//!
//! After an operation by multicast each rank knows of which roots it has received less than half ([`Note::lost`]), and each root whether it has
//! sent its block at all ([`Note::withheld`]). These notes ride on the barrier of the next operation by multicast. A rank that has passed that
//! barrier has the notes of all ranks, so that all of them decide alike.

use flexcast_proto::{RankInfo, RankSet};

use super::backoff::Backoff;

/// Operations by multicast that are remembered, and how many of them must have lost most of a block before multicast is left.
const REMEMBERED: u32 = 8;
const LOSSY: u32 = 3;
const WORD_BYTES: usize = size_of::<u64>();

/// Multicast that does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LostMulticast {
    /// The rank whose multicast is lost; the lowest of several.
    pub root: u32,
    /// The rank that has not received it; the lowest of several.
    pub rank: u32,
}

/// Observations of some ranks in an operation by multicast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// Roots of which a rank has received less than half of what they should have sent.
    pub(crate) lost: RankSet,
    /// The lowest rank that has lost the first of them.
    pub(crate) by: u32,
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
        let first = |note: &Self| (note.lost.first().unwrap_or(u32::MAX), note.by);
        self.by = first(self).min(first(other)).1;
        self.lost = self.lost.or(&other.lost);
        self.withheld = self.withheld.or(&other.withheld);
    }

    /// The loss that it reports, if any.
    fn loss(&self) -> Option<LostMulticast> {
        let root = self.lost.iter().find(|root| !self.withheld.contains(*root))?;
        Some(LostMulticast { root, rank: self.by })
    }

    /// Its bytes among so many ranks, little-endian: `by`, and the words of both sets. None if there is nothing to report.
    pub(crate) fn encode(&self, ranks: u32, to: &mut Vec<u8>) {
        if self.is_empty() {
            return;
        }
        to.extend_from_slice(&self.by.to_le_bytes());
        for set in [&self.lost, &self.withheld] {
            let words = set.words().iter().copied().chain(std::iter::repeat(0)).take(words(ranks));
            words.for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
        }
    }

    /// The note of such bytes; none if they are not one.
    pub(crate) fn decode(place: RankInfo, bytes: &[u8]) -> Option<Self> {
        let (by, sets) = bytes.split_first_chunk()?;
        let by = u32::from_le_bytes(*by);
        let (lost, withheld) = sets.split_at_checked(words(place.ranks()) * WORD_BYTES)?;
        let set = |bytes: &[u8]| {
            let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
            let set = RankSet::from_words(words.iter().map(|word| u64::from_le_bytes(*word)));
            let is_one = rest.is_empty() && set.iter().all(|rank| rank < place.ranks());
            is_one.then_some(set)
        };
        let is_whole = by < place.ranks() && lost.len() == withheld.len();
        let note = Self { lost: set(lost)?, by, withheld: set(withheld)? };
        is_whole.then_some(note)
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

    /// An operation by multicast begins. Whether the observations of the last one still count: not if multicast has been left since.
    pub(crate) fn begin(&mut self, operation: u32) -> bool {
        let last = self.last.replace(operation);
        last.is_some_and(|last| self.avoids(last.wrapping_add(1)).is_none())
    }

    /// The barrier of an operation by multicast is passed: all ranks know this of the one before. The loss for which multicast is left now.
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

    fn lost(root: u32, by: u32) -> Note {
        Note { lost: RankSet::of(root), by, withheld: RankSet::EMPTY }
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
    fn bytes_that_are_no_note_are_refused() {
        let note = lost(2, 1);
        let whole = bytes(&note, 3);
        assert_eq!(whole.len(), 20);
        assert_eq!(Note::decode(place(0, 3), &whole), Some(note));
        assert_eq!(Note::decode(place(0, 3), &whole[..19]), None);
        assert_eq!(Note::decode(place(0, 3), &[&whole[..], &[0]].concat()), None);
        assert_eq!(Note::decode(place(0, 2), &whole), None, "there is no rank 2");
        assert_eq!(Note::decode(place(0, 3), &[]), None);
        assert!(bytes(&Note::default(), 3).is_empty());
    }

    proptest! {
        #[test]
        fn notes_are_read_as_they_were_written_and_add_up_in_any_order(
            ranks in 1u32..=1024, lost: [u16; 3], by: u16, withheld: [u16; 2],
        ) {
            let set = |ranks_of: &[u16]| ranks_of.iter().map(|rank| u32::from(*rank) % ranks).collect::<RankSet>();
            let one = Note { lost: set(&lost), by: u32::from(by) % ranks, withheld: set(&withheld) };
            let other = Note { lost: RankSet::of(ranks - 1), by: 0, withheld: RankSet::EMPTY };
            prop_assert_eq!(Note::decode(place(0, ranks), &bytes(&one, ranks)), Some(one));
            let (mut left, mut right) = (one, other);
            left.add(&other);
            right.add(&one);
            prop_assert_eq!(left, right);
            // Whoever has lost the first one is named.
            let is_own = one.lost.first() < Some(ranks - 1);
            prop_assert_eq!(left.by, if is_own { one.by } else { 0 });
        }
    }
}
