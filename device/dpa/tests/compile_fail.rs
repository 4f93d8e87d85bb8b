//! Misuse that safe firmware must not get past the compiler: memory made up, made longer, taken for another kind's, or
//! copied.
//!
//! Each file of `compile-fail` is firmware without the feature that is the host's; a comment `//~ WORD` ends each line
//! that must be refused, with a word of the message (its code). One run of cargo checks them all.
#![cfg(not(miri))]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Line and message.
type Errors = BTreeSet<(usize, String)>;

fn cases(dir: &Path) -> BTreeMap<String, PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

/// A package outside the workspace with an example for each case.
fn write_package(package: &Path, cases: &BTreeMap<String, PathBuf>) {
    let device = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let path = |folder: &str| device.join(folder).canonicalize().unwrap();
    let mut manifest = format!(
        "[package]\nname = \"misuse\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[profile.dev]\npanic \
         = \"abort\"\n\n\
         [lib]\npath = {:?}\n\n[dependencies]\ndpa = {{ path = {:?} }}\n\
         flexcast-abi = {{ path = {:?}, default-features = false }}\n\
         zerocopy = {{ version = \"0.8\", features = [\"derive\"] }}\n",
        cases["right"],
        path("dpa"),
        path("../shared/abi"),
    );
    for (name, file) in cases.iter().filter(|(name, _)| *name != "right") {
        write!(manifest, "\n[[example]]\nname = {name:?}\npath = {file:?}\ncrate-type = [\"lib\"]\n").unwrap();
    }
    fs::create_dir_all(package).unwrap();
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // The versions that the firmware is built with.
    fs::copy(device.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
}

fn found(package: &Path) -> (BTreeMap<String, Errors>, String) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.args(["check", "--lib", "--examples", "--keep-going", "--offline", "--message-format=short"]);
    command.current_dir(package).env("CARGO_TARGET_DIR", target).env_remove("RUSTFLAGS");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let mut found: BTreeMap<String, Errors> = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.splitn(4, ':');
        let (Some(file), Some(number), Some(_), Some(message)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (Some(case), Ok(number)) = (Path::new(file).file_stem(), number.parse()) else { continue };
        if file.ends_with(".rs") && message.trim_start().starts_with("error") {
            let of_case = found.entry(case.to_str().unwrap().to_owned()).or_default();
            of_case.insert((number, message.trim().to_owned()));
        }
    }
    (found, text)
}

fn expected(file: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(file).unwrap();
    let marks = (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, line.split_once("//~ ")?.1)));
    marks.map(|(number, word)| (number, word.trim().to_owned())).collect()
}

#[test]
fn misuse_does_not_compile_and_the_right_use_does() {
    let cases = cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile-fail"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("misuse");
    write_package(&package, &cases);
    let (mut found, text) = found(&package);
    assert!(!found.contains_key("right") && text.contains("misuse"), "{text}");
    let mut wrong = String::new();
    for (name, file) in cases {
        let expected = expected(&file);
        assert!(name == "right" || !expected.is_empty(), "{name} marks no line");
        let errors = found.remove(&name).unwrap_or_default();
        let refused =
            |mark: &(usize, String)| errors.iter().any(|error| error.0 == mark.0 && error.1.contains(&mark.1));
        let marked = |error: &(usize, String)| expected.iter().any(|mark| mark.0 == error.0);
        let fits = expected.iter().all(refused) && errors.iter().all(marked);
        if !fits {
            writeln!(wrong, "{name}: expected {expected:?}, found {errors:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(found.is_empty(), "{text}");
}
