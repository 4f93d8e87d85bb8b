//! Every operation over a scripted link, against a plain model: messages wait for room, are read as late as may be,
//! come in any order, and their ends are reported late.

use flexcast_proto::p2p::{
    Allgather, Allreduce, Alltoall, Blocks, Broadcast, Operation, Reduce, ReduceScatter, Span, Start,
};
use proptest::prelude::*;

use super::*;
use crate::op::lists::ListPool;
use crate::p2p::shape::{Kind, Shape};
use flexcast_reduce::{DataType, Operator};

const SUM: Reduction = Reduction::of(Operator::Sum, DataType::I32).unwrap();
const ELEMENT: u64 = 4;

/// Three plain buffers.
#[derive(Clone, Default)]
struct Plain([Vec<u8>; 3]);

impl Plain {
    fn at(&mut self, (memory, range): Extent) -> &mut [u8] {
        &mut self.0[memory as usize][range]
    }
}

impl Buffers for Plain {
    fn copy(&mut self, from: Extent, to: Extent) -> Result<(), Error> {
        let bytes = self.at(from).to_vec();
        self.at(to).copy_from_slice(&bytes);
        Ok(())
    }

    fn combine(&mut self, with: Reduction, to: Extent, [left, right]: [Extent; 2]) -> Result<(), Error> {
        let (mut bytes, right) = (self.at(left).to_vec(), self.at(right).to_vec());
        with.combine(&mut bytes, &right);
        self.at(to).copy_from_slice(&bytes);
        Ok(())
    }
}

/// What the script lets happen.
#[derive(Default)]
struct Scripted {
    /// Messages that may be taken before the next one is refused.
    room: u32,
    waiting: Vec<Transfer>,
    reports: Vec<LinkEvent>,
}

impl Link<Plain> for Scripted {
    fn operation(&self) -> u32 {
        7
    }

    fn take(&mut self, transfer: &Transfer, _: &Executor, _: &Plain) -> Result<Taken, Error> {
        let has_room = self.room > 0;
        if has_room {
            self.room -= 1;
            self.waiting.push(*transfer);
        }
        Ok(if has_room { Taken::Waits } else { Taken::No })
    }

    fn flush(&mut self, _: &Executor, _: &Plain) -> Result<bool, Error> {
        Ok(!self.reports.is_empty())
    }

    fn poll(&mut self, notify: &mut dyn FnMut(LinkEvent) -> Result<(), Error>) -> Result<bool, Error> {
        let any = !self.reports.is_empty();
        self.reports.drain(..).try_for_each(notify)?;
        Ok(any)
    }
}

struct Rank {
    executor: Executor,
    link: Scripted,
    buffers: Plain,
}

/// A part's bytes, one run after the other.
fn runs(executor: &Executor, part: Part) -> Vec<Extent> {
    let (mut at, mut runs) = (0, Vec::new());
    while at < executor.bytes(part) {
        let run = executor.run(part, at);
        at += run.1.len() as u64;
        runs.push(run);
    }
    runs
}

/// Runs an operation to its end. `draw`: a number below another.
fn run(ranks: &mut [Rank], mut draw: impl FnMut(usize) -> usize) {
    for Rank { executor, link, buffers } in ranks.iter_mut() {
        executor.copy_own(buffers).unwrap();
        executor.drive(link, buffers).unwrap();
    }
    for _ in 0..1_000_000 {
        if ranks.iter().all(|rank| rank.executor.is_complete()) {
            return;
        }
        let own = draw(ranks.len());
        let Rank { executor, link, buffers } = &mut ranks[own];
        link.room += draw(3) as u32;
        executor.poll(link, buffers).unwrap();
        executor.drive(link, buffers).unwrap();
        if link.waiting.is_empty() {
            continue;
        }
        let Transfer { to, source, tag, target, .. } = link.waiting.swap_remove(draw(link.waiting.len()));
        let bytes: Vec<u8> = runs(executor, source).into_iter().flat_map(|run| buffers.at(run).to_vec()).collect();
        let Rank { executor, link, buffers } = &mut ranks[to as usize];
        assert_eq!(executor.expected(own as u32, tag), Some(target));
        assert_eq!(executor.bytes(target), bytes.len() as u64);
        let mut rest = &bytes[..];
        for run in runs(executor, target) {
            let (now, later) = rest.split_at(run.1.len());
            buffers.at(run).copy_from_slice(now);
            rest = later;
        }
        link.reports.push(LinkEvent::Arrived { from: own as u32, tag });
        ranks[own].link.reports.push(LinkEvent::Sent(1));
    }
    panic!("no end: {:?}", ranks.iter().map(|rank| rank.executor.awaited()).collect::<Vec<_>>());
}

/// One operation of every rank: what it is bound to, its contribution, and its result.
type Case = (Bound, Vec<u8>, Vec<u8>);

