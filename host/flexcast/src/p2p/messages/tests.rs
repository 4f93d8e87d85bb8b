//! Groups of ranks whose messages are delivered in any order, and read as late as may be.

use flexcast_proto::p2p::Part;
use proptest::prelude::*;

use super::*;
use crate::op::reduce::{DataType, Operator};

const SUM: Reduction = Reduction::of(Operator::Sum, DataType::I32).unwrap();

struct Rank {
    direct: Direct,
    send: Option<Vec<u8>>,
    receive: Vec<u8>,
    outgoing: Vec<Transfer>,
}

fn all_reduce(
    algorithm: Algorithm,
    arrays: &[Vec<u8>],
    in_place: bool,
    mut draw: impl FnMut(usize) -> usize,
) -> Vec<Vec<u8>> {
    let collective = Collective::Allreduce { bytes: arrays[0].len() as u64, reduction: SUM };
    let summary = collective.summary(algorithm);
    let rank = |(rank, array): (usize, &Vec<u8>)| {
        let place = RankInfo::new(rank as u32, arrays.len() as u32).unwrap();
        let mut direct = Direct::of_collective(&collective, place, summary, Spare::default()).unwrap();
        let (send, mut receive) =
            if in_place { (None, array.clone()) } else { (Some(array.clone()), vec![0xa5; array.len()]) };
        direct.start(send.as_deref(), &mut receive, false).unwrap();
        Rank { direct, send, receive, outgoing: Vec::new() }
    };
    let mut ranks: Vec<Rank> = arrays.iter().enumerate().map(rank).collect();
    for _ in 0..1_000_000 {
        for rank in &mut ranks {
            rank.outgoing.extend(std::iter::from_fn(|| rank.direct.poll()));
        }
        let ready: Vec<usize> = (0..ranks.len()).filter(|rank| !ranks[*rank].outgoing.is_empty()).collect();
        if ready.is_empty() {
            assert!(ranks.iter().all(|rank| rank.direct.is_complete()));
            return ranks.into_iter().map(|rank| rank.receive).collect();
        }
        let from = ready[draw(ready.len())];
        let Rank { direct, send, receive, outgoing } = &mut ranks[from];
        // A connection keeps the order of its messages.
        let to = outgoing[draw(outgoing.len())].to;
        let first = outgoing.iter().position(|transfer| transfer.to == to).unwrap();
        let Transfer { source, tag, .. } = outgoing.remove(first);
        let bytes = whole(direct, send.as_deref().unwrap_or_default(), receive, source);
        direct.sent(1);
        deliver(&mut ranks[to as usize], (from as u32, tag), summary, &bytes);
    }
    panic!("no end");
}

fn whole(direct: &Direct, send: &[u8], receive: &[u8], source: Part) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < direct.bytes(source) {
        bytes.extend_from_slice(direct.source(send, receive, source, bytes.len() as u64));
    }
    bytes
}

fn deliver(to: &mut Rank, (from, tag): (u32, u32), summary: Summary, bytes: &[u8]) {
    let total = bytes.len() as u64;
    assert_eq!(to.direct.begin(from, summary, (tag, total, 0)), Begun::Fine);
    let mut at = 0;
    while at < bytes.len() {
        let place = to.direct.place(&mut to.receive, tag, at as u64);
        let len = place.len().min(bytes.len() - at);
        place[..len].copy_from_slice(&bytes[at..at + len]);
        at += len;
    }
    let send = to.send.as_deref().unwrap_or_default();
    assert!(to.direct.came(from, tag, (total, total), send, &mut to.receive));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn contributions_in_the_receive_buffer_are_used_before_they_are_written_over(
        ranks in 1_usize..7,
        elements in prop_oneof![Just(0_usize), Just(1), Just(5), 0_usize..300],
        algorithm in prop_oneof![
            Just(Algorithm::Ring),
            Just(Algorithm::Linear),
            Just(Algorithm::RecursiveDoubling),
            Just(Algorithm::Binomial),
        ],
        in_place in any::<bool>(),
        order in proptest::collection::vec(any::<usize>(), 64),
    ) {
        let array = |rank: usize| (0..elements).flat_map(|at| ((rank + 1) as i32 * (at as i32 + 7)).to_ne_bytes()).collect();
        let arrays: Vec<Vec<u8>> = (0..ranks).map(array).collect();
        let mut expected = arrays[0].clone();
        arrays[1..].iter().for_each(|array| SUM.combine(&mut expected, array));
        let mut turn = 0;
        let draw = |below: usize| {
            turn += 1;
            order[turn % order.len()].wrapping_add(turn) % below
        };
        for result in all_reduce(algorithm, &arrays, in_place, draw) {
            prop_assert_eq!(&result, &expected);
        }
    }
}
