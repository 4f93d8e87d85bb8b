//! Test programs of the workspace, several at a time. cargo runs them one after another, and most of them leave
//! processors idle.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Artifact, Message};

use crate::workspace::TESTS_PROFILE;
use crate::{emu_libs, example, process, status, test, workspace};

/// Programs of which one runs at a time: their tests start processes that look for free ports, or that time one
/// another.
const ALONE: [&str; 2] = ["emu_exec", "processes"];

/// Programs that run at the same time: with two more than the integration machine has processors, none is idle while
/// programs wait for cargo or for a deadline.
const LANES: usize = 4;

/// Tests that a program runs at the same time. Ranks poll, and with more of them than processors they poll in vain: all
/// tests take a tenth more of the processors' time with one thread for each processor (845 s in place of 767 s,
/// measured on two).
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() / 2).max(1))
}

/// The variable by which libtest takes that number.
const THREADS: &str = "RUST_TEST_THREADS";

/// Programs that take longest, which start first: none of them is to run at the end with nothing beside it.
const LONG: [&str; 7] = ["outside", "commands", "firmware", "collectives", "udp", "models", "service"];

/// The program that would end last: its tests wait for builds and for other programs, so it runs twice as many of them
/// at the same time.
const WAITS: &str = "outside";

/// How a test begins the line by which it reports that it is skipped (`tests/src/harness.rs`).
const SKIPPED: &str = "SKIPPED ";

/// How libtest reports a test that is ignored, between its name and the reason.
const IGNORED: &str = " ... ignored, ";

/// Name and reason of an ignored test that a person runs: other reasons are those of processes which other tests start.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (name, reason) = line.strip_prefix("test ")?.split_once(IGNORED)?;
    reason.contains(" -- --ignored").then_some((name, reason))
}

/// A test program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    name: String,
    path: PathBuf,
    /// The package's folder, in which cargo runs it.
    folder: PathBuf,
}

/// Runs all test programs of the workspace, and builds them where [`build`] has not; then the examples of its
/// documentation.
///
/// # Errors
/// They cannot be built, or some fail; all are run even so.
pub(crate) fn run(test: &test::Run) -> Result<()> {
    let programs = build()?;
    let (failed, documented) = std::thread::scope(|scope| {
        let documented = scope.spawn(documentation);
        let failed = run_all(test, programs);
        let documented = documented.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        failed.map(|failed| (failed, documented))
    })?;
    if !failed.is_empty() {
        let plural = if failed.len() == 1 { "program" } else { "programs" };
        // Once more at the end: what came before scrolls away, and logs are cut in the middle.
        for Failure { name, text } in &failed {
            status::print(format_args!("\n{name}:\n{}", reasons(text)))?;
        }
        let names: Vec<&str> = failed.iter().map(|failure| failure.name.as_str()).collect();
        bail!("{} test {plural} failed: {}", failed.len(), names.join(", "));
    }
    documented
}

