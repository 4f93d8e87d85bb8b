//! Events of receive contexts and send workers, and the actions of the protocol's state machine.

use dpa::Table;
use dpa::abi::ProgressCall;
use dpa::abi::progress::{LOSSY, REPORT_DISAGREES, REPORT_EVERYTHING, REPORT_FAILED, REPORT_READY, REPORT_RELEASING};
use dpa::proto::{Action, Failure, Summary};

use super::ProgressEngine;

/// A call as the host reads it.
const fn call(summary: Summary) -> ProgressCall {
    let Summary { kind, root, amount, chunk_bytes, chains, algorithm } = summary;
    let (kind, algorithm) = (kind as u32, algorithm as u32);
    ProgressCall { kind, algorithm, root, chunk_bytes, amount, chains, reserved: 0 }
}

impl ProgressEngine<'_> {
    /// Passes to the machine what has been signalled, and the time.
    #[inline(never)]
    pub(super) fn poll_events(&mut self) {
        let now_ps = self.now_ps();
        let signals = self.signals();
        if self.state.posted != 0 && signals.are_armed(self.state.receive_sequence) {
            self.begin(now_ps);
        }
        if self.state.posted == 0 && self.state.unreceived != 0 && signals.is_complete(self.state.receive_sequence) {
            self.state.unreceived = 0;
            self.state.report.received_ps = now_ps;
            self.participant.progressed(now_ps);
            self.participant.delivered_all();
        }
        // An operation whose data rides on the barrier has no send worker.
        if self.state.sending | self.state.unsent != 0 {
            self.poll_sending(now_ps);
        }
        // No deadline passes before the host has said what it knows of the time until then.
        let deadline_ps = self.participant.deadline_ps().unwrap_or(u64::MAX);
        let due = core::mem::take(&mut self.state.due) != 0;
        self.participant.handle_time(if due { now_ps } else { now_ps.min(deadline_ps.saturating_sub(1)) });
    }

    /// Passes to the machine how far the send workers are.
    #[inline(never)]
    fn poll_sending(&mut self, now_ps: u64) {
        let signals = self.signals();
        if self.state.sending != 0 && signals.are_announced(self.state.send_sequence) {
            self.state.sending = 0;
            self.participant.progressed(now_ps);
            self.participant.sent();
        }
        if self.state.unsent != 0 && signals.are_sent(self.state.send_sequence) {
            self.state.unsent = 0;
            self.state.report.sent_ps = now_ps;
            self.release_if_over(now_ps);
        }
    }

    /// Does what the machine asks for, until there is nothing more, or no room for a message (true), or the budget is
    /// used up (false).
    #[inline(never)]
    pub(super) fn act(&mut self, budget: &mut u64) -> bool {
        if self.state.follows & LOSSY != 0 && self.state.reads.waits != 0 {
            self.repair();
        }
        loop {
            if self.state.full != 0 || self.is_held() {
                // The completion that makes room, or reports that a row is sent, wakes the thread.
                break;
            }
            if *budget == 0 {
                return false;
            }
            let Some(action) = self.participant.poll() else { break };
            *budget -= 1;
            match action {
                Action::Send { to, message } => self.send(to, &message),
                Action::Multicast => self.multicast(),
                Action::Read { from, pieces } => self.read(from, &pieces),
                Action::Release => {
                    self.note_progress(true);
                    self.state.report.flags |= REPORT_RELEASING;
                    let now_ps = self.now_ps();
                    self.release_if_over(now_ps);
                }
                Action::Fail(failure) => self.failed(failure),
            }
        }
        self.note_progress(false);
        true
    }

    /// Lets the send workers go.
    #[inline(never)]
    fn multicast(&mut self) {
        let signals = self.signals();
        self.state.report.sending_ps = self.now_ps();
        if self.state.send_sequence == 0 {
            self.participant.sent();
            return;
        }
        if signals.are_sent(self.state.send_sequence) {
            // The host has closed it before its turn: nothing is sent, and nobody will wake this thread for that.
            self.state.report.sent_ps = self.now_ps();
            self.participant.sent();
            return;
        }
        (self.state.sending, self.state.unsent) = (1, 1);
        signals.go(self.state.send_sequence);
        let senders = Table::attach(&self.set_up.senders).first(signals.senders());
        for number in 0..senders.len() {
            if let Some(id) = senders.get(number) {
                dpa::entry::activate(id as u32);
            }
        }
    }

    /// An operation whose data rides on the barrier is over with it; false if there is more to do. The host learns that
    /// it is over, and of no phases: it needs one line for that, where a report takes two and an order between them.
    pub(super) fn release_eager(&mut self) -> bool {
        let now_ps = self.now_ps().max(1);
        let over = self.participant.release_eager(now_ps);
        if over {
            let report = &mut self.state.report;
            report.flags |= REPORT_READY | REPORT_EVERYTHING | REPORT_RELEASING;
            report.released_ps = now_ps;
            (self.state.over, self.state.unannounced) = (report.operation, 1);
        }
        over
    }

    /// The operation is over once nothing more is needed of it and the own sends are, too.
    fn release_if_over(&mut self, now_ps: u64) {
        let report = &mut self.state.report;
        if report.flags & REPORT_RELEASING != 0 && self.state.unsent == 0 && report.released_ps == 0 {
            report.released_ps = now_ps.max(1);
            self.state.unreported = 1;
        }
    }

    /// Notifies the host of a passed barrier, from which on another deadline counts, and notes when everything was
    /// there.
    fn note_progress(&mut self, over: bool) {
        // From when somebody is silent until that counts, the host must check the clock at another time.
        if self.participant.is_failing() && self.participant.deadline_ps() != Some(self.state.report.deadline_ps) {
            self.state.unreported = 1;
        }
        if !over && !self.participant.is_running() {
            return;
        }
        let now_ps = self.now_ps().max(1);
        let report = &mut self.state.report;
        if report.flags & REPORT_READY == 0
            && let Some(ready_ps) = self.participant.ready_ps()
        {
            report.flags |= REPORT_READY;
            report.ready_ps = ready_ps.max(1);
            self.state.unreported = 1;
        }
        if report.flags & REPORT_EVERYTHING == 0 && (over || self.participant.has_everything()) {
            report.flags |= REPORT_EVERYTHING;
            report.complete_ps = now_ps;
        }
    }

    #[cold]
    fn failed(&mut self, failure: Failure) {
        self.state.report.flags |= REPORT_FAILED;
        let detail = &mut self.state.detail;
        (detail.culprit, detail.witness, detail.cause) =
            (failure.failed_rank, failure.detecting_rank, failure.cause.to_bits());
        if let Some(found) = self.participant.disagreement() {
            self.state.report.flags |= REPORT_DISAGREES;
            let [theirs, own] = found.calls;
            (detail.culprit_call, detail.witness_call) = (call(theirs), call(own));
        }
        self.state.undetailed = 1;
        self.state.unreported = 1;
    }
}
