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
    /// All threads, the one that has issued least recently first: four bits each, from the lowest.
    order: u64,
    /// Those that are ready and wait for a slot, by their places in `order`.
    waiting: u16,
    /// Threads that become ready in cycle `c`, at `c % NEAR`, and the slots in which there are any.
    wheel: [u16; NEAR as usize],
    occupied: u64,
    /// Threads that become ready later than that, when, and the first of it.
    far: u16,
    far_at: [u64; THREADS],
    first_far_at: u64,
    threads: [Ahead; THREADS],
    issues: u64,
    asked: Option<Issue>,
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
            order: 0xFEDC_BA98_7654_3210,
            waiting: 0,
            wheel: [0; NEAR as usize],
            occupied: 0,
            far: 0,
            far_at: [NEVER; THREADS],
            first_far_at: NEVER,
            threads: [Ahead { left: 0, carried: 0 }; THREADS],
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
            self.wheel[(at % NEAR) as usize] |= 1 << thread;
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
        self.waiting |= 1 << place(self.order, thread);
    }

    /// A thread has gone to sleep or has ended, wherever it was.
    pub fn leave(&mut self, thread: usize) {
        let others = !(1u16 << thread);
        self.waiting &= !(1 << place(self.order, thread));
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
        match (self.asked, self.waiting) {
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
            match self.width {
                1 => self.issue_ahead::<1>(before),
                _ => self.issue_ahead::<2>(before),
            }
        }
        self.asked.filter(|issue| issue.at < before)
    }

    /// The thread that [`Core::advance`] has found is being served.
    #[inline]
    pub fn take(&mut self) -> Option<Issue> {
        self.asked.take()
    }

    /// What changes with every instruction is in locals: this loop is most of what a timed run takes.
    fn issue_ahead<const WIDTH: u32>(&mut self, before: u64) {
        let Core { mut now, mut gone, mut order, mut waiting, mut occupied, .. } = *self;
        let mut issued = 0;
        let asked = loop {
            if waiting == 0 {
                let near = occupied.rotate_right((now % NEAR) as u32).trailing_zeros();
                let near_at = if occupied == 0 { NEVER } else { now + u64::from(near) };
                let next = near_at.min(self.first_far_at);
                if next >= before {
                    break None;
                }
                if next > now {
                    (now, gone) = (next, 0);
                }
            } else if now >= before {
                break None;
            }
            // Those that have become ready wait for a slot.
            let slot = now % NEAR;
            if occupied >> slot & 1 == 1 {
                occupied &= !(1 << slot);
                let mut ready = std::mem::take(&mut self.wheel[slot as usize]);
                while ready != 0 {
                    waiting |= 1 << place(order, ready.trailing_zeros() as usize);
                    ready &= ready - 1;
                }
            }
            if self.first_far_at <= now {
                (self.now, self.order, self.waiting) = (now, order, waiting);
                self.collect_far();
                waiting = self.waiting;
            }
            // The one that has issued least recently issues, and goes to the end of the order.
            let first = waiting.trailing_zeros();
            let bits = 4 * first;
            let thread = (order >> bits) as usize % THREADS;
            let before_it = (1u64 << bits) - 1;
            order = order & before_it | order >> 4 & !before_it & (u64::MAX >> 4) | (thread as u64) << 60;
            let before_it = (1u32 << first) - 1;
            waiting = (u32::from(waiting) & before_it | u32::from(waiting) >> 1 & !before_it) as u16;
            let Ahead { left, carried } = self.threads[thread];
            if waiting == 0 && left > 0 && WIDTH == 1 {
                // It issues all that it has left, if no other becomes ready before it comes back.
                let near = occupied.rotate_right((now % NEAR) as u32).trailing_zeros();
                let near_at = if occupied == 0 { NEVER } else { now + u64::from(near) };
                let whole = self.gap_millicycles * u64::from(left) + u64::from(carried);
                let at = now + whole / 1000;
                if at < near_at.min(self.first_far_at).min(before) {
                    self.threads[thread] = Ahead { left: 0, carried: (whole % 1000) as u32 };
                    issued += u64::from(left) + 1;
                    now = at + 1;
                    break Some(Issue { thread, at });
                }
            }
            let at = now;
            issued += 1;
            gone += 1;
            if gone >= WIDTH {
                (now, gone) = (at + 1, 0);
            }
            if left == 0 {
                break Some(Issue { thread, at });
            }
            let carried = carried + self.gap_rest;
            let more = u32::from(carried >= 1000);
            self.threads[thread] = Ahead { left: left - 1, carried: carried - 1000 * more };
            // Gaps are shorter than the wheel, and at least a cycle.
            let ready_at = at + self.gap + u64::from(more);
            if ready_at <= now {
                waiting |= 1 << place(order, thread);
            } else {
                self.wheel[(ready_at % NEAR) as usize] |= 1 << thread;
                occupied |= 1 << (ready_at % NEAR);
            }
        };
        (self.now, self.gone, self.order, self.waiting, self.occupied) = (now, gone, order, waiting, occupied);
        self.issues += issued;
        self.asked = asked;
    }
}

/// The place of a thread in an order.
#[inline]
fn place(order: u64, thread: usize) -> u32 {
    const ONES: u64 = 0x1111_1111_1111_1111;
    // Zero in the four bits of the thread; the lowest bit that is set below is exact.
    let others = order ^ (ONES * thread as u64);
    (others.wrapping_sub(ONES) & !others & ONES << 3).trailing_zeros() / 4
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
