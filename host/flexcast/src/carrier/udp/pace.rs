//! Rate at which a root multicasts: what the user asks for, or less while receivers have no room.
//!
//! A receiver whose socket buffer has overflowed says so with its acknowledgements. The root then goes on at three
//! quarters of the rate at which its block has been acknowledged, and lowers that again if a receiver reports that
//! again. Each operation without such a message raises the rate by an eighth, until it is twice as high as it was when
//! the first one came; then the window alone limits the root again.

/// Picoseconds in a second.
const SECOND_PS: u128 = 1_000_000_000_000;
/// The lowest rate, as a part of the link's: what overflows may be somebody else's datagrams, and then no rate helps.
const LEAST_PART: u64 = 64;
/// Bytes per second of a Gbit/s.
const GBIT: u64 = 125_000_000;
/// How far a root catches up at once with what it might have sent: sleeps end late.
const BURST_PS: u64 = 2_000_000_000;
/// Time between two reductions: what is under way when the first one is made still overflows.
const SETTLE_PS: u64 = 20_000_000_000;
/// Longest that the bytes sent at once take at the rate.
const RUN_PS: u128 = 250_000_000;

/// When a root may send. Times are of the engine's clock, in picoseconds.
#[derive(Debug)]
pub(super) struct Pace {
    /// The user's limit, in bytes per second.
    most: Option<u64>,
    /// No rate is lower.
    least: u64,
    /// The limit under way.
    rate: Option<u64>,
    /// The rate when receivers first had no room: twice that is no limit any more.
    first: u64,
    /// When the last reduction was made.
    lowered_ps: Option<u64>,
    /// Whether a receiver has reported that it has no room since the operation began.
    overflowed: bool,
    /// When what has been sent has gone at the rate.
    next_ps: u64,
    /// The block that was sent last.
    last: Block,
}

/// A block that has been sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    pub(super) operation: u32,
    pub(super) bytes: u64,
    pub(super) took_ps: u64,
}

impl Pace {
    /// Of a user who wants so many Gbit/s at most, on a link of so many.
    pub(super) fn new(gbit_per_s: Option<u32>, link_gbit_per_s: u64) -> Self {
        let most = gbit_per_s.map(|rate| u64::from(rate.max(1)) * GBIT);
        let least = link_gbit_per_s.max(1).saturating_mul(GBIT) / LEAST_PART;
        Self {
            most,
            least: most.map_or(least, |most| most.min(least)),
            rate: most,
            first: u64::MAX,
            lowered_ps: None,
            overflowed: false,
            next_ps: 0,
            last: Block::default(),
        }
    }

    /// An operation begins.
    pub(super) fn begin(&mut self) {
        if std::mem::take(&mut self.overflowed) {
            return;
        }
        let Some(rate) = self.rate.filter(|rate| Some(*rate) != self.most) else { return };
        let raised = rate + rate / 8;
        let is_over = raised >= self.first.saturating_mul(2) || self.most.is_some_and(|most| raised >= most);
        self.rate = if is_over { self.most } else { Some(raised) };
    }

    /// A receiver has had no room. So many bytes of the own block have been acknowledged in so much time.
    pub(super) fn overflowed(&mut self, bytes: u64, took_ps: u64, now_ps: u64) {
        self.overflowed = true;
        if self.lowered_ps.is_some_and(|at_ps| now_ps.saturating_sub(at_ps) < SETTLE_PS) {
            return;
        }
        let came = u64::try_from(u128::from(bytes) * SECOND_PS / u128::from(took_ps.max(1))).unwrap_or(u64::MAX);
        let now = self.rate.map_or(came, |rate| rate.min(came.max(rate / 2)));
        if self.rate == self.most {
            self.first = now.max(self.least);
        }
        self.rate = Some((now / 4 * 3).max(self.least));
        self.lowered_ps = Some(now_ps);
    }

    /// The own block has been sent.
    pub(super) const fn ended(&mut self, block: Block) {
        self.last = block;
    }

    /// A receiver has had no room in an operation that is over here. Returns whether it is the one whose block was sent
    /// last.
    pub(super) fn overflowed_before(&mut self, operation: u32, now_ps: u64) -> bool {
        let Block { operation: last, bytes, took_ps } = self.last;
        let is_last = bytes > 0 && operation == last;
        if is_last {
            self.overflowed(bytes, took_ps, now_ps);
        }
        is_last
    }

    /// Whether something may be sent now.
    pub(super) const fn may_send(&self, now_ps: u64) -> bool {
        self.rate.is_none() || self.next_ps <= now_ps
    }

