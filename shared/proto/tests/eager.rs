//! Eager operations among ranks that begin at any time, with messages in any order that connections allow.

use std::collections::{BTreeSet, VecDeque};

use flexcast_proto::{Action, Body, Message, Participant, PieceSet, ProtocolError, RankInfo, Summary, eager};
use proptest::prelude::*;

const OPERATIONS: u32 = 3;

/// A rank, and the blocks that it has of each operation.
struct Rank {
    place: RankInfo,
    machine: Participant,
    held: Vec<BTreeSet<u32>>,
    posted: u32,
    released: u32,
}

/// Runs all ranks through their operations, in an order that depends on the seed.
fn run(ranks: u32, seed: u64) {
    let mut dice = crate::support::Dice(seed);
    let place = |rank| RankInfo::new(rank, ranks).expect("a rank");
    let mut all: Vec<Rank> = (0..ranks)
        .map(|rank| Rank {
            place: place(rank),
            machine: Participant::new(place(rank), 0),
            held: vec![BTreeSet::from([rank]); OPERATIONS as usize],
            posted: 0,
            released: 0,
        })
        .collect();
    // One queue for each pair: connections keep their order.
    let mut wires: Vec<VecDeque<Message>> = vec![VecDeque::new(); (ranks * ranks) as usize];
    while all.iter().any(|rank| rank.released < OPERATIONS) {
        let one = dice.below(ranks as usize);
        let waiting: Vec<usize> =
            (0..ranks as usize).filter(|from| !wires[from * ranks as usize + one].is_empty()).collect();
        let begins = all[one].posted == all[one].released && all[one].posted < OPERATIONS;
        if begins && (waiting.is_empty() || dice.below(3) == 0) {
            let operation = all[one].posted;
            assert!(all[one].machine.post_eager(operation, Summary::allgather(8, 64, 1), (u64::MAX, u64::MAX), 0));
            all[one].posted += 1;
        } else if !waiting.is_empty() {
            let from = waiting[dice.below(waiting.len())];
            let message = wires[from * ranks as usize + one].pop_front().expect("it waits");
            let Body::Barrier { round, .. } = message.body else { panic!("{message:?} in an eager operation") };
            all[one].machine.handle(from as u32, message).expect("it is due");
            let blocks = eager::carried(all[one].place, from as u32, round);
            all[one].held[message.operation as usize].extend(blocks);
        }
        // Every other rank as firmware does it.
        let released = |rank: &mut Rank| {
            let passed = rank.machine.is_in_barrier() && rank.machine.is_barrier_passed();
            let released = one.is_multiple_of(2) && rank.machine.release_eager(0);
            assert!(!released || passed);
            released.then_some(Action::Release)
        };
        while let Some(action) = released(&mut all[one]).or_else(|| all[one].machine.poll()) {
            match action {
                Action::Send { to, message } => {
                    let Body::Barrier { round, .. } = message.body else { panic!("{message:?} in an eager operation") };
                    let held = &all[one].held[message.operation as usize];
                    for block in eager::carried(all[one].place, one as u32, round) {
                        assert!(held.contains(&block), "rank {one} has not got block {block} in round {round}");
                    }
                    wires[one * ranks as usize + to as usize].push_back(message);
                }
                Action::Release => {
                    let operation = all[one].released;
                    assert_eq!(all[one].held[operation as usize].len(), ranks as usize, "released with blocks missing");
                    assert!(all.iter().all(|rank| rank.posted > operation), "released before all have begun");
                    all[one].released += 1;
                }
                other => panic!("{other:?} in an eager operation"),
            }
        }
    }
    assert!(wires.iter().all(VecDeque::is_empty), "messages are left");
}

proptest! {
    #[test]
    fn whoever_is_released_has_every_block(ranks in 1u32..24, seed: u64) {
        run(ranks, seed);
    }
}

/// What belongs to other operations is refused in one whose data rides on the barrier, whatever the operation before
/// has left.
#[test]
fn an_eager_operation_has_no_message_but_signals() {
    let place = RankInfo::new(0, 2).expect("a rank");
    for body in [Body::Final, Body::Activate, Body::Fetch { pieces: PieceSet::of(0), last: true }] {
        let mut machine = Participant::new(place, 7);
        assert!(machine.post_eager(7, Summary::allgather(8, 64, 1), (u64::MAX, u64::MAX), 0));
        assert_eq!((machine.has_everything(), machine.is_over_for_neighbour()), (false, false));
        let refused = machine.handle(1, Message { operation: 7, body });
        assert_eq!(refused, Err(ProtocolError::Operation { from: 1, operation: 7, current: 7 }), "{body:?}");
    }
}
