use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::{process, status, workspace};

/// Run tests under Miri, which sees undefined behaviour that a processor does not show.
///
/// It runs the unit tests of the firmware's library (dpa), the tests of the receive datapath with rings in memory, the
/// crates that both sides share, and the emulated card's accesses to host memory. Long tests are shortened or ignored
/// there (`cfg(miri)`), properties draw few cases.
///
/// What it does not run, and why:
///
/// - The state spaces of shared/proto (tests/model, reuse, silent, published_rule, baseline, exchange): millions of
///   states, and the crate forbids unsafe code.
///
/// - The firmware as a card runs it (device/rt-emu, device/virt, the assembly of device/dpa/src/arch): machine code of
///   another processor, which Miri does not execute. The emulated card does.
///
/// - What crosses C interfaces or reaches memory by its number: emu/lib*, emu/machine beyond that, emu/bridge,
///   host/*-sys, host/flexio and all above them, tests/: loaded libraries, sockets, system calls that Miri does not
///   have. Fuzzing has that side (`cargo xtask fuzz`).
#[derive(clap::Args)]
pub(crate) struct Miri {
    /// Run the parts whose name contains this word only (shared/hw, shared/abi, shared/isa, shared/proto, emu/machine,
    /// device/dpa, device/datapath).
    #[arg(value_name = "PART")]
    part: Option<String>,
    /// How long a part may take, in seconds of wall time, compiling included.
    #[arg(long, value_name = "N", default_value_t = 1200)]
    seconds: u64,
}

/// Packages of one workspace that run with the same flags.
struct Part {
    /// Its folder.
    name: &'static str,
    /// Arguments of `cargo miri test`.
    tests: &'static [&'static str],
    /// Flags of Miri.
    flags: &'static str,
}

/// The shared crates cast no number to a pointer. Their properties ask for the time and for a folder, which tests may
/// not when isolated.
const SHARED: &str = "-Zmiri-strict-provenance -Zmiri-disable-isolation";
/// Addresses come to the firmware, and to an emulated card, as numbers.
const DEVICE: &str = "-Zmiri-permissive-provenance";

/// What fails fast comes first.
const PARTS: &[Part] = &[
    Part { name: "device/dpa", tests: &["--package", "dpa", "--features", "log", "--lib"], flags: DEVICE },
    Part { name: "shared/hw", tests: &["--package", "flexcast-hw", "--lib"], flags: SHARED },
    Part { name: "shared/abi", tests: &["--package", "flexcast-abi", "--lib", "--tests"], flags: SHARED },
    Part {
        name: "shared/isa",
        tests: &["--package", "flexcast-isa", "--test", "decode", "--test", "strings"],
        flags: SHARED,
    },
    Part { name: "shared/proto", tests: &["--package", "flexcast-proto", "--lib"], flags: SHARED },
    Part {
        name: "shared/proto/tests",
        tests: &[
            "--package",
            "flexcast-proto-tests",
            "--test",
            "proto",
            "--",
            "wire::",
            "chains::",
            "agreement::",
            "--skip=service_wire::",
            "--skip=sparse_wire::",
        ],
        flags: SHARED,
    },
    Part { name: "emu/machine", tests: &["--package", "emu-machine", "--lib", "host_memory"], flags: DEVICE },
    Part { name: "device/datapath", tests: &["--package", "datapath", "--lib", "--tests"], flags: DEVICE },
];

/// The toolchain that has Miri; everything else is built by that of rust-toolchain.toml.
const TOOLCHAIN: &str = "nightly";
const INSTALL: &str = "rustup toolchain install nightly --component miri,rust-src";
/// Cases that a property draws.
const CASES: &str = "2";

impl Miri {
    pub(crate) fn run(&self) -> Result<()> {
        let parts: Vec<&Part> = PARTS
            .iter()
            .filter(|part| self.part.as_ref().is_none_or(|word| part.name.contains(word.as_str())))
            .collect();
        if parts.is_empty() {
            let names = PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
            bail!("no part is named so; there are: {names}");
        }
        if let Some(missing) = missing()? {
            status::warn(format_args!("skipped, because {missing}"));
            return Ok(());
        }
        let (mut lines, mut failures) = (Vec::new(), Vec::new());
        for part in parts {
            status::say("Miri", part.name);
            let start = Instant::now();
            let result = self.test(part);
            let seconds = start.elapsed().as_secs_f64();
            let mark = if result.is_ok() { "ok" } else { "FAILED" };
            lines.push(format!("{mark:>12}  {:<24} {seconds:7.1} s", part.name));
            failures.extend(result.err().map(|error| format!("{}: {error:#}", part.name)));
        }
        lines.iter().try_for_each(status::print)?;
        if !failures.is_empty() {
            bail!("{} of {} parts failed:\n  {}", failures.len(), lines.len(), failures.join("\n  "));
        }
        Ok(())
    }

