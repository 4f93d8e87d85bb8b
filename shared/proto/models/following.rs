//! Ranks that fall silent, or are cut off, among ranks that are in operations that follow one another: whoever lives
//! names the silent one, not one that waits for it in the operation before.

use std::collections::VecDeque;

use crate::support::{Dice, Driven};
use flexcast_proto::{
    Action, Algorithm, Body, Cause, Failure, Message, OperationDescriptor, Participant, RankInfo, RankSet, Summary,
    WaitedFor,
};

/// How long a barrier may take, and the rest of an operation. Where the rest may take longer, who waits in the next
/// barrier is the first to give up.
const TIMES_PS: [(u64, u64); 3] = [(12_000, 8_000), (12_000, 2_400), (5_000, 16_000)];
const CUTOFF_PS: u64 = 400;
/// Operations that follow one another.
const OPERATIONS: usize = 6;
/// Longest between the end of an operation and the next call: of ranks that do little else, and of ranks that compute
/// for longer than a failure may settle.
const GAPS_PS: [usize; 2] = [300, 1_200];

/// By what the ranks carry an operation out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Eager,
    Multicast,
    Direct,
}

const WAYS: [Way; 3] = [Way::Eager, Way::Multicast, Way::Direct];

/// What happens to a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It does nothing more. What it has sent arrives.
    Stop,
    /// Nothing comes from it, and nothing reaches it.
    Cut,
}

#[derive(Debug)]
struct Case {
    count: usize,
    ways: Vec<Way>,
    fault: Fault,
    victim: usize,
    from_ps: u64,
    times_ps: (u64, u64),
    gap_ps: usize,
    loss_percent: usize,
    seed: u64,
}

impl Case {
    fn drawn(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let (count, gap_ps) = (3 + dice.below(6), GAPS_PS[dice.below(2)]);
        Self {
            count,
            ways: (0..OPERATIONS).map(|_| WAYS[dice.below(3)]).collect(),
            fault: [Fault::Stop, Fault::Cut][dice.below(2)],
            victim: dice.below(count),
            from_ps: dice.below(OPERATIONS * (gap_ps + 200)) as u64,
            times_ps: TIMES_PS[dice.below(TIMES_PS.len())],
            gap_ps,
            loss_percent: [0, 0, 20][dice.below(3)],
            seed,
        }
    }

    fn descriptor(&self, operation: u32) -> OperationDescriptor {
        let ranks = self.count as u32;
        let (barrier_timeout_ps, bound_ps) = self.times_ps;
        let direct = self.ways[operation as usize] == Way::Direct;
        OperationDescriptor {
            operation,
            roots: RankSet::below(ranks),
            pieces: 1,
            summary: Summary::allgather(1, 1, ranks),
            barrier_timeout_ps,
            cutoff_ps: CUTOFF_PS,
            bound_ps: if direct { barrier_timeout_ps } else { bound_ps },
        }
    }
}

struct Rank {
    machine: Driven,
    /// Operation under way, or the next.
    operation: u32,
    posted: bool,
    post_ps: u64,
    /// Of a direct operation, the ranks whose data has come; of this one and of the next.
    came: [RankSet; 2],
    end: Option<Result<(), Failure>>,
}

impl Rank {
    /// Whose data is missing first in the order of the ring.
    fn awaited(&self, place: RankInfo) -> Option<u32> {
        let behind = (1..place.ranks()).map(|distance| place.behind(distance));
        behind.into_iter().find(|rank| !self.came[0].contains(*rank))
    }
}

struct Group<'c> {
    case: &'c Case,
    dice: Dice,
    ranks: Vec<Rank>,
    wires: Vec<VecDeque<Message>>,
    /// Data of direct operations on its way, by connection: their numbers.
    data: Vec<VecDeque<u32>>,
    /// Ranks that multicast, and in which operation.
    sending: Vec<(usize, u32)>,
}

impl<'c> Group<'c> {
    fn new(case: &'c Case) -> Self {
        let count = case.count;
        let mut dice = Dice(case.seed ^ 0x5EED);
        let ranks = (0..count as u32).map(|rank| Rank {
            machine: Driven::new(RankInfo::new(rank, count as u32).unwrap()),
            operation: 0,
            posted: false,
            post_ps: dice.below(case.gap_ps) as u64,
            came: [RankSet::EMPTY; 2],
            end: None,
        });
        let ranks = ranks.collect();
        let (wires, data) = (vec![VecDeque::new(); count * count], vec![VecDeque::new(); count * count]);
        Self { case, dice, ranks, wires, data, sending: Vec::new() }
    }

