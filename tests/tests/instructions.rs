//! Instructions per completion of the datapath, exact, from the device's own counters on a ring that never runs empty.
//!
//! A change of the firmware or of the compiler may change the figures: then the table below changes with it, in the same
//! commit, and the limits in the image's `image.toml` say whether the change may stand.

use std::collections::BTreeMap;

use flexcast_lab::tput::plan::{Params, Transport};
use flexcast_tests::run::tput;
use flexcast_tests::{compiled_as_recorded, workspace_root};

const CHUNK_BYTES: u64 = 1024;
const CHUNKS: u64 = 8192;

/// Transport, chunks per doorbell, completions counted in the loop, instructions retired in it.
const EXACT: [(Transport, u32, u64, u64); 8] = [
    (Transport::Uc, 1, 8192, 196394),  // 23.97 each
    (Transport::Uc, 16, 8192, 173863), // 21.22 each
    (Transport::Uc, 32, 8192, 160807), // 19.63 each
    (Transport::Uc, 64, 8192, 154279), // 18.83 each
    (Transport::Ud, 1, 8192, 311401),  // 38.01 each
    (Transport::Ud, 16, 8192, 286125), // 34.93 each
    (Transport::Ud, 32, 8192, 249773), // 30.49 each
    (Transport::Ud, 64, 8192, 231597), // 28.27 each
];

/// Most instructions per completion that `image.toml` allows, by `<transport>_batch_<chunks per doorbell>`.
fn limits() -> BTreeMap<String, u64> {
    #[derive(serde::Deserialize)]
    struct Manifest {
        instructions_per_cqe: BTreeMap<String, u64>,
    }
    let path = workspace_root().join("device/images/receive/image.toml");
    let text = std::fs::read_to_string(path).expect("image.toml of `receive`");
    toml::from_str::<Manifest>(&text).expect("limits in image.toml").instructions_per_cqe
}

/// Nothing but the receive loop: one worker, every check on, every chunk new and right.
fn measure(transport: Transport, batch: u32) -> (u64, u64) {
    let params =
        Params { transport, batch, chunk_bytes: CHUNK_BYTES, ring: 1024, warm_up: 1, threads: 1, ..Params::default() };
    let report = tput("receive", params, CHUNKS * CHUNK_BYTES).expect("the run succeeds").report;
    assert_eq!((report.missing, report.digest_ok, report.device.cqes), (0, true, CHUNKS), "{report:?}");
    let counters = report.device;
    let odd = [counters.duplicates, counters.out_of_range, counters.wrong_length, counters.wrong_id, counters.errors];
    assert_eq!(odd, [0; 5], "{counters:?}");
    // A saturated ring ends an activation by its quota of 4096 completions only; the other ones are the host's commands. On a
    // ring that runs empty there are hundreds, and the figure would be one of starting and stopping.
    assert!(counters.activations <= CHUNKS / 4096 + 3, "the ring ran empty: {counters:?}");
    assert_eq!(counters.loop_cqes, CHUNKS);
    let outside = counters.instructions - counters.loop_instructions;
    assert!(outside * 50 < counters.loop_instructions, "2 % are spent outside the loop: {counters:?}");
    (counters.loop_cqes, counters.loop_instructions)
}

#[test]
fn instructions_per_completion_are_exact_and_within_their_limits() {
    let measured = EXACT.map(|(transport, batch, ..)| {
        let (cqes, instructions) = measure(transport, batch);
        (transport, batch, cqes, instructions)
    });
    let limits = limits();
    let mut promised = [("uc_batch_32", 20), ("ud_batch_32", 32), ("uc_batch_1", 28), ("ud_batch_1", 42)];
    promised.sort_unstable();
    assert!(limits.iter().map(|(key, limit)| (key.as_str(), *limit)).eq(promised), "{limits:?}");
    for (key, limit) in limits {
        let named = |row: &&(Transport, u32, u64, u64)| format!("{}_batch_{}", row.0.name(), row.1) == key;
        let (.., cqes, instructions) = *measured.iter().find(named).expect("a row of the table");
        let each = instructions as f64 / cqes as f64;
        assert!(
            instructions <= limit * cqes,
            "{key}: {each:.2} instructions per completion; at most {limit} are promised"
        );
    }
    if compiled_as_recorded("receive") {
        assert_eq!(measured, EXACT, "the instruction counts have changed: update the table if they should have");
    }
}

/// The baseline must stay what it is measured for: doorbells with every completion, the published algorithm.
#[test]
fn the_reference_rings_with_every_completion() {
    for transport in [Transport::Uc, Transport::Ud] {
        let [one, sixteen] = [1, 16].map(|batch| {
            let params = Params { transport, batch, chunk_bytes: CHUNK_BYTES, ring: 1024, ..Params::default() };
            let report = tput("reference", params, 2048 * CHUNK_BYTES).expect("the run succeeds").report;
            assert_eq!((report.missing, report.digest_ok), (0, true), "{report:?}");
            report.instructions_per_cqe
        });
        assert!((one - sixteen).abs() < 0.5, "{}: {one} against {sixteen}", transport.name());
    }
}
