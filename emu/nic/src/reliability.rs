//! RC: what comes back to the sending side, or does not.

use crate::cqe::{syndrome, vendor};
use crate::effects::{Effects, Work};
use crate::memory::Dma;
use crate::nic::Nic;
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::qp::{QpState, Transport};
use crate::queue_pair::{Awaited, Outstanding, QueuePair, SendQueue, psn_add, psn_ahead};
use crate::requester::part;
use crate::timing::{receiver_not_ready_ps, response_timeout_ps};
use crate::wqe::{WqeFault, opcode};

impl SendQueue {
    /// PSN behind the last packet sent.
    fn sent_psn(&self) -> u32 {
        match self.sending {
            Some(sending) => psn_add(sending.first_psn, sending.packet),
            None => self.next_psn,
        }
    }

    /// Where acknowledgements must stop: reads complete by their responses only.
    fn read_barrier(&self) -> Option<u32> {
        let read = self.outstanding.iter().find(|wqe| matches!(wqe.awaited, Awaited::Response(_)))?;
        Some(match psn_ahead(self.unacknowledged, read.first_psn) {
            Some(_) => self.unacknowledged,
            None => read.first_psn,
        })
    }

    /// Prepares to send again from the oldest unacknowledged PSN: forgets the WQEs from there on; they are fetched again.
    fn rewind(&mut self) {
        let unacknowledged = self.unacknowledged;
        let holds =
            |wqe: &Outstanding| psn_ahead(unacknowledged, wqe.first_psn).is_some_and(|ahead| ahead < wqe.packets);
        let Some(at) = self.outstanding.iter().position(holds) else { return };
        let wqe = &self.outstanding[at];
        self.fetch = wqe.position;
        self.next_psn = wqe.first_psn;
        self.skip = psn_ahead(unacknowledged, wqe.first_psn).unwrap_or(0);
        self.sending = None;
        self.stalled = false;
        self.outstanding.truncate(at);
        self.reads = self.outstanding.iter().filter(|wqe| matches!(wqe.awaited, Awaited::Response(_))).count() as u32;
    }

    pub(crate) fn has_work(&self) -> bool {
        self.sending.is_some() || (self.fetch != self.producer && !self.stalled)
    }
}

impl Nic {
    /// Something should be heard within the timeout after `at_ps`. One timer per queue pair follows the deadline.
    pub(crate) fn expect_answer(at_ps: u64, qp: &mut QueuePair, fx: &mut Effects) {
        let Some(timeout_ps) = response_timeout_ps(qp.path.timeout) else { return };
        qp.sq.deadline_ps = at_ps + timeout_ps;
        if !qp.sq.deadline_timer {
            qp.sq.deadline_timer = true;
            fx.timer(qp.sq.deadline_ps, Work::Retransmit { qpn: qp.qpn });
        }
    }

    pub(crate) fn retransmit_timer(&mut self, now_ps: u64, qp: &mut QueuePair, mem: &mut dyn Dma, fx: &mut Effects) {
        qp.sq.deadline_timer = false;
        if qp.state != QpState::Rts || qp.sq.waits_for_receiver || qp.sq.outstanding.is_empty() {
            return;
        }
        if now_ps < qp.sq.deadline_ps {
            qp.sq.deadline_timer = true;
            fx.timer(qp.sq.deadline_ps, Work::Retransmit { qpn: qp.qpn });
            return;
        }
        self.counters.rc_timeouts += 1;
        self.go_back(now_ps, qp, mem, fx);
    }

    /// The receiver has had the time it asked for.
    pub(crate) fn receiver_ready(&mut self, now_ps: u64, qp: &mut QueuePair, epoch: u32, fx: &mut Effects) {
        if qp.sq.waits_for_receiver && qp.sq.epoch == epoch {
            qp.sq.waits_for_receiver = false;
            self.wake(now_ps, qp, fx);
        }
    }

    /// An acknowledgement has arrived.
    pub(crate) fn acknowledged(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
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
        self.advance(now_ps, qp, beyond_read.unwrap_or(upto), mem, fx);
        if qp.state != QpState::Rts {
            return;
        }
        if beyond_read.is_some() {
            // The responder has gone past a read whose responses we lack: they are lost.
            self.gap(now_ps, qp, mem, fx);
            return;
        }
        if qp.sq.unacknowledged != psn || qp.sq.waits_for_receiver {
            return;
        }
        let failure = match acknowledgement {
            Acknowledgement::Positive => return,
            Acknowledgement::SequenceError => return self.gap(now_ps, qp, mem, fx),
            Acknowledgement::ReceiverNotReady { timer } => {
                return self.receiver_not_ready(now_ps, qp, timer, mem, fx);
            }
            Acknowledgement::InvalidRequest => syndrome::REMOTE_INVALID_REQUEST,
            Acknowledgement::RemoteAccess => syndrome::REMOTE_ACCESS,
            Acknowledgement::RemoteOperation => syndrome::REMOTE_OPERATION,
        };
        self.fail_oldest(now_ps, qp, failure, mem, fx);
    }

