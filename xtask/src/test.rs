use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::toolchain::Toolchain;
use crate::{bindgen, coverage, emu_libs, fuzz, header, hot_loops, process, status, test_programs, verify, workspace};

/// Format check, images, lints and all tests.
#[derive(clap::Args)]
pub(crate) struct Test {
    /// Add what takes long: fuzzing beyond the committed inputs, many more seeds, orders of threads, and the tests of
    /// the command-line tool with the profile that users get.
    #[arg(long)]
    long: bool,
    /// Run the steps whose name contains this word only.
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
}

type Step = (&'static str, fn(&Run) -> Result<()>);

/// What all steps of a run share.
pub(crate) struct Run {
    /// Long tests are asked for.
    pub(crate) long: bool,
    /// Tests and steps that were skipped, each with the reason: `NAME: REASON`.
    skipped: Mutex<Vec<String>>,
    /// Tests that are run by a command of their own, each with that: `NAME: REASON: COMMAND`.
    ignored: Mutex<Vec<String>>,
}

impl Run {
    fn new(long: bool) -> Self {
        Self { long, skipped: Mutex::default(), ignored: Mutex::default() }
    }

    /// Notes a test or a step that was skipped, as `NAME: REASON`.
    pub(crate) fn skipped(&self, what: String) {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Notes a test that only a command of its own runs, `--long` or not, as `NAME: REASON: COMMAND`.
    pub(crate) fn ignored(&self, what: String) {
        self.ignored.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Prints what was skipped or ignored, a line each, and gives the words for the last line.
    fn tell_omitted(&self) -> Result<String> {
        let mut words = Vec::new();
        for (verdict, list) in [("skipped", &self.skipped), ("ignored", &self.ignored)] {
            let list = std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner));
            for line in &list {
                status::print(format_args!("{verdict:>12}  {line}"))?;
            }
            words.push(format!("{verdict}: {}", names_of(&list)));
            if verdict == "ignored" && !list.is_empty() {
                words.push(format!("{} that only the commands above run", list.len()));
            }
        }
        Ok(words.join("; "))
    }
}

/// Phases one after another, in each of them lanes side by side, in each lane steps one after another.
type Phase = &'static [&'static [Step]];

/// A lane has cargo's lock of a folder for itself: one builds in the folder of device/, another in that of the host.
/// Each leaves processors idle by itself, where one crate waits for another. What fails fast comes first in its lane.
/// The host tests load the images and the C libraries.
const PHASES: &[Phase] = &[
    &[
        &[
            ("format", |_| format()),
            ("device images", |_| images()),
            ("hot-loops", |_| hot_loops::check()),
            ("coverage", |_| coverage::check()),
            ("flexcast.h", |_| header::check()),
            ("device library", |_| emu_libs::build_device(workspace::TESTS_PROFILE).map(drop)),
        ],
        &[
            // At once with the crates that they test, which are what the libraries are made of.
            ("test programs", |_| test_programs::build().map(drop)),
            ("emulator libraries", |_| emu_libs::build_host(workspace::TESTS_PROFILE).map(drop)),
            // Before the tests, which run cargo, too: it locks the folder that it builds in, where build scripts and
            // macros have been built by now.
            ("lints", |_| lints()),
        ],
    ],
    // No other step needs what these make.
    &[
        &[("host tests", test_programs::run)],
        &[("device lints", |_| device_lints()), ("device tests", |_| device_tests())],
        &[("fuzz targets", fuzz::step), ("bindings", bindings)],
    ],
    &[&[("interleavings", interleavings)]],
];

impl Test {
    pub(crate) fn all() -> Self {
        Self { long: false, only: None }
    }

    pub(crate) fn run(&self) -> Result<()> {
        let chosen = |(name, _): &&Step| self.only.as_ref().is_none_or(|word| name.contains(word.as_str()));
        let names = || PHASES.iter().copied().flatten().copied().flatten().map(|(name, _)| *name);
        let lanes = |phase: &Phase| phase.iter().map(|lane| lane.iter().filter(chosen).collect()).collect();
        let phases: Vec<Vec<Vec<&Step>>> = PHASES.iter().map(lanes).collect();
        if phases.iter().flatten().flatten().next().is_none() {
            bail!("no step is named so; there are: {}", names().collect::<Vec<_>>().join(", "));
        }
        run_phases(&Run::new(self.long), &phases)
    }
}

/// How a step ended.
struct Ended {
    name: &'static str,
    seconds: f64,
    failure: Option<String>,
}

