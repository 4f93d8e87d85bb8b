//! Groups of ranks whose messages are handed over in any order that connections allow.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use flexcast_reduce::{DataType, Operator};

mod external;

const SUM: Reduction = Reduction::of(Operator::Sum, DataType::I32).unwrap();

struct Rank {
    sparse: Sparse,
    send: Option<Vec<u8>>,
    receive: Vec<u8>,
}

struct Group {
    ranks: Vec<Rank>,
    /// Messages on their way, by sender and receiver.
    ways: Vec<VecDeque<(u32, Vec<u8>)>>,
    messages: u32,
    random: u64,
}

impl Group {
    fn new(
        arrays: Vec<Vec<u8>>,
        (reduction, options): (Reduction, SparseOptions),
        (reproducible, in_place): (bool, bool),
        seed: u64,
    ) -> Self {
        let (count, bytes) = (arrays.len() as u32, arrays[0].len() as u64);
        let rank = |(rank, array): (usize, Vec<u8>)| {
            let place = RankInfo::new(rank as u32, count).unwrap();
            let what = (bytes, reduction, options);
            let asked = (options.summary(bytes, reduction), reproducible);
            let sparse = Sparse::new(what, place, Aggregators::Ranks, asked, Spare::default()).unwrap();
            // What is there before must not matter.
            let (send, receive) = if in_place { (None, array) } else { (Some(array), vec![0xa5; bytes as usize]) };
            Rank { sparse, send, receive }
        };
        let ranks: Vec<_> = arrays.into_iter().enumerate().map(rank).collect();
        let ways = vec![VecDeque::new(); ranks.len() * ranks.len()];
        Self { ranks, ways, messages: 0, random: seed | 1 }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }

    fn step(&mut self) {
        let count = self.ranks.len();
        if self.draw(2) == 0 {
            let at = self.draw(count);
            let Rank { sparse, send, receive } = &mut self.ranks[at];
            sparse.advance(send.as_deref(), receive);
            while let Some(Outgoing { to, tag, source }) = sparse.poll() {
                assert_ne!(to as usize, at);
                self.ways[at * count + to as usize].push_back((tag, sparse.source(source).to_vec()));
                self.messages += 1;
                sparse.sent(1);
            }
        } else {
            let way = self.draw(self.ways.len());
            let (from, to) = ((way / count) as u32, way % count);
            let Some((tag, bytes)) = self.ways[way].pop_front() else { return };
            let parts = 1 + self.draw(3);
            self.hand_over(from, to, tag, &bytes, parts);
        }
    }

    /// Gives a message to its receiver in so many fragments.
    fn hand_over(&mut self, from: u32, to: usize, tag: u32, bytes: &[u8], parts: usize) {
        let Rank { sparse, receive, .. } = &mut self.ranks[to];
        let (total, mut at) = (bytes.len() as u64, 0);
        for fragment in bytes.chunks(bytes.len().div_ceil(parts)) {
            assert_eq!(sparse.begin(from, sparse.summary(), (tag, total, at as u64)), Begun::Fine);
            let end = at + fragment.len();
            while at < end {
                let place = sparse.place(receive, from, tag, at as u64);
                // A connection drops what has no place, up to the end of the message.
                assert!(!place.is_empty(), "byte {at} of {total} has no place");
                let len = place.len().min(end - at);
                place[..len].copy_from_slice(&bytes[at..at + len]);
                at += len;
            }
            assert!(sparse.came(from, tag, (end as u64, total), receive));
        }
    }

    /// The results of all ranks.
    fn run(mut self) -> (Vec<Vec<u8>>, u32) {
        let is_over = |rank: &Rank| rank.sparse.is_complete();
        for _ in 0..2_000_000 {
            if self.ranks.iter().all(is_over) && self.ways.iter().all(VecDeque::is_empty) {
                return (self.ranks.into_iter().map(|rank| rank.receive).collect(), self.messages);
            }
            self.step();
        }
        panic!("awaited: {:?}", self.ranks.iter().map(|rank| rank.sparse.awaited()).collect::<Vec<_>>());
    }
}

