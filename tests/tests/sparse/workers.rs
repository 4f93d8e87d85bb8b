//! Sparse AllReduce over reliable connections of emulated cards: workers and aggregators on separate cards,
//! messages counted against the closed form, and every byte checked against one core's loop over the contributions.

mod fixed_point;
mod gpu;
mod staged;

use emu_machine::fabric::{Fault, FaultEvent};
use emu_machine::with_world;
use emu_provider::emulated;
use flexcast::p2p::sparse::{Aggregator, Arrays, Call, Config, Error, Order, Party, Settings, Statistics, Worker};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast_lab::sim;
use flexcast_lab::sim::params::Operation;
use flexcast_lab::sim::sparse::{AggregatorsText, SparseArgs};
use flexcast_lab::sim::spec::{CommunicatorArgs, DatapathName, SimSpec};
use flexcast_lab::sparse::PatternName;
use flexcast_tests::sparse_world::{MOST_POLLS, OnDevices, World, contributions, on};
use flexio::{Bound, ProtectionDomain, Retry};

const SUM: Reduction = Reduction::of(Operator::Sum, DataType::I32).unwrap();
/// Messages of each worker by the closed form: of each shard one for the votes, and one for every d blocks that some
/// worker has.
fn messages(settings: &Settings, call: &Call, contributions: &[Vec<u8>]) -> u64 {
    let d = settings.parameters().blocks_per_message() as usize;
    let is_used = |range: std::ops::Range<u64>| {
        let range = range.start as usize..range.end as usize;
        contributions.iter().any(|array| array[range.clone()].iter().any(|byte| *byte != 0))
    };
    let shards = settings.shards(call).expect("shards");
    let of = |shard: flexcast_proto::sparse::Shard| {
        let used = (0..shard.blocks()).filter(|block| is_used(shard.block(*block))).count();
        used.div_ceil(d) as u64 + 1
    };
    shards.iter().map(of).sum()
}

#[test]
fn every_size_pattern_and_number_of_workers() {
    // Workers, aggregators, shards of each, bytes of a block, blocks per message.
    for (workers, aggregators, each, block_bytes, blocks) in
        [(1, 1, 1, 256, 1), (2, 1, 2, 256, 16), (3, 2, 1, 512, 3), (4, 1, 1, 1024, 32), (6, 3, 2, 256, 5)]
    {
        let settings = Settings::new(workers, aggregators, each, block_bytes, blocks).expect("settings");
        let mut world = World::new(settings, Vec::new(), Config::default());
        let mut expected = 0;
        for (elements, zeros) in
            [(0, 0), (1, 0), (127, 50), (1009, 100), (4099, 0), (4096, 50), (7919, 90), (20_011, 97), (104, 0)]
        {
            let arrays = contributions(workers, 4 * elements, (block_bytes, zeros), 7 + elements as u64);
            let call = world.call(4 * elements, SUM);
            let before = world.statistics();
            world.gets(call, &arrays, elements % 2 == 0);
            if elements > 0 {
                expected = messages(&settings, &call, &arrays);
                let (ours, theirs) = world.statistics();
                for (now, before) in ours.iter().zip(&before.0) {
                    let count =
                        (now.sent_messages - before.sent_messages, now.received_messages - before.received_messages);
                    assert_eq!(count, (expected, expected), "{workers} {aggregators} {elements} {zeros}");
                }
                let of = |all: &[Statistics], what: fn(&Statistics) -> u64| all.iter().map(what).sum::<u64>();
                let answers = of(&theirs, |one| one.sent_messages) - of(&before.1, |one| one.sent_messages);
                assert_eq!(answers, u64::from(workers) * expected);
                assert_eq!(of(&ours, |one| one.sent_bytes), of(&theirs, |one| one.received_bytes));
                assert_eq!(of(&theirs, |one| one.sent_bytes), of(&ours, |one| one.received_bytes));
            }
        }
        assert!(expected > 0);
        // A ring of 2d blocks for each shard of a worker, n + 2 spots for each of an aggregator.
        let (ours, theirs) = world.statistics();
        let ring = u64::from(2 * blocks * block_bytes) * u64::from(aggregators * each);
        assert!(ours.iter().all(|one| one.block_memory_bytes == ring && one.memory_bytes < ring + ring / 20));
        let spots = u64::from(workers + 2) * u64::from(blocks * (block_bytes + 4)) * u64::from(each);
        assert!(theirs.iter().all(|one| one.memory_bytes == spots));
    }
}

