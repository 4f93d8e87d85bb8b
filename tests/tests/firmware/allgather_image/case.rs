//! Cases for the card, and their outcome.

use emu_machine::MemoryModel;
use flexcast_abi::{ReceiveReport, RunRow, SendReport, Transport};
use flexcast_tests::image_bytes;

pub(crate) const Q_KEY: u32 = 0x1111;
pub(crate) const CHUNK: u32 = 1024;
pub(crate) const STRIDE: u64 = 1088;
pub(crate) const PSN_BITS: u32 = 16;
pub(crate) const LOG_RING: u8 = 10;
pub(crate) const COLLECTIVE: u32 = 7;
pub(crate) const BATCH: u32 = 64;

pub(crate) fn elf() -> Vec<u8> {
    image_bytes("allgather")
}

pub(crate) fn seeds() -> u64 {
    std::env::var("FLEXCAST_WEAK_SEEDS").map_or(6, |text| text.parse().expect("a number of seeds"))
}

/// One receive context, one send context, and what each root contributes.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) transport: Transport,
    pub(crate) bytes: Vec<u64>,
    pub(crate) by_rows: bool,
    /// Roots that send nothing: their chunks are missing in the end.
    pub(crate) silent: Vec<usize>,
    /// The root whose chunks are not expected.
    pub(crate) own: Option<usize>,
    /// Whether all chunks lie in the ring before the receive context's thread runs for the first time.
    pub(crate) saturated: bool,
    /// Receive contexts in addition to the one that works.
    pub(crate) idle_contexts: u32,
    /// Bytes between the roots' blocks in the receive buffer.
    pub(crate) pad: u64,
    /// The operation is closed while the last root still sends, when this many of its chunks have been dealt with.
    pub(crate) hurry: Option<u64>,
    /// The root that sends its chunks in parts of 16, the last of each part too short, and this one again at the begin
    /// of the next.
    pub(crate) stutters: Option<usize>,
    pub(crate) memory: MemoryModel,
    /// Completions per doorbell of the receive context.
    pub(crate) batch: u32,
}

impl Case {
    pub(crate) fn new(transport: Transport, bytes: &[u64], by_rows: bool) -> Self {
        let memory = MemoryModel::Strong;
        Self {
            transport,
            bytes: bytes.to_vec(),
            by_rows,
            silent: vec![],
            own: None,
            saturated: false,
            idle_contexts: 0,
            pad: 0,
            hurry: None,
            stutters: None,
            memory,
            batch: BATCH,
        }
    }

    pub(crate) fn chunks_of(&self, root: usize) -> u32 {
        self.bytes[root].div_ceil(u64::from(CHUNK)) as u32
    }

    pub(crate) fn last_of(&self, root: usize) -> u32 {
        if self.bytes[root] == 0 { 0 } else { ((self.bytes[root] - 1) % u64::from(CHUNK)) as u32 + 1 }
    }

    pub(crate) fn first_psn(&self, root: usize) -> u32 {
        (0..root).map(|root| self.chunks_of(root)).sum()
    }

    /// What a root sends at once: first chunk, number of chunks, bytes of the last.
    pub(crate) fn parts(&self, root: usize) -> Vec<(u32, u32, u32)> {
        let (chunks, last) = (self.chunks_of(root), self.last_of(root));
        if self.stutters != Some(root) {
            return vec![(0, chunks, last)];
        }
        let whole = (chunks - 1) / 15 * 15;
        let parts = (0..whole).step_by(15).map(|first| (first, 16, CHUNK - 64));
        parts.chain(std::iter::once((whole, chunks - whole, last))).collect()
    }

    pub(crate) fn offset(&self, root: usize) -> u64 {
        self.bytes[..root].iter().map(|bytes| bytes + self.pad).sum()
    }

    pub(crate) fn chunks(&self) -> u32 {
        self.first_psn(self.bytes.len())
    }

    pub(crate) fn rows(&self, user: u64) -> Vec<RunRow> {
        (0..self.bytes.len())
            .map(|root| RunRow {
                destination: user + self.offset(root),
                first_psn: self.first_psn(root),
                chunks: self.chunks_of(root),
                last_chunk_bytes: self.last_of(root),
                ..Default::default()
            })
            .collect()
    }
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) report: ReceiveReport,
    pub(crate) send: SendReport,
    pub(crate) complete: bool,
    /// Instructions of an activation that finds nothing.
    pub(crate) in_vain: u64,
    pub(crate) right_bytes: bool,
    pub(crate) words: Vec<u64>,
}
