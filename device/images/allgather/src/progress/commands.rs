//! Commands of the host, and the progress it is shown.

use core::mem::offset_of;

use dpa::abi::progress::{
    COMMAND_DELIVERED, COMMAND_FAIL, COMMAND_POST, COMMAND_READ, COMMAND_TIME, NOBODY, RANK_WORDS, REPORT_DISAGREES,
    REPORT_FAILED, REPORT_RELEASED,
};
use dpa::abi::{CompletionFlag, FLAG_MAGIC, ProgressCommand, ProgressReport, ProgressThreadStatus};
use dpa::fence;
use dpa::proto::sequencer::Turn;
use dpa::proto::{Cause, Failure, Kind, OperationDescriptor, RankSet, Summary};

use super::ProgressEngine;

impl ProgressEngine<'_> {
    /// Takes the host's messages and the order they announce.
    pub(super) fn poll_control(&mut self) {
        if self.control.is_ready(self.state.control_consumed) {
            let events = self.control.take(&mut self.state.control_consumed);
            self.state.pending |= u32::from(events.message);
            if let Some(syndrome) = events.error {
                self.refuse(ProgressThreadStatus::ControlError, u32::from(syndrome));
            }
        }
        if self.state.pending != 0 {
            self.state.pending = 0;
            self.obey();
        }
    }

    /// Notes that something is wrong with what the host says; the first stays.
    #[cold]
    fn refuse(&mut self, status: ProgressThreadStatus, detail: u32) {
        let report = &mut self.state.report;
        if report.status == ProgressThreadStatus::Running as u32 {
            (report.status, report.detail) = (status as u32, detail);
        }
        self.state.unreported = 1;
    }

    #[inline(never)]
    fn obey(&mut self) {
        let sequence = self.order.load_at::<{ offset_of!(ProgressCommand, sequence) }>();
        let whole = sequence == self.order.load_at::<{ offset_of!(ProgressCommand, sequence_check) }>();
        if !whole || sequence == self.state.report.acknowledged {
            // Half written: its own message is still to come.
            return;
        }
        // No fence: the order was whole before the message came that it is taken for, behind whose completion there is one
        // (`Control::take`), and the host writes no other order before this one is acknowledged.
        let order = self.order.snapshot();
        self.state.clock_ps = order.now_ps.wrapping_sub(dpa::thread::time().wrapping_mul(super::PS_PER_NS));
        self.state.report.acknowledged = sequence;
        self.state.unreported = 1;
        if !self.carry_out(&order) {
            self.refuse(ProgressThreadStatus::InvalidOrder, order.flags);
        }
    }

    /// False if the order makes no sense.
    fn carry_out(&mut self, order: &ProgressCommand) -> bool {
        if order.flags & COMMAND_POST != 0 && !self.post(order) {
            return false;
        }
        if order.flags & COMMAND_DELIVERED != 0 {
            for block in RankSet::from_words(order.delivered).iter() {
                self.participant.delivered(block);
            }
        }
        if order.flags & COMMAND_READ != 0 {
            for block in RankSet::from_words(order.read).iter() {
                self.participant.read(block);
            }
        }
        if order.flags & COMMAND_FAIL != 0 {
            let Ok(cause) = Cause::from_bits(order.cause) else { return false };
            self.participant.fail(Failure { culprit: order.culprit, witness: order.witness, cause });
        }
        self.state.due |= u32::from(order.flags & COMMAND_TIME != 0);
        true
    }

    fn post(&mut self, order: &ProgressCommand) -> bool {
        if self.state.posted != 0 || u8::try_from(order.kind).map_or(true, |kind| Kind::from_raw(kind).is_err()) {
            return false;
        }
        let state = &mut *self.state;
        state.posted = 1;
        state.receive_sequence = order.receive_sequence;
        state.send_sequence = order.send_sequence;
        (state.address, state.rkey) = (order.address, order.rkey);
        (state.sending, state.unsent, state.unreceived, state.due) = (0, 0, 1, 0);
        state.turn = [order.chain, order.step, order.predecessor, order.successor];
        state.descriptor = [order.kind, order.root, order.chunk_bytes, order.chains];
        state.spans = [order.amount, order.barrier_timeout_ps, order.cutoff_ps, order.bound_ps];
        state.everybody = order.everybody;
        let report = &mut state.report;
        report.operation = order.operation;
        report.flags &= REPORT_FAILED | REPORT_DISAGREES;
        report.deadline_ps = u64::MAX;
        (report.armed_ps, report.ready_ps, report.sending_ps, report.sent_ps) = (0, 0, 0, 0);
        (report.received_ps, report.complete_ps, report.released_ps, report.fetches) = (0, 0, 0, 0);
        report.to_read = [0; RANK_WORDS];
        true
    }

    /// Begins the posted operation: its receive contexts are armed.
    #[inline(never)]
    pub(super) fn begin(&mut self, now_ps: u64) {
        let state = &mut *self.state;
        state.posted = 0;
        state.report.armed_ps = now_ps;
        state.unreported = 1;
        let [kind, root, chunk_bytes, chains] = state.descriptor;
        let [amount, barrier_timeout_ps, cutoff_ps, bound_ps] = state.spans;
        let Ok(kind) = Kind::from_raw(kind as u8) else { return };
        let roots = if state.everybody != 0 { RankSet::below(self.ranks) } else { RankSet::of(root) };
        let summary = Summary { kind, root, amount, chunk_bytes, chains };
        let operation = state.report.operation;
        let descriptor = OperationDescriptor { operation, roots, summary, barrier_timeout_ps, cutoff_ps, bound_ps };
        let [chain, step, predecessor, successor] = state.turn;
        let somebody = |position: u32| (position != NOBODY).then_some(position);
        let (predecessor, successor) = (somebody(predecessor), somebody(successor));
        let turn = (chain != NOBODY).then_some(Turn { chain, step, predecessor, successor });
        // Refused if the communicator has failed, of which the report tells.
        self.participant.post_with(descriptor, turn, now_ps);
        self.participant.delivered(self.rank);
    }

    /// Tells the host what is new; then, at the end of an operation, the flag.
    pub(super) fn tell(&mut self) {
        if self.state.unreported == 0 {
            return;
        }
        self.state.unreported = 0;
        let released = self.state.report.released_ps != 0 && self.state.report.flags & REPORT_RELEASED == 0;
        let report = &mut self.state.report;
        report.begin += 1;
        if released {
            report.flags |= REPORT_RELEASED;
        }
        report.deadline_ps = self.participant.deadline_ps().unwrap_or(u64::MAX);
        let number = report.begin;
        self.report.store_at::<{ offset_of!(ProgressReport, begin) }>(number);
        fence::window_writeback();
        self.report.store_part::<0, ProgressReport>(&self.state.report);
        fence::window_writeback();
        self.state.report.end = number;
        self.report.store_at::<{ offset_of!(ProgressReport, end) }>(number);
        fence::window_writeback();
        if released {
            let operation = u64::from(self.state.report.operation);
            self.flag.store_at::<{ offset_of!(CompletionFlag, value) }>(FLAG_MAGIC + operation);
            fence::window_writeback();
        }
    }
}
