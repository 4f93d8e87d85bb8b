//! Stall of a multicast stream: how long nothing may come before what is missing counts as lost.
//!
//! A tree delivers each root's chunks in order, and roots hand over to one another, so data that is still to come comes
//! with gaps as long as those before. [`StallWindow`] is a margin over the longest gap seen. [`ProgressWatch`] measures
//! the gaps of one operation.
//!
//! A scan of the bitmaps often shows losses sooner: once every root's last chunks are there, what is missing is lost
//! ([`missing`](crate::missing)). It costs little and gives nothing up, so it is due after a short quiet time, once for
//! each time that the stream has moved.

/// How long a stream may stand still, in picoseconds: learned from operation to operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StallWindow {
    first_ps: u64,
    ps: u64,
    /// How often chunks have come after they had been given up.
    late: u32,
}

impl StallWindow {
    /// A stream is quiet after [`StallWindow::MARGIN`] times the mean gap within it, but not before, in picoseconds: a
    /// scan takes about so long.
    const LEAST_QUIET_PS: u64 = 5_000_000;
    /// The rest of a stream is not overdue before, in picoseconds: a thread takes so long for a batch of completions,
    /// which it reports at its end.
    const LEAST_OVERDUE_PS: u64 = 12_000_000;
    /// Twice as long after each time that chunks have come late, up to this power of two.
    const MOST_LATE: u32 = 10;
    /// The window is so many times the longest gap.
    const MARGIN: u64 = 2;
    /// It never sinks below this part of the first one, ...
    const LEAST: u64 = 8;
    /// ... nor climbs above so many times the first one.
    const MOST: u64 = 64;
    /// After an operation with shorter gaps it sinks by this part of the difference.
    const SINK: u64 = 2;

    /// The window before anything is known of the network and the roots, in picoseconds.
    #[must_use]
    pub const fn new(first_ps: u64) -> Self {
        Self { first_ps, ps: first_ps, late: 0 }
    }

    /// How long a stream with this mean gap within it has to stand still before the bitmaps are scanned, all in
    /// picoseconds.
    fn quiet_ps(self, mean_ps: u64) -> u64 {
        mean_ps.saturating_mul(Self::MARGIN).max(Self::LEAST_QUIET_PS).saturating_mul(1 << self.late)
    }

    /// The window, in picoseconds, after gaps of up to `longest_ps` in the operation under way.
    #[must_use]
    pub fn ps(self, longest_ps: u64) -> u64 {
        self.ps.max(self.margin(longest_ps))
    }

    fn margin(self, longest_ps: u64) -> u64 {
        let most_ps = self.first_ps.saturating_mul(Self::MOST);
        longest_ps.saturating_mul(Self::MARGIN).clamp(self.first_ps / Self::LEAST, most_ps)
    }

    /// Whether chunks have come after they had been given up: a later chunk does not prove that an earlier one is lost.
    #[must_use]
    pub const fn reorders(self) -> bool {
        self.late > 0
    }

    /// An operation is over that had gaps of up to `longest_ps`.
    pub fn observe(&mut self, longest_ps: u64) {
        let margin_ps = self.margin(longest_ps);
        self.ps = if margin_ps >= self.ps { margin_ps } else { self.ps - (self.ps - margin_ps).div_ceil(Self::SINK) };
    }

    /// Chunks came after they had been given up: the window was too short, by nobody knows how much.
    pub const fn came_late(&mut self) {
        let (ps, most_ps) = (self.ps.saturating_mul(2), self.first_ps.saturating_mul(Self::MOST));
        self.ps = if ps > most_ps { most_ps } else { ps };
        // The network may reorder: then a later chunk proves nothing until the earlier one has had time to come.
        self.late = if self.late < Self::MOST_LATE { self.late + 1 } else { Self::MOST_LATE };
    }
}

/// The progress of one operation's streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProgressWatch {
    count: u64,
    moved_ps: u64,
    since_ps: u64,
    longest_ps: u64,
    /// Changes of the count behind the first, and the time between them in all.
    gaps: u64,
    within_ps: u64,
    begun: bool,
    /// The bitmaps have been scanned since the count changed, and then multicast was over for a neighbour or not.
    scanned: Option<bool>,
}

impl ProgressWatch {
    /// From the time on from which data may come, with a count that grows as it does.
    #[must_use]
    pub const fn new(count: u64, now_ps: u64) -> Self {
        Self {
            count,
            moved_ps: now_ps,
            since_ps: now_ps,
            longest_ps: 0,
            gaps: 0,
            within_ps: 0,
            begun: false,
            scanned: None,
        }
    }

    /// Takes note of the count as it is now.
    pub fn poll(&mut self, count: u64, now_ps: u64) {
        if count != self.count {
            let gap_ps = now_ps.saturating_sub(self.since_ps);
            self.longest_ps = self.longest_ps.max(gap_ps);
            if core::mem::replace(&mut self.begun, true) {
                self.gaps += 1;
                self.within_ps = self.within_ps.saturating_add(gap_ps);
            }
            (self.count, self.moved_ps, self.since_ps, self.scanned) = (count, now_ps, now_ps, None);
        }
    }

    /// There is a reason why nothing comes, until now: the time so far is no gap.
    pub const fn restart(&mut self, now_ps: u64) {
        self.since_ps = now_ps;
    }

    /// When the count last changed, or the watch began, in picoseconds: [`ProgressWatch::restart`] does not move it, so
    /// that what holds a stream can be held to a bound.
    #[must_use]
    pub const fn moved_ps(&self) -> u64 {
        self.moved_ps
    }

    /// When the count last changed, or the time began anew, in picoseconds.
    #[must_use]
    pub const fn since_ps(&self) -> u64 {
        self.since_ps
    }