/// Integers of which a block is zero with this probability, in percent.
fn array(elements: usize, block_bytes: u32, zeros: u64, seed: u64) -> Vec<u8> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 8
    };
    let mut values = vec![0_i32; elements];
    for block in values.chunks_mut(block_bytes as usize / 4) {
        if draw() % 100 >= zeros {
            block.iter_mut().for_each(|value| *value = draw() as i32);
        }
    }
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn sums(arrays: &[Vec<u8>]) -> Vec<u8> {
    let mut sum = arrays[0].clone();
    arrays[1..].iter().for_each(|array| SUM.combine(&mut sum, array));
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn results_are_the_sums_whatever_comes_first(
        ranks in 1_usize..5,
        elements in prop_oneof![Just(0_usize), Just(1), Just(64), Just(127), 0_usize..9000],
        zeros in prop_oneof![Just(0_u64), Just(100), 0_u64..101],
        blocks in 1_u32..33,
        choices in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let options = SparseOptions { block_bytes: 256, blocks_per_message: blocks };
        let arrays: Vec<_> = (0..ranks as u64).map(|rank| array(elements, 256, zeros, seed ^ rank << 32)).collect();
        let expected = sums(&arrays);
        let (results, _) = Group::new(arrays, (SUM, options), choices, seed).run();
        for result in results {
            prop_assert_eq!(&result, &expected);
        }
    }
}

#[test]
fn messages_are_as_many_as_the_blocks_that_are_not_zero_take() {
    let options = SparseOptions { block_bytes: 256, blocks_per_message: 4 };
    // One shard a rank: 8 blocks each.
    let (blocks, ranks) = (16, 2);
    for used in 0..=8_usize {
        let mut arrays = vec![vec![0_u8; blocks * 256]; ranks];
        for block in 0..used {
            // In turns of one rank and the other, in the first shard.
            arrays[block % 2][block * 256 + 3] = 1;
        }
        let expected = sums(&arrays);
        let group = Group::new(arrays, (SUM, options), (false, false), 7);
        assert_eq!(group.ranks[0].sparse.portions.len(), 2);
        let (results, messages) = group.run();
        assert!(results.iter().all(|result| *result == expected));
        // Each shard: a message there and an answer back for the one rank that is not its aggregator, and once more for
        // the votes before.
        let iterations = used.div_ceil(4);
        assert_eq!(messages as usize, 2 * (iterations + 1) + 2, "{used} blocks");
    }
}

#[test]
fn the_order_of_ranks_gives_the_same_bits_whatever_comes_first() {
    let sum = Reduction::of(Operator::Sum, DataType::F32).unwrap();
    let options = SparseOptions { block_bytes: 256, blocks_per_message: 3 };
    let arrays: Vec<Vec<u8>> = (0..4_i32)
        .map(|rank| (0..3000_i32).flat_map(|at| (1.0 / (1 + at * 7 + rank * 3) as f32).to_ne_bytes()).collect())
        .collect();
    let run = |reproducible, seed| Group::new(arrays.clone(), (sum, options), (reproducible, false), seed).run().0;
    let (first, differs) = (run(true, 1), (2..40).any(|seed| run(false, seed)[0] != run(false, 1)[0]));
    assert!(differs, "the order of arrival was the same in all runs, which shows nothing");
    for seed in 2..40 {
        assert_eq!(run(true, seed), first);
    }
    let mut by_rank = arrays[0].clone();
    arrays[1..].iter().for_each(|array| sum.combine(&mut by_rank, array));
    assert!(first.iter().all(|result| *result == by_rank));
}

#[test]
fn bits_that_are_not_zero_travel() {
    let sum = Reduction::of(Operator::Sum, DataType::F32).unwrap();
    let values = |value: f32| [vec![0.0_f32; 63], vec![value]].concat().iter().flat_map(|v| v.to_ne_bytes()).collect();
    let only = |value: f32| {
        let arrays: Vec<Vec<u8>> = vec![values(value), values(0.0), values(0.0)];
        let options = SparseOptions { block_bytes: 256, blocks_per_message: 1 };
        let (results, _) = Group::new(arrays, (sum, options), (false, false), 3).run();
        let last = |result: &Vec<u8>| f32::from_ne_bytes(*result.last_chunk().unwrap());
        results.iter().map(last).collect::<Vec<_>>()
    };
    // Nobody else has the block: what one rank has is what all get.
    assert!(only(-0.0).iter().all(|value| value.to_bits() == (-0.0_f32).to_bits()));
    assert!(only(f32::NAN).iter().all(|value| value.is_nan()));
    assert!(only(1e-45).iter().all(|value| *value == 1e-45), "a denormal number");
}

