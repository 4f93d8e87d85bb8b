//! Ranks that are killed at any moment, among ranks that leave as soon as they have failed: connections break to both kinds, and whoever lives
//! names one that was killed.

mod support;

use std::collections::VecDeque;

use flexcast_proto::{Action, Cause, Failure, Message, Place};
use support::{Dice, Driven, END_PS, terms};

/// Status of a completion: retries exceeded.
const RETRIES: u16 = 12;

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
    let places: Vec<Place> = (0..ranks).map(|rank| Place::new(rank, ranks).unwrap()).collect();
    let terms = terms(ranks, chains);
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
        // Who has failed leaves at once; it has told its reasons, and cards deliver that.
        if ends[rank].is_some() {
            continue;
        }
        if !posted[rank] && at_ps >= posts[rank] {
            posted[rank] = true;
            machines[rank].tell().post(terms, at_ps);
            machines[rank].tell().placed(rank as u32);
        }
        for from in 0..count {
            if let Some(message) = wires[from * count + rank].pop_front() {
                machines[rank].tell().handle(from as u32, message).unwrap();
            }
        }
        places[rank].for_each_connected(|peer| {
            // A connection breaks behind all that came over it, and only to who has sent something in vain.
            let (peer, gone) = (peer as usize, ends[peer as usize].is_some());
            let vain = !wires[rank * count + peer].is_empty() && wires[peer * count + rank].is_empty();
            if gone && vain && dice.below(20) == 0 {
                let cause = Cause::Connection(RETRIES);
                machines[rank].tell().fail(Failure { culprit: peer as u32, witness: rank as u32, cause });
            }
        });
        if let Some(machine) = machines[rank].look(at_ps) {
            while let Some(action) = machine.poll() {
                match action {
                    Action::Send { to, message } => wires[rank * count + to as usize].push_back(message),
                    Action::Multicast => sending.push(rank),
                    Action::Read { block, .. } => machine.read(block),
                    Action::Release => ends[rank] = Some(End::Released),
                    Action::Fail(failure) => _ = ends[rank].get_or_insert(End::Failed(failure)),
                }
            }
        }
        if !sending.is_empty() && dice.below(count) == 0 {
            let from = sending.swap_remove(dice.below(sending.len()));
            if ends[from] == Some(End::Killed) {
                continue;
            }
            machines[from].tell().sent();
            (0..count).filter(|to| *to != from).for_each(|to| machines[to].tell().placed(from as u32));
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
                                    "rank {rank} of {count}, {victim} killed at {kill_ps}, {chains} chains, seed {seed}: {ends:?}"
                                )
                            };
                            match end {
                                None => panic!("no end: {}", case()),
                                Some(End::Failed(failure)) => {
                                    assert_eq!(failure.culprit as usize, victim, "{}", case());
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
