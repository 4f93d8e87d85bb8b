//! Sparse AllReduce from end to end, without hardware: traces of small examples, counts of messages, whole arrays of
//! bytes over connections in any order and over datagrams that are lost, repeated and delayed, and whoever falls
//! silent. Sums are compared exactly.

use crate::support::sparse::{Block, NO_LIMITS, Node, Party, sums, union};
use crate::support::sparse_network::{self as network, End, Network, Wide, reliable};
use flexcast_proto::sparse::{
    Additions, Aggregator, AggregatorError, AggregatorLimits, Answered, CacheBudget, Displacement, Incoming,
    LostWorker, Order, Parameters, Received, SENTINEL, Shards, Silent, Step, Summation, SummationError, Votes,
    VotesError, Worker, WorkerError,
};
use proptest::prelude::*;

fn parameters(workers: usize, width: u32) -> Parameters {
    Parameters::new(workers as u32, 256, width, 4).unwrap()
}

fn votes(width: u32, indices: &[u32]) -> Votes {
    let places = indices.iter().copied().chain(std::iter::repeat(SENTINEL)).take(width as usize);
    Votes::read(parameters(1, width), places).unwrap()
}

/// A message with so many blocks.
fn message(displacement: u32, blocks: u32, votes: Votes) -> Incoming {
    Incoming { displacement, blocks, votes }
}

/// A message that only votes.
fn vote(width: u32, indices: &[u32]) -> Incoming {
    message(0, 0, votes(width, indices))
}

/// Arrays of `blocks` blocks in which each worker has those of its list, with values that its rank and the index give.
fn arrays(lists: &[&[u32]], blocks: u32) -> Vec<Vec<i32>> {
    let block = |rank: usize, at: u32| if lists[rank].contains(&at) { 1000 * (1 + rank as i32) + at as i32 } else { 0 };
    (0..lists.len()).map(|rank| (0..blocks).map(|at| block(rank, at)).collect()).collect()
}

/// One iteration after another: all messages in the order of ranks, then all answers. Checks the lemma at each, and the
/// number of messages.
fn in_step<B: Block>(arrays: &[Vec<B>], width: u32) {
    let (parameters, expected) = (parameters(arrays.len(), width), sums(arrays));
    let mut parties: Vec<Party<B>> = arrays.iter().map(|array| Party::new(parameters, array.clone())).collect();
    let mut node = Node::new(
        parameters,
        expected.len() as u32,
        Order::Arrival,
        NO_LIMITS,
        expected.first().copied().unwrap_or(B::ZERO),
    );
    let (mut messages, mut passed) = (0, 0);
    loop {
        let mut answer = None;
        for (rank, party) in (0..).zip(&mut parties) {
            assert!(party.drive());
            let message = party.message().unwrap();
            assert_eq!(message.iteration, messages);
            let (received, last) = node.handle(rank, &message, true, 0).unwrap();
            assert!(matches!(received, Received::Added(_)));
            answer = answer.or(last);
        }
        messages += 1;
        let answer = answer.expect("all messages are there");
        let (blocks, next) = node.slots.content(&answer);
        // What a worker has up to the last global index, it has voted for.
        let last = answer.next.last().unwrap_or(if answer.is_last() { expected.len() as u32 } else { 0 });
        for (party, array) in parties.iter().zip(arrays) {
            let voted = party.message().unwrap().votes;
            let own = (passed..=last).filter(|at| array.get(*at as usize).is_some_and(|block| *block != B::ZERO));
            own.for_each(|at| assert!(voted.contains(&at), "block {at} is not among {voted:?}"));
        }
        passed = last.saturating_add(u32::from(!answer.is_last()));
        for party in &mut parties {
            assert_eq!(party.answer(answer.iteration, &blocks, &next), Ok(Answered::New));
        }
        if answer.is_last() {
            break;
        }
    }
    for party in &mut parties {
        assert!(!party.drive() && party.machine.is_complete() && party.array == expected);
    }
    // One for every d blocks that some worker has, and one for the votes before.
    assert_eq!(messages, (union(arrays).len() as u32).div_ceil(width) + 1);
}

