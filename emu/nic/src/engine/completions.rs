//! Completion queues, and CQEs on their way to them.

use crate::cq::{Cq, Written};
use crate::cqe::{self, Cqe, Side};
use crate::cx::Cx;
use crate::effects::{CqEvent, Effects, FailureCause, Work};
use crate::note::{CqeNote, Note};
use crate::queue_pair::QueuePair;
use crate::queue_pair::send_queue::Outstanding;
use crate::table::{Slots, Table};
use crate::wqe::{Completion, WqeFault};

/// A CQE on its way to its ring.
#[derive(Debug)]
pub(crate) struct PendingCqe {
    /// The queue pair, and its life: a CQE of an earlier one is not written.
    pub(crate) qpn: u32,
    pub(crate) life: u32,
    pub(crate) cqn: u32,
    cqe: Cqe,
    solicited: bool,
    error: bool,
    /// An event follows even if the queue is not armed.
    event: bool,
}

/// All completion queues, and the CQEs that they do not have yet.
#[derive(Debug)]
pub(crate) struct Completions {
    pub(crate) queues: Table<Cq>,
    pending: Slots<PendingCqe>,
    latency_ps: u64,
}

impl Completions {
    /// None; numbers of queues begin with `first`, and a CQE is in memory `latency_ps` after its work is done.
    pub(crate) fn new(first: u32, latency_ps: u64) -> Self {
        Self { queues: Table::new(first), pending: Slots::new(), latency_ps }
    }

    fn push(&mut self, at_ps: u64, cqe: PendingCqe, fx: &mut Effects) {
        let slot = self.pending.insert(cqe);
        fx.timer(at_ps, Work::Cqe { slot });
    }

    /// Takes a CQE whose time has come.
    pub(crate) fn take(&mut self, slot: u32) -> Option<PendingCqe> {
        self.pending.take(slot)
    }

    /// A CQE reaches its ring.
    ///
    /// # Errors
    /// Why its completion queue has failed.
    pub(crate) fn write(&mut self, pending: &mut PendingCqe, cx: &mut Cx<'_>) -> Result<(), FailureCause> {
        let cqn = pending.cqn;
        let Some(cq) = self.queues.get_mut(cqn) else { return Ok(()) };
        cqe::stamp(&mut pending.cqe, cx.now_ps);
        let owner = cq.next_owner();
        // An error always counts as solicited.
        let written = cq.write(pending.cqe, pending.solicited || pending.error, cx.mem);
        match written {
            Written::Quiet | Written::Event | Written::Held { .. } => {
                cx.log.counters.cqes += 1;
                cx.log.counters.error_cqes += u64::from(pending.error);
                let target = cq.attr.target;
                cx.log.note(cx.now_ps, || Note::Cqe(CqeNote::new(cqn, &pending.cqe, pending.error, owner)));
                if pending.event || written == Written::Event {
                    cq.announced();
                    Self::raise(CqEvent { cqn, target }, cx);
                } else {
                    cq.wrote_quietly(cx.now_ps);
                }
                if let Written::Held { first, period_us } = written {
                    cx.fx.timer(cx.now_ps + u64::from(period_us) * 1_000_000, Work::Period { cqn, first });
                }
                Ok(())
            }
            Written::Overrun => {
                cx.log.counters.cq_overruns += 1;
                let progress = cq.progress();
                Err(FailureCause::Overrun { consumer_index: progress.consumer, depth: progress.depth })
            }
            Written::Unreachable(fault) => Err(FailureCause::QueueMemory { addr: fault.addr }),
            Written::Dead => Ok(()),
        }
    }

    /// An arm doorbell has reached the card.
    pub(crate) fn arm(&mut self, cqn: u32, consumer_index: u32, solicited_only: bool, cx: &mut Cx<'_>) {
        let Some(cq) = self.queues.get_mut(cqn) else { return };
        if cq.arm(consumer_index, solicited_only) {
            cq.announced();
            Self::raise(CqEvent { cqn, target: cq.attr.target }, cx);
        }
    }

    /// A period of moderation is over.
    pub(crate) fn period_over(&mut self, cqn: u32, first: u32, cx: &mut Cx<'_>) {
        let Some(cq) = self.queues.get_mut(cqn) else { return };
        if cq.period_over(first) {
            cq.announced();
            Self::raise(CqEvent { cqn, target: cq.attr.target }, cx);
        }
    }

    /// Raises a completion event.
    fn raise(event: CqEvent, cx: &mut Cx<'_>) {
        cx.log.counters.cq_events += 1;
        cx.log.note(cx.now_ps, || Note::Event { cqn: event.cqn, target: event.target });
        cx.fx.events.push((cx.now_ps, event));
    }

    /// A send WQE is done at `done_ps`.
    pub(crate) fn complete_send(&mut self, done_ps: u64, qp: &mut QueuePair, wqe: &Outstanding, fx: &mut Effects) {
        qp.sq.retired = wqe.position.wrapping_add(wqe.blocks);
        qp.sq.executed.retain(|position| *position != wqe.position);
        if matches!(wqe.completion, Completion::Always | Completion::AlwaysWithEvent) {
            let at_ps = (done_ps + self.latency_ps).max(qp.sq.last_cqe_ps);
            qp.sq.last_cqe_ps = at_ps;
            let cqe = cqe::requester(qp.qpn, qp.attr.user_index, wqe.opcode, wqe.index, wqe.len);
            let event = wqe.completion == Completion::AlwaysWithEvent;
            let (qpn, life, cqn) = (qp.qpn, qp.life, qp.attr.send_cq);
            self.push(at_ps, PendingCqe { qpn, life, cqn, cqe, solicited: false, error: false, event }, fx);
        }
    }

    /// A receive is done at `now_ps`, and what was written for it is in memory at `written_ps`.
    pub(crate) fn complete_receive(
        &mut self,
        now_ps: u64,
        written_ps: u64,
        qp: &mut QueuePair,
        cqe: Cqe,
        fx: &mut Effects,
    ) {
        qp.receive_completed();
        let at_ps = (now_ps + self.latency_ps).max(written_ps).max(qp.rq.last_cqe_ps);
        qp.rq.last_cqe_ps = at_ps;
        let solicited = cqe[0x3F] & 2 != 0;
        let error = cqe[0x3F] >> 4 == cqe::opcode::RESPONDER_ERROR;
        let (qpn, life, cqn) = (qp.qpn, qp.life, qp.attr.recv_cq);
        self.push(at_ps, PendingCqe { qpn, life, cqn, cqe, solicited, error, event: false }, fx);
    }

    /// A send WQE of an opcode and an index completes in error.
    pub(crate) fn fail_send(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        (opcode, index): (u8, u16),
        fault: WqeFault,
        fx: &mut Effects,
    ) {
        let at_ps = (now_ps + self.latency_ps).max(qp.sq.last_cqe_ps);
        qp.sq.last_cqe_ps = at_ps;
        let side = Side::Requester { wqe_opcode: opcode };
        let cqe = cqe::error(side, qp.qpn, qp.attr.user_index, index, fault.syndrome, fault.vendor);
        let (qpn, life, cqn) = (qp.qpn, qp.life, qp.attr.send_cq);
        self.push(at_ps, PendingCqe { qpn, life, cqn, cqe, solicited: false, error: true, event: false }, fx);
        qp.sq.error_reported = true;
    }
}
