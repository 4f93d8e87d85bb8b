//! The responder: Sends, Writes and Read requests of a peer, and the answers to them.

mod answers;
mod atomic;
mod group;
mod repeat;

use std::collections::BTreeMap;

use super::datapath::Datapath;
use crate::access::Access;
use crate::cqe::{self, Receipt, syndrome, vendor};
use crate::cx::Cx;
use crate::effects::FailureCause;
use crate::ethernet;
use crate::grh::{self, routing_header};
use crate::keys::{Keys, Ranges, Touched, write_ranges};
use crate::note::Note;
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::progress::NotReady;
use crate::psn::{packets, psn_add, psn_ahead};
use crate::queue_pair::QueuePair;
use crate::queue_pair::receive_queue::{Inbound, Response};
use crate::transport::Transport;
use crate::wqe::{MAX_MESSAGE_BYTES, WqeFault};
use answers::acknowledge;
pub use group::GroupKey;

/// Why a packet was not executed. A responder that answers reports it to its peer; others only count.
enum Refusal {
    /// No receive is posted.
    NoReceive,
    /// The request is at fault.
    Request(Acknowledgement),
    /// The receive is at fault; it completes in error.
    Receive(WqeFault, Acknowledgement),
    /// The queue is at fault.
    Queue(FailureCause),
}

impl From<FailureCause> for Refusal {
    fn from(cause: FailureCause) -> Self {
        Self::Queue(cause)
    }
}

const INVALID: Refusal = Refusal::Request(Acknowledgement::InvalidRequest);
const TOO_LONG: WqeFault = WqeFault { syndrome: syndrome::LOCAL_LENGTH, vendor: vendor::RECEIVE_LENGTH };

/// The receiving side of all queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Group keys of UC queue pairs, by queue pair and key.
    group_keys: BTreeMap<(u32, u32), GroupKey>,
}

impl Responder {
    /// A request has arrived.
    pub(crate) fn respond(&self, dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        match qp.attr.transport {
            Transport::Rc => self.respond_reliably(dp, qp, packet, cx),
            Transport::Uc if packet.destination.is_multicast() => self.respond_to_group(dp, qp, packet, cx),
            Transport::Uc => self.respond_unreliably(dp, qp, packet, cx),
            Transport::Ud => Self::datagram(dp, qp, packet, cx),
            Transport::Ethernet => Self::frame(dp, qp, packet, cx),
        }
    }

    /// A frame that steering has led here.
    fn frame(dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        match Self::receive_whole(dp, qp, packet, &[], cx) {
            Ok(len) => {
                let found = ethernet::parse(&packet.payload);
                let cqe = cqe::frame(&packet.payload, &found, (qp.qpn, qp.attr.user_index), qp.rq.consumer, len);
                let qpn = qp.qpn;
                cx.log.note(cx.now_ps, || Note::Completed { qpn, packet: packet.into() });
                dp.complete_receive(qp, cqe, cx);
            }
            Err(refusal) => Self::refuse_datagram(dp, qp, refusal, cx),
        }
    }

    fn datagram(dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        let whole = packet.operation == Operation::Send && packet.first && packet.last && packet.invalidate.is_none();
        let (Extension::Datagram { qkey, source_qpn }, true) = (packet.extension, whole) else {
            cx.log.counters.qp_drops += 1;
            return;
        };
        if qkey != qp.path.qkey {
            cx.log.counters.qkey_drops += 1;
            qp.rq.qkey_drops += 1;
            return;
        }
        match Self::receive_whole(dp, qp, packet, &routing_header(packet), cx) {
            Ok(len) => complete_inbound(dp, qp, packet, source_qpn, len, cx),
            Err(refusal) => Self::refuse_datagram(dp, qp, refusal, cx),
        }
    }

    fn refuse_datagram(dp: &mut Datapath, qp: &mut QueuePair, refusal: Refusal, cx: &mut Cx<'_>) {
        match refusal {
            Refusal::NoReceive => drop_without_receive(qp, cx),
            Refusal::Request(_) => cx.log.counters.qp_drops += 1,
            Refusal::Receive(fault, _) => dp.fail_receive(qp, fault, cx),
            Refusal::Queue(cause) => dp.fail_qp(qp, cause, cx),
        }
    }

