//! Plan of a throughput run: limits checked first, then the buffer cut into chunks and the chunks into workers' shares.

use serde::{Deserialize, Serialize};

use crate::memory::{self, MemoryError};

/// Alignment of a chunk: a cache line, because two writers in one line would overwrite one another.
pub const CHUNK_ALIGN_BYTES: u64 = 64;
/// Longest UD message: one MTU.
pub const UD_MAX_CHUNK_BYTES: u64 = 4096;
/// Longest UC message accepted here (the transport allows 2 GiB).
pub const UC_MAX_CHUNK_BYTES: u64 = 8 << 20;
/// Hardware threads a process can count on: the card has 256, its own services hold the rest.
pub const MAX_THREADS: u32 = 190;
/// The last execution unit that a process can have.
pub const LAST_UNIT: u32 = 254;
/// Deepest receive ring of a queue pair.
pub const MAX_RING: u32 = 8192;
/// Shallowest useful receive ring.
pub const MIN_RING: u32 = 16;
/// Most bits of the immediate that may be sequence number; the rest is the collective id.
pub const MAX_PSN_BITS: u32 = 31;
/// Bits of sequence number when none are asked for: 4 Mi chunks per worker and 1024 collective ids.
pub const DEFAULT_PSN_BITS: u32 = 22;

/// The transport under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Unreliable connected: RDMA Write with immediate straight into the user buffer.
    Uc,
    /// Unreliable datagram: staged in the card, copied by loopback RDMA Writes.
    Ud,
}

impl Transport {
    /// The lower-case name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Uc => "uc",
            Transport::Ud => "ud",
        }
    }

    fn max_chunk_bytes(self) -> u64 {
        match self {
            Transport::Uc => UC_MAX_CHUNK_BYTES,
            Transport::Ud => UD_MAX_CHUNK_BYTES,
        }
    }
}

/// Parameters of a run, as given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Transport of the data.
    pub transport: Transport,
    /// Receive workers; each owns one DPA thread, one completion queue and one queue pair.
    pub threads: u32,
    /// Bytes of one chunk, a multiple of [`CHUNK_ALIGN_BYTES`].
    pub chunk_bytes: u64,
    /// Chunks the client posts and the device consumes per doorbell. The default is the smallest batch at which the doorbells
    /// cost less than two instructions per chunk (UC).
    pub batch: u32,
    /// Posted receives per worker, a power of two.
    pub ring: u32,
    /// Measured repetitions.
    pub iterations: u32,
    /// Repetitions before the measured ones.
    pub warm_up: u32,
    /// Bits of the immediate that hold the sequence number.
    pub psn_bits: u32,
    /// Fabric drops, parts per million of packets.
    pub loss_ppm: u32,
    /// Seed of the drops.
    pub seed: u64,
    /// Execution unit of the first worker; the others follow. Sixteen make a core, unit 0 is the system's.
    pub first_unit: u32,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            transport: Transport::Uc,
            threads: 1,
            chunk_bytes: 4096,
            batch: 32,
            ring: 256,
            iterations: 1,
            warm_up: 0,
            psn_bits: DEFAULT_PSN_BITS,
            loss_ppm: 0,
            seed: 1,
            first_unit: 1,
        }
    }
}