/// The life of a ring of six slots. Blocks 0, 3 and 4 are loaded and voted for, 0 and 3 are sent, zero block 5 is
/// overwritten, 6 and 7 are loaded, and 4, 6 and 7 are voted for. The published figure is such an example; what is not
/// known of it is filled in.
#[test]
fn life_of_a_ring() {
    let parameters = parameters(2, 3);
    let mut worker = Worker::new(parameters, 8).unwrap();
    let next = |worker: &mut Worker, indices: &[u32], sums| {
        worker.answer(worker.iteration(), sums, &votes(3, indices)).unwrap();
    };
    let store = |block, position, slot| Step::Store { block, position, slot };
    for (from, slot, found) in [(0, 0, 0), (1, 1, 3), (4, 2, 4)] {
        assert_eq!(worker.poll(), Step::Scan { from, slot });
        worker.found(Some(found)).unwrap();
    }
    assert_eq!((worker.poll(), worker.poll()), (Step::Send, Step::Wait));
    let message = worker.message().unwrap();
    assert_eq!((message.iteration, message.displacement.bits()), (0, 0));
    assert!(message.send.is_empty() && message.receive.is_empty());
    assert_eq!(message.votes.places(), [0, 3, 4]);

    next(&mut worker, &[0, 2, 3], 0);
    // Block 5 is loaded into slot 3 and overwritten.
    for (from, slot, found) in [(5, 3, 6), (7, 4, 7)] {
        assert_eq!(worker.poll(), Step::Scan { from, slot });
        worker.found(Some(found)).unwrap();
    }
    assert_eq!((worker.poll(), worker.poll()), (Step::Send, Step::Wait));
    let message = worker.message().unwrap();
    assert_eq!((message.iteration, message.displacement.bits()), (1, 0b010));
    assert_eq!(message.send.ranges(), [0..2, 0..0]);
    assert_eq!(message.votes.places(), [4, 6, 7]);
    assert_eq!(message.receive.ranges(), [5..6, 0..2], "the slots of blocks 0 and 3 receive sums");

    next(&mut worker, &[4, 5, 6], 3);
    assert_eq!([worker.poll(), worker.poll(), worker.poll()], [store(0, 0, 5), store(2, 1, 0), store(3, 2, 1)]);
    assert_eq!((worker.poll(), worker.poll()), (Step::Send, Step::Wait));
    let message = worker.message().unwrap();
    assert_eq!((message.displacement.bits(), message.send.ranges()), (0b010, [2..4, 0..0]));
    assert_eq!((message.votes.places(), message.receive.ranges()), (&[7, SENTINEL, SENTINEL][..], [5..6, 0..2]));

    next(&mut worker, &[7], 3);
    assert_eq!([worker.poll(), worker.poll(), worker.poll()], [store(4, 0, 5), store(5, 1, 0), store(6, 2, 1)]);
    assert_eq!(worker.poll(), Step::Send);
    let message = worker.message().unwrap();
    assert_eq!((message.displacement.bits(), message.send.ranges()), (0, [4..5, 0..0]));
    assert!(message.votes.is_empty());

    next(&mut worker, &[], 1);
    assert_eq!([worker.poll(), worker.poll(), worker.poll()], [store(7, 0, 5), Step::Complete, Step::Complete]);
    assert_eq!((worker.message(), worker.iteration()), (None, 4));
}

