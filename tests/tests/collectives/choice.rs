//! The library's own choice of what carries the data of an Allgather: multicast, the messages of the barrier, or writes
//! over reliable connections.

use std::collections::BTreeSet;
use std::time::Duration;

use emu_config::Machine;
use emu_machine::fabric::{Fault, FaultEvent, FaultScript, Topology};
use emu_machine::{Config as MachineConfig, NetworkConfig, Wiring};
use flexcast::{Algorithm, Allgather, Cause, Communicator, Config, Control, Done, Error, Pending, Selection, Test};
use flexcast_tests::communicators::{
    self, Under, check, connect, contribution, drive, ended, gather, gathered, with_cards, with_machine,
};
use flexio::Provider;

const DIRECT: [(Selection, Algorithm); 4] = [
    (Selection::Ring, Algorithm::Ring),
    (Selection::Linear, Algorithm::Linear),
    (Selection::RecursiveDoubling, Algorithm::RecursiveDoubling),
    (Selection::Bruck, Algorithm::Bruck),
];

fn config() -> Config {
    communicators::config().eager_bytes(4096).algorithm(Selection::Automatic)
}

/// Allgathers of all ranks, one after another; the ends of each.
fn gather_all(provider: &Provider, communicators: &[Communicator], lengths: &[usize]) -> Vec<Vec<Done>> {
    let each = |bytes: &usize| {
        let posted: Vec<_> = communicators.iter().map(|one| (one, gather(one, 7, *bytes))).collect();
        let ends = ended(provider, posted);
        let ends: Vec<Done> = ends.into_iter().map(|outcome| outcome.expect("success")).collect();
        ends.iter().for_each(|done| check(done, 7, communicators.len(), *bytes));
        ends
    };
    lengths.iter().map(each).collect()
}

/// The algorithm of an operation, alike on all ranks, with all times that were expected.
fn chosen(ends: &[Done]) -> Algorithm {
    let decision = ends[0].report.decision;
    assert!(ends.iter().all(|done| done.report.decision == decision), "ranks choose differently");
    let expected = decision.predicted(decision.algorithm()).expect("a time for what was chosen");
    for other in Algorithm::ALL.into_iter().filter_map(|other| decision.predicted(other)) {
        assert!(other * 103 >= expected * 100, "{:?}", decision);
    }
    decision.algorithm()
}

#[test]
fn every_byte_arrives_on_both_sides_of_each_limit() {
    for ranks in [1, 2, 3, 5, 8, 16] {
        with_cards(ranks, |provider, cards| {
            let communicators = connect(cards.iter(), &config());
            let eager = 4096 / ranks;
            let lengths = [0, 1, 37, eager - 1, eager, eager + 1, 4095, 4096, 4097, 12_345];
            let ends = gather_all(provider, &communicators, &lengths);
            let algorithms: BTreeSet<_> = ends.iter().map(|ends| chosen(ends)).collect();
            let expected = if ranks == 1 { Algorithm::Multicast } else { Algorithm::Linear };
            assert_eq!(algorithms, BTreeSet::from([Algorithm::Eager, expected]), "{ranks} ranks");
        });
    }
}

#[test]
fn every_algorithm_brings_every_byte_by_its_name() {
    for ranks in [2, 3, 5, 8] {
        for (selection, algorithm) in DIRECT {
            with_cards(ranks, |provider, cards| {
                let communicators = connect(cards.iter(), &config().algorithm(selection));
                for ends in gather_all(provider, &communicators, &[0, 1, 700, 9000]) {
                    let decisions: BTreeSet<_> = ends.iter().map(|done| done.report.decision.algorithm()).collect();
                    assert_eq!(decisions, BTreeSet::from([algorithm]), "{ranks} ranks");
                    assert!(ends.iter().all(|done| done.report.phases.ready().is_none()), "there is no barrier");
                }
                assert_eq!(communicators[0].messages().total(), 0, "nor any control message");
            });
        }
    }
}