/// Parameters that cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nothing to send.
    #[error("0 bytes to send: give at least 1 (--bytes), or a file that is not empty (--file)")]
    Empty,
    /// Chunks must be whole cache lines.
    #[error("chunk of {chunk_bytes} bytes: must be a multiple of {CHUNK_ALIGN_BYTES} and not 0 (nearest: {nearest})")]
    ChunkAlignment {
        /// The size given.
        chunk_bytes: u64,
        /// The next size that works.
        nearest: u64,
    },
    /// A chunk must fit in one message.
    #[error("chunk of {chunk_bytes} bytes: {transport} carries at most {limit} bytes per message; give a smaller --chunk", transport = transport.name())]
    ChunkTooLong {
        /// The size given.
        chunk_bytes: u64,
        /// The transport asked for.
        transport: Transport,
        /// Its limit.
        limit: u64,
    },
    /// More workers than the card has threads for.
    #[error("{threads} threads: a process can have 1 to {MAX_THREADS}")]
    Threads {
        /// The number given.
        threads: u32,
    },
    /// Workers beyond the last execution unit, or on the system's.
    #[error("{threads} threads from execution unit {first_unit} on: the units are 1 to {LAST_UNIT}, 16 to a core")]
    Units {
        /// The first given.
        first_unit: u32,
        /// Threads.
        threads: u32,
    },
    /// The device wraps ring indices with a mask.
    #[error("ring of {ring} receives: must be a power of two from {MIN_RING} to {MAX_RING} (nearest: {nearest})")]
    Ring {
        /// The depth given.
        ring: u32,
        /// The next depth that works.
        nearest: u32,
    },
    /// A batch larger than half the ring would stall on its own credits.
    #[error("batch of {batch}: must be a power of two from 1 to half the ring, {limit}")]
    Batch {
        /// The batch given.
        batch: u32,
        /// Half the ring.
        limit: u32,
    },
    /// Sequence-number bits out of range.
    #[error("{psn_bits} bits of sequence number: must be 1 to {MAX_PSN_BITS}, the other bits hold the collective id")]
    PsnBits {
        /// The number given.
        psn_bits: u32,
    },
    /// More chunks than sequence numbers.
    #[error(
        "{bytes} bytes are {chunks} chunks per worker of {chunk_bytes} bytes, but {psn_bits} bits number only {limit}; \
         give a larger --chunk, more --threads or more --psn-bits"
    )]
    PsnSpace {
        /// Bytes to send.
        bytes: u64,
        /// Chunks of the largest share.
        chunks: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Bits of the sequence number.
        psn_bits: u32,
        /// Chunks those bits can number.
        limit: u64,
    },
    /// More repetitions than collective ids.
    #[error(
        "{runs} repetitions with {psn_bits} bits of sequence number: only {limit} collective ids are left, and an id must \
         not come back within one process; give fewer --iterations or fewer --psn-bits"
    )]
    CollectiveIds {
        /// Warm-up and measured repetitions together.
        runs: u64,
        /// Bits of the sequence number.
        psn_bits: u32,
        /// Collective ids.
        limit: u64,
    },
    /// Nothing would be measured.
    #[error("0 iterations: give at least 1; --warm-up repetitions are not reported")]
    Iterations,
}

/// The contiguous part of the buffer one worker receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the worker.
    pub worker: u32,
    /// First byte in the buffer.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Chunks; all but the last are full. 0 for a worker that has nothing to receive.
    pub chunks: u64,
    /// Bytes of the last chunk, 1 to the chunk size (the chunk size where there is none).
    pub last_chunk_bytes: u64,
}

impl Share {
    /// Bytes of chunk `psn` of this share.
    #[must_use]
    pub fn chunk_len(&self, psn: u64, chunk_bytes: u64) -> u64 {
        if psn + 1 == self.chunks { self.last_chunk_bytes } else { chunk_bytes }
    }
}

/// A run that can be executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The parameters, checked.
    pub params: Params,
    /// Bytes to send.
    pub bytes: u64,
    /// Chunks in all.
    pub chunks: u64,
    /// One share per worker.
    pub shares: Vec<Share>,
}

