//! DPA work by phase of an operation, through `flexcast sim`. `cargo xtask build` makes the image; without it these
//! tests fail and say so.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const PHASES: [&str; 5] = ["arming", "barrier", "data", "recovery", "closing"];

/// The report of a run in which every rank got every byte.
#[track_caller]
fn sim(args: &str) -> Value {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/device/emu");
    let image = std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from).join("allgather.elf");
    assert!(image.exists(), "no image {}: run `cargo xtask build` first", image.display());
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(["sim", "--json", "--image", &image.to_string_lossy()])
        .args(args.split_whitespace())
        .output()
        .expect("the tool starts");
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object on stdout")
}

#[track_caller]
fn of(report: &Value, phase: &str, what: &str) -> f64 {
    let pointer = format!("/dpa_work/{phase}/{what}");
    report.pointer(&pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer} of {report}"))
}

fn mean(report: &Value, phase: &str) -> f64 {
    of(report, phase, "instructions/mean")
}

/// The workers' own counters are of their loops: the phases hold those, and what is around them.
#[test]
fn phases_hold_what_the_workers_count_themselves() {
    for how in ["", "--control device", "--subgroups 2 --op broadcast", "--model m2", "--model m2 --skew-us 30"] {
        let report = sim(&format!("--ranks 4 --bytes 262144 --warm-up 0 {how}"));
        let all: f64 = PHASES.iter().map(|phase| 4.0 * mean(&report, phase)).sum();
        let workers = |counter: &str| report["workers"][counter].as_f64().expect(counter);
        let loops = workers("loop_instructions") + workers("posting_instructions");
        assert!(loops > 1000.0 && loops <= all, "{how}: {loops} in loops of {all}");
        for phase in PHASES {
            let (least, most) = (of(&report, phase, "instructions/least"), of(&report, phase, "instructions/most"));
            assert!(least <= mean(&report, phase) && mean(&report, phase) <= most, "{how}: {phase}: {report}");
            // No thread retires more than one instruction in a cycle.
            assert!(of(&report, phase, "cycles/mean") >= mean(&report, phase), "{how}: {phase}: {report}");
        }
        assert_eq!(of(&report, "recovery", "cycles/most"), 0.0, "{how}: nothing was lost");
    }
}

#[test]
fn more_bytes_are_more_work_in_the_data_phase_alone() {
    let run = |bytes: u32| sim(&format!("--op broadcast --ranks 8 --bytes {bytes} --subgroups 1 --model m2"));
    let (small, large) = (run(262_144), run(1 << 20));
    assert!(mean(&small, "arming") > 100.0 && mean(&small, "barrier") > 0.0, "{small}");
    // A phase ends in a poll of the host, which comes up to 10 us late: so much of the next one's work is counted for
    // it.
    let growth = |phase: &str| mean(&large, phase) - mean(&small, phase);
    let others: f64 = ["arming", "barrier", "closing"].iter().map(|phase| growth(phase).abs()).sum();
    assert!(others <= 0.1 * growth("data"), "{others} of others, {} of data: {small} and {large}", growth("data"));
    // Chunk by chunk: each further one is received by seven of eight ranks, at the cost that the workers report
    // themselves.
    let per_cqe = large["workers"]["loop_instructions"].as_f64().expect("a count")
        / large["workers"]["loop_cqes"].as_f64().expect("a count");
    let more = (mean(&large, "data") - mean(&small, "data")) / (192.0 * 7.0 / 8.0);
    assert!((0.8 * per_cqe..1.5 * per_cqe).contains(&more), "{more} instructions a chunk, {per_cqe} in loops");
}

#[test]
fn recovery_is_work_and_cards_of_several_ranks_report_none() {
    let report = sim("--ranks 4 --bytes 1048576 --loss 1");
    assert!(report["recovered_chunks"].as_u64() > Some(0) && mean(&report, "recovery") > 0.0, "{report}");
    for how in ["--ranks-per-card 2", "--algorithm ring"] {
        let report = sim(&format!("--ranks 4 --bytes 5000 {how}"));
        assert!(report.get("dpa_work").is_none(), "{how}: {report}");
    }
}