/// Contributions of several lengths, none among them, in place on even ranks.
#[test]
fn unequal_contributions_and_those_in_place_arrive() {
    const COUNTS: [u64; 5] = [3000, 0, 1, 8192, 500];
    let total: u64 = COUNTS.iter().sum();
    for (selection, algorithm) in DIRECT {
        with_cards(5, |provider, cards| {
            let communicators = connect(cards.iter(), &config().algorithm(selection));
            let own = |rank: usize| contribution(3, rank, COUNTS[rank] as usize);
            let posted: Vec<_> = communicators
                .iter()
                .enumerate()
                .map(|(rank, communicator)| {
                    let mut receive = communicator.endpoint().buffer(total as usize).expect("a buffer");
                    let request = if rank % 2 == 0 {
                        let at: u64 = COUNTS[..rank].iter().sum();
                        receive.write(at as usize, &own(rank)).expect("written");
                        communicator.post(Allgather::counts(&COUNTS).in_place(receive))
                    } else {
                        let mut send = communicator.endpoint().buffer(COUNTS[rank] as usize).expect("a buffer");
                        send.write(0, &own(rank)).expect("written");
                        communicator.post(Allgather::counts(&COUNTS).buffers(send, receive))
                    };
                    (communicator, request.expect("accepted"))
                })
                .collect();
            let expected: Vec<u8> = (0..5).flat_map(own).collect();
            for outcome in ended(provider, posted) {
                let done = outcome.expect("success");
                assert_eq!(done.report.decision.algorithm(), algorithm);
                assert!(done.receive.to_vec().expect("read") == expected, "{algorithm}");
            }
        });
    }
}

/// From every root, with lengths on both sides of what goes eagerly, of a segment, and of what a chain is chosen for.
#[test]
fn broadcasts_choose_among_trees_and_bring_every_byte() {
    for ranks in [2, 3, 5, 8] {
        with_cards(ranks, |provider, cards| {
            let communicators = connect(cards.iter(), &config());
            let mut algorithms = BTreeSet::new();
            let lengths = [0, 1, 4096, 4097, 16_384, 16_385, 200_000, 700_001];
            for (root, bytes) in (0..ranks as u32).cycle().zip(lengths.into_iter().cycle()).take(16) {
                let posted: Vec<_> = communicators
                    .iter()
                    .map(|communicator| {
                        let mut buffer = communicator.endpoint().buffer(bytes).expect("a buffer");
                        if communicator.rank() == root {
                            buffer.write(0, &contribution(5, bytes, bytes)).expect("written");
                        }
                        (communicator, communicator.broadcast(buffer, root).expect("accepted"))
                    })
                    .collect();
                let ends = ended(provider, posted);
                let ends: Vec<Done> = ends.into_iter().map(|outcome| outcome.expect("success")).collect();
                for done in &ends {
                    assert!(done.receive.to_vec().expect("read") == contribution(5, bytes, bytes), "{bytes} bytes");
                }
                algorithms.insert(chosen(&ends));
            }
            let expected: &[Algorithm] = match ranks {
                2 => &[Algorithm::Eager, Algorithm::Binomial],
                3 => &[Algorithm::Eager, Algorithm::Chain],
                _ => &[Algorithm::Eager, Algorithm::Binomial, Algorithm::Chain],
            };
            assert_eq!(algorithms, expected.iter().copied().collect(), "{ranks} ranks");
        });
    }
}

/// The root calls another length than the others: all ranks learn that calls differ, and get their buffers back.
#[test]
fn broadcasts_that_differ_fail_on_all_ranks() {
    with_cards(3, |provider, cards| {
        let communicators = connect(cards.iter(), &config().barrier_timeout(Duration::from_millis(2)));
        let posted: Vec<_> = communicators
            .iter()
            .map(|one| {
                let bytes = if one.rank() == 0 { 60_000 } else { 50_000 };
                (one, one.broadcast(one.endpoint().buffer(bytes).expect("a buffer"), 0).expect("accepted"))
            })
            .collect();
        for outcome in ended(provider, posted) {
            let failed = outcome.expect_err("they differ");
            let Error::Failed { failure, .. } = failed.error else { panic!("{}", failed.error) };
            assert_eq!(failure.cause, Cause::Disagrees);
            assert!(failed.receive.is_some(), "the buffer comes back");
        }
    });
}

