//! The issue port of one core: which of its threads executes an instruction when.
//!
//! One instruction (or as many as the model says) per cycle; among the threads that are ready, the one that has issued least recently.
//! Threads that have never issued come first, in the order of their numbers.
//!
//! Most instructions touch registers only. The machine executes them ahead of time (a burst) and leaves it to the core to issue them
//! one by one, [`Core::schedule`]; the core comes back, [`Core::advance`], when a thread's next instruction has to be executed at the
//! cycle of its issue. Threads that become ready within [`NEAR`] cycles are in a wheel of one slot per cycle.

/// Threads of a core.
pub const THREADS: usize = 16;

/// Cycles that the wheel looks ahead.
const NEAR: u64 = 64;

/// A thread that is not on the core, and a time that does not come.
const NEVER: u64 = u64::MAX;

/// The issue port of one core. Times are cycles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Instructions issued in one cycle.
    width: u32,
    /// From an ordinary instruction of a thread to its next: thousandths of a cycle, and the same as cycles and a rest.
    gap_millicycles: u64,
    gap: u64,
    gap_rest: u32,
    /// The first cycle that has issue slots left, and how many of its are gone.
    now: u64,
    gone: u32,
    /// Threads that are ready and wait for a slot, the one that has issued least recently first: four bits each, from the lowest.
    waiting: u64,
    waiters: u32,
    /// Number of each thread's last issue, which begins behind the numbers of the threads: those that have never issued have these.
    issued: [u64; THREADS],
    /// Threads that become ready in cycle `c`, at `c % NEAR`, and the slots in which there are any.
    wheel: [u16; NEAR as usize],
    occupied: u64,
    /// Threads that become ready later than that, when, and the first of it.
    far: u16,
    far_at: [u64; THREADS],
    first_far_at: u64,
    /// Ordinary instructions that a thread issues before it comes back.
    left: [u32; THREADS],
    /// Thousandths of a cycle that the thread's gaps have added up to.
    carried: [u32; THREADS],
    issues: u64,
    asked: Option<Issue>,
}

/// A thread's turn: its next instruction is to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Number of the thread on its core.
    pub thread: usize,
    /// The cycle.
    pub at: u64,
}

