//! One bit per chunk. A bit goes from 0 to 1 once per operation; only that counts.

/// Bitmap over borrowed 64-bit words, least significant bit first. Knows how many of its bits are still clear.
#[derive(Debug)]
pub struct Bitmap<'a> {
    words: &'a mut [u64],
    bits: u64,
    clear: u64,
}

/// What marking a chunk did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The bit was clear and is set now.
    First,
    /// The bit was set already.
    Duplicate,
    /// There is no such bit; nothing changed.
    OutOfRange,
}

/// A run of missing chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First missing chunk.
    pub first: u64,
    /// Number of missing chunks, at least 1.
    pub count: u64,
}

/// Words that `bits` bits need.
#[must_use]
pub const fn words_for(bits: u64) -> u64 {
    bits.div_ceil(64)
}

impl<'a> Bitmap<'a> {
    /// A bitmap of `bits` clear bits in `words`, which are zeroed; none if they are too few.
    pub fn cleared(words: &'a mut [u64], bits: u64) -> Option<Self> {
        words.fill(0);
        Self::adopt(words, bits)
    }

    /// A bitmap of `bits` bits over words that hold marks already; none if they are too few.
    pub fn adopt(words: &'a mut [u64], bits: u64) -> Option<Self> {
        if words_for(bits) > words.len() as u64 {
            return None;
        }
        let mut bitmap = Self { words, bits, clear: 0 };
        bitmap.clear = bitmap.missing().map(|run| run.count).sum();
        Some(bitmap)
    }

    /// Number of bits.
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.bits
    }

    /// Bits still clear.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.clear
    }

    /// Whether bit `index` is set; false beyond the end.
    #[must_use]
    pub fn is_set(&self, index: u64) -> bool {
        index < self.bits && self.word(index >> 6) >> (index & 63) & 1 == 1
    }

    /// Sets bit `index`. The number of remaining bits falls only on [`Mark::First`].
    pub fn mark(&mut self, index: u64) -> Mark {
        if index >= self.bits {
            return Mark::OutOfRange;
        }
        let Some(word) = self.words.get_mut((index >> 6) as usize) else { return Mark::OutOfRange };
        let marked = *word | 1 << (index & 63);
        if marked == *word {
            return Mark::Duplicate;
        }
        *word = marked;
        self.clear -= 1;
        Mark::First
    }

    /// The runs of clear bits in ascending order, adjacent ones merged; at most ⌈bits/64⌉ word loads per full pass over
    /// set words.
    pub fn missing(&self) -> impl Iterator<Item = Run> + '_ {
        let mut at = 0;
        core::iter::from_fn(move || {
            let first = self.next(at, false);
            if first >= self.bits {
                return None;
            }
            at = self.next(first, true).min(self.bits);
            Some(Run { first, count: at - first })
        })
    }

    fn word(&self, index: u64) -> u64 {
        self.words.get(index as usize).copied().unwrap_or(0)
    }

    /// First bit at or after `from` whose value is `set`; at least `bits` if there is none.
    fn next(&self, from: u64, set: bool) -> u64 {
        let mut index = from;
        while index < self.bits {
            let word = self.word(index >> 6);
            let wanted = if set { word } else { !word } >> (index & 63);
            if wanted != 0 {
                return index + u64::from(wanted.trailing_zeros());
            }
            index = (index | 63) + 1;
        }
        self.bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn duplicates_never_complete_early() {
        let mut words = [u64::MAX; 2];
        let mut bitmap = Bitmap::cleared(&mut words, 65).unwrap();
        assert_eq!(bitmap.mark(64), Mark::First);
        for _ in 0..100 {
            assert_eq!(bitmap.mark(64), Mark::Duplicate);
        }
        assert_eq!(bitmap.mark(65), Mark::OutOfRange);
        assert_eq!(bitmap.mark(u64::MAX), Mark::OutOfRange);
        assert_eq!(bitmap.remaining(), 64);
        assert_eq!(bitmap.missing().collect::<Vec<_>>(), [Run { first: 0, count: 64 }]);
    }

    #[test]
    fn too_few_words_are_refused() {
        assert!(Bitmap::cleared(&mut [0], 65).is_none());
        assert_eq!(Bitmap::cleared(&mut [], 0).unwrap().missing().count(), 0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(bits in 1u64..300, marks in proptest::collection::vec(0u64..330, 0..400)) {
            let mut words = vec![0; words_for(bits) as usize];
            let mut bitmap = Bitmap::cleared(&mut words, bits).unwrap();
            let mut model = BTreeSet::new();
            for index in marks {
                let expected = if index >= bits {
                    Mark::OutOfRange
                } else if model.insert(index) {
                    Mark::First
                } else {
                    Mark::Duplicate
                };
                prop_assert_eq!(bitmap.mark(index), expected);
            }
            prop_assert_eq!(bitmap.remaining(), bits - model.len() as u64);
            let mut missing = BTreeSet::new();
            let mut last_end = None;
            for run in bitmap.missing() {
                prop_assert!(run.count > 0);
                prop_assert!(last_end.is_none_or(|end| run.first > end), "adjacent runs are merged");
                last_end = Some(run.first + run.count);
                missing.extend(run.first..run.first + run.count);
            }
            prop_assert_eq!(&missing, &(0..bits).filter(|bit| !model.contains(bit)).collect::<BTreeSet<_>>());
            for bit in 0..bits + 5 {
                prop_assert_eq!(bitmap.is_set(bit), model.contains(&bit));
            }
            let remaining = bitmap.remaining();
            prop_assert_eq!(Bitmap::adopt(&mut words, bits).unwrap().remaining(), remaining);
        }
    }
}
