//! Ranks of a communicator: who I am, who is next to me on the ring, and sets of ranks.

use core::ops::Range;

use thiserror::Error;

/// Most ranks of a communicator: sets of ranks are fixed arrays, so that no machine of this crate allocates.
pub const MAX_RANKS: u32 = 1024;
const WORDS: usize = MAX_RANKS as usize / 64;

/// A rank's place in its communicator. The ring goes by rank: left is one less, right one more, modulo the number of
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankInfo {
    rank: u32,
    ranks: u32,
}

/// No such place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RankError {
    /// Too few or too many ranks.
    #[error("{ranks} ranks: a communicator has 1 to {MAX_RANKS}")]
    Ranks {
        /// What was given.
        ranks: u32,
    },
    /// A rank that the communicator does not have.
    #[error("rank {rank} of {ranks}: ranks run from 0 to {last}", last = ranks - 1)]
    Rank {
        /// What was given.
        rank: u32,
        /// Ranks of the communicator.
        ranks: u32,
    },
}

impl RankInfo {
    /// Rank `rank` of `ranks`.
    ///
    /// # Errors
    /// No ranks, more than [`MAX_RANKS`], or a rank beyond the last.
    pub const fn new(rank: u32, ranks: u32) -> Result<Self, RankError> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(RankError::Ranks { ranks });
        }
        if rank >= ranks {
            return Err(RankError::Rank { rank, ranks });
        }
        Ok(Self { rank, ranks })
    }

    /// The own rank.
    #[must_use]
    pub const fn rank(self) -> u32 {
        self.rank
    }

    /// Ranks of the communicator.
    #[must_use]
    pub const fn ranks(self) -> u32 {
        self.ranks
    }

    /// The rank `distance` ahead on the ring.
    #[must_use]
    pub const fn ahead(self, distance: u32) -> u32 {
        // There is at least one rank, which firmware, whose handlers must not reach a panic, cannot prove.
        let Some(over) = (self.rank as u64 + distance as u64).checked_rem(self.ranks as u64) else { return self.rank };
        over as u32
    }

    /// The rank `distance` behind on the ring.
    #[must_use]
    pub const fn behind(self, distance: u32) -> u32 {
        let Some(distance) = distance.checked_rem(self.ranks) else { return self.rank };
        if distance <= self.rank { self.rank - distance } else { self.rank + self.ranks - distance }
    }

    /// The neighbour that serves this rank's fetches.
    #[must_use]
    pub const fn left(self) -> u32 {
        self.behind(1)
    }

    /// The neighbour whose fetches this rank serves.
    #[must_use]
    pub const fn right(self) -> u32 {
        self.ahead(1)
    }

    /// Names the ranks with which this one has a connection for control messages, some more than once: its neighbours
    /// on the ring and its partners in the barrier, on either side at distances that are powers of two.
    pub fn for_each_connected(self, mut visit: impl FnMut(u32)) {
        let mut distance = 1;
        while distance < self.ranks {
            visit(self.ahead(distance));
            visit(self.behind(distance));
            distance *= 2;
        }
    }
}

/// A set of ranks below [`MAX_RANKS`].
#[derive(Clone, Copy, Eq)]
pub struct RankSet {
    words: [u64; WORDS],
    /// How many bits are set: most sets are empty most of the time, and firmware asks often.
    len: u32,
}

impl RankSet {
    /// No rank.
    pub const EMPTY: Self = Self { words: [0; WORDS], len: 0 };

    /// The set of these words.
    #[inline]
    pub(crate) fn of_words(words: [u64; WORDS]) -> Self {
        let len = words.iter().map(|word| word.count_ones()).sum();
        Self { words, len }
    }

    /// Takes all ranks out.
    pub fn clear(&mut self) {
        if self.len > 0 {
            *self = Self::EMPTY;
        }
    }

    /// The ranks below `ranks`.
    #[must_use]
    pub fn below(ranks: u32) -> Self {
        let ranks = ranks.min(MAX_RANKS);
        let mut set = Self { len: ranks, ..Self::EMPTY };
        for (word, first) in set.words.iter_mut().zip((0..ranks).step_by(64)) {
            *word = u64::MAX >> 64u32.saturating_sub(ranks - first);
        }
        set
    }

    /// One rank; none if it is too large.
    #[must_use]
    pub fn of(rank: u32) -> Self {
        let mut set = Self::EMPTY;
        set.insert(rank);
        set
    }