    /// The answer to an atomic request, or part of that to a read request, has arrived.
    pub(crate) fn response(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        if qp.state != QpState::Rts {
            return;
        }
        let Some(expected) = qp.sq.read_barrier() else { return };
        match psn_ahead(packet.psn, expected) {
            None => return,
            Some(0) => {}
            Some(_) => {
                self.advance(now_ps, qp, expected, mem, fx);
                return self.gap(now_ps, qp, mem, fx);
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
            self.scatter(qp.attr.pd, segments, 0, &original.to_le_bytes(), mem)
        } else if packet.operation == Operation::ReadResponse
            && !atomic
            && packet.payload.len() as u64 == u64::from(len)
        {
            self.scatter(qp.attr.pd, segments, u64::from(offset), &packet.payload, mem)
        } else {
            Err(WqeFault { syndrome: syndrome::BAD_RESPONSE, vendor: vendor::LENGTH })
        };
        match stored {
            Ok(touched) => {
                self.write_traffic(now_ps, touched);
                self.advance(now_ps, qp, psn_add(packet.psn, 1), mem, fx);
            }
            Err(fault) => {
                // The response acknowledges everything before the read, so the failure is next in turn.
                read.awaited = Awaited::Failed(fault);
                let first_psn = read.first_psn;
                qp.sq.reads -= 1;
                self.advance(now_ps, qp, first_psn, mem, fx);
            }
        }
    }

    /// Everything before `upto` has arrived.
    fn advance(&mut self, now_ps: u64, qp: &mut QueuePair, upto: u32, mem: &mut dyn Dma, fx: &mut Effects) {
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
            Self::expect_answer(now_ps, qp, fx);
        }
        self.retire(now_ps, qp, mem, fx);
        if qp.state == QpState::Rts && qp.sq.has_work() {
            self.wake(now_ps, qp, fx);
        }
    }

    /// Completes what is complete, oldest first.
    fn retire(&mut self, now_ps: u64, qp: &mut QueuePair, mem: &mut dyn Dma, fx: &mut Effects) {
        while let Some(wqe) = qp.sq.outstanding.front() {
            let end = psn_add(wqe.first_psn, wqe.packets);
            let mut done_ps = now_ps;
            let fault = match &wqe.awaited {
                Awaited::Failed(fault) => Some(*fault),
                _ if psn_ahead(qp.sq.unacknowledged, end).is_none() => return,
                Awaited::Response(_) => {
                    qp.sq.reads -= 1;
                    let latency_ps = self.config.timing.completion_latency_ps;
                    done_ps = now_ps.max(self.engines.pcie_write_busy_ps.saturating_sub(latency_ps));
                    None
                }
                Awaited::Acknowledgement => None,
            };
            let Some(wqe) = qp.sq.outstanding.pop_front() else { return };
            if let Some(fault) = fault {
                return self.fail_send(now_ps, qp, &wqe, fault, mem, fx);
            }
            self.complete_send(done_ps, qp, &wqe, fx);
        }
    }

    /// Something before what arrived is missing; go back once, however often we are told.
    fn gap(&mut self, now_ps: u64, qp: &mut QueuePair, mem: &mut dyn Dma, fx: &mut Effects) {
        if qp.state == QpState::Rts && qp.sq.went_back_to != Some(qp.sq.unacknowledged) {
            qp.sq.went_back_to = Some(qp.sq.unacknowledged);
            self.go_back(now_ps, qp, mem, fx);
        }
    }

    fn go_back(&mut self, now_ps: u64, qp: &mut QueuePair, mem: &mut dyn Dma, fx: &mut Effects) {
        if qp.sq.retries_left == 0 {
            return self.fail_oldest(now_ps, qp, syndrome::RETRY_EXCEEDED, mem, fx);
        }
        qp.sq.retries_left -= 1;
        self.counters.rc_go_backs += 1;
        qp.sq.rewind();
        self.wake(now_ps, qp, fx);
        Self::expect_answer(now_ps, qp, fx);
    }

    fn receiver_not_ready(&mut self, now_ps: u64, qp: &mut QueuePair, timer: u8, mem: &mut dyn Dma, fx: &mut Effects) {
        const FOR_EVER: u8 = 7;
        if qp.path.rnr_retry != FOR_EVER {
            if qp.sq.rnr_retries_left == 0 {
                return self.fail_oldest(now_ps, qp, syndrome::RNR_RETRY_EXCEEDED, mem, fx);
            }
            qp.sq.rnr_retries_left -= 1;
        }
        qp.sq.rewind();
        qp.sq.waits_for_receiver = true;
        qp.sq.epoch = qp.sq.epoch.wrapping_add(1);
        let at_ps = now_ps + receiver_not_ready_ps(timer);
        fx.timer(at_ps, Work::ReceiverReady { qpn: qp.qpn, epoch: qp.sq.epoch });
    }

    fn fail_oldest(&mut self, now_ps: u64, qp: &mut QueuePair, syndrome: u8, mem: &mut dyn Dma, fx: &mut Effects) {
        if let Some(wqe) = qp.sq.outstanding.pop_front() {
            self.fail_send(now_ps, qp, &wqe, WqeFault { syndrome, vendor: 0 }, mem, fx);
        }
    }
}
