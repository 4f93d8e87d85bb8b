//! A rank of a trial: meets the others, and calls one collective after another until one fails, or its time is over.
//!
//! Run in a process of its own: this test program, to which the environment gives its rank. What it says goes to its
//! standard output, a line for each phase.

use std::io::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use flexcast::bootstrap::{StoreConfig, TcpStore};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Allreduce, Communicator, Config, Done, Endpoint, Error, Failed, Selection, SparseOptions, ThreadOptions, Tuning,
    UdpOptions,
};

use super::draws::Draws;

/// Says which rank a process is, of how many, where the store is, by which seed, and for how many milliseconds:
/// `rank,size,address,seed,ms`.
pub(crate) const TASK: &str = "FLEXCAST_TEST_RANK";
/// Says how many seconds ranks wait for others to begin an operation, and for repair, instead of the short times of
/// trials.
pub(crate) const PATIENCE: &str = "FLEXCAST_TEST_PATIENCE";
/// Longer than any rank stays without a processor where nothing may fail.
pub(crate) const PATIENT: &str = "30";
/// How long ranks wait for one another in the store: longer than for connections, so that whoever waits for one is not
/// taken for the failed rank.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long they wait for others to begin an operation.
pub(crate) const BARRIER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a repair may take.
pub(crate) const RECOVERY_TIMEOUT: Duration = Duration::from_secs(2);

const SUM: Reduction = Reduction::of(Operator::Sum, DataType::U32).expect("sums of numbers");

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Why a rank has ended.
enum Ended {
    /// Its time is over.
    Well,
    /// By a typed error: whom that names, if it has a field for it, and its text.
    Failed(Option<u32>, String),
}

impl From<flexcast::bootstrap::StoreError> for Ended {
    fn from(error: flexcast::bootstrap::StoreError) -> Self {
        Self::Failed(None, error.to_string())
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        let failed_rank = match &error {
            Error::Failed { failure, .. } | Error::Connection { failure, .. } | Error::Broken { failure, .. } => {
                Some(failure.failed_rank)
            }
            _ => None,
        };
        Self::Failed(failed_rank, error.to_string())
    }
}

impl From<Box<Failed>> for Ended {
    fn from(failed: Box<Failed>) -> Self {
        // A failed operation gives its buffers back.
        if failed.receive.is_none() {
            say("lost: the receive buffer");
        }
        failed.error.into()
    }
}

/// What a process has of the system.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: usize,
    threads: usize,
    shared: usize,
}

impl Held {
    fn now() -> Self {
        let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let shared = maps.lines().filter(|line| line.contains("memfd:flexcast")).count();
        Self { descriptors: count("/proc/self/fd"), threads: count("/proc/self/task"), shared }
    }
}

/// Bytes that a rank contributes to an operation: a pattern from some place of it on, so that they cost little.
fn filled(seed: u64, rank: u32, operation: u64, bytes: usize) -> Vec<u8> {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    const PERIOD: usize = 65_521;
    let pattern = PATTERN.get_or_init(|| {
        let mut draws = Draws::new(1);
        (0..2 * PERIOD / 8 + 1).flat_map(|_| draws.next().to_le_bytes()).collect()
    });
    let start = Draws::new(seed ^ u64::from(rank) << 32 ^ operation).below(PERIOD as u64) as usize;
    let mut filled = Vec::with_capacity(bytes);
    while filled.len() < bytes {
        filled.extend_from_slice(&pattern[start..start + PERIOD.min(bytes - filled.len())]);
    }
    filled
}

/// Drops so many of 100 datagrams.
struct Lossy(Draws, u64);

impl flexcast::Tap for Lossy {
    fn take(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) {
        if self.0.below(100) >= self.1 {
            deliver(datagram);
        }
    }
}

/// The calls that all ranks make, in their order.
struct Calls<'c> {
    communicator: &'c Communicator,
    seed: u64,
    draws: Draws,
    number: u64,
}

