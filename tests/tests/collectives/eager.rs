//! Eager operations: blocks so short that they ride on the messages of the barrier.

use std::time::Duration;

use emu_config::Machine;
use emu_machine::Config as MachineConfig;
use emu_machine::timing::Parameters;
use emu_provider::emulated;
use flexcast::{Allgather, Config, Control, Error};
use flexcast_lab::sim::params::{Operation, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run;
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::communicators::{self, connect, contribution, drive, ended, gather, gathered, with_cards};
use flexcast_tests::{compiled_as_recorded, image_bytes};

fn params(operation: Operation, ranks: u32, bytes: u64) -> SimParams {
    SimParams {
        ranks,
        operation,
        bytes,
        root: ranks / 2,
        warm_up: 0,
        iterations: 2,
        config: Config::default().with_subgroups(1).slots(16).receive_batch(2).max_receive_bytes(1 << 16),
        ..SimParams::default()
    }
}

fn simulate(params: &SimParams, loss_ppm: u32) -> Report {
    let machine = Machine { loss_ppm: Some(loss_ppm), seed: Some(3), ..Machine::default() };
    simulate_on(params, machine.config_of(params.cards()).expect("a switch"))
}

fn simulate_on(params: &SimParams, machine: MachineConfig) -> Report {
    let provider = emulated(machine).expect("a machine");
    let image = ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") };
    run::run(&provider, Some(&image), params, &run::source(params).expect("memory"), &mut |_| {}).expect("it runs")
}

fn config() -> Config {
    communicators::config().eager_bytes(4096)
}

/// Wherever the protocol runs.
const CONTROLS: [Control; 2] = [Control::Host, Control::Device];

#[test]
fn eager_operations_bring_every_byte_among_any_number_of_ranks() {
    for (ranks, control) in [1, 2, 3, 5, 8, 13].into_iter().flat_map(|ranks| CONTROLS.map(|control| (ranks, control))) {
        for operation in [Operation::Broadcast, Operation::Allgather, Operation::Allgatherv] {
            for (bytes, loss_ppm) in [(0, 0), (1, 0), (63, 0), (500, 20_000)] {
                let mut params = params(operation, ranks, bytes);
                params.config = params.config.control(control);
                let report = simulate(&params, loss_ppm);
                let what = format!("{operation:?} of {ranks} ranks, {bytes} bytes, {control:?}");
                assert!(report.failures == 0 && report.digest_ok, "{what}: {:?}", report.errors);
                let cqes = report.workers.expect("a communicator").cqes;
                assert_eq!(cqes, 0, "{what}: the card's workers have no part in it");
                assert_eq!((report.control.fetch, report.control.last), (0, 0), "{what}: nobody reads from anybody");
            }
        }
    }
}

/// Three rounds of one message each, and no more messages than the barrier has.
#[test]
fn eager_blocks_cost_a_barrier() {
    let report = simulate(&params(Operation::Allgather, 8, 64), 0);
    assert_eq!(report.control.barrier, 2 * 3 * 8, "two operations of three rounds among eight ranks");
    let us = report.virtual_time_us;
    assert!(us < 10.0, "{us:.3} us (emulated): direct writes of the same bytes took 10 us when this was required");
}

/// Operations on both sides of the limit follow one another, and ranks that run ahead send eager data early.
#[test]
fn eager_operations_and_others_follow_one_another() {
    for control in CONTROLS {
        follow_one_another(control);
    }
}

fn follow_one_another(control: Control) {
    with_cards(5, |provider, cards| {
        let communicators = connect(cards.iter(), &config().control(control));
        let lengths = [0, 1, 819, 820, 64, 2000, 3, 819];
        for (rank_first, base) in [(0, 100), (4, 200)] {
            let mut all = Vec::new();
            for number in 0..communicators.len() {
                let communicator = &communicators[(number + rank_first) % communicators.len()];
                for (seed, bytes) in (base..).zip(lengths) {
                    all.push((communicator, gather(communicator, seed, bytes)));
                }
            }
            let outcomes = ended(provider, all);
            for (index, outcome) in outcomes.into_iter().enumerate() {
                let (seed, bytes) = (base + (index % lengths.len()) as u64, lengths[index % lengths.len()]);
                let done = outcome.expect("success");
                assert!(done.receive.to_vec().expect("read") == gathered(seed, 5, bytes), "operation {index}");
                assert_eq!(done.report.foreign_bytes, 4 * bytes as u64);
            }
        }
    });
}

/// Blocks lie where displacements say, whatever is said of one without bytes, and gaps stay.
#[test]
fn eager_blocks_lie_where_displacements_say() {
    for control in CONTROLS {
        lie_where_displacements_say(control);
    }
}

fn lie_where_displacements_say(control: Control) {
    const COUNTS: [u64; 3] = [100, 0, 37];
    const DISPLACEMENTS: [u64; 3] = [200, u64::MAX, 3];
    with_cards(3, |provider, cards| {
        let communicators = connect(cards.iter(), &config().control(control));
        let all: Vec<_> = communicators
            .iter()
            .zip(cards)
            .map(|(communicator, card)| {
                let own = contribution(9, communicator.rank() as usize, COUNTS[communicator.rank() as usize] as usize);
                let mut send = card.buffer(own.len()).expect("a buffer");
                send.write(0, &own).expect("written");
                let mut receive = card.buffer(320).expect("a buffer");
                receive.fill(0xEE);
                let request =
                    communicator.post(Allgather::counts(&COUNTS).displs(&DISPLACEMENTS).buffers(send, receive));
                (communicator, request.expect("accepted"))
            })
            .collect();
        let mut expected = [0xEE; 320];
        expected[200..300].copy_from_slice(&contribution(9, 0, 100));
        expected[3..40].copy_from_slice(&contribution(9, 2, 37));
        for outcome in ended(provider, all) {
            assert!(outcome.expect("success").receive.to_vec().expect("read") == expected);
        }
    });
}

/// Nothing of another rank's reaches a buffer when calls differ, whichever rank is first.
#[test]
fn eager_calls_that_differ_fail_on_all_ranks() {
    let cases = CONTROLS.into_iter().flat_map(|control| [(control, 100, 200), (control, 100, 3000)]);
    for (control, small, large) in cases {
        with_cards(3, |provider, cards| {
            let communicators = connect(cards.iter(), &config().control(control));
            let all = communicators.iter().map(|communicator| {
                let bytes = if communicator.rank() == 1 { large } else { small };
                (communicator, gather(communicator, 1, bytes))
            });
            let all: Vec<_> = all.collect();
            for outcome in ended(provider, all) {
                let failed = outcome.expect_err("calls differ");
                assert!(matches!(failed.error, Error::Failed { .. } | Error::Broken { .. }), "{}", failed.error);
            }
            assert!(communicators.iter().any(|communicator| communicator.disagreement().is_some()));
        });
    }
}

#[test]
fn an_eager_operation_without_a_rank_ends_in_an_error_that_names_it() {
    for control in CONTROLS {
        without_a_rank(control);
    }
}

fn without_a_rank(control: Control) {
    with_cards(4, |provider, cards| {
        let config = config().control(control).barrier_timeout(Duration::from_millis(2));
        let communicators = connect(cards.iter(), &config);
        let mut all: Vec<_> = communicators
            .iter()
            .filter(|communicator| communicator.rank() != 2)
            .map(|communicator| communicators::Under::new(communicator, gather(communicator, 1, 10)))
            .collect();
        drive(provider, &mut all, |_, _| {});
        for one in all {
            let failed = one.done.expect("over").expect_err("rank 2 does not call");
            assert!(failed.error.to_string().contains("rank 2"), "{}", failed.error);
            assert!(failed.send.is_some() && failed.receive.is_some(), "buffers come back");
        }
    });
}

/// With the protocol on the card, too, where it is configured so that nothing may.
#[test]
fn small_operations_are_multicast_where_nothing_may_ride_on_the_barrier() {
    let mut params = params(Operation::Allgather, 3, 50);
    params.config = params.config.control(Control::Device).eager_bytes(0);
    let report = simulate(&params, 0);
    assert!(report.failures == 0 && report.digest_ok, "{:?}", report.errors);
    assert_eq!(
        report.workers.expect("workers").cqes,
        2 * 2 * 3,
        "a chunk from each of two ranks to each of three, twice"
    );
}

/// The card's own protocol takes a signal per round as the host's does; 40 us are required.
#[test]
fn eager_blocks_on_the_card_cost_its_barrier() {
    let mut params = params(Operation::Allgather, 8, 64);
    params.config = params.config.control(Control::Device);
    (params.warm_up, params.iterations) = (3, 5);
    let machine = Machine::default().config_of(8).expect("a switch");
    let machine = MachineConfig { timing: Some(Parameters::m2()), ..machine };
    let report = simulate_on(&params, machine);
    assert_eq!(report.control.barrier, 5 * 3 * 8, "five operations of three rounds among eight ranks");
    let us = report.virtual_time_us;
    assert!(us <= 40.0, "{us:.2} us");
    // Virtual time is exact.
    if compiled_as_recorded("allgather") {
        assert_eq!(format!("{us:.2}"), "39.74");
    }
}
