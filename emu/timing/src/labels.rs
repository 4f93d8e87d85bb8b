//! Ranges of addresses with names, to show what accesses went to.

use crate::memory::Counts;

/// Named ranges and what has been counted in each name's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    /// By first address: that, the first address behind, and whose range it is.
    ranges: Vec<(u64, u64, usize)>,
    names: Vec<String>,
    counts: Vec<Counts>,
}

impl Labels {
    /// Names a range; several may have one name. False for an empty one, or one that shares addresses with another.
    pub(crate) fn add(&mut self, addr: u64, len: u64, name: &str) -> bool {
        let Some(end) = addr.checked_add(len).filter(|end| *end > addr) else { return false };
        let place = self.ranges.partition_point(|(other, ..)| *other < end);
        if place > 0 && self.ranges[place - 1].1 > addr {
            return false;
        }
        let known = self.names.iter().position(|other| other == name);
        let label = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.counts.push(Counts::default());
            self.names.len() - 1
        });
        self.ranges.insert(place, (addr, end, label));
        true
    }

    /// Whether no range has a name.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The counts of the range that an address is in.
    #[inline]
    pub(crate) fn at(&mut self, addr: u64) -> Option<&mut Counts> {
        if self.ranges.is_empty() {
            return None;
        }
        let place = self.ranges.partition_point(|(first, ..)| *first <= addr);
        let (_, end, label) = self.ranges.get(place.checked_sub(1)?)?;
        if addr < *end { self.counts.get_mut(*label) } else { None }
    }

    /// Names in the order in which they came up, and what has been counted for each.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&str, Counts)> {
        self.names.iter().map(String::as_str).zip(self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_counted_for_the_range_that_it_is_in() {
        let mut labels = Labels::default();
        assert!(labels.at(0).is_none());
        assert!(labels.add(100, 50, "ring") && labels.add(200, 8, "bitmap") && labels.add(150, 1, "ring"));
        // Empty, beyond all addresses, and over the edges of others.
        for (addr, len) in [(10, 0), (u64::MAX, 1), (99, 2), (149, 1), (140, 100), (207, 1), (0, 1000)] {
            assert!(!labels.add(addr, len, "other"), "{addr} {len}");
        }
        for addr in [99, 100, 149, 150, 151, 199, 207, 208] {
            if let Some(counts) = labels.at(addr) {
                counts.l1 += 1;
            }
        }
        let counts: Vec<_> = labels.counts().map(|(name, counts)| (name.to_owned(), counts.l1)).collect();
        assert_eq!(counts, [("ring".to_owned(), 3), ("bitmap".to_owned(), 1)]);
    }
}