impl Calls<'_> {
    fn check(&self, what: &str, came: &[u8], wanted: &[u8]) -> Result<(), Ended> {
        if came == wanted {
            return Ok(());
        }
        Err(Ended::Failed(None, format!("WRONG BYTES: {what} number {} of {} bytes", self.number, wanted.len())))
    }

    fn next(&mut self) -> Result<u64, Ended> {
        let Self { communicator, seed, number, .. } = *self;
        let (rank, ranks) = (communicator.rank(), communicator.size());
        let (card, operation) = (communicator.endpoint(), self.draws.below(7));
        let lengths = [0, 64, 3000, 40_000, 300_000, 2_000_000];
        let longest = if self.draws.below(8) == 0 { 6 } else { 5 };
        let bytes = lengths[self.draws.below(longest) as usize];
        let root = self.draws.below(ranks.into()) as u32;
        let buffer = |contents: &[u8]| -> Result<_, Ended> {
            let mut buffer = card.buffer(contents.len())?;
            buffer.write(0, contents)?;
            Ok(buffer)
        };
        let empty = |bytes: usize| card.buffer(bytes);
        let own = filled(seed, rank, number, bytes);
        let all = |bytes: usize| (0..ranks).flat_map(|rank| filled(seed, rank, number, bytes)).collect::<Vec<_>>();
        let done = match operation {
            0 | 1 => {
                let contents = if rank == root { own } else { vec![0; bytes] };
                let done = communicator.broadcast(buffer(&contents)?, root)?.wait()?;
                self.check("broadcast", &done.receive.to_vec()?, &filled(seed, root, number, bytes))?;
                done
            }
            2 | 3 => {
                let request = communicator.allgather(buffer(&own)?, empty(bytes * ranks as usize)?)?;
                let done = request.wait()?;
                self.check("allgather", &done.receive.to_vec()?, &all(bytes))?;
                done
            }
            4 => {
                let sparse = self.draws.below(2) == 0;
                let options = SparseOptions { block_bytes: 256, blocks_per_message: 1 + self.draws.below(32) as u32 };
                // Of ten blocks so many are zero, other ones on each rank.
                let zeros = if sparse { self.draws.below(11) } else { 0 };
                let contribution = |rank: u32| {
                    let mut bytes = filled(seed, rank, number, bytes);
                    let mut draws = Draws::new(seed ^ u64::from(rank) << 40 ^ number);
                    bytes.chunks_mut(256).filter(|_| draws.below(10) < zeros).for_each(|block| block.fill(0));
                    bytes
                };
                let (send, receive) = (buffer(&contribution(rank))?, buffer(&vec![0xa5; bytes])?);
                let request = match sparse {
                    true => communicator.post(Allreduce::new(SUM).sparse(options).buffers(send, receive))?,
                    false => communicator.allreduce(send, receive, SUM)?,
                };
                let done = request.wait()?;
                let mut sums = vec![0; bytes];
                (0..ranks).for_each(|rank| SUM.combine(&mut sums, &contribution(rank)));
                self.check(if sparse { "sparse allreduce" } else { "allreduce" }, &done.receive.to_vec()?, &sums)?;
                done
            }
            5 => {
                let block = bytes / ranks as usize;
                let send = filled(seed, rank, number, block * ranks as usize);
                let request = communicator.alltoall(buffer(&send)?, empty(send.len())?)?;
                let done = request.wait()?;
                let theirs =
                    |from: u32| filled(seed, from, number, send.len())[rank as usize * block..][..block].to_vec();
                self.check("alltoall", &done.receive.to_vec()?, &(0..ranks).flat_map(theirs).collect::<Vec<_>>())?;
                done
            }
            _ => communicator.barrier()?.wait()?,
        };
        self.number += 1;
        let Done { report, .. } = done;
        Ok(report.recovered_chunks)
    }
}

/// Resident memory in KiB, and open descriptors, of this process.
fn resources() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
    (kib, Held::now().descriptors)
}

fn go(task: &str) -> Result<(), Ended> {
    let words: Vec<&str> = task.split(',').collect();
    let [rank, size, address, seed, ms] = words[..] else { panic!("{TASK} is {task:?}") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (rank, size, seed) = (number(rank) as u32, number(size) as u32, number(seed));
    let until = Instant::now() + Duration::from_millis(number(ms));
    say("joining");
    let mut store = TcpStore::join(StoreConfig { timeout: STORE_TIMEOUT, ..StoreConfig::new(rank, size, address) })?;
    say("connecting");
    let mut draws = Draws::new(seed);
    let loss = [0, 0, 2, 20][draws.below(4) as usize];
    // Zeros are left out of short arrays, too.
    let mut options = UdpOptions::from_env()?.tuning(Tuning::default().with_sparse_from_bytes(0));
    if loss > 0 {
        options = options.tap(std::sync::Arc::new(move |rank, _| {
            Box::new(Lossy(Draws::new(seed ^ u64::from(rank)), loss)) as Box<dyn flexcast::Tap>
        }));
    }
    let card = Endpoint::udp(&options)?;
    let patience = std::env::var(PATIENCE).ok().map(|text| Duration::from_secs(number(&text)));
    let mut config = Config::for_endpoint(&card);
    config = config.barrier_timeout(patience.unwrap_or(BARRIER_TIMEOUT));
    config = config.recovery_timeout(patience.unwrap_or(RECOVERY_TIMEOUT));
    // Multicast, whatever is fastest here, in half of the trials; with it repair.
    if draws.below(2) == 0 {
        config = config.algorithm(Selection::Multicast).eager_bytes(1000);
    }
    if draws.below(3) == 0 {
        config = config.progress_thread(Some(ThreadOptions::default()));
    }
    let communicator = Communicator::create(&card, &mut store, config)?;
    say("begun");
    let mut calls = Calls { communicator: &communicator, seed, draws, number: 0 };
    let (mut repaired, mut reported) = (0, Instant::now());
    let begun = reported;
    // All ranks end after the same call.
    loop {
        repaired += calls
            .next()
            .inspect_err(|_| say(&format!("call {}, {:?} after the beginning", calls.number, begun.elapsed())))?;
        if calls.number.is_multiple_of(8) {
            let mut over = card.buffer(1)?;
            over.fill(u8::from(Instant::now() >= until));
            let over = communicator.broadcast(over, 0)?.wait()?.receive.to_vec()?;
            let is_time = reported.elapsed() >= Duration::from_millis(500);
            if is_time || over == [1] {
                reported = Instant::now();
                let (kib, descriptors) = resources();
                say(&format!("resources: {kib} {descriptors} {} {repaired}", calls.number));
            }
            if over == [1] {
                return Ok(());
            }
        }
    }
}

/// Is a rank, if the environment says so.
pub(crate) fn main() {
    let Ok(task) = std::env::var(TASK) else { return };
    let before = Held::now();
    let ended = go(&task).map_or_else(|ended| ended, |()| Ended::Well);
    match ended {
        Ended::Well => say("ended well"),
        Ended::Failed(failed_rank, text) => say(&format!("failed: {} {text}", failed_rank.map_or(-1, i64::from))),
    }
    let mut after = Held::now();
    // The system lists a thread for a moment after it has ended.
    let until = Instant::now() + Duration::from_millis(200);
    while after.threads > before.threads && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
        after.threads = Held::now().threads;
    }
    say(&if after == before { "left nothing".to_owned() } else { format!("left {before:?} -> {after:?}") });
}
