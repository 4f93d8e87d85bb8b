//! Send window: how far a root may be ahead of its receivers.
//!
//! Receivers acknowledge how far they have seen a root's block. The root sends so many chunks beyond the slowest of
//! them as every receive buffer holds. Acknowledgements may be lost: when nothing is acknowledged for a while the root
//! sends a part of the window all the same, and waits longer the next time. A datapath may limit how often: then those
//! that have not answered are not waited for in this operation any more.

use flexcast_proto::RankInfo;

/// Acknowledgements per window of each receiver: one may be lost without a wait.
const PARTS: u32 = 4;

/// How long an acknowledgement is waited for, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) first_ps: u64,
    pub(crate) longest_ps: u64,
    /// Waits in vain, one behind the other, after which the slowest are left behind.
    pub(crate) most: u32,
}

/// The window of one operation.
#[derive(Debug)]
pub(crate) struct Window {
    own: u32,
    waits: Waits,
    /// Chunks that may be under way.
    chunks: u32,
    /// Chunks that each rank has seen.
    seen: Vec<u32>,
    /// The least of `seen` except the own rank's, or what is taken for it after a wait.
    acknowledged: u32,
    /// Since when there has been no room.
    full_since_ps: Option<u64>,
    wait_ps: u64,
    /// Waits in vain, one behind the other.
    waited: u32,
    /// A rank has seen some of the block.
    is_seen: bool,
}

/// Chunks after which a receiver acknowledges, with a window of `chunks`.
pub(crate) const fn step(chunks: u32) -> u32 {
    let step = chunks / PARTS;
    if step == 0 { 1 } else { step }
}

impl Window {
    pub(crate) fn new(place: RankInfo, chunks: u32, waits: Waits) -> Self {
        Self {
            own: place.rank(),
            waits,
            chunks: if chunks == 0 { 1 } else { chunks },
            seen: vec![0; place.ranks() as usize],
            acknowledged: 0,
            full_since_ps: None,
            wait_ps: waits.first_ps,
            waited: 0,
            is_seen: false,
        }
    }

    /// Begins another operation, with another window.
    pub(crate) fn restart(&mut self, chunks: u32) {
        self.chunks = if chunks == 0 { 1 } else { chunks };
        self.seen.fill(0);
        self.is_seen = false;
        self.open(0);
    }

    /// Chunks of the own block that all receivers say that they have seen; none if nobody waits for it.
    pub(crate) fn seen_by_all(&self) -> Option<u32> {
        Some(self.least()).filter(|seen| *seen < u32::MAX)
    }

    /// Whether there are receivers, and all have reported that they need nothing more by multicast.
    pub(crate) fn is_left(&self) -> bool {
        self.seen.len() > 1 && self.least() == u32::MAX
    }

    /// Whether receivers that have left, when `sent` of `chunks` were sent, cannot have lost what they lack: most of it
    /// was not sent, and what was has arrived somewhere, or is less than any receiver acknowledges.
    pub(crate) const fn is_withheld(&self, sent: u32, chunks: u32) -> bool {
        sent < chunks.div_ceil(2) && (self.is_seen || sent < step(self.chunks))
    }

    /// How many chunks may be sent behind the first `sent`.
    pub(crate) fn room(&self, sent: u32) -> u32 {
        self.acknowledged.saturating_add(self.chunks).saturating_sub(sent)
    }

    /// A rank has seen so many chunks.
    pub(crate) fn acknowledge(&mut self, rank: u32, chunks: u32) {
        let Some(seen) = self.seen.get_mut(rank as usize) else { return };
        if *seen >= chunks {
            return;
        }
        *seen = chunks;
        self.is_seen |= chunks < u32::MAX;
        let least = self.least();
        if least > self.acknowledged {
            self.open(least);
        }
    }

    /// What the slowest of the others has seen.
    fn least(&self) -> u32 {
        let others = self.seen.iter().enumerate().filter(|(rank, _)| *rank as u32 != self.own);
        others.map(|(_, seen)| *seen).min().unwrap_or(u32::MAX)
    }

    /// All others have seen so many chunks.
    fn open(&mut self, acknowledged: u32) {
        (self.acknowledged, self.full_since_ps) = (acknowledged, None);
        (self.wait_ps, self.waited) = (self.waits.first_ps, 0);
    }

    /// Whether there has been no room for so long.
    pub(crate) fn has_been_full(&self, ps: u64, now_ps: u64) -> bool {
        self.full_since_ps.is_some_and(|since_ps| now_ps.saturating_sub(since_ps) >= ps)
    }

    /// There is no room behind the first `sent` chunks. After a while without acknowledgement there is.
    pub(crate) fn wait(&mut self, sent: u32, now_ps: u64) {
        if self.has_waited(now_ps) {
            let part = sent.saturating_sub(self.chunks).saturating_add(step(self.chunks));
            self.acknowledged = self.acknowledged.max(part);
        }
    }

    /// Whether all others have seen so many chunks. After some waits without acknowledgement those count that have.
    pub(crate) fn have_seen(&mut self, chunks: u32, now_ps: u64) -> bool {
        let is_seen = |window: &Self| window.least() >= chunks;
        if !is_seen(self) {
            self.has_waited(now_ps);
        }
        is_seen(self)
    }

