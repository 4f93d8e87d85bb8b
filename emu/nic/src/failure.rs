//! CQEs on their way out, and the error state.

use crate::cq::Written;
use crate::cqe::{self, Cqe, Side, syndrome};
use crate::effects::{AsyncEvent, CqEvent, Effects, FailureCause, Work};
use crate::memory::Dma;
use crate::nic::Nic;
use crate::note::{CqeNote, Note};
use crate::qp::QpState;
use crate::queue_pair::{Outstanding, QueuePair};
use crate::wqe::{Completion, Control, SEGMENT_BYTES, WqeFault};

/// A CQE on its way to its ring.
#[derive(Debug)]
pub(crate) struct PendingCqe {
    /// The queue pair, and its life: a CQE of an earlier one is not written.
    qpn: u32,
    life: u32,
    cqn: u32,
    cqe: Cqe,
    solicited: bool,
    error: bool,
    /// An event follows even if the queue is not armed.
    event: bool,
}

/// CQEs.
impl Nic {
    fn push_cqe(&mut self, at_ps: u64, cqe: PendingCqe, fx: &mut Effects) {
        let slot = self.pending_cqes.insert(cqe);
        fx.timer(at_ps, Work::Cqe { slot });
    }

    /// A CQE reaches its ring.
    pub(crate) fn write_cqe(&mut self, now_ps: u64, slot: u32, mem: &mut dyn Dma, fx: &mut Effects) {
        let Some(mut pending) = self.pending_cqes.take(slot) else { return };
        if self.qps.get(pending.qpn).is_some_and(|qp| qp.life != pending.life) {
            return;
        }
        let cqn = pending.cqn;
        let Some(cq) = self.cqs.get_mut(cqn) else { return };
        cqe::stamp(&mut pending.cqe, now_ps);
        let owner = cq.next_owner();
        // An error always counts as solicited.
        let written = match cq.write(pending.cqe, pending.solicited || pending.error, mem) {
            Written::Quiet if pending.event => Written::Event,
            written => written,
        };
        match written {
            Written::Quiet | Written::Event => {
                self.counters.cqes += 1;
                self.counters.error_cqes += u64::from(pending.error);
                let target = cq.attr.target;
                self.note(now_ps, || Note::Cqe(CqeNote::new(cqn, &pending.cqe, pending.error, owner)));
                if written == Written::Event {
                    self.raise(now_ps, CqEvent { cqn, target }, fx);
                }
            }
            Written::Overrun => {
                self.counters.cq_overruns += 1;
                self.fail_cq(now_ps, cqn, FailureCause::Overrun, mem, fx);
            }
            Written::Unreachable(fault) => {
                self.fail_cq(now_ps, cqn, FailureCause::QueueMemory { addr: fault.addr }, mem, fx);
            }
            Written::Dead => {}
        }
    }

    /// Raises a completion event.
    pub(crate) fn raise(&mut self, now_ps: u64, event: CqEvent, fx: &mut Effects) {
        self.counters.cq_events += 1;
        self.note(now_ps, || Note::Event { cqn: event.cqn, target: event.target });
        fx.events.push((now_ps, event));
    }

    /// A send WQE is done at `done_ps`.
    pub(crate) fn complete_send(&mut self, done_ps: u64, qp: &mut QueuePair, wqe: &Outstanding, fx: &mut Effects) {
        qp.sq.retired = wqe.position.wrapping_add(wqe.blocks);
        qp.sq.executed.retain(|position| *position != wqe.position);
        if matches!(wqe.completion, Completion::Always | Completion::AlwaysWithEvent) {
            let at_ps = (done_ps + self.config.timing.completion_latency_ps).max(qp.sq.last_cqe_ps);
            qp.sq.last_cqe_ps = at_ps;
            let cqe = cqe::requester(qp.qpn, qp.attr.user_index, wqe.opcode, wqe.index, wqe.len);
            let event = wqe.completion == Completion::AlwaysWithEvent;
            let cqn = qp.attr.send_cq;
            let (qpn, life) = (qp.qpn, qp.life);
            self.push_cqe(at_ps, PendingCqe { qpn, life, cqn, cqe, solicited: false, error: false, event }, fx);
        }
    }

