//! Images that do not depend on the folder they are built in.
//!
//! Cargo has rustc distinguish packages by `-C metadata`, a hash that takes the absolute path of every package outside
//! the workspace: for device/, all of shared/. The hash goes into symbol names, these into the order in which rustc
//! lays functions out, and the order into cache lines: the same sources in two folders gave images of different virtual
//! times. So cargo calls rustc through this program, which puts in place of the hash one of what it stands for. A
//! wrapper that the environment names (`RUSTC_WRAPPER`) is called in turn.
//!
//! It also gives the folder of the repository one name in what rustc writes. As a flag of cargo's that would have all
//! crates compiled anew, those of others included, wherever two copies of the tree share a folder to build in.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, ExitCode};

use sha2::{Digest as _, Sha256};

use crate::{status, workspace};

/// Says that this process stands for rustc, and holds the wrapper that it replaces in the environment, if there is one.
const WRAPPED: &str = "FLEXCAST_RUSTC_WRAPPED";

/// Lets `cargo` call rustc through this program.
pub(crate) fn wrap(cargo: &mut Command) {
    // Without the path of this program there is nothing to call; the images are right then, but not the same
    // everywhere.
    let Ok(own) = std::env::current_exe() else { return };
    let next = std::env::var_os("RUSTC_WRAPPER").filter(|_| std::env::var_os(WRAPPED).is_none()).unwrap_or_default();
    cargo.env("RUSTC_WRAPPER", own).env(WRAPPED, next);
}

/// Runs rustc if cargo called this program in its place.
pub(crate) fn run() -> Option<ExitCode> {
    let next = std::env::var_os(WRAPPED)?;
    let package = [crate_env("CARGO_PKG_NAME"), crate_env("CARGO_PKG_VERSION")];
    let arguments = with_fixed_metadata(std::env::args_os().skip(1), &package);
    let arguments = with_named_root(arguments, workspace::root());
    let mut words = Some(next).filter(|next| !next.is_empty()).into_iter().chain(arguments);
    let Some(program) = words.next() else {
        status::error(&format!("{WRAPPED} is set, but no compiler is named; unset it"));
        return Some(ExitCode::FAILURE);
    };
    let mut rustc = Command::new(program);
    rustc.args(words);
    // Replaces this process: only a failure returns.
    let error = std::os::unix::process::CommandExt::exec(&mut rustc);
    status::error(&format!("{error}: {}", crate::process::line(&rustc)));
    Some(ExitCode::FAILURE)
}

fn crate_env(name: &str) -> OsString {
    std::env::var_os(name).unwrap_or_default()
}

/// The arguments with a hash of the package, the kind of crate, its features and its target in place of `metadata`.
/// What else cargo hashes (profile, flags) is the same for all crates of one build.
fn with_fixed_metadata(arguments: impl Iterator<Item = OsString>, package: &[OsString]) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.collect();
    let Some(at) = arguments.windows(2).position(|pair| pair[0] == "-C" && is_metadata(&pair[1])) else {
        return arguments;
    };
    let mut hash = Sha256::new();
    let mut add = |word: &OsStr| {
        hash.update(word.len().to_le_bytes());
        hash.update(word.as_encoded_bytes());
    };
    package.iter().for_each(|word| add(word));
    for pair in arguments.windows(2) {
        if ["--crate-name", "--crate-type", "--cfg", "--target"].iter().any(|option| pair[0] == *option) {
            add(&pair[0]);
            add(&pair[1]);
        }
    }
    let digest = hash.finalize();
    let hex: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    arguments[at + 1] = format!("metadata={hex}").into();
    arguments
}

/// The arguments with a name for the folder of the repository, where they compile for a card: after the names of
/// folders above it, as the last match wins.
fn with_named_root(mut arguments: Vec<OsString>, root: &Path) -> Vec<OsString> {
    if arguments.windows(2).any(|pair| pair[0] == "--crate-name") && arguments.iter().any(|word| word == "--target") {
        let mut name = OsString::from("--remap-path-prefix=");
        name.extend([root.as_os_str(), OsStr::new("="), OsStr::new(workspace::ROOT_NAME)]);
        arguments.push(name);
    }
    arguments
}

fn is_metadata(argument: &OsStr) -> bool {
    argument.as_encoded_bytes().starts_with(b"metadata=")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(line: &str, package: &str) -> Vec<String> {
        let words = line.split(' ').map(OsString::from);
        let fixed = with_fixed_metadata(words, &[package.into(), "0.1.0".into()]);
        fixed.into_iter().map(|word| word.into_string().expect("UTF-8")).collect()
    }

    const LINE: &str =
        "rustc --crate-name proto --crate-type lib --cfg a -C metadata=0123 -C extra-filename=-4567 /a/lib.rs";

    #[test]
    fn the_hash_of_paths_goes_and_nothing_else() {
        let (one, two) = (fixed(LINE, "proto"), fixed(&LINE.replace("0123", "89ab"), "proto"));
        assert_eq!(one, two, "cargo's hash has no say");
        assert_eq!(one.len(), LINE.split(' ').count());
        for (now, before) in one.iter().zip(LINE.split(' ')) {
            assert!(now == before || now.starts_with("metadata="), "{now} for {before}");
        }
    }

    #[test]
    fn crates_that_differ_stay_distinct() {
        let all = [
            fixed(LINE, "proto"),
            fixed(LINE, "other"),
            fixed(&LINE.replace("--cfg a", "--cfg b"), "proto"),
            fixed(&LINE.replace("--cfg a", "--cfg a --target t"), "proto"),
            fixed(&LINE.replace("type lib", "type bin"), "proto"),
        ];
        let hash = |line: &Vec<String>| line.iter().find(|word| word.starts_with("metadata=")).expect("one").clone();
        let distinct: std::collections::BTreeSet<_> = all.iter().map(hash).collect();
        assert_eq!(distinct.len(), all.len(), "{distinct:?}");
    }

    #[test]
    fn the_root_is_named_last_and_for_cards_alone() {
        let named = |line: &str| {
            let words = with_named_root(line.split(' ').map(OsString::from).collect(), Path::new("/home/a/flexcast"));
            words.into_iter().map(|word| word.into_string().expect("UTF-8")).collect::<Vec<_>>().join(" ")
        };
        let card = format!("{LINE} --target t --remap-path-prefix=/home/a=home");
        assert_eq!(named(&card), format!("{card} --remap-path-prefix=/home/a/flexcast=flexcast"));
        assert_eq!(named(LINE), LINE);
        assert_eq!(named("rustc -vV"), "rustc -vV");
    }

    #[test]
    fn questions_to_rustc_pass_as_they_are() {
        assert_eq!(fixed("rustc -vV", "").join(" "), "rustc -vV");
        assert_eq!(fixed("clippy-driver rustc - --print cfg", "").join(" "), "clippy-driver rustc - --print cfg");
    }
}
