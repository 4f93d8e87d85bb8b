//! Reduction schedules, all ranks together, with messages delivered in any order that connections allow: every sum
//! right, of the operands that are promised in the order that is promised, and the bytes and steps that the algorithms
//! promise.
//!
//! Elements are terms, so that it shows what was combined with what, and in which order.

use std::rc::Rc;

use crate::support::delivery::{Buffers, deliver, schedules};
use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{
    Allreduce, Arrival, Blocks, BlocksError, Layout, Memory, Operation, Part, Reduce, ReduceScatter, Schedule,
    ScheduleError, Span, Transfer,
};
use proptest::prelude::*;

/// Bytes of an element.
const UNIT: u32 = 8;

/// What an element is made of: ranks and brackets, and which element it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    at: usize,
    ranks: Rc<[u8]>,
}

const OPEN: u8 = b'(';

impl Term {
    /// The own contribution. Ranks are encoded in two bytes, above those of brackets.
    fn of(rank: u32, at: usize) -> Self {
        Self { at, ranks: Rc::new([128 + (rank / 128) as u8, 128 + (rank % 128) as u8]) }
    }

    /// `(left right)`.
    fn combine(left: &Self, right: &Self) -> Self {
        assert_eq!(left.at, right.at, "elements of different places");
        Self { at: left.at, ranks: [&[OPEN], &*left.ranks, &*right.ranks].concat().into() }
    }

    /// Its ranks in order.
    fn order(&self) -> Vec<u32> {
        let ranks: Vec<u8> = self.ranks.iter().copied().filter(|byte| *byte != OPEN).collect();
        ranks.as_chunks::<2>().0.iter().map(|[high, low]| u32::from(high - 128) * 128 + u32::from(low - 128)).collect()
    }

    /// What one core makes of all contributions in a loop over ranks.
    fn looped(ranks: u32, at: usize) -> Self {
        (1..ranks).fold(Self::of(0, at), |sum, rank| Self::combine(&sum, &Self::of(rank, at)))
    }
}

/// A buffer: each element unless nothing has been written there, and whether a posted send reads it. No acknowledgement
/// ever comes: a card may read it again, to repeat a message whose acknowledgement is late, as long as the operation
/// lasts.
type Buffer = Vec<(Option<Term>, bool)>;

struct Ranks<'a> {
    layouts: Vec<Layout<'a>>,
    /// Of each rank: send, temporary, and receive buffer.
    buffers: Vec<[Buffer; 3]>,
    sent_bytes: Vec<u64>,
}

impl<'a> Ranks<'a> {
    fn new(layouts: Vec<Layout<'a>>) -> Self {
        let buffers = (0..).zip(&layouts).map(|(rank, layout)| {
            let elements = |bytes: u64| (bytes / u64::from(UNIT)) as usize;
            let send = (0..elements(layout.send.total_bytes())).map(|at| (Some(Term::of(rank, at)), false));
            let empty = |bytes| vec![(None, false); elements(bytes)];
            [send.collect(), empty(layout.temporary_bytes()), empty(layout.receive.total_bytes())]
        });
        Self { buffers: buffers.collect(), sent_bytes: vec![0; layouts.len()], layouts }
    }

    fn at(&self, rank: u32, part: Part) -> std::ops::Range<usize> {
        let [range, again] = self.layouts[rank as usize].ranges(part).map(|range| {
            let [start, end] = [range.start, range.end].map(|byte| {
                assert!(byte.is_multiple_of(u64::from(UNIT)), "an element is cut");
                (byte / u64::from(UNIT)) as usize
            });
            start..end
        });
        assert!(again.is_empty(), "{part:?} of a reduction goes on at the beginning");
        range
    }

    fn read(&self, rank: u32, part: Part) -> Vec<Term> {
        let buffer = &self.buffers[rank as usize][part.memory as usize];
        let there = |(term, _): &(Option<Term>, bool)| term.clone().expect("read before anything was there");
        buffer[self.at(rank, part)].iter().map(there).collect()
    }

    /// `first`: nothing has been written there before.
    fn write(&mut self, rank: u32, part: Part, terms: Vec<Term>, first: bool) {
        assert_ne!(part.memory, Memory::Send, "the contribution is written");
        let range = self.at(rank, part);
        assert_eq!(range.len(), terms.len(), "{part:?}: two sides of one length");
        for (to, term) in self.buffers[rank as usize][part.memory as usize][range].iter_mut().zip(terms) {
            assert!(!to.1, "{part:?} is written at rank {rank} while a posted send reads it");
            assert!(!first || to.0.is_none(), "{part:?}: a message lands at rank {rank} where something is");
            to.0 = Some(term);
        }
    }
}

