//! Trials over Ethernet: one of four ranks, processes in network namespaces at a bridge, is killed, stopped or cut off
//! at a time that follows from a seed. All others end with a typed error that names it, in time, and leave nothing
//! behind. And a soak run, in which memory and descriptors stay as they are.
//!
//! `FLEXCAST_TRIALS` is how many trials of each kind, or which (`first..end`); `FLEXCAST_SOAK_SECONDS` how long the
//! soak run takes. Without permission to make namespaces all of it is skipped, with a line that says so.
//!
//! A program of its own: its ranks are processes of this program, whose start counts in the times that it checks.

#[path = "trials/bad_input.rs"]
mod bad_input;
#[path = "trials/draws.rs"]
mod draws;
#[path = "trials/networks.rs"]
mod networks;
#[path = "trials/rank.rs"]
mod rank;

use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flexcast_tests::examples::Rank;
use flexcast_tests::hosts::{Cut, Hosts, INTERFACE, address};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use draws::Draws;
use rank::{BARRIER_TIMEOUT, PATIENCE, PATIENT, RECOVERY_TIMEOUT, STORE_TIMEOUT, TASK};

const RANKS: u32 = 4;
/// Beyond what the library's own limits say: processes share few processors, and namespaces may be slow.
const SLACK: Duration = Duration::from_secs(5);
/// How much longer than rank 0 the others wait in the store.
const STORE_GRACE: Duration = Duration::from_secs(5);
/// Longest time of a trial. Whoever still runs then hangs.
const BOUND: Duration = Duration::from_secs(40);

/// What happens to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    Cut(Cut),
}

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// After so many microseconds.
    Started(u64),
    /// So many microseconds after the rank has begun to connect.
    Connecting(u64),
    /// So many microseconds after all have connected.
    Begun(u64),
}

/// A trial, as its seed says.
#[derive(Debug)]
struct Trial {
    seed: u64,
    fault: Fault,
    victim: u32,
    when: When,
    /// Ranks on one host, which share memory.
    per_host: u32,
    /// Sockets that carry the data of each, with a thread for all but the first.
    subgroups: u32,
}

impl Trial {
    fn new(kind: &str, seed: u64) -> Self {
        let mut draws = Draws::new(seed.wrapping_mul(31) ^ kind.len() as u64);
        let fault = match kind {
            "kill" => Fault::Kill,
            "stop" => Fault::Stop,
            _ => Fault::Cut(Cut::ALL[draws.below(3) as usize]),
        };
        let when = match draws.below(5) {
            0 => When::Started(draws.below(60_000)),
            1 => When::Connecting(draws.below(4000)),
            _ => When::Begun(draws.below(300_000)),
        };
        let per_host = if matches!(fault, Fault::Cut(_)) || draws.below(2) == 0 { 1 } else { 2 };
        let victim = draws.below(RANKS.into()) as u32;
        Self { seed, fault, victim, when, per_host, subgroups: 1 + draws.below(3) as u32 }
    }

    /// Longest that the others may take to end.
    fn bound(&self) -> Duration {
        let operation = BARRIER_TIMEOUT * 5 / 4 + RECOVERY_TIMEOUT;
        match self.when {
            // A connection that breaks is seen at once.
            When::Begun(_) if self.fault == Fault::Kill => BARRIER_TIMEOUT,
            When::Begun(_) => operation + SLACK,
            // Whatever comes next: the store, connections, an operation.
            _ => STORE_TIMEOUT + STORE_GRACE + operation + SLACK,
        }
    }
}