/// Blocks that do not lie one behind the other go by multicast or eagerly.
#[test]
fn what_connections_cannot_do_goes_as_before() {
    with_cards(3, |provider, cards| {
        let communicators = connect(cards.iter(), &config());
        for (bytes, algorithm) in [(100, Algorithm::Eager), (5000, Algorithm::Multicast)] {
            let displacements = [2 * bytes + 1, 0, bytes];
            let posted: Vec<_> = communicators
                .iter()
                .map(|communicator| {
                    let mut send = communicator.endpoint().buffer(bytes as usize).expect("a buffer");
                    let own = contribution(4, communicator.rank() as usize, bytes as usize);
                    send.write(0, &own).expect("written");
                    let receive = communicator.endpoint().buffer(3 * bytes as usize + 1).expect("a buffer");
                    let request =
                        communicator.post(Allgather::counts(&[bytes; 3]).displs(&displacements).buffers(send, receive));
                    (communicator, request.expect("accepted"))
                })
                .collect();
            for outcome in ended(provider, posted) {
                let done = outcome.expect("success");
                assert_eq!(done.report.decision.algorithm(), algorithm);
                let got = done.receive.to_vec().expect("read");
                for (rank, at) in displacements.iter().enumerate() {
                    let block = &got[*at as usize..][..bytes as usize];
                    assert!(block == contribution(4, rank, bytes as usize), "rank {rank}");
                }
            }
        }
    });
}

/// Posted at once, on the last rank first: eager ones, direct ones, Broadcasts down trees, and blocks with a gap
/// between them, by multicast.
#[test]
fn operations_of_all_kinds_follow_one_another() {
    const GAPPED: usize = 1500;
    with_cards(5, |provider, cards| {
        let communicators = connect(cards.iter(), &config());
        let lengths = [10, 5000, 0, 20_000, 64, 900, 3000];
        let mut all = Vec::new();
        for communicator in communicators.iter().rev() {
            for (seed, bytes) in (0..).zip(lengths) {
                all.push((communicator, gather(communicator, seed, bytes)));
                let mut buffer = communicator.endpoint().buffer(6000).expect("a buffer");
                if communicator.rank() == 2 {
                    buffer.write(0, &contribution(seed, 9, 6000)).expect("written");
                }
                all.push((communicator, communicator.broadcast(buffer, 2).expect("accepted")));
                let mut send = communicator.endpoint().buffer(GAPPED).expect("a buffer");
                send.write(0, &contribution(seed, communicator.rank() as usize, GAPPED)).expect("written");
                let receive = communicator.endpoint().buffer(5 * (GAPPED + 1)).expect("a buffer");
                let starts = [0, 1, 2, 3, 4].map(|rank| rank * (GAPPED as u64 + 1));
                let request =
                    communicator.post(Allgather::counts(&[GAPPED as u64; 5]).displs(&starts).buffers(send, receive));
                all.push((communicator, request.expect("accepted")));
            }
        }
        let mut algorithms = BTreeSet::new();
        for (index, outcome) in ended(provider, all).into_iter().enumerate() {
            let done = outcome.expect("success");
            let (seed, bytes) = ((index / 3 % lengths.len()) as u64, lengths[index / 3 % lengths.len()]);
            let mut got = done.receive.to_vec().expect("read");
            let expected = match index % 3 {
                0 => gathered(seed, 5, bytes),
                1 => contribution(seed, 9, 6000),
                _ => {
                    got = got.chunks(GAPPED + 1).flat_map(|block| &block[..GAPPED]).copied().collect();
                    gathered(seed, 5, GAPPED)
                }
            };
            assert!(got == expected, "operation {index}");
            algorithms.insert(done.report.decision.algorithm());
        }
        let all = [Algorithm::Multicast, Algorithm::Binomial, Algorithm::Eager, Algorithm::Linear];
        assert_eq!(algorithms, BTreeSet::from(all));
    });
}

/// Ranks announce different rates, one of them impossible: all compute with the lowest, for the number of chains as
/// well.
#[test]
fn a_rank_that_announces_a_wrong_rate_changes_no_result() {
    for rates in [[200, 100, 400, 200], [1, 200, 200, 200], [200, u64::MAX, 200, 200], [u64::MAX; 4]] {
        with_cards(4, |provider, cards| {
            let pending = |algorithm: Selection| -> Vec<Pending> {
                (0..)
                    .zip(cards)
                    .zip(rates)
                    .map(|((rank, card), rate)| {
                        let config = config().algorithm(algorithm).link_gbit_per_s(rate);
                        Pending::new(card, rank, 4, config).expect("its part is made")
                    })
                    .collect()
            };
            for selection in [Selection::Automatic, Selection::Multicast] {
                let pending = pending(selection);
                let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
                let communicators: Vec<_> =
                    pending.into_iter().map(|pending| pending.connect(&infos).expect("connected")).collect();
                for ends in gather_all(provider, &communicators, &[64, 1025, 5000, 40_000]) {
                    let decision = ends[0].report.decision;
                    assert!(ends.iter().all(|done| done.report.decision == decision), "{rates:?}");
                }
                let lowest = rates.iter().min().expect("four");
                assert!(communicators.iter().all(|one| one.config().link_gbit_per_s == *lowest));
            }
        });
    }
}

