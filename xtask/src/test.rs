use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::toolchain::Toolchain;
use crate::{coverage, doctor, emu_libs, fuzz, header, hot_loops, process, status, test_programs, verify, workspace};

/// Format check, images, lints and all tests.
#[derive(clap::Args)]
pub(crate) struct Test {
    /// Run the steps whose name contains this word only.
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
}

type Step = (&'static str, fn() -> Result<()>);

/// Phases one after another, in each of them lanes side by side, in each lane steps one after another.
type Phase = &'static [&'static [Step]];

/// What fails fast comes first, and the host tests load the images and the C libraries. A lane has cargo's lock of a folder for itself: one builds
/// in the folder of device/, another in that of the host. Each leaves processors idle by itself, where one crate waits for another.
const PHASES: &[Phase] = &[
    &[&[("format", format)]],
    &[
        &[
            ("device images", images),
            ("hot-loops.md", || hot_loops::check()),
            ("coverage.md", || coverage::check()),
            ("flexcast.h", || header::check()),
            ("device tests", device_tests),
        ],
        &[
            // At once with the crates that they test, which are what the libraries are made of.
            ("test programs", || test_programs::build().map(drop)),
            ("emulator libraries", || emu_libs::build_host(workspace::TESTS_PROFILE).map(drop)),
            // Before the tests, which run cargo, too: it locks the folder that it builds in, where build scripts and macros have been built by now.
            ("lints", lints),
        ],
    ],
    // Fuzzing takes processors that host tests leave idle; these have been built by now.
    &[&[("host tests", host_tests)], &[("fuzz targets", fuzz::step)]],
];

impl Test {
    pub(crate) fn all() -> Self {
        Self { only: None }
    }

    pub(crate) fn run(&self) -> Result<()> {
        let chosen = |(name, _): &&Step| self.only.as_ref().is_none_or(|word| name.contains(word.as_str()));
        let names = || PHASES.iter().copied().flatten().copied().flatten().map(|(name, _)| *name);
        let lanes = |phase: &Phase| phase.iter().map(|lane| lane.iter().filter(chosen).collect()).collect();
        let phases: Vec<Vec<Vec<&Step>>> = PHASES.iter().map(lanes).collect();
        if phases.iter().flatten().flatten().next().is_none() {
            bail!("no step is named so; there are: {}", names().collect::<Vec<_>>().join(", "));
        }
        run_phases(&phases)
    }
}

/// How a step ended.
struct Ended {
    name: &'static str,
    seconds: f64,
    failure: Option<String>,
}

impl Ended {
    fn run((name, step): &Step) -> Self {
        status::say("Step", name);
        let start = Instant::now();
        let failure = step().err().map(|error| format!("{name}: {error:#}"));
        if let Some(failure) = &failure {
            status::error(failure);
        }
        Self { name, seconds: start.elapsed().as_secs_f64(), failure }
    }
}

/// Runs all steps even where one fails; the failures are listed last.
fn run_phases(phases: &[Vec<Vec<&Step>>]) -> Result<()> {
    let start = Instant::now();
    let ended: Vec<Ended> = phases.iter().flat_map(|lanes| run_phase(lanes)).collect();
    for Ended { name, seconds, failure } in &ended {
        let verdict = if failure.is_none() { "ok" } else { "FAILED" };
        status::print(format_args!("{verdict:>12}  {name:<20} {seconds:7.1} s"))?;
    }
    let count = ended.len();
    let failures: Vec<String> = ended.into_iter().filter_map(|ended| ended.failure).collect();
    let seconds = start.elapsed().as_secs_f64();
    if failures.is_empty() {
        status::print(format_args!("{:>12}  {count} steps passed in {seconds:.1} s", ""))?;
        return Ok(());
    }
    bail!("{} of {count} steps failed in {seconds:.1} s:\n  {}", failures.len(), failures.join("\n  "))
}

/// Runs lanes side by side; how their steps ended, lane by lane.
fn run_phase(lanes: &[Vec<&Step>]) -> Vec<Ended> {
    std::thread::scope(|scope| {
        let run = |lane: &[&Step]| -> Vec<Ended> { lane.iter().map(|step| Ended::run(step)).collect() };
        let running: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || run(lane))).collect();
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

/// Queue logic, the datapath and the macros, on the host.
fn device_tests() -> Result<()> {
    process::run(workspace::device_cargo().args(["test", "--workspace", "--no-fail-fast"]))
}

fn host_tests() -> Result<()> {
    for (program, package, use_) in doctor::WITNESSES {
        if process::find(program).is_none() {
            status::warn(format_args!("skipped, because {program} (Debian: {package}) is not installed: {use_}"));
        }
    }
    test_programs::run()
}

fn lints() -> Result<()> {
    let deny = ["--", "--deny", "warnings"];
    process::run(workspace::cargo().args(["clippy", "--quiet", "--workspace", "--all-targets"]).args(deny))?;
    let toolchain = Toolchain::load("emu")?;
    let mut device: Command = workspace::device_cargo();
    device.args(["clippy", "--quiet", "--workspace", "--target", &toolchain.rust.target]);
    // Macros run where the compiler runs.
    device.args(["--exclude", "dpa-macros", "--config", &toolchain.cargo_config(&toolchain.rustflags()?)]);
    process::run(device.args(deny))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_step_does_not_stop_the_others_and_is_named() {
        static RAN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = || {
            RAN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        let steps: [Step; 4] = [("one", count), ("two", || bail!("broken")), ("three", count), ("four", count)];
        let [one, two, three, four] = &steps;
        let error =
            run_phases(&[vec![vec![one], vec![two, three]], vec![vec![four]]]).expect_err("one fails").to_string();
        assert_eq!(RAN.load(std::sync::atomic::Ordering::Relaxed), 3);
        assert!(error.starts_with("1 of 4 steps failed") && error.contains("two: broken"), "{error}");
    }

    #[test]
    fn lanes_of_a_phase_run_side_by_side_and_phases_one_after_another() {
        static BOTH: std::sync::Barrier = std::sync::Barrier::new(2);
        static ENDED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        // Neither ends without the other.
        let meet = || {
            BOTH.wait();
            ENDED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        let last = || match ENDED.load(std::sync::atomic::Ordering::Relaxed) {
            2 => Ok(()),
            ended => bail!("{ended} of 2 have ended"),
        };
        let steps: [Step; 3] = [("one", meet), ("other", meet), ("last", last)];
        run_phases(&[vec![vec![&steps[0]], vec![&steps[1]]], vec![vec![&steps[2]]]]).expect("all work");
    }

    #[test]
    fn an_unknown_step_lists_the_known_ones() {
        let error = Test { only: Some("flashing".to_owned()) }.run().expect_err("no such step").to_string();
        assert!(error.contains("format, device images, hot-loops.md"), "{error}");
    }
}
