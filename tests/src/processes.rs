//! Libraries of the emulator, and bounded waits, for tests with processes: those of other packages include this file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Names the folder of the libraries where they have been built: by `cargo xtask test`, for all test programs.
pub const LIBRARIES: &str = "FLEXCAST_EMU_LIBS";

/// The folder of the libraries: the one that [`LIBRARIES`] names, or else built once per test program as
/// `cargo xtask build-emu-libs` does.
///
/// # Panics
/// They cannot be built; the output of the build says why.
#[must_use]
pub fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(folder) = std::env::var_os(LIBRARIES) {
            return folder.into();
        }
        let output = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--package", "xtask", "--", "build-emu-libs", "--profile", "dev"])
            .output()
            .expect("cargo can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo xtask build-emu-libs failed:\n{text}");
        let folder = String::from_utf8(output.stdout).expect("a path in UTF-8");
        PathBuf::from(folder.lines().last().expect("it prints the folder"))
    })
}

/// Polls until there is something.
///
/// # Panics
/// It does not come within the bound.
pub fn until<T>(what: &str, bound: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < bound, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}
