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

/// In this order: what fails fast comes first, and the host tests load the images and the C libraries.
const STEPS: &[Step] = &[
    ("format", format),
    ("device images", images),
    ("hot-loops.md", || hot_loops::check()),
    ("coverage.md", || coverage::check()),
    ("flexcast.h", || header::check()),
    ("device tests", device_tests),
    ("emulator libraries", || emu_libs::build_host(workspace::TESTS_PROFILE).map(drop)),
    ("test programs", || test_programs::build().map(drop)),
    // Before the tests, which run cargo, too: it locks the folder that it builds in, where build scripts and macros have been built by now.
    ("lints", lints),
    (HOST_TESTS, host_tests),
    (FUZZ_TARGETS, fuzz::step),
];

const FUZZ_TARGETS: &str = "fuzz targets";
const HOST_TESTS: &str = "host tests";
/// Runs beside the host tests, which leave processors idle and have been built by then.
const BESIDE_HOST_TESTS: [&str; 1] = [FUZZ_TARGETS];

impl Test {
    pub(crate) fn all() -> Self {
        Self { only: None }
    }

    pub(crate) fn run(&self) -> Result<()> {
        let chosen = |name: &str| self.only.as_ref().is_none_or(|word| name.contains(word.as_str()));
        let steps: Vec<&Step> = STEPS.iter().filter(|(name, _)| chosen(name)).collect();
        if steps.is_empty() {
            bail!(
                "no step is named so; there are: {}",
                STEPS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
            );
        }
        run_steps(&steps)
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
fn run_steps(steps: &[&Step]) -> Result<()> {
    let start = Instant::now();
    let has_host_tests = steps.iter().any(|(name, _)| *name == HOST_TESTS);
    let is_beside = |step: &&&Step| has_host_tests && BESIDE_HOST_TESTS.contains(&step.0);
    let (beside, in_turn): (Vec<&Step>, Vec<&Step>) = steps.iter().copied().partition(|step| is_beside(&step));
    let run_all = |steps: &[&Step]| -> Vec<Ended> { steps.iter().map(|step| Ended::run(step)).collect() };
    let ended = std::thread::scope(|scope| {
        let mut ended = Vec::new();
        let mut others = None;
        for step in in_turn {
            if step.0 == HOST_TESTS {
                others = Some(scope.spawn(|| run_all(&beside)));
            }
            ended.push(Ended::run(step));
        }
        if let Some(others) = others {
            match others.join() {
                Ok(others) => ended.extend(others),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        ended
    });
    for Ended { name, seconds, failure } in &ended {
        let verdict = if failure.is_none() { "ok" } else { "FAILED" };
        status::print(format_args!("{verdict:>12}  {name:<20} {seconds:7.1} s"))?;
    }
    let failures: Vec<String> = ended.into_iter().filter_map(|ended| ended.failure).collect();
    let seconds = start.elapsed().as_secs_f64();
    if failures.is_empty() {
        status::print(format_args!("{:>12}  {} steps passed in {seconds:.1} s", "", steps.len()))?;
        return Ok(());
    }
    bail!("{} of {} steps failed in {seconds:.1} s:\n  {}", failures.len(), steps.len(), failures.join("\n  "))
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
        let steps: [Step; 3] = [("one", count), ("two", || bail!("broken")), ("three", count)];
        let error = run_steps(&steps.iter().collect::<Vec<_>>()).expect_err("one fails").to_string();
        assert_eq!(RAN.load(std::sync::atomic::Ordering::Relaxed), 2);
        assert!(error.starts_with("1 of 3 steps failed") && error.contains("two: broken"), "{error}");
    }

    #[test]
    fn an_unknown_step_lists_the_known_ones() {
        let error = Test { only: Some("flashing".to_owned()) }.run().expect_err("no such step").to_string();
        assert!(error.contains("device images, hot-loops.md"), "{error}");
    }
}
