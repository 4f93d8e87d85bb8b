//! A receive context's operation: taking over what the host wrote, closing it, answering the host's request for a
//! report.

use core::mem::offset_of;

use dpa::abi::{
    ContextFault, OPERATION_CLOSED, OPERATION_REPORTS, Operation, ReceiveContext, ReceiveStatus, Transport,
};
use dpa::hw::MASK_24;
use dpa::{HostLine, Signals, fence};

use crate::placement::{check_placement, set_out};
use crate::prepare::build_copies;
use crate::receiver::Receiver;

/// First dword pair of the completions of the armed operation, as `CqeRef::user_index_and_immediate` reads it, for
/// PSN 0.
fn key_base(context: &ReceiveContext) -> u64 {
    u64::from(context.user_index & MASK_24) << 32 | u64::from(context.state.armed.collective_id) << context.psn_bits
}

impl<const UD: bool> Receiver<'_, UD> {
    /// Acts on the host's line: takes over a new operation unless copies of the last are under way (their completion
    /// leads here again), or closes the armed one.
    #[inline(never)]
    pub(crate) fn process_commands(&mut self) {
        let line = HostLine::attach(&self.context.operation);
        let sequence = line.load_at::<{ offset_of!(Operation, sequence) }>();
        let check = line.load_at::<{ offset_of!(Operation, sequence_check) }>();
        let request = line.load_at::<{ offset_of!(Operation, report_request) }>();
        // The host may be writing the next line: no field may be older than the numbers that announce it.
        fence::memory_read();
        let operation = line.snapshot();
        let is_whole = [check, operation.sequence, operation.sequence_check].iter().all(|number| *number == sequence);
        if sequence == 0 || !is_whole {
            // Half written: its own message is still to come.
            self.context.op.pending = 0;
            return;
        }
        if sequence != self.context.state.armed.sequence {
            if self.outstanding() != 0 && self.context.op.dead == 0 {
                return;
            }
            self.take_over(&operation);
        }
        if operation.flags & OPERATION_CLOSED != 0 {
            self.context.op.closed = 1;
        }
        self.context.op.request = request;
        self.context.op.pending = u32::from(!self.may_answer());
    }

    /// Whether nothing stands between the host's request and its answer: a closed receive context answers when no copy
    /// is under way any more.
    fn may_answer(&self) -> bool {
        self.context.op.closed == 0 || self.context.op.dead != 0 || self.outstanding() == 0
    }

    #[inline(always)]
    fn take_over(&mut self, operation: &Operation) {
        let transport = if UD { Transport::Ud } else { Transport::Uc };
        let placement = HostLine::attach(&self.context.placement).snapshot();
        let verdict = match check_placement(self.context, operation, &placement, transport) {
            Ok(()) if self.context.op.dead != 0 => Err(ContextFault::DeadQueue),
            verdict => verdict,
        };
        let state = &mut self.context.state;
        state.armed = *operation;
        state.detail = 0;
        self.context.op.placed = placement;
        self.context.op.closed = 0;
        match verdict {
            Ok(()) => {
                state.status = ReceiveStatus::Armed as u32;
                state.remaining = u64::from(operation.chunks - placement.own_chunks);
                state.counted = 0;
                state.reported_at = state.consumed;
                state.report_at = if operation.flags & OPERATION_REPORTS != 0 { state.remaining / 4 } else { 0 };
            }
            Err(fault) => {
                self.context.op.placed.roots = 0;
                self.context.op.placed.own_chunks = 0;
                self.refuse(fault);
            }
        }
        self.context.state.key = key_base(self.context);
        set_out(self.context);
        self.build_stale_copies();
        if verdict.is_ok()
            && let Some(progress) = Signals::attach(&self.context.signals)
        {
            progress.armed(self.context.state.armed.sequence);
        }
    }

    /// Copies bitmap, tail bitmap and statistics to host memory if the host asked for it and the answer is final, or if
    /// the operation is to be reported on without that, and something has come since. `sleeps`: before the thread goes
    /// to sleep.
    pub(crate) fn answer_report(&mut self, sleeps: bool) {
        let request = self.context.op.request;
        let state = &self.context.state;
        if request != state.reported {
            if self.may_answer() {
                self.write_report(request);
            }
        } else if state.armed.flags & OPERATION_REPORTS != 0
            && state.reported_at != state.consumed
            && (state.remaining <= state.report_at || (sleeps && self.is_near_end()))
        {
            self.write_report(request);
        }
    }

    /// Builds the copy entries anew if those there are for another chunk size or key.
    #[inline(always)]
    fn build_stale_copies(&mut self) {
        let state = &self.context.state;
        let (chunk_bytes, rkey) = (state.armed.chunk_bytes, state.armed.rkey);
        let stale = state.built_chunk_bytes != chunk_bytes || state.built_rkey != rkey;
        if UD && stale && state.armed.chunks != 0 {
            build_copies(self.context);
            self.context.state.built_chunk_bytes = chunk_bytes;
            self.context.state.built_rkey = rkey;
        }
        // No fence: copies reach the card behind the fences before their doorbell, and the bitmap is this thread's
        // alone.
    }

    /// An operation that does not fit: nothing is accepted for it and it never completes.
    #[cold]
    fn refuse(&mut self, fault: ContextFault) {
        let state = &mut self.context.state;
        state.armed.chunks = 0;
        state.remaining = 0;
        state.report_at = 0;
        state.counted = 1;
        state.status = ReceiveStatus::InvalidOperation as u32;
        state.detail = fault as u32;
    }
}
