//! `flexcast soak`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flexcast_cli::stdout::StdoutError;
use flexcast_cli::{note, out};
use flexcast_lab::soak::random::Case;
use flexcast_lab::soak::{Tally, Wrong};
use indicatif::ProgressBar;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::inputs::read_image;
use crate::progress::progress_bar;
use crate::sim_args::SoakArgs;
use flexcast_lab::soak::seeds::{Seeds, State};

/// How long seeds under way may take to their end once the soak run is to stop.
const GRACE: Duration = Duration::from_secs(10);
/// Time between two polls of the seeds.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A seed that runs for longer is named in the progress.
const LONG: Duration = Duration::from_secs(5);
/// What shells expect of a program that a signal has ended: 128 and its number.
const INTERRUPTED: u8 = 128 + SIGINT as u8;

/// Why a soak run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
enum End {
    /// All seeds have run.
    Complete,
    /// A case came out wrong.
    Wrong,
    /// The time given for it is over.
    WallLimit,
    /// A signal.
    Interrupted,
}

pub(super) fn run(args: &SoakArgs) -> anyhow::Result<ExitCode> {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = args.jobs.unwrap_or_else(cores);
    let image = read_image(&args.image)?;
    let first = args.first.map_or_else(default_first, Ok)?;
    let (range, shard) = (args.seeds, args.shard.unwrap_or_default());
    // The last of them has to be a number, too: what does not fit would run one seed several times.
    if first.checked_add(range - 1).is_none() {
        let fit = u64::MAX - first + 1;
        anyhow::bail!(
            "--first {first} --seeds {range}: seeds end at {}: give --seeds {fit} at most, or a lower --first",
            u64::MAX
        );
    }
    let args = &SoakArgs { seeds: shard.count(range), ..args.clone() };
    if args.first.is_none() {
        note!("seeds from {first} on; the same again: --first {first} --seeds {}", args.seeds);
    }
    if args.show {
        for position in (0..range).filter(|position| shard.has(*position)) {
            out!("{:#?}", Case::new(first + position))?;
        }
    }
    let seeds = Seeds::new(first, shard, args.seeds, args.keep_going);
    for signal in [SIGINT, SIGTERM] {
        // The first asks for an end, the second one ends it.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&seeds.interrupted))
            .and_then(|_| flag::register(signal, Arc::clone(&seeds.interrupted)))
            .context("signals cannot be taken")?;
    }
    let started = Instant::now();
    seeds.start(usize::try_from(jobs).unwrap_or(usize::MAX), &image);
    let end = watch(args, &seeds, started);
    let state = seeds.take();
    let wall_s = started.elapsed().as_secs_f64();
    if args.json {
        out!("{}", json(args, first, &state, end, wall_s)?)?;
    } else {
        print(args, first, &state, end, wall_s)?;
    }
    // Threads whose seeds have not ended go with the process.
    if let [Wrong { seed, reason }, ..] = state.wrong.as_slice() {
        anyhow::bail!("seed {seed}: {reason}\n  run it again with: {}", again(args, *seed));
    }
    Ok(if end == End::Interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Seeds that nobody has run, unless every run must be the same: what was only ever right on known seeds is not known
/// to be right.
fn default_first() -> anyhow::Result<u64> {
    if std::env::var_os("CI").is_some() {
        return Ok(1);
    }
    getrandom::u32().map(u64::from).context("no seed can be drawn: give one with --first SEED")
}

/// The command that runs one seed again.
fn again(args: &SoakArgs, seed: u64) -> String {
    let command = match &args.within {
        Some(command) => command.clone(),
        None if args.image.as_os_str() == "allgather" => "flexcast soak".to_owned(),
        None => format!("flexcast soak --image {}", args.image.display()),
    };
    format!("{command} --first {seed} --seeds 1 --show")
}

/// Shows how far it is, until all is over or it is to stop.
fn watch(args: &SoakArgs, seeds: &Seeds, started: Instant) -> End {
    let bar = progress_bar("seeds");
    bar.set_prefix("seeds");
    bar.set_length(args.seeds);
    let limit = args.wall_limit.map(Duration::from_secs);
    let every = Duration::from_secs(args.progress);
    let (mut shown, mut stopping) = (Duration::ZERO, None);
    let end = loop {
        let elapsed = started.elapsed();
        let end = match stopping {
            Some((end, _)) => Some(end),
            None if seeds.is_interrupted() => Some(End::Interrupted),
            None if limit.is_some_and(|limit| elapsed >= limit) => Some(End::WallLimit),
            None => None,
        };
        let over = seeds.with(|state| {
            // Those who wait for the end of a long soak run want to know before it.
            for wrong in state.unreported.drain(..) {
                bar.suspend(|| note!("wrong: {wrong}"));
            }
            show(args, &bar, state, elapsed, &mut shown, every);
            state.is_over
        });
        match end {
            Some(end) => {
                let (_, since) = *stopping.get_or_insert((end, elapsed));
                seeds.stop();
                if over || elapsed - since >= GRACE {
                    break end;
                }
            }
            None if over => break seeds.with(|state| if state.wrong.is_empty() { End::Complete } else { End::Wrong }),
            None => {}
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    bar.finish_and_clear();
    end
}

/// On a terminal a bar, elsewhere a line now and then.
fn show(args: &SoakArgs, bar: &ProgressBar, state: &State, elapsed: Duration, shown: &mut Duration, every: Duration) {
    bar.set_position(state.ended());
    let mut message = outcomes(state);
    for (seed, since) in state.running.iter().filter(|(_, since)| since.elapsed() >= LONG) {
        message += &format!("; seed {seed} runs for {:.0} s", since.elapsed().as_secs_f64());
    }
    bar.set_message(message.clone());
    if !bar.is_hidden() || every.is_zero() || elapsed < *shown + every {
        return;
    }
    *shown = elapsed;
    let (ended, elapsed_s) = (state.ended(), elapsed.as_secs_f64());
    let rate = ended as f64 / elapsed_s;
    let left =
        if ended == 0 { String::new() } else { format!(", about {:.0} s to go", (args.seeds - ended) as f64 / rate) };
    note!("{ended} of {} seeds in {elapsed_s:.0} s, {rate:.1} a second{left}: {message}", args.seeds);
}

/// The outcomes so far, in a few words.
fn outcomes(state: &State) -> String {
    let Tally { right, failed, .. } = state.tally;
    format!("{right} right, {failed} failed as they should, {} wrong", state.wrong.len())
}

fn json(args: &SoakArgs, first: u64, state: &State, end: End, wall_s: f64) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(&state.tally)?;
    value["first"] = first.into();
    value["seeds"] = args.seeds.into();
    value["end"] = serde_json::to_value(end)?;
    value["wall_s"] = wall_s.into();
    let wrong = state.wrong.iter().map(|wrong| serde_json::json!({"seed": wrong.seed, "reason": wrong.reason}));
    value["wrong"] = wrong.collect();
    let slowest =
        state.slowest.iter().map(|(took, seed)| serde_json::json!({"seed": seed, "wall_s": took.as_secs_f64()}));
    value["slowest"] = slowest.collect();
    value["unfinished"] = state.running.keys().copied().collect();
    Ok(value)
}

fn print(args: &SoakArgs, first: u64, state: &State, end: End, wall_s: f64) -> Result<(), StdoutError> {
    let Tally { cases, right, failed, failures, baselines, recovered_chunks, lost_frames, weak, raced, .. } =
        &state.tally;
    let Tally { lossless, spurious_chunks, several, .. } = &state.tally;
    out!(
        "{cases} cases from seed {first} on in {wall_s:.1} s (measured): {right} with every byte on every rank, \
         {failed} in which ranks failed as they should, each with a typed error;\n{lost_frames} frames lost, \
         {recovered_chunks} chunks recovered; {baselines} without multicast, {weak} under weak memory, {raced} watched \
         for races, {several} with communicators side by side;\nnothing fetched in {lossless} cases without loss or \
         lateness; {spurious_chunks} chunks fetched that were only late, in the others"
    )?;
    if !failures.is_empty() {
        let kinds: Vec<_> = failures.iter().map(|(kind, cases)| format!("{cases} {kind}")).collect();
        out!("failed as they should: {}", kinds.join(", "))?;
    }
    if !state.wrong.is_empty() {
        out!("wrong: {}", state.wrong.len())?;
        for wrong in &state.wrong {
            out!("  {wrong}")?;
        }
    }
    if cases + (state.wrong.len() as u64) < args.seeds {
        let why = match end {
            End::Complete => "all seeds have run",
            End::Wrong => "a case came out wrong",
            End::WallLimit => "the wall limit is reached",
            End::Interrupted => "interrupted",
        };
        out!("not run: {} of {} seeds ({why})", args.seeds - state.ended(), args.seeds)?;
    }
    for (seed, since) in &state.running {
        out!(
            "not ended: seed {seed}, after {:.1} s; run it again with: {}",
            since.elapsed().as_secs_f64(),
            again(args, *seed)
        )?;
    }
    if args.seeds > 1 {
        let slowest: Vec<_> =
            state.slowest.iter().map(|(took, seed)| format!("{seed} in {:.2} s", took.as_secs_f64())).collect();
        out!("slowest seeds (measured): {}; each runs alone with --first SEED --seeds 1 --show", slowest.join(", "))?;
    }
    Ok(())
}