impl Plan {
    /// Checks the parameters for a buffer of `bytes` and cuts it up. Shares are contiguous and differ by one chunk.
    ///
    /// # Errors
    /// [`PlanError`] for the first parameter that cannot be run.
    pub fn new(params: Params, bytes: u64) -> Result<Plan, PlanError> {
        check(&params)?;
        if bytes == 0 {
            return Err(PlanError::Empty);
        }
        let chunks = bytes.div_ceil(params.chunk_bytes);
        let workers = u64::from(params.threads);
        let largest = chunks.div_ceil(workers);
        let limit = 1u64 << params.psn_bits;
        if largest > limit {
            return Err(PlanError::PsnSpace {
                bytes,
                chunks: largest,
                chunk_bytes: params.chunk_bytes,
                psn_bits: params.psn_bits,
                limit,
            });
        }
        let (short, longer) = (chunks / workers, chunks % workers);
        let mut shares = Vec::new();
        let mut first = 0;
        for worker in 0..workers {
            let own = short + u64::from(worker < longer);
            let offset = (first * params.chunk_bytes).min(bytes);
            let end = ((first + own) * params.chunk_bytes).min(bytes);
            let last_chunk_bytes =
                if own == 0 { params.chunk_bytes } else { end - offset - (own - 1) * params.chunk_bytes };
            shares.push(Share { worker: worker as u32, offset, bytes: end - offset, chunks: own, last_chunk_bytes });
            first += own;
        }
        Ok(Plan { params, bytes, chunks, shares })
    }

    /// Memory of this process that the buffer takes in a run on emulated cards: what is sent, the sender's copy, what is received, with
    /// bitmaps on both sides, and a chunk to compare.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let bitmaps = (self.chunks / 4).saturating_add(128 * u64::from(self.params.threads));
        self.bytes.saturating_mul(3).saturating_add(self.params.chunk_bytes).saturating_add(bitmaps)
    }

    /// Refuses a buffer that memory has no room for.
    ///
    /// # Errors
    /// [`MemoryError::TooMuch`].
    pub fn check_memory(&self) -> Result<(), MemoryError> {
        memory::require("--bytes", self.bytes, self.memory_bytes(), "give fewer bytes, or a smaller file")
    }

    /// Warm-up and measured repetitions.
    #[must_use]
    pub fn runs(&self) -> u32 {
        self.params.warm_up + self.params.iterations
    }
}

