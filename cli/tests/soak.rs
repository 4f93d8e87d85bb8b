//! `flexcast soak`: what it reports while it runs and at its end, however it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{is_long, skipped};

fn soak(args: &str) -> Command {
    soak_with("allgather", args)
}

fn soak_with(image: &str, args: &str) -> Command {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/device/emu");
    let images = std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from);
    let image = images.join(image).with_extension("elf");
    assert!(image.exists(), "no image {}: run `cargo xtask build` first", image.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.arg("soak").arg("--image").arg(image).args(args.split_whitespace());
    command
}

fn json(command: &mut Command) -> serde_json::Value {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn all_seeds_are_counted_by_outcome_and_the_slowest_named() {
    // Seeds that nobody has run, but in CI.
    let cases = if is_long() { 40 } else { 16 };
    let report = json(&mut soak(&format!("--seeds {cases} --json")));
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}"));
    assert_eq!((number("cases"), number("right") + number("failed")), (cases, cases));
    let kinds: u64 =
        report["failures"].as_object().expect("by kind").values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(kinds, number("failed"), "{report}");
    assert_eq!((&report["end"], report["wrong"].as_array().map(Vec::len)), (&"complete".into(), Some(0)));
    let slowest = report["slowest"].as_array().expect("a list");
    let seconds: Vec<f64> = slowest.iter().filter_map(|seed| seed["wall_s"].as_f64()).collect();
    assert!(seconds.len() == 5 && seconds.is_sorted_by(|a, b| a >= b), "{report}");
    let seeds = number("first")..number("first") + cases;
    assert!(slowest.iter().all(|seed| seeds.contains(&seed["seed"].as_u64().expect("a seed"))), "{report}");
}

#[test]
fn seeds_are_drawn_anew_except_in_ci() {
    let first = |ci: bool| {
        let mut command = soak("--seeds 1 --json");
        if ci {
            command.env("CI", "true")
        } else {
            command.env_remove("CI")
        };
        json(&mut command)["first"].as_u64().expect("a seed")
    };
    assert_eq!((first(true), first(true)), (1, 1));
    let drawn = [first(false), first(false), first(false)];
    assert!(drawn[0] != drawn[1] || drawn[1] != drawn[2], "{drawn:?}");
    let output = soak("--seeds 1").env_remove("CI").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the same again: --first "), "{said}");
}

/// Seeds that once came out wrong. Those that take seconds are of the long tests.
#[test]
fn seeds_that_were_wrong_are_right() {
    let slow = [
        // Ranks gave up a root whose multicast was slower than its cutoff, although all data had been fetched.
        2_016_217,
        // Nothing was lost, and chunks were fetched: a thread in the middle of a long batch published no progress.
        3_123_443_919,
        // Nothing was lost, and chunks were fetched that waited behind those of another communicator.
        91_002_008_u64,
    ];
    let slow = slow.into_iter().filter(|_| is_long());
    let quick = [
        // What a root multicast came back to its card and was written over what it still sent.
        1_001_763,
        2_001_630,
        2_006_783,
        2_012_728,
        // A frame reached the end of a cable that has no card.
        235,
        // A root was given up that sent 64 bytes at a time to each of 13 ranks.
        2_542_686_249_u64,
        // Nothing was lost, and chunks were fetched that waited behind those of parts of the communicator.
        95_003_617,
    ];
    for seed in quick.into_iter().chain(slow) {
        let report = json(&mut soak(&format!("--first {seed} --seeds 1 --json")));
        assert_eq!(report["right"], 1, "{report}");
    }
    for seed in [
        // What a rank wrote that had called something else went over a block that was still being sent.
        30_000_568,
        // A peer that did not know of the failure was refused by a key that had been taken back for that.
        95_002_223,
        // A rank that had everything waited without end for a dead one to say where it wants its bytes.
        20_214,
        // With the protocol on the card a rank that was cut off before its turn counted as one that sends, and waited
        // without end.
        81_000_498, 81_011_662, 81_017_707,
        // A rank that calls something else in place had no room for its own gaps.
        81_003_380, 81_010_305,
        // A card was cut off while ranks greeted one another over pairs; of two of them one waited without end.
        81_008_061, 81_008_687, 81_019_461,
    ] {
        let report = json(&mut soak(&format!("--first {seed} --seeds 1 --json")));
        assert_eq!((&report["cases"], &report["failed"]), (&1.into(), &1.into()), "{report}");
    }
}

