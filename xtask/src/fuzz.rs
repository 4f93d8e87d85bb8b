use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::{process, status, test, workspace};

/// Feed broken input to the emulator and the image reader: targets of fuzz/, under libFuzzer.
#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// One target; all, one after another, without.
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// A fixed number of executions from a fixed seed, from the committed inputs on.
    #[arg(long, conflicts_with_all = ["seconds", "replay", "seeds", "list"])]
    smoke: bool,
    /// How long to run each target; what it finds interesting is kept in target/fuzz/corpus for the next time.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Handle one input, without libFuzzer and with a backtrace.
    #[arg(long, value_name = "FILE", requires = "target")]
    replay: Option<PathBuf>,
    /// Write the seeds that the targets make to fuzz/seeds.
    #[arg(long)]
    seeds: bool,
    /// List the targets.
    #[arg(long)]
    list: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    target: Vec<Target>,
}

/// A row of fuzz/targets.toml, where the fields are explained.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    name: String,
    about: String,
    max_len: u32,
    runs: u64,
    timeout_s: u32,
    rss_mb: u32,
    #[serde(default)]
    quiet: bool,
}

/// What makes LLVM count edges and report comparisons, on stable Rust: the pass and its options, as `cargo fuzz` sets
/// them, without a sanitizer, which stable does not have.
const INSTRUMENTATION: [&str; 6] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// In place of an address sanitizer: fresh and freed memory of the C allocator holds neither zeros nor what it held.
const ALLOCATOR: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0");
/// The package of the targets.
const PACKAGE: &str = "flexcast-fuzz";
/// Its profile in the workspace's Cargo.toml.
const PROFILE: &str = "fuzz";
/// libFuzzer's own programs are C++.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];
/// Lines of a failing target that are shown.
const SHOWN_LINES: usize = 60;
/// How lines begin that say nothing about a failure.
const NOISE: [&str; 5] = ["INFO:", "NEW_FUNC", "WARNING: Failed to find function", "stat::", "NOTE:"];
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

impl Fuzz {
    pub(crate) fn run(&self) -> Result<()> {
        let targets = targets()?;
        if self.list {
            return targets
                .iter()
                .try_for_each(|target| status::print(format_args!("{:>12}  {}", target.name, target.about)));
        }
        if self.seeds {
            return write_seeds();
        }
        let chosen = select(&targets, self.target.as_deref())?;
        if let Some(file) = &self.replay {
            return replay(&chosen[0], file);
        }
        if compiler().is_none() {
            bail!("libFuzzer needs a C++ compiler (one of {}): apt-get install g++", COMPILERS.join(", "));
        }
        run(&chosen, if self.smoke { Length::Smoke } else { Length::Seconds(self.seconds) })
    }
}

/// The step of `cargo xtask test`: a smoke run with `--long`, where libFuzzer can be built. The host tests replay the
/// committed inputs.
pub(crate) fn step(test: &test::Run) -> Result<()> {
    let why = match compiler() {
        _ if !test.long => "`cargo xtask test --long` runs it",
        None => "no C++ compiler (Debian: g++) is installed",
        Some(_) => return run(&targets()?, Length::Smoke),
    };
    test.skipped(format!("fuzzing beyond the committed inputs: {why}"));
    Ok(())
}

#[derive(Clone, Copy)]
enum Length {
    Smoke,
    Seconds(u64),
}

fn folder() -> PathBuf {
    workspace::root().join("fuzz")
}

/// Programs, inputs found, inputs that fail.
fn output() -> Result<PathBuf> {
    Ok(workspace::target_dir()?.join("fuzz"))
}

fn targets() -> Result<Vec<Target>> {
    let path = folder().join("targets.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(toml::from_str::<Table>(&text).with_context(|| format!("in {}", path.display()))?.target)
}

fn select(targets: &[Target], name: Option<&str>) -> Result<Vec<Target>> {
    let Some(name) = name else { return Ok(targets.to_vec()) };
    let Some(target) = targets.iter().find(|target| target.name == name) else {
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        bail!("no target is named `{name}`; there are: {}", names.join(", "));
    };
    Ok(vec![target.clone()])
}

/// What libFuzzer can be compiled with.
pub(crate) fn compiler() -> Option<PathBuf> {
    match std::env::var("CXX") {
        Ok(named) if !named.is_empty() => process::find(&named).or_else(|| Some(named.into())),
        _ => COMPILERS.iter().find_map(|name| process::find(name)),
    }
}

/// Cargo for fuzz/ without instrumentation.
fn plain_cargo(subcommand: &str) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args([subcommand, "--quiet", "--package", PACKAGE]);
    cargo
}