    /// Whether a wait is over, of which the next is longer.
    fn has_waited(&mut self, now_ps: u64) -> bool {
        let since_ps = *self.full_since_ps.get_or_insert(now_ps);
        if now_ps.saturating_sub(since_ps) < self.wait_ps {
            return false;
        }
        self.full_since_ps = None;
        self.waited += 1;
        self.wait_ps = (2 * self.wait_ps).min(self.waits.longest_ps);
        if self.waited >= self.waits.most {
            let (own, least) = (self.own, self.least());
            let slowest = |(rank, seen): &(usize, &mut u32)| *rank as u32 != own && **seen == least;
            self.seen.iter_mut().enumerate().filter(slowest).for_each(|(_, seen)| *seen = u32::MAX);
            self.open(self.acknowledged.max(self.least()));
        }
        true
    }

    /// When [`Window::wait`] has an effect.
    pub(crate) fn deadline_ps(&self) -> Option<u64> {
        self.full_since_ps.map(|since_ps| since_ps.saturating_add(self.wait_ps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_WAIT_PS: u64 = 2_000_000_000;

    fn window(ranks: u32, chunks: u32) -> Window {
        let waits = Waits { first_ps: FIRST_WAIT_PS, longest_ps: 64_000_000_000, most: 6 };
        Window::new(RankInfo::new(0, ranks).unwrap(), chunks, waits)
    }

    #[test]
    fn the_slowest_receiver_counts_and_the_own_rank_does_not() {
        let mut window = window(3, 8);
        assert_eq!(window.room(0), 8);
        assert_eq!(window.room(8), 0);
        window.acknowledge(1, 6);
        assert_eq!(window.room(8), 0);
        window.acknowledge(2, 4);
        assert_eq!(window.room(8), 4);
        // Late ones and those of nobody change nothing.
        window.acknowledge(2, 1);
        window.acknowledge(9, 100);
        assert_eq!(window.room(8), 4);
    }

    #[test]
    fn a_root_stops_once_all_receivers_need_no_more() {
        let mut window = window(3, 8);
        window.acknowledge(1, u32::MAX);
        assert_eq!((window.is_left(), window.seen_by_all()), (false, Some(0)));
        window.acknowledge(2, 5);
        assert_eq!((window.is_left(), window.seen_by_all()), (false, Some(5)));
        window.acknowledge(2, u32::MAX);
        assert_eq!((window.is_left(), window.seen_by_all()), (true, None));
        window.restart(8);
        assert!(!window.is_left(), "that was of one operation");
        assert!(!self::window(1, 8).is_left(), "nobody has left a rank that is alone");
    }

    #[test]
    fn a_block_is_withheld_if_most_of_it_was_not_sent_and_nothing_says_that_it_is_lost() {
        let mut window = window(2, 8);
        assert!(window.is_withheld(0, 100) && window.is_withheld(1, 100));
        assert!(!window.is_withheld(8, 100), "a receiver that sees it acknowledges two chunks");
        window.acknowledge(1, u32::MAX);
        assert!(!window.is_withheld(8, 100));
        window.restart(8);
        window.acknowledge(1, 2);
        assert!(window.is_withheld(8, 100) && !window.is_withheld(50, 100));
    }

    #[test]
    fn without_acknowledgements_it_opens_in_parts_and_ever_more_slowly() {
        let mut window = window(2, 8);
        let mut now_ps = 0;
        let mut sent = 8;
        for doubling in 0..4 {
            window.wait(sent, now_ps);
            assert_eq!(window.room(sent), 0);
            assert_eq!(window.deadline_ps(), Some(now_ps + (FIRST_WAIT_PS << doubling)));
            now_ps += FIRST_WAIT_PS << doubling;
            window.wait(sent, now_ps);
            assert_eq!((window.room(sent), window.deadline_ps()), (2, None));
            sent += 2;
        }
        window.acknowledge(1, sent);
        window.wait(sent + 8, now_ps);
        assert_eq!(window.deadline_ps(), Some(now_ps + FIRST_WAIT_PS));
    }

    #[test]
    fn who_never_answers_is_left_behind_until_the_next_operation() {
        let mut window = window(3, 8);
        window.acknowledge(1, 5);
        let (mut now_ps, mut sent) = (0, 8);
        for _ in 0..6 {
            window.wait(sent, now_ps);
            assert!(!window.has_been_full(1, now_ps));
            now_ps += window.wait_ps;
            assert!(window.has_been_full(FIRST_WAIT_PS, now_ps));
            window.wait(sent, now_ps);
            sent += window.room(sent);
        }
        assert_eq!(sent, 20, "six quarters of a window");
        // Rank 1 counts as before, rank 2 no more.
        window.acknowledge(1, 20);
        assert_eq!(window.room(20), 8);
        window.restart(8);
        window.acknowledge(1, 8);
        assert_eq!(window.room(8), 0);
    }

    #[test]
    fn a_window_of_one_chunk_moves() {
        let mut window = window(2, 0);
        assert_eq!((window.room(0), window.room(1), step(1)), (1, 0, 1));
        window.acknowledge(1, 1);
        assert_eq!(window.room(1), 1);
        window.restart(4);
        assert_eq!(window.room(0), 4);
    }
}
