//! Measurement of collectives by real processes, one per rank: wall time on this system, every buffer checked.

mod agreement;
mod content;
pub mod op;
pub mod spec;

use std::time::{Duration, Instant};

use flexcast::bootstrap::Exchange;
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Allgather, Allreduce, Alltoall, Buffer, Communicator, Done, Failed, Gather, Reduce, ReduceScatter, Request,
    Scatter, SparseOptions,
};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use content::Content;
use op::Op;
use spec::Spec;

/// A figure of one operation and length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// Ranks.
    pub ranks: u32,
    /// Bytes of a Broadcast, Reduce or AllReduce; those that a rank contributes to an Allgather, Reduce-Scatter,
    /// Alltoall or Gather; those that it gets of a Scatter.
    pub bytes: u64,
    /// Whether the contribution lies in the receive buffer.
    pub in_place: bool,
    /// Of the times of the repetitions, each that of the slowest rank, in microseconds.
    pub median_us: f64,
    /// The time that one in twenty exceeds.
    pub p95_us: f64,
    /// The shortest.
    pub least_us: f64,
    /// Bytes over the median time, in GB/s: those of the largest buffer of a rank ([`Op::counted_bytes`]).
    pub algorithm_gb_per_s: f64,
    /// The same times [`Op::bus_factor`], in GB/s: to be compared with the link's rate, whatever the number of ranks.
    pub bus_gb_per_s: f64,
    /// What carried the data.
    pub algorithm: String,
    /// Repetitions.
    pub repetitions: u32,
    /// Chunks that multicast lost on any rank in any repetition, and that were repaired.
    pub repaired_chunks: u64,
    /// Chunks that came after they had been given up for lost.
    pub late_chunks: u64,
    /// Datagrams for which receive buffers had no room (datapath `udp`).
    pub overflowed_datagrams: u64,
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
    /// What a rank sent cannot be read.
    #[error("rank {rank} sent {bytes} bytes of its times, not {expected}: run one build on all ranks")]
    Times {
        /// The rank.
        rank: u32,
        /// What it sent.
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

/// What reductions do.
const SUM: Reduction = Reduction::of(Operator::Sum, DataType::F32).expect("sums of numbers");

/// What one rank has measured of one length.
#[derive(Default)]
struct Own {
    times_ns: Vec<u64>,
    counts: Counts,
    algorithm: String,
}

/// What ranks count in all repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Counts {
    repaired_chunks: U64,
    late_chunks: U64,
    overflowed_datagrams: U64,
    errors: U64,
    cpu_ns: U64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.repaired_chunks += other.repaired_chunks;
        self.late_chunks += other.late_chunks;
        self.overflowed_datagrams += other.overflowed_datagrams;
        self.errors += other.errors;
        self.cpu_ns += other.cpu_ns;
    }
}

/// Buffers of an operation, which come back with it.
struct Buffers {
    /// None where there is none, or in place.
    send: Option<Buffer>,
    receive: Buffer,
}

/// An operation, and who of its ranks this is.
#[derive(Clone, Copy)]
struct Task {
    content: Content,
    rank: u32,
    /// A length that fits.
    bytes: usize,
}

impl Task {
    const fn is_root(self) -> bool {
        self.rank == self.content.root()
    }

    /// Nothing right in the receive buffer, and the own contribution where it belongs.
    fn fill(self, buffers: &mut Buffers) -> Result<(), flexcast::Error> {
        let Self { content, rank, bytes } = self;
        buffers.receive.fill(0xEE);
        match (&mut buffers.send, content.op) {
            (Some(send), _) => change(send, |bytes| content.fill(rank, bytes)),
            (None, Op::Allgather) => {
                change(&mut buffers.receive, |all| content.fill(rank, &mut all[rank as usize * bytes..][..bytes]))
            }
            (None, Op::Broadcast) if !self.is_root() => Ok(()),
            (None, _) => change(&mut buffers.receive, |bytes| content.fill(rank, bytes)),
        }
    }

