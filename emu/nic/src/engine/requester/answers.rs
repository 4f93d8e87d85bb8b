//! Answers to a requester (RC): what comes back, or does not.

use super::Requester;
use crate::cqe::{syndrome, vendor};
use crate::cx::Cx;
use crate::effects::{Effects, Work};
use crate::engine::datapath::Datapath;
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::psn::{part, psn_add, psn_ahead};
use crate::qp::QpState;
use crate::queue_pair::QueuePair;
use crate::queue_pair::send_queue::Awaited;
use crate::timing::{receiver_not_ready_ps, response_timeout_ps};
use crate::transport::Transport;
use crate::wqe::{WqeFault, opcode};

/// Nothing was received from the peer, too often.
const NO_ANSWER: WqeFault = WqeFault { syndrome: syndrome::RETRY_EXCEEDED, vendor: vendor::NO_ANSWER };
/// The peer had no receive, too often.
const NO_RECEIVE: WqeFault = WqeFault { syndrome: syndrome::RNR_RETRY_EXCEEDED, vendor: vendor::NO_RECEIVE };
/// The peer found the request malformed, or longer than its receive.
const REMOTE_INVALID_REQUEST: WqeFault =
    WqeFault { syndrome: syndrome::REMOTE_INVALID_REQUEST, vendor: vendor::REMOTE_INVALID_REQUEST };
/// The peer does not allow the access.
const REMOTE_ACCESS: WqeFault = WqeFault { syndrome: syndrome::REMOTE_ACCESS, vendor: vendor::REMOTE_ACCESS };
/// The peer failed for a reason of its own.
const REMOTE_OPERATION: WqeFault = WqeFault { syndrome: syndrome::REMOTE_OPERATION, vendor: vendor::REMOTE_OPERATION };

impl Requester {
    /// Something should be received within the timeout after `at_ps`. One timer per queue pair follows the deadline.
    pub(super) fn expect_answer(at_ps: u64, qp: &mut QueuePair, fx: &mut Effects) {
        let Some(timeout_ps) = response_timeout_ps(qp.path.timeout) else { return };
        qp.sq.deadline_ps = at_ps + timeout_ps;
        if !qp.sq.deadline_timer {
            qp.sq.deadline_timer = true;
            fx.timer(qp.sq.deadline_ps, Work::Retransmit { qpn: qp.qpn });
        }
    }

    pub(crate) fn retransmit_timer(dp: &mut Datapath, qp: &mut QueuePair, cx: &mut Cx<'_>) {
        qp.sq.deadline_timer = false;
        if qp.state != QpState::Rts || qp.sq.waits_for_receiver || qp.sq.outstanding.is_empty() {
            return;
        }
        if cx.now_ps < qp.sq.deadline_ps {
            qp.sq.deadline_timer = true;
            cx.fx.timer(qp.sq.deadline_ps, Work::Retransmit { qpn: qp.qpn });
            return;
        }
        cx.log.counters.rc_timeouts += 1;
        Self::go_back(dp, qp, cx);
    }

    /// The receiver has had the time it asked for.
    pub(crate) fn receiver_ready(dp: &mut Datapath, qp: &mut QueuePair, epoch: u32, cx: &mut Cx<'_>) {
        if qp.sq.waits_for_receiver && qp.sq.epoch == epoch {
            qp.sq.waits_for_receiver = false;
            dp.port.wake(cx.now_ps, qp, cx.fx);
        }
    }

    /// An acknowledgement has arrived.
    pub(crate) fn acknowledged(dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        let Extension::Acknowledge(acknowledgement) = packet.extension else { return };
        if qp.state != QpState::Rts || qp.attr.transport != Transport::Rc {
            return;
        }
        let psn = packet.psn;
        let upto = match acknowledgement {
            Acknowledgement::Positive => psn_add(psn, 1),
            // Everything before what was refused has arrived.
            _ => psn,
        };
        if psn_ahead(upto, qp.sq.unacknowledged).is_none() {
            return;
        }
        let barrier = qp.sq.read_barrier();
        let beyond_read = barrier.filter(|&barrier| psn_ahead(upto, barrier).is_some_and(|ahead| ahead > 0));
        Self::advance(dp, qp, beyond_read.unwrap_or(upto), cx);
        if qp.state != QpState::Rts {
            return;
        }
        if beyond_read.is_some() {
            // The responder has gone past a read whose responses we lack: they are lost.
            Self::gap(dp, qp, cx);
            return;
        }
        if qp.sq.unacknowledged != psn || qp.sq.waits_for_receiver {
            return;
        }
        let failure = match acknowledgement {
            Acknowledgement::Positive => return,
            Acknowledgement::SequenceError => return Self::gap(dp, qp, cx),
            Acknowledgement::ReceiverNotReady { timer } => {
                return Self::receiver_not_ready(dp, qp, timer, cx);
            }
            Acknowledgement::InvalidRequest => REMOTE_INVALID_REQUEST,
            Acknowledgement::RemoteAccess => REMOTE_ACCESS,
            Acknowledgement::RemoteOperation => REMOTE_OPERATION,
        };
        Self::fail_oldest(dp, qp, failure, cx);
    }

