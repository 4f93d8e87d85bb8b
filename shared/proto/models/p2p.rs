//! Schedules of point-to-point collectives, all ranks together, with messages delivered and completed in any order that
//! connections allow: every buffer right, nothing sent twice, and the bytes that the algorithms promise.

use std::collections::{HashMap, VecDeque};

use flexcast_proto::p2p::{Allgather, Blocks, Broadcast, MessageError, Operation, Part, Schedule, Span, Transfer};
use flexcast_proto::{RankInfo, RankSet};
use proptest::prelude::*;

const ALLGATHERS: [Allgather; 6] = [
    Allgather::Ring,
    Allgather::Linear,
    Allgather::RecursiveDoubling,
    Allgather::Bruck,
    Allgather::PipelinedRing { segments: 2 },
    Allgather::PipelinedRing { segments: 5 },
];

const BROADCASTS: [Broadcast; 8] = [
    Broadcast::BINOMIAL,
    Broadcast::Knomial { radix: 3 },
    Broadcast::Knomial { radix: 4 },
    Broadcast::Knomial { radix: 1000 },
    Broadcast::Heap,
    Broadcast::InOrder,
    Broadcast::Chain,
    Broadcast::ScatterAllgather,
];

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

/// The byte at an offset of the result, which is never 0.
fn byte(offset: u64) -> u8 {
    (offset % 251 + 1) as u8
}