    fn post(self, communicator: &Communicator, buffers: Buffers) -> Result<Request, PerfError> {
        let (root, Buffers { send, receive }) = (self.content.root(), buffers);
        let request = match (self.content.op, send) {
            (Op::Allgather, Some(send)) => communicator.allgather(send, receive),
            (Op::Allgather, None) => communicator.post(Allgather::new().in_place(receive)),
            (Op::Broadcast, _) => communicator.broadcast(receive, root),
            (Op::Reduce, Some(send)) => communicator.post(Reduce::to(root, SUM).buffers(send, receive)),
            (Op::Reduce, None) => communicator.post(Reduce::to(root, SUM).in_place(receive)),
            (Op::Allreduce, Some(send)) => communicator.allreduce(send, receive, SUM),
            (Op::Allreduce, None) => communicator.post(Allreduce::new(SUM).in_place(receive)),
            (Op::SparseAllreduce, Some(send)) => {
                communicator.post(Allreduce::new(SUM).sparse(SparseOptions::default()).buffers(send, receive))
            }
            (Op::SparseAllreduce, None) => {
                communicator.post(Allreduce::new(SUM).sparse(SparseOptions::default()).in_place(receive))
            }
            (Op::ReduceScatter, Some(send)) => communicator.post(ReduceScatter::new(SUM).buffers(send, receive)),
            (Op::Alltoall, Some(send)) => communicator.alltoall(send, receive),
            (Op::Alltoall, None) => communicator.post(Alltoall::new().in_place(receive)),
            (Op::Gather, Some(send)) => communicator.post(Gather::to(root).buffers(send, receive)),
            (Op::Scatter, Some(send)) => communicator.post(Scatter::from(root).buffers(send, receive)),
            (Op::Barrier | Op::ReduceScatter | Op::Gather | Op::Scatter, _) => communicator.barrier(),
        };
        Ok(request?)
    }

    /// Whether the receive buffer is as it should be.
    fn is_right(self, receive: &mut Buffer) -> Result<bool, flexcast::Error> {
        let Self { content, rank, bytes } = self;
        if !content.op.receives(self.is_root()) {
            return Ok(true);
        }
        match receive.as_slice() {
            Ok(found) => Ok(content.is_right(rank, bytes, found)),
            Err(flexcast::Error::Leased { .. }) => Ok(content.is_right(rank, bytes, &receive.to_vec()?)),
            Err(error) => Err(error),
        }
    }
}

