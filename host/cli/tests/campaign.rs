//! `flexcast campaign`: what it tells while it runs and at its end, however it ends.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn campaign(args: &str) -> Command {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/device/emu");
    let images = std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from);
    let image = images.join("allgather.elf");
    assert!(image.exists(), "no image {}: run `cargo xtask build` first", image.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.arg("campaign").arg("--image").arg(image).args(args.split_whitespace());
    command
}

#[test]
fn all_seeds_are_counted_by_outcome_and_the_slowest_named() {
    let output = campaign("--seeds 40 --json").output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}"));
    assert_eq!((number("cases"), number("right") + number("failed")), (40, 40));
    let kinds: u64 =
        report["failures"].as_object().expect("by kind").values().filter_map(serde_json::Value::as_u64).sum();
    assert!(kinds == number("failed") && kinds > 0, "{report}");
    assert_eq!((&report["end"], report["wrong"].as_array().map(Vec::len)), (&"complete".into(), Some(0)));
    let slowest = report["slowest"].as_array().expect("a list");
    let seconds: Vec<f64> = slowest.iter().filter_map(|seed| seed["wall_s"].as_f64()).collect();
    assert!(seconds.len() == 5 && seconds.is_sorted_by(|a, b| a >= b), "{report}");
    assert!(slowest.iter().all(|seed| (1..=40).contains(&seed["seed"].as_u64().expect("a seed"))), "{report}");
}

/// A cancellation that comes when all ranks have everything: the operation ends well, and there is no second one.
#[test]
fn a_late_cancellation_ends_a_case() {
    let output = campaign("--first 355 --seeds 1").output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn it_tells_how_far_it_is_and_ends_at_the_wall_limit() {
    let output = campaign("--seeds 1000000 --wall-limit 3 --progress 1").output().expect("it starts");
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(" of 1000000 seeds in ")).collect();
    assert!(lines.len() >= 2 && lines.iter().all(|line| line.contains("right, ")), "{said}");
    for words in ["with every byte on every rank", "(the wall limit is reached)", "slowest seeds (measured): "] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn interrupted_it_tells_what_has_come_out() {
    let mut child = campaign("--seeds 1000000 --progress 1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    std::thread::sleep(Duration::from_secs(2));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("(interrupted)") && text.contains("cases in"), "{text}");
}
