//! Ranks that fall silent, at any moment, among ranks that wait for one another: whoever lives names one that is
//! silent, within the bound, whatever the order of messages and whatever multicast has lost.

use std::collections::VecDeque;

use crate::support::{Dice, Driven, END_PS, descriptor};
use flexcast_proto::{Cause, Failure, Message, RankInfo};

/// What became of each rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Released,
    Failed(Failure),
}

/// One Allgather of which `silent` ranks do nothing from a time on.
fn run(count: usize, chains: u32, silent: &[(usize, u64)], loss_percent: usize, seed: u64) -> Vec<Option<End>> {
    let mut dice = Dice(seed);
    let ranks = count as u32;
    let descriptor = descriptor(ranks, chains);
    let mut machines: Vec<Driven> = (0..ranks).map(|rank| Driven::new(RankInfo::new(rank, ranks).unwrap())).collect();
    let mut wires: Vec<VecDeque<Message>> = vec![VecDeque::new(); count * count];
    let (mut ends, mut sending, mut posted) = (vec![None; count], Vec::new(), vec![false; count]);
    let posts: Vec<u64> = (0..count).map(|_| dice.below(1_000) as u64).collect();
    let lives = |rank: usize, at_ps: u64| silent.iter().all(|(who, from_ps)| *who != rank || at_ps < *from_ps);
    for at_ps in 0..END_PS {
        let rank = dice.below(count);
        if !lives(rank, at_ps) {
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
        let outgoing = &mut wires[rank * count..(rank + 1) * count];
        if let Some(end) = machines[rank].act(at_ps, outgoing, || sending.push(rank)) {
            ends[rank].get_or_insert(end.map_or_else(End::Failed, |()| End::Released));
        }
        if !sending.is_empty() && dice.below(count) == 0 {
            // The card sends, and receives, whether its host is silent or not.
            let from = sending.swap_remove(dice.below(sending.len()));
            machines[from].notify().sent();
            for to in (0..count).filter(|to| *to != from) {
                if dice.below(100) >= loss_percent {
                    machines[to].notify().delivered(from as u32);
                }
            }
        }
    }
    ends
}

/// Checks that every rank that lives ends: so many of them named a silent rank, so many another.
#[track_caller]
fn check(count: usize, chains: u32, silent: &[(usize, u64)], loss_percent: usize, seed: u64) -> (usize, usize) {
    let ends = run(count, chains, silent, loss_percent, seed);
    let (mut right, mut wrong) = (0, 0);
    for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| silent.iter().all(|(who, _)| who != rank)) {
        let case = || format!("rank {rank} of {count}, {silent:?}, loss {loss_percent} %, seed {seed}: {ends:?}");
        match end {
            None => panic!("no end: {}", case()),
            Some(End::Released) => {}
            Some(End::Failed(Failure { failed_rank, cause, .. })) => {
                assert!(matches!(cause, Cause::Silent(_)), "{}", case());
                match silent.iter().any(|(who, _)| *who == *failed_rank as usize) {
                    true => right += 1,
                    false => wrong += 1,
                }
            }
        }
    }
    (right, wrong)
}

#[test]
fn one_silent_rank_is_named_by_all_wherever_it_is() {
    let mut failed = 0;
    for count in 2..=9 {
        for silent in 0..count {
            for from_ps in [0, 300, 700, 1_100, 1_500, 2_000, 3_000] {
                for (chains, loss_percent) in [(1, 0), (count as u32, 0), (count as u32, 30), (2, 100)] {
                    let seed = from_ps + silent as u64;
                    let (right, wrong) = check(count, chains, &[(silent, from_ps)], loss_percent, seed);
                    assert_eq!(wrong, 0, "rank {silent} of {count} from {from_ps}, loss {loss_percent} %, seed {seed}");
                    failed += right;
                }
            }
        }
    }
    assert!(failed > 3_000, "{failed}");
}

/// Several of them may cut the ring into parts that cannot contradict one another.
#[test]
fn of_several_silent_ranks_nearly_all_name_one() {
    let mut dice = Dice(5);
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..400 {
        let count = 4 + dice.below(6);
        let silent: Vec<(usize, u64)> =
            (0..2 + dice.below(2)).map(|_| (dice.below(count), dice.below(3_000) as u64)).collect();
        let chains = 1 + dice.below(count) as u32;
        let (well, badly) = check(count, chains, &silent, [0, 20, 100][dice.below(3)], seed);
        (right, wrong) = (right + well, wrong + badly);
    }
    assert!(right > 500 && wrong * 100 <= right, "{right} named a silent rank, {wrong} another");
}
