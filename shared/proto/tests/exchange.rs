//! Alltoall, Gather, Scatter and Barrier schedules, all ranks together, with messages delivered in any order that
//! connections allow: every block at its place, and the messages and steps that the algorithms promise.

use crate::support::delivery::{Buffers, deliver, schedules};
use flexcast_proto::p2p::{Alltoall, Arrival, Operation, Part, Schedule, Span, Start, Transfer};
use flexcast_proto::{RankInfo, RankSet};
use proptest::prelude::*;

/// Buffers of numbers, one a block.
#[derive(Default)]
struct Numbers {
    send: Vec<Vec<u64>>,
    receive: Vec<Vec<Option<u64>>>,
    /// Messages that each rank has sent, and those on their way to it now.
    sent: Vec<u32>,
    inbound: Vec<u32>,
    most_inbound: u32,
}

impl Numbers {
    /// The given contributions, and so many blocks to receive at each rank.
    fn new(send: Vec<Vec<u64>>, receive: impl Fn(u32) -> u32) -> Self {
        let none = vec![0; send.len()];
        let receive = (0..send.len() as u32).map(|rank| vec![None; receive(rank) as usize]).collect();
        Self { receive, sent: none.clone(), inbound: none, send, ..Self::default() }
    }

    /// Runs an operation; gives the number of steps.
    fn run(&mut self, operation: Operation, seed: u64) -> u32 {
        let mut all = schedules(operation, self.send.len() as u32);
        for schedule in &all {
            if let Some(Start { from, to }) = schedule.start() {
                let own = schedule.place().rank();
                let value = self.send[own as usize][from.first as usize];
                self.write(own, Part::receive(to), value);
            }
        }
        deliver(&mut all, seed, self)
    }

    fn write(&mut self, rank: u32, to: Part, value: u64) {
        assert_eq!(to, Part::receive(Span::of(to.blocks.first)));
        let block = &mut self.receive[rank as usize][to.blocks.first as usize];
        assert_eq!(block.replace(value), None, "twice");
    }
}

impl Buffers for Numbers {
    type Content = Option<u64>;

    fn send(&mut self, rank: u32, transfer: Transfer) -> Option<u64> {
        self.sent[rank as usize] += 1;
        self.inbound[transfer.to as usize] += 1;
        self.most_inbound = self.most_inbound.max(self.inbound[transfer.to as usize]);
        if transfer.source.blocks == Span::NONE {
            return None;
        }
        assert_eq!(transfer.source, Part::send(Span::of(transfer.source.blocks.first)));
        Some(self.send[rank as usize][transfer.source.blocks.first as usize])
    }

    fn arrive(&mut self, rank: u32, arrival: Arrival, content: Option<u64>) {
        self.inbound[rank as usize] -= 1;
        match content {
            Some(value) => self.write(rank, arrival.target, value),
            None => assert_eq!(arrival.target.blocks, Span::NONE),
        }
    }

    fn reduce(&mut self, schedule: &mut Schedule) {
        assert_eq!(schedule.reduce(), None, "nothing to combine");
    }
}

/// Runs an Alltoall; block b of rank a's buffer is the number a * P + b. Gives the most messages on their way to one
/// rank at a time.
fn alltoall(algorithm: Alltoall, ranks: u32, seed: u64) -> u32 {
    let row = |rank: u32| (0..ranks).map(|block| u64::from(rank * ranks + block)).collect();
    let mut numbers = Numbers::new((0..ranks).map(row).collect(), |_| ranks);
    let steps = numbers.run(Operation::Alltoall(algorithm), seed);
    for (to, blocks) in (0..ranks).zip(&numbers.receive) {
        for (from, block) in (0..ranks).zip(blocks) {
            assert_eq!(*block, Some(u64::from(from * ranks + to)), "{algorithm:?} of {ranks}");
        }
    }
    assert!(numbers.sent.iter().all(|sent| *sent == ranks - 1), "{algorithm:?}: {:?}", numbers.sent);
    let others = ranks - 1;
    match algorithm {
        Alltoall::Linear => assert_eq!(steps, others.min(1)),
        Alltoall::Ring => assert_eq!(steps, others),
        Alltoall::Pairwise if ranks.is_power_of_two() => assert_eq!(steps, others),
        Alltoall::Pairwise => assert_eq!(steps, ranks),
    }
    numbers.most_inbound
}

#[test]
fn every_alltoall_brings_each_block_once_and_directly() {
    for ranks in (1..=40).chain([64, 100, 188]) {
        for algorithm in Alltoall::ALL {
            alltoall(algorithm, ranks, u64::from(ranks));
        }
    }
    // Whoever waits for its partner is sent to by few at a time; without that by as many as there are.
    assert!(alltoall(Alltoall::Linear, 64, 1) > 8 * alltoall(Alltoall::Pairwise, 64, 1).min(7));
}