/// Changes the bytes of a buffer where they are, or in a copy while a service process may use them: the next operation,
/// which is measured, would pay for a buffer that was taken back.
fn change(buffer: &mut Buffer, change: impl FnOnce(&mut [u8])) -> Result<(), flexcast::Error> {
    match buffer.as_mut_slice() {
        Ok(bytes) => change(bytes),
        Err(flexcast::Error::Leased { .. }) => {
            let mut copy = buffer.to_vec()?;
            change(&mut copy);
            buffer.write(0, &copy)?;
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Waits for all ranks.
fn barrier(communicator: &Communicator, token: Buffer) -> Result<Buffer, PerfError> {
    let request = communicator.post(Allgather::new().in_place(token))?;
    Ok(request.wait()?.receive)
}

fn measure(communicator: &Communicator, spec: &Spec, bytes: u64) -> Result<Own, PerfError> {
    let (rank, ranks, op) = (communicator.rank(), communicator.size(), spec.op);
    let endpoint = communicator.endpoint();
    let buffer = |bytes| endpoint.buffer(usize::try_from(bytes).unwrap_or(usize::MAX));
    let send_bytes = op.send_bytes(bytes, ranks).filter(|_| !spec.is_in_place());
    let mut buffers =
        Buffers { send: send_bytes.map(buffer).transpose()?, receive: buffer(op.receive_bytes(bytes, ranks))? };
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut token = endpoint.buffer(ranks as usize)?;
    let mut own = Own::default();
    for turn in 0..spec.warm_up + spec.repetitions {
        let task = Task { content: Content { op, ranks, turn, zeros: spec.zeros }, rank, bytes };
        task.fill(&mut buffers)?;
        token = barrier(communicator, token)?;
        let cpu_before = cpu_time();
        let begun = Instant::now();
        let request = task.post(communicator, buffers)?;
        let Done { send, mut receive, report } = request.wait()?;
        let time_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let cpu = cpu_time().saturating_sub(cpu_before);
        // With fewer cores than ranks, whoever compares its buffer takes the core of one that is not done yet.
        token = barrier(communicator, token)?;
        if turn >= spec.warm_up {
            own.times_ns.push(time_ns);
            own.counts.cpu_ns += u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
            own.counts.repaired_chunks += report.recovered_chunks;
            own.counts.late_chunks += report.late_chunks;
            own.counts.overflowed_datagrams += report.overflowed_datagrams;
            own.algorithm = report.decision.name().to_owned();
        }
        own.counts.errors += u64::from(!task.is_right(&mut receive)?);
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

/// What a rank sends the others: counts, and times in nanoseconds.
fn encode(counts: &Counts, times_ns: &[u64]) -> Vec<u8> {
    let times: Vec<U64> = times_ns.iter().copied().map(U64::new).collect();
    [counts.as_bytes(), times.as_bytes()].concat()
}

/// What a rank has sent of `count` repetitions, if it can be read.
fn decode(sent: &[u8], count: usize) -> Option<(&Counts, &[U64])> {
    let (counts, times) = Counts::ref_from_prefix(sent).ok()?;
    let times = <[U64]>::ref_from_bytes(times).ok()?;
    (times.len() == count).then_some((counts, times))
}

/// Joins what all ranks have measured.
fn row(spec: &Spec, ranks: u32, bytes: u64, all: &[Vec<u8>], own: &Own) -> Result<Row, PerfError> {
    let count = spec.repetitions as usize;
    let mut times_ns = vec![0; count];
    let mut counts = Counts::default();
    for (rank, sent) in (0..).zip(all) {
        let Some((own, times)) = decode(sent, count) else {
            return Err(PerfError::Times { rank, bytes: sent.len(), expected: size_of::<Counts>() + 8 * count });
        };
        counts.add(own);
        times_ns.iter_mut().zip(times).for_each(|(slowest, time)| *slowest = time.get().max(*slowest));
    }
    times_ns.sort_unstable();
    let median_ns = percentile(&times_ns, 2);
    let us = |ns: u64| ns as f64 / 1000.0;
    let counted = spec.op.counted_bytes(bytes, ranks) as f64;
    let rate = if median_ns == 0 { 0.0 } else { counted / median_ns as f64 };
    Ok(Row {
        op: spec.op,
        ranks,
        bytes,
        in_place: spec.is_in_place(),
        median_us: us(median_ns),
        p95_us: us(percentile(&times_ns, 20)),
        least_us: us(times_ns.first().copied().unwrap_or(0)),
        algorithm_gb_per_s: rate,
        bus_gb_per_s: rate * spec.op.bus_factor(ranks),
        algorithm: own.algorithm.clone(),
        repetitions: spec.repetitions,
        repaired_chunks: counts.repaired_chunks.get(),
        late_chunks: counts.late_chunks.get(),
        overflowed_datagrams: counts.overflowed_datagrams.get(),
        errors: counts.errors.get(),
        cpu_s: counts.cpu_ns.get() as f64 / 1e9 / f64::from(spec.repetitions.max(1)),
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
    // A Barrier has only one length.
    let lengths = if spec.op == Op::Barrier { 1 } else { usize::MAX };
    for bytes in spec.sizes.iter().take(lengths).map(|bytes| spec.op.fitting(*bytes, communicator.size())) {
        let own = measure(communicator, spec, bytes)?;
        let all = exchange.exchange("flexcast perf", &encode(&own.counts, &own.times_ns))?;
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
        let own = Own { algorithm: "eager".to_owned(), ..Own::default() };
        let counts = |words: [u64; 5]| {
            let [repaired_chunks, late_chunks, overflowed_datagrams, errors, cpu_ns] = words.map(U64::new);
            Counts { repaired_chunks, late_chunks, overflowed_datagrams, errors, cpu_ns }
        };
        let all = [
            encode(&counts([1, 5, 7, 0, 1_500_000]), &[10_000, 50_000, 20_000]),
            encode(&counts([2, 6, 8, 1, 4_500_000]), &[30_000, 5_000, 40_000]),
        ];
        let row = row(&spec, 2, 1000, &all, &own).unwrap();
        assert_eq!((row.median_us, row.p95_us, row.least_us), (40.0, 50.0, 30.0));
        assert_eq!((row.repaired_chunks, row.errors, row.cpu_s), (3, 1, 0.002));
        assert_eq!((row.late_chunks, row.overflowed_datagrams), (11, 15));
        assert!((row.algorithm_gb_per_s - 0.05).abs() < 1e-9 && (row.bus_gb_per_s - 0.025).abs() < 1e-9);
        let text = super::row(&spec, 2, 1000, &[all[0].clone(), vec![0; 8]], &own).unwrap_err().to_string();
        assert!(text.contains("rank 1 sent 8 bytes"), "{text}");
    }

    #[test]
    fn percentiles_of_few_values() {
        assert_eq!(percentile(&[7], 20), 7);
        assert_eq!(percentile(&[1, 2, 3, 4], 2), 2);
        assert_eq!(percentile(&(1..=100).collect::<Vec<_>>(), 20), 95);
        assert_eq!(percentile(&[], 2), 0);
    }
}
