//! Repair concurrent with the data: when a rank scans for gaps in streams that lose chunks while they still flow.
//!
//! A tree delivers each root's chunks in order, so that a gap is a loss as soon as a later chunk of the same root has
//! come. It is fetched at once, while others' chunks come. What is left for the end is what has been lost since the
//! last scan, so scans come closer to one another as the end does: each when half of what was ahead at the one before
//! has come. Where receive contexts report by themselves a scan costs them nothing, and of the last chunks each report
//! is scanned.

/// The scans of one rank in one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GapWatch {
    /// Chunks that are known to be lost.
    lost: u64,
    /// The next scan is due when no more chunks than these are ahead.
    next: u64,
    /// Scans cost nothing.
    free: bool,
}

impl GapWatch {
    /// Of fewer chunks ahead the next scan waits for the last one: a scan takes about as long as so many chunks. If it
    /// is free, it is due with the next.
    const LEAST: u64 = 24;

    /// Before the first of `expected` chunks; `free`: scans cost nothing.
    #[must_use]
    pub const fn new(expected: u64, free: bool) -> Self {
        Self { lost: 0, next: Self::behind(expected, free), free }
    }

    const fn behind(ahead: u64, free: bool) -> u64 {
        if ahead > 2 * Self::LEAST {
            ahead / 2
        } else if free {
            ahead.saturating_sub(1)
        } else {
            0
        }
    }

    /// Whether a scan is due when `remaining` chunks have not come.
    #[must_use]
    pub const fn is_due(&self, remaining: u64) -> bool {
        remaining > 0 && remaining.saturating_sub(self.lost) <= self.next
    }

    /// A scan has shown that of the chunks that have not come `lost` do not come any more, and `ahead` may.
    pub const fn scanned(&mut self, lost: u64, ahead: u64) {
        (self.lost, self.next) = (lost, Self::behind(ahead, self.free));
    }

    /// Whether so few chunks are ahead that they are overdue as soon as none comes
    /// ([`ProgressWatch::overdue_ps`](crate::ProgressWatch::overdue_ps)).
    #[must_use]
    pub const fn is_near_end(ahead: u64) -> bool {
        ahead <= Self::LEAST
    }

    /// Chunks that are known to be lost.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_come_closer_to_one_another_until_the_end() {
        let mut watch = GapWatch::new(1000, false);
        let mut scans = std::vec::Vec::new();
        // Every hundredth chunk is lost.
        for sent in 0..=1000 {
            let lost = sent / 100;
            if watch.is_due(1000 - sent + lost) {
                scans.push(sent);
                watch.scanned(lost, 1000 - sent);
            }
        }
        assert_eq!(
            scans,
            [505, 755, 879, 941, 971],
            "the last of the 1000 is lost: a scan of a quiet stream finds that"
        );
        assert_eq!(watch.lost(), 9);
    }

    #[test]
    fn few_chunks_are_scanned_when_all_have_come_or_are_lost() {
        let mut watch = GapWatch::new(40, false);
        assert!(!watch.is_due(3), "they may come");
        watch.scanned(3, 0);
        assert!(watch.is_due(3) && !watch.is_due(0));
        assert!(!GapWatch::new(0, false).is_due(0), "nothing is expected");
        let mut free = GapWatch::new(40, true);
        assert!(!free.is_due(40) && free.is_due(39), "a scan that costs nothing");
        free.scanned(3, 1);
        assert!(!free.is_due(4) && free.is_due(3));
    }
}
