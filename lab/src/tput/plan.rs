//! Parameters of a throughput run: a Broadcast between two ranks, by a communicator of the library.

use flexcast::{Config, Control, MAX_SUBGROUPS, Selection, Transport};
use serde::Serialize;

use crate::memory::{self, MemoryError};

/// Longest chunk of a zero-copy transport accepted here (the transports allow more).
pub const MAX_CHUNK_BYTES: u32 = 8 << 20;
/// Most receive threads: a subgroup each.
pub const MAX_THREADS: u32 = MAX_SUBGROUPS;

/// Parameters of a run, as given. The defaults are the library's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Transport of the data.
    pub transport: Transport,
    /// Subgroups, and as many DPA threads that receive.
    pub threads: u32,
    /// DPA threads that send.
    pub send_threads: u32,
    /// Bytes of one chunk.
    pub chunk_bytes: u32,
    /// Completions that a receive worker consumes per doorbell.
    pub batch: u32,
    /// Receives of each subgroup, with UD as many staging slots.
    pub slots: u32,
    /// Where the protocol runs.
    pub control: Control,
    /// Measured repetitions.
    pub iterations: u32,
    /// Repetitions before the measured ones.
    pub warm_up: u32,
    /// Loss that the machine was given, parts per million of packets.
    pub loss_ppm: u32,
    /// Seed of the bytes, and of the machine's losses.
    pub seed: u64,
}

/// Completions per doorbell: with so many a receive thread's own rate shows, which is what the harness is for.
const BATCH: u32 = 64;

impl Default for Params {
    fn default() -> Self {
        let Config { transport, receive_threads, chunk_bytes, slots, control, .. } = Config::default();
        Self {
            transport,
            threads: receive_threads,
            send_threads: 1,
            chunk_bytes,
            batch: BATCH,
            slots,
            control,
            iterations: 1,
            warm_up: 0,
            loss_ppm: 0,
            seed: 1,
        }
    }
}

impl Params {
    /// As many receive threads, and half as many that send: enough to keep them busy.
    #[must_use]
    pub fn with_threads(self, threads: u32) -> Self {
        Self { threads, send_threads: threads.div_ceil(2), ..self }
    }

    /// The communicator of a run of `bytes` bytes.
    #[must_use]
    pub fn config(&self, bytes: u64) -> Config {
        let config = Config::default().algorithm(Selection::Multicast);
        let max_receive_bytes = bytes.max(config.max_receive_bytes);
        config
            .transport(self.transport)
            // What is measured is the datapath, however few bytes there are.
            .eager_bytes(0)
            .control(self.control)
            .with_subgroups(self.threads)
            .send_threads(self.send_threads)
            .chunk_bytes(self.chunk_bytes)
            .receive_batch(self.batch)
            .slots(self.slots)
            .max_receive_bytes(max_receive_bytes)
    }
}

/// Parameters that cannot be run. What a communicator refuses, it refuses itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nothing to send.
    #[error("0 bytes to send: give at least 1 (--bytes), or a file that is not empty (--file)")]
    Empty,
    /// Nothing would be measured.
    #[error("0 iterations: give at least 1; --warm-up repetitions are not reported")]
    Iterations,
    /// A chunk must be a whole number of cache lines.
    #[error("chunk of {chunk_bytes} bytes: must be a multiple of 64 and not 0 (nearest: {nearest})")]
    ChunkAlignment {
        /// The size given.
        chunk_bytes: u32,
        /// The next size that works.
        nearest: u32,
    },
}

/// A run that can be executed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The parameters.
    #[serde(skip)]
    pub params: Params,
    /// Bytes to send.
    pub bytes: u64,
    /// Chunks in all.
    pub chunks: u64,
}

impl Plan {
    /// Checks what no communicator checks.
    ///
    /// # Errors
    /// [`PlanError`] for the first parameter that cannot be run.
    pub fn new(params: Params, bytes: u64) -> Result<Plan, PlanError> {
        let Params { chunk_bytes, .. } = params;
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(64) {
            let nearest = chunk_bytes.clamp(1, MAX_CHUNK_BYTES).next_multiple_of(64);
            return Err(PlanError::ChunkAlignment { chunk_bytes, nearest });
        }
        if bytes == 0 {
            return Err(PlanError::Empty);
        }
        if params.iterations == 0 {
            return Err(PlanError::Iterations);
        }
        Ok(Plan { params, bytes, chunks: bytes.div_ceil(chunk_bytes.into()) })
    }

    /// Memory of this process that the buffer takes in a run on emulated cards: what is sent, the sender's copy, what
    /// is received, a copy to compare, and bitmaps on both sides.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.bytes.saturating_mul(4).saturating_add(self.chunks / 4)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_librarys() {
        // But one thread that sends and long batches: what is measured is what receive threads can do at most.
        let library = Config::default().algorithm(Selection::Multicast).eager_bytes(0);
        assert_eq!(Params::default().config(1), library.send_threads(1).receive_batch(64));
        let sixteen = Params::default().with_threads(16).config(1 << 30);
        assert_eq!((sixteen.subgroups, sixteen.receive_threads, sixteen.send_threads), (16, 16, 8));
        assert_eq!(sixteen.max_receive_bytes, 1 << 30);
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
        refused(|p| p.iterations = 0, 1, &["0 iterations", "--warm-up"]);
    }
}
