//! Direct operations, whose data goes over connections of their own, among operations with a barrier: ranks that begin
//! at any time, messages in any order that connections allow, and ranks that have chosen differently.

use std::collections::VecDeque;

use flexcast_proto::{
    Action, Algorithm, Cause, Failure, Message, OperationDescriptor, Participant, RankInfo, RankSet, Summary, WaitedFor,
};
use proptest::prelude::*;

const OPERATIONS: u32 = 5;
const TIMEOUT_PS: u64 = 1_000;

fn descriptor(operation: u32, ranks: u32, algorithm: Algorithm) -> OperationDescriptor {
    OperationDescriptor {
        operation,
        roots: RankSet::below(ranks),
        pieces: 1,
        summary: Summary::allgather(8, 64, 1).by(algorithm),
        barrier_timeout_ps: TIMEOUT_PS,
        cutoff_ps: 100,
        bound_ps: 400,
    }
}

struct Rank {
    machine: Participant,
    posted: u32,
    released: u32,
    failed: Option<Failure>,
    /// It has notified its machine that the direct operation has everything.
    transferred: bool,
}

struct Group {
    ranks: u32,
    all: Vec<Rank>,
    /// One queue for each pair: connections keep their order.
    wires: Vec<VecDeque<Message>>,
}

impl Group {
    fn new(ranks: u32) -> Self {
        let machine = |rank| Participant::new(RankInfo::new(rank, ranks).expect("a rank"), 0);
        let rank = |rank| Rank { machine: machine(rank), posted: 0, released: 0, failed: None, transferred: false };
        Self { ranks, all: (0..ranks).map(rank).collect(), wires: vec![VecDeque::new(); (ranks * ranks) as usize] }
    }

    fn post(&mut self, rank: usize, algorithm: Algorithm) {
        let Rank { machine, posted, transferred, .. } = &mut self.all[rank];
        let descriptor = descriptor(*posted, self.ranks, algorithm);
        let accepted = match algorithm {
            Algorithm::Eager => {
                let bounds_ps = (descriptor.barrier_timeout_ps, descriptor.bound_ps);
                machine.post_eager(descriptor.operation, descriptor.summary, bounds_ps, 0)
            }
            Algorithm::Multicast => machine.post(descriptor, 0),
            _ => machine.post_direct(descriptor, 0),
        };
        assert!(accepted, "rank {rank}, operation {posted}");
        (*posted, *transferred) = (*posted + 1, false);
    }

    /// Ranks whose messages wait for one.
    fn waiting(&self, rank: usize) -> Vec<usize> {
        (0..self.ranks as usize).filter(|from| !self.wires[from * self.ranks as usize + rank].is_empty()).collect()
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let message = self.wires[from * self.ranks as usize + to].pop_front().expect("it waits");
        self.all[to].machine.handle(from as u32, message).expect("it is due");
    }

    fn act(&mut self, rank: usize) {
        while let Some(action) = self.all[rank].machine.poll() {
            match action {
                Action::Send { to, message } => {
                    self.wires[rank * self.ranks as usize + to as usize].push_back(message);
                }
                Action::Release => {
                    let operation = self.all[rank].released;
                    assert!(self.all.iter().all(|rank| rank.posted > operation), "released before all have begun");
                    self.all[rank].released += 1;
                }
                Action::Fail(failure) => self.all[rank].failed = Some(failure),
                Action::Multicast => {}
                Action::Read { .. } => panic!("nothing is lost"),
            }
        }
    }
}

/// All ranks do the same operations, direct ones and eager ones.
fn agree(ranks: u32, kinds: &[bool], seed: u64) {
    let mut dice = crate::support::Dice(seed);
    let mut group = Group::new(ranks);
    let algorithm = |operation: u32| if kinds[operation as usize] { Algorithm::Linear } else { Algorithm::Eager };
    while group.all.iter().any(|rank| rank.released < OPERATIONS) {
        let one = dice.below(ranks as usize);
        let (posted, released) = (group.all[one].posted, group.all[one].released);
        let waiting = group.waiting(one);
        let is_direct = posted > released && kinds[released as usize] && !group.all[one].transferred;
        if posted == released && posted < OPERATIONS && dice.below(2) == 0 {
            group.post(one, algorithm(posted));
        } else if is_direct && group.all.iter().all(|rank| rank.posted > released) && dice.below(2) == 0 {
            group.all[one].machine.transferred(one as u32, 1);
            group.all[one].machine.transferred_all();
            group.all[one].transferred = true;
        } else if !waiting.is_empty() {
            group.deliver(waiting[dice.below(waiting.len())], one);
        }
        group.act(one);
        assert_eq!(group.all[one].failed, None, "rank {one}");
    }
    assert!(group.wires.iter().all(VecDeque::is_empty), "messages are left");
}

