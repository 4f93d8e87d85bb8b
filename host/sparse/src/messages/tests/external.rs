//! Groups of workers and aggregators that are no ranks, whose messages are handed over in any order that connections
//! allow.

use flexcast_proto::sparse::Order;

use super::*;

fn draw(random: &mut u64, below: usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random >> 8) as usize % below
}

struct Worker {
    sparse: Sparse,
    send: Option<Vec<u8>>,
    receive: Vec<u8>,
}

/// Workers and aggregators, with what is on its way between each two, both ways.
struct Group {
    workers: Vec<Worker>,
    aggregators: Vec<Sums>,
    there: Vec<VecDeque<(u32, Vec<u8>)>>,
    back: Vec<VecDeque<(u32, Vec<u8>)>>,
    random: u64,
}

impl Group {
    fn new(
        arrays: Vec<Vec<u8>>,
        aggregators: u32,
        (reduction, options): (Reduction, SparseOptions),
        (reproducible, in_place): (bool, bool),
        seed: u64,
    ) -> Self {
        let (workers, bytes) = (arrays.len() as u32, arrays[0].len() as u64);
        let called = options.summary(bytes, reduction);
        let order = if reproducible { Order::Rank } else { Order::Arrival };
        let split = options.split((bytes, reduction), workers, aggregators).unwrap();
        let one = |aggregator| Sums::new(&split, Some(aggregator), order, Spare::default()).unwrap();
        let sums = if bytes == 0 { Vec::new() } else { (0..aggregators).map(one).collect() };
        let worker = |(rank, array): (usize, Vec<u8>)| {
            let place = RankInfo::new(rank as u32, workers).unwrap();
            let what = (bytes, reduction, options);
            let asked = (called, reproducible);
            let sparse = Sparse::new(what, place, Aggregators::External(aggregators), asked, Spare::default()).unwrap();
            let (send, receive) = if in_place { (None, array) } else { (Some(array), vec![0xa5; bytes as usize]) };
            Worker { sparse, send, receive }
        };
        let ways = vec![VecDeque::new(); (workers * aggregators) as usize];
        let workers = arrays.into_iter().enumerate().map(worker).collect();
        Self { workers, aggregators: sums, there: ways.clone(), back: ways, random: seed | 1 }
    }

    fn step(&mut self) {
        let count = self.workers.len();
        match draw(&mut self.random, 3) {
            0 => {
                let at = draw(&mut self.random, count);
                let Worker { sparse, send, receive } = &mut self.workers[at];
                sparse.advance(send.as_deref(), receive);
                while let Some(Outgoing { to, tag, source }) = sparse.poll() {
                    let aggregator = to as usize - count;
                    self.there[aggregator * count + at].push_back((tag, sparse.source(source).to_vec()));
                    sparse.sent(1);
                }
            }
            1 => {
                let way = draw(&mut self.random, self.there.len());
                let Some((tag, bytes)) = self.there[way].pop_front() else { return };
                let Tag::Contribution(shard) = Tag::of(tag) else { panic!("an answer of a worker") };
                let (sums, from, total) =
                    (&mut self.aggregators[way / count], (way % count) as u32, bytes.len() as u64);
                for (at, part) in parts(&mut self.random, &bytes) {
                    assert_eq!(sums.begin(from, shard, total), Some(at as u64));
                    sums.place(from, shard, at as u64)[..part.len()].copy_from_slice(part);
                    if sums.came(from, shard, ((at + part.len()) as u64, total)).unwrap() {
                        let answer = sums.answer(shard).unwrap().1.to_vec();
                        let back = &mut self.back[way / count * count..][..count];
                        back.iter_mut().for_each(|way| way.push_back((Tag::Answer(shard).number(), answer.clone())));
                    }
                }
            }
            _ => {
                let way = draw(&mut self.random, self.back.len());
                let Some((tag, bytes)) = self.back[way].pop_front() else { return };
                let Worker { sparse, receive, .. } = &mut self.workers[way % count];
                let (from, total) = ((count + way / count) as u32, bytes.len() as u64);
                for (mut at, part) in parts(&mut self.random, &bytes) {
                    let end = at + part.len();
                    assert_eq!(sparse.begin(from, sparse.summary(), (tag, total, at as u64)), Begun::Fine);
                    while at < end {
                        let place = sparse.place(receive, from, tag, at as u64);
                        let len = place.len().min(end - at);
                        assert!(len > 0, "byte {at} of {total} has no place");
                        place[..len].copy_from_slice(&bytes[at..at + len]);
                        at += len;
                    }
                    assert!(sparse.came(from, tag, (end as u64, total), receive));
                }
            }
        }
    }

