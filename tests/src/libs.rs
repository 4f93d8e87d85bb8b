//! The emulator's C libraries, and programs that run on them.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

pub use crate::processes::{LIBRARIES, libraries};

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