fn numbers(rank: u32, elements: u64) -> Vec<u8> {
    (0..elements as i32).flat_map(|at| ((rank as i32 + 3) * (at * 7 + 1)).to_ne_bytes()).collect()
}

/// Operation number `which` of a rank, with blocks of about `bytes` bytes; none if there are no more.
fn case(which: usize, place: RankInfo, root: u32, elements: u64) -> Option<Case> {
    let (own, ranks) = (place.rank(), place.ranks());
    let lists = ListPool::new(ranks);
    // Lengths that differ, some of them 0.
    let len = |from: u32, to: u32| (elements * u64::from((from * 5 + to * 3) % 4)) * ELEMENT;
    let block = |from: u32, to: u32| numbers(from * 31 + to, len(from, to) / ELEMENT);
    let each = |blocks: &dyn Fn(u32) -> Vec<u8>| -> (Places, Vec<u8>) {
        let blocks: Vec<Vec<u8>> = (0..ranks).map(blocks).collect();
        let ends = blocks.iter().scan(0, |end, block| {
            *end += block.len() as u64;
            Some(*end)
        });
        (Places::cut_at(&lists, ends, 1).unwrap(), blocks.concat())
    };
    let only = |bytes: &[u8]| Places::equal(bytes.len() as u64, 1);
    let total = numbers(0, 0);
    let summed = |of: &dyn Fn(u32) -> Vec<u8>| {
        (1..ranks).fold(of(0), |mut sum, rank| {
            SUM.combine(&mut sum, &of(rank));
            sum
        })
    };
    let reduce = |kind: Kind, result: Vec<u8>| {
        let bound = Bound::reduction(Shape { reduction: SUM, kind }, place).unwrap();
        (bound, numbers(own, elements), result)
    };
    let gathers = [Allgather::Ring, Allgather::Linear, Allgather::RecursiveDoubling, Allgather::Bruck];
    let trees =
        [Broadcast::BINOMIAL, Broadcast::Heap, Broadcast::InOrder, Broadcast::Chain, Broadcast::ScatterAllgather];
    let sums = [Allreduce::Ring, Allreduce::Tree { segments: 3 }, Allreduce::RecursiveDoubling, Allreduce::Exchange];
    let sum = || summed(&|rank| numbers(rank, elements));
    Some(match which {
        0..4 => {
            let (places, all) = each(&|rank| block(rank, 0));
            let contribution = block(own, 0);
            (Bound::plain(Operation::Allgather(gathers[which]), only(&contribution), places), contribution, all)
        }
        4 => {
            let blocks = Blocks::equal(elements * ELEMENT, ranks).unwrap();
            let all: Vec<u8> = (0..ranks).flat_map(|rank| numbers(rank, elements)).collect();
            let sending = Places::Cut(Blocks::equal(elements * ELEMENT, 1).unwrap().split(3).unwrap());
            let operation = Operation::Allgather(Allgather::PipelinedRing { segments: 3 });
            let bound = Bound::plain(operation, sending, Places::Cut(blocks.split(3).unwrap()));
            (bound, numbers(own, elements), all)
        }
        5..10 => {
            let algorithm = trees[which - 5];
            let blocks = algorithm.blocks(elements * ELEMENT, 24, ranks).unwrap();
            let operation = Operation::Broadcast { algorithm, root, blocks: blocks.count() };
            // The message is in the root's receive buffer: it is the rank's contribution here.
            (Bound::plain(operation, Places::default(), Places::Cut(blocks)), total, numbers(root, elements))
        }
        10..13 => {
            let (sending, send) = each(&|to| block(own, to));
            let (receiving, received) = each(&|from| block(from, own));
            (Bound::plain(Operation::Alltoall(Alltoall::ALL[which - 10]), sending, receiving), send, received)
        }
        13 => {
            let (receiving, all) = each(&|rank| block(rank, root));
            let (receiving, all) = if own == root { (receiving, all) } else { (only(&[]), Vec::new()) };
            let send = block(own, root);
            (Bound::plain(Operation::Gather { root }, only(&send), receiving), send, all)
        }
        14 => {
            let (sending, all) = each(&|rank| block(root, rank));
            let (sending, all) = if own == root { (sending, all) } else { (only(&[]), Vec::new()) };
            let receive = block(root, own);
            (Bound::plain(Operation::Scatter { root }, sending, only(&receive)), all, receive)
        }
        15..19 => reduce(Kind::Allreduce { algorithm: sums[which - 15], elements }, sum()),
        19..21 => {
            let algorithm = [Reduce::Tree { segments: 2 }, Reduce::Exchange][which - 19];
            reduce(Kind::Reduce { algorithm, root, elements }, if own == root { sum() } else { Vec::new() })
        }
        21..23 => {
            let algorithm = ReduceScatter::ALL[which - 21];
            let ends = (0..ranks).scan(0, |end, rank| {
                *end += if rank + 1 == ranks { elements - *end } else { (elements - *end) / 3 };
                Some(*end)
            });
            let shares = Places::cut_at(&lists, ends, 1).unwrap();
            let own_share = shares.place(own);
            let share = (own_share.0 * ELEMENT) as usize..((own_share.0 + own_share.1) * ELEMENT) as usize;
            reduce(Kind::ReduceScatter { algorithm, shares }, sum()[share].to_vec())
        }
        23 => (Bound::plain(Operation::Barrier, Places::equal(0, 1), Places::equal(0, 1)), Vec::new(), Vec::new()),
        _ => return None,
    })
}