    /// The set as words, the lowest ranks first, without the zero words at the end.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        let used = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        &self.words[..used]
    }

    /// The set of such words; what is beyond [`MAX_RANKS`] is left out.
    #[must_use]
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        let mut set = Self::EMPTY;
        for (to, word) in set.words.iter_mut().zip(words) {
            *to = word;
            set.len += word.count_ones();
        }
        set
    }

    /// Adds a rank. Returns whether it is new; false for one that is too large.
    pub fn insert(&mut self, rank: u32) -> bool {
        let Some(word) = self.words.get_mut(rank as usize / 64) else { return false };
        let new = *word >> (rank % 64) & 1 == 0;
        *word |= 1 << (rank % 64);
        self.len += u32::from(new);
        new
    }

    /// Takes a rank out. Returns whether it was there.
    pub fn remove(&mut self, rank: u32) -> bool {
        let Some(word) = self.words.get_mut(rank as usize / 64) else { return false };
        let there = *word >> (rank % 64) & 1 == 1;
        *word &= !(1 << (rank % 64));
        self.len -= u32::from(there);
        there
    }

    /// Adds the ranks of a range, but for those that are too large.
    pub fn insert_range(&mut self, range: Range<u32>) {
        self.change(range, |word, mask| word | mask);
    }

    /// Takes the ranks of a range out.
    pub fn remove_range(&mut self, range: Range<u32>) {
        self.change(range, |word, mask| word & !mask);
    }

    /// Changes the words that hold ranks of a range; others are not touched. `to`: what becomes of a word, with the
    /// bits of the range in it.
    fn change(&mut self, range: Range<u32>, to: impl Fn(u64, u64) -> u64) {
        let (mut at, end) = (range.start, range.end.min(MAX_RANKS));
        while at < end
            && let Some(word) = self.words.get_mut(at as usize / 64)
        {
            let last = (at | 63).min(end - 1);
            let mask = u64::MAX >> (63 - (last - at)) << (at % 64);
            self.len -= word.count_ones();
            *word = to(*word, mask);
            self.len += word.count_ones();
            at = last + 1;
        }
    }

    /// Adds the ranks that both others have, in place: firmware pays for every set that it builds.
    pub fn insert_common(&mut self, one: &Self, other: &Self) {
        for (word, (one, other)) in self.words.iter_mut().zip(one.words.iter().zip(&other.words)) {
            let new = one & other & !*word;
            if new != 0 {
                *word |= new;
                self.len += new.count_ones();
            }
        }
    }

    /// Takes out the ranks that another set has, in place.
    pub fn remove_all(&mut self, other: &Self) {
        if self.len == 0 {
            return;
        }
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            let old = *word & other;
            if old != 0 {
                *word &= !old;
                self.len -= old.count_ones();
            }
        }
    }

    /// Ranks that none of the others has.
    #[must_use]
    pub fn without_all<const N: usize>(&self, others: [&Self; N]) -> Self {
        Self::of_words(core::array::from_fn(|index| {
            others.iter().fold(self.words[index], |word, other| word & !other.words[index])
        }))
    }

    /// The smallest rank that the other set lacks.
    #[must_use]
    pub fn first_beyond(&self, other: &Self) -> Option<u32> {
        self.first_of(other, |word, other| word & !other)
    }

    /// The smallest rank that both sets have.
    #[must_use]
    pub fn first_common(&self, other: &Self) -> Option<u32> {
        if self.len == 0 || other.len == 0 { None } else { self.first_of(other, |word, other| word & other) }
    }

    fn first_of(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Option<u32> {
        let mut words = (0..).zip(self.words.iter().zip(&other.words));
        let (index, found) = words.find_map(|(index, (word, other))| {
            let found = of(*word, *other);
            (found != 0).then_some((index, found))
        })?;
        Some(index * 64 + found.trailing_zeros())
    }

    /// Whether a rank is in the set.
    #[must_use]
    pub fn contains(&self, rank: u32) -> bool {
        self.words.get(rank as usize / 64).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// Number of ranks.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The smallest rank.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        if self.is_empty() { None } else { self.iter().next() }
    }

    /// How many ranks of the set are smaller than this one, if it is in the set.
    #[must_use]
    pub fn position(&self, rank: u32) -> Option<u32> {
        self.contains(rank).then(|| {
            let (word, bit) = (rank as usize / 64, rank % 64);
            let before: u32 = self.words[..word].iter().map(|word| word.count_ones()).sum();
            before + (self.words[word] & ((1 << bit) - 1)).count_ones()
        })
    }

    /// The rank that has this position.
    #[must_use]
    pub fn nth(&self, position: u32) -> Option<u32> {
        self.iter().nth(position as usize)
    }

    /// The ranks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            core::iter::successors((word != 0).then_some(word), |left| {
                let left = left & (left - 1);
                (left != 0).then_some(left)
            })
            .map(move |left| index as u32 * 64 + left.trailing_zeros())
        })
    }

    /// Ranks in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::of_words(core::array::from_fn(|word| self.words[word] & other.words[word]))
    }

    /// Ranks in either set.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self::of_words(core::array::from_fn(|word| self.words[word] | other.words[word]))
    }

    /// Ranks that the other set lacks.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self::of_words(core::array::from_fn(|word| self.words[word] & !other.words[word]))
    }
}

