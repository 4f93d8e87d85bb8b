//! Alltoall schedules and reductions, all ranks together, with messages delivered in any order that connections allow: every
//! block at its place, every sum right, and the bytes that the algorithms promise.

use std::collections::{HashMap, VecDeque};

use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{
    Allreduce, Alltoall, Arrival, Blocks, Operation, Reduction, Schedule, ScheduleError, Span, Transfer,
};
use proptest::prelude::*;

/// Which blocks of each rank's work buffer its posted sends read. No acknowledgement ever comes: a card may read a block again, to
/// repeat a message whose acknowledgement is late, as long as the operation lasts.
struct Reads(Vec<Vec<bool>>);

impl Reads {
    fn new(ranks: u32, blocks: u32) -> Self {
        Self(vec![vec![false; blocks as usize]; ranks as usize])
    }

    fn post(&mut self, rank: u32, read: Span) {
        let blocks = &mut self.0[rank as usize];
        read.iter(blocks.len() as u32).for_each(|block| blocks[block as usize] = true);
    }

    /// Checks that no posted send of the rank reads what is written.
    fn check_write(&self, rank: u32, written: Span) {
        let blocks = &self.0[rank as usize];
        let both = written.iter(blocks.len() as u32).find(|block| blocks[*block as usize]);
        assert_eq!(both, None, "{written:?} is written at rank {rank} while a posted send reads this block of it");
    }
}

/// What is under way from one rank to another.
type Connection = VecDeque<(Transfer, Vec<u64>)>;

/// Bytes of an element.
const UNIT: u32 = 8;

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

fn schedules(operation: Operation, ranks: u32) -> Vec<Schedule> {
    (0..ranks).map(|rank| Schedule::new(operation, RankInfo::new(rank, ranks).unwrap()).unwrap()).collect()
}

/// Carries all schedules out: `send` when a message is given to its connection, `arrive` when it comes out.
fn run(
    all: &mut [Schedule],
    seed: u64,
    mut send: impl FnMut(u32, Transfer) -> Vec<u64>,
    mut arrive: impl FnMut(&Schedule, u32, Arrival, Vec<u64>, u32),
) {
    let mut random = Random(seed);
    let mut connections: HashMap<(u32, u32), Connection> = HashMap::new();
    let mut under_way: Vec<(u32, u32)> = Vec::new();
    let mut polling: Vec<u32> = (0..all.len() as u32).collect();
    while !polling.is_empty() || !under_way.is_empty() {
        if !polling.is_empty() && (under_way.is_empty() || random.below(2) == 0) {
            let rank = polling.swap_remove(random.below(polling.len()));
            while let Some(transfer) = all[rank as usize].poll() {
                assert_ne!(transfer.to, rank, "a message to oneself");
                connections.entry((rank, transfer.to)).or_default().push_back((transfer, send(rank, transfer)));
                under_way.push((rank, transfer.to));
                all[rank as usize].sent().unwrap();
            }
        } else {
            let (from, to) = under_way.swap_remove(random.below(under_way.len()));
            let (transfer, bytes) = connections.get_mut(&(from, to)).and_then(VecDeque::pop_front).unwrap();
            let schedule = &mut all[to as usize];
            let arrival = schedule.receive(transfer.tag).unwrap();
            assert_eq!(arrival.from, from);
            schedule.arrived(from, transfer.tag).unwrap();
            arrive(schedule, to, arrival, bytes, transfer.tag);
            polling.push(to);
        }
    }
    for schedule in all {
        assert!(schedule.is_complete(), "{:?} waits for {:?}", schedule.place(), schedule.waiting_for());
        assert_eq!((schedule.poll(), schedule.waiting_for()), (None, None));
    }
}

