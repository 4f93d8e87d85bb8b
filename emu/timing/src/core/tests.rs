use proptest::prelude::*;

use super::*;

/// Cycles that loads and stores executed ahead take.
const LOAD: u64 = 11;
const STORE: u64 = 19;

/// The rule, literally: every cycle, the ready thread that issued least recently.
struct Rule {
    ready_at: [u64; THREADS],
    issued: [u64; THREADS],
    issues: u64,
    /// Slots given away, by cycle.
    cycle: u64,
    in_cycle: u32,
    width: u32,
}

impl Rule {
    fn new(width: u32) -> Self {
        Rule { ready_at: [NEVER; THREADS], issued: [0; THREADS], issues: 0, cycle: 0, in_cycle: 0, width }
    }

    fn issue(&mut self) -> Option<Issue> {
        let first = *self.ready_at.iter().min()?;
        let port = self.cycle + u64::from(self.in_cycle >= self.width);
        let at = (first != NEVER).then(|| first.max(port))?;
        let ready = (0..THREADS).filter(|thread| self.ready_at[*thread] <= at);
        let thread = ready.min_by_key(|thread| self.issued[*thread])?;
        self.in_cycle = if at == self.cycle { self.in_cycle + 1 } else { 1 };
        self.cycle = at;
        self.issues += 1;
        self.issued[thread] = self.issues;
        self.ready_at[thread] = NEVER;
        Some(Issue { thread, at })
    }
}

/// Issues until `end`, every thread being ready again `gap` cycles after its instruction.
fn run(core: &mut Core, end: u64, gap: impl Fn(usize) -> u64) -> Vec<Issue> {
    let mut issues = Vec::new();
    while let Some(issue) = core.advance(end) {
        assert_eq!(core.take(), Some(issue));
        core.schedule(issue.thread, issue.at + gap(issue.thread), 0, 0);
        issues.push(issue);
    }
    issues
}

#[test]
fn a_lone_thread_issues_every_gap_and_a_full_core_every_cycle() {
    let mut core = Core::new(1, 4000, LOAD, STORE);
    assert_eq!((core.next_at(), core.advance(NEVER)), (None, None));
    core.schedule(3, 5, 0, 0);
    assert_eq!(core.next_at(), Some(5));
    assert_eq!(run(&mut core, 25, |_| 4).iter().map(|issue| issue.at).collect::<Vec<_>>(), [5, 9, 13, 17, 21]);
    for threads in 1..=THREADS {
        let mut core = Core::new(1, 4000, LOAD, STORE);
        (0..threads).for_each(|thread| core.schedule(thread, 0, 0, 0));
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
    let mut core = Core::new(1, 4000, LOAD, STORE);
    (0..3).for_each(|thread| core.schedule(thread, 0, 0, 0));
    let order: Vec<usize> = (0..3).map(|_| core.advance(9).and_then(|_| core.take()).unwrap().thread).collect();
    assert_eq!(order, [0, 1, 2]);
    // All are ready at the same time: the one that waited longest.
    [0, 2, 1].into_iter().for_each(|thread| core.schedule(thread, 50, 0, 0));
    let order: Vec<usize> = (0..3).map(|_| core.advance(99).and_then(|_| core.take()).unwrap().thread).collect();
    assert_eq!(order, [0, 1, 2]);
    core.schedule(0, 60, 0, 0);
    core.schedule(1, 40, 0, 0);
    core.leave(0);
    assert_eq!(core.advance(99), Some(Issue { thread: 1, at: 53 }), "no time is given back");
}

#[test]
fn two_ports_issue_two_threads_in_a_cycle() {
    let mut core = Core::new(2, 4000, LOAD, STORE);
    (0..8).for_each(|thread| core.schedule(thread, 0, 0, 0));
    let issues = run(&mut core, 100, |_| 4);
    assert_eq!(issues.len(), 200);
    assert_eq!(issues[0].at, issues[1].at);
    assert_ne!(issues[0].thread, issues[1].thread);
}

#[test]
fn a_gap_that_is_not_whole_adds_up() {
    let mut core = Core::new(1, 3700, LOAD, STORE);
    core.schedule(0, 0, 1000, 0);
    assert_eq!(core.advance(NEVER), Some(Issue { thread: 0, at: 3700 }));
    assert_eq!(core.issues(), 1001);
}

proptest! {
    /// Bursts on the wheel issue when the rule says, whatever the horizon at which the core is asked, and whoever
    /// leaves.
    #[test]
    fn it_is_the_rule(
        width in 1u32..3,
        gap in 1u64..8,
        starts in proptest::collection::vec(0u64..200, 1..THREADS),
        bursts in proptest::collection::vec(
            (prop::collection::vec(0u64..3, 0..6), prop_oneof![3 => 1u64..40, 1 => 1u64..2000], 1u64..300, proptest::option::weighted(0.05, 0..THREADS)),
            1..400,
        ),
    ) {
        let (mut core, mut rule) = (Core::new(width, gap * 1000, LOAD, STORE), Rule::new(width));
        let mut left: [Vec<u64>; THREADS] = Default::default();
        for (thread, at) in starts.iter().enumerate() {
            core.schedule(thread, *at, 0, 0);
            rule.ready_at[thread] = *at;
        }
        let mut before = 0;
        for (mut burst, cost, step, leaver) in bursts {
            // Calls that find nothing change nothing.
            while core.advance(before).is_none() {
                before += step;
            }
            let asked = core.take().unwrap();
            let expected = loop {
                let issue = rule.issue().unwrap();
                let Some(kind) = left[issue.thread].pop() else { break issue };
                rule.ready_at[issue.thread] = issue.at + [gap, LOAD, STORE][kind as usize];
            };
            prop_assert_eq!(asked, expected);
            prop_assert_eq!(core.issues(), rule.issues);
            if let Some(leaver) = leaver {
                core.leave(leaver);
                rule.ready_at[leaver] = NEVER;
                left[leaver].clear();
            }
            // What is taken back of another's is as if it had not been executed.
            let other = (asked.thread + burst.len()) % THREADS;
            if step % 8 == 0 && other != asked.thread && rule.ready_at[other] != NEVER {
                prop_assert_eq!(core.left(other) as usize, left[other].len());
                let kept = left[other].len() / 2;
                core.cut(other, kept as u32);
                left[other].drain(..left[other].len() - kept);
            }
            let kinds = burst.iter().rev().fold(0, |kinds, kind| kinds << 2 | kind);
            core.schedule(asked.thread, asked.at + cost, burst.len() as u32, kinds);
            burst.reverse();
            left[asked.thread] = burst;
            rule.ready_at[asked.thread] = asked.at + cost;
        }
    }
}
