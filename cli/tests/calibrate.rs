//! `flexcast calibrate` as a command: what it refuses, and how it ends.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn images() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/device/emu");
    std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from)
}

fn calibrate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.arg("calibrate").arg("--images").arg(images()).args(arguments);
    command.output().expect("the tool starts")
}

#[test]
fn a_model_that_cannot_be_fitted_is_rejected_and_not_examined_further() {
    let output = calibrate(&["--json", "--set", "stores.hit_cycles=300"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("model rejected: no k from 1 to 7"), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(json["model"], "M.2 with stores.hit_cycles = 300");
    assert!(json["k"].is_null() && json["holdouts"].as_array().is_some_and(Vec::is_empty), "{json}");
    assert!(json["micro"].as_array().is_some_and(|rows| rows.len() == 21), "{json}");
}

#[test]
fn there_is_nothing_to_calibrate_in_the_simple_model() {
    for (arguments, word) in [
        (&["--model", "uncalibrated-1"][..], "no numbers to calibrate"),
        (&["--model", "m9"], "the models are"),
        (&["--set", "loads.l4_cycles=1"], "no number loads.l4_cycles"),
    ] {
        let output = calibrate(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(word), "{arguments:?}: {stderr}");
    }
}
