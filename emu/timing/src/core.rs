//! The issue port of one core: which of its threads executes an instruction when.
//!
//! One instruction (or as many as the model says) per cycle; among the threads that are ready, the one that has issued
//! least recently. Threads that have never issued come first, in the order of their numbers.
//!
//! Most instructions touch registers only, or memory that nobody else is about to touch. The machine executes them
//! ahead of time (a burst) and leaves it to the core to issue them one by one, [`Core::schedule`]; the core comes back,
//! [`Core::advance`], when a thread's next instruction has to be executed at the cycle of its issue. Until then the
//! machine may take back what has not been issued, [`Core::cut`].
//!
//! Threads are in a ring in the order of their last issues, four bits each in one number: the one in front is nearly
//! always the next. Those that become ready much later are parked elsewhere, so that they are not examined every cycle.

/// Threads of a core.
pub const THREADS: usize = 16;

/// The most instructions that a thread may have executed ahead.
pub const MOST_AHEAD: u32 = 32;

/// Who is ready within so many cycles is in the ring.
const PARKED: u64 = 40;

/// A thread that is not on the core, and a time that does not come.
const NEVER: u64 = u64::MAX;

/// Numbers of threads, four bits each, the first in the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    threads: u64,
    len: u32,
}

impl Ring {
    #[inline(always)]
    fn get(self, place: u32) -> usize {
        (self.threads >> (4 * place)) as usize % THREADS
    }

    /// All but the first.
    #[inline(always)]
    fn rest(self) -> Ring {
        Ring { threads: self.threads >> 4, len: self.len.wrapping_sub(1) }
    }

    /// One more behind all.
    #[inline(always)]
    fn and(self, thread: usize) -> Ring {
        Ring { threads: self.threads | (thread as u64) << (4 * self.len), len: self.len + 1 }
    }

    /// All but the one at a place.
    #[inline(always)]
    fn without(self, place: u32) -> Ring {
        let before = (1 << (4 * place)) - 1;
        Ring { threads: self.threads & before | (self.threads >> 4) & !before, len: self.len - 1 }
    }

    /// One more at a place.
    #[inline(always)]
    fn with(self, place: u32, thread: usize) -> Ring {
        let before = (1 << (4 * place)) - 1;
        let behind = (self.threads & !before) << 4;
        Ring { threads: self.threads & before | (thread as u64) << (4 * place) | behind, len: self.len + 1 }
    }

    fn places(self) -> std::ops::Range<u32> {
        0..self.len
    }
}

/// The issue port of one core. Times are cycles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Instructions issued in one cycle.
    width: u32,
    /// From an ordinary instruction of a thread to its next, in thousandths of a cycle.
    gap_millicycles: u64,
    /// From an instruction executed ahead to the thread's next, by what it is: cycles, and thousandths that are carried
    /// on.
    takes: [(u64, u32); 4],
    /// The first cycle that has issue slots left, and how many of its are gone.
    now: u64,
    gone: u32,
    /// Threads that are ready or nearly so, the one that has issued least recently first.
    ring: Ring,
    /// Others that will be ready, one bit each, and when the first will.
    parked: u16,
    first_parked_at: u64,
    /// When each is ready.
    ready_at: [u64; THREADS],
    /// The number of each thread's last issue.
    last: [u64; THREADS],
    threads: [RunAhead; THREADS],
    issues: u64,
    /// The thread that [`Core::advance`] has found, and when; `NEVER` without one.
    asked: u8,
    asked_at: u64,
}

/// What a thread has before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunAhead {
    /// Instructions that it issues before it comes back.
    left: u32,
    /// Thousandths of a cycle that its gaps have added up to.
    carried: u32,
    /// What they are, two bits each, the next in the lowest.
    kinds: u64,
}

/// The low bit of each of the two-bit kinds.
const LOW_BITS: u64 = u64::MAX / 3;

/// A thread's turn: its next instruction is to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Number of the thread on its core.
    pub thread: usize,
    /// The cycle.
    pub at: u64,
}