    /// Most bytes that are sent at once.
    pub(super) fn run_bytes(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| (u128::from(rate) * RUN_PS / SECOND_PS) as u64)
    }

    /// So many bytes have been sent.
    pub(super) fn sent(&mut self, bytes: u64, now_ps: u64) {
        let Some(rate) = self.rate else { return };
        let takes_ps = u64::try_from(u128::from(bytes) * SECOND_PS / u128::from(rate.max(1))).unwrap_or(u64::MAX);
        self.next_ps = self.next_ps.max(now_ps.saturating_sub(BURST_PS)).saturating_add(takes_ps);
    }

    /// When something may be sent next, if that is limited.
    pub(super) const fn due_ps(&self) -> u64 {
        if self.rate.is_some() { self.next_ps } else { 0 }
    }

    /// The rate that limits the root, in Mbit/s.
    pub(super) fn mbit_per_s(&self) -> Option<u32> {
        self.rate.map(|rate| u32::try_from(rate / 125_000).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000_000;

    /// Bytes that go in so many milliseconds, polled in steps of one.
    fn sent_in(pace: &mut Pace, from_ms: u64, ms: u64) -> u64 {
        let mut bytes = 0;
        for at_ms in from_ms..from_ms + ms {
            while pace.may_send(at_ms * MS) {
                let run = pace.run_bytes().min(64_000);
                pace.sent(run, at_ms * MS);
                bytes += run;
            }
        }
        bytes
    }

    #[test]
    fn a_configured_rate_is_kept_although_sleeps_end_late() {
        let mut pace = Pace::new(Some(1), 10);
        let bytes = sent_in(&mut pace, 5, 100);
        let expected = 125_000_000 / 10;
        assert!((expected..expected + 400_000).contains(&bytes), "{bytes} of {expected}");
        assert_eq!(pace.mbit_per_s(), Some(1000));
        pace.begin();
        assert_eq!(pace.mbit_per_s(), Some(1000));
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut pace = Pace::new(None, 10);
        pace.sent(u64::MAX, 7);
        assert!(pace.may_send(7));
        assert_eq!((pace.due_ps(), pace.run_bytes(), pace.mbit_per_s()), (0, u64::MAX, None));
    }

    #[test]
    fn overflows_lower_the_rate_and_operations_without_raise_it_until_there_is_none() {
        let mut pace = Pace::new(None, 10);
        pace.begin();
        // 1 MB in a millisecond is 8 Gbit/s.
        pace.overflowed(1_000_000, MS, MS);
        assert_eq!(pace.mbit_per_s(), Some(6000));
        pace.overflowed(1_000_000, 2 * MS, 2 * MS);
        assert_eq!(pace.mbit_per_s(), Some(6000), "what was under way does not count");
        pace.overflowed(20_000_000, 40 * MS, 40 * MS);
        assert_eq!(pace.mbit_per_s(), Some(3000));
        pace.begin();
        assert_eq!(pace.mbit_per_s(), Some(3000), "the operation before had overflows");
        pace.begin();
        assert_eq!(pace.mbit_per_s(), Some(3375));
        let raised = (0..100).find(|_| {
            pace.begin();
            pace.mbit_per_s().is_none()
        });
        assert_eq!(raised, Some(13), "twice 8 Gbit/s is no limit");
        // Where lower rates do not help, operations go on all the same.
        for at in 1..100 {
            pace.overflowed(1, MS, at * 1000 * MS);
        }
        assert_eq!(pace.mbit_per_s(), Some(156));
        assert!(pace.run_bytes() >= 1000);
    }

    #[test]
    fn the_last_block_counts_when_its_operation_is_over() {
        let mut pace = Pace::new(None, 10);
        assert!(!pace.overflowed_before(0, MS), "nothing has been sent");
        pace.ended(Block { operation: 7, bytes: 1_000_000, took_ps: MS });
        assert!(!pace.overflowed_before(6, MS));
        assert_eq!(pace.mbit_per_s(), None);
        assert!(pace.overflowed_before(7, MS));
        assert_eq!(pace.mbit_per_s(), Some(6000));
    }

    #[test]
    fn a_configured_rate_is_the_highest() {
        let mut pace = Pace::new(Some(2), 10);
        pace.overflowed(1_000_000, 4 * MS, 4 * MS);
        assert_eq!(pace.mbit_per_s(), Some(1500));
        (0..10).for_each(|_| pace.begin());
        assert_eq!(pace.mbit_per_s(), Some(2000));
    }
}
