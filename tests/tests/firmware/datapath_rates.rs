//! Share of a link that a thread receives, and chunk rate of all threads (*emulated*, timing model M.2): the shares and
//! rates that are published for the receive datapath, met or not, by image `reference`, and by a Broadcast of the
//! library.

use Transport::{Uc, Ud};
use emu_machine::Config;
use emu_machine::timing::Parameters;
use flexcast_lab::reference::{Params, Transport};
use flexcast_lab::tput::plan::Params as TputParams;
use flexcast_tests::run::{reference, tput_on};
use flexcast_tests::{compiled_as_recorded, image_bytes};

const LINK_GBIT_S: f64 = 200.0;
/// Chunks of 4 KiB that fill a link of 1.6 Tbit/s, per second.
const CHUNKS_PER_S: f64 = 1.6e12 / 8.0 / 4096.0;

fn machine() -> Config {
    Config { timing: Some(Parameters::m2()), ..emu_provider::lossy(0, 1) }
}

fn gbit_s(gib_s: f64) -> f64 {
    gib_s * f64::from(1 << 30) * 8.0 / 1e9
}

/// Gbit/s that `threads` workers of the published kernel receive in chunks of `chunk_bytes`, each `chunks` of them.
fn published(transport: Transport, threads: u32, chunk_bytes: u64, chunks: u64) -> f64 {
    let params = Params { transport, threads, chunk_bytes, warm_up: 1, ..Params::default() };
    let bytes = chunk_bytes * chunks * u64::from(threads);
    gbit_s(reference(machine(), image_bytes("reference"), params, bytes).expect("it runs").goodput_gib_s)
}

/// The rate of a run must be the recorded one, to a thousandth: virtual time is exact for the images of one compiler.
fn is(image: &str, what: &str, value: f64, recorded: &str) -> f64 {
    if compiled_as_recorded(image) {
        assert_eq!(format!("{value:.3}"), recorded, "{what}");
    }
    value
}

/// Published of one thread: half a link with UC, a fifth with UD; of several: all of it with 4 (UC) and 8 to 16 (UD),
/// within a core.
#[test]
fn one_thread_has_the_published_share_of_a_link_and_a_core_fills_it() {
    let rate = |transport, threads, recorded| {
        let what = format!("{transport:?} x{threads}");
        is("reference", &what, published(transport, threads, 4096, 2048), recorded) / LINK_GBIT_S
    };
    let uc = rate(Uc, 1, "96.105");
    assert!((0.45..0.55).contains(&uc), "about a half: {uc}");
    let ud = rate(Ud, 1, "34.806");
    assert!((0.13..0.27).contains(&ud), "about a fifth, -0/+22 % and as much: {ud}");
    // Payload is 98 % of a frame at best.
    assert!(rate(Uc, 4, "194.127") > 0.95);
    assert!(rate(Ud, 16, "195.072") > 0.95);
}

/// A Broadcast by the library, of 32 MiB to as many threads as hold the link.
#[test]
fn a_broadcast_fills_the_link() {
    for (transport, threads, recorded) in
        [(flexcast::Transport::UcUnicast, 4, "190.584"), (flexcast::Transport::Ud, 8, "186.585")]
    {
        let params = TputParams { transport, slots: 512, warm_up: 1, ..TputParams::default() }.with_threads(threads);
        let report = tput_on(machine(), params, 32 << 20).expect("it runs").report;
        assert!(report.digest_ok, "{report:?}");
        let rate = is("allgather", &format!("{transport:?} x{threads}"), gbit_s(report.goodput_gib_s), recorded);
        assert!(rate > 0.8 * LINK_GBIT_S, "{rate}");
    }
}

/// With chunks of 64 bytes as many per second as fill a link of 1.6 Tbit/s with 4 KiB each: 48.83 million. By cycles
/// that takes 17 threads (UC) and 30 (UD) of the published kernel, by issue slots 1.8 and 3.1 cores.
#[test]
fn at_most_128_threads_receive_as_many_chunks_as_fill_eight_links() {
    for (transport, threads, recorded) in [(Uc, 32, "51.770"), (Ud, 128, "73.755")] {
        let chunks_per_s = published(transport, threads, 64, 1024) * 1e9 / 8.0 / 64.0;
        is("reference", &format!("{transport:?} x{threads}"), chunks_per_s / 1e6, recorded);
        assert!(chunks_per_s >= CHUNKS_PER_S, "{transport:?} x{threads}: {chunks_per_s}");
    }
}
