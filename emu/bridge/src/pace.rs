//! Limits of virtual time: how far this machine's clock may run ahead of a peer's.
//!
//! A card answers whether or not its host's processor has time for the program; an emulated one does not answer while
//! its process is not run. So that no timer fires for that reason, clocks of machines that talk to one another are held
//! together:
//!
//! - *Frames.* A frame is *taken* when the peer's process has read it, and *over* when that machine's clock has moved
//!   on by the time that an answer needs. Until a frame is taken the own clock goes no further than [`UNTAKEN_PS`]
//!   behind its sending; until it is over, no further than an answer's time beyond that. Eight tries of a connection
//!   take longer, from a timeout of 33 us on.
//! - *Talk.* While frames have gone one way or the other in the last [`TALK_PS`], the own clock is at most [`AHEAD_PS`]
//!   ahead of where the peer's has moved to since. So bounds of programs do not pass because another process is
//!   stopped, or slower.
//!
//! Neither holds up everybody for ever. Of machines that wait for one another's frames to be over, the one that took a
//! frame last may still go on by an answer's time, since what it has sent itself was taken before. Around any circle of
//! machines the leads add up to [`AHEAD_PS`] at least, since a lead is only ever cut to that; and a machine that has
//! taken a frame may let it be over in spite of them. A clock that a call has set farther than that gives its frames as
//! much more time, so that this is true of it, too.

use std::collections::VecDeque;

/// How far the own clock goes behind the sending of a frame that has not been taken: 200 us.
pub(crate) const UNTAKEN_PS: u64 = 200_000_000;
/// How far it may be ahead of one that it talks to: 5 ms, much less than the bounds of programs, a quarter of 100 ms
/// among them.
pub(crate) const AHEAD_PS: u64 = 5_000_000_000;
/// How long two machines talk after a frame: 200 ms.
pub(crate) const TALK_PS: u64 = 200_000_000_000;

/// Whether frame `number` is not behind frame `last`: numbers wrap.
fn reaches(last: u32, number: u32) -> bool {
    last.wrapping_sub(number).cast_signed() >= 0
}

/// This clock and that of one peer. All times are of the own clock unless said otherwise, in picoseconds.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Frames that are not known to be over: number, and when sent.
    under_way: VecDeque<(u32, u64)>,
    /// Frames of the peer that are not over here: number, and when taken.
    taken: VecDeque<(u32, u64)>,
    /// The last of its frames that is over here.
    over: u32,
    /// The peer's clock as last reported, and how far the own one may go, given that.
    clock_ps: u64,
    limit_ps: u64,
    talked_ps: Option<u64>,
}

impl Pace {
    /// With a peer whose clock is reported to be there, and of which no frame before this number counts.
    pub(crate) fn new(clock_ps: u64, over: u32) -> Self {
        Self { clock_ps, over, ..Self::default() }
    }

    fn talks(&self, now_ps: u64) -> bool {
        self.talked_ps.is_some_and(|talked_ps| now_ps.saturating_sub(talked_ps) < TALK_PS)
    }

    fn talk(&mut self, now_ps: u64) {
        if !self.talks(now_ps) {
            self.limit_ps = now_ps.saturating_add(AHEAD_PS);
        }
        self.talked_ps = Some(now_ps);
    }

    /// A frame goes to the peer.
    pub(crate) fn sent(&mut self, number: u32, now_ps: u64) {
        self.under_way.push_back((number, now_ps));
        self.talk(now_ps);
    }

    /// It turned out that it does not.
    pub(crate) fn unsent(&mut self) {
        self.under_way.pop_back();
    }

    /// All frames of the peer up to this number have been taken, or are lost.
    pub(crate) fn took(&mut self, number: u32, with_frame: bool, now_ps: u64) {
        self.taken.push_back((number, now_ps));
        if with_frame {
            self.talk(now_ps);
        }
    }

    /// The last frame of the peer that is over here, where answers need so long.
    pub(crate) fn over(&mut self, now_ps: u64, answer_ps: u64) -> u32 {
        while let Some((number, _)) = self.taken.pop_front_if(|(_, at_ps)| at_ps.saturating_add(answer_ps) <= now_ps) {
            self.over = number;
        }
        self.over
    }