    fn place(&self, rank: usize) -> RankInfo {
        RankInfo::new(rank as u32, self.case.count as u32).unwrap()
    }

    fn post(&mut self, one: usize, now_ps: u64) {
        let place = self.place(one);
        let rank = &mut self.ranks[one];
        let descriptor = self.case.descriptor(rank.operation);
        rank.posted = true;
        let (count, machine) = (self.case.count, rank.machine.notify());
        match self.case.ways[rank.operation as usize] {
            Way::Eager => {
                let times = (descriptor.barrier_timeout_ps, descriptor.bound_ps);
                machine.post_eager(descriptor.operation, descriptor.summary, times, now_ps);
            }
            Way::Multicast => {
                machine.post(descriptor, now_ps);
                machine.delivered(one as u32);
            }
            Way::Direct => {
                let summary = Summary::between_pairs(descriptor.summary.kind, 0, 1, 0, Algorithm::Linear);
                machine.post_direct(OperationDescriptor { summary, ..descriptor }, now_ps);
                for to in (0..count).filter(|to| *to != one) {
                    self.data[one * count + to].push_back(descriptor.operation);
                }
                self.note(place, now_ps);
            }
        }
    }

    /// Notifies a rank of what has come of its direct operation.
    fn note(&mut self, place: RankInfo, now_ps: u64) {
        let rank = &mut self.ranks[place.rank() as usize];
        match rank.awaited(place) {
            Some(awaited) => rank.machine.notify().transferred(awaited, now_ps),
            None => rank.machine.notify().transferred_all(),
        }
    }

    /// Delivers what comes first on each connection to a rank, unless that has to wait for its operation.
    fn receive(&mut self, to: usize, now_ps: u64) {
        for from in 0..self.case.count {
            let wire = from * self.case.count + to;
            let (place, rank) = (self.place(to), &mut self.ranks[to]);
            let latest = rank.machine.notify().latest();
            let is_due = |message: &Message| message.operation <= latest;
            if self.wires[wire].front().is_some_and(is_due) {
                let message = self.wires[wire].pop_front().unwrap();
                rank.machine.notify().handle(from as u32, message).unwrap();
            }
            if let Some(operation) = self.data[wire].pop_front() {
                rank.came[(operation - rank.operation) as usize].insert(from as u32);
                let is_current = rank.posted && self.case.ways[rank.operation as usize] == Way::Direct;
                if is_current && operation == rank.operation {
                    self.note(place, now_ps);
                }
            }
        }
    }

    fn act(&mut self, one: usize, now_ps: u64) {
        let (count, operation) = (self.case.count, self.ranks[one].operation);
        let rank = &mut self.ranks[one];
        let sending = &mut self.sending;
        let outgoing = &mut self.wires[one * count..(one + 1) * count];
        match rank.machine.act(now_ps, outgoing, || sending.push((one, operation))) {
            None => {}
            Some(Err(failure)) => rank.end = Some(Err(failure)),
            Some(Ok(())) => {
                rank.operation += 1;
                rank.posted = false;
                rank.post_ps = now_ps + self.dice.below(self.case.gap_ps) as u64;
                rank.came = [rank.came[1], RankSet::EMPTY];
                if rank.operation as usize == self.case.ways.len() {
                    rank.end = Some(Ok(()));
                }
            }
        }
    }

    fn multicast(&mut self, is_silent: bool) {
        let at = self.dice.below(self.sending.len());
        let (from, operation) = self.sending.swap_remove(at);
        self.ranks[from].machine.notify().sent();
        for to in (0..self.case.count).filter(|to| *to != from) {
            let is_there = self.ranks[to].posted && self.ranks[to].operation == operation;
            let cuts = is_silent && self.case.fault == Fault::Cut && [from, to].contains(&self.case.victim);
            if self.dice.below(100) >= self.case.loss_percent && is_there && !cuts {
                self.ranks[to].machine.notify().delivered(from as u32);
            }
        }
    }

    /// Nothing on the way to or from the victim arrives.
    fn cut(&mut self) {
        let (count, victim) = (self.case.count, self.case.victim);
        for other in 0..count {
            for wire in [victim * count + other, other * count + victim] {
                self.wires[wire].clear();
                self.data[wire].clear();
            }
        }
    }
}