/// Sums, minimum and maximum of three workers' arrays of all kinds of elements.
fn every_type_and_operator(world: &mut World) {
    for data_type in
        [DataType::I32, DataType::I64, DataType::F32, DataType::F64, DataType::F16, DataType::BF16, DataType::U8]
    {
        for operator in [Operator::Sum, Operator::Min, Operator::Max] {
            let reduction = Reduction::new(operator, data_type).expect("the type has it");
            let bytes = 1001 * reduction.element_bytes() as usize;
            // Minimum and maximum take a block that is zero for one that is not there: dense ones are the whole truth.
            let zeros = if operator == Operator::Sum { 60 } else { 0 };
            let arrays = contributions(3, bytes, (256, zeros), 11);
            // In the order of workers, as the reference loop adds.
            world.gets(Call { order: Order::Rank, ..world.call(bytes, reduction) }, &arrays, false);
        }
    }
}

#[test]
fn every_type_and_operator_that_zeros_do_not_change() {
    let settings = Settings::new(3, 2, 1, 256, 4).expect("settings");
    every_type_and_operator(&mut World::new(settings, Vec::new(), Config::default()));
}

#[test]
fn the_order_of_ranks_gives_the_same_bits_whatever_is_slow() {
    let settings = Settings::new(4, 1, 2, 256, 4).expect("settings");
    let sum = Reduction::new(Operator::Sum, DataType::F32).expect("the type has it");
    let array = |worker: i32| (0..3000).flat_map(|at| (1.0 / (1 + at * 7 + worker * 3) as f32).to_ne_bytes()).collect();
    let arrays: Vec<Vec<u8>> = (0..4).map(array).collect();
    // Links that lose make other workers late.
    for (order, ppm) in [(Order::Rank, 0), (Order::Rank, 20_000)] {
        let faults = vec![FaultEvent::on("*", Fault::Drop { ppm })];
        let mut world = World::new(
            settings,
            if ppm > 0 { faults } else { Vec::new() },
            Config { bound: Config::default().bound, ..hasty() },
        );
        world.gets(Call { order, ..world.call(12_000, sum) }, &arrays, true);
    }
}

#[test]
fn losses_cost_time_and_no_bytes() {
    let faults = [Fault::Drop { ppm: 20_000 }, Fault::Corrupt { ppm: 10_000 }, Fault::Duplicate { ppm: 10_000 }];
    let faults = faults.map(|fault| FaultEvent::on("*", fault)).to_vec();
    let settings = Settings::new(5, 2, 2, 1024, 8).expect("settings");
    let mut world = World::new(settings, faults, Config { bound: Config::default().bound, ..hasty() });
    for (seed, zeros) in [(1, 0), (2, 50), (3, 90)] {
        let arrays = contributions(5, 100_003 * 4, (1024, zeros), seed);
        let call = world.call(100_003 * 4, SUM);
        let before = world.statistics().0[0];
        world.gets(call, &arrays, seed == 2);
        let now = world.statistics().0[0];
        assert_eq!(now.sent_messages - before.sent_messages, messages(&settings, &call, &arrays));
    }
    let lost = with_world(|world| world.network().map(|network| network.totals().switches.lost_frames)).unwrap();
    assert!(lost > Some(0), "something was lost");
}

/// With the cards' timeout of 8.4 ms alone each message whose last packet is lost takes that long: 59 ms in all here. A
/// probe brings it at once, unless what the peer's card says of the gap is lost as well.
#[test]
fn a_lost_last_packet_is_found_by_a_probe() {
    let settings = Settings::new(4, 2, 1, 1024, 8).expect("settings");
    let faults = vec![FaultEvent::on("*", Fault::Drop { ppm: 10_000 })];
    let mut world = World::new(settings, faults, Config::default());
    let arrays = contributions(4, 600_000, (1024, 0), 9);
    let start_ps = world.provider.relax().now_ps();
    world.gets(world.call(600_000, SUM), &arrays, false);
    let took_us = (world.provider.relax().now_ps() - start_ps) / 1_000_000;
    let lost = with_world(|world| world.network().map(|network| network.totals().switches.lost_frames)).unwrap();
    assert!(lost > Some(10) && took_us < 2 * 8_400, "{lost:?} frames lost, {took_us} us");
}