/// Vote, send with displacement, update: all messages and slots of three workers and their aggregator, d = 2. The
/// published figures show such exchanges; the example is our own.
#[test]
fn messages_and_slots_of_three_workers() {
    let arrays = arrays(&[&[0, 2, 3], &[2, 5], &[]], 6);
    let parameters = parameters(3, 2);
    let mut parties: Vec<Party<i32>> = arrays.iter().map(|array| Party::new(parameters, array.clone())).collect();
    let mut node = Node::new(parameters, 6, Order::Arrival, NO_LIMITS, -1);
    let mut trace = Vec::new();
    for _ in 0..3 {
        let mut answer = None;
        for (rank, party) in (0..).zip(&mut parties) {
            party.drive();
            let message = party.message().unwrap();
            let Received::Added(added) = node.handle(rank, &message, true, 0).unwrap().0 else { panic!("not added") };
            let Additions { slot, copied, added: sum, cleared } = added.additions;
            trace.push(format!(
                "{:?} {:02b} {:?}: {slot} {copied:02b} {sum:02b} {cleared:02b}",
                message.blocks, message.displacement, message.votes
            ));
            answer = added.answer;
        }
        let answer = answer.unwrap();
        let (blocks, next) = node.slots.content(&answer);
        trace.push(format!("{blocks:?} {next:?}"));
        parties.iter_mut().for_each(|party| {
            party.answer(answer.iteration, &blocks, &next).unwrap();
        });
    }
    let e = SENTINEL;
    assert_eq!(
        trace,
        [
            "[] 00 [0, 2]: 0 00 00 00".to_string(),
            "[] 00 [2, 5]: 0 00 00 00".to_string(),
            format!("[] 00 [{e}, {e}]: 0 00 00 00"),
            "[] [0, 2]".to_string(),
            format!("[1000, 1002] 00 [3, {e}]: 1 11 00 00"),
            format!("[2002] 01 [5, {e}]: 1 00 10 00"),
            format!("[] 11 [{e}, {e}]: 1 00 00 00"),
            "[1000, 3004] [3, 5]".to_string(),
            format!("[1003] 10 [{e}, {e}]: 0 01 00 00"),
            format!("[2005] 01 [{e}, {e}]: 0 10 00 00"),
            format!("[] 11 [{e}, {e}]: 0 00 00 00"),
            format!("[1003, 2005] [{e}, {e}]"),
        ]
    );
}

/// What a worker has voted for and then leaves out is zero, not what the slot held before.
#[test]
fn a_block_that_nobody_sends_is_cleared() {
    let mut sum = Summation::new(parameters(2, 2), 9).unwrap();
    sum.add(&vote(2, &[4, 7])).unwrap();
    assert_eq!(sum.add(&vote(2, &[4])).unwrap().answer.unwrap().next, votes(2, &[4, 7]));
    let first = sum.add(&message(0b10, 1, votes(2, &[]))).unwrap();
    assert_eq!(first.additions, Additions { slot: 1, copied: 0b01, added: 0, cleared: 0 });
    let last = sum.add(&message(0b10, 1, votes(2, &[]))).unwrap();
    assert_eq!(last.additions, Additions { slot: 1, copied: 0, added: 0b01, cleared: 0b10 });
    assert!(last.answer.unwrap().is_last() && sum.is_complete());
    assert_eq!(sum.add(&vote(2, &[])), Err(SummationError::Complete));
}

/// No blocks, no non-zero blocks, U a multiple of d and not.
#[test]
fn empty_arrays_zero_arrays_and_partial_iterations() {
    for width in [1, 2, 3, 16, 32] {
        for blocks in [0, 1, 2, 31, 32, 33, 64] {
            let all: Vec<u32> = (0..blocks).collect();
            in_step(&arrays(&[&[], &[]], blocks), width);
            in_step(&arrays(&[&all, &all, &all], blocks), width);
            in_step(&arrays(&[&all], blocks), width);
            in_step(&arrays(&[&[], &all, &[blocks / 2]], blocks), width);
        }
    }
}