    fn test(&self, part: &Part) -> Result<()> {
        let mut command = self.command(part)?;
        // `timeout` ends what cargo started, too.
        let status = command.status().with_context(|| process::line(&command))?;
        match status.code() {
            Some(0) => Ok(()),
            Some(124) => {
                bail!("not done within {} s (--seconds N gives it more): {}", self.seconds, process::line(&command))
            }
            _ => bail!("{status}: {}", process::line(&command)),
        }
    }

    fn command(&self, part: &Part) -> Result<Command> {
        let device = part.name.starts_with("device/");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &self.seconds.to_string()]);
        command.args(["rustup", "run", TOOLCHAIN, "cargo", "miri", "test"]).args(part.tests);
        command.current_dir(if device { workspace::root().join("device") } else { workspace::root().to_owned() });
        // A folder for each workspace, separate from what is built for running.
        command.env("CARGO_TARGET_DIR", target_dir()?.join(if device { "device" } else { "host" }));
        command.env("MIRIFLAGS", part.flags).env("PROPTEST_CASES", CASES);
        if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            command.env("PROPTEST_RNG_SEED", "1");
        }
        for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
            command.env_remove(variable);
        }
        Ok(command)
    }
}

fn target_dir() -> Result<PathBuf> {
    Ok(workspace::target_dir()?.join("miri"))
}

/// What is missing to run Miri, and how to get it.
fn missing() -> Result<Option<String>> {
    if let Some(absent) = absent()? {
        return Ok(Some(absent));
    }
    status::say("Preparing", "the standard library for Miri");
    let (prepared, text) = nightly(&["cargo", "miri", "setup"])?;
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned();
    Ok((!prepared).then(|| format!("rustup run {TOOLCHAIN} cargo miri setup failed, which fetches crates: {last}")))
}

/// What of its programs is not installed, and how to get it.
pub(crate) fn absent() -> Result<Option<String>> {
    if process::find("rustup").is_none() {
        return Ok(Some(format!("rustup is not installed: https://rustup.rs, then {INSTALL}")));
    }
    if !nightly(&["cargo", "miri", "--version"])?.0 {
        return Ok(Some(format!("the toolchain {TOOLCHAIN} has no Miri: {INSTALL}")));
    }
    let (_, sysroot) = nightly(&["rustc", "--print", "sysroot"])?;
    if !PathBuf::from(sysroot.trim()).join("lib/rustlib/src/rust/library").is_dir() {
        return Ok(Some(format!("the toolchain {TOOLCHAIN} has no sources of the standard library: {INSTALL}")));
    }
    Ok(None)
}

/// Runs a program of the toolchain: whether it succeeded, and what it said.
fn nightly(arguments: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new("rustup");
    command.args(["run", TOOLCHAIN]).args(arguments).current_dir(workspace::root()).stdin(Stdio::null());
    let output = command.output().with_context(|| process::line(&command))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_folders_with_the_packages_that_they_name() {
        for part in PARTS {
            let manifest =
                std::fs::read_to_string(workspace::root().join(part.name).join("Cargo.toml")).expect(part.name);
            assert_eq!(part.tests[0], "--package");
            assert!(manifest.contains(&format!("name = \"{}\"", part.tests[1])), "{}", part.name);
            for pair in part.tests.windows(2).filter(|pair| pair[0] == "--test") {
                // The manifest names the program of a package of tests.
                let file = format!("{}/tests/{}.rs", part.name, pair[1]);
                let named = manifest.contains(&format!("[[test]]\nname = \"{}\"\n", pair[1]));
                assert!(named || workspace::root().join(&file).is_file(), "{file}");
            }
            for module in part.tests.iter().filter_map(|argument| argument.strip_suffix("::")) {
                let module = module.trim_start_matches("--skip=");
                let file = workspace::root().join(part.name).join(module);
                assert!(file.is_dir() || file.with_extension("rs").is_file(), "{module}");
            }
        }
    }

    #[test]
    fn an_unknown_part_lists_the_known_ones() {
        let error = Miri { part: Some("toaster".to_owned()), seconds: 1 }.run().expect_err("no such part").to_string();
        assert!(error.contains("device/dpa, shared/hw"), "{error}");
    }
}
