//! Sparse AllReduce of communicators whose cards' DPAs add (image `sparse`, the real ELF), by either datapath over
//! emulated RDMA cards: every byte checked against one core's loop over the contributions.

use std::time::Duration;

mod floats;

use emu_config::Machine;
use flexcast::p2p::reference;
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Aggregation, Allreduce, Cause, Communicator, Config, DatapathKind, Endpoint, Error, Firmware, Pending, Request,
    SparseOptions, UdpOptions,
};
use flexcast_tests::card_ranks::{self, CardRanks, filled};
use flexcast_tests::sparse_world::contributions;
use flexcast_tests::{assert_mentions, image_bytes};
use flexio::Provider;

const OPTIONS: SparseOptions = SparseOptions { block_bytes: 256, blocks_per_message: 8 };

fn config() -> Config {
    card_ranks::config().sparse_aggregation(Aggregation::Dpa)
}

fn reduction(operator: Operator, data_type: DataType) -> Reduction {
    Reduction::new(operator, data_type).expect("the type has it")
}

/// The cards of a machine, with image `sparse` on their DPAs.
fn cards(datapath: DatapathKind, machine: &Machine, ranks: u32) -> (Provider, Vec<Endpoint>) {
    let (provider, cards) = card_ranks::cards(datapath, machine, ranks);
    let elf = image_bytes("sparse");
    let start =
        |card: &Endpoint| card.start_aggregators(Firmware { name: "sparse", elf: &elf }).expect("the image runs");
    cards.iter().for_each(start);
    (provider, cards)
}

fn world(datapath: DatapathKind, machine: &Machine, ranks: u32, config: &Config) -> CardRanks {
    CardRanks::on(cards(datapath, machine, ranks), config)
}

fn post(one: &Communicator, reduction: Reduction, options: SparseOptions, array: &[u8]) -> Request {
    one.post(Allreduce::new(reduction).sparse(options).in_place(filled(one, array))).expect("accepted")
}

/// A call that goes well on all ranks, with a result that is checked; who has added.
fn gets(world: &CardRanks, bytes: usize, zeros: u64, reduction: Reduction, options: SparseOptions) -> Aggregation {
    let ranks = world.ranks();
    let arrays = contributions(ranks, bytes, (options.block_bytes, zeros), 1 + bytes as u64);
    let expected = reference(reduction, &arrays);
    let ends = world.call(|one, rank| Ok(post(one, reduction, options, &arrays[rank as usize])));
    let added = ends.iter().enumerate().map(|(rank, done)| {
        let got = done.receive.to_vec().expect("read");
        assert!(got == expected, "rank {rank} of {ranks}: {bytes} bytes, {zeros} % zeros, {reduction}, {options:?}");
        done.report.decision.aggregation().expect("a sparse AllReduce")
    });
    let added: Vec<Aggregation> = added.collect();
    assert!(added.iter().all(|one| *one == added[0]), "{added:?}");
    added[0]
}

#[test]
fn integers_are_added_by_the_dpa_and_all_else_by_processors() {
    let sum = |data_type| reduction(Operator::Sum, data_type);
    let (i32, i64, f32) = (sum(DataType::I32), sum(DataType::I64), sum(DataType::F32));
    let odd = SparseOptions { block_bytes: 320, ..OPTIONS };
    for (datapath, ranks) in [(DatapathKind::Dpa, 3), (DatapathKind::Verbs, 1), (DatapathKind::Verbs, 2)] {
        // Floating-point numbers in the order of ranks have the bits of a loop.
        let world = world(datapath, &Machine::default(), ranks, &config().reproducible(true));
        // Longer arrays have more shards, and other options other memory: connections are made anew, and both kinds
        // stay.
        for (elements, zeros, reduction, options, by) in [
            (1009, 0, i32, OPTIONS, Aggregation::Dpa),
            (1009, 60, f32, OPTIONS, Aggregation::Host),
            (0, 0, i32, OPTIONS, Aggregation::Dpa),
            (1, 0, i64, OPTIONS, Aggregation::Dpa),
            (9011, 80, i64, OPTIONS, Aggregation::Dpa),
            (509, 30, sum(DataType::U32), OPTIONS, Aggregation::Dpa),
            (2003, 100, sum(DataType::U64), OPTIONS, Aggregation::Dpa),
            (2003, 30, f32, OPTIONS, Aggregation::Host),
            (509, 0, i32, odd, Aggregation::Host),
            (4001, 10, i32, OPTIONS, Aggregation::Dpa),
            (509, 0, reduction(Operator::Max, DataType::I32), OPTIONS, Aggregation::Host),
        ] {
            let bytes = elements * reduction.element_bytes() as usize;
            assert_eq!(gets(&world, bytes, zeros, reduction, options), by, "{reduction}, {options:?}");
        }
    }
    // Spots that do not fit the cache.
    let world = world(DatapathKind::Verbs, &Machine::default(), 2, &config().cache_bytes(8000));
    assert_eq!(gets(&world, 4000, 0, i32, OPTIONS), Aggregation::Host);
    assert_eq!(gets(&world, 4000, 0, i32, SparseOptions { blocks_per_message: 1, ..OPTIONS }), Aggregation::Dpa);
}

