//! Whole operations with chains of a table: every rank multicasts once, one rank of a rack at a time, and all are
//! released.

use std::collections::VecDeque;

use flexcast_proto::chains::per_rack;
use flexcast_proto::{Action, Message, OperationDescriptor, Participant, RankInfo, RankSet, Summary, turn_in};
use proptest::prelude::*;

fn run(table: &[u32], racks: &[u32], seed: u64) {
    let mut state = seed;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let count = table.len();
    let ranks = count as u32;
    let [barrier_timeout_ps, cutoff_ps, bound_ps] = [u64::MAX; 3];
    let summary = Summary::allgather(1, 1, ranks);
    let descriptor = OperationDescriptor {
        operation: 0,
        roots: RankSet::below(ranks),
        pieces: 1,
        summary,
        barrier_timeout_ps,
        cutoff_ps,
        bound_ps,
    };
    let mut machines: Vec<Participant> =
        (0..ranks).map(|rank| Participant::new(RankInfo::new(rank, ranks).unwrap(), 0)).collect();
    for (rank, machine) in (0..).zip(&mut machines) {
        assert!(machine.post_with(&descriptor, turn_in(table, rank), 0));
        machine.delivered(rank);
    }
    let mut wires: Vec<VecDeque<Message>> = vec![VecDeque::new(); count * count];
    let (mut sending, mut sent, mut released) = (Vec::new(), vec![0; count], vec![false; count]);
    for _ in 0..200 * count * count {
        let rank = next(count);
        while let Some(action) = machines[rank].poll() {
            match action {
                Action::Send { to, message } => wires[rank * count + to as usize].push_back(message),
                Action::Multicast => {
                    assert!(sending.iter().all(|other| racks[*other] != racks[rank]), "two of a rack at once");
                    sending.push(rank);
                    sent[rank] += 1;
                }
                Action::Release => released[rank] = true,
                Action::Read { .. } | Action::Fail(_) => panic!("nothing is lost"),
            }
        }
        if !sending.is_empty() && next(8) == 0 {
            let from = sending.swap_remove(next(sending.len()));
            machines[from].sent();
            (0..count).filter(|to| *to != from).for_each(|to| machines[to].delivered(from as u32));
        }
        for from in 0..count {
            if let Some(message) = wires[from * count + rank].pop_front() {
                machines[rank].handle(from as u32, message).unwrap();
            }
        }
        if released.iter().all(|released| *released) {
            // A rank alone has nobody to send to.
            assert_eq!(sent, vec![u32::from(count > 1); count]);
            return;
        }
    }
    panic!("no end: {sent:?} {released:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 200 }))]

    #[test]
    fn one_rank_of_a_rack_at_a_time(racks in proptest::collection::vec(0u32..6, 1..24), chains in 1u32..9, seed: u64) {
        let mut table = vec![0; racks.len()];
        per_rack(&mut table, &racks, chains).unwrap();
        run(&table, &racks, seed);
    }

    /// Chains of any table: one rank of each at a time.
    #[test]
    fn one_rank_of_a_chain_at_a_time(table in proptest::collection::vec(0u32..6, 1..24), seed: u64) {
        run(&table, &table, seed);
    }
}
