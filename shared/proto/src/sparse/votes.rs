//! Lists of block indices: what workers vote for, and what the aggregator merges them into.

use thiserror::Error;

use super::parameters::{INDEX_BYTES, MAX_BLOCKS_PER_MESSAGE, Parameters};

/// In the place of an index: there is no further one.
pub const SENTINEL: u32 = u32::MAX;

const MOST: usize = MAX_BLOCKS_PER_MESSAGE as usize;

/// The votes of a message or the result of merging them: up to d block indices, strictly ascending, with [`SENTINEL`]
/// behind the last. Its size depends neither on the number of workers nor on that of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Votes {
    /// Behind `len`, and behind `width`, sentinels.
    indices: [u32; MOST],
    /// d, 1 to 32.
    width: u8,
    len: u8,
}

/// Indices that are no votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VotesError {
    /// Too few or too many.
    #[error("{found} block indices in a message, which has {expected}: give all ranks the same blocks per message")]
    Count {
        /// Indices that came, at most one more than the expected ones.
        found: u32,
        /// d.
        expected: u32,
    },
    /// Not in ascending order, or one behind a sentinel.
    #[error(
        "block index {index} at place {place} of a message follows {before}: indices ascend, with {SENTINEL} behind \
         the last"
    )]
    Order {
        /// The index that is out of order.
        index: u32,
        /// Where it is.
        place: u32,
        /// What is before it.
        before: u32,
    },
    /// A block that the shard does not have.
    #[error("block index {index}, but the shard has {blocks} blocks: give all ranks the same array and parameters")]
    Beyond {
        /// The index.
        index: u32,
        /// Blocks of the shard.
        blocks: u32,
    },
    /// A block whose turn has been.
    #[error(
        "block index {index}, but the iteration under way is at {global} already: indices only ascend from message to \
         message"
    )]
    Behind {
        /// The index.
        index: u32,
        /// The last of the global indices.
        global: u32,
    },
    /// After a list that was not full no votes can be left.
    #[error(
        "block index {index} after a list of global indices that was not full: a worker votes for all that it has, so \
         that nothing is left"
    )]
    AfterEnd {
        /// The index.
        index: u32,
    },
}

impl Votes {
    /// Bytes of the longest list.
    pub const MAX_BYTES: usize = MOST * INDEX_BYTES as usize;

    /// No index of up to d.
    #[must_use]
    pub const fn empty(parameters: Parameters) -> Self {
        Self { indices: [SENTINEL; MOST], width: parameters.blocks_per_message() as u8, len: 0 }
    }

    /// The votes that a message holds.
    ///
    /// # Errors
    /// They are not d, or not in order.
    #[inline]
    pub fn read(parameters: Parameters, indices: impl IntoIterator<Item = u32>) -> Result<Self, VotesError> {
        let mut votes = Self::empty(parameters);
        let (mut place, mut before) = (0, None);
        for index in indices {
            if place == u32::from(votes.width) {
                return Err(VotesError::Count { found: place + 1, expected: place });
            }
            match before {
                Some(before) if index < SENTINEL && index <= before => {
                    return Err(VotesError::Order { index, place, before });
                }
                _ => before = Some(index),
            }
            if index < SENTINEL {
                votes.push(index);
            }
            place += 1;
        }
        if place < u32::from(votes.width) {
            return Err(VotesError::Count { found: place, expected: u32::from(votes.width) });
        }
        Ok(votes)
    }