fn bytes(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

/// What an operation cost.
#[derive(Debug, Default)]
struct Cost {
    /// Bytes sent, per rank.
    sent_bytes: Vec<u64>,
    /// Times a byte was written where it already was, over all ranks.
    repeated_bytes: u64,
    messages: Vec<u32>,
}

fn at(range: &std::ops::Range<u64>) -> std::ops::Range<usize> {
    range.start as usize..range.end as usize
}

/// Carries the operation out, on contributions or on the blocks of a message, and checks everything but the cost.
fn run(operation: Operation, ranks: u32, pieces: &Blocks<'_>, seed: u64) -> Cost {
    let blocks = &match operation {
        Operation::Allgather(algorithm) => algorithm.blocks(*pieces).unwrap(),
        _ => *pieces,
    };
    let mut random = Random(seed);
    let mut all: Vec<Schedule> =
        (0..ranks).map(|rank| Schedule::new(operation, RankInfo::new(rank, ranks).unwrap()).unwrap()).collect();
    let total = blocks.total_bytes();
    let mut buffers = vec![vec![0u8; total as usize]; ranks as usize];
    for (rank, buffer) in buffers.iter_mut().enumerate() {
        let own = match operation {
            Operation::Allgather(_) => {
                let start = all[rank].start().expect("the own contribution");
                let len: u64 =
                    start.from.iter(blocks.count()).map(|part| blocks.bytes(Span::of(start.to.first + part))).sum();
                let own = pieces.block(rank as u32);
                assert_eq!((blocks.ranges(start.to)[0].clone(), len), (own.clone(), own.end - own.start));
                own
            }
            Operation::Broadcast { root, .. } if root == rank as u32 => 0..total,
            _ => 0..0,
        };
        buffer[at(&own)].copy_from_slice(&bytes(own.clone()));
    }
    let mut cost = Cost { sent_bytes: vec![0; ranks as usize], messages: vec![0; ranks as usize], ..Cost::default() };
    // Connections keep their order, and do not know of one another. Acknowledgements likewise.
    let mut connections: HashMap<(u32, u32), VecDeque<Transfer>> = HashMap::new();
    let mut under_way: Vec<(u32, u32)> = Vec::new();
    let mut delivered: Vec<u32> = Vec::new();
    let mut polling: Vec<u32> = (0..ranks).collect();
    // The blocks that posted sends read, by rank. An acknowledgement may be arbitrarily late, so that a card reads them
    // again.
    let mut read = vec![vec![false; blocks.count() as usize]; ranks as usize];
    // The plain ring brings shares again that the scatter has brought: the same bytes.
    let again = matches!(operation, Operation::Broadcast { algorithm: Broadcast::ScatterAllgather, .. });
    loop {
        match random.below(3) {
            0 if !polling.is_empty() => {
                let rank = polling.swap_remove(random.below(polling.len()));
                while let Some(transfer) = all[rank as usize].poll() {
                    assert_ne!(transfer.to, rank, "{operation:?}: a message to oneself");
                    for range in blocks.ranges(transfer.source.blocks) {
                        let held = &buffers[rank as usize][at(&range)];
                        assert!(held == bytes(range.clone()), "{operation:?}: rank {rank} sends what it does not hold");
                    }
                    cost.sent_bytes[rank as usize] += blocks.bytes(transfer.source.blocks);
                    cost.messages[rank as usize] += 1;
                    transfer
                        .source
                        .blocks
                        .iter(blocks.count())
                        .for_each(|block| read[rank as usize][block as usize] = true);
                    connections.entry((rank, transfer.to)).or_default().push_back(transfer);
                    under_way.push((rank, transfer.to));
                }
            }
            1 if !under_way.is_empty() => {
                let (from, to) = under_way.swap_remove(random.below(under_way.len()));
                let transfer = connections.get_mut(&(from, to)).and_then(VecDeque::pop_front).unwrap();
                let is_read =
                    transfer.target.blocks.iter(blocks.count()).any(|block| read[to as usize][block as usize]);
                assert!(
                    again || !is_read,
                    "{operation:?}: {transfer:?} of {from} lands where posted sends of {to} read"
                );
                for range in blocks.ranges(transfer.target.blocks).iter().map(at) {
                    let bytes = buffers[from as usize][range.clone()].to_vec();
                    let target = &mut buffers[to as usize][range];
                    cost.repeated_bytes += target.iter().filter(|&&byte| byte != 0).count() as u64;
                    target.copy_from_slice(&bytes);
                }
                all[to as usize].arrived(from, transfer.tag).unwrap();
                delivered.push(from);
                polling.push(to);
            }
            2 if !delivered.is_empty() => {
                let rank = delivered.swap_remove(random.below(delivered.len()));
                all[rank as usize].sent().unwrap();
            }
            _ if polling.is_empty() && under_way.is_empty() && delivered.is_empty() => break,
            _ => {}
        }
    }
    let expected = bytes(0..total);
    for (rank, (schedule, buffer)) in all.iter_mut().zip(&buffers).enumerate() {
        assert!(schedule.is_complete(), "{operation:?}: rank {rank} of {ranks} waits for {:?}", schedule.waiting_for());
        assert_eq!((schedule.poll(), schedule.waiting_for()), (None, None));
        assert!(*buffer == expected, "{operation:?}: rank {rank} of {ranks} has wrong bytes");
        assert_eq!(schedule.sent(), Err(MessageError::NotPolled));
    }
    cost
}

fn broadcast(algorithm: Broadcast, root: u32, blocks: &Blocks<'_>) -> Operation {
    Operation::Broadcast { algorithm, root, blocks: blocks.count() }
}

/// Both sides of each message agree on it, all tags are sent once, and peers are mutual.
fn check_both_sides(operation: Operation, ranks: u32) {
    let all: Vec<Schedule> =
        (0..ranks).map(|rank| Schedule::new(operation, RankInfo::new(rank, ranks).unwrap()).unwrap()).collect();
    let received: Vec<Vec<_>> = all.iter().map(|schedule| schedule.receives().collect()).collect();
    let mut seen: Vec<Vec<bool>> = received.iter().map(|list| vec![false; list.len()]).collect();
    let sources: Vec<RankSet> = all.iter().map(Schedule::sources).collect();
    for (from, schedule) in (0..).zip(&all) {
        let mut targets = RankSet::EMPTY;
        for transfer in schedule.sends() {
            let arrival = received[transfer.to as usize][transfer.tag as usize];
            assert_eq!(
                (arrival.from, arrival.target, transfer.source),
                (from, transfer.target, Part::receive(transfer.target.blocks)),
                "{operation:?} of {ranks}: {transfer:?}"
            );
            let seen = &mut seen[transfer.to as usize][transfer.tag as usize];
            assert!(!std::mem::replace(seen, true), "{operation:?} of {ranks}: sent twice: {transfer:?}");
            assert!(sources[transfer.to as usize].contains(from));
            targets.insert(transfer.to);
        }
        assert_eq!(targets, schedule.targets());
    }
    assert!(seen.iter().flatten().all(|seen| *seen), "{operation:?} of {ranks}: a message is expected and not sent");
}

#[test]
fn both_sides_of_every_message_agree_for_all_numbers_of_ranks() {
    for ranks in (1..=66).chain([127, 128, 129, 188, 255, 256, 257, 1024]) {
        for algorithm in ALLGATHERS {
            check_both_sides(Operation::Allgather(algorithm), ranks);
        }
        for algorithm in BROADCASTS {
            for root in [0, ranks / 3, ranks - 1] {
                let blocks = if algorithm == Broadcast::ScatterAllgather { ranks } else { 3 };
                check_both_sides(Operation::Broadcast { algorithm, root, blocks }, ranks);
            }
        }
    }
}

/// Bytes of an Allgather of equal blocks: each rank sends, and receives, the contributions of all others once.
#[test]
fn every_allgather_sends_each_block_once_per_receiver() {
    for ranks in (1..=64).chain([188, 256]) {
        for algorithm in ALLGATHERS {
            let bytes = if ranks > 64 { 1 } else { 13 };
            let blocks = Blocks::equal(bytes, ranks).unwrap();
            let cost = run(Operation::Allgather(algorithm), ranks, &blocks, u64::from(ranks));
            let each = bytes * u64::from(ranks - 1);
            assert!(cost.sent_bytes.iter().all(|&sent| sent == each), "{algorithm:?} of {ranks}: {cost:?}");
            assert_eq!(cost.repeated_bytes, 0, "{algorithm:?} of {ranks}");
            let most = cost.messages.iter().copied().max().unwrap();
            let rounds = u32::BITS - (ranks - 1).leading_zeros();
            match algorithm {
                Allgather::Ring | Allgather::Linear => assert_eq!(most, ranks - 1),
                Allgather::PipelinedRing { segments } => assert_eq!(most, (ranks - 1) * segments),
                Allgather::Bruck => assert_eq!(most, rounds),
                Allgather::RecursiveDoubling if ranks.is_power_of_two() => assert_eq!(most, rounds),
                // The odd rank of the last exchange writes to the whole other half.
                Allgather::RecursiveDoubling => assert!(most < ranks / 2 + 2 * rounds, "{most} messages of {ranks}"),
            }
        }
    }
}

/// Connections per rank: ring 2 neighbours, linear P - 1, recursive doubling log2 P.
#[test]
fn peers_are_as_many_as_published() {
    let peers = |algorithm, ranks| {
        let schedule = Schedule::new(Operation::Allgather(algorithm), RankInfo::new(5, ranks).unwrap()).unwrap();
        (schedule.targets().len(), schedule.sources().or(&schedule.targets()).len())
    };
    assert_eq!(peers(Allgather::Ring, 16), (1, 2));
    assert_eq!(peers(Allgather::Linear, 16), (15, 15));
    assert_eq!(peers(Allgather::RecursiveDoubling, 16), (4, 4));
    assert_eq!(peers(Allgather::Bruck, 16), (4, 7));
}

#[test]
fn broadcasts_bring_every_byte_once_but_for_the_plain_ring() {
    for ranks in (1..=64).chain([188, 256]) {
        for algorithm in BROADCASTS {
            let blocks = algorithm.blocks(61, 8, ranks).unwrap();
            let root = ranks * 2 / 3;
            let cost = run(broadcast(algorithm, root, &blocks), ranks, &blocks, u64::from(ranks));
            let sent: u64 = cost.sent_bytes.iter().sum();
            if algorithm == Broadcast::ScatterAllgather {
                // The scatter, and all shares but one on each link of the ring.
                assert_eq!(sent, 61 * u64::from(ranks - 1) + cost.repeated_bytes, "{ranks} ranks");
            } else {
                assert_eq!((sent, cost.repeated_bytes), (61 * u64::from(ranks - 1), 0), "{algorithm:?} of {ranks}");
            }
        }
    }
}

#[test]
fn more_segments_than_the_window_of_early_arrivals() {
    for algorithm in [Broadcast::Chain, Broadcast::Knomial { radix: 4 }] {
        let blocks = algorithm.blocks(5000, 1, 5).unwrap();
        run(broadcast(algorithm, 1, &blocks), 5, &blocks, 1);
    }
}

#[test]
fn messages_that_are_not_due_are_refused() {
    let schedule = |operation, rank| Schedule::new(operation, RankInfo::new(rank, 8).unwrap()).unwrap();
    let mut ring = schedule(Operation::Allgather(Allgather::Ring), 3);
    assert_eq!(ring.arrived(4, 0), Err(MessageError::Sender { from: 4, tag: 0, expected: 2 }));
    assert_eq!(ring.arrived(2, 7), Err(MessageError::Tag { from: 2, tag: 7, receives: 7 }));
    assert_eq!(ring.sent(), Err(MessageError::NotPolled));
    ring.arrived(2, 0).unwrap();
    assert_eq!(ring.arrived(2, 0), Err(MessageError::Repeated { from: 2, tag: 0 }));
    ring.arrived(2, 2).unwrap();
    assert_eq!(ring.arrived(2, 2), Err(MessageError::Repeated { from: 2, tag: 2 }));
    assert_eq!(ring.waiting_for(), Some(2));
    let blocks = 5000;
    let chain = Operation::Broadcast { algorithm: Broadcast::Chain, root: 0, blocks };
    assert_eq!(schedule(chain, 1).arrived(0, 2048), Err(MessageError::Order { from: 0, tag: 2048, missing: 0 }));
}

#[test]
fn operations_that_cannot_be_are_refused() {
    let refused = |algorithm, root, blocks| {
        let place = RankInfo::new(0, 8).unwrap();
        Schedule::new(Operation::Broadcast { algorithm, root, blocks }, place).unwrap_err().to_string()
    };
    assert!(refused(Broadcast::Chain, 8, 1).contains("rank 8 of 8"));
    assert!(refused(Broadcast::Knomial { radix: 1 }, 0, 1).contains("radix 1"));
    assert!(refused(Broadcast::ScatterAllgather, 0, 7).contains("7 blocks"));
    assert!(refused(Broadcast::Heap, 0, 0).contains("0 segments"));
    assert!(refused(Broadcast::Heap, 0, u32::MAX).contains("less than 2^32"));
    for segments in [0, u32::MAX] {
        let ring = Operation::Allgather(Allgather::PipelinedRing { segments });
        let refused = Schedule::new(ring, RankInfo::new(0, 8).unwrap()).unwrap_err().to_string();
        assert!(refused.contains("at least 1"), "{refused}");
    }
    assert_eq!(Span::of(4).iter(5).collect::<Vec<_>>(), [4]);
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(2), prop::sample::select(vec![7u64, 31, 97, 127, 251]), 0u64..300]
}

