//! Length of a test run, and report of skipped tests.
//!
//! A test that lacks a program or a permission writes one line, `SKIPPED TEST: REASON`, and returns. `cargo xtask test`
//! collects these lines and names the tests in its last line.

use std::fmt::Display;
use std::io::Write as _;

/// Asks for long tests: more seeds, and the command-line tool with the profile that users get.
/// `cargo xtask test --long` sets it.
pub const LONG_TESTS: &str = "FLEXCAST_LONG_TESTS";

/// Whether long tests are asked for.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os(LONG_TESTS).is_some_and(|value| !value.is_empty())
}

/// Reports the running test as skipped, with the reason.
///
/// The line goes to stderr directly: the test harness would keep what `eprintln!` prints of a test that passes.
pub fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {reason}\n", thread.name().unwrap_or("a test"));
    // Nobody is left to report to if stderr is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Whether a program is in `PATH`. Without it the running test is reported as skipped; `package` is Debian's name of
/// what to install.
#[must_use]
pub fn installed(program: &str, package: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        skipped(format_args!("{program} is not installed (Debian: {package})"));
    }
    found
}
