//! Taking over the operation that the host wrote.

use dpa::abi::{ContextFault, Operation, Transport, WorkerStatus};
use dpa::{HostLine, fence};

use crate::prepare::{build_copies, check_operation};
use crate::worker::{Worker, bitmaps};

impl<const UD: bool, const EACH: bool, const LANE: bool> Worker<'_, UD, EACH, LANE> {
    /// Arms the worker for the host's operation if that is a new one and no copy of the last is under way (its completion will wake the
    /// thread again).
    #[inline(never)]
    pub(crate) fn take_operation(&mut self) {
        let line = HostLine::attach(&self.context.operation);
        let operation = line.snapshot();
        let is_new = operation.sequence != self.context.state.armed.sequence
            && operation.sequence == operation.sequence_check
            && operation.sequence != 0;
        if !is_new || self.outstanding() != 0 {
            return;
        }
        // The host may have been writing that very moment, and loads need not keep their order: only after a fence is no field
        // older than the number that announces it.
        fence::memory_read();
        let announced = operation.sequence;
        let operation = line.snapshot();
        if operation.sequence != announced || operation.sequence_check != announced {
            return;
        }
        let transport = if UD { Transport::Ud } else { Transport::Uc };
        let verdict = check_operation(self.context, &operation, transport);
        let state = &mut self.context.state;
        state.armed = operation;
        state.detail = 0;
        match verdict {
            Ok(()) => {
                state.status = WorkerStatus::Armed as u32;
                state.remaining = u64::from(operation.chunks);
                state.counted = 0;
            }
            Err(fault) => self.refuse(fault),
        }
        (self.bitmap, self.regular) = bitmaps(self.context);
        self.bitmap.clear();
        self.build_stale_copies(&operation);
    }

    /// Builds the copy entries anew if those there are for another chunk size or key.
    #[inline(always)]
    pub(crate) fn build_stale_copies(&mut self, operation: &Operation) {
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
    pub(crate) fn refuse(&mut self, fault: ContextFault) {
        let state = &mut self.context.state;
        state.armed.chunks = 0;
        state.remaining = 0;
        state.counted = 1;
        state.status = WorkerStatus::InvalidOperation as u32;
        state.detail = fault as u32;
    }
}