/// Some ranks take an operation for a direct one, the others for one with a barrier.
fn disagree(ranks: u32, direct: &[bool], eager: bool, seed: u64) {
    let mut dice = crate::support::Dice(seed);
    let mut group = Group::new(ranks);
    let other = if eager { Algorithm::Eager } else { Algorithm::Multicast };
    let mut posts: Vec<usize> = (0..ranks as usize).collect();
    loop {
        let senders: Vec<(usize, usize)> =
            (0..ranks as usize).flat_map(|to| group.waiting(to).into_iter().map(move |from| (from, to))).collect();
        if !posts.is_empty() && (senders.is_empty() || dice.below(3) == 0) {
            let rank = posts.swap_remove(dice.below(posts.len()));
            // One that knows of the failure before does not begin.
            if group.all[rank].failed.is_none() {
                group.post(rank, if direct[rank] { Algorithm::Linear } else { other });
            }
            group.act(rank);
        } else if let Some(&(from, to)) = senders.get(dice.below(senders.len().max(1))) {
            group.deliver(from, to);
            group.act(to);
        } else {
            break;
        }
    }
    for (number, rank) in group.all.iter().enumerate() {
        let failure = rank.failed.unwrap_or_else(|| panic!("rank {number} does not learn of it"));
        assert_eq!((failure.cause, rank.released), (Cause::Disagrees, 0), "rank {number}");
        let (failed_rank, detecting_rank) = (failure.failed_rank as usize, failure.detecting_rank as usize);
        assert!(!direct[failed_rank] && direct[detecting_rank], "rank {detecting_rank} has found rank {failed_rank}");
        let found = rank.machine.disagreement().expect("every rank knows both calls");
        assert_eq!(found.ranks, [failure.failed_rank, failure.detecting_rank]);
        assert_ne!(found.calls[0], found.calls[1]);
    }
}

proptest! {
    #[test]
    fn direct_operations_and_others_follow_one_another(
        ranks in 1u32..12, kinds in proptest::collection::vec(any::<bool>(), OPERATIONS as usize), seed: u64,
    ) {
        agree(ranks, &kinds, seed);
    }

    #[test]
    fn ranks_that_choose_differently_all_fail(
        direct in proptest::collection::vec(any::<bool>(), 2..16), eager: bool, seed: u64,
    ) {
        prop_assume!(direct.contains(&true) && direct.contains(&false));
        disagree(direct.len() as u32, &direct, eager, seed);
    }
}

/// Whoever waits for a message that never comes gives up after the bound, and says for whom it has waited.
#[test]
fn a_direct_operation_ends_at_its_bound() {
    let mut group = Group::new(4);
    group.post(0, Algorithm::Ring);
    let machine = &mut group.all[0].machine;
    assert_eq!(machine.deadline_ps(), Some(TIMEOUT_PS));
    machine.transferred(2, 500);
    assert_eq!(machine.deadline_ps(), Some(500 + TIMEOUT_PS), "something has come");
    machine.handle_time(500 + TIMEOUT_PS - 1);
    assert!(machine.is_running());
    machine.handle_time(500 + TIMEOUT_PS);
    assert!(machine.is_failing());
    // Who it is may still turn out, for a quarter of the bound.
    machine.handle_time(500 + TIMEOUT_PS + 1);
    machine.handle_time(500 + TIMEOUT_PS + 101);
    group.act(0);
    let failure = Failure { failed_rank: 2, detecting_rank: 0, cause: Cause::Silent(WaitedFor::Block) };
    assert_eq!(group.all[0].failed, Some(failure));
}