/// Connections that soon repeat what has not been acknowledged, and soon give a peer up: polls cost the emulator time.
fn hasty() -> Config {
    Config { bound: Bound::millis(1), retry: Retry { timeout_exponent: 4, count: 7 }, ..Config::default() }
}

#[test]
fn a_worker_that_never_calls_is_named_by_aggregators_and_they_notify_the_others() {
    let settings = Settings::new(3, 2, 1, 256, 4).expect("settings");
    // Workers wait longer than aggregators, so that they learn who it is.
    let mut world = World::new(settings, Vec::new(), hasty());
    for worker in &mut world.workers {
        worker.set_bound(Bound::millis(3));
    }
    let arrays = contributions(3, 40_000, (256, 0), 3);
    let call = world.call(40_000, SUM);
    let ends = world.end(call, &arrays, false, Some(Party::Worker(1)));
    for end in ends.aggregators {
        assert!(matches!(end, Err(Error::Timeout { party: Party::Worker(1), .. })), "{end:?}");
    }
    for own in [0, 2] {
        let end = &ends.workers[own];
        assert!(matches!(end, Err(Error::Ended { worker: Some(1), .. })), "worker {own}: {end:?}");
    }
    assert!(matches!(world.workers[0].begin(call), Err(Error::Failed)));
    assert!(matches!(world.aggregators[0].begin(call), Err(Error::Failed)));
}

#[test]
fn an_aggregator_that_never_calls_is_named_by_workers() {
    let settings = Settings::new(3, 2, 1, 256, 4).expect("settings");
    let mut world = World::new(settings, Vec::new(), hasty());
    let arrays = contributions(3, 40_000, (256, 0), 3);
    let call = world.call(40_000, SUM);
    let ends = world.end(call, &arrays, false, Some(Party::Aggregator(1)));
    for end in ends.workers {
        assert!(matches!(end, Err(Error::Timeout { party: Party::Aggregator(1), .. })), "{end:?}");
    }
}

#[test]
fn a_dead_link_ends_everybody_with_the_name_of_who_is_behind_it() {
    let settings = Settings::new(3, 1, 1, 1024, 4).expect("settings");
    let down = |host: &str| vec![FaultEvent { at_ps: 60_000_000, ..FaultEvent::on(host, Fault::Down) }];
    let config = Config { bound: Bound::millis(3), ..hasty() };
    let arrays = contributions(3, 3_000_000, (1024, 0), 3);
    // Of worker 1.
    let mut world = World::new(settings, down("h1-switch"), config);
    let call = world.call(3_000_000, SUM);
    let ends = world.end(call, &arrays, false, None);
    let names = |end: &Result<(), Error>| match end {
        Err(Error::Connection { party, .. } | Error::Timeout { party, .. }) => Some(*party),
        Err(Error::Ended { worker: Some(worker), .. }) => Some(Party::Worker(*worker)),
        _ => None,
    };
    assert_eq!(names(&ends.aggregators[0]), Some(Party::Worker(1)), "{:?}", ends.aggregators);
    for own in [0, 2] {
        assert_eq!(names(&ends.workers[own]), Some(Party::Worker(1)), "{:?}", ends.workers);
    }
    assert_eq!(names(&ends.workers[1]), Some(Party::Aggregator(0)), "{:?}", ends.workers);
    // Of the aggregator.
    let mut world = World::new(settings, down("h3-switch"), config);
    let ends = world.end(call, &arrays, false, None);
    for end in &ends.workers {
        assert_eq!(names(end), Some(Party::Aggregator(0)), "{end:?}");
    }
}

/// Connection information of a former start differs in its nonce, if the card gives queue pairs the same numbers again.
#[test]
fn a_worker_of_a_former_start_is_not_taken_for_one_of_this() {
    const NONCE_AT: usize = 72;
    let settings = Settings::new(3, 1, 1, 256, 4).expect("settings");
    let former = |announced: &mut [Vec<u8>]| announced[1][NONCE_AT] ^= 1;
    let mut world = World::with_altered_infos(settings, Vec::new(), hasty(), OnDevices::default(), former);
    let arrays = contributions(3, 40_000, (256, 0), 3);
    let ends = world.end(world.call(40_000, SUM), &arrays, false, None);
    let named = |end: &Result<(), Error>, party| matches!(end, Err(Error::Connection { party: who, .. } | Error::Timeout { party: who, .. }) if *who == party);
    assert!(named(&ends.aggregators[0], Party::Worker(1)), "{:?}", ends.aggregators);
    assert!(named(&ends.workers[1], Party::Aggregator(0)), "{:?}", ends.workers);
    assert!(ends.workers.iter().all(Result::is_err), "{:?}", ends.workers);
}

