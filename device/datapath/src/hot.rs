//! The hot loop: every instruction in here runs once per chunk.

use dpa::abi::WorkerContext;
use dpa::hw::wqe::HEAD_INDEX_STEP;
use dpa::hw::{Be32, ControlSegment, GRH_BYTES, MASK_24, WqeOpcode, WriteWqe};
use dpa::proto::Mark;
use dpa::{CqeRef, fence, shared};

use crate::worker::Worker;

/// First dword pair of the completions of the armed operation, as `CqeRef::user_index_and_immediate` reads it, for PSN 0.
#[inline(always)]
pub(crate) fn key_base(context: &WorkerContext) -> u64 {
    u64::from(context.user_index & MASK_24) << 32 | u64::from(context.state.armed.collective_id) << context.psn_bits
}

/// How the hot loop computes where a chunk goes (UD).
pub(crate) mod place {
    /// PSN times stride: one run, or runs without gaps.
    pub(crate) const LINEAR: u8 = 0;
    /// Runs of equal length with gaps: a multiplication by the reciprocal gives the run.
    pub(crate) const RUNS: u8 = 1;
    /// Within the current row of a table; other rows are for the irregular path, which makes theirs the current one.
    pub(crate) const ROWS: u8 = 2;
}

/// Two 32-bit doorbell record words kept as one number: high half the CQ's consumer counter, low half a queue's producer counter.
const BOTH_STEP: u64 = 1 << 32 | 1;

/// 2^64 / divisor, rounded up: what [`quotient`] multiplies by. For divisors from 2 on.
pub(crate) const fn reciprocal(divisor: u32) -> u64 {
    u64::MAX / divisor as u64 + 1
}

/// `number` / divisor for numbers below 2^32. Exact: the reciprocal is (2^64 + e) / divisor with e < divisor < 2^32, so the result before
/// rounding down is too large by number x e / (divisor x 2^64), less than the 1 / divisor that it is away from the next integer.
#[inline(always)]
const fn quotient(number: u64, reciprocal: u64) -> u64 {
    ((number as u128 * reciprocal as u128) >> 64) as u64
}

impl<const UD: bool, const EACH: bool, const LANE: bool> Worker<'_, UD, EACH, LANE> {
    /// Accepts ordinary completions from number `consumed` on, at most `room`; returns how many. Stops before the first that is not
    /// ordinary, having changed nothing on its account but doorbells of those before it.
    #[inline(always)]
    pub(crate) fn accept<const PLACE: u8>(&mut self, consumed: u64, room: u64) -> u64 {
        let armed = &self.context.state.armed;
        let base = if LANE { self.context.state.key } else { key_base(self.context) };
        let header = if UD { GRH_BYTES } else { 0 };
        let length = Be32::new(armed.chunk_bytes + header);
        let segment = self.receive_cq.segment(consumed, room, Self::OPCODE);

        // With doorbells per completion each iteration rings for those before it: the last copy of the ring stays unposted, so that it can
        // still be signalled when the ring turns out to be empty.
        let second = if UD { consumed } else { consumed + self.receive_queue.depth() };
        let mut both = (consumed & u64::from(MASK_24)) << 32 | (second & 0xFFFF);

        let both_step = if EACH { shared::in_register(BOTH_STEP) } else { 0 };

        if UD {
            let lane = &self.context.lane;
            let stride = if LANE && PLACE == place::LINEAR { lane.stride } else { u64::from(armed.chunk_bytes) };
            let destination = if PLACE == place::ROWS { lane.row_base } else { armed.destination };
            let (reciprocal, gap) = if PLACE == place::RUNS { (lane.reciprocal, lane.placed.run_gap) } else { (0, 0) };
            let row = self.regular.window(u64::from(lane.row_first), u64::from(lane.row_chunks));
            let qpn = self.send_queue.number();
            let head_step = shared::in_register(HEAD_INDEX_STEP);
            let mut head = ControlSegment::head(consumed as u16, WqeOpcode::Write, qpn, WriteWqe::SEGMENTS);
            let mut doorbell = dpa::hw::outbox::sq_doorbell_value(qpn, consumed as u16);
            let mut pairs = self.send_queue.pair(consumed, segment);
            let first = pairs.remaining();
            while let Some((entry, slot)) = pairs.peek() {
                fence::memory_read();
                if EACH {
                    let words = both.swap_bytes();
                    self.receive_cq.store_consumer_raw(Be32::from_raw(words as u32));
                    // Copies before the record, the record before the doorbell.
                    fence::memory_write();
                    self.send_queue.store_producer_raw(Be32::from_raw((words >> 32) as u32));
                    fence::outbox();
                    self.outbox.ring_sq_raw(doorbell);
                    both = both.wrapping_add(both_step);
                    doorbell = doorbell.wrapping_add(1);
                }
                let psn = entry.user_index_and_immediate().wrapping_sub(base);
                let taken = if PLACE == place::ROWS {
                    entry.byte_count_raw() == length && row.mark(psn) == Mark::First
                } else {
                    self.take(entry, psn, length)
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
            first - pairs.remaining()
        } else {
            let mut segment = segment;
            let first = segment.remaining();
            while let Some(entry) = segment.peek() {
                fence::memory_read();
                if EACH {
                    // No fence: the entries given back were read by loads on which the branches up to here depended.
                    let words = both.swap_bytes();
                    self.receive_cq.store_consumer_raw(Be32::from_raw(words as u32));
                    self.receive_queue.store_producer_raw(Be32::from_raw((words >> 32) as u32));
                    both = both.wrapping_add(both_step);
                }
                let psn = entry.user_index_and_immediate().wrapping_sub(base);
                if !self.take(entry, psn, length) {
                    break;
                }
                segment.advance();
            }
            first - segment.remaining()
        }
    }

    /// [`Worker::accept`] with the whole register file to itself: UD with doorbells per completion keeps 18 values across the loop.
    #[inline(never)]
    pub(crate) fn accept_apart(&mut self, consumed: u64, room: u64) -> u64 {
        self.accept::<{ place::LINEAR }>(consumed, room)
    }

    /// Length, range and id (one comparison, in `mark`), duplicate.
    #[inline(always)]
    fn take(&self, entry: CqeRef<'_>, psn: u64, length: Be32) -> bool {
        entry.byte_count_raw() == length && self.regular.mark(psn) == Mark::First
    }
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
