//! Sparse AllReduce of communicators whose cards' DPAs add (image `sparse`, the real ELF), by either datapath over emulated RDMA cards: every byte checked against one core's loop over
//! the contributions.

use std::time::Duration;

use emu_config::Machine;
use flexcast::p2p::reference;
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Aggregation, Buffer, Card, Cause, Communicator, Config, DatapathKind, Done, Error, Failed, Firmware, Pending,
    Request, Selection, SparseOptions, Test, UdpOptions, VerbsOptions,
};
use flexcast_tests::communicators::{self, connect, ended};
use flexcast_tests::sparse_world::contributions;
use flexcast_tests::{image_bytes, told};
use flexio::Provider;

const OPTIONS: SparseOptions = SparseOptions { block_bytes: 256, blocks_per_message: 8 };

fn config() -> Config {
    let config = communicators::config().with_subgroups(1).slots(64).eager_bytes(16 << 10);
    let config = config.algorithm(Selection::Automatic).recovery_timeout(Duration::from_micros(10_000));
    config.sparse_aggregation(Aggregation::Dpa)
}

fn reduction(operator: Operator, data_type: DataType) -> Reduction {
    Reduction::new(operator, data_type).expect("the type has it")
}

/// The cards of a machine, with image `sparse` on their DPAs.
fn cards(datapath: DatapathKind, machine: &Machine, ranks: u32) -> (Provider, Vec<Card>) {
    let provider = emu_provider::emulated(machine.config_of(ranks as usize).expect("a switch")).expect("a machine");
    let (allgather, sparse) = (image_bytes("allgather"), image_bytes("sparse"));
    let open = |number| {
        let (name, firmware) = (format!("mlx5_{number}"), Firmware { name: "allgather", elf: &allgather });
        let card = match datapath {
            DatapathKind::Dpa => Card::open(&provider, &name, firmware),
            _ => Card::verbs(&provider, &name, &VerbsOptions::default()),
        };
        let card = card.expect("the card opens");
        card.start_aggregators(Firmware { name: "sparse", elf: &sparse }).expect("the image runs");
        card
    };
    let cards = (0..ranks).map(open).collect();
    (provider, cards)
}

struct World {
    provider: Provider,
    all: Vec<Communicator>,
}

impl World {
    fn new(datapath: DatapathKind, machine: &Machine, ranks: u32, config: &Config) -> Self {
        let (provider, cards) = cards(datapath, machine, ranks);
        let all = connect(cards.iter(), config);
        Self { provider, all }
    }

    fn post(&self, one: &Communicator, reduction: Reduction, options: SparseOptions, array: &[u8]) -> Request {
        one.sparse_all_reduce_in_place(filled(one, array), reduction, options).expect("accepted")
    }

    /// A call that goes well on all ranks, with a result that is checked; who has added.
    fn gets(&self, bytes: usize, zeros: u64, reduction: Reduction, options: SparseOptions) -> Aggregation {
        let ranks = self.all.len() as u32;
        let arrays = contributions(ranks, bytes, (options.block_bytes, zeros), 1 + bytes as u64);
        let posted = self.all.iter().zip(&arrays).map(|(one, array)| (one, self.post(one, reduction, options, array)));
        let expected = reference(reduction, &arrays);
        let ends: Vec<Result<Done, Box<Failed>>> = ended(&self.provider, posted.collect::<Vec<_>>());
        let added = ends.into_iter().enumerate().map(|(rank, end)| {
            let done = end.expect("success");
            let got = done.receive.to_vec().expect("read");
            assert!(
                got == expected,
                "rank {rank} of {ranks}: {bytes} bytes, {zeros} % zeros, {reduction}, {options:?}"
            );
            done.report.decision.aggregation().expect("a sparse AllReduce")
        });
        let added: Vec<Aggregation> = added.collect();
        assert!(added.iter().all(|one| *one == added[0]), "{added:?}");
        added[0]
    }
}

fn filled(communicator: &Communicator, bytes: &[u8]) -> Buffer {
    let mut buffer = communicator.card().buffer(bytes.len()).expect("a buffer");
    buffer.write(0, bytes).expect("written");
    buffer
}

#[test]
fn integers_are_added_by_the_dpa_and_all_else_by_processors() {
    let sum = |data_type| reduction(Operator::Sum, data_type);
    let (i32, i64, f32) = (sum(DataType::I32), sum(DataType::I64), sum(DataType::F32));
    let odd = SparseOptions { block_bytes: 320, ..OPTIONS };
    for (datapath, ranks) in [(DatapathKind::Dpa, 3), (DatapathKind::Verbs, 1), (DatapathKind::Verbs, 2)] {
        // Floating-point numbers in the order of ranks have the bits of a loop.
        let world = World::new(datapath, &Machine::default(), ranks, &config().reproducible(true));
        // Longer arrays have more shards, and other options other memory: connections are made anew, and both kinds stay.
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
            assert_eq!(world.gets(bytes, zeros, reduction, options), by, "{reduction}, {options:?}");
        }
    }
    // Spots that do not fit the cache.
    let world = World::new(DatapathKind::Verbs, &Machine::default(), 2, &config().cache_bytes(8000));
    assert_eq!(world.gets(4000, 0, i32, OPTIONS), Aggregation::Host);
    assert_eq!(world.gets(4000, 0, i32, SparseOptions { blocks_per_message: 1, ..OPTIONS }), Aggregation::Dpa);
}

