//! The receiving side: Sends, Writes and Read requests of a peer, and the answers to them.

use crate::cqe::{self, Receipt, syndrome, vendor};
use crate::dataflow::{Touched, write_ranges};
use crate::effects::{Effects, FailureCause};
use crate::grh::{GRH_BYTES, is_ipv4, routing_header};
use crate::memory::Dma;
use crate::mkey::{Access, Ranges};
use crate::nic::Nic;
use crate::note::Note;
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::qp::Transport;
use crate::queue_pair::{Inbound, QueuePair, Response, psn_add, psn_ahead};
use crate::requester::packets;
use crate::wqe::{MAX_MESSAGE_BYTES, WqeFault};

/// Why a packet was not executed. A responder that answers tells its peer; others only count.
pub(crate) enum Refusal {
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

pub(crate) const INVALID: Refusal = Refusal::Request(Acknowledgement::InvalidRequest);
const TOO_LONG: WqeFault = WqeFault { syndrome: syndrome::LOCAL_LENGTH, vendor: vendor::RECEIVE_LENGTH };

impl Nic {
    /// A request has arrived.
    pub(crate) fn respond(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        match qp.attr.transport {
            Transport::Rc => self.respond_reliably(now_ps, qp, packet, mem, fx),
            Transport::Uc if packet.destination.is_multicast() => self.respond_to_group(now_ps, qp, packet, mem, fx),
            Transport::Uc => self.respond_unreliably(now_ps, qp, packet, mem, fx),
            Transport::Ud => self.datagram(now_ps, qp, packet, mem, fx),
        }
    }

    fn datagram(&mut self, now_ps: u64, qp: &mut QueuePair, packet: &Packet, mem: &mut dyn Dma, fx: &mut Effects) {
        let whole = packet.operation == Operation::Send && packet.first && packet.last && packet.invalidate.is_none();
        let (Extension::Datagram { qkey, source_qpn }, true) = (packet.extension, whole) else {
            self.counters.qp_drops += 1;
            return;
        };
        if qkey != qp.path.qkey {
            self.counters.qkey_drops += 1;
            qp.rq.qkey_drops += 1;
            return;
        }
        match self.receive_datagram(now_ps, qp, packet, source_qpn, mem, fx) {
            Ok(()) => {}
            Err(Refusal::NoReceive) => self.drop_without_receive(qp),
            Err(Refusal::Request(_)) => self.counters.qp_drops += 1,
            Err(Refusal::Receive(fault, _)) => self.fail_receive(now_ps, qp, fault, mem, fx),
            Err(Refusal::Queue(cause)) => self.fail_qp(now_ps, qp, cause, mem, fx),
        }
    }

    fn drop_without_receive(&mut self, qp: &mut QueuePair) {
        self.counters.rnr_drops += 1;
        qp.rq.rnr_drops += 1;
    }

    fn receive_datagram(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        source_qpn: u32,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        if qp.posted_receives(mem)? == 0 {
            return Err(Refusal::NoReceive);
        }
        let capacity = qp.load_receive(mem)?;
        let len = GRH_BYTES + packet.payload.len();
        if len as u64 > capacity {
            return Err(Refusal::Receive(TOO_LONG, Acknowledgement::InvalidRequest));
        }
        let stored = |fault| Refusal::Receive(fault, Acknowledgement::RemoteOperation);
        let (pd, segments) = (qp.attr.pd, &qp.rq.segments);
        let header = self.scatter(pd, segments, 0, &routing_header(packet), mem).map_err(stored)?;
        let body = self.scatter(pd, segments, GRH_BYTES as u64, &packet.payload, mem).map_err(stored)?;
        self.write_traffic(now_ps, header);
        self.write_traffic(now_ps, body);
        self.complete_inbound(now_ps, qp, packet, source_qpn, len as u32, fx);
        Ok(())
    }