    /// The longest time between two changes of the count so far, in picoseconds.
    #[must_use]
    pub const fn longest_ps(&self) -> u64 {
        self.longest_ps
    }

    /// When the bitmaps are to be scanned, in picoseconds; none before data has come twice, and once they have been
    /// until there is more, or until multicast is `over` for a neighbour: then a scan shows more.
    #[must_use]
    pub fn scan_ps(&self, window: StallWindow, over: bool) -> Option<u64> {
        let useful = match self.scanned {
            None => true,
            Some(over_then) => over && !over_then,
        };
        let mean_ps = self.within_ps.checked_div(self.gaps).filter(|_| useful)?;
        Some(self.since_ps.saturating_add(window.quiet_ps(mean_ps)))
    }

    /// When what is missing counts as lost if all but a few chunks have come, in picoseconds: after four times the mean
    /// gap within the stream, but not before a receive thread has reported what waits for it; none before data has come
    /// twice. For a network that has lost chunks lately.
    #[must_use]
    pub fn overdue_ps(&self, window: StallWindow) -> Option<u64> {
        let mean_ps = self.within_ps.checked_div(self.gaps)?;
        let overdue_ps =
            mean_ps.saturating_mul(StallWindow::MARGIN).max(StallWindow::LEAST_OVERDUE_PS / StallWindow::MARGIN);
        Some(self.since_ps.saturating_add(window.quiet_ps(overdue_ps)))
    }

    /// The bitmaps are scanned.
    pub const fn note_scan(&mut self, over: bool) {
        self.scanned = Some(over);
    }

    /// Whether they have been, and nothing has come since.
    #[must_use]
    pub const fn has_scanned(&self) -> bool {
        self.scanned.is_some()
    }

    /// When the stream counts as stalled unless there is progress before, in picoseconds. `gap_ps`: a gap that is known
    /// beforehand, such as how long a root sends to other ranks before it comes back to this one; 0 if none is.
    #[must_use]
    pub fn stalled_ps(&self, window: StallWindow, gap_ps: u64) -> u64 {
        self.since_ps.saturating_add(window.ps(self.longest_ps.max(gap_ps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stalls_a_window_after_its_last_progress() {
        let window = StallWindow::new(500);
        let mut watch = ProgressWatch::new(7, 1000);
        assert_eq!(watch.stalled_ps(window, 0), 1500);
        watch.poll(7, 1400);
        assert_eq!(watch.stalled_ps(window, 0), 1500, "no progress");
        watch.poll(8, 1450);
        watch.restart(1450);
        assert_eq!((watch.longest_ps(), watch.stalled_ps(window, 0)), (450, 1450 + 900), "a gap of 450 may come again");
        assert_eq!(watch.stalled_ps(window, 600), 1450 + 1200, "a root sends to others for so long");
    }

    #[test]
    fn a_time_that_begins_anew_is_no_progress() {
        let mut watch = ProgressWatch::new(7, 1000);
        watch.restart(1200);
        assert_eq!((watch.moved_ps(), watch.since_ps()), (1000, 1200));
        watch.poll(8, 1450);
        watch.restart(1600);
        assert_eq!((watch.moved_ps(), watch.since_ps()), (1450, 1600));
    }

    #[test]
    fn a_quiet_stream_is_scanned_once_until_it_moves() {
        let mut window = StallWindow::new(640_000_000);
        let mut watch = ProgressWatch::new(0, 0);
        assert_eq!(watch.scan_ps(window, false), None, "nothing has come");
        watch.poll(1, 100_000_000);
        watch.poll(2, 107_000_000);
        assert_eq!(
            watch.scan_ps(window, false),
            Some(107_000_000 + 2 * 7_000_000),
            "the wait for the first chunk is no gap within"
        );
        watch.note_scan(false);
        assert_eq!(watch.scan_ps(window, true), Some(107_000_000 + 14_000_000), "a neighbour knows more");
        watch.restart(115_000_000);
        watch.poll(2, 116_000_000);
        assert_eq!(watch.scan_ps(window, false), None);
        watch.poll(3, 118_000_000);
        assert_eq!(
            watch.scan_ps(window, false),
            Some(118_000_000 + 2 * 5_000_000),
            "nor is the time before it began anew"
        );
        window.came_late();
        assert_eq!(watch.scan_ps(window, false), Some(118_000_000 + 20_000_000), "a network that reorders");
        assert_eq!(watch.overdue_ps(window), Some(118_000_000 + 40_000_000), "four times the mean gap");
        assert_eq!(watch.overdue_ps(StallWindow::new(1)), Some(118_000_000 + 20_000_000), "that of a network in order");
        let mut fast = ProgressWatch::new(0, 0);
        fast.poll(1, 1000);
        fast.poll(2, 2000);
        assert_eq!(fast.scan_ps(StallWindow::new(1), false), Some(2000 + 5_000_000), "no sooner than a scan takes");
    }

    #[test]
    fn the_window_follows_the_longest_gaps_within_bounds() {
        let mut window = StallWindow::new(800);
        for _ in 0..60 {
            window.observe(150);
        }
        assert_eq!(window.ps(0), 300, "twice the longest gap");
        window.observe(1000);
        assert_eq!(window.ps(0), 2000, "at once after a longer one");
        for _ in 0..60 {
            window.observe(0);
        }
        assert_eq!(window.ps(0), 100, "an eighth of the first one at least");
        window.came_late();
        assert_eq!(window.ps(0), 200);
        (0..100).for_each(|_| window.came_late());
        window.observe(u64::MAX);
        assert_eq!(window.ps(u64::MAX), 64 * 800);
    }
}
