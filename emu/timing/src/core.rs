//! The issue port of one core: which of its threads executes an instruction when.
//!
//! One instruction (or as many as the model says) per cycle; among the threads that are ready, the one that has issued least recently.
//! Threads that have never issued come first, in the order of their numbers.
//!
//! Most instructions touch registers only. The machine executes them ahead of time (a burst) and leaves it to the core to issue them
//! one by one, [`Core::schedule`]; the core comes back, [`Core::advance`], when a thread's next instruction has to be executed at the
//! cycle of its issue. Threads that become ready within [`NEAR`] cycles are in a wheel of one slot per cycle.
//!
//! Issues are numbered, and a set of threads is a set of the numbers of their last issues, one bit each: the lowest bit is the thread that
//! has issued least recently. When the numbers reach [`ISSUES`] they begin again behind the threads' last ones.

/// Threads of a core.
pub const THREADS: usize = 16;

/// Cycles that the wheel looks ahead.
const NEAR: u64 = 64;

/// Issues that a core remembers; one bit each.
const ISSUES: usize = 64;

/// Before anything has issued: the threads in the order of their numbers.
const FIRST_OWNERS: [u8; ISSUES] = {
    let mut owners = [0; ISSUES];
    let mut thread = 0;
    while thread < THREADS {
        owners[thread] = thread as u8;
        thread += 1;
    }
    owners
};

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
    /// Whose the last issues were, numbered from some time on; the threads' last ones are kept, and begin the list.
    owners: [u8; ISSUES],
    /// The number of each thread's last issue: of two threads the one with the lower number has issued less recently.
    last: [u8; THREADS],
    /// The number of the next issue.
    next: usize,
    /// Threads that are ready and wait for a slot: the numbers of their last issues, as bits.
    waiting: u64,
    /// Threads that become ready in cycle `c`, in the same way, at `c % NEAR`, and the slots in which there are any.
    wheel: [u64; NEAR as usize],
    occupied: u64,
    /// Threads that become ready later than that, when, and the first of it.
    far: u16,
    far_at: [u64; THREADS],
    first_far_at: u64,
    threads: [Ahead; THREADS],
    issues: u64,
    /// The thread that [`Core::advance`] has found, and when; `NEVER` without one.
    asked: u8,
    asked_at: u64,
}