#[test]
fn those_who_call_something_else_are_found() {
    let settings = Settings::new(2, 1, 1, 256, 4).expect("settings");
    let mut world = World::new(settings, Vec::new(), hasty());
    let arrays = contributions(2, 4096, (256, 0), 3);
    // An aggregator of a shorter array gets votes for blocks that it does not have.
    let (long, short) = (world.call(4096, SUM), world.call(1024, SUM));
    world.aggregators[0].begin(short).expect("begun");
    world.workers.iter_mut().for_each(|worker| worker.begin(long).expect("begun"));
    let mut receives = arrays.clone();
    let mut found = None;
    for _ in 0..MOST_POLLS {
        for (worker, receive) in world.workers.iter_mut().zip(&mut receives) {
            let _ = worker.progress(&mut Arrays { send: None, receive });
        }
        if let Err(error) = world.aggregators[0].progress() {
            found = Some(error);
            break;
        }
        world.provider.relax().relax();
    }
    let text = found.expect("an error").to_string();
    assert!(text.contains("worker") && text.contains("shard has 4 blocks: give all ranks the same array"), "{text}");
    // Settings that differ are found when connections are made.
    let fixed = settings.with_call(long).expect("a call");
    let provider = emulated(on(2, Vec::new())).expect("a machine");
    let domain = ProtectionDomain::new(&provider.open("mlx5_0").expect("a card")).expect("a domain");
    let (pending, _) = Worker::prepare(&domain, fixed, 0, Config::default()).expect("prepared");
    let shorter = settings.with_call(short).expect("a call");
    let (_, theirs) = Aggregator::prepare(&domain, shorter, 0, Config::default()).expect("prepared");
    let text = pending.connect(&[theirs]).expect_err("refused").to_string();
    assert!(text.contains("aggregator 0") && text.contains("bytes of the array: 1024 there, but 4096 here"), "{text}");
}

/// What `flexcast sim --op sparse-allreduce` runs.
#[test]
fn simulations_have_right_sums_and_messages() {
    let parsed = |text: &str| text.parse::<AggregatorsText>().expect("aggregators");
    for (given, pattern, sparsity, bytes, in_rank_order, processor_times) in [
        ("ranks", PatternName::Identical, 0.9, 400_004, false, false),
        ("ranks", PatternName::Powerlaw, 0.99, 400_004, true, false),
        ("cpu:2,arm:1", PatternName::Powerlaw, 0.9, 400_004, false, true),
        ("arm:1", PatternName::Independent, 0.0, 100_000, false, true),
        ("cpu:1", PatternName::Overlapping, 1.0, 100_000, true, false),
        ("cpu:1", PatternName::Identical, 0.5, 0, false, false),
    ] {
        let sparse = SparseArgs {
            workers: Some(4),
            aggregators: Some(parsed(given)),
            sparsity: Some(sparsity),
            pattern: Some(pattern),
            in_rank_order,
            processor_times,
            ..SparseArgs::default()
        };
        let datapath = if given == "ranks" { DatapathName::Verbs } else { DatapathName::Dpa };
        let communicator = CommunicatorArgs { datapath, ..CommunicatorArgs::default() };
        let op = Operation::SparseAllreduce;
        let spec = SimSpec { op, bytes, iterations: 2, sparse, communicator, ..SimSpec::default() };
        let (params, machine) = spec.sparse().expect("parameters");
        let provider = emulated(machine.config_of(params.cards()).expect("a switch")).expect("a machine");
        let report = sim::sparse::run(&provider, None, &params, &mut |_| {}).expect("a run");
        assert!(report.is_right() && report.operations == 2, "{report}");
        let has_sent = report.sent_bytes > 0.0 && report.virtual_time_us > 0.0;
        assert_eq!(has_sent, bytes > 0, "{report}");
        if processor_times {
            // A message of one block or more takes an aggregator on Arm cores 400 ns and 204 ns a block.
            assert!(report.virtual_time_us > 10.0, "{report}");
        }
    }
}
