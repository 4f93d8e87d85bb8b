//! Groups of ranks whose messages are delivered in any order, and read as late as may be.

use flexcast_proto::Algorithm;
use flexcast_proto::p2p::Transfer;
use proptest::prelude::*;

use super::*;
use crate::op::collective::Collective;
use crate::p2p::executor::{LinkEvent, Taken};
use flexcast_reduce::{DataType, Operator};

const SUM: Reduction = Reduction::of(Operator::Sum, DataType::I32).unwrap();

/// Messages wait until their bytes are asked for, which is as late as may be.
#[derive(Default)]
struct Waiting {
    messages: Vec<Transfer>,
    sent: u32,
}

impl Link<Slices<'_>> for Waiting {
    fn operation(&self) -> u32 {
        0
    }

    fn take(&mut self, transfer: &Transfer, _: &Executor, _: &Slices<'_>) -> p2p::Result<Taken> {
        self.messages.push(*transfer);
        Ok(Taken::Waits)
    }

    fn poll(&mut self, notify: &mut dyn FnMut(LinkEvent) -> p2p::Result<()>) -> p2p::Result<bool> {
        notify(LinkEvent::Sent(std::mem::take(&mut self.sent)))?;
        Ok(true)
    }
}

struct Rank {
    local: Local,
    link: Waiting,
    send: Vec<u8>,
    receive: Vec<u8>,
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
        let bound = Bound::of_collective(&collective, place, algorithm).unwrap();
        let mut local = Local::new(bound, place, ("allreduce", summary), Spare::default()).unwrap();
        let (send, mut receive) =
            if in_place { (None, array.clone()) } else { (Some(array.clone()), vec![0xa5; array.len()]) };
        local.start(send.as_deref(), &mut receive).unwrap();
        Rank { local, link: Waiting::default(), send: send.unwrap_or_default(), receive }
    };
    let mut ranks: Vec<Rank> = arrays.iter().enumerate().map(rank).collect();
    for _ in 0..1_000_000 {
        for Rank { local, link, send, receive } in &mut ranks {
            local.advance(link, send, receive).unwrap();
        }
        let ready: Vec<usize> = (0..ranks.len()).filter(|rank| !ranks[*rank].link.messages.is_empty()).collect();
        if ready.is_empty() {
            assert!(ranks.iter().all(|rank| rank.local.executor().is_complete()));
            return ranks.into_iter().map(|rank| rank.receive).collect();
        }
        let from = ready[draw(ready.len())];
        let Rank { local, link, send, receive } = &mut ranks[from];
        // A connection keeps the order of its messages.
        let to = link.messages[draw(link.messages.len())].to;
        let first = link.messages.iter().position(|transfer| transfer.to == to).unwrap();
        let Transfer { source, tag, .. } = link.messages.remove(first);
        link.sent += 1;
        let bytes = Slices { own: &mut local.own, send, receive }.message(&local.executor, source);
        let Rank { local, send, receive, .. } = &mut ranks[to as usize];
        let from = from as u32;
        assert_eq!(local.begin(from, summary, (tag, bytes.len() as u64, 0)), Begun::Fine);
        assert!(local.deliver((from, tag), &bytes, send, receive));
    }
    panic!("no end");
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