/// All patterns.
#[test]
fn all_patterns_of_few_workers_and_blocks() {
    for (workers, blocks, widths) in [(1, 8, 1..=4), (2, 5, 1..=3), (3, 4, 1..=3)] {
        for pattern in 0u32..1 << (workers * blocks) {
            let bit = |rank: u32, at: u32| (pattern >> (rank * blocks + at) & 1) as i32;
            let arrays: Vec<Vec<i32>> =
                (0..workers).map(|rank| (0..blocks).map(|at| bit(rank, at) * 10i32.pow(rank)).collect()).collect();
            widths.clone().for_each(|width| in_step(&arrays, width));
        }
    }
}

/// Whatever the number of workers and blocks, the state is of one size, and of the order of d.
#[test]
fn the_state_of_a_sum_does_not_depend_on_the_number_of_workers() {
    assert!(size_of::<Votes>() <= 4 * 32 + 4);
    assert!(size_of::<Summation>() <= 2 * size_of::<Votes>() + 32, "{}", size_of::<Summation>());
    assert!(size_of::<Worker>() <= 3 * size_of::<Votes>() + 80, "{}", size_of::<Worker>());
    // In addition to the sum, an aggregator has one bit for each rank that there may be.
    assert!(size_of::<Aggregator>() <= size_of::<Summation>() + 1024 / 8 + 96, "{}", size_of::<Aggregator>());
    // With as many workers as there may be, all of them are counted.
    let mut sum = Summation::new(parameters(1024, 16), 100).unwrap();
    for worker in 0..1024 {
        let answer = sum.add(&vote(16, &[worker % 100])).unwrap().answer;
        assert_eq!(answer.map(|answer| answer.next.last()), (worker == 1023).then_some(Some(15)));
    }
}

