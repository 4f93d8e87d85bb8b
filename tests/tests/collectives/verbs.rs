//! Collectives by the hosts' processors over emulated cards without firmware (`Endpoint::verbs`): bytes, losses, flow
//! control, failures.

use std::time::Duration;

use emu_config::Machine;
use emu_machine::Wiring;
use emu_machine::fabric::{Fault, FaultEvent};
use flexcast::{
    Cause, Communicator, Config, Control, DatapathKind, Endpoint, Overheads, Pending, Selection, Transport,
};
use flexcast_lab::sim::params::{HostFault, Operation, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run;
use flexcast_lab::sim::side::Side;
use flexcast_lab::sim::skew::PostSkew;
use flexcast_tests::assert_mentions;
use flexcast_tests::communicators::{Under, drive, gather, gathers};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const PS_PER_US: u64 = 1_000_000;

/// What is tested are datagrams: nothing rides on the barrier.
fn config() -> Config {
    let overheads = Overheads { cutoff_slack: Duration::from_micros(3_000), ..Config::default().overheads };
    Config::default().with_subgroups(1).slots(1024).eager_bytes(0).overheads(overheads)
}

fn params(ranks: u32, operation: Operation, bytes: u64) -> SimParams {
    SimParams {
        ranks,
        operation,
        bytes,
        warm_up: 0,
        datapath: DatapathKind::Verbs,
        config: config(),
        ..SimParams::default()
    }
}

fn simulate_on(machine: Machine, params: &SimParams, faults: impl Fn(&mut Vec<FaultEvent>, &Wiring)) -> Report {
    let mut machine = machine.config_of(params.cards()).expect("a switch");
    let mut events = Vec::new();
    faults(&mut events, &machine.wiring);
    if let Wiring::Network(network) = &mut machine.wiring {
        network.faults.faults.extend(events);
    }
    let provider = emu_provider::emulated(machine).expect("a machine");
    run::run(&provider, None, params, &run::source(params).expect("memory"), &mut |_| {}).expect("the simulation runs")
}

fn simulate(machine: Machine, params: &SimParams) -> Report {
    simulate_on(machine, params, |_, _| ())
}

/// Nothing is lost, for want of a receive neither, and nothing is fetched.
fn is_clean(report: &Report) {
    assert!(report.digest_ok, "{:?}", report.errors);
    let workers = report.workers.as_ref().expect("counters");
    let counts = (report.traffic.rnr_drops, report.traffic.card_drops, report.recovered_chunks, workers.duplicates);
    assert_eq!(counts, (0, 0, 0, 0));
}

#[test]
fn every_rank_has_every_byte_without_any_firmware() {
    for ranks in [1, 2, 3, 8] {
        for operation in [Operation::Broadcast, Operation::Allgather, Operation::Allgatherv] {
            for (bytes, in_place) in [(0, false), (1, false), (63, true), (4096, false), (4097, true), (100_003, false)]
            {
                let side = Side { in_place: in_place && operation != Operation::Broadcast, ..Side::default() };
                let params = SimParams { side, iterations: 2, root: ranks - 1, ..params(ranks, operation, bytes) };
                is_clean(&simulate(Machine::default(), &params));
            }
        }
    }
    for operation in [Operation::Broadcast, Operation::Allgather] {
        is_clean(&simulate(Machine::default(), &params(8, operation, 1 << 20)));
    }
}

#[test]
fn memory_by_its_address_gaps_and_ranks_that_share_a_card_are_served() {
    let side = Side { user_memory: true, gap: Some(100), ..Side::default() };
    is_clean(&simulate(
        Machine::default(),
        &SimParams { side, iterations: 3, ..params(3, Operation::Allgatherv, 50_000) },
    ));
    let shared = SimParams { ranks_per_card: 3, ..params(6, Operation::Allgather, 200_000) };
    is_clean(&simulate(Machine::default(), &shared));
    let side = Side { communicators: 2, split: Some(2), ..Side::default() };
    is_clean(&simulate(Machine::default(), &SimParams { side, ..params(6, Operation::Allgather, 60_000) }));
}

/// Each chunk is one frame. Those that arrived are counted by the ports, those that were fetched by the library:
/// together they are all.
#[test]
fn every_lost_chunk_is_read_once_and_no_other() {
    let mut recovered = 0;
    for seed in 1..=40 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let ranks = random.random_range(2..=8);
        let chunk_bytes = [64, 256, 1024, 4096][random.random_range(0..4)];
        let operation = [Operation::Broadcast, Operation::Allgather][random.random_range(0..2)];
        let bytes = u64::from(chunk_bytes) * random.random_range(1..60) - random.random_range(0..63);
        let mut params = SimParams { iterations: 2, seed, ..params(ranks, operation, bytes) };
        params.root = random.random_range(0..ranks);
        params.config = params.config.chunk_bytes(chunk_bytes).chains(random.random_range(0..=ranks)).retry_exponent(6);
        let loss_ppm = Some(random.random_range(1_000..50_000));
        let report = simulate(Machine { loss_ppm, seed: Some(seed), ..Machine::default() }, &params);
        assert!(report.digest_ok, "seed {seed}: {:?}", report.errors);
        assert_eq!((report.traffic.rnr_drops, report.traffic.card_drops), (0, 0), "seed {seed}");
        let foreign = if operation == Operation::Broadcast { 1 } else { u64::from(ranks) };
        let all_bytes = 2 * u64::from(ranks - 1) * foreign * bytes;
        assert_eq!(report.traffic.host_rx_bytes + report.recovered_bytes, all_bytes, "seed {seed}");
        assert!(report.recovered_chunks <= report.traffic.lost_frames, "seed {seed}: more than were lost");
        recovered += report.recovered_chunks;
    }
    assert!(recovered > 200, "{recovered} chunks");
}