#[test]
fn messages_that_cannot_be_are_refused() {
    let options = SparseOptions { block_bytes: 256, blocks_per_message: 2 };
    let (bytes, own) = (4096_u64, options.summary(4096, SUM));
    let new = || {
        let place = RankInfo::new(1, 3).unwrap();
        Sparse::new((bytes, SUM, options), place, Aggregators::Ranks, (own, false), Spare::default()).unwrap()
    };
    let (votes_only, each) = (2 * 4 + 4, new().portions.len() as u32 / 3);
    let (mine, other) = (Tag::Contribution(each).number(), Tag::Contribution(0).number());
    let answer = Tag::Answer(0).number();
    let begin = |sparse: &mut Sparse, from, tag, total, offset| sparse.begin(from, own, (tag, total, offset));
    assert_eq!(begin(&mut new(), 0, mine, votes_only, 0), Begun::Fine);
    for (from, tag, total, offset) in [
        (0, other, votes_only, 0),
        (1, mine, votes_only, 0),
        (7, mine, votes_only, 0),
        (0, mine, votes_only + 256, 0),
        (0, mine, votes_only - 1, 0),
        (0, mine, votes_only, 4),
        (0, answer, 8, 0),
        (0, u32::MAX, 8, 0),
    ] {
        assert_eq!(begin(&mut new(), from, tag, total, offset), Begun::Impossible, "{from} {tag} {total} {offset}");
    }
    let differs = SparseOptions { block_bytes: 512, ..options }.summary(4096, SUM);
    assert_eq!(new().begin(0, differs, (mine, votes_only, 0)), Begun::Disagrees);
    // Votes beyond the shard, or not in order.
    for indices in [[5_u32, 4], [0, 1 << 20]] {
        let (mut sparse, mut receive) = (new(), vec![0; 4096]);
        let message = [indices[0].to_le_bytes(), indices[1].to_le_bytes(), [0; 4]].concat();
        assert_eq!(begin(&mut sparse, 0, mine, votes_only, 0), Begun::Fine);
        sparse.place(&mut receive, 0, mine, 0)[..12].copy_from_slice(&message);
        assert!(!sparse.came(0, mine, (12, 12), &mut receive), "{indices:?}");
    }
    // A second one before the answer.
    let (mut sparse, mut receive) = (new(), vec![0; 4096]);
    let nothing = [[0xff; 4], [0xff; 4], [0; 4]].concat();
    assert_eq!(begin(&mut sparse, 0, mine, votes_only, 0), Begun::Fine);
    sparse.place(&mut receive, 0, mine, 0)[..12].copy_from_slice(&nothing);
    assert!(sparse.came(0, mine, (12, 12), &mut receive));
    assert_eq!(begin(&mut sparse, 0, mine, votes_only, 0), Begun::Impossible);
}

#[test]
fn a_long_array_is_scanned_part_by_part() {
    let (bytes, options) = (5 * SCAN_BYTES, SparseOptions::default());
    let mut rank = Group::new(vec![vec![0; bytes]], (SUM, options), (false, false), 1).ranks.remove(0);
    let mut parts = 0;
    while !rank.sparse.is_complete() {
        assert!(rank.sparse.is_busy(), "nothing is awaited of anybody");
        assert!(rank.sparse.advance(rank.send.as_deref(), &mut rank.receive));
        parts += 1;
    }
    assert_eq!(parts, 6);
    assert!(rank.receive.iter().all(|byte| *byte == 0));
}

#[test]
fn options_that_cannot_be_are_named() {
    let text = |options: SparseOptions, operator| {
        let reduction = Reduction::of(operator, DataType::I32).unwrap();
        options.check(1 << 20, 4, reduction).unwrap_err()
    };
    let options = SparseOptions::default();
    assert!(text(options, Operator::Product).contains("use sum, min, max"));
    let block = |block_bytes| SparseOptions { block_bytes, ..options };
    assert!(text(block(128), Operator::Sum).contains("128"));
    assert!(text(block(32 << 10), Operator::Sum).contains("32768"));
    assert!(text(block(257), Operator::Sum).contains("257"));
    let blocks = |blocks_per_message| SparseOptions { blocks_per_message, ..options };
    assert!(text(blocks(0), Operator::Sum).contains('0') && text(blocks(33), Operator::Sum).contains("33"));
}
