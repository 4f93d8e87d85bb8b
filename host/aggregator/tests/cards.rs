//! The daemon with an RDMA card, and ranks with one, as processes: all use the emulated card of another process, by the
//! emulator's C libraries.

mod jobs;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use flexcast::{Endpoint, UdpOptions};
use flexcast_aggregator::daemon::ask;
use flexio::Provider;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use jobs::processes::{LIBRARIES, libraries};
use jobs::{Daemon, Rank, all_say, free_port, job_with, names};

/// Says to a process of this program that it has the card.
const HOLDER: &str = "TEST_WITH_A_CARD";
/// Says to a rank that it has no card.
const PLAIN: &str = "TEST_WITHOUT_A_CARD";

fn provider() -> Provider {
    Provider::from_folder(libraries()).expect("libraries")
}

/// No test of its own: a rank, which carries out the commands of its input.
#[test]
fn a_rank() {
    jobs::be_a_rank(|| match std::env::var_os(PLAIN) {
        Some(_) => Endpoint::udp(&UdpOptions::default().interface("lo")).expect("the loopback interface"),
        None => Endpoint::verbs(&provider(), "mlx5_0").expect("the card opens"),
    });
}

/// No test of its own: has the card, until its input ends.
#[test]
fn a_holder() {
    if std::env::var_os(HOLDER).is_some() {
        println!("> {}", provider().devices().expect("a card").len());
        std::io::stdin().lines().for_each(drop);
    }
}

/// A card that processes share.
struct Shared {
    holder: Child,
    _input: ChildStdin,
    /// Open until the end: the harness says on it when a test takes long, and would die otherwise.
    _output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    attach: String,
}

impl Shared {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("card");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_holder", "--nocapture"]).env(HOLDER, "1").env(LIBRARIES, libraries());
        command.env("FLEXCAST_MACHINE", format!("toml:cards = 1\n[share]\nsocket = {socket:?}\n"));
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let input = holder.stdin.take().unwrap();
        let mut output = BufReader::new(holder.stdout.take().unwrap());
        let found = output.by_ref().lines().map_while(Result::ok).find(|line| line.contains("> "));
        assert!(found.is_some_and(|line| line.contains("> 1")), "no card");
        Self { holder, _input: input, _output: output, folder, attach: format!("toml:[attach]\nsocket = {socket:?}\n") }
    }

    fn daemon(&self, port: u16) -> Daemon {
        let more = ["--device", "mlx5_0", "--libraries", libraries().to_str().unwrap()];
        Daemon::start_with(self.folder.path(), port, &more, &[("FLEXCAST_MACHINE", &self.attach)])
    }

    fn job(&self, daemons: &[&Daemon]) -> Vec<Rank> {
        let addresses: Vec<_> = daemons.iter().map(|daemon| daemon.address).collect();
        let libraries = libraries().to_str().unwrap();
        job_with(&addresses, &[("FLEXCAST_MACHINE", &self.attach), (LIBRARIES, libraries)])
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[test]
fn a_daemon_serves_ranks_with_cards_also_when_it_is_started_anew() {
    let shared = Shared::new();
    let port = free_port();
    let daemon = shared.daemon(port);
    let mut ranks = shared.job(&[&daemon, &daemon]);
    for command in ["create", "few sums", "create reproducible", "bits"] {
        all_say(&mut ranks, command, &format!("{command}: fine"));
    }
    let status = ask(&daemon.socket).unwrap();
    assert_eq!(status.device.as_deref(), Some("mlx5_0"));
    assert!(status.jobs.iter().all(|job| job.carrier == "rdma" && job.received_bytes > 0), "{status:?}");
    // While nothing is under way the next operation connects anew.
    daemon.kill();
    let daemon = shared.daemon(port);
    all_say(&mut ranks, "few sums", "few sums: fine");
    // Ranks without cards next to them.
    let mut others = job_with(&[daemon.address], &[(PLAIN, "1")]);
    for command in ["create", "sums"] {
        all_say(&mut others, command, &format!("{command}: fine"));
    }
    drop((ranks, others));
    daemon.waits_for_the_end();
}

#[test]
fn a_daemon_that_is_killed_in_the_midst_of_an_operation_is_named() {
    let shared = Shared::new();
    let daemon = shared.daemon(free_port());
    let mut ranks = shared.job(&[&daemon, &daemon]);
    all_say(&mut ranks, "create", "create: fine");
    all_say(&mut ranks, "loop", "begins");
    std::thread::sleep(Duration::from_millis(200));
    let address = daemon.kill();
    names(&mut ranks, address, &["has gone in the midst of the operation", "is not reached"]);
}

#[test]
fn ranks_and_daemons_with_cards_that_go_or_are_silent_are_named() {
    let shared = Shared::new();
    let daemon = shared.daemon(free_port());
    let mut killed = shared.job(&[&daemon]);
    all_say(&mut killed, "create hasty", "create hasty: fine");
    all_say(&mut killed, "loop", "begins");
    std::thread::sleep(Duration::from_millis(200));
    killed[2].child.kill().unwrap();
    for rank in &mut killed[..2] {
        let line = rank.line();
        assert!(line.contains("rank 2"), "{line}");
    }
    drop(killed);
    let mut ranks = shared.job(&[&daemon]);
    all_say(&mut ranks, "create hasty", "create hasty: fine");
    all_say(&mut ranks, "few sums", "few sums: fine");
    // One that is stopped in the midst of operations, though its card goes on.
    all_say(&mut ranks, "loop", "begins");
    std::thread::sleep(Duration::from_millis(200));
    kill(Pid::from_raw(ranks[2].child.id() as i32), Signal::SIGSTOP).unwrap();
    for rank in &mut ranks[..2] {
        let line = rank.line();
        assert!(line.contains("rank 2 was silent"), "{line}");
    }
    // A daemon that is alive to the system alone.
    let mut ranks = shared.job(&[&daemon]);
    all_say(&mut ranks, "create hasty", "create hasty: fine");
    all_say(&mut ranks, "few sums", "few sums: fine");
    kill(Pid::from_raw(daemon.child.id() as i32), Signal::SIGSTOP).unwrap();
    let start = Instant::now();
    ranks.iter_mut().for_each(|rank| rank.say("few sums"));
    names(&mut ranks, daemon.address, &["has said nothing for 1.5s"]);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
