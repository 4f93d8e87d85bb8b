//! The issue port of one core: which of its threads executes an instruction when.
//!
//! One instruction (or as many as the model says) per cycle; among the threads that are ready, the one that has issued least recently.
//! Threads that have never issued come first, in the order of their numbers.

/// Threads of a core.
pub const THREADS: usize = 16;

/// A thread that is not on the core.
const AWAY: u64 = u64::MAX;

/// The issue port of one core. Times are cycles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// When each thread is ready to issue.
    ready_at: [u64; THREADS],
    /// Order of each thread's last issue; smaller is longer ago.
    issued: [u64; THREADS],
    issues: u64,
    /// Cycle of the latest issue, and instructions issued in it.
    cycle: u64,
    in_cycle: u32,
    width: u32,
}

/// A thread's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Number of the thread on its core.
    pub thread: usize,
    /// The cycle.
    pub at: u64,
}

impl Core {
    /// A core without threads that issues up to `width` instructions per cycle.
    #[must_use]
    pub const fn new(width: u32) -> Self {
        Core { ready_at: [AWAY; THREADS], issued: [0; THREADS], issues: 0, cycle: 0, in_cycle: 0, width }
    }

    /// A thread is ready from `at` on: it has come, or what it waited for has. A thread of which the core has not been told has none.
    pub fn ready(&mut self, thread: usize, at: u64) {
        self.ready_at[thread] = at;
    }

    /// A thread has gone to sleep or has ended.
    pub fn leave(&mut self, thread: usize) {
        self.ready_at[thread] = AWAY;
    }

    /// When the next instruction can be issued; none without a thread.
    #[must_use]
    #[inline]
    pub fn next_at(&self) -> Option<u64> {
        let first = *self.ready_at.iter().min()?;
        let port = self.cycle + u64::from(self.in_cycle >= self.width);
        (first != AWAY).then(|| first.max(port))
    }

    /// Issues the next instruction. Its thread is not ready again before [`Core::ready`] says when.
    #[inline]
    pub fn issue(&mut self) -> Option<Issue> {
        let at = self.next_at()?;
        let mut thread = THREADS;
        for candidate in 0..THREADS {
            if self.ready_at[candidate] <= at && (thread == THREADS || self.issued[candidate] < self.issued[thread]) {
                thread = candidate;
            }
        }
        self.in_cycle = if at == self.cycle { self.in_cycle + 1 } else { 1 };
        self.cycle = at;
        self.issues += 1;
        self.issued[thread] = self.issues;
        self.ready_at[thread] = AWAY;
        Some(Issue { thread, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issues until `end`, every thread being ready again `gap` cycles after its instruction.
    fn run(core: &mut Core, end: u64, gap: impl Fn(usize) -> u64) -> Vec<Issue> {
        let mut issues = Vec::new();
        while core.next_at().is_some_and(|at| at < end) {
            let issue = core.issue().unwrap();
            core.ready(issue.thread, issue.at + gap(issue.thread));
            issues.push(issue);
        }
        issues
    }

    #[test]
    fn a_lone_thread_issues_every_gap_and_a_full_core_every_cycle() {
        let mut core = Core::new(1);
        assert_eq!((core.next_at(), core.issue()), (None, None));
        core.ready(3, 5);
        assert_eq!(run(&mut core, 25, |_| 4).iter().map(|issue| issue.at).collect::<Vec<_>>(), [5, 9, 13, 17, 21]);
        for threads in 1..=THREADS {
            let mut core = Core::new(1);
            (0..threads).for_each(|thread| core.ready(thread, 0));
            let issues = run(&mut core, 4000, |_| 4);
            let expected = 1000 * threads.min(4);
            assert_eq!(issues.len(), expected, "{threads} threads");
            assert!(issues.windows(2).all(|pair| pair[0].at < pair[1].at), "one per cycle");
            for thread in 0..threads {
                let share = issues.iter().filter(|issue| issue.thread == thread).count();
                assert!(share.abs_diff(expected / threads) <= 1, "thread {thread} of {threads}: {share}");
            }
        }
    }

    #[test]
    fn the_least_recently_issued_goes_first() {
        let mut core = Core::new(1);
        (0..3).for_each(|thread| core.ready(thread, 0));
        let order: Vec<usize> = run(&mut core, 3, |_| 100).iter().map(|issue| issue.thread).collect();
        assert_eq!(order, [0, 1, 2]);
        // All are ready at the same time: the one that waited longest.
        core.ready(0, 50);
        core.ready(2, 50);
        core.ready(1, 50);
        let order: Vec<usize> = run(&mut core, 53, |_| 100).iter().map(|issue| issue.thread).collect();
        assert_eq!(order, [0, 1, 2]);
        core.leave(0);
        core.ready(1, 40);
        assert_eq!(core.issue(), Some(Issue { thread: 1, at: 53 }), "no time is given back");
    }

    #[test]
    fn two_ports_issue_two_threads_in_a_cycle() {
        let mut core = Core::new(2);
        (0..8).for_each(|thread| core.ready(thread, 0));
        let issues = run(&mut core, 100, |_| 4);
        assert_eq!(issues.len(), 200);
        assert_eq!(issues[0].at, issues[1].at);
        assert_ne!(issues[0].thread, issues[1].thread);
    }
}
