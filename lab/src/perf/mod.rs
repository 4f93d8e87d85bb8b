//! Measurement of collectives by real processes, one per rank: wall time on this system, every buffer checked.

pub mod spec;

use std::time::{Duration, Instant};

use flexcast::bootstrap::Exchange;
use flexcast::{Buffer, Communicator, Done, Failed, Request};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use spec::{Op, Spec};

/// A figure of one operation and length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// Ranks.
    pub ranks: u32,
    /// Bytes that a rank contributes to an Allgather; bytes of a Broadcast.
    pub bytes: u64,
    /// Whether the own block lies in the receive buffer.
    pub in_place: bool,
    /// Of the times of the repetitions, each that of the slowest rank, in microseconds.
    pub median_us: f64,
    /// The time that one in twenty exceeds.
    pub p95_us: f64,
    /// The shortest.
    pub least_us: f64,
    /// Bytes of the result over the median time, in GB/s.
    pub algorithm_gb_per_s: f64,
    /// Bytes that come to a rank over the median time, in GB/s: to be compared with the link's rate, whatever the number of ranks.
    pub bus_gb_per_s: f64,
    /// What carried the data.
    pub algorithm: String,
    /// Repetitions.
    pub repetitions: u32,
    /// Chunks that multicast lost on any rank in any repetition, and that were repaired.
    pub repaired_chunks: u64,
    /// Buffers that were not as they should be, on all ranks.
    pub errors: u64,
    /// Processor time of all ranks' processes within an operation, without what fills and compares buffers.
    pub cpu_s: f64,
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// An operation failed, or was refused.
    #[error(transparent)]
    Operation(#[from] flexcast::Error),
    /// Ranks did not come together.
    #[error(transparent)]
    Exchange(#[from] flexcast::bootstrap::ExchangeError),
    /// What a rank told cannot be read.
    #[error("rank {rank} told {bytes} bytes of its times, not {expected}: run one build on all ranks")]
    Told {
        /// The rank.
        rank: u32,
        /// What it told.
        bytes: usize,
        /// What is needed.
        expected: usize,
    },
}

impl From<Box<Failed>> for PerfError {
    fn from(failed: Box<Failed>) -> Self {
        Self::Operation(failed.error)
    }
}

/// What rank `rank` contributes to repetition `turn`, byte `at`.
const fn byte(rank: u32, turn: u32, at: usize) -> u8 {
    (at as u32)
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add(rank.wrapping_mul(0x85EB_CA6B))
        .wrapping_add(turn)
        .rotate_left(11) as u8
}

fn fill(buffer: &mut Buffer, offset: usize, bytes: usize, rank: u32, turn: u32) -> Result<(), flexcast::Error> {
    for (at, to) in buffer.as_mut_slice()?[offset..offset + bytes].iter_mut().enumerate() {
        *to = byte(rank, turn, at);
    }
    Ok(())
}

fn is_right(buffer: &mut Buffer, offset: usize, bytes: usize, rank: u32, turn: u32) -> Result<bool, flexcast::Error> {
    let found = &buffer.as_slice()?[offset..offset + bytes];
    Ok(found.iter().enumerate().all(|(at, found)| *found == byte(rank, turn, at)))
}

/// What one rank has measured of one length.
#[derive(Default)]
struct Own {
    times_ns: Vec<u64>,
    repaired_chunks: u64,
    errors: u64,
    cpu_ns: u64,
    algorithm: String,
}

/// Buffers of an operation, which come back with it.
struct Buffers {
    send: Option<Buffer>,
    receive: Buffer,
}

fn post(communicator: &Communicator, op: Op, root: u32, buffers: Buffers) -> Result<Request, Box<Failed>> {
    match (op, buffers) {
        (Op::Allgather, Buffers { send: Some(send), receive }) => communicator.allgather(send, receive),
        (Op::Allgather, Buffers { send: None, receive }) => communicator.allgather_in_place(receive),
        (Op::Broadcast, Buffers { receive, .. }) => communicator.broadcast(receive, root),
    }
}

/// Waits for all ranks.
fn barrier(communicator: &Communicator, token: Buffer) -> Result<Buffer, PerfError> {
    let request = communicator.allgather_in_place(token)?;
    Ok(communicator.wait(request)?.receive)
}

fn measure(communicator: &Communicator, spec: &Spec, bytes: u64) -> Result<Own, PerfError> {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let card = communicator.card();
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let total = match spec.op {
        Op::Allgather => bytes.saturating_mul(ranks as usize),
        Op::Broadcast => bytes,
    };
    let gathers = spec.op == Op::Allgather;
    let send = (gathers && !spec.in_place).then(|| card.buffer(bytes)).transpose()?;
    let mut buffers = Buffers { send, receive: card.buffer(total)? };
    let mut token = card.buffer(ranks as usize)?;
    let mut own = Own::default();
    for turn in 0..spec.warm_up + spec.repetitions {
        let root = turn % ranks;
        if let Some(send) = &mut buffers.send {
            fill(send, 0, bytes, rank, turn)?;
            buffers.receive.fill(0xEE);
        } else if gathers {
            buffers.receive.fill(0xEE);
            fill(&mut buffers.receive, rank as usize * bytes, bytes, rank, turn)?;
        } else if rank == root {
            fill(&mut buffers.receive, 0, bytes, root, turn)?;
        } else {
            buffers.receive.fill(0xEE);
        }
        token = barrier(communicator, token)?;
        let cpu_before = cpu_time();
        let begun = Instant::now();
        let request = post(communicator, spec.op, root, buffers)?;
        let Done { send, mut receive, report } = communicator.wait(request)?;
        let time_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let cpu = cpu_time().saturating_sub(cpu_before);
        if turn >= spec.warm_up {
            own.cpu_ns += u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
            own.times_ns.push(time_ns);
            own.repaired_chunks += report.recovered_chunks;
            own.algorithm = format!("{:?}", report.decision.algorithm()).to_lowercase();
        }
        let right = match spec.op {
            Op::Allgather => {
                let mut right = true;
                for other in 0..ranks {
                    right &= is_right(&mut receive, other as usize * bytes, bytes, other, turn)?;
                }
                right
            }
            Op::Broadcast => is_right(&mut receive, 0, bytes, root, turn)?,
        };
        own.errors += u64::from(!right);
        buffers = Buffers { send, receive };
    }
    Ok(own)
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The value that one in `one_in` exceeds; of sorted values.
fn percentile(sorted: &[u64], one_in: usize) -> u64 {
    let at = sorted.len() - sorted.len() / one_in;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0)
}

/// Joins what all ranks have measured.
fn row(spec: &Spec, ranks: u32, bytes: u64, all: &[Vec<u8>], own: &Own) -> Result<Row, PerfError> {
    let count = spec.repetitions as usize;
    let mut times_ns = vec![0; count];
    let (mut repaired_chunks, mut errors, mut cpu_ns) = (0, 0, 0);
    for (rank, told) in (0..).zip(all) {
        let expected = 8 * (count + 3);
        if told.len() != expected {
            return Err(PerfError::Told { rank, bytes: told.len(), expected });
        }
        let mut words = told.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        repaired_chunks += words.next().unwrap_or(0);
        errors += words.next().unwrap_or(0);
        cpu_ns += words.next().unwrap_or(0);
        times_ns.iter_mut().zip(words).for_each(|(slowest, time)| *slowest = time.max(*slowest));
    }
    times_ns.sort_unstable();
    let median_ns = percentile(&times_ns, 2);
    let us = |ns: u64| ns as f64 / 1000.0;
    let result_bytes = match spec.op {
        Op::Allgather => bytes.saturating_mul(ranks.into()),
        Op::Broadcast => bytes,
    };
    let rate = if median_ns == 0 { 0.0 } else { result_bytes as f64 / median_ns as f64 };
    let share = match spec.op {
        Op::Allgather => f64::from(ranks - 1) / f64::from(ranks),
        Op::Broadcast => 1.0,
    };
    Ok(Row {
        op: spec.op,
        ranks,
        bytes,
        in_place: spec.in_place && spec.op == Op::Allgather,
        median_us: us(median_ns),
        p95_us: us(percentile(&times_ns, 20)),
        least_us: us(times_ns.first().copied().unwrap_or(0)),
        algorithm_gb_per_s: rate,
        bus_gb_per_s: rate * share,
        algorithm: own.algorithm.clone(),
        repetitions: spec.repetitions,
        repaired_chunks,
        errors,
        cpu_s: cpu_ns as f64 / 1e9 / f64::from(spec.repetitions.max(1)),
    })
}

/// Measures one length after another on all ranks, and calls `show` with each figure: alike on all ranks.
///
/// # Errors
/// [`PerfError`]: the same on all ranks, or another one's failure.
pub fn run(
    communicator: &Communicator,
    exchange: &mut dyn Exchange,
    spec: &Spec,
    mut show: impl FnMut(&Row),
) -> Result<Vec<Row>, PerfError> {
    let mut rows = Vec::new();
    for bytes in spec.sizes.iter().copied() {
        let own = measure(communicator, spec, bytes)?;
        let words = [own.repaired_chunks, own.errors, own.cpu_ns].into_iter().chain(own.times_ns.iter().copied());
        let told: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let all = exchange.exchange("flexcast perf", &told)?;
        let row = row(spec, communicator.size(), bytes, &all, &own)?;
        show(&row);
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_of_each_repetition_counts() {
        let spec = Spec { repetitions: 3, ..Spec::default() };
        let told = |words: [u64; 6]| words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>();
        let own = Own { algorithm: "eager".to_owned(), ..Own::default() };
        let all = [told([1, 0, 1_500_000, 10_000, 50_000, 20_000]), told([2, 1, 4_500_000, 30_000, 5_000, 40_000])];
        let row = row(&spec, 2, 1000, &all, &own).unwrap();
        assert_eq!((row.median_us, row.p95_us, row.least_us), (40.0, 50.0, 30.0));
        assert_eq!((row.repaired_chunks, row.errors, row.cpu_s), (3, 1, 0.002));
        assert!((row.algorithm_gb_per_s - 0.05).abs() < 1e-9 && (row.bus_gb_per_s - 0.025).abs() < 1e-9);
        let text = super::row(&spec, 2, 1000, &[vec![0; 48], vec![0; 8]], &own).unwrap_err().to_string();
        assert!(text.contains("rank 1 told 8 bytes"), "{text}");
    }

    #[test]
    fn percentiles_of_few_values() {
        assert_eq!(percentile(&[7], 20), 7);
        assert_eq!(percentile(&[1, 2, 3, 4], 2), 2);
        assert_eq!(percentile(&(1..=100).collect::<Vec<_>>(), 20), 95);
        assert_eq!(percentile(&[], 2), 0);
    }
}