    /// [`Votes::read`] from the little-endian bytes behind the blocks of a message.
    ///
    /// # Errors
    /// They are not d indices, or not in order.
    pub fn from_bytes(parameters: Parameters, bytes: &[u8]) -> Result<Self, VotesError> {
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            let expected = parameters.blocks_per_message();
            return Err(VotesError::Count { found: words.len() as u32, expected });
        }
        Self::read(parameters, words.iter().map(|word| u32::from_le_bytes(*word)))
    }

    /// The list as bytes, little-endian: those of a message are the first [`Parameters::index_bytes`].
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::MAX_BYTES] {
        let mut bytes = [0; Self::MAX_BYTES];
        for (to, index) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.indices) {
            *to = index.to_le_bytes();
        }
        bytes
    }

    /// The indices, without sentinels.
    #[must_use]
    #[inline]
    pub fn indices(&self) -> &[u32] {
        self.indices.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// All d places, with sentinels.
    #[must_use]
    #[inline]
    pub fn places(&self) -> &[u32] {
        self.indices.get(..usize::from(self.width)).unwrap_or(&[])
    }

    /// Number of indices.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> u32 {
        self.len as u32
    }

    /// Whether there is none: all places are sentinels.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no place is left.
    #[must_use]
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.len == self.width
    }

    /// Number of places, d.
    #[must_use]
    #[inline]
    pub const fn width(&self) -> u32 {
        self.width as u32
    }

    /// The largest index.
    #[must_use]
    #[inline]
    pub fn last(&self) -> Option<u32> {
        self.indices().last().copied()
    }

    /// Adds an index behind the last. Returns whether there was a place for it; it must be larger than the last.
    #[inline]
    pub(super) fn push(&mut self, index: u32) -> bool {
        debug_assert!(self.last().is_none_or(|last| last < index) && index != SENTINEL, "indices ascend");
        if self.is_full() {
            return false;
        }
        if let Some(place) = self.indices.get_mut(usize::from(self.len)) {
            *place = index;
            self.len += 1;
        }
        true
    }

    /// Takes all indices out.
    #[inline]
    pub(super) const fn clear(&mut self) {
        (self.indices, self.len) = ([SENTINEL; MOST], 0);
    }

    /// Takes the first `count` indices out.
    pub(super) fn drop_first(&mut self, count: u32) {
        let rest = Self { indices: [SENTINEL; MOST], len: 0, ..*self };
        let whole = core::mem::replace(self, rest);
        for index in whole.indices().iter().skip(count as usize) {
            self.push(*index);
        }
    }

    /// Takes in another list of the same width: what remains are the d smallest indices of both, each once. The order
    /// in which lists are taken in does not matter, nor does taking one in twice. One pass of d steps, with two
    /// comparisons each.
    #[inline]
    pub fn merge(&mut self, other: &Self) {
        let mut merged = [SENTINEL; MOST];
        let width = usize::from(self.width);
        if let Some(places) = merged.get_mut(..width) {
            self.len = merge_into(places, &self.indices, &other.indices, SENTINEL);
        }
        self.indices = merged;
    }

    /// Checks that a list can follow `global` in a shard of `blocks` blocks.
    ///
    /// # Errors
    /// An index is too large, or not behind those of `global`. Nothing follows a list that has indices and is not full.
    pub fn check_after(&self, global: &Self, blocks: u32) -> Result<(), VotesError> {
        let (Some(first), Some(last)) = (self.indices().first().copied(), self.last()) else { return Ok(()) };
        if last >= blocks {
            return Err(VotesError::Beyond { index: last, blocks });
        }
        match global.last() {
            Some(global) if first <= global => Err(VotesError::Behind { index: first, global }),
            Some(_) if !global.is_full() => Err(VotesError::AfterEnd { index: first }),
            _ => Ok(()),
        }
    }
}

