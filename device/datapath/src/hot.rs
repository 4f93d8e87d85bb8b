//! The hot loop: every instruction in here runs once per chunk.

use dpa::hw::wqe::HEAD_INDEX_STEP;
use dpa::hw::{Be32, ControlSegment, GRH_BYTES, WqeOpcode, WriteWqe};
use dpa::proto::Mark;
use dpa::{BitmapView, CqeRef, SendQueue, fence, shared};

use crate::receiver::Receiver;

/// How the hot loop computes where a chunk goes (UD).
pub(crate) mod place {
    /// PSN times stride: one run, or runs without gaps.
    pub(crate) const LINEAR: u8 = 0;
    /// Runs of equal length with gaps: a multiplication by the reciprocal gives the run.
    pub(crate) const RUNS: u8 = 1;
    /// Within the current row of a table; other rows are for the irregular path, which makes theirs the current one.
    pub(crate) const ROWS: u8 = 2;
}

/// 2^64 / divisor, rounded up: what [`quotient`] multiplies by. For divisors from 2 on.
pub(crate) const fn reciprocal(divisor: u32) -> u64 {
    u64::MAX / divisor as u64 + 1
}

/// `number` / divisor for numbers below 2^32. Exact: the reciprocal is (2^64 + e) / divisor with e < divisor < 2^32, so
/// the result before rounding down is too large by number x e / (divisor x 2^64), less than the 1 / divisor that it is
/// away from the next integer.
#[inline(always)]
const fn quotient(number: u64, reciprocal: u64) -> u64 {
    ((number as u128 * reciprocal as u128) >> 64) as u64
}

/// Least chunks of a run after which the next run is tried: a shorter one shows that chunks of several roots take
/// turns.
const WORTHWHILE: u64 = 4;

/// Where chunks of consecutive numbers go (UD).
struct Course {
    /// Place of the first chunk.
    address: u64,
    /// From the place of a chunk to that of the next.
    stride: u64,
    /// Chunks for which that holds.
    chunks: u64,
}

/// What has ended a run of chunks with consecutive numbers.
#[derive(Clone, Copy)]
enum RunEnd {
    /// The run was long, or ended where its word of the bitmap or its place ends: another may follow.
    Cut,
    /// Its first completion is not there, or not for this loop.
    Refused,
    /// It was short, and no word or place ended it.
    Interleaved,
}

