//! The error state of a queue pair: what fails completes in error, and the rest is flushed.

use super::datapath::Datapath;
use crate::access::Access;
use crate::cqe::{self, Cqe, Side, syndrome, vendor};
use crate::cx::Cx;
use crate::effects::{AsyncEvent, FailureCause};
use crate::progress::RefusedEntry;
use crate::qp::QpState;
use crate::queue_pair::QueuePair;
use crate::queue_pair::send_queue::Outstanding;
use crate::wqe::{Completion, Control, SEGMENT_BYTES, WqeFault};

const FLUSHED: WqeFault = WqeFault { syndrome: syndrome::FLUSHED, vendor: vendor::FLUSHED };

impl Datapath {
    /// The oldest send WQE that is not complete has failed: it completes in error, and the rest is flushed.
    pub(crate) fn fail_send(&mut self, qp: &mut QueuePair, wqe: &Outstanding, fault: WqeFault, cx: &mut Cx<'_>) {
        self.completions.fail_send(cx.now_ps, qp, (wqe.opcode, wqe.index), fault, cx.fx);
        qp.sq.retired = wqe.position.wrapping_add(wqe.blocks);
        self.enter_error(qp, cx);
    }

    /// The next receive has failed: it completes in error, and the rest is flushed.
    pub(crate) fn fail_receive(&mut self, qp: &mut QueuePair, fault: WqeFault, cx: &mut Cx<'_>) {
        let segment = self.keys.first_refused(self.receive_pd(qp), qp.rq.segments.iter().copied(), Access::LOCAL_WRITE);
        cx.fx.refused.extend(RefusedEntry::new((qp.qpn, false, qp.rq.consumer), (0, 0), fault, segment));
        self.error_receive(qp, fault, cx);
        self.enter_error(qp, cx);
    }

    /// The queue pair fails for a reason that no CQE of its own reports.
    pub(crate) fn fail_qp(&mut self, qp: &mut QueuePair, cause: FailureCause, cx: &mut Cx<'_>) {
        if matches!(qp.state, QpState::Reset | QpState::Err) {
            return;
        }
        cx.fx.async_events.push(AsyncEvent::QpFatal { qpn: qp.qpn, cause });
        self.enter_error(qp, cx);
    }

    fn enter_error(&mut self, qp: &mut QueuePair, cx: &mut Cx<'_>) {
        qp.state = QpState::Err;
        self.state_changes += 1;
        self.flush(qp, cx);
    }

    /// A receive is done now.
    pub(crate) fn complete_receive(&mut self, qp: &mut QueuePair, cqe: Cqe, cx: &mut Cx<'_>) {
        self.completions.complete_receive(cx.now_ps, self.pcie.written_ps(), qp, cqe, cx.fx);
    }

    fn error_receive(&mut self, qp: &mut QueuePair, fault: WqeFault, cx: &mut Cx<'_>) {
        let (qpn, user_index) = (qp.qpn, qp.attr.user_index);
        let cqe = cqe::error(Side::Responder, qpn, user_index, qp.rq.consumer, fault.syndrome, fault.vendor);
        self.complete_receive(qp, cqe, cx);
    }

    /// Completes everything that is posted with the flush syndrome, signalled or not.
    pub(crate) fn flush(&mut self, qp: &mut QueuePair, cx: &mut Cx<'_>) {
        qp.sq.outstanding.clear();
        qp.sq.sending = None;
        qp.sq.reads = 0;
        qp.sq.executed.clear();
        qp.sq.waits_for_receiver = false;
        qp.rq.inbound = None;
        while qp.sq.retired != qp.sq.producer {
            let mut head = [0; SEGMENT_BYTES];
            if qp.read_send_ring(qp.sq.retired, &mut head, cx.mem).is_err() {
                qp.sq.retired = qp.sq.producer;
                break;
            }
            let control = Control::parse(&head);
            if control.completion != Completion::OnFirstError || !qp.sq.error_reported {
                self.completions.fail_send(cx.now_ps, qp, (control.opcode, control.index), FLUSHED, cx.fx);
            }
            let left = qp.sq.producer.wrapping_sub(qp.sq.retired);
            qp.sq.retired = qp.sq.retired.wrapping_add(control.blocks().min(left));
        }
        qp.sq.fetch = qp.sq.retired;
        if let Some(share) = qp.rq.shared {
            // The other receives are for the others.
            if share.own.is_some() {
                self.error_receive(qp, FLUSHED, cx);
            }
            // Of a ring that queue pairs came to share, no program has a queue to be notified of.
            if self.shared.get(share.queue).is_some_and(|shared| !shared.temporary) {
                cx.fx.async_events.push(AsyncEvent::LastReceive { qpn: qp.qpn });
            }
            return;
        }
        if qp.attr.no_rq || qp.refresh_receives(cx.mem).is_err() {
            return;
        }
        while qp.rq.consumer != qp.rq.producer {
            self.error_receive(qp, FLUSHED, cx);
        }
    }
}