/// How each rank has ended.
fn run(case: &Case) -> Vec<Option<Result<(), Failure>>> {
    let mut group = Group::new(case);
    // If nobody is silent, an operation takes about as long as ranks take to call it.
    let busy_ps = OPERATIONS as u64 * (case.gap_ps as u64 + 1_000);
    let (barrier_timeout_ps, bound_ps) = case.times_ps;
    for at_ps in 0..busy_ps + (barrier_timeout_ps + bound_ps) * 5 / 4 {
        let is_silent = at_ps >= case.from_ps;
        if is_silent && case.fault == Fault::Cut {
            group.cut();
        }
        let one = group.dice.below(case.count);
        let is_stopped = is_silent && case.fault == Fault::Stop && one == case.victim;
        // Who has failed leaves at once; it has reported its reasons.
        if is_stopped || group.ranks[one].end.is_some() {
            continue;
        }
        group.receive(one, at_ps);
        if !group.ranks[one].posted && at_ps >= group.ranks[one].post_ps {
            group.post(one, at_ps);
        }
        group.act(one, at_ps);
        if !group.sending.is_empty() && group.dice.below(case.count) == 0 {
            group.multicast(is_silent);
        }
    }
    group.ranks.into_iter().map(|rank| rank.end).collect()
}

#[test]
fn whoever_lives_names_the_silent_one_whichever_operation_it_is_in() {
    let (mut right, mut wrong) = (0, Vec::new());
    for seed in 0..4_000 {
        let case = Case::drawn(seed);
        let ends = run(&case);
        for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| *rank != case.victim) {
            match end {
                None => panic!("rank {rank} has no end: {case:?}, {ends:?}"),
                Some(Ok(())) => {}
                Some(Err(failure)) if failure.failed_rank as usize == case.victim => right += 1,
                Some(Err(_)) => wrong.push(format!("rank {rank}, {case:?}: {ends:?}")),
            }
            if let Some(Err(failure)) = end {
                assert!(matches!(failure.cause, Cause::Silent(_)), "rank {rank}, {case:?}: {ends:?}");
            }
        }
    }
    assert!(right > 1_000, "{right}");
    assert!(wrong.is_empty(), "{right} right, {} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
}

const TIMES: (u64, u64) = (1_000, 400);

/// Rank `rank` of four in its first operation, which is eager.
fn one_of_four(rank: u32) -> Participant {
    let mut machine = Participant::new(RankInfo::new(rank, 4).unwrap(), 0);
    assert!(machine.post_eager(0, Summary::allgather(1, 1, 4), TIMES, 0));
    machine
}

fn actions(machine: &mut Participant) -> Vec<Action> {
    std::iter::from_fn(|| machine.poll()).collect()
}

fn silence_message(operation: u32, failed_rank: u32, detecting_rank: u32) -> Message {
    let cause = Cause::Silent(WaitedFor::Barrier);
    Message { operation, body: Body::Failed { failure: Failure { failed_rank, detecting_rank, cause }, calls: None } }
}

/// Its left neighbour has not called the next operation because it waits in the one before, as it says.
#[test]
fn who_is_ahead_believes_a_neighbour_that_is_behind() {
    let mut machine = one_of_four(3);
    let summary = Summary::allgather(1, 1, 4);
    for (from, round) in [(2, 0), (1, 1)] {
        machine.handle(from, Message { operation: 0, body: Body::Barrier { round, summary } }).unwrap();
    }
    assert_eq!(actions(&mut machine).last(), Some(&Action::Release));
    assert!(machine.post_eager(1, summary, TIMES, 10));
    assert_eq!(machine.waiting_for(), (2, WaitedFor::Barrier));
    machine.handle(2, silence_message(0, 0, 2)).unwrap();
    machine.handle_time(20);
    machine.handle_time(20 + TIMES.1 / 4);
    let cause = Cause::Silent(WaitedFor::Barrier);
    assert_eq!(actions(&mut machine).last(), Some(&Action::Fail(Failure { failed_rank: 0, detecting_rank: 2, cause })));
}

/// It does not wait until it gives up itself, and its own operation goes on.
#[test]
fn who_is_behind_and_is_accused_says_at_once_whom_it_waits_for() {
    let mut machine = one_of_four(2);
    let summary = Summary::allgather(1, 1, 4);
    machine.handle(1, Message { operation: 0, body: Body::Barrier { round: 0, summary } }).unwrap();
    actions(&mut machine);
    machine.handle(3, silence_message(1, 2, 3)).unwrap();
    let answers = actions(&mut machine);
    for to in [3, 0] {
        assert!(answers.contains(&Action::Send { to, message: silence_message(1, 0, 2) }), "{to}: {answers:?}");
    }
    assert!(machine.is_running());
}