/// Rings of few slots, long blocks, several roots at once, slow processors: a root waits for its receivers, with and
/// without losses.
#[test]
fn no_datagram_is_dropped_for_want_of_a_receive() {
    for (slots, ranks, chains, chunk_ns, bytes) in [
        (16, 2, 0, 0, 700_000),
        (16, 4, 1, 900, 700_000),
        (64, 5, 5, 400, 700_000),
        (1024, 3, 3, 700, 6 << 20),
        // Many short blocks, of which each has room.
        (64, 24, 1, 600, 20_000),
        (128, 24, 4, 600, 40_000),
    ] {
        for loss_ppm in [None, Some(3_000)] {
            let mut params = SimParams { iterations: 2, ..params(ranks, Operation::Allgather, bytes) };
            params.config = params.config.slots(slots).receive_batch(8).chains(chains).retry_exponent(6);
            params.chunk_time = Duration::from_nanos(chunk_ns);
            let report = simulate(Machine { loss_ppm, ..Machine::default() }, &params);
            assert!(report.digest_ok, "{:?}", report.errors);
            assert_eq!(report.traffic.rnr_drops, 0, "{slots} slots, {ranks} ranks, {chains} chains, {chunk_ns} ns");
            assert!(loss_ppm.is_some() || report.recovered_chunks == 0, "{} chunks", report.recovered_chunks);
        }
    }
}

/// The processor's time is the bound where it is longer than the wire's, and costs nothing where it is shorter.
#[test]
fn a_chunk_takes_its_receiver_as_long_as_is_said() {
    let bytes = 4 << 20;
    let time_us = |chunk_ns| {
        let chunk_time = Duration::from_nanos(chunk_ns);
        let report = simulate(Machine::default(), &SimParams { chunk_time, ..params(2, Operation::Broadcast, bytes) });
        is_clean(&report);
        report.virtual_time_us
    };
    let chunks = bytes as f64 / 4096.0;
    let (free, slow) = (time_us(0), time_us(1_000));
    assert!(free < chunks * 0.25, "{free} us of {chunks} chunks");
    assert!(slow >= chunks && slow < chunks + free, "{slow} us, and {free} us without");
    assert!(time_us(20) < free + 10.0);
    let refused = |params: SimParams| params.check().expect_err("it is refused").to_string();
    let long = SimParams { chunk_time: Duration::from_millis(2), ..params(2, Operation::Broadcast, bytes) };
    let text = refused(long.clone());
    assert!(text.contains("--chunk-ns") && text.contains("at most 1000000"), "{text}");
    let text = refused(SimParams { datapath: DatapathKind::Dpa, ..long });
    assert!(text.contains("--chunk-ns") && text.contains("--datapath verbs"), "{text}");
}

/// From the barrier on nothing is multicast that arrives: everything is read from the left neighbour.
#[test]
fn without_multicast_everything_is_read_from_the_neighbour() {
    let params = params(4, Operation::Allgather, 100_000);
    // Data has priority 0, control messages and reads another one.
    let fault = Fault::Frames { priority: 0, first: 0, count: 1 << 30 };
    let report = simulate_on(Machine::default(), &params, |faults, wiring| {
        let Wiring::Network(network) = wiring else { panic!("a network") };
        faults.extend((0..4).map(|host| FaultEvent::from_host(&network.topology, host, fault).expect("a link")));
    });
    assert!(report.digest_ok, "{:?}", report.errors);
    assert_eq!(report.recovered_bytes, 4 * 3 * 100_000);
}