fn check(params: &Params) -> Result<(), PlanError> {
    let Params { transport, threads, chunk_bytes, batch, ring, iterations, warm_up, psn_bits, .. } = *params;
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(CHUNK_ALIGN_BYTES) {
        let limit = transport.max_chunk_bytes();
        let nearest = chunk_bytes.clamp(1, limit).next_multiple_of(CHUNK_ALIGN_BYTES);
        return Err(PlanError::ChunkAlignment { chunk_bytes, nearest });
    }
    if chunk_bytes > transport.max_chunk_bytes() {
        return Err(PlanError::ChunkTooLong { chunk_bytes, transport, limit: transport.max_chunk_bytes() });
    }
    if threads == 0 || threads > MAX_THREADS {
        return Err(PlanError::Threads { threads });
    }
    if params.first_unit == 0 || params.first_unit.saturating_add(threads - 1) > LAST_UNIT {
        return Err(PlanError::Units { first_unit: params.first_unit, threads });
    }
    if !ring.is_power_of_two() || !(MIN_RING..=MAX_RING).contains(&ring) {
        let nearest = ring.clamp(MIN_RING, MAX_RING).next_power_of_two();
        return Err(PlanError::Ring { ring, nearest });
    }
    if !batch.is_power_of_two() || batch > ring / 2 {
        return Err(PlanError::Batch { batch, limit: ring / 2 });
    }
    if psn_bits == 0 || psn_bits > MAX_PSN_BITS {
        return Err(PlanError::PsnBits { psn_bits });
    }
    if iterations == 0 {
        return Err(PlanError::Iterations);
    }
    let (runs, limit) = (u64::from(iterations) + u64::from(warm_up), 1u64 << (32 - psn_bits));
    if runs > limit {
        return Err(PlanError::CollectiveIds { runs, psn_bits, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(threads: u32, chunk_bytes: u64, bytes: u64) -> Result<Plan, PlanError> {
        Plan::new(Params { threads, chunk_bytes, ..Params::default() }, bytes)
    }

    #[test]
    fn shares_cover_the_buffer_once_and_in_order() {
        for bytes in [1, 63, 64, 65, 4095, 4096, 4097, 65_536, 1_000_003] {
            for threads in [1, 2, 3, 16, 190] {
                for chunk in [64, 128, 4096] {
                    let plan = plan(threads, chunk, bytes).unwrap();
                    let mut next = 0;
                    for share in &plan.shares {
                        assert_eq!(share.offset, next);
                        assert!((1..=chunk).contains(&share.last_chunk_bytes));
                        let full = share.chunks.saturating_sub(1) * chunk;
                        assert_eq!(share.bytes, full + if share.chunks == 0 { 0 } else { share.last_chunk_bytes });
                        next += share.bytes;
                    }
                    assert_eq!(next, bytes);
                    assert_eq!(plan.shares.iter().map(|s| s.chunks).sum::<u64>(), plan.chunks);
                    let most = plan.shares.iter().map(|s| s.chunks).max().unwrap();
                    let least = plan.shares.iter().map(|s| s.chunks).min().unwrap();
                    assert!(most - least <= 1);
                }
            }
        }
    }

    #[test]
    fn one_byte_is_one_chunk_of_one_byte() {
        let plan = plan(16, 4096, 1).unwrap();
        assert_eq!(plan.shares.len(), 16);
        assert_eq!((plan.shares[0].chunks, plan.shares[0].last_chunk_bytes), (1, 1));
        assert!(plan.shares[1..].iter().all(|share| share.chunks == 0 && share.bytes == 0));
        assert_eq!(plan.shares[0].chunk_len(0, 4096), 1);
    }

    #[test]
    fn bad_parameters_name_value_limit_and_next_step() {
        let refused = |change: fn(&mut Params), bytes: u64, words: &[&str]| {
            let mut params = Params::default();
            change(&mut params);
            let text = Plan::new(params, bytes).unwrap_err().to_string();
            for word in words {
                assert!(text.contains(word), "{text:?} lacks {word:?}");
            }
        };
        refused(|_| (), 0, &["0 bytes", "--bytes"]);
        refused(|p| p.chunk_bytes = 100, 1, &["100 bytes", "multiple of 64", "128"]);
        refused(|p| p.chunk_bytes = 0, 1, &["chunk of 0", "nearest: 64"]);
        refused(|p| (p.transport, p.chunk_bytes) = (Transport::Ud, 8192), 1, &["8192", "ud", "4096", "--chunk"]);
        refused(|p| p.threads = 0, 1, &["0 threads", "190"]);
        refused(|p| p.threads = 191, 1, &["191 threads", "190"]);
        refused(|p| p.first_unit = 0, 1, &["unit 0 on", "1 to 254"]);
        refused(|p| (p.threads, p.first_unit) = (16, 240), 1, &["16 threads from execution unit 240", "254"]);
        refused(|p| p.ring = 100, 1, &["ring of 100", "power of two", "128"]);
        refused(|p| p.ring = 16384, 1, &["16384", "8192"]);
        refused(|p| p.batch = 0, 1, &["batch of 0"]);
        refused(|p| p.batch = 256, 1, &["batch of 256", "128"]);
        refused(|p| p.psn_bits = 32, 1, &["32 bits", "31"]);
        refused(|p| p.iterations = 0, 1, &["0 iterations"]);
        refused(|p| (p.psn_bits, p.iterations) = (31, 3), 1, &["3 repetitions", "only 2", "--psn-bits"]);
        refused(|p| p.psn_bits = 4, 17 * 4096, &["17 chunks", "4 bits", "only 16", "--psn-bits"]);
        refused(|_| (), u64::MAX, &["--threads"]);
    }

    #[test]
    fn a_full_sequence_space_is_accepted() {
        let params = Params { psn_bits: 4, ..Params::default() };
        assert_eq!(Plan::new(params, 16 * 4096).unwrap().chunks, 16);
    }
}