/// Runs an Alltoall; block b of rank a's buffer is the number a * P + b. Gives the most messages on their way to one rank at a time.
fn alltoall(algorithm: Alltoall, ranks: u32, seed: u64) -> u32 {
    let mut all = schedules(Operation::Alltoall(algorithm), ranks);
    let mut received: Vec<Vec<Option<u64>>> = vec![vec![None; ranks as usize]; ranks as usize];
    let mut sent = vec![0; ranks as usize];
    let inbound = std::cell::RefCell::new((vec![0u32; ranks as usize], 0));
    run(
        &mut all,
        seed,
        |rank, transfer| {
            assert_eq!(transfer.blocks, Span::of(transfer.to), "the block that is for the receiver");
            sent[rank as usize] += 1;
            let (now, most) = &mut *inbound.borrow_mut();
            now[transfer.to as usize] += 1;
            *most = now[transfer.to as usize].max(*most);
            vec![u64::from(rank * ranks + transfer.to)]
        },
        |_, to, arrival, bytes, _| {
            assert_eq!(arrival.blocks, Span::of(arrival.from), "the block that is from the sender");
            inbound.borrow_mut().0[to as usize] -= 1;
            assert_eq!(received[to as usize][arrival.from as usize].replace(bytes[0]), None, "twice");
        },
    );
    for (to, blocks) in received.iter().enumerate() {
        for (from, block) in blocks.iter().enumerate().filter(|(from, _)| *from != to) {
            assert_eq!(*block, Some((from * ranks as usize + to) as u64), "{algorithm:?} of {ranks}");
        }
    }
    assert!(sent.iter().all(|sent| *sent == ranks - 1), "{algorithm:?}: {sent:?}");
    inbound.into_inner().1
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
                    assert_eq!((theirs.from, theirs.blocks), (rank, Span::of(rank)), "{algorithm:?} of {ranks}");
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
                assert_eq!((schedule.starts().next(), schedule.reduction(0)), (None, None));
            }
        }
    }
}

fn at(blocks: &Blocks<'_>, span: Span) -> Vec<usize> {
    let ranges = blocks.ranges(span);
    ranges.into_iter().flat_map(|range| (range.start / 8) as usize..(range.end / 8) as usize).collect()
}

/// Runs a reduction of `elements` numbers of each rank; gives the work buffers and the bytes that each rank sent.
fn reduce(
    operation: Operation,
    ranks: u32,
    contribution: &Blocks<'_>,
    work: &Blocks<'_>,
    seed: u64,
) -> (Vec<Vec<u64>>, Vec<u64>) {
    let elements = contribution.total_bytes() / u64::from(UNIT);
    let own = |rank: u32, at: usize| value(rank, at);
    let mut all = schedules(operation, ranks);
    let buffers = std::cell::RefCell::new(vec![vec![0u64; (work.total_bytes() / 8) as usize]; ranks as usize]);
    for schedule in &all {
        let rank = schedule.place().rank();
        assert!(schedule.starts().next().is_some(), "a reduction");
        for start in schedule.starts() {
            let (from, to) = (at(contribution, start.from), at(work, start.to));
            assert_eq!(from.len(), to.len());
            from.into_iter().zip(to).for_each(|(from, to)| buffers.borrow_mut()[rank as usize][to] = own(rank, from));
        }
    }
    let reads = std::cell::RefCell::new(Reads::new(ranks, work.count()));
    assert_eq!(elements, contribution.total_bytes() / 8, "no element is cut");
    let mut sent = vec![0; ranks as usize];
    run(
        &mut all,
        seed,
        |rank, transfer| {
            sent[rank as usize] += work.bytes(transfer.blocks);
            reads.borrow_mut().post(rank, transfer.blocks);
            at(work, transfer.blocks).into_iter().map(|at| buffers.borrow()[rank as usize][at]).collect()
        },
        |schedule, to, arrival, bytes, tag| {
            reads.borrow().check_write(to, arrival.blocks);
            let buffer = &mut buffers.borrow_mut()[to as usize];
            let place = at(work, arrival.blocks);
            place.iter().zip(&bytes).for_each(|(at, value)| buffer[*at] = *value);
            match schedule.reduction(tag) {
                None => {}
                Some(Reduction::AddOwn) => place.iter().for_each(|at| buffer[*at] += own(to, *at)),
                Some(Reduction::AddTo(span)) => {
                    reads.borrow().check_write(to, span);
                    let targets = at(work, span);
                    assert_eq!(targets.len(), place.len());
                    targets.iter().zip(&bytes).for_each(|(at, value)| buffer[*at] += value);
                }
            }
        },
    );
    (buffers.into_inner(), sent)
}

fn value(rank: u32, at: usize) -> u64 {
    (at as u64 + 1) * (u64::from(rank) * u64::from(rank) + 3)
}

