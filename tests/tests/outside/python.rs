//! The Python package over the library as `cargo xtask install` leaves it, by Python's own library alone: its
//! interface, its collectives on buffers, and its backend of torch.distributed by a stub of the contract of process
//! groups (`adapters/torch/tests/c10d_stub`). numpy and torch themselves are for `cargo xtask python-check`.

use std::process::Command;
use std::time::Duration;

use flexcast_tests::examples::{Rank, allgather};
use flexcast_tests::workspace_root;

/// Longest that the tests may take; they need seconds.
const BOUND: Duration = Duration::from_secs(240);
/// Python tests to run, and how many of them need neither numpy nor torch.
const TESTS: [&str; 3] = ["test_interface", "test_collectives", "test_c10d.Stub"];
const AT_LEAST: u64 = 32;
/// Results that their ranks compare, at least.
const COMPARISONS: u64 = 3500;

/// The number before a word of the totals.
fn before(totals: &str, word: &str) -> u64 {
    let words: Vec<&str> = totals.split([' ', ',', ';']).filter(|part| !part.is_empty()).collect();
    let place = words.iter().position(|&found| found == word);
    let number = place.and_then(|place| words[place.checked_sub(1)?].parse().ok());
    number.unwrap_or_else(|| panic!("no number of {word} in {totals:?}"))
}

#[test]
fn the_package_and_its_backend_of_torch_pass_by_a_stub_of_the_contract() {
    let version = Command::new("python3").args(["-c", "import sys; print(sys.version_info >= (3, 10))"]).output();
    let version = version.expect("python3 is needed (Debian: `apt-get install python3`)");
    assert_eq!(String::from_utf8_lossy(&version.stdout).trim(), "True", "python3 must be 3.10 or later");

    let scratch = tempfile::tempdir().expect("a folder");
    let package = workspace_root().join("adapters/torch");
    let mut tests = Command::new("python3");
    tests.arg(package.join("tests")).args(TESTS).current_dir(scratch.path());
    tests.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
    tests.env("FLEXCAST_LIBRARY", allgather(true).prefix().join("lib/libflexcast.so"));
    let (success, text) = Rank::start(&mut tests, scratch.path(), "python").end(BOUND);
    let totals = text.lines().rfind(|line| line.contains(" passed, ")).unwrap_or_else(|| panic!("no totals:\n{text}"));
    assert!(success && before(totals, "failed") == 0, "{text}");
    assert!(before(totals, "passed") >= AT_LEAST && before(totals, "comparisons") >= COMPARISONS, "{totals}\n{text}");
    println!("{totals}");
}