    pub(crate) fn respond_unreliably(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        if !matches!(packet.operation, Operation::Send | Operation::Write) || packet.invalidate.is_some() {
            self.counters.qp_drops += 1;
            return;
        }
        let in_sequence = packet.psn == qp.rq.expected_psn;
        qp.rq.expected_psn = psn_add(packet.psn, 1);
        if !in_sequence || packet.first {
            // What was being received stays incomplete: no CQE, and its receive serves the next message.
            qp.rq.inbound = None;
        }
        if !packet.first && qp.rq.inbound.is_none() {
            self.counters.uc_gap_drops += 1;
            return;
        }
        let refusal = match self.execute(now_ps, qp, packet, mem, fx) {
            Ok(_) => return,
            Err(refusal) => refusal,
        };
        qp.rq.inbound = None;
        match refusal {
            Refusal::NoReceive => self.drop_without_receive(qp),
            Refusal::Request(_) => self.counters.access_drops += 1,
            Refusal::Receive(fault, _) => self.fail_receive(now_ps, qp, fault, mem, fx),
            Refusal::Queue(cause) => self.fail_qp(now_ps, qp, cause, mem, fx),
        }
    }

    fn respond_reliably(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        let expected = qp.rq.expected_psn;
        match psn_ahead(packet.psn, expected) {
            Some(0) => {}
            Some(_) => {
                if !qp.rq.nak_sent {
                    qp.rq.nak_sent = true;
                    self.counters.rc_out_of_sequence += 1;
                    self.acknowledge(now_ps, qp, expected, Acknowledgement::SequenceError, fx);
                }
                return;
            }
            None => return self.respond_again(now_ps, qp, packet, fx),
        }
        qp.rq.nak_sent = false;
        let refusal = match self.execute(now_ps, qp, packet, mem, fx) {
            Ok(psns) => {
                qp.rq.expected_psn = psn_add(packet.psn, psns);
                if packet.last {
                    qp.rq.message_number = psn_add(qp.rq.message_number, 1);
                }
                if packet.ack_request && !packet.operation.is_fetch() {
                    self.acknowledge(now_ps, qp, packet.psn, Acknowledgement::Positive, fx);
                }
                return;
            }
            Err(refusal) => refusal,
        };
        let psn = packet.psn;
        match refusal {
            Refusal::NoReceive => {
                qp.rq.nak_sent = true;
                self.counters.rnr_naks += 1;
                let timer = qp.path.min_rnr_timer;
                self.acknowledge(now_ps, qp, psn, Acknowledgement::ReceiverNotReady { timer }, fx);
            }
            Refusal::Request(acknowledgement) => {
                self.acknowledge(now_ps, qp, psn, acknowledgement, fx);
                let cause = if acknowledgement == Acknowledgement::InvalidRequest {
                    FailureCause::InvalidRequest
                } else {
                    self.counters.remote_access_errors += 1;
                    FailureCause::RemoteAccess
                };
                self.fail_qp(now_ps, qp, cause, mem, fx);
            }
            Refusal::Receive(fault, acknowledgement) => {
                self.acknowledge(now_ps, qp, psn, acknowledgement, fx);
                self.fail_receive(now_ps, qp, fault, mem, fx);
            }
            Refusal::Queue(cause) => {
                self.acknowledge(now_ps, qp, psn, Acknowledgement::RemoteOperation, fx);
                self.fail_qp(now_ps, qp, cause, mem, fx);
            }
        }
    }

