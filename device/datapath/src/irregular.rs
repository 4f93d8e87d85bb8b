//! Slow path of the receive loop: no completion, errors, foreign or repeated chunks, short chunks, chunks of another
//! row.

use dpa::abi::ReceiveStatus;
use dpa::hw::cqe::OP_OWN_SOLICITED;
use dpa::hw::{ControlSegment, CqeOpcode, GRH_BYTES, WqeOpcode, WriteWqe};
use dpa::proto::Mark;
use dpa::{CompletionQueue, SendQueue, fence};

use crate::placement::{Place, locate, tails};
use crate::receiver::Receiver;

impl<const UD: bool> Receiver<'_, UD> {
    /// Deals with the next completion whatever it is. False if there is none.
    #[cold]
    #[inline(never)]
    pub(crate) fn irregular(&mut self) -> bool {
        let consumed = self.context.state.consumed;
        if !CompletionQueue::waits(&self.context.receive_cq, consumed) {
            return false;
        }
        fence::memory_read();
        let copied = self.judge(consumed);
        if UD && !copied {
            // The copy entry of this number is handed over with its neighbours: it must do nothing.
            let copies = self.send_queue();
            copies.slot(consumed).set_head(ControlSegment::head(consumed as u16, WqeOpcode::Nop, copies.number(), 1));
        }
        self.context.state.consumed = consumed + 1;
        true
    }

    /// Decides about completion number `index`; true if its chunk is accepted.
    fn judge(&mut self, index: u64) -> bool {
        let cq = self.receive_cq();
        let entry = cq.entry(index);
        let op_own = entry.op_own();
        let opcode = op_own >> 4;
        if opcode == CqeOpcode::ResponderError as u64 || opcode == CqeOpcode::RequesterError as u64 {
            self.context.state.statistics.error_cqes += 1;
            self.fail(ReceiveStatus::ReceiveError, u32::from(entry.syndrome()));
            return false;
        }
        // A solicited completion is as good as any; other format bits mean a layout this firmware does not read.
        let format = op_own & 0xF & !u64::from(OP_OWN_SOLICITED) & !1;
        if opcode != Self::OPCODE as u64 || format != 0 {
            self.context.state.statistics.unexpected_opcode += 1;
            self.fail(ReceiveStatus::UnexpectedOpcode, op_own as u32);
            return false;
        }
        let key = entry.user_index_and_immediate();
        let psn = key.wrapping_sub(self.context.state.key);
        let stopped = (self.context.op.closed | self.context.op.dead) != 0;
        let bitmap = self.bitmap();
        let state = &mut self.context.state;
        if state.armed.sequence == 0 || stopped || psn >> self.context.psn_bits != 0 {
            state.statistics.wrong_id += 1;
            return false;
        }
        if psn >= bitmap.bits() {
            state.statistics.out_of_range += 1;
            return false;
        }
        let chunk_bytes = state.armed.chunk_bytes;
        let Place { bytes, address, run } = locate(self.context, psn);
        if entry.byte_count() != bytes + if UD { GRH_BYTES } else { 0 } {
            self.context.state.statistics.wrong_length += 1;
            return false;
        }
        // The bit of a short chunk's PSN was set beforehand: the truth about it is in the tail bitmap.
        let mark = if bytes != chunk_bytes { tails(self.context).mark(run) } else { bitmap.mark(psn) };
        let state = &mut self.context.state;
        if mark != Mark::First {
            state.statistics.duplicates += 1;
            return false;
        }
        state.remaining -= 1;
        if UD {
            let copies = SendQueue::attach(&self.context.send_queue);
            let head = ControlSegment::head(index as u16, WqeOpcode::Write, copies.number(), WriteWqe::SEGMENTS);
            let slot = copies.slot(index);
            slot.set_head(head);
            slot.set_remote(address);
            if bytes != chunk_bytes {
                slot.set_byte_count(bytes);
                state.shortened = index + 1;
            }
        }
        true
    }

    /// Gives the copies from number `first` to before `completed`, with which the hardware is done, their standard form
    /// back: full length to those that were shortened, of which the state remembers the last; and no signal to the last
    /// if it was signalled out of turn.
    #[cold]
    pub(crate) fn restore_slots(&mut self, first: u64, completed: u64) {
        let copies = self.send_queue();
        if self.offset_in_segment(completed) != 0 {
            copies.slot(completed - 1).set_signalled(false);
        }
        let state = &mut self.context.state;
        for index in first..completed.min(state.shortened) {
            copies.slot(index).set_byte_count(state.built_chunk_bytes);
        }
        if state.shortened <= completed {
            state.shortened = 0;
        }
    }

    /// A copy completed in error: its chunk never reached the user buffer and the send queue is dead. The operation
    /// cannot complete; the host learns why.
    #[cold]
    #[inline(never)]
    pub(crate) fn copy_failed(&mut self, op_own: u64, syndrome: u8) {
        let state = &mut self.context.state;
        state.statistics.error_cqes += 1;
        state.failed_copies += 1;
        let detail = if op_own >> 4 == CqeOpcode::RequesterError as u64 { u32::from(syndrome) } else { op_own as u32 };
        self.fail(ReceiveStatus::CopyError, detail);
        // No copy of this queue will ever complete: accept nothing more.
        self.context.op.dead = 1;
    }
}