/// A rank that takes the others for ranks without connections goes by multicast, where they go directly.
#[test]
fn a_rank_that_chooses_differently_is_found() {
    with_cards(4, |provider, cards| {
        let make = |(rank, card)| Pending::new(card, rank, 4, config()).expect("its part is made");
        let pending: Vec<Pending> = (0..).zip(cards).map(make).collect();
        let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
        // An endpoint ends with what it announces of these connections, a head of 52 bytes and 24 for each peer, behind
        // its length.
        let mut without = infos.clone();
        let at = without[0].len() - (52 + 3 * 24);
        without[0].truncate(at);
        without[0][at - 4..].fill(0);
        let communicators: Vec<_> = pending
            .into_iter()
            .enumerate()
            .map(|(rank, pending)| pending.connect(if rank == 1 { &without } else { &infos }).expect("connected"))
            .collect();
        // What all send eagerly works.
        gather_all(provider, &communicators, &[64]);
        let posted: Vec<_> = communicators.iter().map(|one| (one, gather(one, 1, 20_000))).collect();
        for outcome in ended(provider, posted) {
            let failed = outcome.expect_err("they differ");
            let Error::Failed { failure, .. } = failed.error else { panic!("{}", failed.error) };
            assert_eq!((failure.failed_rank, failure.cause), (1, Cause::Disagrees));
            assert!(failed.receive.is_some() && failed.send.is_some(), "buffers come back");
        }
        let found = communicators.iter().find_map(Communicator::disagreement).expect("one has found it");
        let text = found.to_string();
        assert!(text.contains("rank 1 called allgather of 20000 bytes") && text.contains("by multicast"), "{text}");
        assert!(text.contains("by linear"), "{text}");
    });
}

#[test]
fn lost_packets_are_sent_again() {
    for selection in [Selection::Linear, Selection::Ring, Selection::Bruck] {
        let machine = Machine { loss_ppm: Some(10_000), seed: Some(5), ..Machine::default() };
        with_machine(machine.config_of(5).expect("a switch"), |provider, cards| {
            let config = config().algorithm(selection).barrier_timeout(Duration::from_secs(2));
            let communicators = connect(cards.iter(), &config);
            gather_all(provider, &communicators, &[100, 20_000, 64, 100_000, 9000]);
        });
    }
}

/// A rank that frees its communicator as soon as it has all bytes is not missed by one that waits for its
/// acknowledgements, whichever frame is lost on the way there.
#[test]
fn ranks_that_leave_at_once_still_answer() {
    for first in 0..4 {
        let topology = Topology::named("switch-4").expect("a switch");
        let lost = Fault::Frames { priority: 0, first, count: 1 };
        let faults = FaultEvent::towards_hosts(&topology, lost).into_iter().take(1).collect();
        let faults = FaultScript { seed: 1, faults };
        let wiring = Wiring::Network(Box::new(NetworkConfig { topology, faults, hosts: Vec::new() }));
        with_machine(MachineConfig { cards: 2, wiring, ..MachineConfig::default() }, |provider, cards| {
            let communicators = connect(cards.iter(), &config().algorithm(Selection::Linear));
            let mut all: Vec<_> = communicators.into_iter().map(|one| Some((gather(&one, 7, 100), one))).collect();
            let start_ps = provider.relax().now_ps();
            while all.iter().any(Option::is_some) {
                assert!(provider.relax().now_ps() - start_ps < communicators::BOUND_PS, "hangs");
                for (rank, slot) in all.iter_mut().enumerate() {
                    let Some((request, communicator)) = slot.take() else { continue };
                    match request.test() {
                        Ok(Test::Pending(request)) => *slot = Some((request, communicator)),
                        Ok(Test::Done(done)) => check(&done, 7, 2, 100),
                        Err(failed) => panic!("frame {first}: rank {rank}: {failed:?}"),
                    }
                }
                provider.relax().relax();
            }
        });
    }
}

