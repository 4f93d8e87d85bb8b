//! Sparse AllReduce of `flexcast demo`, compared with the ring: ranks of this process over the loopback interface.

use std::net::TcpListener;
use std::thread;
use std::time::Instant;

use anyhow::Context as _;
use flexcast::bootstrap::{StoreConfig, TcpStore};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{Allreduce, Communicator, Config, Done, Endpoint, SparseOptions, UdpOptions};
use flexcast_lab::perf::PerfError;
use flexcast_lab::sim::text::table;
use serde::Serialize;

use flexcast_cli::out;
use flexcast_cli::stdout::StdoutError;

const RANKS: u32 = 4;
const BYTES: usize = 32 << 20;
/// Of ten blocks of the default size one is not zero, on all ranks the same.
const ONE_IN: usize = 10;
const TURNS: usize = 3;

const SUM: Reduction = Reduction::of(Operator::Sum, DataType::F32).expect("sums of numbers");

/// One way to sum up.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    operation: &'static str,
    algorithm: String,
    /// Bytes that all ranks have received of one another, in one operation.
    received_bytes: u64,
    /// The slowest rank's time, in the fastest of the repetitions.
    measured_us: f64,
    /// Whether both ways have given the same sums, to the last bit, and those that are to come of the numbers.
    pub(super) sums_ok: bool,
}

/// What a rank has seen of one way.
struct Seen {
    algorithm: String,
    received_bytes: u64,
    times_us: Vec<f64>,
    sums: Vec<u8>,
}

/// The number of a rank's elements in a block; whole numbers, whose sums are exact in any order.
fn number(rank: u32, block: usize) -> f32 {
    if block.is_multiple_of(ONE_IN) { (1 + block % 1000) as f32 + rank as f32 } else { 0.0 }
}

fn fill(rank: u32, to: &mut [u8]) {
    let block_bytes = SparseOptions::default().block_bytes as usize;
    for (block, bytes) in to.chunks_mut(block_bytes).enumerate() {
        let number = number(rank, block).to_ne_bytes();
        bytes.as_chunks_mut().0.iter_mut().for_each(|element| *element = number);
    }
}

/// Whether these are the sums.
fn are_sums(found: &[u8]) -> bool {
    let block_bytes = SparseOptions::default().block_bytes as usize;
    found.chunks(block_bytes).enumerate().all(|(block, bytes)| {
        let sum = (0..RANKS).map(|rank| number(rank, block)).sum::<f32>().to_ne_bytes();
        bytes.as_chunks().0.iter().all(|element| *element == sum)
    })
}

fn measure(communicator: &Communicator, endpoint: &Endpoint, sparse: bool) -> Result<Seen, PerfError> {
    let (mut send, mut receive) = (endpoint.buffer(BYTES)?, endpoint.buffer(BYTES)?);
    fill(communicator.rank(), send.as_mut_slice()?);
    let mut seen = Seen { algorithm: String::new(), received_bytes: 0, times_us: Vec::new(), sums: Vec::new() };
    for _ in 0..TURNS {
        communicator.barrier()?.wait()?;
        let begun = Instant::now();
        let request = match sparse {
            true => communicator.post(Allreduce::new(SUM).sparse(SparseOptions::default()).buffers(send, receive))?,
            false => communicator.allreduce(send, receive, SUM)?,
        };
        let Done { send: sent, receive: received, report } = request.wait()?;
        seen.times_us.push(begun.elapsed().as_secs_f64() * 1e6);
        (seen.algorithm, seen.received_bytes) = (report.decision.algorithm().to_string(), report.foreign_bytes);
        receive = received;
        send = match sent {
            Some(sent) => sent,
            // It comes back with its operation.
            None => endpoint.buffer(BYTES)?,
        };
    }
    seen.sums = receive.as_slice()?.to_vec();
    Ok(seen)
}

fn rank(rank: u32, address: &str, listener: Option<TcpListener>) -> anyhow::Result<[Seen; 2]> {
    let config = StoreConfig::new(rank, RANKS, address);
    let mut store = match listener {
        Some(listener) => TcpStore::with_listener(listener, config)?,
        None => TcpStore::join(config)?,
    };
    let endpoint = Endpoint::udp(&UdpOptions::default().interface("lo"))?;
    let communicator = Communicator::create(&endpoint, &mut store, Config::for_endpoint(&endpoint))?;
    Ok([measure(&communicator, &endpoint, false)?, measure(&communicator, &endpoint, true)?])
}

/// Sums up by both ways.
pub(super) fn run() -> anyhow::Result<Vec<Row>> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a port of the loopback interface")?;
    let address = listener.local_addr()?.to_string();
    let mut listener = Some(listener);
    let all: Vec<[Seen; 2]> = thread::scope(|scope| {
        let start = |number| {
            let (address, listener) = (&address, listener.take());
            scope.spawn(move || rank(number, address, listener))
        };
        let threads: Vec<_> = (0..RANKS).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, anyhow::Result<[Seen; 2]>>| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a rank of the sparse AllReduce has panicked")))
        };
        threads.into_iter().map(join).collect::<anyhow::Result<_>>()
    })?;
    let sums = |at: usize| all.iter().map(move |seen| &seen[at].sums);
    let row = |(at, operation): (usize, &'static str)| {
        let slowest = |turn: usize| all.iter().map(|seen| seen[at].times_us[turn]).fold(0.0, f64::max);
        Row {
            operation,
            algorithm: all[0][at].algorithm.clone(),
            received_bytes: all.iter().map(|seen| seen[at].received_bytes).sum(),
            measured_us: (0..TURNS).map(slowest).fold(f64::INFINITY, f64::min),
            sums_ok: sums(at).all(|sums| are_sums(sums) && *sums == all[0][0].sums),
        }
    };
    Ok([(0, "AllReduce"), (1, "sparse AllReduce")].into_iter().map(row).collect())
}

/// Prints the table.
pub(super) fn print(rows: &[Row]) -> Result<(), StdoutError> {
    let mut table = table(&["operation", "algorithm", "bytes received", "ms (measured)", "sums"]);
    for Row { operation, algorithm, received_bytes, measured_us, sums_ok } in rows {
        table.add_row([
            (*operation).to_owned(),
            algorithm.clone(),
            received_bytes.to_string(),
            format!("{:.1}", measured_us / 1e3),
            if *sums_ok { "equal" } else { "DIFFER" }.to_owned(),
        ]);
    }
    let zeros = 100 - 100 / ONE_IN;
    out!(
        "\n{BYTES} bytes of numbers from each of {RANKS} ranks, {zeros} % of their blocks of 1 KiB zero, summed up for \
         all"
    )?;
    out!("{table}")?;
    out!(
        "times are measured: ranks of this process over the loopback interface, which share its processors; the \
         fastest of {TURNS}. Nobody has said which blocks are zero.\nBetween hosts: flexcast perf --op \
         sparse-allreduce --zeros 90, flexcast compare --ops allreduce,sparse-allreduce"
    )
}