const CASES: usize = 24;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_operation_gives_what_a_plain_model_gives(
        which in 0..CASES,
        count in 1_u32..8,
        root in any::<prop::sample::Index>(),
        elements in prop_oneof![Just(0_u64), Just(1), Just(5), 0_u64..60],
        order in proptest::collection::vec(any::<usize>(), 64),
    ) {
        let root = root.index(count as usize) as u32;
        let mut results = Vec::new();
        let mut ranks: Vec<Rank> = (0..count).map(|rank| {
            let place = RankInfo::new(rank, count).unwrap();
            let (bound, contribution, result) = case(which, place, root, elements).unwrap();
            let is_broadcast = matches!(bound.operation, Operation::Broadcast { .. });
            let executor = Executor::new(bound, place).unwrap();
            let room = |memory| vec![0xa5; executor.places(memory).end() as usize];
            let mut receive = room(Memory::Receive);
            if is_broadcast && rank == root {
                receive.clone_from(&result);
            }
            let buffers = Plain([contribution, room(Memory::Temporary), receive]);
            results.push(result);
            Rank { executor, link: Scripted::default(), buffers }
        }).collect();
        let mut turn = 0;
        run(&mut ranks, |below| {
            turn += 1;
            order[turn % order.len()].wrapping_mul(turn | 1).wrapping_add(turn >> 3) % below
        });
        let sources: u64 = ranks.iter().map(|rank| rank.executor.foreign_bytes()).sum();
        let sent: u64 = ranks.iter().map(|Rank { executor, .. }| {
            executor.schedule().sends().map(|transfer| executor.bytes(transfer.source)).sum::<u64>()
        }).sum();
        prop_assert_eq!(sources, sent, "what ranks send is what they get");
        for (rank, result) in ranks.iter().zip(&results) {
            prop_assert_eq!(&rank.buffers.0[Memory::Receive as usize], result);
            prop_assert_eq!((rank.executor.awaited(), rank.link.waiting.len()), (None, 0));
        }
    }
}

/// An Alltoall of two ranks, whose only message has not come.
fn waiting() -> Rank {
    let place = RankInfo::new(0, 2).unwrap();
    let bound = Bound::plain(Operation::Alltoall(Alltoall::Linear), Places::equal(4, 2), Places::equal(4, 2));
    let buffers = Plain([vec![1; 8], Vec::new(), vec![0; 8]]);
    Rank { executor: Executor::new(bound, place).unwrap(), link: Scripted::default(), buffers }
}

#[test]
fn what_a_link_must_not_report_is_refused_by_name_of_the_operation() {
    for (report, words) in [
        (LinkEvent::Arrived { from: 1, tag: 1 }, ["operation 7", "message 1 from rank 1: 1 messages"]),
        (LinkEvent::Arrived { from: 0, tag: 0 }, ["operation 7", "message 0 from rank 0: rank 1 is to send it"]),
        (LinkEvent::Sent(1), ["operation 7", "none is under way"]),
    ] {
        let Rank { mut executor, mut link, mut buffers } = waiting();
        link.reports.push(report);
        let error = executor.poll(&mut link, &mut buffers).unwrap_err();
        let text = format!("{error}: {}", std::error::Error::source(&error).expect("a cause"));
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
}

#[test]
fn a_refused_message_is_offered_again_before_any_other() {
    let Rank { mut executor, mut link, mut buffers } = waiting();
    assert_eq!(executor.schedule().start(), Some(Start { from: Span::of(0), to: Span::of(0) }));
    assert!(!executor.drive(&mut link, &mut buffers).unwrap(), "there is no room");
    assert!(link.waiting.is_empty() && !executor.is_complete());
    link.room = 5;
    assert!(executor.drive(&mut link, &mut buffers).unwrap());
    assert_eq!(link.waiting.iter().map(|transfer| (transfer.to, transfer.tag)).collect::<Vec<_>>(), [(1, 0)]);
    assert!(!executor.drive(&mut link, &mut buffers).unwrap(), "once is enough");
    link.reports.extend([LinkEvent::Sent(1), LinkEvent::Arrived { from: 1, tag: 0 }]);
    assert_eq!(executor.awaited(), Some(1));
    assert!(executor.poll(&mut link, &mut buffers).unwrap());
    assert!(executor.is_complete() && executor.awaited().is_none());
}