/// A packet of a connection that is lost, the last one as well, which nothing follows that would show the loss, is
/// asked for long before the connection's timeout of 8.4 ms. Each link to a card loses one frame, whichever it is.
#[test]
fn a_lost_packet_costs_no_timeout() {
    let mut lost = 0;
    for (selection, bytes) in [(Selection::Linear, 100), (Selection::Linear, 20_000), (Selection::Ring, 20_000)] {
        for (priority, first) in [0, 3].into_iter().flat_map(|priority| (0..6).map(move |first| (priority, first))) {
            let topology = Topology::named("switch-4").expect("a switch");
            let one = Fault::Frames { priority, first, count: 1 };
            let faults =
                FaultScript { seed: 1, faults: FaultEvent::towards_hosts(&topology, one).into_iter().collect() };
            let wiring = Wiring::Network(Box::new(NetworkConfig { topology, faults, hosts: Vec::new() }));
            with_machine(MachineConfig { cards: 4, wiring, ..MachineConfig::default() }, |provider, cards| {
                let communicators = connect(cards.iter(), &config().algorithm(selection).retry_exponent(11));
                let start_ps = provider.relax().now_ps();
                gather_all(provider, &communicators, &[bytes]);
                let took_us = (provider.relax().now_ps() - start_ps) / 1_000_000;
                lost += u32::from(took_us > 25);
                assert!(
                    took_us < 200,
                    "{selection:?}, {bytes} bytes, frame {first} of priority {priority}: {took_us} us"
                );
            });
        }
    }
    assert!(lost > 10, "{lost} runs have waited for a probe");
}

/// A negative acknowledgement that is lost as well costs a connection a restart. Where that has cost more than
/// multicast would, an operation notifies all ranks, and the next 64 go by multicast.
#[test]
fn connections_that_stall_often_are_avoided_by_all_ranks() {
    let machine = Machine { loss_ppm: Some(40_000), seed: Some(4), ..Machine::default() };
    with_machine(machine.config_of(6).expect("a switch"), |provider, cards| {
        let config = config().max_receive_bytes(6 << 18).barrier_timeout(Duration::from_secs(2));
        let communicators = connect(cards.iter(), &config);
        let mut runs = Vec::new();
        let is_direct = |(algorithm, _): &(Algorithm, Duration)| algorithm.is_direct();
        let mut avoided = None;
        while runs.len() < avoided.map_or(40, |first| first + 65) {
            let start_ps = provider.relax().now_ps();
            let ends = gather_all(provider, &communicators, &[256 << 10]);
            let took = Duration::from_nanos((provider.relax().now_ps() - start_ps) / 1000);
            assert!(ends.iter().all(|end| chosen(end) == chosen(&ends[0])));
            runs.push((chosen(&ends[0]), took));
            avoided = avoided.or_else(|| (!is_direct(&runs[runs.len() - 1])).then_some(runs.len() - 1));
            assert!(took < Duration::from_millis(8), "no operation waits for a timeout: {runs:?}");
        }
        let avoided = avoided.expect("slow operations");
        assert!(avoided >= 2, "the operation after a slow one notifies all: {runs:?}");
        assert!(runs[avoided..][..64].iter().all(|(algorithm, _)| *algorithm == Algorithm::Multicast), "{runs:?}");
        assert!(is_direct(&runs[avoided + 64]), "they are tried again: {runs:?}");
    });
}

/// A host that does nothing more, while its card still answers: all others name it within the bound and the time that
/// they take to agree.
#[test]
fn a_rank_that_stops_is_named_within_the_bound() {
    for (selection, stops_after_ps) in [
        (Selection::Linear, 0),
        // Its announcements are on their way; behind them its card would write the rest by itself.
        (Selection::Linear, 1_000_000),
        (Selection::Ring, 0),
        (Selection::Ring, 12_000_000),
        (Selection::Bruck, 6_000_000),
    ] {
        with_cards(5, |provider, cards| {
            let bound = Duration::from_millis(2);
            let communicators = connect(cards.iter(), &config().algorithm(selection).barrier_timeout(bound));
            gather_all(provider, &communicators, &[9000]);
            let mut all: Vec<_> = communicators.iter().map(|one| Under::new(one, gather(one, 1, 200_000))).collect();
            // It is not asked any more.
            let start_ps = provider.relax().now_ps();
            while provider.relax().now_ps() - start_ps < stops_after_ps {
                communicators.iter().for_each(|one| _ = one.progress().expect("progress"));
                provider.relax().relax();
            }
            let dead = all.remove(2);
            drive(provider, &mut all, |_, _| {});
            let took = Duration::from_nanos((provider.relax().now_ps() - start_ps) / 1000);
            let mut failures = 0;
            for one in all {
                let failed = match one.done.expect("over") {
                    Err(failed) => failed,
                    // What this rank needs of rank 2 was on its way before.
                    Ok(done) => {
                        check(&done, 1, 5, 200_000);
                        continue;
                    }
                };
                failures += 1;
                let Error::Failed { failure, .. } = failed.error else { panic!("{}", failed.error) };
                assert_eq!(failure.failed_rank, 2, "{selection:?} after {stops_after_ps} ps: {failure}");
                assert!(failed.receive.is_some() && failed.send.is_some(), "buffers come back");
            }
            assert!(failures >= if stops_after_ps == 0 { 4 } else { 2 }, "{selection:?}: {failures} failures");
            // Twice the bound, and recovery's quarter for what silent ranks' neighbours say.
            assert!(took < 2 * bound + Duration::from_millis(100), "{took:?}");
            drop(dead);
        });
    }
}