    /// Puts a message of one packet into the next receive, behind `header`; gives the bytes of both.
    fn receive_whole(
        dp: &mut Datapath,
        qp: &mut QueuePair,
        packet: &Packet,
        header: &[u8],
        cx: &mut Cx<'_>,
    ) -> Result<u32, Refusal> {
        if dp.posted_receives(qp, cx)? == 0 {
            return Err(Refusal::NoReceive);
        }
        let capacity = dp.load_receive(qp, cx)?;
        let len = header.len() + packet.payload.len();
        if len as u64 > capacity {
            return Err(Refusal::Receive(TOO_LONG, Acknowledgement::InvalidRequest));
        }
        let stored = |fault| Refusal::Receive(fault, Acknowledgement::RemoteOperation);
        let (pd, segments) = (dp.receive_pd(qp), &qp.rq.segments);
        for (at, bytes) in [(0, header), (header.len() as u64, &packet.payload[..])] {
            if !bytes.is_empty() {
                let touched = dp.keys.scatter(pd, segments, at, bytes, cx.mem).map_err(stored)?;
                dp.pcie.write_traffic(cx.now_ps, touched);
            }
        }
        Ok(len as u32)
    }

    pub(crate) fn respond_unreliably(&self, dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        if !matches!(packet.operation, Operation::Send | Operation::Write) || packet.invalidate.is_some() {
            cx.log.counters.qp_drops += 1;
            return;
        }
        let in_sequence = packet.psn == qp.rq.expected_psn;
        qp.rq.expected_psn = psn_add(packet.psn, 1);
        if !in_sequence || packet.first {
            // What was being received stays incomplete: no CQE, and its receive serves the next message.
            qp.rq.inbound = None;
        }
        if !packet.first && qp.rq.inbound.is_none() {
            cx.log.counters.uc_gap_drops += 1;
            return;
        }
        let refusal = match self.execute(dp, qp, packet, cx) {
            Ok(_) => return,
            Err(refusal) => refusal,
        };
        qp.rq.inbound = None;
        match refusal {
            Refusal::NoReceive => drop_without_receive(qp, cx),
            Refusal::Request(_) => cx.log.counters.access_drops += 1,
            Refusal::Receive(fault, _) => dp.fail_receive(qp, fault, cx),
            Refusal::Queue(cause) => dp.fail_qp(qp, cause, cx),
        }
    }

    fn respond_reliably(&self, dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        let expected = qp.rq.expected_psn;
        match psn_ahead(packet.psn, expected) {
            Some(0) => {}
            Some(_) => {
                if !qp.rq.nak_sent {
                    qp.rq.nak_sent = true;
                    cx.log.counters.rc_out_of_sequence += 1;
                    acknowledge(dp, qp, expected, Acknowledgement::SequenceError, cx);
                }
                return;
            }
            None => return Self::respond_again(dp, qp, packet, cx),
        }
        qp.rq.nak_sent = false;
        let refusal = match self.execute(dp, qp, packet, cx) {
            Ok(psns) => {
                qp.rq.expected_psn = psn_add(packet.psn, psns);
                if packet.last {
                    qp.rq.message_number = psn_add(qp.rq.message_number, 1);
                }
                if packet.ack_request && !packet.operation.is_fetch() {
                    acknowledge(dp, qp, packet.psn, Acknowledgement::Positive, cx);
                }
                return;
            }
            Err(refusal) => refusal,
        };
        let psn = packet.psn;
        match refusal {
            Refusal::NoReceive => {
                qp.rq.nak_sent = true;
                qp.rq.not_ready.get_or_insert(NotReady { naks: 0, since_ps: cx.now_ps }).naks += 1;
                cx.log.counters.rnr_naks += 1;
                let timer = qp.path.min_rnr_timer;
                acknowledge(dp, qp, psn, Acknowledgement::ReceiverNotReady { timer }, cx);
            }
            Refusal::Request(acknowledgement) => {
                acknowledge(dp, qp, psn, acknowledgement, cx);
                let cause = if acknowledgement == Acknowledgement::InvalidRequest {
                    FailureCause::InvalidRequest
                } else {
                    cx.log.counters.remote_access_errors += 1;
                    FailureCause::RemoteAccess
                };
                dp.fail_qp(qp, cause, cx);
            }
            Refusal::Receive(fault, acknowledgement) => {
                acknowledge(dp, qp, psn, acknowledgement, cx);
                dp.fail_receive(qp, fault, cx);
            }
            Refusal::Queue(cause) => {
                acknowledge(dp, qp, psn, Acknowledgement::RemoteOperation, cx);
                dp.fail_qp(qp, cause, cx);
            }
        }
    }

