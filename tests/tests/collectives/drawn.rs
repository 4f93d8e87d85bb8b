//! Collectives of the library on emulated cards, with the real firmware: cases drawn from seeds, and how full the link
//! is.

use std::time::Duration;

use emu_config::Machine;
use flexcast::{Config, Overheads, ThreadPlacement};
use flexcast_lab::sim::params::{HostFault, Operation, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run;
use flexcast_lab::soak::random::{Case, Expected};
use flexcast_lab::soak::{Tally, run_case, run_seed};
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::harness::is_long;
use flexcast_tests::image_bytes;

fn image() -> ImageFile {
    ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") }
}

fn simulate(params: &SimParams) -> Report {
    let machine = Machine::default().config_of(params.cards()).expect("a switch");
    let provider = emu_provider::emulated(machine).expect("a machine");
    run::run(&provider, Some(&image()), params, &run::source(params).expect("memory"), &mut |_| {})
        .expect("the simulation runs")
}

fn soak(seeds: std::ops::Range<u64>) -> Tally {
    let (image, mut sum) = (image(), Tally::default());
    for seed in seeds {
        match run_seed(seed, &image) {
            Ok(tally) => sum += tally,
            Err(wrong) => panic!("{wrong}; run it again with: cargo xtask sim --first {seed} --seeds 1 --show"),
        }
    }
    sum
}

/// A first part of `cargo xtask sim`; in two tests, for two cores.
#[test]
fn cases_drawn_from_seeds_end_well_or_in_typed_errors() {
    let tally = soak(1..if is_long() { 101 } else { 31 });
    assert!(tally.right >= 15 && tally.failed >= 3 && tally.recovered_chunks > 0, "{tally:?}");
}

#[test]
fn more_cases_drawn_from_seeds_end_well_or_in_typed_errors() {
    let tally = soak(101..if is_long() { 201 } else { 131 });
    assert!(tally.weak >= 1 && tally.raced >= 3 && tally.lost_frames > 0 && tally.baselines >= 3, "{tally:?}");
}

/// With a scatter-Allgather ranks get bytes again that they may still be sending: no race of the library's, but two
/// accesses without order.
#[test]
fn bytes_that_come_again_are_no_race() {
    for seed in [576, 1324] {
        let tally = soak(seed..seed + 1);
        assert_eq!((tally.right, tally.baselines), (1, 1), "seed {seed}: {tally:?}");
    }
}

/// Without this, a soak run in which nothing is checked would pass.
#[test]
fn a_case_that_comes_out_wrong_is_reported() {
    let mut case = (1..).map(Case::new).find(|case| case.expected == Expected::Failed).expect("there is one");
    case.params.host_faults.clear();
    let wrong = run_case(&case, &image()).expect_err("nobody disagrees, so nobody fails");
    assert!(wrong.to_string().contains("all must fail"), "{wrong}");
    case.expected = Expected::Right;
    case.params.host_faults = vec![HostFault::Disagree { rank: 1 }];
    let wrong = run_case(&case, &image()).expect_err("one rank disagrees, so all fail");
    assert!(wrong.to_string().contains("ranks failed"), "{wrong}");
}

/// A cutoff without any slack gives up what is on its way: then chunks are fetched that nobody has lost.
#[test]
fn a_spurious_fetch_makes_a_case_wrong() {
    let quiet = |case: &Case| case.is_orderly() && case.faults.is_empty() && case.params.config.eager_bytes == 0;
    let many = |case: &Case| case.params.ranks > 4 && case.params.bytes > 20_000 && !case.params.side.has_several();
    let mut case = (1..).map(Case::new).find(|case| quiet(case) && many(case)).expect("there is one");
    let tally = run_case(&case, &image()).expect("as it is drawn it is right");
    assert_eq!((tally.right, tally.lossless, tally.spurious_chunks), (1, 1, 0), "{tally:?}");
    case.params.config.overheads.cutoff_slack = Duration::ZERO;
    let wrong = run_case(&case, &image()).expect_err("the cutoff comes at once");
    assert!(wrong.to_string().contains("a spurious fetch"), "{wrong}");
}

/// A case that takes longer than it may is no success.
#[test]
fn a_case_beyond_its_wall_time_is_wrong() {
    let mut case = (1..).map(Case::new).find(Case::is_orderly).expect("there is one");
    case.params.wall_limit = Some(Duration::ZERO);
    let wrong = run_case(&case, &image()).expect_err("no time at all");
    assert!(wrong.to_string().contains("within the wall time given"), "{wrong}");
}

/// 191 of 200 Gbit/s from the barrier to the last byte (*emulated*): 95 % and more, by 16 receive threads of each card.
#[test]
fn eight_ranks_fill_their_links() {
    let threads = 16;
    let config = Config::default()
        .with_subgroups(threads)
        .slots(128)
        .send_threads(2)
        .chains(8)
        .placement(ThreadPlacement::Spread)
        .max_receive_bytes(64 << 20)
        .overheads(Overheads { cutoff_slack: Duration::from_millis(1), ..Config::default().overheads });
    let params = SimParams {
        ranks: 8,
        operation: Operation::Allgather,
        bytes: 8 << 20,
        warm_up: 0,
        config,
        ..SimParams::default()
    };
    let report = simulate(&params);
    assert!(report.digest_ok && report.failures == 0, "{:?}", report.errors);
    let (workers, phases) = report.workers.zip(report.phases).expect("multicast has workers");
    assert_eq!((report.traffic.rnr_drops, report.recovered_chunks, workers.duplicates), (0, 0, 0));
    let gbit_s = (7u64 << 20) as f64 * 64.0 / (phases.receiving.most_us * 1e3);
    assert!(gbit_s >= 190.0, "{gbit_s} Gbit/s of 200");
}

/// A rank whose DPA thread stands still makes the others wait in the barrier, for longer than any cutoff, and nothing
/// worse.
#[test]
fn a_stalled_worker_delays_and_breaks_nothing() {
    let stall = HostFault::Stall { rank: 1, unit: 1, after_ps: 20_000_000, for_ps: 20_000_000_000 };
    let params = SimParams {
        ranks: 3,
        operation: Operation::Allgather,
        bytes: 50_000,
        warm_up: 0,
        iterations: 2,
        config: Config::default().with_subgroups(1),
        host_faults: vec![stall],
        ..SimParams::default()
    };
    let report = simulate(&params);
    assert!(report.digest_ok, "{:?}", report.errors);
    let phases = report.phases.expect("multicast has phases");
    assert!(phases.arming.most_us > 19_000.0, "{phases:?}");
}