proptest! {
    #[test]
    fn allgathers_of_any_contributions(
        ranks in 1u32..=64, which in 0usize..6, lengths in prop::collection::vec(sizes(), 64), equal: bool, seed: u64,
    ) {
        let operation = Operation::Allgather(ALLGATHERS[which]);
        let ends: Vec<u64> = lengths[..ranks as usize]
            .iter()
            .scan(0, |end, &length| {
                *end += length;
                Some(*end)
            })
            .collect();
        let blocks =
            if equal { Blocks::equal(lengths[0], ranks).unwrap() } else { Blocks::unequal(&ends).unwrap() };
        let cost = run(operation, ranks, &blocks, seed);
        let sent: u64 = cost.sent_bytes.iter().sum();
        prop_assert_eq!((sent, cost.repeated_bytes), (blocks.total_bytes() * u64::from(ranks - 1), 0));
        if equal {
            prop_assert!(cost.sent_bytes.iter().all(|&sent| sent == lengths[0] * u64::from(ranks - 1)));
        }
    }

    #[test]
    fn broadcasts_of_any_message(
        ranks in 1u32..=64, root: u32, radix in 2u32..70, which in 0usize..8, bytes in sizes(), segment in 1u64..400,
        seed: u64,
    ) {
        let algorithm = if which == 0 { Broadcast::Knomial { radix } } else { BROADCASTS[which] };
        let blocks = algorithm.blocks(bytes, segment, ranks).unwrap();
        run(broadcast(algorithm, root % ranks, &blocks), ranks, &blocks, seed);
    }
}