    fn run(mut self) -> Vec<Vec<u8>> {
        for _ in 0..2_000_000 {
            if self.workers.iter().all(|worker| worker.sparse.is_complete()) {
                assert!(self.aggregators.iter().all(Sums::is_complete));
                return self.workers.into_iter().map(|worker| worker.receive).collect();
            }
            self.step();
        }
        panic!("awaited: {:?}", self.workers.iter().map(|worker| worker.sparse.awaited()).collect::<Vec<_>>());
    }
}

/// A message in up to three fragments, with their places.
fn parts<'b>(random: &mut u64, bytes: &'b [u8]) -> Vec<(usize, &'b [u8])> {
    let each = bytes.len().div_ceil(1 + draw(random, 3));
    bytes.chunks(each).enumerate().map(|(number, part)| (number * each, part)).collect()
}

/// Integers of which a block of 64 is zero with this probability, in percent.
fn array(elements: usize, zeros: usize, mut seed: u64) -> Vec<u8> {
    seed |= 1;
    let mut values = vec![0_i32; elements];
    for block in values.chunks_mut(64) {
        if draw(&mut seed, 100) >= zeros {
            block.iter_mut().for_each(|value| *value = draw(&mut seed, 1 << 32) as i32);
        }
    }
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn by_rank(arrays: &[Vec<u8>], reduction: Reduction) -> Vec<u8> {
    let mut sum = arrays[0].clone();
    arrays[1..].iter().for_each(|array| reduction.combine(&mut sum, array));
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn results_are_the_sums_whatever_comes_first(
        workers in 1_usize..5,
        aggregators in 1_u32..4,
        elements in prop_oneof![Just(0_usize), Just(1), Just(64), Just(127), 0_usize..9000],
        zeros in prop_oneof![Just(0_usize), Just(100), 0_usize..101],
        blocks in 1_u32..33,
        choices in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let options = SparseOptions { block_bytes: 256, blocks_per_message: blocks };
        let arrays: Vec<_> = (0..workers as u64).map(|rank| array(elements, zeros, seed ^ rank << 32)).collect();
        let expected = by_rank(&arrays, SUM);
        for result in Group::new(arrays, aggregators, (SUM, options), choices, seed).run() {
            prop_assert_eq!(&result, &expected);
        }
    }

    #[test]
    fn the_order_of_ranks_gives_the_same_bits_whatever_comes_first(
        workers in 2_usize..5,
        aggregators in 1_u32..4,
        elements in 1_usize..3000,
        seed in any::<u64>(),
    ) {
        let sum = Reduction::of(Operator::Sum, DataType::F32).unwrap();
        let value = |rank: usize, at: usize| 1.0 / (1 + at * 7 + rank * 3) as f32;
        let array = |rank| (0..elements).flat_map(|at| value(rank, at).to_ne_bytes()).collect();
        let arrays: Vec<Vec<u8>> = (0..workers).map(array).collect();
        let expected = by_rank(&arrays, sum);
        let options = SparseOptions { block_bytes: 256, blocks_per_message: 3 };
        for result in Group::new(arrays, aggregators, (sum, options), (true, false), seed).run() {
            prop_assert_eq!(&result, &expected);
        }
    }
}