/// Word by word: the derived comparison of arrays is a call of `memcmp`, which goes byte by byte in firmware.
impl PartialEq for RankSet {
    fn eq(&self, other: &Self) -> bool {
        let differs = |(word, other): (&u64, &u64)| word ^ other;
        self.len == other.len && self.words.iter().zip(&other.words).map(differs).fold(0, |all, word| all | word) == 0
    }
}

impl core::hash::Hash for RankSet {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.words.hash(state);
    }
}

impl Default for RankSet {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl FromIterator<u32> for RankSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut set = Self::EMPTY;
        for rank in ranks {
            set.insert(rank);
        }
        set
    }
}

impl core::fmt::Debug for RankSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::string::ToString as _;

    #[test]
    fn neighbours_on_the_ring() {
        let place = RankInfo::new(0, 5).unwrap();
        assert_eq!((place.left(), place.right(), place.ahead(7), place.behind(7)), (4, 1, 2, 3));
        let alone = RankInfo::new(0, 1).unwrap();
        assert_eq!((alone.left(), alone.right()), (0, 0));
        assert_eq!(RankInfo::new(0, 0), Err(RankError::Ranks { ranks: 0 }));
        assert_eq!(RankInfo::new(0, 1025), Err(RankError::Ranks { ranks: 1025 }));
        assert_eq!(RankInfo::new(3, 3).unwrap_err().to_string(), "rank 3 of 3: ranks run from 0 to 2");
    }

    #[test]
    fn what_is_too_large_is_not_in_a_set() {
        let mut set = RankSet::of(MAX_RANKS);
        assert!(set.is_empty() && !set.insert(u32::MAX) && !set.contains(MAX_RANKS) && !set.remove(MAX_RANKS));
        assert_eq!(RankSet::below(u32::MAX).len(), MAX_RANKS);
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(a in proptest::collection::btree_set(0u32..MAX_RANKS, 0..60),
                             b in proptest::collection::btree_set(0u32..MAX_RANKS, 0..60)) {
            let (x, y): (RankSet, RankSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(x.iter().collect::<BTreeSet<_>>(), a.clone());
            prop_assert!(x.iter().is_sorted());
            prop_assert_eq!((x.len() as usize, x.first()), (a.len(), a.first().copied()));
            for (position, &rank) in a.iter().enumerate() {
                prop_assert_eq!((x.position(rank), x.nth(position as u32)), (Some(position as u32), Some(rank)));
            }
            prop_assert_eq!(x.nth(x.len()), None);
            prop_assert!(b.iter().all(|rank| x.position(*rank).is_some() == a.contains(rank)));
            prop_assert_eq!(x.and(&y).iter().collect::<BTreeSet<_>>(), &a & &b);
            prop_assert_eq!(x.or(&y).iter().collect::<BTreeSet<_>>(), &a | &b);
            prop_assert_eq!(x.without(&y).iter().collect::<BTreeSet<_>>(), &a - &b);
            prop_assert_eq!(RankSet::from_words(x.words().iter().copied()), x);
            prop_assert_eq!(x.words().len(), a.last().map_or(0, |last| *last as usize / 64 + 1));
            prop_assert_eq!(x.without_all([&y, &RankSet::of(7)]), x.without(&y).without(&RankSet::of(7)));
            prop_assert_eq!(x.first_beyond(&y), (&a - &b).first().copied());
            prop_assert_eq!(x.first_common(&y), (&a & &b).first().copied());
            let (mut less, mut more) = (x, RankSet::of(3));
            less.remove_all(&y);
            more.insert_common(&x, &y);
            prop_assert_eq!((less, more), (x.without(&y), RankSet::of(3).or(&x.and(&y))));
            let mut rest = x;
            for rank in &b {
                prop_assert_eq!(rest.remove(*rank), a.contains(rank));
            }
            prop_assert_eq!(rest, x.without(&y));
        }

        #[test]
        fn ranges_are_their_ranks(
            a in proptest::collection::btree_set(0u32..MAX_RANKS, 0..60), first in 0u32..1100, count in 0u32..300,
        ) {
            let set: RankSet = a.iter().copied().collect();
            let range: BTreeSet<u32> = (first..first + count).filter(|rank| *rank < MAX_RANKS).collect();
            let (mut more, mut less) = (set, set);
            more.insert_range(first..first + count);
            less.remove_range(first..first + count);
            prop_assert_eq!(more, (&a | &range).into_iter().collect());
            prop_assert_eq!(less, (&a - &range).into_iter().collect());
        }
    }
}