fn sum(ranks: u32, at: usize) -> u64 {
    (0..ranks).map(|rank| value(rank, at)).sum()
}

fn check_reduce_scatter(ranks: u32, elements: u64, seed: u64) {
    let blocks = Blocks::shares(elements, ranks).unwrap().in_units(UNIT).unwrap();
    let (buffers, sent) = reduce(Operation::ReduceScatter, ranks, &blocks, &blocks, seed);
    for (rank, buffer) in (0..).zip(&buffers) {
        for at in at(&blocks, Span::of(rank)) {
            assert_eq!(buffer[at], sum(ranks, at), "share of rank {rank} of {ranks}");
        }
    }
    // Each share travels over all links of the ring but one.
    assert_eq!(sent.iter().sum::<u64>(), blocks.total_bytes() * u64::from(ranks - 1));
    if elements.is_multiple_of(u64::from(ranks)) {
        let each = blocks.total_bytes() / u64::from(ranks) * u64::from(ranks - 1);
        assert!(sent.iter().all(|sent| *sent == each), "{sent:?}");
    }
}

fn check_allreduce(algorithm: Allreduce, ranks: u32, elements: u64, seed: u64) {
    let contribution = algorithm.contribution(elements, UNIT, ranks).unwrap();
    let work = algorithm.work(elements, UNIT, ranks).unwrap();
    let (buffers, sent) = reduce(Operation::Allreduce(algorithm), ranks, &contribution, &work, seed);
    for (rank, buffer) in buffers.iter().enumerate() {
        let result = &buffer[buffer.len() - elements as usize..];
        for (at, value) in result.iter().enumerate() {
            assert_eq!(*value, sum(ranks, at), "{algorithm:?}: element {at} at rank {rank} of {ranks}");
        }
    }
    let bytes = elements * u64::from(UNIT);
    assert_eq!(sent.iter().sum::<u64>(), 2 * bytes * u64::from(ranks - 1), "{algorithm:?} of {ranks}");
    if algorithm == Allreduce::Ring && elements.is_multiple_of(u64::from(ranks)) {
        let each = 2 * bytes / u64::from(ranks) * u64::from(ranks - 1);
        assert!(sent.iter().all(|sent| *sent == each), "2N(P - 1)/P: {sent:?}");
    }
}

#[test]
fn a_reduce_scatter_leaves_each_share_at_its_rank_for_n_times_p_less_1_bytes() {
    for ranks in (1..=40).chain([64, 188]) {
        for elements in [0, 1, 7, 3 * u64::from(ranks)] {
            check_reduce_scatter(ranks, elements, u64::from(ranks));
        }
    }
}

#[test]
fn allreduces_leave_the_sum_everywhere() {
    for ranks in (1..=40).chain([64, 188]) {
        for algorithm in [Allreduce::Ring, Allreduce::Tree { segments: 1 }, Allreduce::Tree { segments: 4 }] {
            for elements in [0, 1, 7, 3 * u64::from(ranks)] {
                check_allreduce(algorithm, ranks, elements, u64::from(ranks));
            }
        }
    }
}

#[test]
fn what_cannot_be_reduced_is_refused() {
    for segments in [0, u32::MAX] {
        let refused = Schedule::new(Operation::Allreduce(Allreduce::Tree { segments }), RankInfo::new(0, 8).unwrap());
        assert!(matches!(refused, Err(ScheduleError::Segments { .. })), "{refused:?}");
    }
    assert!(Allreduce::Tree { segments: 0 }.work(1, 4, 2).is_err());
    assert!(Allreduce::Ring.work(1, 4, 0).is_err() && Allreduce::Ring.work(1, 0, 2).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    #[test]
    fn any_reduction_of_any_length(ranks in 1u32..50, elements in 0u64..300, segments in 1u32..6, seed: u64) {
        check_reduce_scatter(ranks, elements, seed);
        check_allreduce(Allreduce::Ring, ranks, elements, seed);
        check_allreduce(Allreduce::Tree { segments }, ranks, elements, seed);
    }

    #[test]
    fn any_alltoall_in_any_order(ranks in 1u32..50, which in 0usize..3, seed: u64) {
        alltoall(Alltoall::ALL[which], ranks, seed);
    }
}