/// Runs the examples of the documentation; what they say comes at once, at their end.
fn documentation() -> Result<()> {
    let start = Instant::now();
    let mut command = workspace::cargo();
    command.args(["test", "--workspace", "--doc", "--no-fail-fast"]).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("starting `{}`", process::line(&command)))?;
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    status::print(format_args!("{}", text.trim_end()))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, process::line(&command));
    }
    status::say("Passed", format_args!("examples of the documentation, {:.1} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// Builds the test programs of the workspace.
///
/// # Errors
/// cargo fails.
pub(crate) fn build() -> Result<Vec<Program>> {
    let mut command = workspace::cargo();
    command.args(["test", "--workspace", "--no-run"]);
    let program = |artifact: Artifact| {
        let path = artifact.executable.filter(|_| artifact.profile.test)?;
        let folder = artifact.manifest_path.parent()?.to_path_buf();
        Some(Program { name: artifact.target.name, path: path.into(), folder: folder.into() })
    };
    Ok(artifacts(&mut command)?.into_iter().filter_map(program).collect())
}

/// What a build command of cargo makes. Diagnostics go to the user; cargo's messages are for this program alone.
pub(crate) fn artifacts(command: &mut Command) -> Result<Vec<Artifact>> {
    let output = command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting `{}`", process::line(command)))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, process::line(command));
    }
    let mut artifacts = Vec::new();
    for message in Message::parse_stream(output.stdout.as_slice()) {
        if let Message::CompilerArtifact(artifact) = message.context("cargo's messages")? {
            artifacts.push(artifact);
        }
    }
    Ok(artifacts)
}

/// A program that has failed, and what it said.
struct Failure {
    name: String,
    text: String,
}

/// Most lines of a failure that are shown again.
const REASON_LINES: usize = 40;

/// Where libtest says which tests have failed and why; the end of all if it does not get there.
fn reasons(text: &str) -> String {
    let text = text.split_once("\nfailures:\n").map_or(text, |(_, reasons)| reasons);
    let lines: Vec<&str> = text.trim().lines().collect();
    let (from, cut) = match text.contains(" stdout ----") {
        true => (0, lines.len().min(REASON_LINES)),
        false => (lines.len().saturating_sub(REASON_LINES), lines.len()),
    };
    lines[from..cut].join("\n")
}

/// What is left to run, and what has failed.
struct Work {
    alone: VecDeque<Program>,
    others: VecDeque<Program>,
    count: usize,
    done: usize,
    failed: Vec<Failure>,
}

fn run_all(test: &test::Run, programs: Vec<Program>) -> Result<Vec<Failure>> {
    let count = programs.len();
    let (alone, mut others): (VecDeque<_>, VecDeque<_>) =
        programs.into_iter().partition(|program| ALONE.contains(&program.name.as_str()));
    // The others keep their order.
    others
        .make_contiguous()
        .sort_by_key(|program| LONG.iter().position(|name| *name == program.name).unwrap_or(LONG.len()));
    let work = Mutex::new(Work { alone, others, count, done: 0, failed: Vec::new() });
    let environment = environment(test.long)?;
    std::thread::scope(|scope| {
        let start = |serial| {
            let (work, environment) = (&work, &environment);
            scope.spawn(move || lane(test, work, serial, environment))
        };
        let lanes: Vec<_> = (0..LANES).map(|number| start(number == 0)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(work.into_inner().unwrap_or_else(PoisonError::into_inner).failed)
}

/// Runs programs until none is left; `serial`: those that run alone first.
fn lane(test: &test::Run, work: &Mutex<Work>, serial: bool, environment: &[(&str, OsString)]) -> Result<()> {
    let lock = || work.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let next = {
            let mut work = lock();
            let alone = if serial { work.alone.pop_front() } else { None };
            alone.or_else(|| work.others.pop_front())
        };
        let Some(program) = next else { return Ok(()) };
        let start = Instant::now();
        let (text, success) = output(&program, environment)?;
        text.lines().filter_map(|line| line.strip_prefix(SKIPPED)).for_each(|line| test.skipped(line.to_owned()));
        text.lines().filter_map(ignored).for_each(|(name, reason)| test.ignored(format!("{name}: {reason}")));
        let mut work = lock();
        work.done += 1;
        let place = format!("{} of {}", work.done, work.count);
        let relative = program.folder.strip_prefix(workspace::root()).unwrap_or(&program.folder).display().to_string();
        let name = format!("{} of {relative}", program.name);
        status::print(format_args!("{}", text.trim_end()))?;
        let verdict = if success { "Passed" } else { "Failed" };
        status::say(verdict, format_args!("{name}, {:.1} s ({place})", start.elapsed().as_secs_f64()));
        if !success {
            work.failed.push(Failure { name, text });
        }
    }
}

/// What a program says, and whether it ends well.
fn output(program: &Program, environment: &[(&str, OsString)]) -> Result<(String, bool)> {
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.envs(environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    if program.name == WAITS && std::env::var_os(THREADS).is_none() {
        command.env(THREADS, (2 * threads()).to_string());
    }
    let output = command.output().with_context(|| format!("starting `{}`", process::line(&command)))?;
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    Ok((text, output.status.success()))
}

/// Variables of all test programs: where libraries are, and what has been built for them. Each program would otherwise
/// ask cargo whether that is up to date (`tests/src`: `image_path`, `libs::libraries`, `examples::allgather`), and wait
/// while another has cargo's locks.
fn environment(long: bool) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables = vec![("LD_LIBRARY_PATH", libraries()?.into())];
    let folder = emu_libs::build(TESTS_PROFILE)?;
    let [rust, c] = [false, true].map(|c| example::build("allgather", TESTS_PROFILE, c));
    let (rust, c) = (rust?, c?);
    let [_, image, ..] = rust.paths();
    let images = image.parent().unwrap_or(image).as_os_str().to_owned();
    let own = std::env::current_exe().context("the path of this program")?;
    let built =
        [("FLEXCAST_IMAGES", images), ("FLEXCAST_EMU_LIBS", folder.into()), ("FLEXCAST_XTASK", own.into_os_string())];
    let examples = [("FLEXCAST_EXAMPLE", rust), ("FLEXCAST_EXAMPLE_C", c)];
    let examples = examples.map(|(name, example)| Ok((name, std::env::join_paths(example.paths())?)));
    variables.extend(built);
    variables.push(if long {
        ("FLEXCAST_LONG_TESTS", "1".into())
    } else {
        // Commands of this program that tests run take the command-line tool as it has been built for the tests.
        (workspace::CLI_PROFILE, TESTS_PROFILE.into())
    });
    variables.push((THREADS, threads().to_string().into()));
    variables.extend(fixed_seed());
    variables.extend(examples.into_iter().collect::<Result<Vec<_>>>()?);
    // What the user has named is taken.
    variables.retain(|(name, _)| *name == "LD_LIBRARY_PATH" || std::env::var_os(name).is_none());
    Ok(variables)
}

/// The seed of property tests on an integration machine, where a commit passes or fails the same way every time. Where
/// people run the tests, properties draw new cases.
pub(crate) fn fixed_seed() -> Option<(&'static str, OsString)> {
    std::env::var_os("CI").map(|_| ("PROPTEST_RNG_SEED", "1".into()))
}

/// Where the loader finds the compiler's own libraries, which tests of procedural macros need, before those of the
/// user.
fn libraries() -> Result<String> {
    let sysroot = process::capture(Command::new("rustc").args(["--print", "sysroot"]))?;
    let own = Path::new(sysroot.trim()).join("lib").display().to_string();
    Ok(std::env::var("LD_LIBRARY_PATH").map_or(own.clone(), |users| format!("{own}:{users}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_tests_that_people_run_are_found() {
        let command = "cargo test -p flexcast-proto-models model:: -- --ignored";
        let line = format!("test larger ... ignored, a minute more: {command}");
        assert_eq!(ignored(&line), Some(("larger", &*format!("a minute more: {command}"))));
        for other in [
            "test a_process ... ignored, a process that another test starts: cargo test -p emu-libibverbs shared::",
            "test plain ... ok",
            "test without_reason ... ignored",
        ] {
            assert_eq!(ignored(other), None, "{other}");
        }
    }

    #[test]
    fn what_failed_is_shown_again_within_bounds() {
        let lines = |count: usize| (0..count).map(|at| format!("line {at}\n")).collect::<String>();
        let text = format!("running 2 tests\n{}\nfailures:\n\n---- a stdout ----\nbecause\n{}", lines(99), lines(99));
        let shown = reasons(&text);
        assert!(shown.starts_with("---- a stdout ----\nbecause\nline 0\n") && shown.lines().count() == REASON_LINES);
        let crashed = reasons(&format!("running 2 tests\n{}", lines(99)));
        assert!(crashed.ends_with("line 98") && crashed.lines().count() == REASON_LINES, "{crashed}");
    }
}