fn scratch(name: &str) -> PathBuf {
    // Others may run the same test at the same time.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trials").join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// Removes what ranks have written, where nothing is wrong with it.
fn clean(name: &str) {
    let _ = std::fs::remove_dir_all(scratch(name));
}

/// Which trials, if the environment does not say it: so many.
fn seeds(few: u64) -> Range<u64> {
    let Ok(text) = std::env::var("FLEXCAST_TRIALS") else { return 0..few };
    let number = |text: &str| text.parse().expect("FLEXCAST_TRIALS is a number, or first..end");
    text.split_once("..").map_or_else(|| 0..number(&text), |(first, end)| number(first)..number(end))
}

/// Starts the ranks of a job, `per_host` on each host, for so long. They are patient.
fn start(hosts: &Hosts, name: &str, per_host: u32, port: u16, seed: u64, most: Duration) -> Vec<Rank> {
    start_with(hosts, name, per_host, port, (seed, most), &[(PATIENCE, PATIENT)])
}

/// The same with these variables.
fn start_with(
    hosts: &Hosts,
    name: &str,
    per_host: u32,
    port: u16,
    (seed, most): (u64, Duration),
    variables: &[(&str, &str)],
) -> Vec<Rank> {
    let folder = scratch(name);
    let program = std::env::current_exe().expect("the path of this program");
    let of = |rank: u32| {
        let mut command = hosts.on(rank / per_host, &program);
        command.args(["--exact", "a_rank_in_a_process_of_its_own", "--nocapture", "--test-threads", "1"]);
        let task = format!("{rank},{RANKS},{}:{port},{seed},{}", address(0), most.as_millis());
        command.env(TASK, task).env("FLEXCAST_INTERFACE", INTERFACE).envs(variables.iter().copied());
        // Of its own, so that the end of the shell that has started this program lets no stopped rank go on.
        command.process_group(0);
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    (0..RANKS).map(of).collect()
}

fn send(process: &Rank, signal: Signal) {
    let _ = kill(Pid::from_raw(process.id() as i32), signal);
}

/// Waits until a rank has said something, or has ended.
fn until_said(process: &Rank, text: &str) {
    let begun = Instant::now();
    let has_said = || {
        let printed = process.printed();
        printed.contains(text) || printed.contains("failed:")
    };
    while !has_said() && begun.elapsed() < BOUND {
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Runs a trial; what was wrong, a line each.
fn run(hosts: &Hosts, name: &str, trial: &Trial) -> Vec<String> {
    // Another port each: what is left of the last job's connections keeps its port.
    let port = 20_000 + (trial.seed % 20_000) as u16;
    let subgroups = trial.subgroups.to_string();
    let variables = [("FLEXCAST_SUBGROUPS", &*subgroups)];
    let mut ranks = start_with(hosts, name, trial.per_host, port, (trial.seed, BOUND), &variables);
    let victim = trial.victim as usize;
    let delay = match trial.when {
        When::Started(delay) => delay,
        When::Connecting(delay) => {
            until_said(&ranks[victim], "connecting");
            delay
        }
        When::Begun(delay) => {
            ranks.iter().for_each(|process| until_said(process, "begun"));
            delay
        }
    };
    std::thread::sleep(Duration::from_micros(delay));
    match trial.fault {
        Fault::Kill => send(&ranks[victim], Signal::SIGKILL),
        Fault::Stop => send(&ranks[victim], Signal::SIGSTOP),
        Fault::Cut(cut) => hosts.cut(trial.victim, cut),
    }
    let (happened, mut wrong) = (Instant::now(), Vec::new());
    let mut longest = Duration::ZERO;
    let is_cut = matches!(trial.fault, Fault::Cut(_));
    let mut live: Vec<usize> = (0..RANKS as usize).filter(|rank| is_cut || *rank != victim).collect();
    while !live.is_empty() && happened.elapsed() < BOUND {
        live.retain(|rank| {
            let has_ended = ranks[*rank].has_ended();
            if has_ended {
                longest = longest.max(happened.elapsed());
                let text = ranks[*rank].printed();
                wrong.extend(judge(trial, *rank as u32, &text).map(|reason| format!("rank {rank} {reason}")));
            }
            !has_ended
        });
        std::thread::sleep(Duration::from_millis(2));
    }
    wrong.extend(live.iter().map(|rank| format!("rank {rank} hangs: {}", ranks[*rank].printed())));
    if longest > trial.bound() {
        wrong.push(format!("the last ended after {longest:.1?}, the bound is {:?}", trial.bound()));
    }
    if let Fault::Cut(cut) = trial.fault {
        hosts.mend(trial.victim, cut);
    }
    if !wrong.is_empty() {
        let words = |text: String| {
            text.lines().filter(|line| !line.starts_with("resources")).map(str::to_owned).collect::<Vec<_>>()
        };
        wrong.extend(
            ranks.iter().enumerate().map(|(rank, process)| format!("rank {rank}: {:?}", words(process.printed()))),
        );
    }
    ranks.clear();
    for host in 0..RANKS {
        let left = hosts.processes(host);
        if !left.is_empty() {
            wrong.push(format!("processes {left:?} are left on host {host}"));
        }
        // Connections that the system itself ends may still be there; sockets of processes may not.
        let unix = hosts.run(host, "cat", &["/proc/net/unix"]);
        let udp = hosts.run(host, "cat", &["/proc/net/udp", "/proc/net/udp6"]);
        let sockets = unix.lines().filter(|line| line.contains("@flexcast")).count();
        let datagrams = udp.lines().filter(|line| !line.trim_start().starts_with("sl")).count();
        if sockets + datagrams > 0 {
            wrong.push(format!("{sockets} Unix and {datagrams} UDP sockets are left on host {host}"));
        }
    }
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    wrong.extend(
        files
            .filter_map(|file| file.file_name().into_string().ok())
            .filter(|name| name.contains("flexcast"))
            .map(|name| format!("/dev/shm/{name} is left")),
    );
    eprintln!("{trial:?}: {longest:.1?}{}", wrong.iter().map(|wrong| format!("\nWRONG: {wrong}")).collect::<String>());
    wrong
}

/// What is wrong with how a rank has ended.
fn judge(trial: &Trial, rank: u32, text: &str) -> Option<String> {
    let Some(failure) = text.lines().find_map(|line| line.strip_prefix("failed: ")) else {
        return Some("has no error".to_owned());
    };
    if failure.contains("WRONG BYTES") || text.contains("panicked") || text.contains("lost:") {
        return Some("has wrong bytes, or has panicked".to_owned());
    }
    let (failed_rank, reason) = failure.split_once(' ').unwrap_or(("-1", failure));
    // Whoever is cut off itself sees that others are silent.
    let is_named = if rank == trial.victim {
        reason.contains("rank ") || reason.contains("ranks ") || reason.contains("interface")
    } else if failed_rank == "-1" {
        // Rank 0 has ended before this one came, and can send it nothing.
        names(reason, trial.victim)
            || (!matches!(trial.when, When::Begun(_)) && reason.contains("rank 0 was not found"))
    } else {
        failed_rank == trial.victim.to_string()
    };
    if !is_named {
        return Some(format!("does not name rank {}", trial.victim));
    }
    (!text.contains("left nothing")).then(|| "has left something".to_owned())
}

/// Whether a text names a rank, alone or in a list.
fn names(text: &str, rank: u32) -> bool {
    let lists = text.match_indices("rank").map(|(at, _)| &text[at..]);
    let mut named = lists.flat_map(|list| {
        let list = list.trim_start_matches("ranks").trim_start_matches("rank").trim_start();
        let end = list.find(|letter: char| !letter.is_ascii_digit() && !", and".contains(letter)).unwrap_or(list.len());
        list[..end]
            .split(|letter: char| !letter.is_ascii_digit())
            .filter_map(|word| word.parse::<u32>().ok())
            .collect::<Vec<_>>()
    });
    named.any(|named| named == rank)
}

fn trials(kind: &str, few: u64) {
    let Some(hosts) = Hosts::new(RANKS) else { return };
    let (mut failed, mut count) = (Vec::new(), 0);
    for seed in seeds(few) {
        let trial = Trial::new(kind, seed);
        let wrong = run(&hosts, kind, &trial);
        count += 1;
        if !wrong.is_empty() {
            failed.push(format!("{trial:?}:\n{}", wrong.join("\n")));
        }
    }
    let of = failed.len();
    if failed.is_empty() {
        clean(kind);
    }
    assert!(failed.is_empty(), "{of} of {count} trials failed:\n{}", failed.join("\n\n"));
}

#[test]
fn a_rank_in_a_process_of_its_own() {
    rank::main();
}

#[test]
fn whoever_is_killed_at_any_time_is_named() {
    trials("kill", 6);
}

#[test]
fn whoever_is_stopped_at_any_time_is_named() {
    trials("stop", 2);
}

#[test]
fn whoever_is_cut_off_at_any_time_is_named() {
    trials("cut", 2);
}

/// Memory and descriptors of each rank, as it has reported them: KiB, descriptors, operations, repaired chunks.
fn resources(text: &str) -> Vec<[u64; 4]> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("resources: "));
    let words = |line: &str| line.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<u64>>();
    lines.filter_map(|line| words(line).try_into().ok()).collect()
}

#[test]
fn memory_and_descriptors_stay_as_they_are() {
    let Some(hosts) = Hosts::new(RANKS) else { return };
    (0..RANKS).for_each(|host| hosts.lose(host, 1));
    let seconds = std::env::var("FLEXCAST_SOAK_SECONDS").map_or(5, |text| text.parse().expect("a number of seconds"));
    let most = Duration::from_secs(seconds);
    // Two ranks of one host share memory; by this seed they multicast, and lose datagrams on their way up as well.
    let variables = [(PATIENCE, PATIENT), ("FLEXCAST_SUBGROUPS", "2")];
    let mut ranks = start_with(&hosts, "soak", 2, 20_100, (1, most), &variables);
    for (rank, process) in ranks.iter_mut().enumerate() {
        let (_, text) = process.end(most + BOUND);
        assert!(text.contains("ended well") && text.contains("left nothing"), "rank {rank}: {text}");
        let samples = resources(&text);
        let [(_, warm), (_, last)] = [samples.len() / 2, samples.len() - 1].map(|at| (at, samples[at]));
        let most_kib = samples[..=samples.len() / 2].iter().map(|[kib, ..]| *kib).max().unwrap_or(0);
        eprintln!(
            "rank {rank}: {} operations, {} chunks repaired; half-way {most_kib} KiB at most and {} descriptors, at \
             the end {} KiB and {}",
            last[2], last[3], warm[1], last[0], last[1]
        );
        assert!(last[3] > 0, "rank {rank}: nothing was lost");
        // Buffers of one operation come and go: the longest is 8 MB, for all ranks.
        assert!(last[0] <= most_kib + 16 * 1024, "rank {rank}: {samples:?}");
        assert_eq!(last[1], warm[1], "rank {rank}: {samples:?}");
    }
    clean("soak");
}

#[test]
fn ranks_are_found_in_texts() {
    assert!(names("ranks 1, 2 and 3 did not come", 3) && names("rank 0 says: rank 2 at x", 2));
    assert!(!names("rank 0 of 4 did not", 4) && !names("rank 12 is gone", 1));
}
