//! Collectives without multicast on emulated cards: every algorithm, every rank's buffer byte by byte, and what happens
//! when ranks disagree or are silent.

use emu_machine::fabric::{Fault, FaultEvent, FaultScript, Topology};
use emu_machine::{Config, NetworkConfig, Wiring, with_world};
use flexcast::p2p::algorithm::{Allgather, Blocks, Broadcast, Operation};
use flexcast::p2p::{self, ANNOUNCEMENT_BYTES, Buffer, Connections, Error};
use flexcast_proto::RankInfo;
use flexcast_tests::ranks::{Ranks, bytes_of, with_ranks};
use flexio::Bound;

const ALLGATHERS: [Allgather; 5] = [
    Allgather::Ring,
    Allgather::PipelinedRing { segments: 3 },
    Allgather::Linear,
    Allgather::RecursiveDoubling,
    Allgather::Bruck,
];

const BROADCASTS: [Broadcast; 6] = [
    Broadcast::BINOMIAL,
    Broadcast::Knomial { radix: 4 },
    Broadcast::Heap,
    Broadcast::InOrder,
    Broadcast::Chain,
    Broadcast::ScatterAllgather,
];

fn on(topology: &str, cards: usize) -> Config {
    Config { cards, wiring: Wiring::network(Topology::named(topology).expect("a preset")), ..Config::default() }
}

/// Ranks spread over the leaves of the tree of 188 hosts.
fn spread(cards: usize) -> Config {
    let hosts = (0..cards).map(|card| card * 188 / cards).collect();
    let network = NetworkConfig { hosts, ..NetworkConfig::new(Topology::named("fat-tree-188").expect("a preset")) };
    Config { cards, wiring: Wiring::Network(Box::new(network)), ..Config::default() }
}

fn made_up(rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + rank * 97 + 1) as u8).collect()
}

/// Up to so many segments of a Broadcast.
const SEGMENTS: u32 = 16;

fn every_broadcast(ranks: u32, root: u32) -> impl Iterator<Item = Operation> {
    BROADCASTS.into_iter().map(move |algorithm| {
        let blocks = if algorithm == Broadcast::ScatterAllgather { ranks } else { SEGMENTS };
        Operation::Broadcast { algorithm, root, blocks }
    })
}

fn allgather(ranks: &mut Ranks<'_>, algorithm: Allgather, len: usize, in_place: bool) -> Result<(), Error> {
    let count = ranks.groups.len();
    let expected: Vec<u8> = (0..count).flat_map(|rank| made_up(rank, len)).collect();
    let mut regions = Vec::new();
    for rank in 0..count {
        let own = made_up(rank, len);
        // Something in front, to see that offsets count; in place, the own block is there already.
        let receive = ranks.memory(rank, 3 + count * len, &[])?;
        if in_place {
            receive.write(3 + rank * len, &own)?;
        }
        regions.push((ranks.memory(rank, len, &own)?, receive));
    }
    for (group, (own, receive)) in ranks.groups.iter_mut().zip(&regions) {
        let contribution = (!in_place).then_some(Buffer { region: own, offset: 0 });
        let blocks = Blocks::equal(len as u64, count as u32)?;
        group.allgather(algorithm, blocks, contribution, Buffer { region: receive, offset: 3 })?;
    }
    ranks.finish()?;
    for (rank, (_, receive)) in regions.iter().enumerate() {
        let got = bytes_of(receive, 3 + expected.len());
        assert!(got[3..] == expected, "{algorithm:?}, {len} bytes, rank {rank} of {count}");
    }
    Ok(())
}

fn broadcast(ranks: &mut Ranks<'_>, algorithm: Broadcast, root: u32, len: usize, segment: u64) -> Result<(), Error> {
    let message = made_up(7, len);
    let regions = (0..ranks.groups.len())
        .map(|rank| ranks.memory(rank, len, if rank == root as usize { &message } else { &[] }))
        .collect::<Result<Vec<_>, Error>>()?;
    for (group, region) in ranks.groups.iter_mut().zip(&regions) {
        group.broadcast(algorithm, root, len as u64, segment, Buffer { region, offset: 0 })?;
    }
    ranks.finish()?;
    for (rank, region) in regions.iter().enumerate() {
        assert!(bytes_of(region, len) == message, "{algorithm:?} of {len} bytes from {root}: rank {rank}");
    }
    Ok(())
}

/// No message found its receiver without a receive.
fn assert_no_rnr(cards: usize) {
    for card in 0..cards {
        let counters = with_world(|world| world.card(card).map(|card| *card.nic.counters())).unwrap().unwrap();
        assert_eq!((counters.rnr_naks, counters.rnr_drops), (0, 0), "card {card}");
    }
}