/// Different lists, with probability of a non-zero block in percent.
fn random_arrays() -> impl Strategy<Value = Vec<Vec<Wide>>> {
    (1usize..=6, 0u32..80, 0u32..=100, any::<bool>()).prop_flat_map(|(workers, blocks, dense, identical)| {
        let block = (0u32..100, any::<i32>(), any::<i32>());
        proptest::collection::vec(block, workers * blocks as usize).prop_map(move |all| {
            let at = |rank: usize, at: u32| {
                let (chance, _, _) = all[if identical { 0 } else { rank } * blocks as usize + at as usize];
                let (_, first, last) = all[rank * blocks as usize + at as usize];
                if chance < dense { Wide::new(first, last) } else { Wide::ZERO }
            };
            (0..workers).map(|rank| (0..blocks).map(|block| at(rank, block)).collect()).collect()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_patterns_in_step(arrays in random_arrays(), width in 1u32..=16) {
        in_step(&arrays, width);
    }

    /// Exact whatever the order, over connections.
    #[test]
    fn random_patterns_over_connections(arrays in random_arrays(), width in 1u32..=16, seed: u64, by_rank: bool) {
        let order = if by_rank { Order::Rank } else { Order::Arrival };
        let done = reliable(parameters(arrays.len(), width), &arrays, order, seed);
        prop_assert_eq!(done.arrays, vec![sums(&arrays); arrays.len()]);
        let messages = (union(&arrays).len() as u32).div_ceil(width) + 1;
        prop_assert_eq!(done.messages, vec![(messages, messages); arrays.len()]);
        let most = if by_rank { arrays.len() as u32 } else { 1 };
        prop_assert!(done.most_at_once <= most);
    }

    #[test]
    fn random_patterns_over_datagrams(arrays in random_arrays(), width in 1u32..=16, seed: u64, loss in 0u32..40, by_rank: bool) {
        let order = if by_rank { Order::Rank } else { Order::Arrival };
        let mut network = Network::new(parameters(arrays.len(), width), &arrays, order, seed, loss);
        let ends = network.run();
        prop_assert_eq!(ends, vec![End::Complete(sums(&arrays)); arrays.len()]);
        let messages = (union(&arrays).len() as u32).div_ceil(width) + 1;
        prop_assert!(network.sent.iter().all(|sent| *sent >= messages));
    }

    /// Whoever lives ends within the limits, complete or with the name of who is silent.
    #[test]
    fn a_worker_falls_silent_at_any_time(arrays in random_arrays(), width in 1u32..=4, seed: u64, loss in 0u32..30, at in 0u64..3_000, who: prop::sample::Index) {
        let mut network = Network::new(parameters(arrays.len(), width), &arrays, Order::Arrival, seed, loss);
        let dead = who.index(arrays.len());
        network.silence(dead, at);
        let ends = network.run();
        for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| *rank != dead) {
            match end {
                End::Complete(array) => prop_assert_eq!(array, &sums(&arrays)),
                End::Failed(failed_rank) => prop_assert_eq!(*failed_rank, dead as u32),
                other => prop_assert!(false, "worker {}: {:?}", rank, other),
            }
        }
    }

    #[test]
    fn an_aggregator_falls_silent_at_any_time(arrays in random_arrays(), seed: u64, at in 0u64..3_000) {
        let mut network = Network::new(parameters(arrays.len(), 2), &arrays, Order::Arrival, seed, 0);
        network.silence_aggregator(at);
        for end in network.run() {
            match end {
                End::Complete(array) => prop_assert_eq!(array, sums(&arrays)),
                End::Silent(silent) => prop_assert!(matches!(silent, Silent::Aggregator { .. }), "{silent}"),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    /// An array of any length in bytes, in shards, each summed by itself.
    #[test]
    fn a_whole_array_in_shards(
        elements in 0usize..3_000,
        workers in 1usize..4,
        split in (1u32..4, 1u32..3, 1u32..4),
        dense in 0u64..=100,
        seed: u64,
    ) {
        let parameters = parameters(workers, 4);
        let shards = Shards::new(elements as u64 * 4, parameters, split.0, split.1, split.2).unwrap();
        let chance = |rank: usize, at: usize| {
            let mixed = (seed ^ (rank * 1_000_003 + at / 64) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            mixed >> 32
        };
        let element = |rank, at| if chance(rank, at) % 100 < dense { (chance(rank, at) >> 8) as i32 + at as i32 } else { 0 };
        let mut arrays: Vec<Vec<i32>> = (0..workers).map(|rank| (0..elements).map(|at| element(rank, at)).collect()).collect();
        let expected: Vec<i32> = (0..elements).map(|at| (0..workers).map(|rank| element(rank, at)).fold(0, i32::wrapping_add)).collect();
        for shard in shards.iter() {
            let range = |block| {
                let bytes = shard.block(block);
                bytes.start as usize / 4..bytes.end as usize / 4
            };
            let load = |array: &Vec<i32>| (0..shard.blocks()).map(|block| Wide::padded(&array[range(block)])).collect();
            let blocks: Vec<Vec<Wide>> = arrays.iter().map(load).collect();
            let done = reliable(parameters, &blocks, Order::Arrival, seed);
            for (array, result) in arrays.iter_mut().zip(&done.arrays) {
                for (block, sum) in (0..).zip(result) {
                    let own = range(block);
                    let bytes = own.len();
                    array[own].copy_from_slice(&sum.elements()[..bytes]);
                }
            }
        }
        prop_assert!(arrays.iter().all(|array| *array == expected));
    }
}

/// A block of one floating-point number: no bit is lost or changed but by adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Float(u32);

impl Block for Float {
    const ZERO: Self = Self(0);

    fn add(&mut self, other: &Self) {
        self.0 = (f32::from_bits(self.0) + f32::from_bits(other.0)).to_bits();
    }
}

/// By rank, floating-point sums are the same to the bit in whatever order messages come, and as many as n messages are
/// added at once. As messages come they are not, and one is added at a time.
#[test]
fn sums_by_rank_are_the_same_to_the_bit() {
    let values = [1e8f32, 1.0, -1e8, 3.25e-3, 7.7];
    let arrays: Vec<Vec<Float>> =
        values.iter().map(|value| (1..40).map(|at| Float((value * at as f32).to_bits())).collect()).collect();
    let run = |order, seed| network::connections(parameters(values.len(), 4), &arrays, order, seed);
    let (by_rank, by_arrival): (Vec<_>, Vec<_>) =
        (0..20).map(|seed| (run(Order::Rank, seed), run(Order::Arrival, seed))).unzip();
    assert!(by_rank.iter().all(|done| done.arrays[0] == sums(&arrays)));
    assert!(by_arrival.iter().any(|done| done.arrays[0] != sums(&arrays)), "the order matters for these numbers");
    assert_eq!(by_rank.iter().map(|done| done.most_at_once).max(), Some(5));
    assert_eq!(by_arrival.iter().map(|done| done.most_at_once).max(), Some(1));
    // -0.0 is not a zero block, and a sum of it alone keeps its sign.
    let negative = [vec![Float((-0.0f32).to_bits())], vec![Float::ZERO]];
    assert_eq!(network::connections(parameters(2, 4), &negative, Order::Arrival, 0).arrays[1], negative[0]);
}

/// The last answer is lost: whoever asks again gets it, as long as somebody may ask.
#[test]
fn the_last_answer_is_given_again() {
    let limits = AggregatorLimits { iteration_ps: 100, linger_ps: 50 };
    let mut aggregator = Aggregator::new(parameters(1, 2), 4, Order::Arrival, limits, 0).unwrap();
    assert_eq!((aggregator.deadline_ps(), aggregator.free_ps()), (Some(100), None));
    let Ok(Received::Added(added)) = aggregator.handle(0, 0, &vote(2, &[]), 10) else { panic!("not added") };
    let answer = added.answer.unwrap();
    assert!(answer.is_last() && aggregator.is_complete());
    assert_eq!((aggregator.deadline_ps(), aggregator.free_ps()), (None, Some(60)));
    assert_eq!(aggregator.handle(0, 0, &vote(2, &[]), 40), Ok(Received::Again(answer)));
    assert_eq!((aggregator.free_ps(), aggregator.poll(u64::MAX)), (Some(90), None));
}

#[test]
fn what_cannot_come_is_refused_and_changes_nothing() {
    let limits = AggregatorLimits { iteration_ps: 100, linger_ps: 50 };
    let mut aggregator = Aggregator::new(parameters(2, 2), 9, Order::Rank, limits, 0).unwrap();
    let start = aggregator;
    let future = AggregatorError::Future { rank: 1, iteration: 1, current: 0 };
    assert_eq!(aggregator.handle(1, 1, &vote(2, &[]), 0), Err(future));
    assert_eq!(aggregator.handle(2, 0, &vote(2, &[]), 0), Err(AggregatorError::Rank { rank: 2, workers: 2 }));
    let beyond = SummationError::Votes(VotesError::Beyond { index: 9, blocks: 9 });
    let content = |error| AggregatorError::Content { rank: 1, iteration: 0, error };
    assert_eq!(aggregator.handle(1, 0, &vote(2, &[9]), 0), Err(content(beyond)));
    assert!(matches!(
        aggregator.handle(1, 0, &message(1, 0, votes(2, &[])), 0),
        Err(AggregatorError::Content { error: SummationError::Displacement(_), .. })
    ));
    let other_width = SummationError::Votes(VotesError::Count { found: 3, expected: 2 });
    assert_eq!(aggregator.handle(1, 0, &vote(3, &[]), 0), Err(content(other_width)));
    let blocks = SummationError::Blocks { found: 1, expected: 0 };
    assert_eq!(aggregator.handle(1, 0, &message(0, 1, votes(2, &[])), 0), Err(content(blocks)));
    assert_eq!(aggregator.add_held(0, &vote(2, &[]), 0), Err(AggregatorError::Turn { rank: 0 }));
    assert_eq!(aggregator.lose(2), None);
    assert_eq!(aggregator, start);

    assert_eq!(aggregator.handle_reliable(1, &vote(2, &[1]), 0), Ok(Received::Held));
    let repeated = AggregatorError::Repeated { rank: 1, iteration: 0 };
    assert_eq!(aggregator.handle_reliable(1, &vote(2, &[1]), 0), Err(repeated));
    assert_eq!(aggregator.handle(1, 0, &vote(2, &[1]), 0), Ok(Received::Waiting { for_rank: 0 }));
    assert_eq!(aggregator.next_rank(), None);
    assert_eq!(aggregator.add_held(1, &vote(2, &[1]), 0), Err(AggregatorError::Turn { rank: 1 }));

    let failure = LostWorker { rank: 0, iteration: 0 };
    assert_eq!((aggregator.poll(99), aggregator.poll(100), aggregator.poll(101)), (None, Some(failure), None));
    assert_eq!(aggregator.failure(), Some(failure));
    assert_eq!(
        aggregator.handle(0, 0, &vote(2, &[]), 102).unwrap_err().to_string(),
        "message of worker 0 after the failure of the operation: worker 0 is lost in iteration 0: nothing has come in \
         time, or its connection \
         has ended; check its process and its network, or raise the limit"
    );
}

#[test]
fn held_messages_are_added_in_the_order_of_ranks() {
    let mut aggregator = Aggregator::new(parameters(3, 2), 9, Order::Rank, NO_LIMITS, 0).unwrap();
    let votes_of = |rank: u32| vote(2, &[rank]);
    for rank in [1, 2] {
        assert_eq!(aggregator.handle(rank, 0, &votes_of(rank), 0), Ok(Received::Held));
        assert_eq!((aggregator.next_rank(), aggregator.missing()), (None, Some(0)));
    }
    assert_eq!(aggregator.handle(0, 0, &votes_of(0), 0), Ok(Received::Held));
    // All are there, and one that comes again meanwhile is notified of whose turn it is.
    assert_eq!(aggregator.handle(2, 0, &votes_of(2), 0), Ok(Received::Waiting { for_rank: 0 }));
    let changed = aggregator.add_held(0, &vote(2, &[9]), 0);
    assert!(matches!(changed, Err(AggregatorError::Content { rank: 0, .. })), "{changed:?}");
    for rank in 0..3 {
        assert_eq!(aggregator.next_rank(), Some(rank));
        let added = aggregator.add_held(rank, &votes_of(rank), 0).unwrap();
        assert_eq!(added.answer.map(|answer| answer.next), (rank == 2).then_some(votes(2, &[0, 1])));
    }
    assert_eq!((aggregator.next_rank(), aggregator.missing()), (None, Some(0)));
}

/// A worker whose connection ends is named at once, unless its message is not needed any more.
#[test]
fn a_lost_connection_fails_the_operation_unless_it_is_complete() {
    let mut aggregator = Aggregator::new(parameters(2, 2), 4, Order::Arrival, NO_LIMITS, 0).unwrap();
    aggregator.handle_reliable(0, &vote(2, &[]), 0).unwrap();
    let mut complete = aggregator;
    let failure = LostWorker { rank: 1, iteration: 0 };
    assert_eq!((aggregator.lose(1), aggregator.lose(0), aggregator.poll(u64::MAX)), (Some(failure), None, None));
    assert_eq!(aggregator.failure(), Some(failure));
    complete.handle_reliable(1, &vote(2, &[]), 0).unwrap();
    assert_eq!((complete.lose(1), complete.failure()), (None, None));
    // What is old is old once the worker's next message has come, and is not answered again.
    let mut aggregator = Aggregator::new(parameters(2, 1), 4, Order::Arrival, NO_LIMITS, 0).unwrap();
    aggregator.handle(0, 0, &vote(1, &[0]), 0).unwrap();
    aggregator.handle(1, 0, &vote(1, &[0]), 0).unwrap();
    let next = message(0, 1, votes(1, &[1]));
    assert!(matches!(aggregator.handle(0, 0, &vote(1, &[0]), 0), Ok(Received::Again(_))));
    assert!(matches!(aggregator.handle(0, 1, &next, 0), Ok(Received::Added(_))));
    assert_eq!(aggregator.handle(0, 0, &vote(1, &[0]), 0), Ok(Received::Old));
    assert_eq!(aggregator.handle(0, 1, &next, 0), Ok(Received::Waiting { for_rank: 1 }));
}

#[test]
fn a_worker_refuses_answers_that_cannot_be() {
    let mut worker = Worker::new(parameters(2, 2), 9).unwrap();
    let early = WorkerError::Early { iteration: 0, current: 0 };
    assert_eq!(worker.answer(0, 0, &votes(2, &[])), Err(early), "nothing is sent yet");
    assert_eq!(worker.poll(), Step::Scan { from: 0, slot: 0 });
    worker.found(Some(3)).unwrap();
    assert_eq!(worker.poll(), Step::Scan { from: 4, slot: 1 });
    for block in [Some(3), Some(9), Some(u32::MAX)] {
        let error = WorkerError::Found { block: block.unwrap(), from: 4, blocks: 9 };
        assert_eq!(worker.found(block), Err(error));
    }
    worker.found(Some(5)).unwrap();
    assert!(worker.found(Some(6)).is_err() && worker.found(None).is_err(), "it has enough");
    assert_eq!((worker.poll(), worker.poll()), (Step::Send, Step::Wait));

    let waiting = worker;
    assert_eq!(worker.answer(1, 0, &votes(2, &[])), Err(WorkerError::Early { iteration: 1, current: 0 }));
    assert_eq!(worker.answer(0, 1, &votes(2, &[3, 5])), Err(WorkerError::Sums { found: 1, expected: 0 }));
    for (next, block) in [(&[4, 5][..], 3), (&[3, 6], 5), (&[3], 5), (&[], 3)] {
        assert_eq!(worker.answer(0, 0, &votes(2, next)), Err(WorkerError::Omitted { block }));
    }
    let beyond = WorkerError::Votes(VotesError::Beyond { index: 9, blocks: 9 });
    assert_eq!(worker.answer(0, 0, &votes(2, &[3, 9])), Err(beyond));
    assert!(matches!(worker.answer(0, 0, &votes(3, &[3, 5])), Err(WorkerError::Votes(VotesError::Count { .. }))));
    assert_eq!(worker, waiting);

    assert_eq!(worker.answer(0, 0, &votes(2, &[1, 3])), Ok(Answered::New));
    assert_eq!(worker.answer(0, 0, &votes(2, &[1, 3])), Ok(Answered::Old));
    assert_eq!(worker.poll(), Step::Scan { from: 6, slot: 2 });
    worker.found(None).unwrap();
    assert_eq!(worker.poll(), Step::Send);
    let behind = WorkerError::Votes(VotesError::Behind { index: 3, global: 3 });
    assert_eq!(worker.answer(1, 2, &votes(2, &[3, 5])), Err(behind));
    assert_eq!(worker.message().unwrap().displacement, Displacement::read(1, &votes(2, &[1, 3])).unwrap());
    assert!(Worker::new(parameters(1, 1), u32::MAX).is_err() && Summation::new(parameters(1, 1), u32::MAX).is_err());
}

/// The published figures, at the defaults.
#[test]
fn workers_whose_slots_fit_a_cache_of_6_mib() {
    let defaults = Parameters::new(6, 1024, 16, 4).unwrap();
    let most = |instances| CacheBudget { cache_bytes: 6 << 20, instances }.most_workers_published(defaults);
    assert_eq!([1, 8, 16, 32].map(most), [382, 46, 22, 10]);
}
