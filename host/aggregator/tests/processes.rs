//! The daemon and ranks as processes over the loopback interface: several jobs, and whatever can die.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use flexcast::bootstrap::TcpStore;
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{Card, Communicator, Config, SparseOptions, UdpOptions};
use flexcast_aggregator::daemon::ask;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest that anything here may take; it is far less.
const BOUND: Duration = Duration::from_secs(60);
const RANKS: u32 = 3;
/// Says to a process of this program that it is a rank.
const ROLE: &str = "TEST_OF_AGGREGATORS";

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < BOUND, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

struct Daemon {
    child: Child,
    address: SocketAddr,
    socket: PathBuf,
}

impl Daemon {
    fn start(folder: &Path, port: u16, more: &[&str]) -> Self {
        let (address, socket) = (SocketAddr::from(([127, 0, 0, 1], port)), folder.join(format!("status-{port}")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast-aggregator"));
        command.arg("--listen").arg(address.to_string()).arg("--status-socket").arg(&socket).args(["--threads", "2"]);
        let mut child = command.args(more).stderr(Stdio::null()).spawn().unwrap();
        until("the daemon", || {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            ask(&socket).ok()
        });
        Self { child, address, socket }
    }

    fn jobs(&self) -> usize {
        ask(&self.socket).unwrap().connected as usize
    }

    fn kill(mut self) -> SocketAddr {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.address
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Rank {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    /// The next line that the rank says, of those that are its own.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the rank has ended");
            // What the test's harness says may be before it.
            if let Some((_, own)) = line.split_once("> ") {
                return own.trim().to_owned();
            }
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A job of three ranks.
fn job(aggregators: &[SocketAddr]) -> Vec<Rank> {
    let names: Vec<String> = aggregators.iter().map(SocketAddr::to_string).collect();
    let store = format!("127.0.0.1:{}", free_port());
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_rank", "--nocapture"]).env(ROLE, "1");
        command.env("FLEXCAST_RANK", rank.to_string()).env("FLEXCAST_SIZE", RANKS.to_string());
        command.env("FLEXCAST_STORE", &store).env("FLEXCAST_SPARSE_AGGREGATORS", names.join(","));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Rank { child, input, output }
    };
    (0..RANKS).map(start).collect()
}

fn all_say(ranks: &mut [Rank], command: &str, expected: &str) {
    ranks.iter_mut().for_each(|rank| rank.say(command));
    for (number, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(rank.line(), expected, "rank {number}");
    }
}

/// All ranks name an aggregator, and whoever has found it says what it has done: others may have been told before they find it themselves.
fn names(ranks: &mut [Rank], aggregator: SocketAddr, what: &[&str]) {
    let lines: Vec<String> = ranks.iter_mut().map(Rank::line).collect();
    assert!(lines.iter().all(|line| line.contains(&format!("aggregator {aggregator}"))), "{lines:?}");
    assert!(lines.iter().any(|line| what.iter().any(|what| line.contains(what))), "{lines:?}");
}

/// No test of its own: a rank, which does what it is told.
#[test]
fn a_rank() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let card = Card::udp(&UdpOptions::default().interface("lo")).unwrap();
    let mut store = TcpStore::from_env().unwrap();
    let create = |store: &mut TcpStore, (seconds, reproducible)| {
        let config = Config::for_card(&card).with_environment().unwrap();
        let config = config.barrier_timeout(Duration::from_secs(seconds)).reproducible(reproducible);
        Communicator::create(&card, store, config).unwrap()
    };
    let mut communicator = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.as_str() {
            "create" => communicator = Some(create(&mut store, (20, false))),
            "create reproducible" => communicator = Some(create(&mut store, (20, true))),
            "create hasty" => communicator = Some(create(&mut store, (2, false))),
            _ => {}
        }
        let told = match (line.as_str(), &communicator) {
            ("sums", Some(communicator)) => sums(&card, communicator),
            ("bits", Some(communicator)) => bits(&card, communicator),
            // Until it fails.
            ("loop", Some(communicator)) => {
                println!("> begins");
                loop {
                    if let Err(error) = sum(&card, communicator, 200_000, DataType::I32) {
                        break Err(error);
                    }
                }
            }
            ("destroy", Some(_)) => {
                communicator = None;
                Ok(())
            }
            _ => Ok(()),
        };
        match told {
            Ok(()) => println!("> {line}: fine"),
            Err(error) => println!("> {error}"),
        }
    }
}

/// What rank `rank` has at `at`; most blocks are zero.
fn value(rank: u32, at: usize) -> i32 {
    if (at / 300 + rank as usize).is_multiple_of(4) {
        (at as i32).wrapping_mul(7919).wrapping_add(rank as i32)
    } else {
        0
    }
}

fn sum(card: &Card, communicator: &Communicator, elements: usize, data_type: DataType) -> Result<Vec<u8>, String> {
    let rank = communicator.rank();
    let own = |at: usize| match data_type {
        DataType::I32 => value(rank, at).to_ne_bytes(),
        _ => (value(rank, at) as f32 / (1.0 + rank as f32)).to_ne_bytes(),
    };
    let mut send = card.buffer(elements * 4).unwrap();
    send.write(0, &(0..elements).flat_map(own).collect::<Vec<u8>>()).unwrap();
    let reduction = Reduction::new(Operator::Sum, data_type).unwrap();
    let options = SparseOptions::default();
    let receive = card.buffer(elements * 4).unwrap();
    let request =
        communicator.sparse_all_reduce(send, receive, reduction, options).map_err(|failed| failed.to_string())?;
    let done = communicator.wait(request).map_err(|failed| failed.error.to_string())?;
    Ok(done.receive.to_vec().unwrap())
}

fn sums(card: &Card, communicator: &Communicator) -> Result<(), String> {
    for elements in [0, 1, 127, 7919, 262_144, 524_287] {
        let found = sum(card, communicator, elements, DataType::I32)?;
        let expected = |at: usize| (0..RANKS).fold(0_i32, |sum, rank| sum.wrapping_add(value(rank, at)));
        let expected: Vec<u8> = (0..elements).flat_map(|at| expected(at).to_ne_bytes()).collect();
        if found != expected {
            return Err(format!("another sum of {elements} elements"));
        }
    }
    Ok(())
}

/// The sum in the order of ranks.
fn bits(card: &Card, communicator: &Communicator) -> Result<(), String> {
    let elements = 100_003;
    let found = sum(card, communicator, elements, DataType::F32)?;
    let of = |rank: u32, at: usize| value(rank, at) as f32 / (1.0 + rank as f32);
    let expected = |at: usize| {
        let parts: Vec<f32> = (0..RANKS).map(|rank| of(rank, at)).collect();
        // A block that is zero is left out, which changes nothing of a sum.
        parts[1..].iter().fold(parts[0], |sum, part| sum + part)
    };
    let expected: Vec<u8> = (0..elements).flat_map(|at| expected(at).to_ne_bytes()).collect();
    if found == expected { Ok(()) } else { Err("another sum".to_owned()) }
}

#[test]
fn two_jobs_at_once_with_two_daemons_and_garbage() {
    let folder = tempfile::tempdir().unwrap();
    let daemons = [(); 2].map(|()| Daemon::start(folder.path(), free_port(), &[]));
    let addresses = [daemons[0].address, daemons[1].address];
    // One with a single aggregator, one with two threads of the first and one of the second.
    let mut jobs = [job(&addresses[..1]), job(&[addresses[0], addresses[1], addresses[0]])];
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 1000], b"FXAG"] {
        TcpStream::connect(addresses[0]).unwrap().write_all(bytes).unwrap();
    }
    for command in ["create", "sums", "create reproducible", "bits", "sums"] {
        jobs.iter_mut().flatten().for_each(|rank| rank.say(command));
        for rank in jobs.iter_mut().flatten() {
            assert_eq!(rank.line(), format!("{command}: fine"));
        }
    }
    // The communicators before are gone.
    assert_eq!([daemons[0].jobs(), daemons[1].jobs()], [3 * 3, 3]);
    for mut ranks in jobs {
        all_say(&mut ranks, "destroy", "destroy: fine");
    }
    for daemon in &daemons {
        until("the end of all jobs", || (daemon.jobs() == 0).then_some(()));
        let status = ask(&daemon.socket).unwrap();
        assert_eq!((status.reserved_bytes, status.refused), (0, 0), "{status:?}");
    }
}