/// Frames that are lost in bursts, doubled, overtaken, late or corrupt: right bytes on all ranks.
#[test]
fn a_bad_network_costs_time_and_no_bytes() {
    let (mut recovered, mut duplicates) = (0, 0);
    for seed in 1..=24 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let ranks = random.random_range(2..=6);
        let mut params = SimParams { iterations: 3, seed, ..params(ranks, Operation::Allgather, 90_000) };
        params.config = params.config.chunk_bytes(1024).slots([64, 1024][random.random_range(0..2)]).retry_exponent(6);
        let ppm = random.random_range(1_000..20_000);
        let faults = [
            Fault::Burst { ppm: ppm / 4, frames: 3 },
            Fault::Duplicate { ppm },
            Fault::Reorder { ppm, behind: random.random_range(1..40) },
            Fault::Delay { extra_ps: 500_000, jitter_ps: 200_000 },
            Fault::Corrupt { ppm: ppm / 4 },
        ];
        let machine = Machine { seed: Some(seed), ..Machine::default() };
        let report = simulate_on(machine, &params, |events, wiring| {
            let Wiring::Network(network) = wiring else { panic!("a network") };
            for host in 0..ranks as usize {
                let event = |fault| FaultEvent::from_host(&network.topology, host, fault).expect("a link");
                events.extend(faults.into_iter().map(event));
            }
        });
        assert!(report.digest_ok, "seed {seed}: {:?}", report.errors);
        assert_eq!(report.traffic.rnr_drops, 0, "seed {seed}");
        recovered += report.recovered_chunks;
        duplicates += report.workers.as_ref().expect("counters").duplicates;
    }
    assert!(recovered > 100 && duplicates > 100, "{recovered} recovered, {duplicates} doubled");
}

#[test]
fn ranks_that_post_late_or_poll_seldom_lose_nothing() {
    for (skew_us, every_us) in [(300, 0), (0, 40), (100, 15)] {
        let mut params = params(4, Operation::Allgather, 300_000);
        params.skew = PostSkew { skew_us };
        params.host_faults.push(HostFault::Slow { rank: 1, every_ps: every_us * PS_PER_US });
        is_clean(&simulate(Machine::default(), &params));
    }
}

/// The same seed gives the same times and messages.
#[test]
fn runs_repeat_themselves() {
    let run = || {
        let machine = Machine { loss_ppm: Some(5_000), seed: Some(7), ..Machine::default() };
        let report = simulate(machine, &SimParams { iterations: 3, ..params(5, Operation::Allgather, 120_000) });
        assert!(report.digest_ok && report.recovered_chunks > 0, "{:?}", report.errors);
        (report.virtual_time_us.to_bits(), report.control, report.recovered_chunks, report.rank_ps.clone())
    };
    assert_eq!(run(), run());
}

/// Runs `body` with so many cards without firmware at a switch.
fn with_cards(count: usize, body: impl FnOnce(&flexio::Provider, &[Endpoint])) {
    let provider = emu_provider::emulated(Machine::default().config_of(count).expect("a switch")).expect("a machine");
    let open = |number| Endpoint::verbs(&provider, &format!("mlx5_{number}")).expect("it opens");
    let cards: Vec<Endpoint> = (0..count).map(open).collect();
    assert!(cards.iter().all(|card| card.datapath() == DatapathKind::Verbs && card.device().is_some()));
    body(&provider, &cards);
}

fn connect(cards: &[Endpoint], config: &Config) -> Vec<Communicator> {
    flexcast_tests::communicators::connect(cards.iter(), config)
}