#[test]
fn every_allgather_gives_every_rank_every_block() {
    let operations = ALLGATHERS.map(Operation::Allgather);
    // Short writes, so that messages of several are covered, too.
    let config = p2p::Config { write_bytes: 3000, writes: 3, ..p2p::Config::default() };
    for count in [1, 2, 3, 5, 8, 16] {
        for machine in [on("switch-16", count), spread(count)] {
            with_ranks(machine, &operations, config, |ranks| {
                for algorithm in ALLGATHERS {
                    for (len, in_place) in [(0, false), (1, true), (4099, false), (20_011, true)] {
                        allgather(ranks, algorithm, len, in_place)?;
                    }
                }
                let done = ranks.groups[count - 1].statistics();
                assert_eq!(done.operations, 20);
                assert_eq!(done.data_bytes, 5 * (1 + 4099 + 20_011) * (count as u64 - 1));
                Ok(())
            })
            .unwrap();
            assert_no_rnr(count);
        }
    }
}

#[test]
fn every_broadcast_gives_every_rank_the_message() {
    for count in [1, 2, 3, 5, 8, 16] {
        let root = count / 2;
        let operations: Vec<Operation> = every_broadcast(count, 0).chain(every_broadcast(count, root)).collect();
        for machine in [on("switch-16", count as usize), spread(count as usize)] {
            with_ranks(machine, &operations, p2p::Config::default(), |ranks| {
                for algorithm in BROADCASTS {
                    for (len, segment) in [(0, 1), (1, 100), (4099, 300), (20_011, 4096), (20_011, 1 << 20)] {
                        for root in [0, root] {
                            broadcast(ranks, algorithm, root, len, segment)?;
                        }
                    }
                }
                Ok(())
            })
            .unwrap();
            assert_no_rnr(count as usize);
        }
    }
}

