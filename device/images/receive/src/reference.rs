//! The published algorithm (Khalilov et al., receive kernels) as a baseline to measure against: doorbells, doorbell records and reaping with
//! every completion, work queue entries built from nothing every time, no check of id, range, length or duplicates.
//!
//! What the papers leave out is not left out here, because the host could not tell the result: errors are reported, the thread re-arms,
//! slots are posted again only after their copy.

use dpa::abi::{Transport, WorkerContext};
use dpa::hw::{ControlSegment, CqeOpcode, DataSegment, GRH_BYTES, WqeOpcode, WriteWqe};
use dpa::{Counters, Next, error, fatal, fence};

use crate::worker::Worker;

/// Body of the reference image's event handlers.
pub fn reference(context: &mut WorkerContext, transport: Transport) -> Next {
    if context.state.prepared == 0 || context.transport != transport as u32 {
        fatal(error::NOT_PREPARED);
    }
    match transport {
        Transport::Uc => reference_uc(context),
        Transport::Ud => reference_ud(context),
    }
}

#[inline(never)]
fn reference_uc(context: &mut WorkerContext) -> Next {
    activation::<false>(context)
}

#[inline(never)]
fn reference_ud(context: &mut WorkerContext) -> Next {
    activation::<true>(context)
}

#[inline(always)]
fn activation<const UD: bool>(context: &mut WorkerContext) -> Next {
    let entered = Counters::read();
    let mut worker = Worker::<UD, true, false>::wake(context);
    let next = worker.serve_with(Worker::drain_published);
    worker.account_activation(entered);
    next
}

impl<const UD: bool> Worker<'_, UD, true, false> {
    /// Consumes completions one by one until none is left (true) or `quota` is reached (false).
    #[inline(always)]
    fn drain_published(&mut self, quota: u64) -> bool {
        let start = Counters::read();
        let first = self.context.state.consumed;
        let psn_mask = (1u32 << self.context.psn_bits) - 1;
        let drained = loop {
            let consumed = self.context.state.consumed;
            if !self.receive_cq.is_ready(consumed) {
                break true;
            }
            if consumed - first >= quota {
                break false;
            }
            fence::memory_read();
            let entry = self.receive_cq.entry(consumed);
            if entry.op_own() >> 4 != Self::OPCODE as u64 {
                self.irregular();
            } else {
                let psn = entry.user_index_and_immediate() as u32 & psn_mask;
                self.bitmap.mark(u64::from(psn));
                self.context.state.remaining = self.context.state.remaining.saturating_sub(1);
                if UD {
                    self.build_copy(consumed, psn, entry.byte_count().wrapping_sub(GRH_BYTES));
                }
                self.context.state.consumed = consumed + 1;
            }
            self.ring_each();
        };
        self.context.state.posted = self.context.state.consumed;
        let spent = Counters::read().since(start);
        let statistics = &mut self.context.state.statistics;
        statistics.loop_cqes += self.context.state.consumed - first;
        statistics.loop_instructions += spent.instructions;
        statistics.loop_cycles += spent.cycles;
        drained
    }

    /// Writes the copy entry of completion number `index`, all of it but what never differs from zero.
    #[inline(always)]
    fn build_copy(&mut self, index: u64, psn: u32, bytes: u32) {
        let staging = &self.context.staging;
        let armed = &self.context.state.armed;
        let position = index & (self.receive_queue.depth() - 1);
        let source = staging.address + position * u64::from(staging.stride) + u64::from(GRH_BYTES);
        let target = armed.destination + u64::from(psn) * u64::from(armed.chunk_bytes);
        let qpn = self.send_queue.number();
        let slot = self.send_queue.slot(index);
        slot.set_head(ControlSegment::head(index as u16, WqeOpcode::Write, qpn, WriteWqe::SEGMENTS));
        slot.set_remote(target);
        slot.set_remote_key(armed.rkey);
        slot.set_data(DataSegment::new(bytes, staging.lkey, source));
    }

    #[inline(always)]
    fn ring_each(&mut self) {
        let consumed = self.context.state.consumed;
        self.receive_cq.set_consumer(consumed);
        if UD {
            // Every entry is signalled, also one that `irregular` made a NOP.
            self.send_queue.slot(consumed - 1).set_signalled(true);
            fence::memory_write();
            self.send_queue.set_producer(consumed);
            fence::outbox();
            self.outbox.ring_sq(self.send_queue.number(), consumed);
            self.reap_one();
        } else {
            // No fence: the receives never change, so that the card needs nothing stored before the record.
            self.receive_queue.set_producer(consumed + self.receive_queue.depth());
        }
    }

    /// Posts the receive of one completed copy again, if there is one.
    #[inline(always)]
    fn reap_one(&mut self) {
        let index = self.context.state.send_consumed;
        if !self.send_cq.is_ready(index) {
            return;
        }
        let entry = self.send_cq.entry(index);
        if entry.op_own() >> 4 != CqeOpcode::Requester as u64 {
            // Until here the entry's last byte alone was read.
            fence::memory_read();
            self.copy_failed(entry.op_own(), entry.syndrome());
        } else {
            // All are signalled, so each completion is the next copy's.
            self.context.state.completed += 1;
        }
        self.context.state.send_consumed = index + 1;
        self.context.state.statistics.copy_cqes += 1;
        self.send_cq.set_consumer(index + 1);
        self.receive_queue.set_producer(self.context.state.completed + self.receive_queue.depth());
    }
}