/// What a thread has before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ahead {
    /// Ordinary instructions that it issues before it comes back.
    left: u32,
    /// Thousandths of a cycle that its gaps have added up to.
    carried: u32,
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
        Core {
            width,
            gap_millicycles,
            gap: gap_millicycles / 1000,
            gap_rest: (gap_millicycles % 1000) as u32,
            now: 0,
            gone: 0,
            owners: FIRST_OWNERS,
            last: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            next: THREADS,
            waiting: 0,
            wheel: [0; NEAR as usize],
            occupied: 0,
            far: 0,
            far_at: [NEVER; THREADS],
            first_far_at: NEVER,
            threads: [Ahead { left: 0, carried: 0 }; THREADS],
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
        let carried = self.threads[thread].carried + self.gap_rest;
        let whole = u32::from(carried >= 1000);
        self.threads[thread].carried = carried - 1000 * whole;
        self.gap + u64::from(whole)
    }

    /// A thread is ready from `at` on, issues `ordinary` instructions that have been executed already, and then comes back. It must not
    /// be scheduled yet. A thread of which the core has not been told has none.
    #[inline]
    pub fn schedule(&mut self, thread: usize, at: u64, ordinary: u32) {
        self.threads[thread].left = ordinary;
        self.arrive(thread, at);
    }

    #[inline]
    fn arrive(&mut self, thread: usize, at: u64) {
        if at <= self.now {
            self.queue(thread);
        } else if at - self.now < NEAR {
            self.wheel[(at % NEAR) as usize] |= self.bit(thread);
            self.occupied |= 1 << (at % NEAR);
        } else {
            self.far |= 1 << thread;
            self.far_at[thread] = at;
            self.first_far_at = self.first_far_at.min(at);
        }
    }

    /// A thread waits for a slot.
    #[inline]
    fn queue(&mut self, thread: usize) {
        self.waiting |= self.bit(thread);
    }

    /// The number of a thread's last issue.
    #[inline]
    fn bit(&self, thread: usize) -> u64 {
        1 << (self.last[thread] % ISSUES as u8)
    }

    /// A thread has gone to sleep or has ended, wherever it was.
    pub fn leave(&mut self, thread: usize) {
        let others = !self.bit(thread);
        self.waiting &= others;
        for slot in 0..NEAR as usize {
            self.wheel[slot] &= others;
            if self.wheel[slot] == 0 {
                self.occupied &= !(1 << slot);
            }
        }
        self.far &= !(1 << thread);
        self.first_far_at = first(self.far, &self.far_at);
        if usize::from(self.asked) == thread {
            self.asked_at = NEVER;
        }
    }

    /// Cycle before which no thread issues; none without a thread.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        match (self.asked_at, self.waiting) {
            (NEVER, 0) => Some(self.next_arrival()).filter(|at| *at != NEVER),
            (NEVER, _) => Some(self.now),
            (at, _) => Some(at),
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

    /// The numbers of issues have run out: those before the last ones of the threads are forgotten, and these numbered from 0 on.
    #[cold]
    fn renumber(&mut self) {
        let mut kept = self.last.iter().fold(0u64, |kept, last| kept | 1 << (last % ISSUES as u8));
        let mut number_of = [0u8; ISSUES];
        let owners = self.owners;
        for number in 0..THREADS {
            let old = kept.trailing_zeros() as usize % ISSUES;
            kept &= kept.wrapping_sub(1);
            number_of[old] = number as u8;
            self.owners[number] = owners[old];
            self.last[usize::from(owners[old]) % THREADS] = number as u8;
        }
        self.next = THREADS;
        let renumbered = |mut old: u64| {
            let mut new = 0;
            while old != 0 {
                new |= 1 << number_of[old.trailing_zeros() as usize % ISSUES];
                old &= old - 1;
            }
            new
        };
        self.waiting = renumbered(self.waiting);
        let mut slots = self.occupied;
        while slots != 0 {
            let slot = &mut self.wheel[slots.trailing_zeros() as usize % NEAR as usize];
            *slot = renumbered(*slot);
            slots &= slots - 1;
        }
    }

    /// Issues what has been executed ahead, until a thread's next instruction has to be executed: at a cycle before `before`, or
    /// `None`. That thread is not ready again before [`Core::schedule`]; until [`Core::take`] takes it, the answer stays the same.
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

    /// What changes with every instruction is in locals: this loop is most of what a timed run takes.
    fn issue_ahead<const WIDTH: u32>(&mut self, before: u64) {
        let Core { mut now, mut gone, mut next, mut waiting, mut occupied, .. } = *self;
        let mut issued = 0;
        self.asked_at = loop {
            if waiting == 0 {
                let near = occupied.rotate_right((now % NEAR) as u32).trailing_zeros();
                let near_at = if occupied == 0 { NEVER } else { now + u64::from(near) };
                let first_at = near_at.min(self.first_far_at);
                if first_at >= before {
                    break NEVER;
                }
                if first_at > now {
                    (now, gone) = (first_at, 0);
                }
            } else if now >= before {
                break NEVER;
            }
            if next == ISSUES {
                (self.waiting, self.occupied) = (waiting, occupied);
                self.renumber();
                (waiting, next) = (self.waiting, self.next);
            }
            // Those that have become ready wait for a slot.
            let slot = now % NEAR;
            occupied &= !(1 << slot);
            waiting |= std::mem::take(&mut self.wheel[slot as usize]);
            if self.first_far_at <= now {
                (self.now, self.waiting) = (now, waiting);
                self.collect_far();
                waiting = self.waiting;
            }
            // The one that has issued least recently issues.
            let thread = self.owners[waiting.trailing_zeros() as usize % ISSUES];
            waiting &= waiting.wrapping_sub(1);
            let bit = 1u64 << (next % ISSUES);
            self.owners[next % ISSUES] = thread;
            self.last[usize::from(thread) % THREADS] = next as u8;
            next += 1;
            let Ahead { left, carried } = self.threads[usize::from(thread) % THREADS];
            if waiting == 0 && left > 0 && WIDTH == 1 {
                // It issues all that it has left, if no other becomes ready before it comes back.
                let near = occupied.rotate_right((now % NEAR) as u32).trailing_zeros();
                let near_at = if occupied == 0 { NEVER } else { now + u64::from(near) };
                let whole = self.gap_millicycles * u64::from(left) + u64::from(carried);
                let at = now + whole / 1000;
                if at < near_at.min(self.first_far_at).min(before) {
                    self.threads[usize::from(thread) % THREADS] = Ahead { left: 0, carried: (whole % 1000) as u32 };
                    issued += u64::from(left) + 1;
                    now = at + 1;
                    self.asked = thread;
                    break at;
                }
            }
            let at = now;
            issued += 1;
            if WIDTH > 1 {
                gone += 1;
            }
            if WIDTH == 1 || gone >= WIDTH {
                (now, gone) = (at + 1, 0);
            }
            if left == 0 {
                self.asked = thread;
                break at;
            }
            let carried = carried + self.gap_rest;
            let more = u32::from(carried >= 1000);
            self.threads[usize::from(thread) % THREADS] = Ahead { left: left - 1, carried: carried - 1000 * more };
            // Gaps are shorter than the wheel, and at least a cycle.
            let ready_at = at + self.gap + u64::from(more);
            if WIDTH == 1 || ready_at > now {
                // Of a port that issues one instruction per cycle, the next cycle is the earliest: its slot is looked at then.
                self.wheel[(ready_at % NEAR) as usize] |= bit;
                occupied |= 1 << (ready_at % NEAR);
            } else {
                waiting |= bit;
            }
        };
        (self.now, self.gone, self.next, self.waiting, self.occupied) = (now, gone, next, waiting, occupied);
        self.issues += issued;
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