    /// A receive is done now.
    pub(crate) fn complete_receive(&mut self, now_ps: u64, qp: &mut QueuePair, cqe: Cqe, fx: &mut Effects) {
        qp.rq.consumer = qp.rq.consumer.wrapping_add(1);
        let at_ps = (now_ps + self.config.timing.completion_latency_ps)
            .max(self.engines.pcie_write_busy_ps)
            .max(qp.rq.last_cqe_ps);
        qp.rq.last_cqe_ps = at_ps;
        let solicited = cqe[0x3F] & 2 != 0;
        let error = cqe[0x3F] >> 4 == cqe::opcode::RESPONDER_ERROR;
        let (qpn, life, cqn) = (qp.qpn, qp.life, qp.attr.recv_cq);
        self.push_cqe(at_ps, PendingCqe { qpn, life, cqn, cqe, solicited, error, event: false }, fx);
    }

    fn error_send(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        opcode: u8,
        index: u16,
        fault: WqeFault,
        fx: &mut Effects,
    ) {
        let at_ps = (now_ps + self.config.timing.completion_latency_ps).max(qp.sq.last_cqe_ps);
        qp.sq.last_cqe_ps = at_ps;
        let side = Side::Requester { wqe_opcode: opcode };
        let cqe = cqe::error(side, qp.qpn, qp.attr.user_index, index, fault.syndrome, fault.vendor);
        let cqn = qp.attr.send_cq;
        let (qpn, life) = (qp.qpn, qp.life);
        self.push_cqe(at_ps, PendingCqe { qpn, life, cqn, cqe, solicited: false, error: true, event: false }, fx);
        qp.sq.error_reported = true;
    }
}

const FLUSHED: WqeFault = WqeFault { syndrome: syndrome::FLUSHED, vendor: 0 };

/// The error state.
impl Nic {
    /// The oldest send WQE that is not complete has failed: it completes in error, and the rest is flushed.
    pub(crate) fn fail_send(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        wqe: &Outstanding,
        fault: WqeFault,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        self.error_send(now_ps, qp, wqe.opcode, wqe.index, fault, fx);
        qp.sq.retired = wqe.position.wrapping_add(wqe.blocks);
        qp.state = QpState::Err;
        self.qp_changes += 1;
        self.flush(now_ps, qp, mem, fx);
    }

    /// The next receive has failed: it completes in error, and the rest is flushed.
    pub(crate) fn fail_receive(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        fault: WqeFault,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        self.error_receive(now_ps, qp, fault, fx);
        qp.state = QpState::Err;
        self.qp_changes += 1;
        self.flush(now_ps, qp, mem, fx);
    }

    fn error_receive(&mut self, now_ps: u64, qp: &mut QueuePair, fault: WqeFault, fx: &mut Effects) {
        let (qpn, user_index) = (qp.qpn, qp.attr.user_index);
        let cqe = cqe::error(Side::Responder, qpn, user_index, qp.rq.consumer, fault.syndrome, fault.vendor);
        self.complete_receive(now_ps, qp, cqe, fx);
    }

    /// The queue pair fails for a reason that no CQE of its own tells.
    pub(crate) fn fail_qp(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        cause: FailureCause,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        if matches!(qp.state, QpState::Reset | QpState::Err) {
            return;
        }
        qp.state = QpState::Err;
        self.qp_changes += 1;
        fx.async_events.push(AsyncEvent::QpFatal { qpn: qp.qpn, cause });
        self.flush(now_ps, qp, mem, fx);
    }

    /// Completes everything that is posted with the flush syndrome, signalled or not.
    pub(crate) fn flush(&mut self, now_ps: u64, qp: &mut QueuePair, mem: &mut dyn Dma, fx: &mut Effects) {
        qp.sq.outstanding.clear();
        qp.sq.sending = None;
        qp.sq.reads = 0;
        qp.sq.executed.clear();
        qp.sq.waits_for_receiver = false;
        qp.rq.inbound = None;
        while qp.sq.retired != qp.sq.producer {
            let mut head = [0; SEGMENT_BYTES];
            if qp.read_send_ring(qp.sq.retired, &mut head, mem).is_err() {
                qp.sq.retired = qp.sq.producer;
                break;
            }
            let control = Control::parse(&head);
            if control.completion != Completion::OnFirstError || !qp.sq.error_reported {
                self.error_send(now_ps, qp, control.opcode, control.index, FLUSHED, fx);
            }
            let left = qp.sq.producer.wrapping_sub(qp.sq.retired);
            qp.sq.retired = qp.sq.retired.wrapping_add(control.blocks().min(left));
        }
        qp.sq.fetch = qp.sq.retired;
        if qp.attr.no_rq || qp.refresh_receives(mem).is_err() {
            return;
        }
        while qp.rq.consumer != qp.rq.producer {
            self.error_receive(now_ps, qp, FLUSHED, fx);
        }
    }
}