impl<const UD: bool> Receiver<'_, UD> {
    /// Accepts ordinary completions from number `consumed` on, at most `room`; returns how many. Stops before the first
    /// that is not ordinary, having changed nothing on its account.
    ///
    /// A root's chunks come in order, so most completions follow on the one before: [`Receiver::accept_run`] takes them
    /// with one comparison for queue, collective id, range and duplicate. Where several roots take turns, or chunks
    /// come one by one, [`Receiver::accept_each`] costs less; at the begin of each stretch a run is tried again.
    #[inline(always)]
    pub(crate) fn accept<const PLACE: u8>(&mut self, regular: &BitmapView, consumed: u64, room: u64) -> u64 {
        let (mut at, end) = (consumed, consumed + room);
        if self.context.state.interleaved == 0 || room == self.stretch() {
            let mut end_of_run = RunEnd::Cut;
            while matches!(end_of_run, RunEnd::Cut) && at < end {
                let run;
                (run, end_of_run) = self.accept_run::<PLACE>(regular, at, end - at);
                at += run;
            }
            self.context.state.interleaved = u32::from(matches!(end_of_run, RunEnd::Interleaved));
            if at == end {
                return room;
            }
        }
        at - consumed + self.accept_each::<PLACE>(regular, at, end - at)
    }

    /// Accepts ordinary completions whose chunks have consecutive numbers, as far as one word of the bitmap reaches.
    /// Returns how many, and what has ended the run.
    #[inline(always)]
    fn accept_run<const PLACE: u8>(&mut self, regular: &BitmapView, consumed: u64, room: u64) -> (u64, RunEnd) {
        let cq = self.receive_cq();
        let Some(first) = cq.segment(consumed, room, Self::OPCODE).peek() else {
            return (0, RunEnd::Refused);
        };
        fence::memory_read();
        let mut expected = first.user_index_and_immediate();
        let psn = expected.wrapping_sub(self.context.state.key);
        // Range and id of the whole run, and no duplicate in it.
        let run = regular.clear_run(psn);
        let length = self.entry_length();
        let mut len = room.min(run.len());
        let passed = if UD {
            let course = self.course::<PLACE>(psn);
            let head_step = shared::in_register(HEAD_INDEX_STEP);
            let copies = self.send_queue();
            let (mut head, mut address) = (first_head(&copies, consumed), course.address);
            len = len.min(course.chunks);
            let mut pairs = copies.pair(&cq, consumed, len, Self::OPCODE);
            while let Some((entry, slot)) = pairs.peek() {
                fence::memory_read();
                if entry.byte_count_raw() != length || entry.user_index_and_immediate() != expected {
                    break;
                }
                slot.set_head(head);
                slot.set_remote(address);
                head = head.wrapping_add(head_step);
                address = address.wrapping_add(course.stride);
                expected = expected.wrapping_add(1);
                pairs.advance();
            }
            pairs.passed()
        } else {
            let mut segment = cq.segment(consumed, len, Self::OPCODE);
            while let Some(entry) = segment.peek() {
                fence::memory_read();
                if entry.byte_count_raw() != length || entry.user_index_and_immediate() != expected {
                    break;
                }
                expected = expected.wrapping_add(1);
                segment.advance();
            }
            segment.passed()
        };
        run.mark(passed);
        let end = match passed {
            0 => RunEnd::Refused,
            _ if passed == len || passed >= WORTHWHILE => RunEnd::Cut,
            _ => RunEnd::Interleaved,
        };
        (passed, end)
    }

    /// Accepts ordinary completions, whatever the numbers of their chunks.
    #[inline(always)]
    fn accept_each<const PLACE: u8>(&mut self, regular: &BitmapView, consumed: u64, room: u64) -> u64 {
        let base = self.context.state.key;
        let length = self.entry_length();
        let cq = self.receive_cq();
        if UD {
            let op = &self.context.op;
            let armed = &self.context.state.armed;
            let stride = if PLACE == place::LINEAR { op.stride } else { u64::from(armed.chunk_bytes) };
            let destination = if PLACE == place::ROWS { op.row_base } else { armed.destination };
            let (reciprocal, gap) = if PLACE == place::RUNS { (op.reciprocal, op.placed.run_gap) } else { (0, 0) };
            let row = regular.window(u64::from(op.row_first), u64::from(op.row_chunks));
            let head_step = shared::in_register(HEAD_INDEX_STEP);
            let copies = self.send_queue();
            let mut head = first_head(&copies, consumed);
            let mut pairs = copies.pair(&cq, consumed, room, Self::OPCODE);
            while let Some((entry, slot)) = pairs.peek() {
                fence::memory_read();
                let psn = entry.user_index_and_immediate().wrapping_sub(base);
                let taken = if PLACE == place::ROWS {
                    entry.byte_count_raw() == length && row.mark(psn) == Mark::First
                } else {
                    take(regular, entry, psn, length)
                };
                if !taken {
                    break;
                }
                slot.set_head(head);
                let mut address = destination.wrapping_add(psn.wrapping_mul(stride));
                if PLACE == place::RUNS {
                    address = address.wrapping_add(quotient(psn, reciprocal).wrapping_mul(gap));
                }
                slot.set_remote(address);
                head = head.wrapping_add(head_step);
                pairs.advance();
            }
            pairs.passed()
        } else {
            let mut segment = cq.segment(consumed, room, Self::OPCODE);
            while let Some(entry) = segment.peek() {
                fence::memory_read();
                let psn = entry.user_index_and_immediate().wrapping_sub(base);
                if !take(regular, entry, psn, length) {
                    break;
                }
                segment.advance();
            }
            segment.passed()
        }
    }

    /// Where the chunks from number `psn` on go, as far as they lie one after another.
    #[inline(always)]
    fn course<const PLACE: u8>(&self, psn: u64) -> Course {
        let op = &self.context.op;
        let armed = &self.context.state.armed;
        let chunk_bytes = u64::from(armed.chunk_bytes);
        let at = |destination: u64, stride: u64| destination.wrapping_add(psn.wrapping_mul(stride));
        match PLACE {
            place::LINEAR => Course { address: at(armed.destination, op.stride), stride: op.stride, chunks: u64::MAX },
            place::RUNS => {
                let (root, run_chunks) = (quotient(psn, op.reciprocal), u64::from(op.placed.run_chunks));
                let address = at(armed.destination, chunk_bytes).wrapping_add(root.wrapping_mul(op.placed.run_gap));
                // The next root's first number less this one.
                let chunks = root.wrapping_add(1).wrapping_mul(run_chunks).wrapping_sub(psn);
                Course { address, stride: chunk_bytes, chunks }
            }
            _ => {
                let into = psn.wrapping_sub(u64::from(op.row_first));
                let chunks = u64::from(op.row_chunks).saturating_sub(into);
                Course { address: at(op.row_base, chunk_bytes), stride: chunk_bytes, chunks }
            }
        }
    }

    /// Length of the completion of a whole chunk.
    #[inline(always)]
    fn entry_length(&self) -> Be32 {
        Be32::new(self.context.state.armed.chunk_bytes + if UD { GRH_BYTES } else { 0 })
    }
}

/// First eight bytes of the copy entry with number `consumed`.
#[inline(always)]
fn first_head(copies: &SendQueue, consumed: u64) -> u64 {
    ControlSegment::head(consumed as u16, WqeOpcode::Write, copies.number(), WriteWqe::SEGMENTS)
}

/// Whether the hot loop takes a completion: length, range and id (one comparison, in `mark`), duplicate.
#[inline(always)]
fn take(regular: &BitmapView, entry: CqeRef<'_>, psn: u64, length: Be32) -> bool {
    entry.byte_count_raw() == length && regular.mark(psn) == Mark::First
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, of thousands of divisors")]
    fn quotients_are_exact_for_every_divisor_at_every_edge() {
        let divisors = (2..2000).chain((1..32).flat_map(|bit| [(1u32 << bit).max(3) - 1, 1 << bit, (1 << bit) + 1]));
        for divisor in divisors.filter(|divisor| *divisor >= 2).chain([u32::MAX - 1, u32::MAX, 0xAAAA_AAAB]) {
            let reciprocal = reciprocal(divisor);
            let d = u64::from(divisor);
            let last = u64::from(u32::MAX) / d;
            for quotient_expected in [0, 1, 2, 7, last / 2, last.saturating_sub(1), last] {
                for number in [quotient_expected * d, quotient_expected * d + d - 1] {
                    let number = number.min(u64::from(u32::MAX));
                    assert_eq!(quotient(number, reciprocal), number / d, "{number} / {divisor}");
                }
            }
        }
    }
}