    /// When all that has been taken is over.
    pub(crate) fn all_over_ps(&self, answer_ps: u64) -> Option<u64> {
        self.taken.back().map(|(_, at_ps)| at_ps.saturating_add(answer_ps))
    }

    /// The peer has reported its clock, and which frame is over there.
    pub(crate) fn update(&mut self, clock_ps: u64, over: Option<u32>, now_ps: u64) {
        while self.under_way.pop_front_if(|(number, _)| over.is_some_and(|over| reaches(over, *number))).is_some() {}
        let moved_ps = clock_ps.saturating_sub(self.clock_ps);
        self.clock_ps = self.clock_ps.max(clock_ps);
        self.limit_ps = self.limit_ps.saturating_add(moved_ps).min(now_ps.saturating_add(AHEAD_PS));
    }

    /// The own clock is there now. It may be farther than its limits: because a call was executed to its end at once,
    /// or for frames to be over that were taken. Frames under way are given that much more time then, as if they had
    /// been sent later; and a lead is never less than none, or the leads of two machines would add up to less each
    /// time, in the end to nothing.
    pub(crate) fn reached(&mut self, taken: u32, answer_ps: u64, now_ps: u64) {
        let ahead_ps = self.frames_limit_ps(taken, answer_ps).map_or(0, |limit_ps| now_ps.saturating_sub(limit_ps));
        if ahead_ps > 0 {
            self.under_way.iter_mut().for_each(|(_, at_ps)| *at_ps = at_ps.saturating_add(ahead_ps));
        }
        self.limit_ps = self.limit_ps.max(now_ps);
    }

    /// How far the own clock may go for the frames that are under way, if the peer has taken those up to `taken`.
    pub(crate) fn frames_limit_ps(&self, taken: u32, answer_ps: u64) -> Option<u64> {
        let (_, oldest_ps) = self.under_way.front()?;
        let over_ps = oldest_ps.saturating_add(UNTAKEN_PS).saturating_add(answer_ps);
        // The oldest that is not taken may be another one, perhaps of the same moment.
        let untaken = self.under_way.partition_point(|(number, _)| reaches(taken, *number));
        let untaken_ps = self.under_way.get(untaken).map(|(_, at_ps)| at_ps.saturating_add(UNTAKEN_PS));
        Some(untaken_ps.map_or(over_ps, |untaken_ps| untaken_ps.min(over_ps)))
    }

    /// How far it may go for the talk.
    pub(crate) fn talk_limit_ps(&self, now_ps: u64) -> Option<u64> {
        self.talks(now_ps).then_some(self.limit_ps)
    }

