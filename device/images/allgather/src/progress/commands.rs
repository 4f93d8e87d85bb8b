//! Commands of the host, and the progress it is shown.

use core::mem::offset_of;

use dpa::abi::progress::{
    COMMAND_CUT_OFF, COMMAND_DELIVERED, COMMAND_FAIL, COMMAND_POST, COMMAND_READ, COMMAND_TIME, NOBODY, RANK_WORDS,
    REPORT_DISAGREES, REPORT_FAILED, REPORT_RELEASED,
};
use dpa::abi::{CompletionFlag, FLAG_MAGIC, ProgressCommand, ProgressReport, ProgressThreadStatus};
use dpa::fence;
use dpa::proto::sequencer::Turn;
use dpa::proto::{Algorithm, Cause, Failure, Kind, OperationDescriptor, PieceSet, RankSet, Summary};

use super::ProgressEngine;

impl ProgressEngine<'_> {
    /// Takes the host's messages and the command they announce.
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
        let sequence = self.command.load_at::<{ offset_of!(ProgressCommand, sequence) }>();
        let whole = sequence == self.command.load_at::<{ offset_of!(ProgressCommand, sequence_check) }>();
        if !whole || sequence == self.state.report.acknowledged {
            // Half written: its own message is still to come.
            return;
        }
        // No fence: the command was whole before the message came that it is taken for, behind whose completion there is one
        // (`Control::take`), and the host writes no other command before this one is acknowledged.
        let command = self.command.snapshot();
        self.state.clock_ps = command.now_ps.wrapping_sub(dpa::thread::time().wrapping_mul(super::PS_PER_NS));
        self.state.report.acknowledged = sequence;
        self.state.unreported = 1;
        if !self.carry_out(&command) {
            self.refuse(ProgressThreadStatus::InvalidCommand, command.flags);
        }
    }

    /// False if the command makes no sense.
    fn carry_out(&mut self, command: &ProgressCommand) -> bool {
        if command.flags & COMMAND_POST != 0 && !self.post(command) {
            return false;
        }
        if command.flags & COMMAND_DELIVERED != 0 {
            self.participant.delivered_pieces(&PieceSet::from_words(command.delivered));
        }
        if command.flags & COMMAND_READ != 0 {
            for piece in PieceSet::from_words(command.read).iter() {
                self.participant.read(piece);
            }
        }
        if command.flags & COMMAND_CUT_OFF != 0 {
            self.participant.cut_off(command.now_ps);
        }
        if command.flags & COMMAND_FAIL != 0 {
            let Ok(cause) = Cause::from_bits(command.cause) else { return false };
            self.participant.fail(Failure { culprit: command.culprit, witness: command.witness, cause });
        }
        self.state.due |= u32::from(command.flags & COMMAND_TIME != 0);
        true
    }

    fn post(&mut self, command: &ProgressCommand) -> bool {
        if self.state.posted != 0 || u8::try_from(command.kind).map_or(true, |kind| Kind::from_raw(kind).is_err()) {
            return false;
        }
        let state = &mut *self.state;
        state.posted = 1;
        state.receive_sequence = command.receive_sequence;
        state.send_sequence = command.send_sequence;
        (state.address, state.rkey) = (command.address, command.rkey);
        (state.sending, state.unsent, state.unreceived, state.due) = (0, 0, 1, 0);
        state.turn = [command.chain, command.step, command.predecessor, command.successor];
        state.descriptor = [command.kind, command.root, command.chunk_bytes, command.chains];
        state.spans = [command.amount, command.barrier_timeout_ps, command.cutoff_ps, command.bound_ps];
        (state.everybody, state.pieces) = (command.everybody, command.pieces);
        let report = &mut state.report;
        report.operation = command.operation;
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
        let algorithm = Algorithm::Multicast;
        let summary = Summary { kind, root, amount, chunk_bytes, chains, algorithm };
        let operation = state.report.operation;
        let pieces = state.pieces;
        let descriptor =
            OperationDescriptor { operation, roots, pieces, summary, barrier_timeout_ps, cutoff_ps, bound_ps };
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