/// In a round of a pairwise exchange everybody's partner is its partner's partner; in a ring's step k it is k ahead.
#[test]
fn partners_are_mutual() {
    for ranks in (1..=66).chain([188, 256, 1024]) {
        for algorithm in Alltoall::ALL {
            let all = schedules(Operation::Alltoall(algorithm), ranks);
            for (rank, schedule) in (0..).zip(&all) {
                let sends: Vec<Transfer> = schedule.sends().collect();
                let receives: Vec<Arrival> = schedule.receives().collect();
                for (index, (send, arrival)) in sends.iter().zip(&receives).enumerate() {
                    let theirs = all[send.to as usize].receive(send.tag).unwrap();
                    assert_eq!((theirs.from, theirs.target), (rank, Part::receive(Span::of(rank))), "{algorithm:?}");
                    assert_eq!((send.source, send.target), (Part::send(Span::of(send.to)), theirs.target));
                    match algorithm {
                        Alltoall::Pairwise => assert_eq!(send.to, arrival.from),
                        Alltoall::Ring | Alltoall::Linear => {
                            assert_eq!(send.to, (rank + index as u32 + 1) % ranks);
                        }
                    }
                    assert_eq!(send.after, if algorithm == Alltoall::Linear { 0 } else { index as u32 });
                }
                if ranks.is_power_of_two() && algorithm == Alltoall::Pairwise {
                    assert!((1..).zip(&sends).all(|(round, send)| send.to == rank ^ round));
                }
                assert_eq!(schedule.targets().len(), ranks - 1);
                let own = Span::of(rank);
                assert_eq!(schedule.start(), Some(Start { from: own, to: own }));
            }
        }
    }
}

fn check_gather(ranks: u32, root: u32, seed: u64) {
    let send = (0..ranks).map(|rank| vec![u64::from(rank) + 7]).collect();
    let mut numbers = Numbers::new(send, |rank| if rank == root { ranks } else { 0 });
    assert_eq!(numbers.run(Operation::Gather { root }, seed), (ranks - 1).min(1));
    let all: Vec<Option<u64>> = (0..ranks).map(|rank| Some(u64::from(rank) + 7)).collect();
    assert_eq!(numbers.receive[root as usize], all);
    assert!((0..ranks).zip(&numbers.sent).all(|(rank, sent)| *sent == u32::from(rank != root)));
}

fn check_scatter(ranks: u32, root: u32, seed: u64) {
    let all: Vec<u64> = (0..ranks).map(|rank| u64::from(rank) + 7).collect();
    let send = (0..ranks).map(|rank| if rank == root { all.clone() } else { Vec::new() }).collect();
    let mut numbers = Numbers::new(send, |_| 1);
    assert_eq!(numbers.run(Operation::Scatter { root }, seed), (ranks - 1).min(1));
    assert_eq!(numbers.receive.concat(), all.into_iter().map(Some).collect::<Vec<_>>());
    assert!((0..ranks).zip(&numbers.sent).all(|(rank, sent)| *sent == if rank == root { ranks - 1 } else { 0 }));
}

#[test]
fn a_root_gathers_from_all_and_scatters_to_all() {
    for ranks in 1..=17 {
        for root in 0..ranks {
            check_gather(ranks, root, u64::from(ranks + root));
            check_scatter(ranks, root, u64::from(ranks + root));
        }
    }
    for (ranks, root) in [(64, 63), (65, 0), (188, 100), (1024, 1023)] {
        check_gather(ranks, root, 3);
        check_scatter(ranks, root, 3);
    }
}

#[test]
fn peers_of_a_gather_and_a_scatter_are_the_root_or_all_others() {
    let peers = |operation, rank| {
        let schedule = Schedule::new(operation, RankInfo::new(rank, 8).unwrap()).unwrap();
        (schedule.targets(), schedule.sources())
    };
    let (mut others, root) = (RankSet::below(8), RankSet::of(3));
    others.remove(3);
    assert_eq!(peers(Operation::Gather { root: 3 }, 3), (RankSet::EMPTY, others));
    assert_eq!(peers(Operation::Gather { root: 3 }, 5), (root, RankSet::EMPTY));
    assert_eq!(peers(Operation::Scatter { root: 3 }, 3), (others, RankSet::EMPTY));
    assert_eq!(peers(Operation::Scatter { root: 3 }, 5), (RankSet::EMPTY, root));
    for operation in [Operation::Gather { root: 8 }, Operation::Scatter { root: 8 }] {
        let refused = Schedule::new(operation, RankInfo::new(0, 8).unwrap()).unwrap_err().to_string();
        assert!(refused.contains("the root: rank 8 of 8"), "{refused}");
    }
}

/// Nobody ends before everybody has begun.
#[test]
fn a_barrier_holds_everybody_until_the_last_has_come() {
    for ranks in (1..=66u32).chain([127, 188, 255, 1023, 1024]) {
        let rounds = ranks.next_power_of_two().ilog2();
        let mut numbers = Numbers::new(vec![Vec::new(); ranks as usize], |_| 0);
        assert_eq!(numbers.run(Operation::Barrier, u64::from(ranks)), rounds, "{ranks} ranks");
        assert!(numbers.sent.iter().all(|sent| *sent == rounds), "{ranks} ranks");
        // Who is known to have begun: what the sender of each message knew before it sent that.
        let all = schedules(Operation::Barrier, ranks);
        let mut known: Vec<RankSet> = (0..ranks).map(RankSet::of).collect();
        for round in 0..rounds {
            let before = known.clone();
            for (schedule, known) in all.iter().zip(&mut known) {
                let arrival = schedule.receive(round).unwrap();
                *known = known.or(&before[arrival.from as usize]);
                assert_eq!(schedule.sends().nth(round as usize).unwrap().after, round);
            }
        }
        assert!(known.iter().all(|known| known.len() == ranks), "{ranks} ranks");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    #[test]
    fn any_alltoall_in_any_order(ranks in 1u32..50, which in 0usize..3, seed: u64) {
        alltoall(Alltoall::ALL[which], ranks, seed);
    }
    #[test]
    fn any_gather_and_scatter_in_any_order(ranks in 1u32..80, root: u32, seed: u64) {
        check_gather(ranks, root % ranks, seed);
        check_scatter(ranks, root % ranks, seed);
    }
}