impl Ended {
    fn run(run: &Run, (name, step): &Step) -> Self {
        status::say("Step", name);
        let start = Instant::now();
        let failure = step(run).err().map(|error| format!("{name}: {error:#}"));
        if let Some(failure) = &failure {
            status::error(failure);
        }
        Self { name, seconds: start.elapsed().as_secs_f64(), failure }
    }
}

/// Runs all steps even where one fails. The last lines name what failed, and the tests that were skipped or ignored.
fn run_phases(run: &Run, phases: &[Vec<Vec<&Step>>]) -> Result<()> {
    let start = Instant::now();
    let ended: Vec<Ended> = phases.iter().flat_map(|lanes| run_phase(run, lanes)).collect();
    for Ended { name, seconds, failure } in &ended {
        let verdict = if failure.is_none() { "ok" } else { "FAILED" };
        status::print(format_args!("{verdict:>12}  {name:<20} {seconds:7.1} s"))?;
    }
    let omitted = run.tell_omitted()?;
    let count = ended.len();
    let failures: Vec<String> = ended.into_iter().filter_map(|ended| ended.failure).collect();
    let seconds = start.elapsed().as_secs_f64();
    if failures.is_empty() {
        status::print(format_args!("{:>12}  {count} steps passed in {seconds:.1} s; {omitted}", ""))?;
        return Ok(());
    }
    bail!("{} of {count} steps failed in {seconds:.1} s:\n  {}\n{omitted}", failures.len(), failures.join("\n  "))
}

/// Names in lines `NAME: REASON`, each once.
fn names_of(lines: &[String]) -> String {
    let names: BTreeSet<&str> = lines.iter().map(|line| line.split(": ").next().unwrap_or(line)).collect();
    if names.is_empty() { "none".to_owned() } else { names.into_iter().collect::<Vec<_>>().join(", ") }
}