impl Buffers for Ranks<'_> {
    type Content = Vec<Term>;

    fn send(&mut self, rank: u32, transfer: Transfer) -> Vec<Term> {
        let content = self.read(rank, transfer.source);
        self.sent_bytes[rank as usize] += content.len() as u64 * u64::from(UNIT);
        let range = self.at(rank, transfer.source);
        let buffer = &mut self.buffers[rank as usize][transfer.source.memory as usize];
        buffer[range].iter_mut().for_each(|element| element.1 = true);
        content
    }

    fn arrive(&mut self, rank: u32, arrival: Arrival, content: Vec<Term>) {
        self.write(rank, arrival.target, content, true);
    }

    fn reduce(&mut self, schedule: &mut Schedule) {
        let rank = schedule.place().rank();
        while let Some(reduction) = schedule.reduce() {
            let [left, right] = [reduction.left, reduction.right].map(|part| self.read(rank, part));
            assert_eq!(left.len(), right.len());
            let sum: Vec<Term> = left.iter().zip(&right).map(|(left, right)| Term::combine(left, right)).collect();
            assert!(
                [reduction.left, reduction.right].contains(&reduction.to)
                    || self.buffers[rank as usize][reduction.to.memory as usize][self.at(rank, reduction.to)]
                        .iter()
                        .all(|(term, _)| term.is_none()),
                "in place, or where nothing is"
            );
            self.write(rank, reduction.to, sum, false);
        }
    }
}

/// What came of a reduction.
struct Outcome {
    /// Each rank's receive buffer.
    results: Vec<Vec<Term>>,
    sent_bytes: Vec<u64>,
    temporary_bytes: Vec<u64>,
    steps: u32,
}

fn run<'a>(operation: Operation, ranks: u32, seed: u64, layout: impl Fn(RankInfo) -> Layout<'a>) -> Outcome {
    let mut all = schedules(operation, ranks);
    let mut buffers = Ranks::new(all.iter().map(|schedule| layout(schedule.place())).collect());
    for schedule in &all {
        let rank = schedule.place().rank();
        if let Some(start) = schedule.start() {
            let own = buffers.read(rank, Part::send(start.from));
            buffers.write(rank, Part::receive(start.to), own, true);
        }
        assert_eq!(schedule.start().is_some(), ranks == 1, "every contribution of several is combined");
        let reductions = schedule.reductions().count();
        assert!(reductions < 8 * ranks as usize * 6, "{reductions} reductions");
    }
    let steps = deliver(&mut all, seed, &mut buffers);
    let temporary_bytes = buffers.layouts.iter().map(Layout::temporary_bytes).collect();
    let whole = |(rank, layout): (u32, &Layout<'_>)| {
        buffers.read(rank, Part::receive(Span { first: 0, count: layout.receive.count() }))
    };
    let results = (0..).zip(&buffers.layouts).map(whole).collect();
    Outcome { results, sent_bytes: buffers.sent_bytes, temporary_bytes, steps }
}

/// The order of ranks from one on.
fn from(first: u32, ranks: u32) -> Vec<u32> {
    (0..ranks).map(|index| (first + index) % ranks).collect()
}

/// ⌈log2 P⌉.
fn levels(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}