#[test]
fn a_silent_rank_is_named_by_all_within_the_bound() {
    const BYTES: usize = 400_000;
    let config = config()
        .barrier_timeout(Duration::from_micros(5_000))
        .recovery_timeout(Duration::from_micros(10_000))
        .overheads(Overheads { cutoff_slack: Duration::from_micros(300), ..Config::default().overheads });
    let (mut failed, mut right) = (0, 0);
    // With few slots roots wait for acknowledgements that never come.
    for (ranks, silent, slots) in
        [(2, 1, 1024), (3, 0, 1024), (3, 2, 1024), (5, 3, 1024), (2, 0, 64), (2, 1, 64), (3, 2, 64)]
    {
        let config = config.clone().slots(slots);
        let waits_us = if slots < 1024 { 40_000 } else { 0 };
        let bound_ps = (5_000 + (3 * 1_500 + 10_000) * 5 / 4 + waits_us) * PS_PER_US;
        for after_us in [0, 4, 8, 12, 16, 60] {
            with_cards(ranks, |provider, cards| {
                let communicators = connect(cards, &config);
                let start_ps = provider.relax().now_ps();
                let mut requests: Vec<_> = communicators
                    .iter()
                    .enumerate()
                    .map(|(rank, one)| (rank != silent || after_us > 0).then(|| gather(one, 9, BYTES)))
                    .collect();
                let mut ended = vec![false; ranks];
                while (0..ranks).any(|rank| rank != silent && !ended[rank]) {
                    let since_ps = provider.relax().now_ps() - start_ps;
                    assert!(since_ps <= bound_ps, "{ranks} ranks, {silent} silent after {after_us} us: no end");
                    for (rank, one) in communicators.iter().enumerate() {
                        if rank == silent && since_ps >= after_us * PS_PER_US {
                            continue;
                        }
                        let Some(request) = requests[rank].take() else {
                            one.progress().expect("progress");
                            continue;
                        };
                        match request.test() {
                            Ok(flexcast::Test::Pending(request)) => {
                                requests[rank] = Some(request);
                                continue;
                            }
                            Ok(flexcast::Test::Done(done)) => {
                                right += 1;
                                flexcast_tests::communicators::check(&done, 9, ranks, BYTES);
                            }
                            Err(end) => {
                                let failure = end.report.failure.expect("why");
                                assert!(matches!(failure.cause, Cause::Silent(_)), "{end}");
                                assert_mentions(&end.error, &[&format!("rank {silent} was silent")]);
                                assert!(end.receive.is_some(), "the buffer comes back");
                                failed += 1;
                            }
                        }
                        ended[rank] = true;
                    }
                    provider.relax().relax();
                }
            });
        }
    }
    assert!(failed >= 45, "{failed} named the silent rank, {right} had ended before");
}

#[test]
fn operations_end_on_all_ranks_when_one_cancels_and_buffers_come_back() {
    with_cards(3, |provider, cards| {
        let communicators = connect(cards, &config());
        gathers(provider, &communicators, 4, 50_000);
        let mut all: Vec<_> = communicators.iter().map(|one| Under::new(one, gather(one, 1, 500_000))).collect();
        let mut is_cancelled = false;
        drive(provider, &mut all, |since_ps, all| {
            if since_ps > 20 * PS_PER_US && !std::mem::replace(&mut is_cancelled, true) {
                all[1].communicator.cancel();
            }
        });
        for one in &all {
            let failed = one.done.as_ref().expect("driven to its end").as_ref().expect_err("cancelled");
            assert_mentions(&failed.error, &["rank 1 cancelled the operation"]);
            assert!(failed.send.is_some() && failed.receive.is_some());
        }
    });
}

#[test]
fn several_operations_wait_for_their_turn() {
    with_cards(2, |provider, cards| {
        let communicators = connect(cards, &config().packet_lifetime(Duration::from_micros(50)).psn_bits(Some(30)));
        let mut all: Vec<_> = communicators
            .iter()
            .flat_map(|one| (0..12).map(move |seed| Under::new(one, gather(one, seed, 9_000))))
            .collect();
        drive(provider, &mut all, |_, _| ());
        for (number, one) in all.iter().enumerate() {
            let done = one.done.as_ref().expect("driven to its end").as_ref().expect("success");
            flexcast_tests::communicators::check(done, number as u64 % 12, 2, 9_000);
        }
    });
}

#[test]
fn what_this_datapath_has_not_is_refused_with_what_there_is() {
    with_cards(2, |_, cards| {
        let refused =
            |config: Config| Pending::new(&cards[0], 0, 2, config).map(drop).expect_err("refused").to_string();
        let one =
            Pending::new(&cards[0], 0, 1, Config::default().with_subgroups(5).slots(64)).expect("its part is made");
        let infos = [one.connect_info()];
        let one = one.connect(&infos).expect("alone");
        assert_eq!((one.config().subgroups, one.config().slots, one.footprint().threads), (1, 512, 0), "of all five");
        for (config, words) in [
            (config().control(Control::Device), ["control is device", "host with the datapath verbs"]),
            (config().transport(Transport::UcUnicast), ["transport is uc-unicast", "ud with"]),
            (config().algorithm(Selection::Ring), ["algorithm is ring", "automatic or multicast"]),
            (config().pacing_gbit_per_s(Some(10)), ["pacing_gbit_per_s is 10", "lower chains"]),
            (config().slots(100), ["slots is 100", "power of two"]),
        ] {
            let text = refused(config);
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        let parts: Vec<_> = [config(), config().eager_bytes(64)]
            .into_iter()
            .zip(cards)
            .zip(0..)
            .map(|((config, card), rank)| Pending::new(card, rank, 2, config).expect("its part is made"))
            .collect();
        let infos: Vec<_> = parts.iter().map(Pending::connect_info).collect();
        let error = parts.into_iter().next().expect("two").connect(&infos).expect_err("they differ").to_string();
        assert!(error.contains("rank 1 has eager_bytes 64, this rank 0"), "{error}");
    });
}
