//! Operations one after another, with signals of the next one coming early, until ranks call different things.

use std::collections::VecDeque;

use flexcast_proto::{Action, Cause, Failure, Message, OperationDescriptor, Participant, RankInfo, RankSet, Summary};
use proptest::prelude::*;

const FIRST: u32 = u32::MAX - 1;

struct Group {
    machines: Vec<Participant>,
    /// Messages on their way, by sender and receiver.
    wires: Vec<VecDeque<Message>>,
    /// Where there are any.
    busy: Vec<usize>,
    /// Operations that a rank has posted, and been released from.
    posted: Vec<u32>,
    released: Vec<u32>,
    multicasts: Vec<u32>,
    failed: Vec<Option<Failure>>,
}

impl Group {
    fn new(ranks: u32) -> Self {
        let count = ranks as usize;
        Self {
            machines: (0..ranks).map(|rank| Participant::new(RankInfo::new(rank, ranks).unwrap(), FIRST)).collect(),
            wires: vec![VecDeque::new(); count * count],
            busy: Vec::new(),
            posted: vec![0; count],
            released: vec![0; count],
            multicasts: vec![0; count],
            failed: vec![None; count],
        }
    }

    fn drive(&mut self, rank: usize) {
        let count = self.machines.len();
        let mut due = vec![rank];
        while let Some(rank) = due.pop() {
            while let Some(action) = self.machines[rank].poll() {
                match action {
                    Action::Send { to, message } => {
                        let at = rank * count + to as usize;
                        if self.wires[at].is_empty() {
                            self.busy.push(at);
                        }
                        self.wires[at].push_back(message);
                    }
                    // Without loss and at once.
                    Action::Multicast => {
                        self.multicasts[rank] += 1;
                        self.machines[rank].sent();
                        for to in (0..count).filter(|to| *to != rank) {
                            self.machines[to].delivered(rank as u32);
                            due.push(to);
                        }
                    }
                    Action::Read { .. } => panic!("nothing is lost"),
                    Action::Release => self.released[rank] += 1,
                    Action::Fail(failure) => assert!(self.failed[rank].replace(failure).is_none()),
                }
            }
        }
    }

    fn post(&mut self, rank: usize, summary: Summary) {
        let roots = RankSet::of(0);
        let operation = FIRST.wrapping_add(self.posted[rank]);
        let [barrier_timeout_ps, cutoff_ps, bound_ps] = [u64::MAX; 3];
        assert!(self.machines[rank].post(
            OperationDescriptor { operation, roots, pieces: 1, summary, barrier_timeout_ps, cutoff_ps, bound_ps },
            0
        ));
        self.posted[rank] += 1;
        if rank == 0 {
            self.machines[rank].delivered(0);
        }
        self.drive(rank);
    }

    /// Delivers a message of one of the busy connections, if there is any.
    fn deliver(&mut self, choose: impl FnOnce(usize) -> usize) {
        let count = self.machines.len();
        if self.busy.is_empty() {
            return;
        }
        let index = choose(self.busy.len());
        let at = self.busy[index];
        let message = self.wires[at].pop_front().unwrap();
        if self.wires[at].is_empty() {
            self.busy.swap_remove(index);
        }
        self.machines[at % count].handle((at / count) as u32, message).unwrap();
        self.drive(at % count);
    }
}

/// Broadcasts that agree, `good` of them, and then one where `odd` ranks differ.
fn run(ranks: u32, good: u32, odd: RankSet, seed: u64) {
    let mut state = seed;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let count = ranks as usize;
    let mut group = Group::new(ranks);
    let call = |rank: usize, operation: u32| {
        let bytes = if operation == good && odd.contains(rank as u32) { 512 } else { 4096 };
        Summary::broadcast(0, bytes + u64::from(operation), 4096)
    };
    let mut steps = 0u64;
    while group.failed.iter().any(Option::is_none) {
        steps += 1;
        assert!(steps < 4_000_000, "no end: {:?}", group.failed);
        let rank = next(count);
        if !group.machines[rank].is_running() && group.failed[rank].is_none() && next(4) == 0 {
            assert!(group.posted[rank] <= good, "rank {rank} was released from the operation on which they differ");
            group.post(rank, call(rank, group.posted[rank]));
        }
        group.deliver(&mut next);
    }
    assert_eq!((group.multicasts[0], &group.released), (good, &vec![good; count]));
    for failure in group.failed.iter().flatten() {
        assert_eq!(failure.cause, Cause::Disagrees);
        assert_ne!(odd.contains(failure.failed_rank), odd.contains(failure.detecting_rank));
    }
    for (machine, failure) in group.machines.iter().zip(group.failed.iter().flatten()) {
        let found = machine.disagreement().expect("every rank knows both calls");
        assert_eq!(found.ranks, [failure.failed_rank, failure.detecting_rank]);
        assert_eq!(found.calls, found.ranks.map(|rank| call(rank as usize, good)));
    }
}

#[test]
#[cfg_attr(miri, ignore = "of 1024 ranks")]
fn one_rank_of_1024_differs() {
    run(1024, 0, RankSet::of(777), 1);
}

#[test]
fn every_rank_of_up_to_nine_differs() {
    for ranks in 2..=if cfg!(miri) { 3 } else { 9 } {
        for odd in 0..ranks {
            run(ranks, 1, RankSet::of(odd), u64::from(odd));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]

    #[test]
    fn any_ranks_differ_after_any_number_of_operations(
        ranks in 2u32..24, good in 0u32..4, odd in proptest::collection::vec(any::<prop::sample::Index>(), 1..6), seed: u64,
    ) {
        let odd: RankSet = odd.iter().map(|index| index.index(ranks as usize) as u32).collect();
        prop_assume!(odd.len() < ranks);
        run(ranks, good, odd, seed);
    }
}
