//! Communicators side by side on the same cards, splits, and places of the bytes, each compared byte by byte, on every
//! transport and with the protocol on host and card.

use emu_config::Machine;
use flexcast::{Control, Transport};
use flexcast_lab::sim::params::{HostFault, Operation, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run;
use flexcast_lab::sim::side::Side;
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::communicators::config;
use flexcast_tests::image_bytes;

const PS_PER_US: u64 = 1_000_000;

fn simulate(params: &SimParams) -> Report {
    let mut machine = Machine::default().config_of(params.cards()).expect("a switch");
    machine.uc_multicast = params.needs_uc_multicast();
    let provider = emu_provider::emulated(machine).expect("a machine");
    let image = ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") };
    run::run(&provider, Some(&image), params, &run::source(params).expect("memory"), &mut |_| {})
        .expect("the simulation runs")
}

fn params(operation: Operation, side: Side) -> SimParams {
    SimParams {
        ranks: 5,
        ranks_per_card: 2,
        operation,
        bytes: 9_000,
        root: 3,
        warm_up: 0,
        iterations: 3,
        side,
        config: config(),
        ..SimParams::default()
    }
}

#[test]
fn communicators_and_parts_of_one_work_at_the_same_time_on_the_same_cards() {
    let side = Side { communicators: 2, split: Some(2), ..Side::default() };
    for transport in Transport::ALL {
        for control in [Control::Host, Control::Device] {
            if control == Control::Device && transport == Transport::UcUnicast {
                continue;
            }
            let mut params = params(Operation::Allgather, side);
            params.config = params.config.transport(transport).control(control);
            let report = simulate(&params);
            assert!(report.digest_ok, "{transport}, {control:?}: {:?}", report.errors);
            // Two of five ranks, and parts of three and two.
            assert_eq!((report.live, report.live_concurrent), (3 * 15, 3 * 10), "{transport}");
            assert_eq!(report.recovered_chunks, 0, "{transport}, {control:?}: nothing was lost");
            assert_eq!(report.contributed_bytes, 3 * 5 * 9_000, "two of all ranks, and the parts of one");
        }
    }
}

#[test]
fn blocks_come_to_their_displacements_and_the_gaps_stay_as_they_are() {
    for in_place in [false, true] {
        for user_memory in [false, true] {
            for gap in [None, Some(0), Some(1), Some(1000)] {
                let side = Side { in_place, user_memory, gap, ..Side::default() };
                let report = simulate(&params(Operation::Allgatherv, side));
                assert!(report.digest_ok, "{side:?}: {:?}", report.errors);
            }
        }
    }
    let side = Side { user_memory: true, communicators: 3, ..Side::default() };
    assert!(simulate(&params(Operation::Broadcast, side)).digest_ok);
}

/// What happens to a call of one communicator is not reported to the others.
#[test]
fn a_cancelled_communicator_leaves_the_others_alone() {
    let side = Side { communicators: 2, split: Some(1), ..Side::default() };
    let cancel = HostFault::Cancel { rank: 1, after_ps: 30 * PS_PER_US };
    let report = simulate(&SimParams { host_faults: vec![cancel], ..params(Operation::Allgather, side) });
    assert!(report.bytes_ok);
    assert_eq!((report.failures, report.failures_concurrent), (5, 0), "{:?}", report.errors);
}

/// A host that polls every 200 us delays what it has to do, and nothing comes out wrong.
#[test]
fn a_host_that_polls_seldom_delays_and_breaks_nothing() {
    let slow = HostFault::Slow { rank: 2, every_ps: 200 * PS_PER_US };
    let plain = SimParams { iterations: 1, ..params(Operation::Allgather, Side::default()) };
    let late = simulate(&SimParams { host_faults: vec![slow], ..plain.clone() });
    let plain = simulate(&plain);
    assert!(plain.digest_ok && late.digest_ok, "{:?}", late.errors);
    assert!(
        late.virtual_time_us > plain.virtual_time_us + 200.0,
        "{} and {}",
        late.virtual_time_us,
        plain.virtual_time_us
    );
}