/// The others' sums come from a rank's DPA when its host has its own already, and leaves. Without its waiting, each of
/// these seeds fails.
#[test]
fn a_rank_may_leave_as_soon_as_it_has_its_sums() {
    for seed in [2, 4, 7] {
        let machine = Machine { loss_ppm: Some(50_000), seed: Some(seed), ..Machine::default() };
        let config = config().retry_exponent(4).barrier_timeout(Duration::from_millis(500));
        let world = world(DatapathKind::Verbs, &machine, 3, &config);
        let sum = reduction(Operator::Sum, DataType::I32);
        let arrays = contributions(3, 4 * 9001, (256, 20), 5);
        let expected = reference(sum, &arrays);
        let call = |one: &Communicator, rank: u32| post(one, sum, OPTIONS, &arrays[rank as usize]);
        for end in world.leaving(call, || {}) {
            assert!(end.expect("success").receive.to_vec().expect("read") == expected);
        }
    }
}

#[test]
fn a_rank_that_goes_in_the_middle_is_named_by_all() {
    for (datapath, is_silent) in [(DatapathKind::Verbs, false), (DatapathKind::Dpa, false), (DatapathKind::Verbs, true)]
    {
        let config = config().retry_exponent(3).barrier_timeout(Duration::from_micros(50_000));
        let world = world(datapath, &Machine::default(), 3, &config);
        let sum = reduction(Operator::Sum, DataType::I64);
        gets(&world, 4096, 0, sum, OPTIONS);
        let arrays = contributions(3, 1 << 20, (256, 10), 5);
        let call = |one: &Communicator, rank: u32| post(one, sum, OPTIONS, &arrays[rank as usize]);
        for failed in world.without_the_last(call, 60_000_000, is_silent) {
            let failure = failed.report.failure.expect("reported");
            assert_eq!(failure.failed_rank, 2, "{datapath}, {is_silent}: {failed}");
            assert!(!is_silent || matches!(failure.cause, Cause::Silent(_)), "{failed}");
            assert!(failed.receive.is_some(), "the buffer comes back");
            assert_eq!(failed.report.decision.aggregation(), Some(Aggregation::Dpa));
        }
    }
}

#[test]
fn settings_that_cannot_be_are_refused_with_what_to_do() {
    let (provider, cards) = cards(DatapathKind::Verbs, &Machine::default(), 2);
    let plain = Endpoint::verbs(&provider, "mlx5_0").expect("the card opens");
    let error = Pending::new(&plain, 0, 2, config()).expect_err("no image");
    assert_mentions(
        &error,
        &["sparse.aggregation is dpa", "image `sparse`", "start_aggregators", "FLEXCAST_SPARSE_FIRMWARE"],
    );
    // What the DPA needs of it is alike on all ranks, or all fail.
    for (other, words) in [
        (config().sparse_aggregation(Aggregation::Host), ["sparse.aggregation host", "this rank dpa"]),
        (config().cache_bytes(5000), ["cache_bytes for sparse.aggregation 5000", "this rank 1500000"]),
    ] {
        let pending = [config(), other].map(Some);
        let pending = (0..)
            .zip(&cards)
            .zip(pending)
            .map(|((rank, card), config)| Pending::new(card, rank, 2, config.expect("one")).expect("its part is made"));
        let mut pending: Vec<Pending> = pending.collect();
        let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
        let error = pending.remove(0).connect(&infos).expect_err("they differ");
        assert!(matches!(error, Error::Peer { rank: 1, .. }), "{error}");
        assert_mentions(&error, &words);
    }
    let interface = Endpoint::udp(&UdpOptions::default().interface("lo")).expect("loopback");
    let error = interface.start_aggregators(Firmware { name: "sparse", elf: &[] }).expect_err("no DPA");
    assert_mentions(&error, &["no DPA", "flexcast-aggregator"]);
    let error = Pending::new(&interface, 0, 1, config()).expect_err("no DPA");
    assert_mentions(
        &error,
        &["sparse.aggregation is dpa", "datapath udp, which has no DPA", "FLEXCAST_SPARSE_AGGREGATION"],
    );
    // Another image than `sparse`.
    let elf = image_bytes("allgather");
    assert!(plain.start_aggregators(Firmware { name: "none", elf: &elf[..100] }).is_err());
}