fn check_allreduce(algorithm: Allreduce, ranks: u32, elements: u64, seed: u64) {
    let operation = Operation::Allreduce(algorithm);
    let outcome = run(operation, ranks, seed, |place| algorithm.layout(elements, UNIT, place).unwrap());
    let (bytes, share) = (elements * u64::from(UNIT), elements.div_ceil(u64::from(ranks)) * u64::from(UNIT));
    let others = u64::from(ranks - 1);
    let first = &outcome.results[0];
    assert_eq!(first.len() as u64, elements);
    for (rank, result) in outcome.results.iter().enumerate() {
        assert!(result == first, "{algorithm:?} of {ranks}: rank {rank} has other bits than rank 0");
    }
    for (at, term) in first.iter().enumerate() {
        assert_eq!(term.at, at);
        match algorithm {
            Allreduce::Ring => {
                let share = (at as u64 / elements.div_ceil(u64::from(ranks))) as u32;
                assert_eq!(term.order(), from((share + 1) % ranks, ranks), "from the share's right neighbour on");
            }
            Allreduce::Tree { .. } | Allreduce::RecursiveDoubling => assert_eq!(term.order(), from(0, ranks)),
            Allreduce::Exchange => assert_eq!(*term, Term::looped(ranks, at), "as one core would"),
        }
    }
    assert_eq!(operation.keeps_order(), algorithm != Allreduce::Ring);
    let (sent, rounds) = (&outcome.sent_bytes, ranks.ilog2());
    let pairs = ranks - (1 << rounds);
    match algorithm {
        Allreduce::RecursiveDoubling => {
            for (rank, &sent) in (0..).zip(sent) {
                let messages = match (rank < 2 * pairs, rank % 2) {
                    (true, 0) => 1,
                    (true, _) => rounds + 1,
                    (false, _) => rounds,
                };
                assert_eq!(sent, bytes * u64::from(messages), "rank {rank} of {ranks}");
            }
        }
        _ => assert_eq!(sent.iter().sum::<u64>(), 2 * bytes * others, "{algorithm:?} of {ranks}"),
    }
    if matches!(algorithm, Allreduce::Ring | Allreduce::Exchange) && elements.is_multiple_of(u64::from(ranks)) {
        assert!(sent.iter().all(|sent| *sent == 2 * share * others), "2N(P - 1)/P: {sent:?}");
    }
    let steps = match algorithm {
        Allreduce::Ring => 2 * (ranks - 1),
        // A rank is as far from the root as it has bits.
        Allreduce::Tree { .. } => 2 * rounds,
        Allreduce::RecursiveDoubling if pairs == 0 => rounds,
        // What is given goes through all rounds and back to a rank that gave, if such exchange in the upper half, too.
        Allreduce::RecursiveDoubling => rounds + 1 + u32::from(pairs > 1 << (rounds - 1)),
        Allreduce::Exchange => 2 * (ranks - 1).min(1),
    };
    assert_eq!(outcome.steps, steps, "{algorithm:?} of {ranks}");
    let most = outcome.temporary_bytes.iter().copied().max().unwrap();
    let temporary = match algorithm {
        Allreduce::Ring => {
            if ranks > 2 {
                bytes
            } else {
                0
            }
        }
        Allreduce::Tree { .. } => bytes * u64::from(levels(ranks).saturating_sub(1)),
        Allreduce::RecursiveDoubling => bytes * u64::from(rounds.saturating_sub(1) + pairs.min(1)),
        Allreduce::Exchange => share.min(bytes) * others,
    };
    assert_eq!(most, temporary, "{algorithm:?} of {ranks}");
}

fn ends(lengths: &[u64]) -> Vec<u64> {
    let end = |end: &mut u64, len: &u64| {
        *end += len;
        Some(*end)
    };
    lengths.iter().scan(0, end).collect()
}

/// The share of rank r has `lengths[r]` elements.
fn check_reduce_scatter(algorithm: ReduceScatter, lengths: &[u64], seed: u64) {
    let (ranks, ends) = (lengths.len() as u32, ends(lengths));
    let shares = Blocks::unequal(&ends).unwrap().in_units(UNIT).unwrap();
    let operation = Operation::ReduceScatter(algorithm);
    let outcome = run(operation, ranks, seed, |place| algorithm.layout(shares, place).unwrap());
    for (rank, result) in (0..ranks).zip(&outcome.results) {
        let first = (ends[rank as usize] - lengths[rank as usize]) as usize;
        assert_eq!(result.len() as u64, lengths[rank as usize]);
        for (at, term) in (first..).zip(result) {
            assert_eq!(term.at, at);
            match algorithm {
                ReduceScatter::Ring => assert_eq!(term.order(), from((rank + 1) % ranks, ranks)),
                ReduceScatter::Exchange => assert_eq!(*term, Term::looped(ranks, at), "as one core would"),
            }
        }
    }
    assert_eq!(operation.keeps_order(), algorithm == ReduceScatter::Exchange);
    let bytes = shares.total_bytes();
    assert_eq!(outcome.sent_bytes.iter().sum::<u64>(), bytes * u64::from(ranks - 1));
    for (rank, sent) in (0..).zip(&outcome.sent_bytes) {
        // Around the ring, too: all shares but the own one, with which the left neighbour ends.
        let kept = shares.bytes(Span::of(rank));
        assert_eq!(*sent, bytes - kept, "{algorithm:?}: rank {rank} of {ranks}");
    }
    let steps = if algorithm == ReduceScatter::Ring { ranks - 1 } else { (ranks - 1).min(1) };
    assert_eq!(outcome.steps, steps, "{algorithm:?} of {ranks}");
}