#[test]
fn a_cancelled_operation_ends_on_all_ranks_and_gives_buffers_back() {
    with_cards(4, |provider, cards| {
        let communicators = connect(cards.iter(), &config());
        let mut all: Vec<_> = communicators.iter().map(|one| Under::new(one, gather(one, 1, 200_000))).collect();
        let mut cancelled = false;
        drive(provider, &mut all, |since_ps, all| {
            if since_ps > 5_000_000 && !cancelled {
                all[3].communicator.cancel();
                cancelled = true;
            }
        });
        for one in all {
            let failed = one.done.expect("over").expect_err("cancelled");
            let Error::Failed { failure, .. } = failed.error else { panic!("{}", failed.error) };
            assert_eq!((failure.failed_rank, failure.cause), (3, Cause::Cancelled));
            assert!(failed.receive.is_some() && failed.send.is_some(), "buffers come back");
            let card = one.communicator.endpoint();
            let refused = one.communicator.allgather(card.buffer(8).expect("one"), card.buffer(32).expect("one"));
            assert!(matches!(refused.expect_err("of no use").error, Error::Broken { .. }));
        }
    });
}

/// With the protocol on the card the host has nothing to do from post to flag, so that nothing goes over its
/// connections.
#[test]
fn the_protocol_on_the_card_keeps_to_multicast_and_its_barrier() {
    with_cards(2, |provider, cards| {
        let config = config().control(Control::Device);
        let communicators = connect(cards.iter(), &config);
        assert_eq!(communicators[0].footprint().direct_queue_pairs, 0);
        let sizes = [64, 50_000];
        for (ends, algorithm) in
            gather_all(provider, &communicators, &sizes).into_iter().zip([Algorithm::Eager, Algorithm::Multicast])
        {
            assert_eq!(chosen(&ends), algorithm);
        }
    });
}

#[test]
fn connections_are_counted_and_bounded() {
    let pairs = |selection, ranks| {
        let config = Config::default().algorithm(selection);
        config.footprint(ranks, 4096).expect("a footprint").direct_queue_pairs
    };
    assert_eq!(pairs(Selection::Automatic, 1), 0);
    assert_eq!(pairs(Selection::Automatic, 8), 28, "four to each of the others: data and control in each direction");
    assert_eq!(pairs(Selection::Automatic, 64), 252);
    // Ahead and behind by 1, 2, 4 and so on; 64 ahead is 1 behind.
    assert_eq!(pairs(Selection::Automatic, 65), 4 * 12);
    assert!(pairs(Selection::Automatic, 1024) <= 4 * 20);
    assert_eq!(pairs(Selection::Ring, 1024), 8);
    assert_eq!(pairs(Selection::Multicast, 64), 0);
    let later = |control, ranks| {
        let config = Config::default().control(control);
        config.footprint(ranks, 4096).expect("a footprint").pair_queue_pairs
    };
    assert_eq!([1, 8, 1024].map(|ranks| later(Control::Host, ranks)), [0, 28, 4092]);
    assert_eq!(later(Control::Device, 8), 0);
}

/// Ranks of one communicator must be given one choice.
#[test]
fn configurations_that_differ_are_refused() {
    with_cards(2, |_, cards| {
        let make = |rank: u32, algorithm| {
            Pending::new(&cards[rank as usize], rank, 2, config().algorithm(algorithm)).expect("its part is made")
        };
        let pending = [make(0, Selection::Automatic), make(1, Selection::Multicast)];
        let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
        let [first, _second] = pending;
        let text = first.connect(&infos).expect_err("they differ").to_string();
        assert!(text.contains("rank 1 has algorithm multicast, this rank automatic"), "{text}");
    });
}
