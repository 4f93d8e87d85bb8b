//! Commands of the host.

use core::mem::offset_of;

use dpa::abi::progress::{
    COMMAND_CUT_OFF, COMMAND_EAGER, COMMAND_FAIL, COMMAND_FOLLOW, COMMAND_POST, COMMAND_PROBE, COMMAND_TIME, FOLLOWS,
    LOSSY, NOBODY, REPORT_DISAGREES, REPORT_FAILED, ROUNDS,
};
use dpa::abi::{ProgressCommand, ProgressThreadStatus};
use dpa::proto::sequencer::Turn;
use dpa::proto::{Algorithm, Cause, Failure, Kind, OperationDescriptor, RankSet, Summary};

use super::ProgressEngine;

impl ProgressEngine<'_> {
    /// Takes the host's messages and the command they announce.
    pub(super) fn poll_control(&mut self) {
        if self.has_control() {
            let events = self.control().take(&mut self.state.control_consumed);
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
        let reported = &mut self.state.detail;
        if reported.status == ProgressThreadStatus::Running as u32 {
            (reported.status, reported.detail) = (status as u32, detail);
        }
        (self.state.unreported, self.state.undetailed) = (1, 1);
    }

    #[inline(never)]
    fn obey(&mut self) {
        let command = self.command();
        let sequence = command.load_at::<{ offset_of!(ProgressCommand, sequence) }>();
        let whole = sequence == command.load_at::<{ offset_of!(ProgressCommand, sequence_check) }>();
        if !whole || sequence == self.state.acknowledged {
            // Half written: its own message is still to come.
            return;
        }
        // No fence: the command was whole before the message came that it is taken for, behind whose completion there
        // is one (`Control::take`), and the host writes no other command before this one is acknowledged.
        let now_ps = command.load_at::<{ offset_of!(ProgressCommand, now_ps) }>();
        let (flags, operation) = command.pair_at::<{ offset_of!(ProgressCommand, flags) }>();
        self.state.clock_ps = now_ps.wrapping_sub(dpa::thread::time().wrapping_mul(super::PS_PER_NS));
        (self.state.acknowledged, self.state.unacknowledged) = (sequence, 1);
        let carried_out = (flags & COMMAND_POST == 0 || self.post(flags, operation, now_ps))
            && (flags & !(COMMAND_POST | COMMAND_EAGER) == 0 || self.carry_out(flags, now_ps));
        if !carried_out {
            self.refuse(ProgressThreadStatus::InvalidCommand, flags);
        }
    }

    /// Carries out what a command says in addition to a post. False if it makes no sense.
    #[cold]
    #[inline(never)]
    fn carry_out(&mut self, flags: u32, now_ps: u64) -> bool {
        let command = self.command();
        if flags & COMMAND_CUT_OFF != 0 {
            self.close(now_ps);
        }
        if flags & COMMAND_FAIL != 0 {
            let (failed_rank, detecting_rank) = command.pair_at::<{ offset_of!(ProgressCommand, culprit) }>();
            let (cause, _) = command.pair_at::<{ offset_of!(ProgressCommand, cause) }>();
            let Ok(cause) = Cause::from_bits(cause) else { return false };
            self.participant.fail(Failure { failed_rank, detecting_rank, cause });
        }
        if flags & COMMAND_PROBE != 0 {
            self.probe_awaited();
        }
        self.state.follows ^= if flags & COMMAND_FOLLOW != 0 { FOLLOWS } else { 0 };
        self.state.due |= u32::from(flags & COMMAND_TIME != 0);
        self.state.unreported = 1;
        true
    }

    /// Takes a posted operation. One whose data rides on the barrier begins at once. False if that makes no sense.
    fn post(&mut self, flags: u32, operation: u32, now_ps: u64) -> bool {
        let command = self.command();
        let (kind, root) = command.pair_at::<{ offset_of!(ProgressCommand, kind) }>();
        let Some(Ok(known)) = u8::try_from(kind).ok().map(Kind::from_raw) else { return false };
        if self.state.posted != 0 {
            return false;
        }
        let (chunk_bytes, chains) = command.pair_at::<{ offset_of!(ProgressCommand, chunk_bytes) }>();
        let amount = command.load_at::<{ offset_of!(ProgressCommand, amount) }>();
        let barrier_timeout_ps = command.load_at::<{ offset_of!(ProgressCommand, barrier_timeout_ps) }>();
        let bound_ps = command.load_at::<{ offset_of!(ProgressCommand, bound_ps) }>();
        let eager = flags & COMMAND_EAGER != 0;
        let state = &mut *self.state;
        let report = &mut state.report;
        report.operation = operation;
        report.flags &= REPORT_FAILED | REPORT_DISAGREES;
        (report.armed_ps, report.ready_ps, report.sending_ps, report.sent_ps) = (0, 0, 0, 0);
        (report.received_ps, report.complete_ps, report.released_ps, report.fetches) = (0, 0, 0, 0);
        (state.sending, state.unsent, state.due) = (0, 0, 0);
        state.eager = u32::from(eager);
        if eager {
            if self.set_up.rows_bytes == 0 {
                return false;
            }
            state.unreceived = 0;
            report.armed_ps = now_ps;
            state.carried = command.words_at::<{ offset_of!(ProgressCommand, eager) }, { ROUNDS / 2 }>();
            let algorithm = Algorithm::Eager;
            let summary = Summary { kind: known, root, amount, chunk_bytes, chains, algorithm };
            // Refused if the communicator has failed, which the report states.
            self.participant.post_eager(operation, summary, (barrier_timeout_ps, bound_ps), now_ps);
            self.keep_signal(operation, summary);
            return true;
        }
        report.reads = 0;
        // After a failure reads may still be under way.
        if state.follows & LOSSY != 0 && state.reads.over == state.reads.posted {
            state.follows &= !LOSSY;
        }
        state.posted = 1;
        state.unreceived = 1;
        state.receive_sequence = command.load_at::<{ offset_of!(ProgressCommand, receive_sequence) }>();
        state.send_sequence = command.load_at::<{ offset_of!(ProgressCommand, send_sequence) }>();
        let (everybody, chain) = command.pair_at::<{ offset_of!(ProgressCommand, everybody) }>();
        let (step, predecessor) = command.pair_at::<{ offset_of!(ProgressCommand, step) }>();
        let (successor, rkey) = command.pair_at::<{ offset_of!(ProgressCommand, successor) }>();
        let (_, pieces) = command.pair_at::<{ offset_of!(ProgressCommand, cause) }>();
        let (lkey, _) = command.pair_at::<{ offset_of!(ProgressCommand, lkey) }>();
        let cutoff_ps = command.load_at::<{ offset_of!(ProgressCommand, cutoff_ps) }>();
        state.address = command.load_at::<{ offset_of!(ProgressCommand, address) }>();
        (state.rkey, state.lkey) = (rkey, lkey);
        state.turn = [chain, step, predecessor, successor];
        state.descriptor = [kind, root, chunk_bytes, chains];
        state.spans = [amount, barrier_timeout_ps, cutoff_ps, bound_ps];
        (state.everybody, state.pieces) = (everybody, pieces);
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
        let roots = if state.everybody != 0 { RankSet::below(self.set_up.ranks) } else { RankSet::of(root) };
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
        // Refused if the communicator has failed, which the report states.
        self.participant.post_with(&descriptor, turn, now_ps);
        self.keep_signal(operation, summary);
        // Others wait for the signal, and nobody for what is whole here.
        self.signal();
        self.participant.delivered(self.set_up.rank);
    }
}