    /// Executes the packet that is next in sequence; gives the PSNs that it takes.
    fn execute(&self, dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) -> Result<u32, Refusal> {
        let (len, mtu) = (packet.payload.len(), qp.path.path_mtu.bytes() as usize);
        if len > mtu || (!packet.last && len != mtu) || (packet.first && qp.rq.inbound.is_some()) {
            return Err(INVALID);
        }
        match packet.operation {
            Operation::Send => Self::receive_send(dp, qp, packet, cx).map(|()| 1),
            Operation::Write => self.receive_write(dp, qp, packet, cx).map(|()| 1),
            Operation::ReadRequest => Self::receive_read(dp, qp, packet, cx),
            Operation::CompareSwap | Operation::FetchAdd => Self::receive_atomic(dp, qp, packet, cx),
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge => Err(INVALID),
        }
    }

    fn receive_send(dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        if packet.first {
            if dp.posted_receives(qp, cx)? == 0 {
                return Err(Refusal::NoReceive);
            }
            let capacity = dp.load_receive(qp, cx)?;
            qp.rq.inbound = Some(Inbound::Send { received: 0, capacity });
        }
        let Some(Inbound::Send { received, capacity }) = qp.rq.inbound else { return Err(INVALID) };
        let total = received + packet.payload.len() as u64;
        if total > capacity || total > MAX_MESSAGE_BYTES {
            return Err(Refusal::Receive(TOO_LONG, Acknowledgement::InvalidRequest));
        }
        let touched = dp
            .keys
            .scatter(dp.receive_pd(qp), &qp.rq.segments, received, &packet.payload, cx.mem)
            .map_err(|fault| Refusal::Receive(fault, Acknowledgement::RemoteOperation))?;
        dp.pcie.write_traffic(cx.now_ps, touched);
        if packet.last {
            if let Some(key) = packet.invalidate {
                let invalidated = dp.keys.invalidate(key, qp.attr.pd);
                invalidated.map_err(|_| Refusal::Request(Acknowledgement::RemoteAccess))?;
            }
            qp.rq.inbound = None;
            complete_inbound(dp, qp, packet, qp.path.dest_qpn, total as u32, cx);
        } else {
            qp.rq.inbound = Some(Inbound::Send { received: total, capacity });
        }
        Ok(())
    }

    fn receive_write(
        &self,
        dp: &mut Datapath,
        qp: &mut QueuePair,
        packet: &Packet,
        cx: &mut Cx<'_>,
    ) -> Result<(), Refusal> {
        let inbound = match packet.extension {
            Extension::Remote { address, rkey, len } if packet.first => {
                let (address, rkey) = self.write_target(qp, packet, (address, rkey), len)?;
                remote(&dp.keys, qp, rkey, address, len, Access::REMOTE_WRITE)?;
                Some(Inbound::Write { address, rkey, len, received: 0 })
            }
            _ => qp.rq.inbound,
        };
        let Some(Inbound::Write { address, rkey, len, received }) = inbound else { return Err(INVALID) };
        let completes = packet.last && packet.immediate.is_some();
        // A reliable responder refuses before it stores; an unreliable one has stored already when it finds out.
        let reliable = qp.attr.transport == Transport::Rc;
        if completes && reliable && dp.posted_receives(qp, cx)? == 0 {
            return Err(Refusal::NoReceive);
        }
        let count = packet.payload.len() as u32;
        let total = received.checked_add(count).filter(|&total| total <= len).ok_or(INVALID)?;
        if packet.last && total != len {
            return Err(INVALID);
        }
        if count > 0 {
            let addr = address.wrapping_add(u64::from(received));
            // The key may have gone since the first packet.
            let ranges = remote(&dp.keys, qp, rkey, addr, count, Access::REMOTE_WRITE)?;
            let mut touched = Touched::default();
            write_ranges(&ranges, &packet.payload, &mut touched, cx.mem)
                .map_err(|_| Refusal::Request(Acknowledgement::RemoteOperation))?;
            dp.pcie.write_traffic(cx.now_ps, touched);
        }
        if !packet.last {
            qp.rq.inbound = Some(Inbound::Write { address, rkey, len, received: total });
            return Ok(());
        }
        qp.rq.inbound = None;
        if completes {
            if !reliable && dp.posted_receives(qp, cx)? == 0 {
                return Err(Refusal::NoReceive);
            }
            dp.take_receive(qp, cx)?;
            complete_inbound(dp, qp, packet, qp.path.dest_qpn, len, cx);
        }
        Ok(())
    }