fn check_reduce(algorithm: Reduce, root: u32, ranks: u32, elements: u64, seed: u64) {
    let operation = Operation::Reduce { algorithm, root };
    let outcome = run(operation, ranks, seed, |place| algorithm.layout(elements, UNIT, root, place).unwrap());
    for (rank, result) in (0..).zip(&outcome.results) {
        assert_eq!(result.len() as u64, if rank == root { elements } else { 0 }, "rank {rank} of root {root}");
    }
    for (at, term) in outcome.results[root as usize].iter().enumerate() {
        assert_eq!(term.at, at);
        match algorithm {
            Reduce::Tree { .. } => assert_eq!(term.order(), from(root, ranks), "from the root on"),
            Reduce::Exchange => assert_eq!(*term, Term::looped(ranks, at), "as one core would"),
        }
    }
    assert_eq!(operation.keeps_order(), root == 0 || algorithm == Reduce::Exchange);
    let bytes = elements * u64::from(UNIT);
    let shares = Blocks::shares(elements, ranks).unwrap().in_units(UNIT).unwrap();
    for (rank, sent) in (0..).zip(&outcome.sent_bytes) {
        let own = shares.bytes(Span::of(rank));
        let expected = match algorithm {
            Reduce::Tree { .. } => {
                if rank == root {
                    0
                } else {
                    bytes
                }
            }
            Reduce::Exchange => {
                if rank == root {
                    bytes - own
                } else {
                    bytes
                }
            }
        };
        assert_eq!(*sent, expected, "{algorithm:?}: rank {rank} of {ranks} to {root}");
    }
    let steps = if algorithm == Reduce::Exchange { 2 * (ranks - 1).min(1) } else { ranks.ilog2() };
    assert_eq!(outcome.steps, steps, "{algorithm:?} of {ranks}");
}

const ALLREDUCES: [Allreduce; 5] = [
    Allreduce::Ring,
    Allreduce::Tree { segments: 1 },
    Allreduce::Tree { segments: 4 },
    Allreduce::RecursiveDoubling,
    Allreduce::Exchange,
];

const REDUCES: [Reduce; 3] = [Reduce::Tree { segments: 1 }, Reduce::Tree { segments: 3 }, Reduce::Exchange];

#[test]
fn allreduces_leave_the_same_sum_everywhere() {
    for ranks in (1..=40).chain([63, 64, 65, 188]) {
        for algorithm in ALLREDUCES {
            for elements in [0, 1, 7].into_iter().chain((ranks <= 40).then(|| 3 * u64::from(ranks))) {
                check_allreduce(algorithm, ranks, elements, u64::from(ranks));
            }
        }
    }
}

#[test]
fn a_reduce_scatter_leaves_each_share_at_its_rank() {
    for ranks in (1..=40).chain([64, 65, 188]) {
        for algorithm in ReduceScatter::ALL {
            for elements in [0, 1, 7].into_iter().chain((ranks <= 40).then(|| 3 * u64::from(ranks))) {
                let shares = Blocks::shares(elements, ranks).unwrap();
                let lengths: Vec<u64> = (0..ranks).map(|share| shares.bytes(Span::of(share))).collect();
                check_reduce_scatter(algorithm, &lengths, u64::from(ranks));
            }
            let lengths: Vec<u64> = (0..u64::from(ranks)).map(|share| share * 5 % 4).collect();
            check_reduce_scatter(algorithm, &lengths, u64::from(ranks));
        }
    }
}

#[test]
fn a_reduce_leaves_the_sum_at_any_root() {
    for ranks in 1..=17 {
        for root in 0..ranks {
            for algorithm in REDUCES {
                for elements in [0, 1, 7, 2 * u64::from(ranks)] {
                    check_reduce(algorithm, root, ranks, elements, u64::from(ranks * 31 + root));
                }
            }
        }
    }
    for (ranks, root) in [(33, 32), (64, 0), (64, 21), (65, 64), (188, 100)] {
        REDUCES.into_iter().for_each(|algorithm| check_reduce(algorithm, root, ranks, 7, 5));
    }
}