fn write_seeds() -> Result<()> {
    process::run(plain_cargo("test").args(["--test", "seeds"]).env("FLEXCAST_WRITE_SEEDS", "1"))?;
    status::say("Written", folder().join("seeds").display());
    Ok(())
}

fn replay(target: &Target, file: &Path) -> Result<()> {
    let file = file.canonicalize().with_context(|| format!("no input {}", file.display()))?;
    let mut cargo = plain_cargo("run");
    cargo.args(["--bin", &target.name, "--"]).arg(file).env("RUST_BACKTRACE", "1");
    process::run(&mut cargo)
}

/// Cargo for fuzz/ with instrumentation, and the folder of what it builds.
fn instrumented_cargo() -> Result<(Command, PathBuf)> {
    let version = process::capture(Command::new("rustc").arg("-vV").current_dir(workspace::root()))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` names no host")?;
    let target_dir = output()?.join("cargo");
    let mut cargo = workspace::cargo();
    // With a target named, flags do not reach build scripts and macros.
    cargo.args(["build", "--package", PACKAGE, "--profile", PROFILE, "--target", host]);
    cargo.env("CARGO_TARGET_DIR", &target_dir).env("CARGO_ENCODED_RUSTFLAGS", INSTRUMENTATION.join("\u{1f}"));
    Ok((cargo, target_dir.join(host).join(PROFILE)))
}

/// Builds all targets at once and gives the folder of their programs.
fn build() -> Result<PathBuf> {
    let (mut cargo, programs) = instrumented_cargo()?;
    process::run(cargo.arg("--bins"))?;
    Ok(programs)
}

/// Runs targets: in a smoke run as many at a time as there are processors, otherwise one after another.
fn run(targets: &[Target], length: Length) -> Result<()> {
    let programs = build()?;
    let workers = match length {
        Length::Smoke => std::thread::available_parallelism().map_or(1, usize::from),
        Length::Seconds(_) => 1,
    };
    let waiting = Mutex::new(targets.iter());
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(target) = next else { break };
            if let Err(error) = run_one(&programs, target, length) {
                status::error(&format!("{error:#}"));
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(target.name.as_str());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failures.is_empty() { Ok(()) } else { bail!("fuzzing found failures in: {}", failures.join(", ")) }
}

fn run_one(programs: &Path, target: &Target, length: Length) -> Result<()> {
    let name = &target.name;
    let found = output()?.join("artifacts").join(name);
    let corpus = match length {
        Length::Smoke => output()?.join("smoke").join(name),
        Length::Seconds(_) => output()?.join("corpus").join(name),
    };
    if matches!(length, Length::Smoke) && corpus.exists() {
        std::fs::remove_dir_all(&corpus).with_context(|| format!("emptying {}", corpus.display()))?;
    }
    for dir in [&found, &corpus] {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let program = programs.join(name);
    let mut command = match length {
        Length::Smoke if fixed_addresses() => {
            let mut command = Command::new("setarch");
            command.arg("-R").arg(program);
            command
        }
        _ => Command::new(program),
    };
    command.env(ALLOCATOR.0, ALLOCATOR.1).env("RUST_BACKTRACE", "1");
    command.args(["-print_final_stats=1", "-seed=1", "-detect_leaks=0", "-len_control=0"]);
    command.arg(format!("-max_len={}", target.max_len));
    command.arg(format!("-timeout={}", target.timeout_s));
    command.arg(format!("-rss_limit_mb={}", target.rss_mb));
    command.arg(format!("-artifact_prefix={}/", found.display()));
    match length {
        // Without reading back what it has written, which depends on the time.
        Length::Smoke => command.args([format!("-runs={}", target.runs), "-reload=0".to_owned()]),
        Length::Seconds(seconds) => command.arg(format!("-max_total_time={seconds}")),
    };
    if target.quiet {
        command.arg("-close_fd_mask=3");
    }
    let dictionary = folder().join("dictionaries").join(format!("{name}.dict"));
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    command.arg(&corpus);
    command.args(["seeds", "regressions"].map(|dir| folder().join(dir).join(name)).iter().filter(|dir| dir.is_dir()));
    watch(&mut command, target)
}

/// Whether programs can be given the same addresses in every run (util-linux; containers may forbid it). Maps by
/// address, and comparisons of addresses, which libFuzzer learns from, make a run another one otherwise.
fn fixed_addresses() -> bool {
    Command::new("setarch").args(["-R", "true"]).output().is_ok_and(|output| output.status.success())
}

/// Runs a target, shows how it goes, and on a failure what it said and how to see it again.
fn watch(command: &mut Command, target: &Target) -> Result<()> {
    let name = &target.name;
    status::say("Fuzzing", format_args!("{name}: {}", target.about));
    let start = Instant::now();
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let child = child.as_mut().map_err(|error| anyhow::anyhow!("{error}: {}", process::line(command)))?;
    let mut last = VecDeque::new();
    let (mut progress, mut stats, mut artifact, mut shown) = (String::new(), String::new(), None, Instant::now());
    let stderr = child.stderr.take().context("the program has no stderr")?;
    for line in BufReader::new(stderr).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(counters) = line.strip_prefix('#').and_then(|line| line.split_once("cov: ")) {
            progress = format!("coverage {}", counters.1.split(" L:").next().unwrap_or_default().trim());
            if shown.elapsed() > PROGRESS {
                shown = Instant::now();
                status::say("", format_args!("{name}: {}", line.split(" L:").next().unwrap_or_default()));
            }
            continue;
        }
        if let Some(executions) = line.strip_prefix("stat::number_of_executed_units:") {
            stats = executions.trim().to_owned();
        }
        if let Some((_, file)) = line.split_once("Test unit written to ") {
            artifact = Some(file.trim().to_owned());
        }
        if NOISE.iter().any(|noise| line.trim_start().starts_with(noise)) {
            continue;
        }
        last.push_back(line);
        if last.len() > SHOWN_LINES {
            last.pop_front();
        }
    }
    let ended = child.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    if ended.success() {
        status::print(format_args!("{:>12}  {name:<10} {stats:>10} executions in {seconds:6.1} s, {progress}", "ok"))?;
        return Ok(());
    }
    last.iter().for_each(|line| status::line(format_args!("    {line}")));
    if target.quiet
        && let Some(file) = &artifact
    {
        // It could not say what is wrong.
        let _ = replay(target, Path::new(file));
    }
    match artifact {
        Some(file) => bail!(
            "{name} fails on {file}\n    see it again:   cargo xtask fuzz {name} --replay {file}\n    \
             once it is mended: copy the file to fuzz/regressions/{name}/, named after what was wrong"
        ),
        None => bail!("{ended}: {}", process::line(command)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_program_and_its_seeds() {
        for target in targets().expect("a table") {
            let program = folder().join(format!("fuzz_targets/{}.rs", target.name));
            assert!(program.is_file(), "{}", program.display());
            assert!(folder().join("seeds").join(&target.name).is_dir(), "{} has no seeds", target.name);
            assert!(target.runs > 0 && target.max_len > 0 && target.timeout_s > 0 && target.rss_mb > 0);
        }
        let programs = std::fs::read_dir(folder().join("fuzz_targets")).expect("a folder").count();
        assert_eq!(programs, targets().expect("a table").len(), "every program has a row in targets.toml");
    }

    #[test]
    fn an_unknown_target_lists_the_known_ones() {
        let targets = targets().expect("a table");
        assert_eq!(select(&targets, None).expect("all").len(), targets.len());
        let error = select(&targets, Some("toaster")).expect_err("no such target").to_string();
        assert!(error.contains("there are: elf"), "{error}");
    }

    #[test]
    fn a_failing_target_shows_how_to_see_it_again() {
        let target = Target {
            name: "elf".to_owned(),
            about: "a test".to_owned(),
            max_len: 1,
            runs: 1,
            timeout_s: 1,
            rss_mb: 1,
            quiet: false,
        };
        let script = |script: &str| watch(Command::new("sh").args(["-c", script]), &target);
        script("echo '#12 DONE cov: 3 ft: 4 corp: 1/1b L: 1/1' >&2").expect("it succeeds");
        let error = script("echo 'Test unit written to /x/crash-1' >&2; exit 77").expect_err("it fails").to_string();
        assert!(error.contains("cargo xtask fuzz elf --replay /x/crash-1"), "{error}");
        let error = script("exit 1").expect_err("it fails").to_string();
        assert!(error.contains("exit status: 1: sh"), "{error}");
    }
}