impl Core {
    /// A core without threads that issues up to `width` instructions per cycle, those of one thread at least `gap_millicycles`
    /// thousandths of a cycle (1000 and more) apart.
    #[must_use]
    pub const fn new(width: u32, gap_millicycles: u64) -> Self {
        let mut issued = [0; THREADS];
        let mut thread = 0;
        while thread < THREADS {
            issued[thread] = thread as u64;
            thread += 1;
        }
        Core {
            width,
            gap_millicycles,
            gap: gap_millicycles / 1000,
            gap_rest: (gap_millicycles % 1000) as u32,
            now: 0,
            gone: 0,
            waiting: 0,
            waiters: 0,
            issued,
            wheel: [0; NEAR as usize],
            occupied: 0,
            far: 0,
            far_at: [NEVER; THREADS],
            first_far_at: NEVER,
            left: [0; THREADS],
            carried: [0; THREADS],
            issues: 0,
            asked: None,
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
        let carried = self.carried[thread] + self.gap_rest;
        if carried >= 1000 {
            self.carried[thread] = carried - 1000;
            self.gap + 1
        } else {
            self.carried[thread] = carried;
            self.gap
        }
    }

    /// A thread is ready from `at` on, issues `ordinary` instructions that have been executed already, and then comes back. It must not
    /// be scheduled yet. A thread of which the core has not been told has none.
    #[inline]
    pub fn schedule(&mut self, thread: usize, at: u64, ordinary: u32) {
        self.left[thread] = ordinary;
        self.arrive(thread, at);
    }

    #[inline]
    fn arrive(&mut self, thread: usize, at: u64) {
        if at <= self.now {
            self.queue(thread);
        } else if at - self.now < NEAR {
            self.wheel[(at % NEAR) as usize] |= 1 << thread;
            self.occupied |= 1 << (at % NEAR);
        } else {
            self.far |= 1 << thread;
            self.far_at[thread] = at;
            self.first_far_at = self.first_far_at.min(at);
        }
    }

    /// A thread waits for a slot: behind those that have issued less recently. Most come to the end.
    #[inline]
    fn queue(&mut self, thread: usize) {
        let mut place = self.waiters;
        while place > 0 && self.issued[self.waiter(place - 1)] > self.issued[thread] {
            place -= 1;
        }
        let before = (1u64 << (4 * place)) - 1;
        let after = if place == self.waiters { 0 } else { self.waiting & !before };
        self.waiting = self.waiting & before | (thread as u64) << (4 * place) | after << 4;
        self.waiters += 1;
    }

    #[inline]
    fn waiter(&self, place: u32) -> usize {
        (self.waiting >> (4 * place)) as usize % THREADS
    }

    /// A thread has gone to sleep or has ended, wherever it was.
    pub fn leave(&mut self, thread: usize) {
        let others = !(1u16 << thread);
        let place = (0..self.waiters).find(|place| self.waiter(*place) == thread);
        if let Some(place) = place {
            let before = (1u64 << (4 * place)) - 1;
            self.waiting = self.waiting & before | self.waiting >> 4 & !before;
            self.waiters -= 1;
        }
        for slot in 0..NEAR as usize {
            self.wheel[slot] &= others;
            if self.wheel[slot] == 0 {
                self.occupied &= !(1 << slot);
            }
        }
        self.far &= others;
        self.first_far_at = first(self.far, &self.far_at);
        self.asked = self.asked.filter(|issue| issue.thread != thread);
    }

    /// Cycle before which no thread issues; none without a thread.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        match (self.asked, self.waiters) {
            (Some(issue), _) => Some(issue.at),
            (None, 0) => Some(self.next_arrival()).filter(|at| *at != NEVER),
            (None, _) => Some(self.now),
        }
    }

    /// When the next thread becomes ready.
    #[inline]
    fn next_arrival(&self) -> u64 {
        if self.occupied == 0 {
            return self.first_far_at;
        }
        let distance = self.occupied.rotate_right((self.now % NEAR) as u32).trailing_zeros();
        self.first_far_at.min(self.now + u64::from(distance))
    }

    /// Those that have become ready wait for a slot.
    #[inline]
    fn collect(&mut self) {
        let slot = (self.now % NEAR) as usize;
        for thread in bits(std::mem::take(&mut self.wheel[slot])) {
            self.queue(thread);
        }
        self.occupied &= !(1 << slot);
        if self.first_far_at <= self.now {
            self.collect_far();
        }
    }

    #[cold]
    fn collect_far(&mut self) {
        for thread in bits(self.far) {
            if self.far_at[thread] <= self.now {
                self.far &= !(1 << thread);
                self.queue(thread);
            }
        }
        self.first_far_at = first(self.far, &self.far_at);
    }

    /// Issues what has been executed ahead, until a thread's next instruction has to be executed: at a cycle before `before`, or
    /// `None`. That thread is not ready again before [`Core::schedule`]; until [`Core::take`] takes it, the answer stays the same.
    #[inline]
    pub fn advance(&mut self, before: u64) -> Option<Issue> {
        if self.asked.is_none() {
            self.issue_ahead(before);
        }
        self.asked.filter(|issue| issue.at < before)
    }

    /// The thread that [`Core::advance`] has found is being served.
    #[inline]
    pub fn take(&mut self) -> Option<Issue> {
        self.asked.take()
    }

    fn issue_ahead(&mut self, before: u64) {
        loop {
            if self.waiters == 0 {
                let next = self.next_arrival();
                if next >= before {
                    return;
                }
                if next > self.now {
                    (self.now, self.gone) = (next, 0);
                }
            }
            if self.now >= before {
                return;
            }
            self.collect();
            let (thread, at) = (self.waiter(0), self.now);
            self.waiting >>= 4;
            self.waiters -= 1;
            let left = self.left[thread];
            if left > 0 && self.waiters == 0 && self.width == 1 && self.issue_alone(thread, left, before) {
                return;
            }
            self.count(thread, 1);
            self.gone += 1;
            if self.gone >= self.width {
                (self.now, self.gone) = (at + 1, 0);
            }
            if left == 0 {
                self.asked = Some(Issue { thread, at });
                return;
            }
            self.left[thread] = left - 1;
            let gap = self.gap(thread);
            self.arrive(thread, at + gap);
        }
    }

    /// The thread issues all that it has left, if no other becomes ready before it comes back.
    #[inline]
    fn issue_alone(&mut self, thread: usize, left: u32, before: u64) -> bool {
        let whole = self.gap_millicycles * u64::from(left) + u64::from(self.carried[thread]);
        let back_at = self.now + whole / 1000;
        if back_at >= before.min(self.next_arrival()) {
            return false;
        }
        self.carried[thread] = (whole % 1000) as u32;
        self.left[thread] = 0;
        self.count(thread, u64::from(left) + 1);
        (self.now, self.gone) = (back_at + 1, 0);
        self.asked = Some(Issue { thread, at: back_at });
        true
    }

    /// The thread has issued last.
    #[inline]
    fn count(&mut self, thread: usize, instructions: u64) {
        self.issues += instructions;
        self.issued[thread] = THREADS as u64 + self.issues;
    }
}

fn bits(mut mask: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < THREADS).then_some(bit)
    })
}

fn first(threads: u16, at: &[u64; THREADS]) -> u64 {
    bits(threads).map(|thread| at[thread]).min().unwrap_or(NEVER)
}

#[cfg(test)]
mod tests;