/// Fills `merged` with the smallest items of two ascending lists that end in `end`, each once, and returns how many are
/// before `end`. As many steps as there are places: in each, whichever list has the smaller item goes on, or both.
#[inline]
fn merge_into<T: Copy + Ord>(merged: &mut [T], left: &[T], right: &[T], end: T) -> u8 {
    let (mut at_left, mut at_right, mut len) = (0, 0, 0);
    for place in merged {
        let (a, b) = (left.get(at_left).copied().unwrap_or(end), right.get(at_right).copied().unwrap_or(end));
        let order = a.cmp(&b);
        *place = if order.is_le() { a } else { b };
        if *place == end {
            break;
        }
        at_left += usize::from(order.is_le());
        at_right += usize::from(order.is_ge());
        len += 1;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::cmp::Ordering;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn parameters(width: u32) -> Parameters {
        Parameters::new(2, 256, width, 4).unwrap()
    }

    fn votes(width: u32, indices: impl IntoIterator<Item = u32>) -> Votes {
        let mut votes = Votes::empty(parameters(width));
        for index in indices.into_iter().take(width as usize) {
            votes.push(index);
        }
        votes
    }

    std::thread_local!(static COMPARISONS: Cell<u32> = const { Cell::new(0) });

    /// An index whose comparisons are counted.
    #[derive(Clone, Copy, Eq)]
    struct Counted(u32);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    /// At most two comparisons for each of the d places, whatever the lists; they depend on nothing else.
    #[test]
    fn merging_takes_two_comparisons_for_each_place() {
        for width in 1..=32 {
            for (step, offset) in [(1, 0), (1, 100), (2, 1), (3, 0), (7, 3)] {
                let left: Vec<Counted> = (0..width).map(|index| Counted(index * 2)).collect();
                let right: Vec<Counted> = (0..width).map(|index| Counted(index * step + offset)).collect();
                let mut merged = std::vec![Counted(SENTINEL); width as usize];
                COMPARISONS.set(0);
                let len = merge_into(&mut merged, &left, &right, Counted(SENTINEL));
                assert_eq!((u32::from(len), COMPARISONS.get()), (width, 2 * width));
            }
        }
        COMPARISONS.set(0);
        let empty = [Counted(SENTINEL); 32];
        assert_eq!(merge_into(&mut empty.clone(), &empty, &empty, Counted(SENTINEL)), 0);
        assert_eq!(COMPARISONS.get(), 2, "nothing to merge ends at the first place");
    }

    #[test]
    fn what_is_not_votes_is_refused() {
        let read = |indices: &[u32]| Votes::read(parameters(3), indices.iter().copied());
        let e = SENTINEL;
        for good in [[0, 1, 2], [5, 9, e], [7, e, e], [e, e, e], [0, 1, e - 1]] {
            let read = read(&good).unwrap();
            assert_eq!(read.places(), good);
            assert_eq!(read.len() as usize, good.iter().filter(|index| **index != e).count());
        }
        assert_eq!(read(&[1, 1, 2]), Err(VotesError::Order { index: 1, place: 1, before: 1 }));
        assert_eq!(read(&[1, 3, 2]), Err(VotesError::Order { index: 2, place: 2, before: 3 }));
        assert_eq!(read(&[1, e, 2]), Err(VotesError::Order { index: 2, place: 2, before: e }));
        assert_eq!(read(&[e, 0, e]), Err(VotesError::Order { index: 0, place: 1, before: e }));
        assert_eq!(read(&[1, 2]), Err(VotesError::Count { found: 2, expected: 3 }));
        assert_eq!(read(&[1, 2, e, e]), Err(VotesError::Count { found: 4, expected: 3 }));
        assert_eq!(Votes::from_bytes(parameters(3), &[0; 11]), Err(VotesError::Count { found: 2, expected: 3 }));
    }

    #[test]
    fn votes_only_ascend_from_message_to_message() {
        let check = |next: &[u32], global: &[u32]| {
            votes(2, next.iter().copied()).check_after(&votes(2, global.iter().copied()), 10)
        };
        assert_eq!(check(&[4, 9], &[1, 3]), Ok(()));
        assert_eq!(check(&[], &[1]), Ok(()));
        assert_eq!(check(&[0], &[]), Ok(()), "nothing before");
        assert_eq!(check(&[4, 10], &[1, 3]), Err(VotesError::Beyond { index: 10, blocks: 10 }));
        assert_eq!(check(&[3, 4], &[1, 3]), Err(VotesError::Behind { index: 3, global: 3 }));
        assert_eq!(check(&[5], &[3]), Err(VotesError::AfterEnd { index: 5 }));
    }

    proptest! {
        #[test]
        fn merging_keeps_the_smallest_of_all_once(
            width in 1u32..=32,
            lists in proptest::collection::vec(proptest::collection::btree_set(0u32..60, 0..40), 0..8),
        ) {
            let mut top = Votes::empty(parameters(width));
            let mut backwards = top;
            for list in &lists {
                top.merge(&votes(width, list.iter().copied()));
            }
            for list in lists.iter().rev().chain(&lists) {
                backwards.merge(&votes(width, list.iter().copied()));
            }
            let union: BTreeSet<u32> = lists.iter().flat_map(|list| list.iter().take(width as usize)).copied().collect();
            let smallest: Vec<u32> = union.into_iter().take(width as usize).collect();
            prop_assert_eq!(top.indices(), &smallest);
            prop_assert_eq!(top, backwards, "order and repetition do not matter");
            prop_assert_eq!(Votes::read(parameters(width), top.places().iter().copied()), Ok(top));
            let bytes = top.to_bytes();
            prop_assert_eq!(Votes::from_bytes(parameters(width), &bytes[..4 * width as usize]), Ok(top));
        }
    }
}