    /// Executes the packet that is next in sequence; gives the PSNs that it takes.
    fn execute(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> Result<u32, Refusal> {
        let (len, mtu) = (packet.payload.len(), qp.path.path_mtu.bytes() as usize);
        if len > mtu || (!packet.last && len != mtu) || (packet.first && qp.rq.inbound.is_some()) {
            return Err(INVALID);
        }
        match packet.operation {
            Operation::Send => self.receive_send(now_ps, qp, packet, mem, fx).map(|()| 1),
            Operation::Write => self.receive_write(now_ps, qp, packet, mem, fx).map(|()| 1),
            Operation::ReadRequest => self.receive_read(now_ps, qp, packet, fx),
            Operation::CompareSwap | Operation::FetchAdd => self.receive_atomic(now_ps, qp, packet, mem, fx),
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge => Err(INVALID),
        }
    }

    fn receive_send(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        if packet.first {
            if qp.posted_receives(mem)? == 0 {
                return Err(Refusal::NoReceive);
            }
            let capacity = qp.load_receive(mem)?;
            qp.rq.inbound = Some(Inbound::Send { received: 0, capacity });
        }
        let Some(Inbound::Send { received, capacity }) = qp.rq.inbound else { return Err(INVALID) };
        let total = received + packet.payload.len() as u64;
        if total > capacity || total > MAX_MESSAGE_BYTES {
            return Err(Refusal::Receive(TOO_LONG, Acknowledgement::InvalidRequest));
        }
        let touched = self
            .scatter(qp.attr.pd, &qp.rq.segments, received, &packet.payload, mem)
            .map_err(|fault| Refusal::Receive(fault, Acknowledgement::RemoteOperation))?;
        self.write_traffic(now_ps, touched);
        if packet.last {
            if let Some(key) = packet.invalidate {
                let invalidated = self.protection.invalidate(key, qp.attr.pd);
                invalidated.map_err(|_| Refusal::Request(Acknowledgement::RemoteAccess))?;
            }
            qp.rq.inbound = None;
            self.complete_inbound(now_ps, qp, packet, qp.path.dest_qpn, total as u32, fx);
        } else {
            qp.rq.inbound = Some(Inbound::Send { received: total, capacity });
        }
        Ok(())
    }

    fn receive_write(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let inbound = match packet.extension {
            Extension::Remote { address, rkey, len } if packet.first => {
                let (address, rkey) = self.write_target(qp, packet, (address, rkey), len)?;
                self.remote(qp, rkey, address, len, Access::REMOTE_WRITE)?;
                Some(Inbound::Write { address, rkey, len, received: 0 })
            }
            _ => qp.rq.inbound,
        };
        let Some(Inbound::Write { address, rkey, len, received }) = inbound else { return Err(INVALID) };
        let completes = packet.last && packet.immediate.is_some();
        // A reliable responder refuses before it stores; an unreliable one has stored already when it finds out.
        let reliable = qp.attr.transport == Transport::Rc;
        if completes && reliable && qp.posted_receives(mem)? == 0 {
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
            let ranges = self.remote(qp, rkey, addr, count, Access::REMOTE_WRITE)?;
            let mut touched = Touched::default();
            write_ranges(&ranges, &packet.payload, &mut touched, mem)
                .map_err(|_| Refusal::Request(Acknowledgement::RemoteOperation))?;
            self.write_traffic(now_ps, touched);
        }
        if !packet.last {
            qp.rq.inbound = Some(Inbound::Write { address, rkey, len, received: total });
            return Ok(());
        }
        qp.rq.inbound = None;
        if completes {
            if !reliable && qp.posted_receives(mem)? == 0 {
                return Err(Refusal::NoReceive);
            }
            self.complete_inbound(now_ps, qp, packet, qp.path.dest_qpn, len, fx);
        }
        Ok(())
    }

    fn receive_read(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        fx: &mut Effects,
    ) -> Result<u32, Refusal> {
        let Extension::Remote { address, rkey, len } = packet.extension else { return Err(INVALID) };
        let limit = qp.path.max_dest_rd_atomic;
        if u64::from(len) > MAX_MESSAGE_BYTES || qp.rq.fetches_exhausted(now_ps, limit) {
            return Err(INVALID);
        }
        self.remote(qp, rkey, address, len, Access::REMOTE_READ)?;
        let (first_psn, count) = (packet.psn, packets(len, qp.path.path_mtu.bytes()));
        let message_number = qp.rq.remember(first_psn, count, limit);
        let read = Response::Read { address, rkey, len, packet: 0, first_psn, message_number };
        qp.rq.responses.push_back(read);
        self.wake(now_ps, qp, fx);
        Ok(count)
    }

    /// Checks a peer's access: the queue pair's rights, then the key's. An empty access needs no key.
    pub(crate) fn remote(
        &self,
        qp: &QueuePair,
        rkey: u32,
        addr: u64,
        len: u32,
        needed: Access,
    ) -> Result<Ranges, Refusal> {
        let refused = Refusal::Request(Acknowledgement::RemoteAccess);
        if !qp.path.access.contains(needed) {
            return Err(refused);
        }
        if len == 0 {
            return Ok(Ranges::Many(Vec::new()));
        }
        self.protection.translate(rkey, qp.attr.pd, addr, u64::from(len), needed).map_err(|_| refused)
    }

    /// A message is complete and takes the next receive.
    fn complete_inbound(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        source_qpn: u32,
        byte_count: u32,
        fx: &mut Effects,
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
            is_ipv4: is_ipv4(packet),
            // One field holds either.
            immediate: packet.immediate.or(packet.invalidate.map(u32::to_be_bytes)).unwrap_or_default(),
            byte_count,
            index: qp.rq.consumer,
            solicited: packet.solicited,
        });
        let qpn = qp.qpn;
        self.note(now_ps, || Note::Completed { qpn, packet: packet.into() });
        self.complete_receive(now_ps, qp, cqe, fx);
    }
}