/// The shape of every schedule is the same for both sides, up to as many ranks as there may be.
#[test]
fn both_sides_of_every_message_agree() {
    for ranks in (1..=66).chain([127, 128, 129, 188, 512, 513, 1023, 1024]) {
        let roots = [0, ranks / 3, ranks - 1];
        let reduces = roots
            .into_iter()
            .flat_map(|root| REDUCES.into_iter().map(move |algorithm| Operation::Reduce { algorithm, root }));
        let operations = (ALLREDUCES.into_iter().map(Operation::Allreduce))
            .chain(ReduceScatter::ALL.into_iter().map(Operation::ReduceScatter))
            .chain(reduces);
        for operation in operations {
            let all = schedules(operation, ranks);
            let mut due: Vec<Vec<bool>> = all.iter().map(|schedule| vec![false; schedule.receives().count()]).collect();
            for schedule in &all {
                let from = schedule.place().rank();
                let mut targets = flexcast_proto::RankSet::EMPTY;
                for transfer in schedule.sends() {
                    let arrival = all[transfer.to as usize].receive(transfer.tag).unwrap();
                    assert_eq!((arrival.from, arrival.target), (from, transfer.target), "{operation:?} of {ranks}");
                    assert!(!std::mem::replace(&mut due[transfer.to as usize][transfer.tag as usize], true));
                    targets.insert(transfer.to);
                }
                assert_eq!(schedule.targets(), targets);
                let sources = schedule.receives().fold(flexcast_proto::RankSet::EMPTY, |mut set, arrival| {
                    set.insert(arrival.from);
                    set
                });
                assert_eq!(schedule.sources(), sources);
            }
            assert!(due.iter().flatten().all(|due| *due), "{operation:?} of {ranks}: a message that is never sent");
        }
    }
}

/// What all others send in the second step may come before what the first rank sends in the first.
#[test]
fn one_late_rank_of_many_delays_and_breaks_nothing() {
    let ranks = 1024;
    let operation = Operation::Allreduce(Allreduce::Exchange);
    let mut schedule = Schedule::new(operation, RankInfo::new(5, ranks).unwrap()).unwrap();
    let receives: Vec<Arrival> = schedule.receives().collect();
    assert_eq!(receives[0].from, 0);
    for (tag, arrival) in (0..).zip(&receives).skip(1) {
        schedule.arrived(arrival.from, tag).unwrap();
        assert_eq!(schedule.reduce(), None, "in the order of ranks");
    }
    schedule.arrived(0, 0).unwrap();
    assert_eq!(std::iter::from_fn(|| schedule.reduce()).count(), 1023);
    assert_eq!((std::iter::from_fn(|| schedule.poll()).count(), schedule.waiting_for()), (2046, None));
}

#[test]
fn what_cannot_be_reduced_is_refused() {
    let place = RankInfo::new(0, 8).unwrap();
    for segments in [0, u32::MAX] {
        let tree = Operation::Allreduce(Allreduce::Tree { segments });
        let to_root = Operation::Reduce { algorithm: Reduce::Tree { segments }, root: 0 };
        for operation in [tree, to_root] {
            let refused = Schedule::new(operation, place);
            assert!(matches!(refused, Err(ScheduleError::Segments { .. })), "{refused:?}");
        }
    }
    for algorithm in REDUCES {
        let refused = Schedule::new(Operation::Reduce { algorithm, root: 8 }, place).unwrap_err().to_string();
        assert!(refused.contains("the root: rank 8 of 8"), "{refused}");
    }
    assert!(Allreduce::Tree { segments: 0 }.layout(1, 4, place).is_err());
    assert_eq!(Allreduce::Ring.layout(1, 0, place), Err(BlocksError::None));
    assert!(Allreduce::RecursiveDoubling.layout(u64::MAX / 8, 8, place).is_err(), "two areas of 2^64 bytes");
    let shares = Blocks::equal(4, 7).unwrap();
    for algorithm in ReduceScatter::ALL {
        assert_eq!(algorithm.layout(shares, place), Err(BlocksError::Shares { blocks: 7, ranks: 8 }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    #[test]
    fn any_reduction_of_any_length(
        ranks in 1u32..50, elements in 0u64..100, segments in 1u32..6, root: u32,
        lengths in prop::collection::vec(0u64..5, 1..50), seed: u64,
    ) {
        for algorithm in ALLREDUCES.into_iter().chain([Allreduce::Tree { segments }]) {
            check_allreduce(algorithm, ranks, elements, seed);
        }
        for algorithm in [Reduce::Tree { segments }, Reduce::Exchange] {
            check_reduce(algorithm, root % ranks, ranks, elements, seed);
        }
        for algorithm in ReduceScatter::ALL {
            check_reduce_scatter(algorithm, &lengths, seed);
        }
    }
}
