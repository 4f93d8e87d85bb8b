//! The memory of the queues. Words are atomic, so that this crate and the firmware may both touch them.

use core::sync::atomic::{AtomicU64, Ordering};

use dpa::hw::Cqe;
use zerocopy::{Immutable, IntoBytes};

use crate::fixture::{CHUNKS, CONTROL_DEPTH, DEPTH, RUNS};

/// A 64-byte aligned line of 8 words.
#[repr(align(64))]
pub(crate) struct Line([AtomicU64; 8]);

impl Line {
    const fn zero() -> Self {
        Self([const { AtomicU64::new(0) }; 8])
    }
}

/// Some lines at a fixed place.
pub(crate) struct Memory<const LINES: usize>([Line; LINES]);

pub(crate) static RECEIVE_CQ: Memory<DEPTH> = Memory::zero();
pub(crate) static RECEIVE_QUEUE: Memory<{ DEPTH / 4 }> = Memory::zero();
pub(crate) static SEND_CQ: Memory<DEPTH> = Memory::zero();
pub(crate) static SEND_QUEUE: Memory<DEPTH> = Memory::zero();
pub(crate) static CONTROL_CQ: Memory<CONTROL_DEPTH> = Memory::zero();
pub(crate) static CONTROL_QUEUE: Memory<{ CONTROL_DEPTH / 4 }> = Memory::zero();
/// Doorbell records: receive CQ, queue pair of the receives, send CQ, queue pair of the copies, control CQ, queue pair
/// of the control queue; a line each.
pub(crate) static RECORDS: Memory<6> = Memory::zero();
pub(crate) static BITMAP: Memory<{ CHUNKS as usize / 512 }> = Memory::zero();
pub(crate) static TAILS: Memory<1> = Memory::zero();
pub(crate) static GROUP: Memory<1> = Memory::zero();
/// Rows of the runs, two in a line.
pub(crate) static ROWS: Memory<{ RUNS as usize / 2 }> = Memory::zero();
/// Operation and placement.
pub(crate) static LINES: Memory<2> = Memory::zero();

impl<const LINES: usize> Memory<LINES> {
    const fn zero() -> Self {
        Self([const { Line::zero() }; LINES])
    }

    /// Address of the first byte.
    pub(crate) fn address(&'static self) -> u64 {
        core::ptr::from_ref(self) as u64
    }

    /// Address of a line.
    pub(crate) fn line(&'static self, index: usize) -> u64 {
        self.address() + index as u64 * 64
    }

    pub(crate) fn clear(&self) {
        for line in &self.0 {
            for word in &line.0 {
                word.store(0, Ordering::SeqCst);
            }
        }
    }

    /// Writes one line: an entry of a completion queue, an operation, two rows.
    pub(crate) fn put(&self, index: u64, entry: &(impl IntoBytes + Immutable)) {
        let line = &self.0[index as usize % LINES];
        let (words, _) = entry.as_bytes().as_chunks::<8>();
        for (word, bytes) in line.0.iter().zip(words) {
            word.store(u64::from_le_bytes(*bytes), Ordering::SeqCst);
        }
    }

    /// The big-endian 32-bit number at byte `offset` of a line, a multiple of 4.
    pub(crate) fn be32(&self, line: u64, offset: usize) -> u32 {
        let word = self.0[line as usize % LINES].0[offset / 8].load(Ordering::SeqCst);
        ((word >> (8 * (offset % 8))) as u32).swap_bytes()
    }

    /// Goes on with a digest (FNV-1a over words).
    fn fold(&self, digest: u64) -> u64 {
        let words = self.0.iter().flat_map(|line| &line.0);
        words.fold(digest, |digest, word| (digest ^ word.load(Ordering::SeqCst)).wrapping_mul(0x0100_0000_01B3))
    }
}

/// Digest of everything the firmware writes. No ring holds an address of this memory.
pub(crate) fn digest() -> u64 {
    let digest = RECEIVE_QUEUE.fold(0xCBF2_9CE4_8422_2325);
    let digest = SEND_QUEUE.fold(digest);
    let digest = CONTROL_QUEUE.fold(digest);
    let digest = RECORDS.fold(digest);
    GROUP.fold(TAILS.fold(BITMAP.fold(digest)))
}

/// Everything as the host leaves it before it creates the queues.
pub(crate) fn reset() {
    for index in 0..DEPTH as u64 {
        RECEIVE_CQ.put(index, &Cqe::INITIAL);
        SEND_CQ.put(index, &Cqe::INITIAL);
    }
    for index in 0..CONTROL_DEPTH as u64 {
        CONTROL_CQ.put(index, &Cqe::INITIAL);
    }
    CONTROL_QUEUE.clear();
    RECEIVE_QUEUE.clear();
    SEND_QUEUE.clear();
    RECORDS.clear();
    BITMAP.clear();
    TAILS.clear();
    GROUP.clear();
    ROWS.clear();
    LINES.clear();
}