    fn receive_read(dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) -> Result<u32, Refusal> {
        let Extension::Remote { address, rkey, len } = packet.extension else { return Err(INVALID) };
        let limit = qp.path.max_dest_rd_atomic;
        if u64::from(len) > MAX_MESSAGE_BYTES || qp.rq.fetches_exhausted(cx.now_ps, limit) {
            return Err(INVALID);
        }
        remote(&dp.keys, qp, rkey, address, len, Access::REMOTE_READ)?;
        let (first_psn, count) = (packet.psn, packets(len, qp.path.path_mtu.bytes()));
        let message_number = qp.rq.remember(first_psn, count, limit);
        let read = Response::Read { address, rkey, len, packet: 0, first_psn, message_number };
        qp.rq.responses.push_back(read);
        dp.port.wake(cx.now_ps, qp, cx.fx);
        Ok(count)
    }
}

fn drop_without_receive(qp: &mut QueuePair, cx: &mut Cx<'_>) {
    cx.log.counters.rnr_drops += 1;
    qp.rq.rnr_drops += 1;
}

/// Checks a peer's access: the queue pair's rights, then the key's. An empty access needs no key.
fn remote(keys: &Keys, qp: &QueuePair, rkey: u32, addr: u64, len: u32, needed: Access) -> Result<Ranges, Refusal> {
    let refused = Refusal::Request(Acknowledgement::RemoteAccess);
    if !qp.path.access.contains(needed) {
        return Err(refused);
    }
    if len == 0 {
        return Ok(Ranges::Many(Vec::new()));
    }
    if keys.queue_of(rkey).is_some_and(|queue| queue != qp.qpn) {
        return Err(refused);
    }
    keys.translate(rkey, qp.attr.pd, addr, u64::from(len), needed).map_err(|_| refused)
}

/// A message is complete and takes the next receive.
fn complete_inbound(
    dp: &mut Datapath,
    qp: &mut QueuePair,
    packet: &Packet,
    source_qpn: u32,
    byte_count: u32,
    cx: &mut Cx<'_>,
) {
    let opcode = match (packet.operation, packet.immediate) {
        _ if packet.invalidate.is_some() => cqe::opcode::RESPONDER_SEND_INVALIDATE,
        (Operation::Write, _) => cqe::opcode::RESPONDER_WRITE_IMMEDIATE,
        (_, Some(_)) => cqe::opcode::RESPONDER_SEND_IMMEDIATE,
        (_, None) => cqe::opcode::RESPONDER_SEND,
    };
    let cqe = cqe::responder(&Receipt {
        opcode,
        qpn: qp.qpn,
        user_index: qp.attr.user_index,
        source_qpn,
        has_grh: qp.attr.transport == Transport::Ud,
        routing_header: grh::kind(packet),
        // One field holds either.
        immediate: packet.immediate.or(packet.invalidate.map(u32::to_be_bytes)).unwrap_or_default(),
        byte_count,
        index: qp.rq.consumer,
        solicited: packet.solicited,
    });
    let qpn = qp.qpn;
    qp.rq.not_ready = None;
    cx.log.note(cx.now_ps, || Note::Completed { qpn, packet: packet.into() });
    dp.complete_receive(qp, cqe, cx);
}
