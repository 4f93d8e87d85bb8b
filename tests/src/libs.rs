//! The emulator's C libraries, and programs that run on them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::workspace_root;

/// Names the folder of the libraries where they have been built: by `cargo xtask test`, for all test programs.
pub const LIBRARIES: &str = "FLEXCAST_EMU_LIBS";

/// The folder of the libraries: the one that [`LIBRARIES`] names, or else built once per test program as `cargo xtask build-emu-libs` does.
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
            .current_dir(workspace_root())
            .output()
            .expect("cargo can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo xtask build-emu-libs failed:\n{text}");
        let folder = String::from_utf8(output.stdout).expect("a path in UTF-8");
        PathBuf::from(folder.lines().last().expect("it prints the folder"))
    })
}

/// How a program ended; `None` if it did not within `bound`, and was killed.
///
/// # Panics
/// The program cannot be waited for.
pub fn wait_for(child: &mut Child, bound: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the program can be waited for") {
            return Some(status);
        }
        if start.elapsed() > bound {
            child.kill().expect("the program can be ended");
            child.wait().expect("the program has ended");
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