/// Runs lanes side by side; how their steps ended, lane by lane.
fn run_phase(run: &Run, lanes: &[Vec<&Step>]) -> Vec<Ended> {
    std::thread::scope(|scope| {
        let steps = |lane: &[&Step]| -> Vec<Ended> { lane.iter().map(|step| Ended::run(run, step)).collect() };
        let running: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || steps(lane))).collect();
        running
            .into_iter()
            .flat_map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn format() -> Result<()> {
    process::run(workspace::cargo().args(["fmt", "--all", "--check"]))?;
    process::run(workspace::device_cargo().args(["fmt", "--all", "--check"]))
}

fn images() -> Result<()> {
    verify::build_and_verify(&Toolchain::load("emu")?, &[]).map(drop)
}

/// Orders of threads at a communicator, tried by a checker that replaces locks: of `--long` alone, since it compiles
/// the library once more.
fn interleavings(run: &Run) -> Result<()> {
    if !run.long {
        run.skipped("orders of threads at a communicator: `cargo xtask test --long` runs them".to_owned());
        return Ok(());
    }
    let features = ["--features", "interleavings", "--lib", "interleavings"];
    process::run(workspace::cargo().args(["test", "--package", "flexcast"]).args(features))
}

/// The committed bindings against their headers.
fn bindings(run: &Run) -> Result<()> {
    match bindgen::check() {
        Err(error) if format!("{error:#}").contains("libclang") => {
            run.skipped("bindings: bindgen finds no libclang (Debian: libclang-dev)".to_owned());
            Ok(())
        }
        checked => checked,
    }
}

/// Queue logic, the datapath and the macros, on the host.
fn device_tests() -> Result<()> {
    let mut command = workspace::device_cargo();
    process::run(command.args(["test", "--workspace", "--no-fail-fast"]).envs(test_programs::fixed_seed()))
}

/// The compiler that lints what it builds, as the integration machine has it: then there is no pass for lints alone.
fn linting_compiler() -> Option<PathBuf> {
    let compiler = PathBuf::from(std::env::var_os("RUSTC_WORKSPACE_WRAPPER")?);
    (compiler == workspace::root().join(".ci/lint")).then_some(compiler)
}

/// A program that compiles, and that clippy warns of, must be refused.
fn check_that_it_lints(compiler: &Path) -> Result<()> {
    let arguments = ["rustc", "-", "--crate-name", "lint_check", "--emit", "metadata", "--out-dir"];
    let mut command = Command::new(compiler);
    command.args(arguments).arg(workspace::target_dir()?).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting `{}`", process::line(&command)))?;
    if let Some(mut source) = child.stdin.take() {
        source.write_all(b"fn main() { assert!(String::new().len() == 0); }")?;
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !text.contains("clippy::len-zero") {
        bail!("{} does not lint what it compiles: {text}", compiler.display());
    }
    Ok(())
}

/// The library as programs build it that want no service processes.
fn without_service() -> Result<()> {
    let mut command = workspace::cargo();
    if linting_compiler().is_some() {
        // The compiler lints. With the features of these packages all that the library depends on has been built for
        // the tests.
        command.args(["build", "--lib", "--package", "flexcast", "--package", "flexio", "--package", "xtask"]);
        command.args(["--features", "flexio/defmt", "--config", "profile.dev.package.flexcast.opt-level=0"]);
        return process::run(command.args(["--quiet", "--no-default-features"]));
    }
    command.args(["clippy", "--quiet", "--package", "flexcast", "--lib", "--no-default-features"]);
    process::run(command.args(DENY))
}

/// What `cargo clippy` takes for warnings to be errors.
const DENY: [&str; 3] = ["--", "--deny", "warnings"];

fn lints() -> Result<()> {
    match linting_compiler() {
        Some(compiler) => {
            check_that_it_lints(&compiler)?;
            // All other targets are built for the tests.
            process::run(workspace::cargo().args(["build", "--quiet", "--workspace", "--benches"]))?;
        }
        None => {
            process::run(workspace::cargo().args(["clippy", "--quiet", "--workspace", "--all-targets"]).args(DENY))?;
        }
    }
    without_service()
}

fn device_lints() -> Result<()> {
    let toolchain = Toolchain::load("emu")?;
    let mut device: Command = workspace::device_cargo();
    device.args(["clippy", "--quiet", "--workspace", "--target", &toolchain.rust.target]);
    // Macros run where the compiler runs.
    device.args(["--exclude", "dpa-macros", "--config", &toolchain.cargo_config(&toolchain.rustflags()?)]);
    process::run(device.args(DENY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_step_does_not_stop_the_others_and_is_named() {
        static RAN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = |_: &Run| {
            RAN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        let steps: [Step; 4] = [("one", count), ("two", |_| bail!("broken")), ("three", count), ("four", count)];
        let [one, two, three, four] = &steps;
        let error = run_phases(&Run::new(false), &[vec![vec![one], vec![two, three]], vec![vec![four]]])
            .expect_err("one fails")
            .to_string();
        assert_eq!(RAN.load(std::sync::atomic::Ordering::Relaxed), 3);
        assert!(error.starts_with("1 of 4 steps failed") && error.contains("two: broken"), "{error}");
    }

    #[test]
    fn lanes_of_a_phase_run_side_by_side_and_phases_one_after_another() {
        static BOTH: std::sync::Barrier = std::sync::Barrier::new(2);
        static ENDED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        // Neither ends without the other.
        let meet = |_: &Run| {
            BOTH.wait();
            ENDED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        let last = |_: &Run| match ENDED.load(std::sync::atomic::Ordering::Relaxed) {
            2 => Ok(()),
            ended => bail!("{ended} of 2 have ended"),
        };
        let steps: [Step; 3] = [("one", meet), ("other", meet), ("last", last)];
        run_phases(&Run::new(false), &[vec![vec![&steps[0]], vec![&steps[1]]], vec![vec![&steps[2]]]])
            .expect("all work");
    }

    #[test]
    fn skipped_and_ignored_tests_are_named_once_in_the_last_line() {
        let run = Run::new(false);
        for line in ["b: no gdb", "a: no tshark", "b: no qemu"] {
            run.skipped(line.to_owned());
        }
        let step: Step = ("broken", |_| bail!("broken"));
        let error = run_phases(&run, &[vec![vec![&step]]]).expect_err("it fails").to_string();
        assert_eq!(error.lines().last(), Some("skipped: a, b; ignored: none"), "{error}");
        let run = Run::new(true);
        for name in ["larger", "largest"] {
            run.ignored(format!("{name}: minutes: cargo test -p x -- --ignored"));
        }
        let error = run_phases(&run, &[vec![vec![&step]]]).expect_err("it fails").to_string();
        let last = "skipped: none; ignored: larger, largest; 2 that only the commands above run";
        assert_eq!(error.lines().last(), Some(last), "{error}");
        assert_eq!(names_of(&[]), "none");
    }

    #[test]
    fn an_unknown_step_lists_the_known_ones() {
        let error =
            Test { long: false, only: Some("flashing".to_owned()) }.run().expect_err("no such step").to_string();
        assert!(error.contains("format, device images, hot-loops, coverage"), "{error}");
    }
}