/// The image lacks the entries that a communicator needs, so that every case of multicast comes out wrong.
#[test]
fn a_wrong_seed_is_reported_when_it_ends() {
    let mut child = soak_with("reference", "--first 1 --seeds 1000000 --keep-going --progress 0")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let reported = lines.find_map(|line| line.ok().filter(|line| line.starts_with("wrong: seed ")));
    assert!(child.try_wait().expect("a child").is_none(), "the soak goes on");
    child.kill().and_then(|()| child.wait()).expect("it ends");
    assert!(reported.is_some());
}

/// Seeds beyond the last number would be the last one again.
#[test]
fn ranges_that_exceed_all_numbers_are_refused() {
    for (args, words) in [
        ("--first 18446744073709551615 --seeds 3", "give --seeds 1 at most"),
        ("--first 18446744073709551614 --seeds 3 --shard 1/2", "give --seeds 2 at most"),
        ("--first 2 --seeds 18446744073709551615 --show", "give --seeds 18446744073709551614 at most"),
    ] {
        let output = soak(args).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args}: {text}");
        assert!(output.stdout.is_empty() && text.contains(words) && text.contains("a lower --first"), "{args}: {text}");
    }
    assert_eq!(json(&mut soak("--first 18446744073709551615 --seeds 1 --json"))["cases"], 1);
}

/// The command that is there: cargo is not where the program is installed.
#[test]
fn a_wrong_seed_is_run_again_by_the_command_that_ran_it() {
    let last = |args: &str, within: Option<&str>| {
        let output = soak_with("reference", args).args(within.map(|by| format!("--within={by}"))).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().last().map(str::to_owned).expect("a line")
    };
    let args = "--first 1 --seeds 20 --progress 0";
    let line = last(args, None);
    assert!(
        line.contains("run it again with: flexcast soak --image ") && line.contains("reference.elf --first "),
        "{line}"
    );
    let line = last(args, Some("cargo xtask sim"));
    assert!(line.contains("run it again with: cargo xtask sim --first "), "{line}");
}

#[test]
fn the_bar_counts_seeds() {
    let command = soak("--first 1 --seeds 3");
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<_> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    // A terminal for the bar. It is part of Debian's essential packages.
    let Ok(output) = Command::new("script").args(["-qec", &line.join(" "), "/dev/null"]).env("TERM", "xterm").output()
    else {
        skipped("script is not installed (Debian: bsdutils)");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("/3 seeds"), "{text}");
}

/// A cancellation that comes when all ranks have everything: the operation ends well, and there is no second one.
#[test]
fn a_late_cancellation_ends_a_case() {
    let output = soak("--first 355 --seeds 1").output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn it_reports_progress_and_ends_at_the_wall_limit() {
    let output = soak("--seeds 1000000 --jobs 1 --wall-limit 3 --progress 1").output().expect("it starts");
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(" of 1000000 seeds in ")).collect();
    assert!(lines.len() >= 2 && lines.iter().all(|line| line.contains("right, ")), "{said}");
    for words in ["with every byte on every rank", "(the wall limit is reached)", "slowest seeds (measured): "] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn interrupted_it_reports_what_has_come_out() {
    let mut child = soak("--seeds 1000000 --jobs 1 --progress 1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // It is under way: by then it takes signals, however long its start takes.
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines();
    assert!(said.any(|line| line.is_ok_and(|line| line.contains(" of 1000000 seeds in "))), "no progress");
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
    assert!(text.contains("(interrupted)") && text.contains(" cases from seed "), "{text}");
}

#[test]
fn shards_of_a_range_have_every_seed_once() {
    let seeds = |shard: &str| {
        let report = json(&mut soak(&format!("--first 7 --seeds 5 --shard {shard} --json --progress 0")));
        let slowest = report["slowest"].as_array().expect("a list").iter();
        let mut seeds: Vec<u64> = slowest.filter_map(|seed| seed["seed"].as_u64()).collect();
        seeds.sort_unstable();
        assert_eq!(report["seeds"], seeds.len(), "{report}");
        seeds
    };
    assert_eq!((seeds("1/2"), seeds("2/2")), (vec![7, 9, 11], vec![8, 10]));
    let refused = soak("--first 7 --shard 3/2").output().expect("it starts");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("I from 1 to N"), "{text}");
}
