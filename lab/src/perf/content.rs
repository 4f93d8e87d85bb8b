//! Contents of the buffers that are measured: what each rank sends in each repetition, and what must come of it.

use std::sync::LazyLock;

use super::op::{ELEMENT_BYTES, Op};
use super::spec::Zeros;
use crate::sparse::{PatternName, power_law_share};

/// Numbers whose sums over all ranks are exact in single precision, in any order.
const MOST: u32 = 1000;

/// Where in an operation a rank is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) op: Op,
    pub(super) ranks: u32,
    /// Number of the repetition.
    pub(super) turn: u32,
    /// Of a sparse AllReduce.
    pub(super) zeros: Zeros,
}

/// Numbers of a block that is zero or not as a whole: those of a block of the default size.
const BLOCK_NUMBERS: usize = 256;

/// What rank `rank` contributes to repetition `turn`, byte `at`.
const fn byte(rank: u32, turn: u32, at: usize) -> u8 {
    (at as u32)
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add(rank.wrapping_mul(0x85EB_CA6B))
        .wrapping_add(turn.wrapping_mul(0xC2B2_AE35))
        .rotate_left(11) as u8
}

/// The same of numbers, element `at`.
const fn number(rank: u32, turn: u32, at: usize) -> u32 {
    (at as u32).wrapping_mul(0x9E37_79B9).wrapping_add(rank.wrapping_mul(613)).wrapping_add(turn * 7) % MOST
}

/// By zeros of a hundred: what a power law needs for them.
static SHARES: LazyLock<[f64; 101]> =
    LazyLock::new(|| std::array::from_fn(|percent| power_law_share(1.0 - percent as f64 / 100.0)));

/// A number that appears drawn at random.
const fn drawn(block: u32, of: u32, turn: u32) -> u32 {
    let mut word = block.wrapping_mul(0x9E37_79B9) ^ of.wrapping_mul(0x85EB_CA6B) ^ turn.wrapping_mul(0xC2B2_AE35);
    word = (word ^ word >> 15).wrapping_mul(0x2C1B_3C6D);
    word = (word ^ word >> 12).wrapping_mul(0x297A_2D39);
    word ^ word >> 15
}

impl Content {
    /// What a rank contributes of element `at`.
    fn number(self, rank: u32, at: usize) -> u32 {
        if matches!(self.op, Op::SparseAllreduce) && self.is_zero(rank, at / BLOCK_NUMBERS) {
            return 0;
        }
        number(rank, self.turn, at)
    }

    /// Whether a rank's block is zero.
    fn is_zero(self, rank: u32, block: usize) -> bool {
        let of = match self.zeros.pattern {
            PatternName::Identical => 0,
            PatternName::Overlapping if block.is_multiple_of(2) => 0,
            PatternName::Independent | PatternName::Overlapping | PatternName::Powerlaw => rank + 1,
        };
        let word = drawn(block as u32, of, self.turn);
        if self.zeros.pattern == PatternName::Powerlaw {
            let share = SHARES[self.zeros.percent.min(100) as usize];
            let [rank, own] =
                [drawn(block as u32, 0, u32::MAX), word].map(|word| f64::from(word) / f64::from(u32::MAX));
            return own * rank >= share;
        }
        word % 100 < self.zeros.percent
    }

    /// The root of the repetition.
    pub(super) const fn root(self) -> u32 {
        self.turn % self.ranks
    }

    /// Fills what a rank contributes.
    pub(super) fn fill(self, rank: u32, to: &mut [u8]) {
        if self.op.reduces() {
            for (at, to) in to.as_chunks_mut::<{ ELEMENT_BYTES as usize }>().0.iter_mut().enumerate() {
                *to = (self.number(rank, at) as f32).to_ne_bytes();
            }
            return;
        }
        for (at, to) in to.iter_mut().enumerate() {
            *to = byte(rank, self.turn, at);
        }
    }

    /// Whether a rank has received what it should: all of its receive buffer, of an operation with `bytes`.
    pub(super) fn is_right(self, rank: u32, bytes: usize, found: &[u8]) -> bool {
        let ranks = self.ranks as usize;
        match self.op {
            // The blocks of all ranks: the whole contribution of each, or the own part of it.
            Op::Allgather | Op::Gather => self.are_blocks(found, bytes, |_| 0),
            Op::Alltoall => self.are_blocks(found, bytes / ranks, |block| rank as usize * block),
            Op::Broadcast => self.is_part(self.root(), 0, found),
            Op::Scatter => self.is_part(self.root(), rank as usize * bytes, found),
            Op::Reduce | Op::Allreduce | Op::SparseAllreduce => self.is_sum(0, found),
            Op::ReduceScatter => self.is_sum(rank as usize * (bytes / ranks) / ELEMENT_BYTES as usize, found),
            Op::Barrier => true,
        }
    }

