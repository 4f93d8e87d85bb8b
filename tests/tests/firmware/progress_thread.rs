//! The protocol on the card: from the moment all have posted until the flags are in host memory, nobody calls the
//! library, and the host does nothing. Emulated cards, the real firmware.

mod calls;
mod repair;
mod weak;

use std::time::Duration;

use calls::{PS_PER_US, config, machine, run, run_eagerly};
use emu_provider::emulated;
use flexcast::{Control, Transport};
use flexcast_lab::sim::params::{HostFault, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run as simulation;
use flexcast_lab::sim::skew::PostSkew;
use flexcast_lab::soak::random::Case;
use flexcast_lab::soak::run_case;
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::harness::is_long;
use flexcast_tests::image_bytes;

#[test]
fn no_host_is_needed_between_post_and_flag() {
    for ranks in [1, 2, 3, 5, 8, 13] {
        run(ranks, machine, &config().chains(1));
    }
}

#[test]
fn nor_with_chains_side_by_side_several_send_workers_and_small_budgets() {
    for (ranks, chains, budget) in [(5, 2, 4096), (8, 8, 1), (13, 4, 2)] {
        run(ranks, machine, &config().chains(chains).budget(budget).send_threads(2).lookahead_chunks(Some(1)));
    }
}

#[test]
fn no_host_is_needed_where_blocks_ride_on_the_barrier() {
    for ranks in [1, 2, 3, 5, 8, 17] {
        run_eagerly(ranks, machine(ranks), &config());
    }
    run_eagerly(5, machine(5), &config().budget(1));
}

pub(crate) fn image() -> ImageFile {
    ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") }
}

/// An Allgather of five ranks in which this happens.
fn with_fault(control: Control, fault: HostFault) -> Report {
    with_fault_and_skew(control, fault, 0)
}

/// The same with ranks that post within so many microseconds.
fn with_fault_and_skew(control: Control, fault: HostFault, skew_us: u64) -> Report {
    let params = SimParams {
        ranks: 5,
        bytes: 20_000,
        warm_up: 0,
        skew: PostSkew::of_us(skew_us),
        config: config().control(control).barrier_timeout(Duration::from_micros(20_000)),
        host_faults: vec![fault],
        ..SimParams::default()
    };
    let provider = emulated(machine(5)).expect("a machine");
    simulation::run(&provider, Some(&image()), &params, &simulation::source(&params).expect("memory"), &mut |_| {})
        .expect("it runs")
}

#[test]
fn ranks_that_call_different_things_all_fail_and_say_so_wherever_the_protocol_runs() {
    for control in [Control::Host, Control::Device] {
        let report = with_fault(control, HostFault::Disagree { rank: 1 });
        assert_eq!((report.failures, report.live), (5, 5), "{control:?}");
        assert!(report.errors.iter().all(|text| text.contains("compare their calls")), "{:?}", report.errors);
    }
}

#[test]
fn a_cancelled_operation_fails_as_such_in_every_phase() {
    for control in [Control::Host, Control::Device] {
        let mut failed = 0;
        for after_us in (0..240).step_by(20) {
            let fault = HostFault::Cancel { rank: 2, after_ps: after_us * PS_PER_US };
            let report = with_fault(control, fault);
            assert!(report.bytes_ok, "{control:?}, {after_us} us");
            let cancelled = |text: &String| text.contains("rank 2 cancelled");
            assert!(report.errors.iter().all(cancelled), "{control:?}, {after_us} us: {:?}", report.errors);
            failed += u64::from(report.failures > 0);
        }
        assert!(failed >= 3, "{control:?}: {failed}");
    }
}

/// Nothing of an operation needs the host of a rank that has posted it, so that one that dies then harms nobody.
#[test]
fn a_host_that_dies_after_posting_leaves_its_card_at_work() {
    let dead = HostFault::Dead { rank: 3, after_ps: 0 };
    let report = with_fault(Control::Device, dead);
    assert_eq!((report.failures, report.live), (0, 4), "{:?}", report.errors);
    assert!(report.bytes_ok);
    let report = with_fault(Control::Host, dead);
    assert_eq!((report.failures, report.live), (4, 4), "on the host the protocol dies with it");
    assert!(report.errors.iter().all(|text| text.contains("silent")), "{:?}", report.errors);
}

/// A host that dies on its way to the post is missed by all others, wherever the protocol runs; the one that posts
/// first has posted.
#[test]
fn a_host_that_dies_before_posting_fails_all_others() {
    for (control, harmless) in [(Control::Host, 0), (Control::Device, 1)] {
        let mut well = 0;
        for rank in 0..5 {
            let report = with_fault_and_skew(control, HostFault::Dead { rank, after_ps: 0 }, 500);
            assert!(report.bytes_ok && report.live == 4, "{control:?}, rank {rank}");
            assert!(report.failures == 0 || report.failures == 4, "{control:?}, rank {rank}: {:?}", report.errors);
            assert!(report.errors.iter().all(|text| text.contains("silent")), "{control:?}: {:?}", report.errors);
            well += u32::from(report.failures == 0);
        }
        assert_eq!(well, harmless, "{control:?}");
    }
}

/// Loss, duplicates, delays, links that go down, dead and cancelling ranks, stalled workers, weak memory: whatever the
/// case, what comes out is what must, on the host and on the card.
#[test]
fn cases_drawn_from_seeds_come_out_right_wherever_the_protocol_runs() {
    let (image, mut lost, mut failed) = (image(), 0, 0);
    for seed in if is_long() { 1001..1049 } else { 1013..1025 } {
        for control in [Control::Host, Control::Device] {
            let mut case = Case::new(seed);
            if case.params.config.transport == Transport::UcUnicast {
                // On the card it is refused.
                case.params.config.transport = Transport::Ud;
                case.params.config.chunk_bytes = case.params.config.chunk_bytes.min(4096);
            }
            case.params.config.control = control;
            let tally = run_case(&case, &image).unwrap_or_else(|wrong| panic!("{control:?}: {wrong}"));
            lost += tally.recovered_chunks;
            failed += tally.failed;
        }
    }
    assert!(lost > 50 && failed > 2, "{lost} chunks recovered, {failed} cases failed");
}
