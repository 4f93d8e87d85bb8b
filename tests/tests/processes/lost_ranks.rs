//! Ranks as processes that are stopped or killed while they gather, one operation after another: who is only stopped is
//! waited for, and of one that is gone the others say which it is.
//!
//! Programs in C are skipped without a C compiler; the tests say so on stderr.
//! `FLEXCAST_KILLS=50 cargo test -p flexcast-tests --test processes lost_ranks::` kills more often than the regular
//! test does, `FLEXCAST_SEED` names the choices of an earlier run.

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flexcast_tests::examples::{Rank, allgather, compile, compiler, free_tcp_port, free_udp_ports};

/// Longest that the ranks may take; they need seconds.
const BOUND: Duration = Duration::from_secs(120);
const RANKS: u16 = 4;
/// More operations than a test waits for.
const ENDLESS: &str = "rounds1000000";
/// The same over connections between all pairs of ranks.
const ENDLESS_REDUCTIONS: &str = "reduces1000000";
/// The causes of a report, as the header has them: a broken connection, silence.
const LOST: [&str; 2] = ["report: 5 ", "report: 1 "];

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lost_ranks").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// Four ranks that gather.
struct Job {
    ranks: Vec<Rank>,
}

impl Job {
    fn start(name: &str, program: &Path, way: &str, variables: &[(&str, &str)]) -> Self {
        let (folder, example) = (scratch(name), allgather(true));
        let (udp, tcp) = (free_udp_ports(RANKS), free_tcp_port());
        let start = |rank: u16| {
            let mut command = std::process::Command::new(&example.tool);
            command.args(["emu", "exec", "--rank", &rank.to_string(), "--of", &RANKS.to_string()]);
            command.args(["--port-base", &udp.to_string(), "--libs"]).arg(&example.libraries).arg("--").arg(program);
            command.args([way, &rank.to_string(), &RANKS.to_string(), &format!("127.0.0.1:{tcp}"), "60000"]);
            command.arg(&example.image).envs(variables.iter().copied());
            Rank::start(&mut command, &folder, &format!("rank-{rank}"))
        };
        Self { ranks: (0..RANKS).map(start).collect() }
    }

    /// Waits until all have done an operation.
    fn wait(&self) {
        let begun = Instant::now();
        while !self.ranks.iter().all(|rank| rank.printed().contains("begun")) {
            let texts = || self.ranks.iter().map(Rank::printed).collect::<Vec<_>>();
            assert!(begun.elapsed() < BOUND, "{:?}", texts());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How all but one ended.
    fn others(&mut self, but: usize) -> Vec<(bool, String)> {
        let others = self.ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != but);
        others.map(|(_, rank)| rank.end(BOUND)).collect()
    }
}

/// Who lives names the rank, and no other.
#[track_caller]
fn check_named(lost: usize, ends: &[(bool, String)], case: &str) {
    for (success, text) in ends {
        assert!(*success && text.contains("gathered: 112: "), "{case}: {ends:#?}");
        let named = LOST.iter().any(|cause| text.contains(&format!("{cause}{lost} ")));
        assert!(named && text.contains(&format!("rank {lost} ")), "{case}: another than rank {lost}: {ends:#?}");
    }
}

fn compiled(name: &str) -> Option<PathBuf> {
    Some(compile(compiler()?, "ranks", &scratch(name)))
}

#[test]
fn a_rank_that_is_stopped_for_a_second_is_waited_for() {
    let Some(program) = compiled("stopped-program") else { return };
    for rank in 0..usize::from(RANKS) {
        let mut job = Job::start("stopped", &program, "rounds150", &[]);
        job.wait();
        job.ranks[rank].signal("STOP");
        std::thread::sleep(Duration::from_secs(1));
        job.ranks[rank].signal("CONT");
        for rank in &mut job.ranks {
            let (success, text) = rank.end(BOUND);
            assert!(success && text.contains("gathered: 0: "), "{text}");
        }
    }
}

#[test]
fn a_rank_that_is_stopped_for_longer_than_the_bound_is_named_by_all() {
    let Some(program) = compiled("bound-program") else { return };
    for rank in [0, 2] {
        let mut job = Job::start("bound", &program, ENDLESS, &[("FLEXCAST_PEER_TIMEOUT_MS", "500")]);
        job.wait();
        job.ranks[rank].signal("STOP");
        let ends = job.others(rank);
        job.ranks[rank].signal("KILL");
        check_named(rank, &ends, "stopped");
        let report = format!("flexcast-emu: card {rank} (process ");
        // Others may learn of it from the first that has given it up.
        let any = ends.iter().any(|(_, text)| text.contains(&report) && text.contains("has taken nothing for 0.5 s"));
        assert!(any, "{ends:#?}");
        let healthy = (0..4).filter(|other| *other != rank);
        for other in healthy {
            let wrong = format!("card {other} (process ");
            assert!(ends.iter().all(|(_, text)| !text.contains(&wrong)), "{wrong}: {ends:#?}");
        }
    }
}

/// Its card is not run either: the others' cards miss the answers, and their ranks need not wait for silence to last as
/// long as the bound allows.
#[test]
fn a_rank_that_is_stopped_while_all_reduce_is_named_as_soon_as_its_card_counts_as_gone() {
    let Some(program) = compiled("stopped-reduces-program") else { return };
    for (datapath, rank) in [("verbs", 1), ("dpa", 2)] {
        let variables = [("FLEXCAST_DATAPATH", datapath), ("FLEXCAST_PEER_TIMEOUT_MS", "500")];
        let mut job = Job::start("stopped-reduces", &program, ENDLESS_REDUCTIONS, &variables);
        job.wait();
        std::thread::sleep(Duration::from_millis(20));
        job.ranks[rank].signal("STOP");
        let ends = job.others(rank);
        job.ranks[rank].signal("KILL");
        check_named(rank, &ends, datapath);
        let broke = format!("report: 5 {rank} ");
        assert!(ends.iter().all(|(_, text)| text.contains(&broke)), "{datapath}: {ends:#?}");
    }
}

#[test]
fn a_rank_that_is_killed_at_any_moment_is_named_by_all_others() {
    let Some(program) = compiled("killed-program") else { return };
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let kills = number("FLEXCAST_KILLS").unwrap_or(8);
    let seed: u64 = number("FLEXCAST_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    eprintln!("FLEXCAST_SEED={seed}");
    let mut dice = seed;
    let mut below = |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % below
    };
    for kill in 0..kills {
        let (rank, after_us) = (below(u64::from(RANKS)) as usize, below(100_000));
        let mut job = Job::start("killed", &program, ENDLESS, &[]);
        job.wait();
        std::thread::sleep(Duration::from_micros(after_us));
        job.ranks[rank].signal("KILL");
        let ends = job.others(rank);
        check_named(rank, &ends, &format!("kill {kill} of rank {rank} after {after_us} us, FLEXCAST_SEED={seed}"));
    }
}

#[test]
fn a_rank_that_is_killed_while_all_reduce_is_named_by_all_others() {
    let Some(program) = compiled("reduces-program") else { return };
    for (datapath, rank) in [("dpa", 1), ("verbs", 3), ("dpa", 0), ("verbs", 2)] {
        let mut job = Job::start("reduces", &program, ENDLESS_REDUCTIONS, &[("FLEXCAST_DATAPATH", datapath)]);
        job.wait();
        std::thread::sleep(Duration::from_millis(7 * (rank as u64 + 1)));
        job.ranks[rank].signal("KILL");
        let ends = job.others(rank);
        check_named(rank, &ends, datapath);
    }
}