    /// The answer to an atomic request, or part of that to a read request, has arrived.
    pub(crate) fn response(&self, dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        if qp.state != QpState::Rts {
            return;
        }
        let Some(expected) = qp.sq.read_barrier() else { return };
        match psn_ahead(packet.psn, expected) {
            None => return,
            Some(0) => {}
            Some(_) => {
                Self::advance(dp, qp, expected, cx);
                return Self::gap(dp, qp, cx);
            }
        }
        let mtu = self.segment_bytes(qp);
        let read = qp.sq.outstanding.iter_mut().find(|wqe| matches!(wqe.awaited, Awaited::Response(_)));
        let Some(read) = read else { return };
        let Awaited::Response(segments) = &read.awaited else { return };
        let number = psn_ahead(packet.psn, read.first_psn).unwrap_or(0);
        let (offset, len) = part(number, mtu, read.len);
        let atomic = matches!(read.opcode, opcode::ATOMIC_CS | opcode::ATOMIC_FA);
        let stored = if let (Extension::AtomicAcknowledge { original }, true) = (packet.extension, atomic) {
            dp.keys.scatter(qp.attr.pd, segments, 0, &original.to_le_bytes(), cx.mem)
        } else if packet.operation == Operation::ReadResponse
            && !atomic
            && packet.payload.len() as u64 == u64::from(len)
        {
            dp.keys.scatter(qp.attr.pd, segments, u64::from(offset), &packet.payload, cx.mem)
        } else {
            Err(WqeFault { syndrome: syndrome::BAD_RESPONSE, vendor: vendor::LENGTH })
        };
        match stored {
            Ok(touched) => {
                dp.pcie.write_traffic(cx.now_ps, touched);
                Self::advance(dp, qp, psn_add(packet.psn, 1), cx);
            }
            Err(fault) => {
                // The response acknowledges everything before the read, so the failure is next in turn.
                read.awaited = Awaited::Failed(fault);
                let first_psn = read.first_psn;
                qp.sq.reads -= 1;
                Self::advance(dp, qp, first_psn, cx);
            }
        }
    }

    /// Everything before `upto` has arrived.
    fn advance(dp: &mut Datapath, qp: &mut QueuePair, upto: u32, cx: &mut Cx<'_>) {
        let sq = &mut qp.sq;
        // After going back, answers to what was sent before still come in; only what has been sent again counts.
        let sent = psn_ahead(sq.sent_psn(), sq.unacknowledged).unwrap_or(0);
        let ahead = psn_ahead(upto, sq.unacknowledged).unwrap_or(0).min(sent);
        if ahead > 0 {
            sq.unacknowledged = psn_add(sq.unacknowledged, ahead);
            sq.retries_left = qp.path.retry_cnt;
            sq.rnr_retries_left = qp.path.rnr_retry;
            // The sequence wraps, so the same number may be lost again.
            sq.went_back_to = None;
            Self::expect_answer(cx.now_ps, qp, cx.fx);
        }
        Self::retire(dp, qp, cx);
        if qp.state == QpState::Rts && qp.sq.has_work() {
            dp.port.wake(cx.now_ps, qp, cx.fx);
        }
    }

    /// Completes what is complete, oldest first.
    fn retire(dp: &mut Datapath, qp: &mut QueuePair, cx: &mut Cx<'_>) {
        while let Some(wqe) = qp.sq.outstanding.front() {
            let end = psn_add(wqe.first_psn, wqe.packets);
            let mut done_ps = cx.now_ps;
            let fault = match &wqe.awaited {
                Awaited::Failed(fault) => Some(*fault),
                _ if psn_ahead(qp.sq.unacknowledged, end).is_none() => return,
                Awaited::Response(_) => {
                    qp.sq.reads -= 1;
                    done_ps = cx.now_ps.max(dp.pcie.ready_ps());
                    None
                }
                Awaited::Acknowledgement => None,
            };
            let Some(wqe) = qp.sq.outstanding.pop_front() else { return };
            if let Some(fault) = fault {
                return dp.fail_send(qp, &wqe, fault, cx);
            }
            dp.completions.complete_send(done_ps, qp, &wqe, cx.fx);
        }
    }

    /// Something before what arrived is missing; go back once, however often it is reported.
    fn gap(dp: &mut Datapath, qp: &mut QueuePair, cx: &mut Cx<'_>) {
        if qp.state == QpState::Rts && qp.sq.went_back_to != Some(qp.sq.unacknowledged) {
            qp.sq.went_back_to = Some(qp.sq.unacknowledged);
            Self::go_back(dp, qp, cx);
        }
    }

    fn go_back(dp: &mut Datapath, qp: &mut QueuePair, cx: &mut Cx<'_>) {
        if qp.sq.retries_left == 0 {
            return Self::fail_oldest(dp, qp, NO_ANSWER, cx);
        }
        qp.sq.retries_left -= 1;
        cx.log.counters.rc_go_backs += 1;
        qp.sq.rewind();
        dp.port.wake(cx.now_ps, qp, cx.fx);
        Self::expect_answer(cx.now_ps, qp, cx.fx);
    }

    fn receiver_not_ready(dp: &mut Datapath, qp: &mut QueuePair, timer: u8, cx: &mut Cx<'_>) {
        const FOR_EVER: u8 = 7;
        if qp.path.rnr_retry != FOR_EVER {
            if qp.sq.rnr_retries_left == 0 {
                return Self::fail_oldest(dp, qp, NO_RECEIVE, cx);
            }
            qp.sq.rnr_retries_left -= 1;
        }
        qp.sq.rewind();
        qp.sq.waits_for_receiver = true;
        qp.sq.epoch = qp.sq.epoch.wrapping_add(1);
        let at_ps = cx.now_ps + receiver_not_ready_ps(timer);
        cx.fx.timer(at_ps, Work::ReceiverReady { qpn: qp.qpn, epoch: qp.sq.epoch });
    }

    fn fail_oldest(dp: &mut Datapath, qp: &mut QueuePair, fault: WqeFault, cx: &mut Cx<'_>) {
        if let Some(wqe) = qp.sq.outstanding.pop_front() {
            dp.fail_send(qp, &wqe, fault, cx);
        }
    }
}
