//! Snoop filter: a counting hash of the lines of DPA memory that are in any L1.

/// Marks lines behind windows: the card does not write there through the DPA's caches, and where they lie differs from
/// run to run.
pub(crate) const WINDOW_LINE: u64 = 1 << 62;

/// Number of L1s that may hold each line. Lines share counters, so a count may be too high; that costs time, not
/// correctness. The hash separates the stacks of threads, which lie powers of two from one another, and adjacent
/// queues.
#[derive(Clone, Debug)]
pub(crate) struct SnoopFilter {
    counts: Box<[u16]>,
}

impl SnoopFilter {
    /// Neighbouring lines that have counts side by side.
    const GROUP: u64 = 16;
    const GROUPS: u32 = 1 << 12;

    pub(crate) fn new() -> Self {
        SnoopFilter { counts: vec![0; Self::GROUPS as usize * Self::GROUP as usize].into() }
    }

    #[inline]
    fn index(line: u64) -> usize {
        // Multiplicative hashing by the golden ratio.
        let group = (line / Self::GROUP).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Self::GROUPS.ilog2());
        (group * Self::GROUP + line % Self::GROUP) as usize
    }

    /// One more L1 holds a line; returns whether others may.
    #[inline]
    pub(crate) fn add(&mut self, line: u64) -> bool {
        if line & WINDOW_LINE != 0 {
            return false;
        }
        let count = &mut self.counts[Self::index(line)];
        *count += 1;
        *count > 1
    }

    /// One less does.
    #[inline]
    pub(crate) fn remove(&mut self, line: u64) {
        if line & WINDOW_LINE == 0 {
            self.counts[Self::index(line)] -= 1;
        }
    }

    /// How many may.
    #[inline]
    pub(crate) fn at(&self, line: u64) -> u16 {
        self.counts[Self::index(line)]
    }
}