    /// Whether there is a block of each rank, which begins at `start` of the block's length in what that rank
    /// contributes.
    fn are_blocks(self, found: &[u8], block: usize, start: impl Fn(usize) -> usize) -> bool {
        found.len() == block * self.ranks as usize
            && (0..self.ranks).all(|from| self.is_part(from, start(block), &found[from as usize * block..][..block]))
    }

    /// Whether these are bytes of a rank's contribution from `start` on.
    fn is_part(self, from: u32, start: usize, found: &[u8]) -> bool {
        (start..).zip(found).all(|(at, found)| *found == byte(from, self.turn, at))
    }

    /// Whether these are sums of all ranks' numbers from element `first` on.
    fn is_sum(self, first: usize, found: &[u8]) -> bool {
        let (found, rest) = found.as_chunks();
        let sum = |at| (0..self.ranks).map(|rank| self.number(rank, at)).sum::<u32>();
        rest.is_empty() && (first..).zip(found).all(|(at, found)| f32::from_ne_bytes(*found) == sum(at) as f32)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    /// Does an operation as it should be: each rank's receive buffer.
    fn results(content: Content, bytes: usize) -> Vec<Vec<u8>> {
        let Content { op, ranks, .. } = content;
        let root = content.root();
        let sends: Vec<Vec<u8>> = (0..ranks)
            .map(|rank| {
                let mut send = vec![0; op.send_bytes(bytes as u64, ranks).map_or(bytes, |len| len as usize)];
                content.fill(rank, &mut send);
                send
            })
            .collect();
        let numbers = |send: &Vec<u8>| -> Vec<f32> {
            send.as_chunks().0.iter().map(|number| f32::from_ne_bytes(*number)).collect()
        };
        let sum = || -> Vec<u8> {
            let all: Vec<Vec<f32>> = sends.iter().map(numbers).collect();
            let sums = (0..bytes / 4).map(|at| all.iter().map(|numbers| numbers[at]).sum::<f32>());
            sums.flat_map(f32::to_ne_bytes).collect()
        };
        let block = |of: &[u8], rank: u32, len: usize| of[rank as usize * len..][..len].to_vec();
        let share = bytes / ranks as usize;
        let result = |rank: u32| match op {
            Op::Allgather => sends.concat(),
            Op::Gather if rank == root => sends.concat(),
            Op::Broadcast => sends[root as usize].clone(),
            Op::Alltoall => sends.iter().flat_map(|send| block(send, rank, share)).collect(),
            Op::Scatter => block(&sends[root as usize], rank, bytes),
            Op::Reduce if rank == root => sum(),
            Op::Allreduce | Op::SparseAllreduce => sum(),
            Op::ReduceScatter => block(&sum(), rank, share),
            Op::Gather | Op::Reduce | Op::Barrier => Vec::new(),
        };
        (0..ranks).map(result).collect()
    }

    #[test]
    fn right_results_are_right_and_others_are_not() {
        for op in Op::value_variants().iter().copied().filter(|op| *op != Op::Barrier) {
            for (ranks, turn) in [(1, 0), (3, 1), (4, 7)] {
                let zeros = Zeros { percent: 30, pattern: PatternName::Independent };
                let content = Content { op, ranks, turn, zeros };
                let bytes = op.fitting(500, ranks) as usize;
                for (rank, result) in (0..).zip(results(content, bytes)) {
                    if !op.receives(rank == content.root()) {
                        assert!(result.is_empty());
                        continue;
                    }
                    assert_eq!(result.len() as u64, op.receive_bytes(bytes as u64, ranks), "{op}");
                    assert!(content.is_right(rank, bytes, &result), "{op} at rank {rank} of {ranks}");
                    for at in [0, result.len() / 2, result.len() - 1] {
                        let mut wrong = result.clone();
                        wrong[at] ^= 0x40;
                        assert!(!content.is_right(rank, bytes, &wrong), "{op}, byte {at}");
                    }
                    let later = Content { turn: turn + ranks, ..content };
                    assert!(!later.is_right(rank, bytes, &result), "{op}: what the last repetition left");
                }
            }
        }
    }
}