#[test]
fn a_daemon_that_is_killed_is_named_and_another_one_serves_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let daemon = Daemon::start(folder.path(), port, &[]);
    let mut ranks = job(&[daemon.address]);
    all_say(&mut ranks, "create", "create: fine");
    all_say(&mut ranks, "sums", "sums: fine");
    // While nothing is under way the next operation connects anew.
    daemon.kill();
    let daemon = Daemon::start(folder.path(), port, &[]);
    all_say(&mut ranks, "sums", "sums: fine");
    all_say(&mut ranks, "loop", "begins");
    std::thread::sleep(Duration::from_millis(200));
    let address = daemon.kill();
    // An operation that has just begun has not reached it any more.
    names(&mut ranks, address, &["has gone in the midst of the operation", "is not reached"]);
    // Without one: named, too, to whoever calls after the others have failed as well.
    all_say(&mut ranks, "create", "create: fine");
    ranks.iter_mut().for_each(|rank| rank.say("sums"));
    names(&mut ranks, address, &["is not reached (Connection refused"]);
    let daemon = Daemon::start(folder.path(), port, &["--memory", "100K"]);
    all_say(&mut ranks, "create", "create: fine");
    ranks.iter_mut().for_each(|rank| rank.say("sums"));
    names(&mut ranks, address, &["refuses this job: it has 102400 bytes of memory"]);
    daemon.kill();
    let _daemon = Daemon::start(folder.path(), port, &[]);
    all_say(&mut ranks, "create", "create: fine");
    all_say(&mut ranks, "sums", "sums: fine");
}

