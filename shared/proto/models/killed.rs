//! Ranks that are killed at any moment, among ranks that leave as soon as they have failed: connections break to both
//! kinds, and whoever lives names one that was killed.

use std::collections::VecDeque;

use crate::support::{Dice, Driven, END_PS, descriptor};
use flexcast_proto::{Action, Body, Cause, Failure, FailureCode, Message, OperationDescriptor, RankInfo};

/// Status of a completion: retries exceeded.
const RETRIES: FailureCode = FailureCode::RetriesExceeded;

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Killed,
    Released,
    Failed(Failure),
}

/// One Allgather of `count` ranks of which `victim` is killed at `kill_ps`.
fn run(count: usize, chains: u32, (victim, kill_ps): (usize, u64), seed: u64) -> Vec<Option<End>> {
    let mut dice = Dice(seed);
    let ranks = count as u32;
    let places: Vec<RankInfo> = (0..ranks).map(|rank| RankInfo::new(rank, ranks).unwrap()).collect();
    let descriptor = descriptor(ranks, chains);
    let mut machines: Vec<Driven> = places.iter().map(|place| Driven::new(*place)).collect();
    let mut wires: Vec<VecDeque<Message>> = vec![VecDeque::new(); count * count];
    let (mut ends, mut sending) = (vec![None; count], Vec::new());
    let posts: Vec<u64> = (0..count).map(|_| dice.below(1_000) as u64).collect();
    let mut posted = vec![false; count];
    for at_ps in 0..END_PS {
        if at_ps == kill_ps && ends[victim].is_none() {
            ends[victim] = Some(End::Killed);
            // What it has sent last may never have left.
            for wire in &mut wires[victim * count..(victim + 1) * count] {
                let lost = dice.below(wire.len() + 1);
                wire.truncate(wire.len() - lost);
            }
        }
        let rank = dice.below(count);
        // Who has failed leaves at once; it has reported its reasons, and cards deliver that.
        if ends[rank].is_some() {
            continue;
        }
        if !posted[rank] && at_ps >= posts[rank] {
            posted[rank] = true;
            machines[rank].notify().post(descriptor, at_ps);
            machines[rank].notify().delivered(rank as u32);
        }
        for from in 0..count {
            if let Some(message) = wires[from * count + rank].pop_front() {
                machines[rank].notify().handle(from as u32, message).unwrap();
            }
        }
        places[rank].for_each_connected(|peer| {
            // A connection breaks behind all that came over it, and only to who has sent something in vain.
            let (peer, gone) = (peer as usize, ends[peer as usize].is_some());
            let vain = !wires[rank * count + peer].is_empty() && wires[peer * count + rank].is_empty();
            if gone && vain && dice.below(20) == 0 {
                let cause = Cause::Connection(RETRIES);
                machines[rank].notify().fail(Failure { failed_rank: peer as u32, detecting_rank: rank as u32, cause });
            }
        });
        let outgoing = &mut wires[rank * count..(rank + 1) * count];
        if let Some(end) = machines[rank].act(at_ps, outgoing, || sending.push(rank)) {
            ends[rank].get_or_insert(end.map_or_else(End::Failed, |()| End::Released));
        }
        if !sending.is_empty() && dice.below(count) == 0 {
            let from = sending.swap_remove(dice.below(sending.len()));
            if ends[from] == Some(End::Killed) {
                continue;
            }
            machines[from].notify().sent();
            (0..count).filter(|to| *to != from).for_each(|to| machines[to].notify().delivered(from as u32));
        }
    }
    ends
}

#[test]
fn survivors_name_the_one_that_was_killed_and_never_one_that_left_because_of_it() {
    let mut failed = 0;
    for count in 2..=9 {
        for victim in 0..count {
            for kill_ps in [0, 100, 300, 500, 700, 900, 1_100, 1_300, 1_500, 2_000, 3_000] {
                for chains in [1, count as u32] {
                    for seed in 0..3 {
                        let ends = run(count, chains, (victim, kill_ps), seed * 1_000 + kill_ps + victim as u64);
                        for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| *rank != victim) {
                            let case = || {
                                format!(
                                    "rank {rank} of {count}, {victim} killed at {kill_ps}, {chains} chains, seed \
                                     {seed}: {ends:?}"
                                )
                            };
                            match end {
                                None => panic!("no end: {}", case()),
                                Some(End::Failed(failure)) => {
                                    assert_eq!(failure.failed_rank as usize, victim, "{}", case());
                                    failed += 1;
                                }
                                Some(_) => {}
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(failed > 1_000, "{failed}");
}

/// A rank may be an operation ahead of another when both fail: each reports what it has failed in, and none goes on
/// reporting.
#[test]
fn ranks_that_fail_in_different_operations_come_to_rest() {
    const RANKS: u32 = 5;
    let mut dice = Dice(9);
    let mut ahead = 0;
    for _ in 0..200 {
        let mut machines: Vec<Driven> =
            (0..RANKS).map(|rank| Driven::new(RankInfo::new(rank, RANKS).unwrap())).collect();
        let mut wires: VecDeque<(u32, u32, Message)> = VecDeque::new();
        for rank in 0..RANKS {
            machines[rank as usize].notify().post(descriptor(RANKS, RANKS), 0);
            (0..RANKS).for_each(|block| machines[rank as usize].notify().delivered(block));
            machines[rank as usize].notify().sent();
        }
        // In any order between pairs, until somebody is ahead; then two that saw connections break.
        let (mut released, mut failures, mut fails_in) = ([false; RANKS as usize], 0, None);
        for _ in 0..2_000 {
            let rank = dice.below(RANKS as usize);
            let from = wires.iter().position(|(_, to, _)| *to as usize == rank);
            if let Some((from, _, message)) = from.and_then(|at| wires.remove(at)) {
                machines[rank].notify().handle(from, message).unwrap();
            }
            let Some(machine) = machines[rank].poll_machine(1) else { continue };
            while let Some(action) = machine.poll() {
                match action {
                    Action::Send { to, message } => {
                        failures += u32::from(matches!(message.body, Body::Failed { .. }));
                        wires.push_back((rank as u32, to, message));
                    }
                    Action::Multicast => machine.sent(),
                    Action::Release => released[rank] = true,
                    Action::Read { .. } | Action::Fail(_) => {}
                }
            }
            if fails_in.is_none() && released[rank] && released.contains(&false) {
                let behind = released.iter().position(|released| !released).unwrap();
                machines[rank].notify().post(OperationDescriptor { operation: 1, ..descriptor(RANKS, RANKS) }, 1);
                for detecting_rank in [rank, behind] {
                    let failed_rank = (0..RANKS).find(|failed_rank| *failed_rank != detecting_rank as u32).unwrap();
                    let cause = Cause::Connection(FailureCode::RetriesExceeded);
                    machines[detecting_rank].notify().fail(Failure {
                        failed_rank,
                        detecting_rank: detecting_rank as u32,
                        cause,
                    });
                }
                fails_in = Some(rank);
            }
        }
        ahead += u32::from(fails_in.is_some());
        assert!(wires.is_empty(), "{failures} messages of failures, and {} still on the way", wires.len());
        assert!(failures <= 2 * RANKS * (RANKS - 1), "each rank reports two operations at most: {failures}");
    }
    assert!(ahead > 100, "{ahead}");
}