impl Core {
    /// A core without threads that issues up to `width` instructions per cycle. Those of one thread are issued at least
    /// `gap_millicycles` thousandths of a cycle (1000 and more) after one another. Loads and stores executed ahead take
    /// that many cycles, at least 1.
    #[must_use]
    pub const fn new(width: u32, gap_millicycles: u64, load_cycles: u64, store_cycles: u64) -> Self {
        let ordinary = (gap_millicycles / 1000, (gap_millicycles % 1000) as u32);
        Core {
            width,
            gap_millicycles,
            takes: [ordinary, (load_cycles, 0), (store_cycles, 0), ordinary],
            now: 0,
            gone: 0,
            ring: Ring { threads: 0, len: 0 },
            parked: 0,
            first_parked_at: NEVER,
            ready_at: [NEVER; THREADS],
            last: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            threads: [RunAhead { left: 0, carried: 0, kinds: 0 }; THREADS],
            issues: 0,
            asked: 0,
            asked_at: NEVER,
        }
    }

    /// Instructions issued so far.
    #[must_use]
    pub const fn issues(&self) -> u64 {
        self.issues
    }

    /// Cycles from an ordinary instruction of a thread to its next. Where the gap is not whole, it takes turns.
    #[inline]
    pub fn gap(&mut self, thread: usize) -> u64 {
        let (cycles, rest) = self.takes[0];
        let carried = self.threads[thread].carried + rest;
        let whole = u32::from(carried >= 1000);
        self.threads[thread].carried = carried - 1000 * whole;
        cycles + u64::from(whole)
    }

    /// A thread is ready from `at` on, issues `ahead` instructions (up to [`MOST_AHEAD`]) that have been executed
    /// already, and then comes back. `kinds` gives what they are, two bits each, the first in the lowest: 0 an ordinary
    /// one, 1 a load, 2 a store. It must not be scheduled yet. A thread that was never scheduled has none.
    #[inline]
    pub fn schedule(&mut self, thread: usize, at: u64, ahead: u32, kinds: u64) {
        self.threads[thread].left = ahead;
        self.threads[thread].kinds = kinds;
        self.arrive(thread, at);
    }

    /// Instructions that a thread has executed and the core has not issued.
    #[must_use]
    #[inline]
    pub fn left(&self, thread: usize) -> u32 {
        self.threads[thread].left
    }

    /// A thread issues only the next `left` of the instructions that it has executed ahead, and comes back then.
    pub fn cut(&mut self, thread: usize, left: u32) {
        let ahead = &mut self.threads[thread];
        ahead.left = ahead.left.min(left);
    }

    #[inline]
    fn arrive(&mut self, thread: usize, at: u64) {
        self.ready_at[thread] = at;
        if at <= self.now + PARKED {
            self.insert(thread);
        } else {
            self.parked |= 1 << thread;
            self.first_parked_at = self.first_parked_at.min(at);
        }
    }

    /// Puts a thread to its place in the ring.
    #[inline]
    fn insert(&mut self, thread: usize) {
        let (ring, last) = (self.ring, self.last[thread]);
        let is_latest = ring.len == 0 || self.last[ring.get(ring.len - 1)] < last;
        let place = if is_latest {
            ring.len
        } else {
            ring.places().find(|place| self.last[ring.get(*place)] > last).unwrap_or(ring.len)
        };
        self.ring = ring.with(place, thread);
    }

    /// A thread has gone to sleep or has ended, wherever it was.
    pub fn leave(&mut self, thread: usize) {
        if let Some(place) = self.ring.places().find(|place| self.ring.get(*place) == thread) {
            self.ring = self.ring.without(place);
        }
        self.parked &= !(1 << thread);
        self.first_parked_at = self.first_parked();
        if usize::from(self.asked) == thread {
            self.asked_at = NEVER;
        }
    }