#[test]
fn a_rank_that_is_killed_is_named_to_the_others_and_other_jobs_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), free_port(), &[]);
    let mut jobs = [job(&[daemon.address]), job(&[daemon.address])];
    for command in ["create", "sums"] {
        let expected = format!("{command}: fine");
        jobs.iter_mut().for_each(|ranks| all_say(ranks, command, &expected));
    }
    let [first, second] = &mut jobs;
    all_say(first, "loop", "begins");
    std::thread::sleep(Duration::from_millis(200));
    first[2].child.kill().unwrap();
    for rank in &mut first[..2] {
        let line = rank.line();
        assert!(line.contains("rank 2"), "{line}");
    }
    all_say(second, "sums", "sums: fine");
    for rank in &mut first[..2] {
        rank.say("destroy");
        assert_eq!(rank.line(), "destroy: fine");
    }
    until("the end of the job", || (daemon.jobs() == 3).then_some(()));
}

#[test]
fn whoever_is_silent_is_named_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), free_port(), &[]);
    let [mut first, mut second] = [job(&[daemon.address]), job(&[daemon.address])];
    for ranks in [&mut first, &mut second] {
        all_say(ranks, "create hasty", "create hasty: fine");
        all_say(ranks, "sums", "sums: fine");
    }
    // A rank that does not call, though it lives.
    first[..2].iter_mut().for_each(|rank| rank.say("sums"));
    for rank in &mut first[..2] {
        let line = rank.line();
        assert!(line.contains("rank 2 was silent"), "{line}");
    }
    // A daemon that is alive to the system alone.
    kill(Pid::from_raw(daemon.child.id() as i32), Signal::SIGSTOP).unwrap();
    let start = Instant::now();
    second.iter_mut().for_each(|rank| rank.say("sums"));
    names(&mut second, daemon.address, &["has said nothing for 1.5s"]);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
