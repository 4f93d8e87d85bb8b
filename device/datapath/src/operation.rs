//! A receive context's operation: taking over what the host wrote, closing it, answering the host's request for a report.

use dpa::abi::{
    ContextFault, OPERATION_CLOSED, OPERATION_REPORTS, Operation, ReceiveContext, ReceiveStatus, Transport,
};
use dpa::hw::MASK_24;
use dpa::{BitmapView, HostLine, Signals, fence};

use crate::placement::{check_placement, set_out};
use crate::prepare::build_copies;
use crate::receiver::Receiver;

/// First dword pair of the completions of the armed operation, as `CqeRef::user_index_and_immediate` reads it, for PSN 0.
fn key_base(context: &ReceiveContext) -> u64 {
    u64::from(context.user_index & MASK_24) << 32 | u64::from(context.state.armed.collective_id) << context.psn_bits
}

impl<const UD: bool> Receiver<'_, UD> {
    /// Acts on the host's line: takes over a new operation unless copies of the last are under way (their completion leads here again),
    /// or closes the armed one.
    #[inline(never)]
    pub(crate) fn process_commands(&mut self) {
        let line = HostLine::attach(&self.context.operation);
        let announced = line.snapshot();
        // The host may be writing the next line: no field may be older than the numbers that announce it.
        fence::memory_read();
        let operation = line.snapshot();
        if announced.sequence != announced.sequence_check
            || operation.sequence != announced.sequence
            || operation.sequence_check != announced.sequence
            || announced.sequence == 0
        {
            // Half written: its own message is still to come.
            self.context.op.pending = 0;
            return;
        }
        if operation.sequence != self.context.state.armed.sequence {
            if self.outstanding() != 0 && self.context.op.dead == 0 {
                return;
            }
            self.take_over(operation);
        }
        if operation.flags & OPERATION_CLOSED != 0 {
            self.context.op.closed = 1;
            self.regular = BitmapView::none();
        }
        self.context.op.request = announced.report_request;
        self.context.op.pending = u32::from(!self.may_answer());
    }

    /// Whether nothing stands between the host's request and its answer: a closed receive context answers when no copy is under way any more.
    fn may_answer(&self) -> bool {
        self.context.op.closed == 0 || self.context.op.dead != 0 || self.outstanding() == 0
    }

    fn take_over(&mut self, operation: Operation) {
        let transport = if UD { Transport::Ud } else { Transport::Uc };
        let placement = HostLine::attach(&self.context.placement).snapshot();
        let verdict = match check_placement(self.context, &operation, &placement, transport) {
            Ok(()) if self.context.op.dead != 0 => Err(ContextFault::DeadQueue),
            verdict => verdict,
        };
        let state = &mut self.context.state;
        state.armed = operation;
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
        let context = &mut *self.context;
        let bits = |bits| BitmapView::attach(&context.bitmap, bits);
        (self.bitmap, self.regular) = (bits(context.state.armed.chunks), bits(context.state.armed.chunks));
        context.state.key = key_base(context);
        set_out(context, &self.bitmap);
        self.build_stale_copies(&operation);
        if verdict.is_ok()
            && let Some(progress) = Signals::attach(&self.context.signals)
        {
            progress.armed(operation.sequence);
        }
    }

    /// Copies bitmap, tail bitmap and statistics to host memory if the host asked for it and the answer is final, or if the operation is to be reported
    /// on without that, and something has come since. `sleeps`: before the thread goes to sleep.
    pub(crate) fn answer_report(&mut self, sleeps: bool) {
        let request = self.context.op.request;
        let state = &self.context.state;
        if request != state.reported {
            if self.may_answer() {
                self.write_report(request);
            }
        } else if state.armed.flags & OPERATION_REPORTS != 0 && state.reported_at != state.consumed {
            let is_near_end = state.remaining <= 2 * self.segment;
            if state.remaining <= state.report_at || (sleeps && is_near_end) {
                self.write_report(request);
            }
        }
    }

    /// Builds the copy entries anew if those there are for another chunk size or key.
    #[inline(always)]
    fn build_stale_copies(&mut self, operation: &Operation) {
        let state = &mut self.context.state;
        let stale = state.built_chunk_bytes != operation.chunk_bytes || state.built_rkey != operation.rkey;
        if UD && stale && self.context.state.armed.chunks != 0 {
            build_copies(self.context, operation, &self.send_queue);
            self.context.state.built_chunk_bytes = operation.chunk_bytes;
            self.context.state.built_rkey = operation.rkey;
        }
        // No fence: copies reach the card behind the fences before their doorbell, and the bitmap is this thread's alone.
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
