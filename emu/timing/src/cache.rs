//! Tags of a set-associative cache with least-recently-used replacement. No data: what a line holds is the memory's
//! affair.

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;

/// The line of an address.
#[must_use]
#[inline]
pub const fn line_of(addr: u64) -> u64 {
    addr / LINE_BYTES
}

/// No line has this number.
const EMPTY: u64 = u64::MAX;

/// What became of a line that was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It was there.
    Hit,
    /// It was not, and is now.
    Miss {
        /// The line in whose place it is.
        gone: Option<u64>,
    },
}

/// Tags of one cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Sets one after another, each with its most recently used line first.
    tags: Box<[u64]>,
    ways: usize,
    sets: u64,
    /// `sets - 1` if that makes a mask.
    mask: Option<u64>,
}

impl Cache {
    /// An empty cache of `bytes` in sets of `ways` lines. Less than one set is one set.
    #[must_use]
    pub fn new(bytes: u64, ways: usize) -> Self {
        let ways = ways.max(1);
        let sets = (bytes / LINE_BYTES / ways as u64).max(1);
        let mask = sets.is_power_of_two().then(|| sets - 1);
        Cache { tags: vec![EMPTY; sets as usize * ways].into(), ways, sets, mask }
    }

    #[inline]
    fn set(&mut self, line: u64) -> &mut [u64] {
        let set = match self.mask {
            Some(mask) => line & mask,
            None => line % self.sets,
        };
        let first = set as usize * self.ways;
        &mut self.tags[first..first + self.ways]
    }

    /// Whether `line` is the most recently used of its set: touching it would change nothing.
    #[must_use]
    #[inline(always)]
    pub fn is_newest(&self, line: u64) -> bool {
        let set = match self.mask {
            Some(mask) => line & mask,
            None => line % self.sets,
        };
        self.tags.get(set as usize * self.ways).is_some_and(|tag| *tag == line)
    }

    /// Whether `line` is there. It is afterwards, as the most recently used of its set.
    #[inline]
    pub fn touch(&mut self, line: u64) -> bool {
        self.touch_evicting(line) == Touch::Hit
    }

    /// As [`Cache::touch`]; also returns which line was evicted for it, if one was.
    #[inline]
    pub fn touch_evicting(&mut self, line: u64) -> Touch {
        let set = self.set(line);
        if set[0] == line {
            return Touch::Hit;
        }
        let found = set.iter().position(|tag| *tag == line);
        let last = found.unwrap_or(set.len() - 1);
        let gone = set[last];
        set.copy_within(..last, 1);
        set[0] = line;
        match found {
            Some(_) => Touch::Hit,
            None => Touch::Miss { gone: (gone != EMPTY).then_some(gone) },
        }
    }

    /// Whether `line` is there; if so, it is the most recently used of its set afterwards.
    #[inline]
    pub fn touch_held(&mut self, line: u64) -> bool {
        let set = self.set(line);
        if set[0] == line {
            return true;
        }
        let Some(at) = set.iter().position(|tag| *tag == line) else { return false };
        set.copy_within(..at, 1);
        set[0] = line;
        true
    }

    /// The lines that are there, in no order.
    pub fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        self.tags.iter().copied().filter(|tag| *tag != EMPTY)
    }

    /// Whether `line` is there; changes nothing.
    #[must_use]
    pub fn holds(&self, line: u64) -> bool {
        let set = (line % self.sets) as usize * self.ways;
        self.tags[set..set + self.ways].contains(&line)
    }

    /// Takes `line` out; returns whether it was there.
    #[inline]
    pub fn remove(&mut self, line: u64) -> bool {
        let set = self.set(line);
        let found = set.iter().position(|tag| *tag == line);
        if let Some(at) = found {
            set.copy_within(at + 1.., at);
            if let Some(last) = set.last_mut() {
                *last = EMPTY;
            }
        }
        found.is_some()
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.tags.fill(EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn the_least_recently_used_line_goes() {
        let mut cache = Cache::new(4 * LINE_BYTES, 4);
        assert!([0, 1, 2, 3].into_iter().all(|line| !cache.touch(line)));
        assert!(cache.touch(0), "0 is now younger than 1");
        assert!(!cache.touch(4));
        assert!(!cache.holds(1) && [0, 2, 3, 4].into_iter().all(|line| cache.holds(line)));
        cache.remove(3);
        assert!(!cache.touch(5));
        assert!([0, 2, 4, 5].into_iter().all(|line| cache.holds(line)), "the place of 3 was free");
    }

    #[test]
    fn a_working_set_of_the_size_fits_and_one_more_line_thrashes_its_set() {
        for (bytes, ways) in [(1024, 4), (1_572_864, 16), (3_145_728, 16)] {
            let (lines, mut cache) = (bytes / LINE_BYTES, Cache::new(bytes, ways));
            let pass = |cache: &mut Cache, lines: u64| (0..lines).filter(|line| cache.touch(*line)).count() as u64;
            pass(&mut cache, lines);
            assert_eq!(pass(&mut cache, lines), lines);
            pass(&mut cache, lines + 1);
            assert_eq!(pass(&mut cache, lines + 1), lines - ways as u64, "one set of {ways} ways has one too many");
        }
    }

    proptest! {
        #[test]
        fn it_is_a_list_per_set(ways in 1usize..9, sets in 1u64..7, moves in proptest::collection::vec((0u64..64, 0u8..8), 1..400)) {
            let mut cache = Cache::new(sets * ways as u64 * LINE_BYTES, ways);
            let mut lists = vec![VecDeque::new(); sets as usize];
            for (line, what) in moves {
                let list: &mut VecDeque<u64> = &mut lists[(line % sets) as usize];
                let at = list.iter().position(|held| *held == line);
                prop_assert_eq!(cache.holds(line), at.is_some());
                if what == 1 && at.is_none() {
                    let before = cache.clone();
                    prop_assert!(!cache.touch_held(line) && cache == before);
                    continue;
                }
                at.map(|at| list.remove(at));
                if what == 0 {
                    prop_assert_eq!(cache.remove(line), at.is_some());
                } else if what == 1 {
                    list.push_front(line);
                    prop_assert!(cache.touch_held(line));
                } else {
                    list.push_front(line);
                    let gone = if list.len() > ways { list.pop_back() } else { None };
                    let expected = if at.is_some() { Touch::Hit } else { Touch::Miss { gone } };
                    prop_assert_eq!(cache.touch_evicting(line), expected);
                }
                let mut held: Vec<u64> = cache.lines().collect();
                held.sort_unstable();
                let mut listed: Vec<u64> = lists.iter().flatten().copied().collect();
                listed.sort_unstable();
                prop_assert_eq!(held, listed);
            }
        }
    }
}
