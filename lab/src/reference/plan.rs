//! Plan of a run of the published kernels: limits checked first, then the buffer cut into the workers' shares.

use flexcast_abi::Transport;
use serde::Serialize;

use super::transport::{self, name};
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
/// Deepest receive ring of a queue pair, and so most chunks of a worker.
pub const MAX_RING: u64 = 8192;
/// Shallowest useful receive ring.
const MIN_RING: u64 = 16;

/// Longest message of a transport in bytes.
const fn max_chunk_bytes(transport: Transport) -> u64 {
    match transport {
        Transport::Uc => UC_MAX_CHUNK_BYTES,
        Transport::Ud => UD_MAX_CHUNK_BYTES,
    }
}

/// Parameters of a run, as given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Params {
    /// Transport of the data.
    #[serde(serialize_with = "transport::serialize")]
    pub transport: Transport,
    /// Receive workers; each owns one DPA thread, one completion queue and one queue pair.
    pub threads: u32,
    /// Bytes of one chunk, a multiple of [`CHUNK_ALIGN_BYTES`].
    pub chunk_bytes: u64,
    /// Whether the kernel counts each completion by itself, as the prototype did when its figures were taken. That is
    /// part of its instructions and of its time.
    pub counted: bool,
    /// Iterations that are counted.
    pub iterations: u32,
    /// Iterations before those.
    pub warm_up: u32,
    /// Seed of the bytes.
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
            counted: true,
            iterations: 1,
            warm_up: 0,
            seed: 1,
            first_unit: 1,
        }
    }
}

/// Parameters that cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nothing to send.
    #[error("0 bytes to send: give at least 1 (--bytes)")]
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
    #[error("chunk of {chunk_bytes} bytes: {} carries at most {limit} bytes per message; give a smaller --chunk", name(*transport))]
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
    /// More chunks than receives that can be posted before the first is sent.
    #[error(
        "{bytes} bytes are {chunks} chunks per worker of {chunk_bytes} bytes, but a receive ring holds {MAX_RING}, and \
         the published kernels do not make their senders wait; give a larger --chunk, more --threads or fewer \
         --bytes"
    )]
    Chunks {
        /// Bytes to send.
        bytes: u64,
        /// Chunks of the largest share.
        chunks: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// Nothing would be measured.
    #[error("0 iterations: give at least 1; --warm-up iterations are not reported")]
    Iterations,
}

/// The contiguous part of the buffer that one worker receives.
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
}

impl Share {
    /// Bytes of chunk `number` of this share.
    #[must_use]
    pub fn chunk_len(&self, number: u64, chunk_bytes: u64) -> u64 {
        (self.bytes - number * chunk_bytes).min(chunk_bytes)
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
    /// One share per worker that has anything to receive.
    pub shares: Vec<Share>,
    /// Receives that each worker posts, a power of two.
    pub ring: u64,
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
        let workers = u64::from(params.threads).min(chunks);
        let most = chunks.div_ceil(workers);
        if most > MAX_RING {
            return Err(PlanError::Chunks { bytes, chunks: most, chunk_bytes: params.chunk_bytes });
        }
        let (short, longer) = (chunks / workers, chunks % workers);
        let mut first = 0;
        let shares = (0..workers).map(|worker| {
            let own = short + u64::from(worker < longer);
            let offset = first * params.chunk_bytes;
            first += own;
            let end = (first * params.chunk_bytes).min(bytes);
            Share { worker: worker as u32, offset, bytes: end - offset, chunks: own }
        });
        Ok(Plan { params, bytes, chunks, shares: shares.collect(), ring: most.next_power_of_two().max(MIN_RING) })
    }

    /// Refuses a buffer that memory has no room for.
    ///
    /// # Errors
    /// [`MemoryError::TooMuch`].
    pub fn check_memory(&self) -> Result<(), MemoryError> {
        memory::require("--bytes", self.bytes, self.bytes.saturating_mul(4), "give fewer bytes")
    }
}

fn check(params: &Params) -> Result<(), PlanError> {
    let Params { transport, threads, chunk_bytes, iterations, .. } = *params;
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(CHUNK_ALIGN_BYTES) {
        let nearest = chunk_bytes.clamp(1, max_chunk_bytes(transport)).next_multiple_of(CHUNK_ALIGN_BYTES);
        return Err(PlanError::ChunkAlignment { chunk_bytes, nearest });
    }
    if chunk_bytes > max_chunk_bytes(transport) {
        return Err(PlanError::ChunkTooLong { chunk_bytes, transport, limit: max_chunk_bytes(transport) });
    }
    if threads == 0 || threads > MAX_THREADS {
        return Err(PlanError::Threads { threads });
    }
    if params.first_unit == 0 || params.first_unit.saturating_add(threads - 1) > LAST_UNIT {
        return Err(PlanError::Units { first_unit: params.first_unit, threads });
    }
    if iterations == 0 { Err(PlanError::Iterations) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_buffer_once_and_in_order() {
        for bytes in [1, 63, 64, 65, 4095, 4096, 4097, 65_536, 400_003] {
            for threads in [1, 2, 3, 16, 190] {
                let plan = Plan::new(Params { threads, chunk_bytes: 64, ..Params::default() }, bytes).unwrap();
                let mut next = 0;
                for share in &plan.shares {
                    assert_eq!(share.offset, next);
                    assert!(share.chunks >= 1 && share.chunks <= plan.ring);
                    assert_eq!((0..share.chunks).map(|chunk| share.chunk_len(chunk, 64)).sum::<u64>(), share.bytes);
                    next += share.bytes;
                }
                assert_eq!(next, bytes);
                let chunks = || plan.shares.iter().map(|share| share.chunks);
                assert_eq!(chunks().sum::<u64>(), plan.chunks);
                assert!(chunks().max().unwrap() - chunks().min().unwrap() <= 1);
            }
        }
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
        refused(|p| (p.transport, p.chunk_bytes) = (Transport::Ud, 8192), 1, &["8192", "ud", "4096", "--chunk"]);
        refused(|p| p.threads = 0, 1, &["0 threads", "190"]);
        refused(|p| p.first_unit = 0, 1, &["unit 0 on", "1 to 254"]);
        refused(|_| (), 4096 * 8193, &["8193 chunks", "8192", "--threads"]);
        refused(|p| p.iterations = 0, 1, &["0 iterations", "--warm-up"]);
    }
}
