//! Share of a link that one thread receives, and chunk rate of all threads (*emulated*, timing model M.1): the shares
//! and rates that are published for the receive datapath, met or not, by image `reference`, whose instructions are as
//! many as the published kernel's, and by `receive`.

use Transport::{Uc, Ud};
use emu_machine::Config;
use emu_machine::timing::Parameters;
use flexcast_lab::tput::plan::{Params, Transport};
use flexcast_tests::run::tput_on;
use flexcast_tests::{compiled_as_recorded, image_bytes};

const LINK_GBIT_S: f64 = 200.0;
/// Chunks of 4 KiB that fill a link of 1.6 Tbit/s, per second.
const CHUNKS_PER_S: f64 = 1.6e12 / 8.0 / 4096.0;

/// Gbit/s that `threads` workers of an image receive in chunks of `chunk_bytes`, each `chunks` of them, from core to core.
fn gbit_s(image: &str, transport: Transport, threads: u32, chunk_bytes: u64, chunks: u64) -> f64 {
    let machine = Config { timing: Some(Parameters::m1()), ..emu_provider::lossy(0, 1) };
    let params = Params { transport, threads, chunk_bytes, ..Params::default() };
    let bytes = chunk_bytes * chunks * u64::from(threads);
    let report = tput_on(machine, image, image_bytes(image), params, bytes).expect("it runs").report;
    assert!(report.digest_ok && report.missing == 0, "{image} {transport:?} x{threads}");
    report.goodput_gib_s * f64::from(1 << 30) * 8.0 / 1e9
}

/// The rate of a run must be the recorded one, to a thousandth: virtual time is exact for the images of one compiler.
fn is(image: &str, what: &str, value: f64, recorded: &str) -> f64 {
    if compiled_as_recorded(image) {
        assert_eq!(format!("{value:.3}"), recorded, "{what}");
    }
    value
}

/// Published of one thread: half a link with UC, a fifth with UD; of several: all of it with 4 (UC) and 8 to 16 (UD), within a core.
/// `reference` has the published share with UC and, with UD, a third less than that.
#[test]
fn one_thread_has_the_published_share_of_a_link_and_a_core_fills_it() {
    let rate = |image, transport, threads, recorded| {
        let chunks = if threads == 1 { 8192 } else { 2048 };
        let what = format!("{image} {transport:?} x{threads}");
        is(image, &what, gbit_s(image, transport, threads, 4096, chunks), recorded) / LINK_GBIT_S
    };
    let uc = rate("reference", Uc, 1, "106.495");
    assert!((0.45..0.55).contains(&uc), "about a half");
    let ud = rate("reference", Ud, 1, "27.961");
    assert!((0.13..0.15).contains(&ud), "published is a fifth, which the model does not give");
    // Payload is 98 % of a frame at best.
    assert!(rate("reference", Uc, 4, "193.923") > 0.95);
    assert!(rate("reference", Ud, 8, "181.070") > 0.9);
    assert!(rate("reference", Ud, 16, "194.909") > 0.95);
    assert!(rate("receive", Uc, 1, "192.540") > 0.95);
    assert!(rate("receive", Ud, 1, "104.946") > 0.5);
    assert!(rate("receive", Ud, 4, "192.269") > 0.95);
}

/// With chunks of 64 bytes as many per second as fill a link of 1.6 Tbit/s with 4 KiB each: 48.83 million. By cycles that takes 17 threads
/// (UC) and 30 (UD) of the published kernel, by issue slots 1.8 and 3.1 cores.
#[test]
fn at_most_128_threads_receive_as_many_chunks_as_fill_eight_links() {
    for (image, transport, threads, chunks, recorded) in [
        ("receive", Uc, 11, 2048, "52.023"),
        ("receive", Ud, 24, 2048, "69.538"),
        ("reference", Uc, 24, 2048, "53.126"),
        ("reference", Ud, 128, 1024, "59.675"),
    ] {
        let chunks_per_s = gbit_s(image, transport, threads, 64, chunks) * 1e9 / 8.0 / 64.0;
        is(image, &format!("{image} {transport:?} x{threads}"), chunks_per_s / 1e6, recorded);
        assert!(chunks_per_s >= CHUNKS_PER_S, "{image} {transport:?} x{threads}");
    }
}

/// Workers that take many times as long as usual for a completion have lost nothing: the sender's patience ends before their work does.
#[test]
fn workers_slower_than_their_sender_expects_lose_nothing() {
    let slow = Parameters::m1().with("lines_per_s", "l2", 10_000_000).expect("a number of the model");
    let machine = Config { timing: Some(slow), ..emu_provider::lossy(0, 1) };
    let params = Params { transport: Ud, threads: 16, chunk_bytes: 64, ring: 256, ..Params::default() };
    let report =
        tput_on(machine, "reference", image_bytes("reference"), params, 64 * 256 * 16).expect("it runs").report;
    assert!(report.digest_ok && report.missing == 0, "{} missing", report.missing);
    assert!(report.cycles_per_cqe > 20_000.0, "slow enough to be given up: {} cycles", report.cycles_per_cqe);
}
