//! Daemons and ranks as processes, and what ranks do on command.
#![allow(dead_code)] // Not every test program needs all.

#[allow(unreachable_pub)] // In a test program nobody else needs it.
#[path = "../../../../tests/src/processes.rs"]
pub(crate) mod processes;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use flexcast::bootstrap::TcpStore;
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{Allreduce, Communicator, Config, Endpoint, SparseOptions};
use flexcast_aggregator::Status;
use flexcast_aggregator::daemon::ask;

/// Longest that anything here may take; it is far less.
const BOUND: Duration = Duration::from_secs(60);
pub(crate) const RANKS: u32 = 3;
/// Says to a process of this program that it is a rank.
const ROLE: &str = "TEST_OF_AGGREGATORS";

pub(crate) fn until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    processes::until(what, BOUND, poll)
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) socket: PathBuf,
}

impl Daemon {
    pub(crate) fn start(folder: &Path, port: u16, more: &[&str]) -> Self {
        Self::start_with(folder, port, more, &[])
    }

    /// The same with these variables.
    pub(crate) fn start_with(folder: &Path, port: u16, more: &[&str], variables: Variables<'_>) -> Self {
        let (address, socket) = (SocketAddr::from(([127, 0, 0, 1], port)), folder.join(format!("status-{port}")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast-aggregator"));
        command.arg("--listen").arg(address.to_string()).arg("--status-socket").arg(&socket).args(["--threads", "2"]);
        let mut child = command.args(more).envs(variables.iter().copied()).stderr(Stdio::null()).spawn().unwrap();
        until("the daemon", || {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            ask(&socket).ok()
        });
        Self { child, address, socket }
    }

    pub(crate) fn jobs(&self) -> usize {
        ask(&self.socket).unwrap().connected as usize
    }

    /// Waits until it serves nobody, and has its memory back, which comes a moment later.
    pub(crate) fn waits_for_the_end(&self) {
        let is_idle = |status: &Status| (status.connected, status.reserved_bytes) == (0, 0);
        until("the end of all jobs", || is_idle(&ask(&self.socket).unwrap()).then_some(()));
    }

    pub(crate) fn kill(mut self) -> SocketAddr {
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

pub(crate) struct Rank {
    pub(crate) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    /// The next line that the rank says, of those that are its own.
    pub(crate) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the rank has ended");
            // What the test's harness says may be before it.
            if let Some((_, own)) = line.split_once("> ") {
                return own.trim().to_owned();
            }
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Names and values.
pub(crate) type Variables<'v> = &'v [(&'v str, &'v str)];

/// A job of three ranks.
pub(crate) fn job(aggregators: &[SocketAddr]) -> Vec<Rank> {
    job_with(aggregators, &[])
}

/// The same with these variables.
pub(crate) fn job_with(aggregators: &[SocketAddr], variables: Variables<'_>) -> Vec<Rank> {
    let names: Vec<String> = aggregators.iter().map(SocketAddr::to_string).collect();
    let store = format!("127.0.0.1:{}", free_port());
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_rank", "--nocapture"]).env(ROLE, "1");
        command.env("FLEXCAST_RANK", rank.to_string()).env("FLEXCAST_SIZE", RANKS.to_string());
        command.env("FLEXCAST_STORE", &store).env("FLEXCAST_SPARSE_AGGREGATORS", names.join(","));
        command.envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Rank { child, input, output }
    };
    (0..RANKS).map(start).collect()
}

pub(crate) fn all_say(ranks: &mut [Rank], command: &str, expected: &str) {
    ranks.iter_mut().for_each(|rank| rank.say(command));
    for (number, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(rank.line(), expected, "rank {number}");
    }
}

/// All ranks name an aggregator, and whoever has found it says what it has done: others may have been notified before
/// they find it themselves.
pub(crate) fn names(ranks: &mut [Rank], aggregator: SocketAddr, what: &[&str]) {
    let lines: Vec<String> = ranks.iter_mut().map(Rank::line).collect();
    assert!(lines.iter().all(|line| line.contains(&format!("aggregator {aggregator}"))), "{lines:?}");
    assert!(lines.iter().any(|line| what.iter().any(|what| line.contains(what))), "{lines:?}");
}

/// Each of the ranks says why, and not only which of them knows; one that has called too late, that it cannot any more.
#[allow(dead_code)] // Over cards the first that fails ends the others.
pub(crate) fn all_name(ranks: &mut [Rank], aggregator: SocketAddr, what: &str) {
    let lines: Vec<String> = ranks.iter_mut().map(Rank::line).collect();
    assert!(lines.iter().all(|line| line.contains(&format!("aggregator {aggregator}"))), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(what)), "{lines:?}");
    let is_late = |line: &String| line.contains("is of no use since an operation failed");
    assert!(lines.iter().all(|line| line.contains(what) || is_late(line)), "{lines:?}");
}

/// A rank, which carries out the commands of its input; nothing in a process that is none. To be called by a test
/// `a_rank`.
pub(crate) fn be_a_rank(endpoint: impl FnOnce() -> Endpoint) {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let endpoint = endpoint();
    let mut store = TcpStore::from_env().unwrap();
    let create = |store: &mut TcpStore, (seconds, reproducible)| {
        let config = Config::for_endpoint(&endpoint).with_environment().unwrap();
        let config = config.barrier_timeout(Duration::from_secs(seconds)).reproducible(reproducible);
        Communicator::create(&endpoint, store, config).unwrap()
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
        let done = match (line.as_str(), &communicator) {
            ("sums", Some(communicator)) => sums(&endpoint, communicator, &[0, 1, 127, 7919, 262_144, 524_287]),
            ("few sums", Some(communicator)) => sums(&endpoint, communicator, &[0, 1, 7919, 30_011]),
            ("bits", Some(communicator)) => bits(&endpoint, communicator),
            // Until it fails.
            ("loop", Some(communicator)) => {
                println!("> begins");
                loop {
                    if let Err(error) = sum(&endpoint, communicator, 200_000, DataType::I32) {
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
        match done {
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

fn sum(
    endpoint: &Endpoint,
    communicator: &Communicator,
    elements: usize,
    data_type: DataType,
) -> Result<Vec<u8>, String> {
    let rank = communicator.rank();
    let own = |at: usize| match data_type {
        DataType::I32 => value(rank, at).to_ne_bytes(),
        _ => (value(rank, at) as f32 / (1.0 + rank as f32)).to_ne_bytes(),
    };
    let mut send = endpoint.buffer(elements * 4).unwrap();
    send.write(0, &(0..elements).flat_map(own).collect::<Vec<u8>>()).unwrap();
    let reduction = Reduction::new(Operator::Sum, data_type).unwrap();
    let options = SparseOptions::default();
    let receive = endpoint.buffer(elements * 4).unwrap();
    let request = communicator
        .post(Allreduce::new(reduction).sparse(options).buffers(send, receive))
        .map_err(|failed| failed.to_string())?;
    let done = request.wait().map_err(|failed| failed.error.to_string())?;
    Ok(done.receive.to_vec().unwrap())
}

fn sums(endpoint: &Endpoint, communicator: &Communicator, lengths: &[usize]) -> Result<(), String> {
    for elements in lengths.iter().copied() {
        let found = sum(endpoint, communicator, elements, DataType::I32)?;
        let expected = |at: usize| (0..RANKS).fold(0_i32, |sum, rank| sum.wrapping_add(value(rank, at)));
        let expected: Vec<u8> = (0..elements).flat_map(|at| expected(at).to_ne_bytes()).collect();
        if found != expected {
            return Err(format!("another sum of {elements} elements"));
        }
    }
    Ok(())
}

/// The sum in the order of ranks.
fn bits(endpoint: &Endpoint, communicator: &Communicator) -> Result<(), String> {
    let elements = 100_003;
    let found = sum(endpoint, communicator, elements, DataType::F32)?;
    let of = |rank: u32, at: usize| value(rank, at) as f32 / (1.0 + rank as f32);
    let expected = |at: usize| {
        let parts: Vec<f32> = (0..RANKS).map(|rank| of(rank, at)).collect();
        // A block that is zero is left out, which changes nothing of a sum.
        parts[1..].iter().fold(parts[0], |sum, part| sum + part)
    };
    let expected: Vec<u8> = (0..elements).flat_map(|at| expected(at).to_ne_bytes()).collect();
    if found == expected { Ok(()) } else { Err("another sum".to_owned()) }
}
