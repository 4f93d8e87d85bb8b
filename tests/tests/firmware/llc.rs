//! Cost of rings that exceed the DPA's last-level cache (*emulated*, timing model M.2), and the level that serves
//! accesses as long as they do not.

use emu_config::Machine;
use emu_machine::Config;
use emu_machine::timing::Parameters;
use flexcast::p2p::algorithm::Allgather;
use flexcast_lab::accesses::Levels;
use flexcast_lab::reference::{Params, Report, Transport};
use flexcast_lab::sim::algorithm::Algorithm;
use flexcast_lab::sim::params::{Operation, SimParams};
use flexcast_lab::sim::run;
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::run::reference;
use flexcast_tests::{compiled_as_recorded, image_bytes};

/// They share a core.
const WORKERS: u32 = 12;
const CHUNK_BYTES: u64 = 64;
/// Chunks of each worker over all iterations.
const CHUNKS: u32 = 16_384;

/// Workers of image `reference` on one core, as fast as they can, with `ring` receives posted each.
fn receive(ring: u32, timing: Parameters) -> Report {
    let machine = Config { timing: Some(timing), ..emu_provider::lossy(0, 1) };
    let params = Params {
        transport: Transport::Uc,
        threads: WORKERS,
        chunk_bytes: CHUNK_BYTES,
        iterations: CHUNKS / ring,
        ..Params::default()
    };
    let bytes = CHUNK_BYTES * u64::from(ring * WORKERS);
    reference(machine, image_bytes("reference"), params, bytes).expect("it runs")
}

/// Whether what a communicator with as many receive contexts and slots wants in the last-level cache is within its
/// budget (`Endpoint::hot_bytes` adds up such figures).
fn is_within_budget(slots: u32) -> bool {
    let config =
        flexcast::Config::default().with_subgroups(WORKERS).slots(slots).transport(flexcast::Transport::UcMulticast);
    let footprint = config.footprint(2, 4096).expect("a configuration");
    assert!(footprint.ring_bytes >= u64::from(WORKERS * slots) * (64 + 16), "completions and receives of all contexts");
    footprint.hot_bytes() <= config.cache_bytes
}

#[test]
fn rings_that_exceed_the_cache_cost_cycles_and_a_larger_cache_gives_them_back() {
    let m2 = Parameters::m2();
    let (fits, exceeds) = (receive(256, m2.clone()), receive(8192, m2.clone()));
    let larger = m2.with("caches", "l2_bytes", 16 << 20).expect("a power of two of sets");
    let again = receive(8192, larger);
    assert!(is_within_budget(256) && !is_within_budget(8192));
    for (what, report, recorded, rings) in [
        ("rings that fit", &fits, "837.761 cycles per completion, 252833 L2, 0 L3, 49 DPA memory", 100.0),
        ("rings that do not", &exceeds, "1254.060 cycles per completion, 28410 L2, 155 L3, 178215 DPA memory", 10.993),
        (
            "the same, and a larger cache",
            &again,
            "834.959 cycles per completion, 206777 L2, 0 L3, 49 DPA memory",
            100.0,
        ),
    ] {
        let accesses = report.accesses.as_ref().expect("a timing model counts them");
        let [l2, l3, dpa_memory] = accesses.all.beyond_l1();
        // Not goodput: a short ring takes more iterations, and each has a beginning.
        let cycles = report.cycles_per_cqe;
        if compiled_as_recorded("reference") {
            let found = format!("{cycles:.3} cycles per completion, {l2} L2, {l3} L3, {dpa_memory} DPA memory");
            assert_eq!(found, recorded, "{what}");
        }
        let rate = 100.0 * accesses.by["rings"].llc_hit_rate().expect("rings are polled");
        assert!((rate - rings).abs() < 0.01, "{what}: {rate} % of the accesses to rings");
        // What it counts is complete: names are of parts that share nothing, and the rest is `other`.
        let mut sum = Levels::default();
        accesses.by.values().for_each(|levels| sum += *levels);
        assert_eq!(sum, accesses.all, "{what}");
        assert_eq!(accesses.by.keys().collect::<Vec<_>>(), ["bitmap", "context", "other", "rings"]);
    }
    // The same firmware does the same, but for polls of rings that are empty for a moment and the beginnings of
    // iterations: only what its accesses cost differs.
    let [fits_l1, exceeds_l1] =
        [&fits, &exceeds].map(|report| report.accesses.as_ref().map_or(0, |accesses| accesses.all.l1()));
    assert!(fits_l1.abs_diff(exceeds_l1) * 50 < fits_l1, "{fits_l1} and {exceeds_l1} loads from L1");
    assert!(exceeds.cycles_per_cqe > 1.4 * fits.cycles_per_cqe);
}

#[test]
fn the_simple_model_has_no_levels_to_report() {
    let params = Params { chunk_bytes: CHUNK_BYTES, ..Params::default() };
    let bytes = 1000 * CHUNK_BYTES;
    let run = |machine| reference(machine, image_bytes("reference"), params, bytes).expect("it runs");
    let plain = run(emu_provider::lossy(0, 1));
    assert_eq!(plain.accesses, None);
    assert!(serde_json::to_value(&plain).expect("JSON").get("accesses").is_none());
    let machine = Config { timing: Some(Parameters::m2()), ..emu_provider::lossy(0, 1) };
    let json = serde_json::to_value(run(machine)).expect("JSON");
    for name in
        ["l1", "l2", "l3", "dpa_memory", "window", "store_hits", "stores_beyond_l2", "code_misses", "waited_cycles"]
    {
        assert!(json["accesses"][name].is_u64() && json["accesses"]["by"]["rings"][name].is_u64(), "{name}: {json}");
    }
    assert!(json["accesses"]["llc_hit_rate"].is_f64(), "{json}");
}

#[test]
fn a_simulation_reports_the_levels_of_its_cards_too() {
    let params = SimParams {
        ranks: 3,
        operation: Operation::Allgather,
        bytes: 40_000,
        warm_up: 1,
        iterations: 2,
        config: flexcast::Config::default(),
        ..SimParams::default()
    };
    let machine = Machine::default().config_of(params.cards()).expect("a switch");
    let timed = Config { timing: Some(Parameters::m2()), ..machine.clone() };
    let image = ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") };
    let simulate = |machine: Config, params: &SimParams| {
        let provider = emu_provider::emulated(machine).expect("a machine");
        run::run(&provider, Some(&image), params, &run::source(params).expect("memory"), &mut |_| {}).expect("it runs")
    };
    assert_eq!(simulate(machine, &params).accesses, None);
    let report = simulate(timed.clone(), &params);
    assert!(report.digest_ok);
    let accesses = report.accesses.clone().expect("a timing model counts them");
    assert!(accesses.all.l1() > 1000 && accesses.all.llc_hit_rate().is_some_and(|rate| rate > 0.5), "{accesses}");
    assert!(report.to_string().contains("% hit L2 or L3"), "{report}");
    // Half the operations have about half the accesses: what is before them, and between, is not counted.
    let one = simulate(timed.clone(), &SimParams { iterations: 1, ..params.clone() }).accesses.expect("counts");
    let [one, two] = [one, accesses].map(|accesses| accesses.all.l1() as f64);
    assert!((1.8..2.2).contains(&(two / one)), "{one} and {two}");
    let ring = SimParams { algorithm: Algorithm::Allgather(Allgather::Ring), ..params };
    assert_eq!(simulate(timed, &ring).accesses, None, "no DPA has a part in it");
}