    /// Cycle before which no thread issues; none without a thread.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        if self.asked_at != NEVER {
            return Some(self.asked_at);
        }
        if self.ring.len > 0 && self.ready_at[self.ring.get(0)] <= self.now {
            return Some(self.now);
        }
        let in_ring = self.ring.places().map(|place| self.ready_at[self.ring.get(place)]).min().unwrap_or(NEVER);
        Some(in_ring.min(self.first_parked_at)).filter(|at| *at != NEVER).map(|at| at.max(self.now))
    }

    fn first_parked(&self) -> u64 {
        bits(self.parked).map(|thread| self.ready_at[thread]).min().unwrap_or(NEVER)
    }

    /// Those that are ready come into the ring.
    #[cold]
    fn unpark(&mut self) {
        for thread in bits(self.parked) {
            if self.ready_at[thread] <= self.now {
                self.parked &= !(1 << thread);
                self.insert(thread);
            }
        }
        self.first_parked_at = self.first_parked();
    }

    /// Issues what has been executed ahead, until a thread's next instruction has to be executed: at a cycle before
    /// `before`, or `None`. That thread is not ready again before [`Core::schedule`]; until [`Core::take`] takes it,
    /// the answer stays the same.
    #[inline]
    pub fn advance(&mut self, before: u64) -> Option<Issue> {
        if self.asked_at == NEVER {
            match self.width {
                1 => self.issue_ahead::<1>(before),
                _ => self.issue_ahead::<2>(before),
            }
        }
        (self.asked_at < before).then(|| Issue { thread: usize::from(self.asked), at: self.asked_at })
    }

    /// The thread that [`Core::advance`] has found is being served.
    #[inline]
    pub fn take(&mut self) -> Option<Issue> {
        let at = std::mem::replace(&mut self.asked_at, NEVER);
        (at != NEVER).then(|| Issue { thread: usize::from(self.asked), at })
    }

    /// What changes with every instruction is in locals: this loop is much of what a timed run takes.
    fn issue_ahead<const WIDTH: u32>(&mut self, before: u64) {
        let Core { mut now, mut gone, mut ring, issues: issued, .. } = *self;
        let mut issues = issued;
        self.asked_at = loop {
            if self.first_parked_at <= now {
                (self.now, self.ring) = (now, ring);
                self.unpark();
                ring = self.ring;
            }
            // The one that has issued least recently of those that are ready.
            let (mut thread, mut others) = (ring.get(0), ring.rest());
            if ring.len == 0 || self.ready_at[thread] > now {
                let Some(place) = ring.places().find(|place| self.ready_at[ring.get(*place)] <= now) else {
                    let in_ring = ring.places().map(|place| self.ready_at[ring.get(place)]).min().unwrap_or(NEVER);
                    let next_at = in_ring.min(self.first_parked_at);
                    if next_at >= before {
                        break NEVER;
                    }
                    (now, gone) = (next_at, 0);
                    continue;
                };
                (thread, others) = (ring.get(place), ring.without(place));
            }
            if now >= before {
                break NEVER;
            }
            let at = now;
            if WIDTH > 1 {
                gone += 1;
            }
            if WIDTH == 1 || gone >= WIDTH {
                (now, gone) = (at + 1, 0);
            }
            // Issues begin after the numbers of threads that have not issued yet.
            self.last[thread] = issues + THREADS as u64;
            issues += 1;
            let RunAhead { left, carried, kinds } = self.threads[thread];
            if left == 0 {
                ring = others;
                self.asked = thread as u8;
                break at;
            }
            if WIDTH == 1 && others.len == 0 {
                // It issues all that it has left, if no other becomes ready before it comes back.
                let [loads, stores] = [kinds, kinds >> 1].map(|bits| {
                    let bits = if left < MOST_AHEAD { bits & ((1 << (2 * left)) - 1) } else { bits };
                    u64::from((bits & LOW_BITS).count_ones())
                });
                let ordinary = u64::from(left) - loads - stores;
                let whole = self.gap_millicycles * ordinary + u64::from(carried);
                let asked_at = at + whole / 1000 + loads * self.takes[1].0 + stores * self.takes[2].0;
                if asked_at < self.first_parked_at.min(before) {
                    let carried = (whole % 1000) as u32;
                    self.threads[thread] = RunAhead { left: 0, carried, kinds: 0 };
                    issues += u64::from(left);
                    (now, ring) = (asked_at + 1, others);
                    self.asked = thread as u8;
                    break asked_at;
                }
            }
            ring = others.and(thread);
            let (cycles, rest) = self.takes[kinds as usize % 4];
            let carried = carried + rest;
            let more = u32::from(carried >= 1000);
            self.threads[thread] = RunAhead { left: left - 1, carried: carried - 1000 * more, kinds: kinds >> 2 };
            self.ready_at[thread] = at + cycles + u64::from(more);
        };
        (self.now, self.gone, self.ring, self.issues) = (now, gone, ring, issues);
    }
}

fn bits(mut mask: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < THREADS).then_some(bit)
    })
}

#[cfg(test)]
mod tests;