#[test]
fn contributions_may_differ_in_length() {
    let operations = ALLGATHERS.map(Operation::Allgather);
    let lengths = [5, 0, 9001, 1, 4096, 0, 17];
    let ends: Vec<u64> = (0..lengths.len()).map(|last| lengths[..=last].iter().map(|&len| len as u64).sum()).collect();
    let expected: Vec<u8> = lengths.iter().enumerate().flat_map(|(rank, &len)| made_up(rank, len)).collect();
    with_ranks(on("switch-8", 7), &operations, p2p::Config::default(), |ranks| {
        for algorithm in ALLGATHERS {
            let regions = lengths
                .iter()
                .enumerate()
                .map(|(rank, &len)| {
                    Ok((ranks.memory(rank, len, &made_up(rank, len))?, ranks.memory(rank, expected.len(), &[])?))
                })
                .collect::<Result<Vec<_>, Error>>()?;
            for (group, (own, receive)) in ranks.groups.iter_mut().zip(&regions) {
                let [own, receive] = [own, receive].map(|region| Buffer { region, offset: 0 });
                group.allgather(algorithm, Blocks::unequal(&ends)?, Some(own), receive)?;
            }
            ranks.finish()?;
            for (_, receive) in &regions {
                assert!(bytes_of(receive, expected.len()) == expected, "{algorithm:?}");
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Roots that change from one operation to the next, ranks that run ahead as far as they can.
#[test]
fn ranks_run_ahead_of_one_another() {
    const LEN: usize = 300;
    const OPERATIONS: u32 = 40;
    for algorithm in BROADCASTS {
        let operations: Vec<Operation> = (0..5).flat_map(|root| every_broadcast(5, root)).collect();
        with_ranks(on("switch-5", 5), &operations, p2p::Config::default(), |ranks| {
            let regions =
                (0..5).map(|rank| ranks.memory(rank, LEN, &made_up(rank, LEN))).collect::<Result<Vec<_>, Error>>()?;
            let mut next = [0; 5];
            let mut state = 1u64;
            while next.iter().any(|&next| next < OPERATIONS) || ranks.groups.iter().any(|group| !group.is_complete()) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let rank = (state >> 40) as usize % 5;
                let group = &mut ranks.groups[rank];
                group.progress()?;
                if group.is_complete() && next[rank] < OPERATIONS {
                    let root = next[rank] * 3 % 5;
                    let region = &regions[rank];
                    group.broadcast(algorithm, root, LEN as u64, 50, Buffer { region, offset: 0 })?;
                    next[rank] += 1;
                }
                ranks.provider.relax().relax();
            }
            for region in &regions {
                assert!(bytes_of(region, LEN) == made_up(0, LEN), "{algorithm:?}: all have the first root's message");
            }
            Ok(())
        })
        .unwrap();
        assert_no_rnr(5);
    }
}

#[test]
fn a_greeting_that_does_not_come_is_waited_for_within_the_bound() {
    let ring = Operation::Allgather(Allgather::Ring);
    let config = p2p::Config { bound: Bound::millis(50), ..p2p::Config::default() };
    with_ranks(on("switch-3", 3), &[ring], config, |ranks| {
        let start_ps = ranks.provider.relax().now_ps();
        // Rank 2 says nothing; its card acknowledges.
        for rank in [0, 1] {
            let failed = loop {
                if let Err(error) = ranks.groups[rank].greet() {
                    break error;
                }
                ranks.provider.relax().relax();
            };
            assert!(matches!(failed, Error::Timeout { peer: 1 | 2, what: "the greeting", .. }), "{rank}: {failed}");
        }
        assert!(ranks.provider.relax().now_ps() - start_ps < 120_000_000_000, "the bound is 50 ms for each of two");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_silent_rank_is_named_within_the_bound() {
    let ring = Operation::Allgather(Allgather::Ring);
    let config = p2p::Config { bound: Bound::millis(50), ..p2p::Config::default() };
    with_ranks(on("switch-4", 4), &[ring], config, |ranks| {
        let regions = (0..4).map(|rank| ranks.memory(rank, 4000, &[])).collect::<Result<Vec<_>, Error>>()?;
        // Rank 2 does not come. Its right neighbour waits for its data, its left one for its buffer.
        for rank in [0, 1, 3] {
            let receive = Buffer { region: &regions[rank], offset: 0 };
            ranks.groups[rank].allgather(Allgather::Ring, Blocks::equal(1000, 4)?, None, receive)?;
        }
        let start_ps = ranks.provider.relax().now_ps();
        let mut outcomes = ranks.outcomes().into_iter();
        assert!(ranks.provider.relax().now_ps() - start_ps < 60_000_000_000, "the bound is 50 ms");
        let mut timeout = || match outcomes.next() {
            Some(Err(Error::Timeout { peer, what, .. })) => Some((peer, what)),
            Some(Ok(())) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(timeout(), Some((3, "a message")));
        assert_eq!(timeout(), Some((2, "the buffer address")));
        assert_eq!(timeout(), None, "rank 2 has nothing to wait for");
        assert_eq!(timeout(), Some((2, "a message")));
        let again = ranks.groups[0].progress().unwrap_err();
        assert!(matches!(again, Error::Failed), "{again}");
        Ok(())
    })
    .unwrap();
}

fn faulty(cards: usize, faults: Vec<FaultEvent>) -> Config {
    let topology = Topology::named(&format!("switch-{cards}")).expect("a preset");
    let network = NetworkConfig { faults: FaultScript { seed: 3, faults }, ..NetworkConfig::new(topology) };
    Config { cards, wiring: Wiring::Network(Box::new(network)), ..Config::default() }
}

#[test]
fn links_that_lose_and_corrupt_cost_time_and_no_bytes() {
    let faults = [Fault::Drop { ppm: 20_000 }, Fault::Corrupt { ppm: 20_000 }, Fault::Duplicate { ppm: 20_000 }];
    let faults = faults.map(|fault| FaultEvent::on("*", fault)).to_vec();
    let operations: Vec<Operation> =
        ALLGATHERS.map(Operation::Allgather).into_iter().chain(every_broadcast(5, 1)).collect();
    with_ranks(faulty(5, faults), &operations, p2p::Config::default(), |ranks| {
        for algorithm in ALLGATHERS {
            allgather(ranks, algorithm, 30_000, false)?;
        }
        BROADCASTS.into_iter().try_for_each(|algorithm| broadcast(ranks, algorithm, 1, 50_000, 4096))
    })
    .unwrap();
    let lost = with_world(|world| world.network().map(|network| network.totals().switches.lost_frames)).unwrap();
    assert!(lost > Some(0), "something was lost");
}

/// The link of rank 1 goes down and stays so: every rank ends, and nobody believes to be complete.
#[test]
fn a_dead_link_ends_every_rank_with_the_name_of_a_peer() {
    let down = FaultEvent { at_ps: 20_000_000, ..FaultEvent::on("h1-switch", Fault::Down) };
    let ring = Operation::Allgather(Allgather::Ring);
    let config = p2p::Config { bound: Bound::millis(2000), ..p2p::Config::default() };
    with_ranks(faulty(3, vec![down]), &[ring], config, |ranks| {
        let regions = (0..3).map(|rank| ranks.memory(rank, 3_000_000, &[])).collect::<Result<Vec<_>, Error>>()?;
        for (group, region) in ranks.groups.iter_mut().zip(&regions) {
            group.allgather(Allgather::Ring, Blocks::equal(1_000_000, 3)?, None, Buffer { region, offset: 0 })?;
        }
        for (rank, outcome) in ranks.outcomes().into_iter().enumerate() {
            let (peer, broken) = match outcome {
                Err(Error::Connection { peer, .. }) => (peer, true),
                Err(Error::Timeout { peer, .. }) => (peer, false),
                other => panic!("rank {rank}: {other:?}"),
            };
            // Who writes learns from its card; who only receives asks its card for the rank that it waits for.
            assert_eq!((peer, broken), [(1, true), (2, true), (1, true)][rank]);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn memory_given_back_too_early_breaks_the_connections_that_write_to_it() {
    let linear = Operation::Allgather(Allgather::Linear);
    let machine = on("switch-2", 2);
    with_ranks(machine, &[linear], p2p::Config::default(), |ranks| {
        let regions = (0..2).map(|rank| ranks.memory(rank, 2000, &[])).collect::<Result<Vec<_>, Error>>()?;
        for (group, region) in ranks.groups.iter_mut().zip(&regions) {
            group.allgather(Allgather::Linear, Blocks::equal(1000, 2)?, None, Buffer { region, offset: 0 })?;
        }
        drop(regions);
        let outcomes = ranks.outcomes();
        let text = format!("{:?}", outcomes);
        assert!(
            outcomes.iter().any(|outcome| matches!(outcome, Err(Error::Connection { .. }))),
            "a write into memory that is no longer registered: {text}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranks_that_disagree_are_reported_with_both_calls() {
    let operations = [Operation::Allgather(Allgather::Ring), Operation::Allgather(Allgather::Linear)];
    let cases: [(&str, u64, Allgather); 2] = [("1001", 1001, Allgather::Ring), ("linear", 1000, Allgather::Linear)];
    for (word, len, algorithm) in cases {
        with_ranks(on("switch-2", 2), &operations, p2p::Config::default(), |ranks| {
            let regions = (0..2).map(|rank| ranks.memory(rank, 4000, &[])).collect::<Result<Vec<_>, Error>>()?;
            let receive = |rank: usize| Buffer { region: &regions[rank], offset: 0 };
            ranks.groups[0].allgather(Allgather::Ring, Blocks::equal(1000, 2)?, None, receive(0))?;
            ranks.groups[1].allgather(algorithm, Blocks::equal(len, 2)?, None, receive(1))?;
            let outcomes = ranks.outcomes();
            for (rank, outcome) in outcomes.into_iter().enumerate() {
                match outcome {
                    Err(error @ Error::Mismatch { peer, .. }) => {
                        assert_eq!(peer as usize, 1 - rank);
                        let text = error.to_string();
                        assert!(text.contains("1000 bytes") || text.contains("2000 bytes"), "{text}");
                        assert!(text.contains(word) || text.contains(&(2 * len).to_string()), "{text}");
                    }
                    other => panic!("rank {rank}: {other:?}"),
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_leaves_the_group_usable() {
    let ring = Operation::Allgather(Allgather::Ring);
    with_ranks(on("switch-3", 3), &[ring], p2p::Config::default(), |ranks| {
        let regions = (0..3).map(|rank| ranks.memory(rank, 30, &[])).collect::<Result<Vec<_>, Error>>()?;
        let receive = Buffer { region: &regions[0], offset: 0 };
        let group = &mut ranks.groups[0];
        let assert_refused = |result: Result<(), Error>, word: &str| {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        let (each, tens) = (|bytes| Blocks::equal(bytes, 3).expect("few bytes"), Blocks::equal(10, 3)?);
        assert_refused(group.allgather(Allgather::Ring, each(11), None, receive), "33 bytes at offset 0");
        assert_refused(group.allgather(Allgather::Ring, tens, None, Buffer { offset: u64::MAX, ..receive }), "offset");
        assert_refused(
            group.allgather(Allgather::Ring, tens, Some(Buffer { offset: 21, ..receive }), receive),
            "10 bytes at offset 21",
        );
        assert_refused(group.allgather(Allgather::Ring, Blocks::unequal(&[1, 2])?, None, receive), "2: must be 3");
        // The ring is connected in one direction of use: receives are posted for the left neighbour only.
        assert_refused(group.allgather(Allgather::Linear, each(1), None, receive), "prepare the group");
        assert_refused(group.broadcast(Broadcast::Chain, 3, 8, 8, receive), "rank 3 of 3");
        assert_refused(group.broadcast(Broadcast::Knomial { radix: 0 }, 0, 8, 8, receive), "radix 0");
        assert_refused(group.broadcast(Broadcast::Chain, 0, 8, 0, receive), "0 bytes");
        group.allgather(Allgather::Ring, tens, None, receive)?;
        assert_refused(group.allgather(Allgather::Ring, tens, None, receive), "operation 0 is not complete");
        assert_refused(
            group.allgather(Allgather::Ring, Blocks::unequal(&[1, 2, 3])?, None, receive),
            "operation 0 is not complete",
        );
        for (group, region) in ranks.groups.iter_mut().zip(&regions).skip(1) {
            group.allgather(Allgather::Ring, tens, None, Buffer { region, offset: 0 })?;
        }
        ranks.finish()
    })
    .unwrap();
}

#[test]
fn set_up_refuses_what_cannot_be() {
    let place = RankInfo::new(0, 2).unwrap();
    let config = |writes, write_bytes| p2p::Config { writes, write_bytes, ..p2p::Config::default() };
    let assert_refused = |operations: &[Operation], config, word: &str| {
        let text = Connections::new(place, operations, config).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    };
    let chain = |root, blocks| [Operation::Broadcast { algorithm: Broadcast::Chain, root, blocks }];
    assert_refused(&[], config(0, 1), "writes under way is 0");
    assert_refused(&[], config(4097, 1), "1 to 4096");
    assert_refused(&[], config(1, u32::MAX), "longest write");
    assert_refused(&chain(1, 40_000), config(1, 1), "40000: must be 1 to 32768");
    assert_refused(&chain(2, 1), config(1, 1), "rank 2 of 2");

    // Endpoints that do not belong together.
    let ring = [Operation::Allgather(Allgather::Ring)];
    with_ranks(on("switch-2", 2), &[], p2p::Config::default(), |ranks| {
        assert_eq!(ranks.groups.len(), 2);
        let pd = ranks.domain(0);
        let queue = flexio::CompletionQueue::new(pd.device(), 100)?;
        for (infos, word) in [(vec![], "missing"), (vec![vec![], vec![1, 2]], "2 bytes")] {
            let (pending, own) = Connections::new(place, &ring, p2p::Config::default())?.prepare(pd, &queue)?;
            let text = pending.connect(&infos).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
            let (pending, _) = Connections::new(place, &ring, p2p::Config::default())?.prepare(pd, &queue)?;
            let text = pending.connect(&[own.clone(), own]).unwrap_err().to_string();
            assert!(text.contains("rank 0 of 2"), "{text}");
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(ANNOUNCEMENT_BYTES, 48);
}

/// The same run every time: nothing but the arguments decides.
#[test]
fn runs_repeat() {
    let run = || {
        with_ranks(spread(8), &ALLGATHERS.map(Operation::Allgather), p2p::Config::default(), |ranks| {
            for algorithm in ALLGATHERS {
                allgather(ranks, algorithm, 5000, false)?;
            }
            Ok(ranks.groups.iter().map(|group| group.statistics()).collect::<Vec<_>>())
        })
        .map(|statistics| (statistics, with_world(|world| world.now_ps()).unwrap()))
        .unwrap()
    };
    let (first, end_ps) = run();
    assert_eq!((first.clone(), end_ps), run());
    assert!(first.iter().all(|statistics| !statistics.busy.is_zero()));
}

/// Baselines are as good as they can be: contributions of 1 MiB among 8 ranks at 200 Gbit/s arrive at nine tenths of
/// the line rate; the plain ring alone is idle between its steps.
#[test]
fn large_allgathers_fill_the_link() {
    let pipelined = Allgather::PipelinedRing { segments: 4 };
    let all = [pipelined, Allgather::Linear, Allgather::RecursiveDoubling, Allgather::Bruck, Allgather::Ring];
    let rates = with_ranks(on("switch-8", 8), &all.map(Operation::Allgather), p2p::Config::default(), |ranks| {
        all.into_iter()
            .map(|algorithm| {
                let before = ranks.groups[0].statistics().busy;
                allgather(ranks, algorithm, 1 << 20, true)?;
                let busy = ranks.groups[0].statistics().busy - before;
                Ok((7 << 20) as f64 * 8.0 / busy.as_nanos() as f64)
            })
            .collect::<Result<Vec<f64>, Error>>()
    })
    .unwrap();
    let (ring, others) = rates.split_last().unwrap();
    assert!(others.iter().all(|&gbit_per_s| gbit_per_s > 180.0), "{all:?}: {rates:?} Gbit/s (emulated)");
    assert!(*ring < others[0], "{ring} Gbit/s (emulated)");
}