    /// Whether a limit is so near that the peer should be asked.
    pub(crate) fn is_near(&self, now_ps: u64) -> bool {
        let old = self.under_way.front().is_some_and(|(_, at_ps)| now_ps >= at_ps.saturating_add(UNTAKEN_PS / 4 * 3));
        old || self.talk_limit_ps(now_ps).is_some_and(|limit_ps| now_ps.saturating_add(AHEAD_PS / 2) >= limit_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER_PS: u64 = 50_000_000;

    #[test]
    fn a_frame_that_is_not_taken_holds_the_clock_and_one_that_is_over_does_not() {
        let mut pace = Pace::new(0, 0);
        assert_eq!((pace.frames_limit_ps(0, ANSWER_PS), pace.talk_limit_ps(5)), (None, None), "nothing under way");
        pace.sent(1, 1_000);
        pace.sent(2, 2_000);
        assert_eq!(pace.frames_limit_ps(0, ANSWER_PS), Some(1_000 + UNTAKEN_PS));
        assert_eq!(pace.frames_limit_ps(1, ANSWER_PS), Some(2_000 + UNTAKEN_PS), "the second is not taken yet");
        assert_eq!(pace.frames_limit_ps(2, ANSWER_PS), Some(1_000 + UNTAKEN_PS + ANSWER_PS));
        assert!(!pace.is_near(1_000 + UNTAKEN_PS / 2) && pace.is_near(1_000 + UNTAKEN_PS));
        pace.update(0, Some(1), 3_000);
        assert_eq!(pace.frames_limit_ps(1, ANSWER_PS), Some(2_000 + UNTAKEN_PS));
        pace.update(0, Some(2), 3_000);
        assert_eq!(pace.frames_limit_ps(2, ANSWER_PS), None);
    }

    #[test]
    fn numbers_wrap() {
        let mut pace = Pace::new(0, u32::MAX - 1);
        pace.sent(u32::MAX, 0);
        pace.sent(0, 0);
        pace.update(0, Some(u32::MAX), 0);
        assert_eq!(pace.frames_limit_ps(u32::MAX, ANSWER_PS), Some(UNTAKEN_PS));
        assert_eq!(pace.frames_limit_ps(0, ANSWER_PS), Some(UNTAKEN_PS + ANSWER_PS));
        pace.took(u32::MAX, true, 10);
        pace.took(0, true, 20);
        assert_eq!(pace.over(10 + ANSWER_PS - 1, ANSWER_PS), u32::MAX - 1);
        assert_eq!(
            (pace.over(10 + ANSWER_PS, ANSWER_PS), pace.all_over_ps(ANSWER_PS)),
            (u32::MAX, Some(20 + ANSWER_PS))
        );
        assert_eq!((pace.over(20 + ANSWER_PS, ANSWER_PS), pace.all_over_ps(ANSWER_PS)), (0, None));
    }

    #[test]
    fn a_clock_that_stands_still_is_left_behind_by_a_lead_and_no_more_while_the_two_talk() {
        let mut pace = Pace::new(7_000, 0);
        pace.took(1, true, 100);
        assert_eq!(pace.talk_limit_ps(100), Some(100 + AHEAD_PS));
        // It has moved less than the own clock: the lead is used up.
        pace.update(7_000 + AHEAD_PS / 4, None, 100 + AHEAD_PS);
        assert_eq!(pace.talk_limit_ps(100 + AHEAD_PS), Some(100 + AHEAD_PS / 4 * 5));
        // It has moved a lot: the lead is a lead.
        pace.update(7_000 + 10 * AHEAD_PS, None, 2 * AHEAD_PS);
        assert_eq!(pace.talk_limit_ps(2 * AHEAD_PS), Some(3 * AHEAD_PS));
        // An older report changes nothing.
        pace.update(7_000, None, 2 * AHEAD_PS);
        assert_eq!(pace.talk_limit_ps(2 * AHEAD_PS), Some(3 * AHEAD_PS));
        assert_eq!(pace.talk_limit_ps(100 + TALK_PS), None, "silence holds nobody");
        pace.sent(1, 100 + TALK_PS);
        assert_eq!(pace.talk_limit_ps(100 + TALK_PS), Some(100 + TALK_PS + AHEAD_PS), "a new talk, a new lead");
    }

    /// Machines that all wait for one another: the one whose frame was taken last can let it be over.
    #[test]
    fn a_circle_of_machines_with_frames_under_way_comes_to_an_end() {
        for machines in 2..6_usize {
            // `paces[from]` is with the next; `back[to]` with the one before.
            let mut clocks = vec![0_u64; machines];
            let mut paces: Vec<Pace> = (0..machines).map(|_| Pace::new(0, 0)).collect();
            let mut back: Vec<Pace> = (0..machines).map(|_| Pace::new(0, 0)).collect();
            let mut known = vec![0; machines];
            paces.iter_mut().for_each(|pace| pace.sent(1, 0));
            let go = |clocks: &mut [u64], paces: &[Pace], known: &[u32]| {
                for (clock_ps, (pace, known)) in clocks.iter_mut().zip(paces.iter().zip(known)) {
                    let limit_ps = pace.frames_limit_ps(*known, ANSWER_PS).unwrap_or(u64::MAX);
                    *clock_ps = limit_ps.min(*clock_ps + 10 * UNTAKEN_PS).max(*clock_ps);
                }
            };
            go(&mut clocks, &paces, &known);
            assert!(clocks.iter().all(|clock_ps| *clock_ps == UNTAKEN_PS), "nobody goes on: {clocks:?}");
            // All take at the last moment, and report.
            for to in 0..machines {
                back[to].took(1, true, clocks[to]);
            }
            known.fill(1);
            go(&mut clocks, &paces, &known);
            for from in 0..machines {
                let to = (from + 1) % machines;
                let over = back[to].over(clocks[to], ANSWER_PS);
                assert_eq!(over, 1, "{machines} machines: {clocks:?}");
                paces[from].update(clocks[to], Some(over), clocks[from]);
                assert_eq!(paces[from].frames_limit_ps(1, ANSWER_PS), None);
            }
        }
    }
}
