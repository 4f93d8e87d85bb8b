//! Inputs without libFuzzer.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{TARGETS, Target};

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// Runs a target on the files named on the command line. A panic, also one that the C interfaces catch, ends the
/// process.
#[must_use]
pub fn main(name: &str) -> ExitCode {
    let Some(target) = find(name) else {
        eprintln!("no target is named {name}");
        return ExitCode::FAILURE;
    };
    abort_on_panic();
    for file in std::env::args_os().skip(1).map(PathBuf::from) {
        match std::fs::read(&file) {
            Ok(bytes) => {
                eprintln!("{name}: {} ({} bytes)", file.display(), bytes.len());
                (target.run)(&bytes);
            }
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// The C interfaces turn panics into error codes; a fuzzer must see them. libFuzzer's programs have the same hook.
pub fn abort_on_panic() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        std::process::abort();
    }));
}

/// The committed inputs of a target: its seeds and its regressions, in the order of their names.
///
/// # Errors
/// A folder cannot be read.
pub fn committed(root: &Path, target: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in ["seeds", "regressions"] {
        let folder = root.join(folder).join(target);
        if folder.is_dir() {
            for entry in std::fs::read_dir(folder)? {
                files.push(entry?.path());
            }
        }
    }
    files.sort();
    Ok(files)
}