/// The others' sums come from a rank's DPA when its host has its own already, and leaves. Without its waiting, each of these seeds fails.
#[test]
fn a_rank_may_leave_as_soon_as_it_has_its_sums() {
    for seed in [2, 4, 7] {
        let machine = Machine { loss_ppm: Some(50_000), seed: Some(seed), ..Machine::default() };
        let config = config().retry_exponent(4).barrier_timeout(Duration::from_millis(500));
        let mut world = World::new(DatapathKind::Verbs, &machine, 3, &config);
        let sum = reduction(Operator::Sum, DataType::I32);
        let arrays = contributions(3, 4 * 9001, (256, 20), 5);
        let expected = reference(sum, &arrays);
        let posted = world.all.iter().zip(&arrays).map(|(one, array)| Some(world.post(one, sum, OPTIONS, array)));
        let mut posted: Vec<Option<Request>> = posted.collect();
        let start_ps = world.provider.relax().now_ps();
        while !world.all.is_empty() {
            assert!(world.provider.relax().now_ps() - start_ps < communicators::BOUND_PS, "hangs");
            let mut at = 0;
            while let Some(one) = world.all.get(at) {
                match one.test(posted[at].take().expect("pending")).expect("success") {
                    Test::Pending(request) => {
                        posted[at] = Some(request);
                        at += 1;
                    }
                    Test::Done(done) => {
                        assert!(done.receive.to_vec().expect("read") == expected);
                        drop((world.all.remove(at), posted.remove(at)));
                    }
                }
            }
            world.provider.relax().relax();
        }
    }
}

/// How rank 2 goes: with its queue pairs, or so that its process does nothing any more.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Going {
    Away,
    Silent,
}

#[test]
fn a_rank_that_goes_in_the_middle_is_named_by_all() {
    for (datapath, going, after_ps) in [
        (DatapathKind::Verbs, Going::Away, 60_000_000),
        (DatapathKind::Dpa, Going::Away, 60_000_000),
        (DatapathKind::Verbs, Going::Silent, 60_000_000),
    ] {
        let config = config().retry_exponent(3).barrier_timeout(Duration::from_micros(50_000));
        let mut world = World::new(datapath, &Machine::default(), 3, &config);
        let sum = reduction(Operator::Sum, DataType::I64);
        world.gets(4096, 0, sum, OPTIONS);
        let arrays = contributions(3, 1 << 20, (256, 10), 5);
        let posted = world.all.iter().zip(&arrays).map(|(one, array)| Some(world.post(one, sum, OPTIONS, array)));
        let mut requests: Vec<Option<Request>> = posted.collect();
        let mut ends: Vec<Option<Box<Failed>>> = vec![None, None];
        let start_ps = world.provider.relax().now_ps();
        while ends.iter().any(Option::is_none) {
            let since_ps = world.provider.relax().now_ps() - start_ps;
            assert!(since_ps < communicators::BOUND_PS, "hangs");
            if since_ps > after_ps && going == Going::Away && world.all.len() == 3 {
                drop((world.all.remove(2), requests.remove(2)));
            }
            let active = if since_ps > after_ps { 2 } else { 3 };
            for (one, request) in world.all.iter().zip(&mut requests).take(active) {
                let Some(posted) = request.take() else { continue };
                match one.test(posted) {
                    Ok(Test::Pending(posted)) => *request = Some(posted),
                    Ok(Test::Done(_)) => panic!("rank {} has all sums after {since_ps} ps", one.rank()),
                    Err(failed) => ends[one.rank() as usize] = Some(failed),
                }
            }
            world.provider.relax().relax();
        }
        for failed in ends.into_iter().flatten() {
            let failure = failed.report.failure.expect("told");
            assert_eq!(failure.culprit, 2, "{datapath}, {going:?}: {failed}");
            assert!(going == Going::Away || matches!(failure.cause, Cause::Silent(_)), "{failed}");
            assert!(failed.receive.is_some(), "the buffer comes back");
            assert_eq!(failed.report.decision.aggregation(), Some(Aggregation::Dpa));
        }
    }
}

#[test]
fn settings_that_cannot_be_are_refused_with_what_to_do() {
    let (provider, cards) = cards(DatapathKind::Verbs, &Machine::default(), 2);
    let plain = Card::verbs(&provider, "mlx5_0", &VerbsOptions::default()).expect("the card opens");
    let error = Pending::new(&plain, 0, 2, config()).expect_err("no image");
    told(&error, &["sparse_aggregation is 1", "image `sparse`", "start_aggregators", "FLEXCAST_SPARSE_FIRMWARE"]);
    // What the DPA needs of it is alike on all ranks, or all are told.
    for (other, words) in [
        (config().sparse_aggregation(Aggregation::Host), ["sparse_aggregation 0", "this rank 1"]),
        (config().cache_bytes(5000), ["cache_bytes for sparse_aggregation 5000", "this rank 1500000"]),
    ] {
        let pending = [config(), other].map(Some);
        let pending = (0..)
            .zip(&cards)
            .zip(pending)
            .map(|((rank, card), config)| Pending::new(card, rank, 2, config.expect("one")).expect("its part is made"));
        let mut pending: Vec<Pending> = pending.collect();
        let endpoints: Vec<Vec<u8>> = pending.iter().map(Pending::endpoint).collect();
        let error = pending.remove(0).connect(&endpoints).expect_err("they differ");
        assert!(matches!(error, Error::Peer { rank: 1, .. }), "{error}");
        told(&error, &words);
    }
    let interface = Card::udp(&UdpOptions::default().interface("lo")).expect("loopback");
    let error = interface.start_aggregators(Firmware { name: "sparse", elf: &[] }).expect_err("no DPA");
    told(&error, &["no DPA", "flexcast-aggregator"]);
    let error = Pending::new(&interface, 0, 1, config()).expect_err("no DPA");
    told(&error, &["sparse_aggregation is 1", "network interface"]);
    // Another image than `sparse`.
    let elf = image_bytes("allgather");
    assert!(plain.start_aggregators(Firmware { name: "none", elf: &elf[..100] }).is_err());
}
