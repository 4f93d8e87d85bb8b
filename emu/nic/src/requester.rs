//! The sending side: doorbells, WQEs, packets, and for RC what comes back.

use std::sync::Arc;

use crate::cqe::{syndrome, vendor};
use crate::dataflow::{NO_MEMORY, Touched};
use crate::effects::{Effects, FailureCause, Work};
use crate::memory::Dma;
use crate::mkey::Access;
use crate::nic::Nic;
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::qp::{QpState, Transport};
use crate::queue_pair::{Awaited, Outstanding, QueuePair, SendQueue, Sending, psn_add, psn_ahead};
use crate::timing::{receiver_not_ready_ps, response_timeout_ps};
use crate::wqe::{BLOCK_BYTES, MAX_WQE_BYTES, Piece, SEGMENT_BYTES, Wqe, WqeFault, opcode};

/// At most this many PSNs may be unacknowledged, so that ahead and behind stay distinct.
const PSN_WINDOW: u32 = 1 << 23;

/// Why nothing, or nothing more, happens to the next WQE.
enum Begun {
    /// There is none, or it must wait.
    Nothing,
    /// It needed no packet: a NOP, or it failed.
    Finished,
    /// Its packets follow.
    Sending,
}

/// Zeroed payload memory, to be filled before it is shared.
pub(crate) fn payload(len: u32) -> Arc<[u8]> {
    std::iter::repeat_n(0, len as usize).collect()
}

/// Offset and length of a packet's part of a message.
pub(crate) fn part(packet: u32, mtu: u32, len: u32) -> (u32, u32) {
    let offset = packet.saturating_mul(mtu).min(len);
    (offset, mtu.min(len - offset))
}

/// Packets of a message; an empty one has one.
pub(crate) fn packets(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

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

    fn has_work(&self) -> bool {
        self.sending.is_some() || (self.fetch != self.producer && !self.stalled)
    }
}

/// Sending.
impl Nic {
    /// A send doorbell has reached the card.
    pub(crate) fn doorbell(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        producer_index: u16,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        if !matches!(qp.state, QpState::Rts | QpState::Err) {
            self.counters.ignored_doorbells += 1;
            return;
        }
        let depth = if qp.attr.no_sq { 0 } else { qp.send_depth() };
        let posted = producer_index.wrapping_sub(qp.sq.retired);
        if posted > depth {
            self.counters.bad_doorbells += 1;
            let consumer_index = qp.sq.retired;
            let cause = FailureCause::BadDoorbell { producer_index, consumer_index, depth: u32::from(depth) };
            self.fail_qp(now_ps, qp, cause, mem, fx);
            return;
        }
        if posted <= qp.sq.producer.wrapping_sub(qp.sq.retired) {
            // Nothing new.
            return;
        }
        qp.sq.producer = producer_index;
        if qp.state == QpState::Err {
            self.flush(now_ps, qp, mem, fx);
        } else {
            self.wake(now_ps, qp, fx);
        }
    }

    /// Sends one packet if there is one to send; gives the time until which the engine is held.
    pub(crate) fn send_request(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> Option<u64> {
        if qp.state != QpState::Rts || qp.sq.waits_for_receiver {
            return None;
        }
        // The WQE is used beside the queue pair, and put back for its vectors.
        let mut wqe = std::mem::take(&mut qp.sq.wqe);
        let begun = match qp.sq.sending {
            Some(_) => Begun::Sending,
            None => self.begin(now_ps, qp, &mut wqe, mem, fx),
        };
        let engine_ps = match begun {
            Begun::Nothing => None,
            Begun::Finished => Some(now_ps),
            Begun::Sending => Some(self.send_packet(now_ps, qp, &wqe, mem, fx)),
        };
        qp.sq.wqe = wqe;
        engine_ps
    }

    /// Fetches the next WQE and decides what is to happen to it.
    fn begin(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        wqe: &mut Wqe,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> Begun {
        if !qp.sq.has_work() {
            return Begun::Nothing;
        }
        let position = qp.sq.fetch;
        let left = qp.sq.producer.wrapping_sub(position);
        let fetched = match Self::fetch(qp, position, left, wqe, mem) {
            Ok(parsed) => parsed.and_then(|()| self.validate(qp, wqe)),
            Err(cause) => {
                self.fail_qp(now_ps, qp, cause, mem, fx);
                return Begun::Nothing;
            }
        };
        let control = wqe.control;
        let is_read = control.opcode == opcode::RDMA_READ;
        let mut outstanding = Outstanding {
            position,
            blocks: control.blocks().min(left),
            index: control.index,
            opcode: control.opcode,
            signalled: control.signalled,
            first_psn: qp.sq.next_psn,
            packets: 0,
            len: wqe.len,
            awaited: Awaited::Acknowledgement,
        };
        if let Err(fault) = fetched {
            qp.sq.fetch = position.wrapping_add(outstanding.blocks);
            self.fail_in_turn(now_ps, qp, outstanding, fault, mem, fx);
            return Begun::Finished;
        }
        let window = psn_ahead(qp.sq.next_psn, qp.sq.unacknowledged).unwrap_or(0);
        let packets = packets(wqe.len, self.segment_bytes(qp));
        let must_wait = (control.fence && qp.sq.reads > 0)
            || (is_read && qp.sq.reads >= u32::from(qp.path.max_rd_atomic))
            || (qp.attr.transport == Transport::Rc && window + packets >= PSN_WINDOW);
        if must_wait {
            return Begun::Nothing;
        }
        qp.sq.fetch = position.wrapping_add(outstanding.blocks);
        if control.opcode == opcode::NOP {
            if qp.sq.outstanding.is_empty() {
                self.complete_send(now_ps, qp, &outstanding, fx);
            } else {
                qp.sq.outstanding.push_back(outstanding);
            }
            return Begun::Finished;
        }
        outstanding.packets = packets;
        if is_read {
            let memory = |piece: &Piece| match piece {
                Piece::Memory(segment) => Some(*segment),
                Piece::Inline { .. } => None,
            };
            outstanding.awaited = Awaited::Response(wqe.pieces.iter().filter_map(memory).collect());
            qp.sq.reads += 1;
        }
        qp.sq.sending = Some(Sending {
            packet: std::mem::take(&mut qp.sq.skip).min(packets - 1),
            packets,
            first_psn: qp.sq.next_psn,
            fetch_latency_ps: self.fetch_latency(qp.attr.sq),
        });
        qp.sq.next_psn = psn_add(qp.sq.next_psn, packets);
        qp.sq.outstanding.push_back(outstanding);
        Begun::Sending
    }

    /// Reads and parses a WQE. `left` blocks are posted from `position` on.
    fn fetch(
        qp: &QueuePair,
        position: u16,
        left: u16,
        wqe: &mut Wqe,
        mem: &mut dyn Dma,
    ) -> Result<Result<(), WqeFault>, FailureCause> {
        let unreachable = |fault: crate::DmaFault| FailureCause::QueueMemory { addr: fault.addr };
        let mut bytes = [0; MAX_WQE_BYTES];
        let (first, rest) = bytes.split_at_mut(BLOCK_BYTES);
        qp.read_send_ring(position, first, mem).map_err(unreachable)?;
        let size = usize::from(first[7] & 0x3F) * SEGMENT_BYTES;
        if size.div_ceil(BLOCK_BYTES) > usize::from(left) {
            // The header alone, so that the error CQE can name the WQE.
            let parsed = wqe.parse(&bytes[..SEGMENT_BYTES], qp.attr.transport);
            return Ok(parsed.and(Err(WqeFault::operation(vendor::SIZE))));
        }
        if size > BLOCK_BYTES {
            let rest = &mut rest[..size - BLOCK_BYTES];
            qp.read_send_ring(position.wrapping_add(1), rest, mem).map_err(unreachable)?;
        }
        Ok(wqe.parse(&bytes[..size.max(SEGMENT_BYTES)], qp.attr.transport))
    }

    /// Bytes of a full packet.
    fn segment_bytes(&self, qp: &QueuePair) -> u32 {
        match qp.attr.transport {
            Transport::Ud => self.config.port_mtu.bytes(),
            Transport::Rc | Transport::Uc => qp.path.path_mtu.bytes(),
        }
    }

    /// Checks what the WQE's bytes alone do not tell.
    fn validate(&self, qp: &QueuePair, wqe: &Wqe) -> Result<(), WqeFault> {
        if wqe.control.qpn != qp.qpn {
            return Err(WqeFault::operation(vendor::QPN));
        }
        if let Some(address) = &wqe.address {
            if wqe.len > self.config.port_mtu.bytes() {
                return Err(WqeFault::length());
            }
            if self.source(address.source_gid_index).is_none() {
                return Err(WqeFault::operation(vendor::ADDRESS));
            }
        }
        let is_read = wqe.control.opcode == opcode::RDMA_READ;
        if is_read && qp.path.max_rd_atomic == 0 {
            return Err(WqeFault::operation(vendor::READ_DEPTH));
        }
        let needed = if is_read { Access::LOCAL_WRITE } else { Access::empty() };
        for piece in &wqe.pieces {
            if let Piece::Memory(segment) = piece {
                self.local(qp.attr.pd, segment.lkey, segment.addr, u64::from(segment.len), needed)?;
            }
        }
        Ok(())
    }

    /// Sends the next packet of the current WQE.
    fn send_packet(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        wqe: &Wqe,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> u64 {
        let Some(sending) = &mut qp.sq.sending else { return now_ps };
        let number = sending.packet;
        let (packets, psn) = (sending.packets, psn_add(sending.first_psn, number));
        let fetch_latency_ps = std::mem::take(&mut sending.fetch_latency_ps);
        let is_read = wqe.control.opcode == opcode::RDMA_READ;
        // A read request asks for all the rest at once.
        sending.packet = if is_read { packets } else { number + 1 };
        let finished = sending.packet == packets;
        let (packet, touched) = match self.build(qp, wqe, number, finished, psn, mem) {
            Ok(built) => built,
            Err(fault) => {
                qp.sq.sending = None;
                if let Some(outstanding) = qp.sq.outstanding.pop_back() {
                    self.fail_in_turn(now_ps, qp, outstanding, fault, mem, fx);
                }
                return now_ps;
            }
        };
        let loopback = match &wqe.address {
            Some(address) => {
                let to = &address.destination;
                address.force_loopback || qp.path.force_loopback || (!to.is_multicast() && self.is_own(to))
            }
            None => self.turns_round(qp),
        };
        let ready_ps = now_ps + fetch_latency_ps + self.read_latency(now_ps, touched);
        let sent = self.emit(ready_ps, packet, loopback, fx);
        if finished {
            qp.sq.sending = None;
        }
        if qp.attr.transport == Transport::Rc {
            Self::expect_answer(sent.done_ps, qp, fx);
        } else if finished && let Some(outstanding) = qp.sq.outstanding.pop_front() {
            // Nothing comes back: what is sent is complete.
            self.complete_send(sent.done_ps, qp, &outstanding, fx);
        }
        sent.engine_ps
    }

    /// Makes packet `number` of a message.
    fn build(
        &self,
        qp: &QueuePair,
        wqe: &Wqe,
        number: u32,
        last: bool,
        psn: u32,
        mem: &mut dyn Dma,
    ) -> Result<(Packet, Touched), WqeFault> {
        let (offset, len) = part(number, self.segment_bytes(qp), wqe.len);
        let operation = match wqe.control.opcode {
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM => Operation::Write,
            opcode::RDMA_READ => Operation::ReadRequest,
            _ => Operation::Send,
        };
        let mut packet = self.connected_packet(qp, operation, psn);
        packet.last = last;
        packet.solicited = last && wqe.control.solicited;
        let remote_address = wqe.remote_address.wrapping_add(u64::from(offset));
        if operation == Operation::ReadRequest {
            packet.extension = Extension::Remote { address: remote_address, rkey: wqe.rkey, len: wqe.len - offset };
            return Ok((packet, Touched::default()));
        }
        packet.first = number == 0;
        packet.ack_request = last && qp.attr.transport == Transport::Rc;
        let has_immediate = matches!(wqe.control.opcode, opcode::SEND_IMM | opcode::RDMA_WRITE_IMM);
        packet.immediate = (last && has_immediate).then_some(wqe.control.immediate);
        if operation == Operation::Write && packet.first {
            packet.extension = Extension::Remote { address: remote_address, rkey: wqe.rkey, len: wqe.len };
        }
        if let Some(address) = &wqe.address {
            packet.source = self.source(address.source_gid_index).unwrap_or_else(|| self.address());
            packet.destination = address.destination;
            packet.destination_qpn = address.qpn;
            // A key with the top bit set is privileged: it stands for the queue pair's own.
            let qkey = if address.qkey >> 31 == 1 { qp.path.qkey } else { address.qkey };
            packet.extension = Extension::Datagram { qkey, source_qpn: qp.qpn };
        }
        let mut touched = Touched::default();
        if len > 0 {
            packet.payload = payload(len);
            if let Some(out) = Arc::get_mut(&mut packet.payload) {
                touched = self.gather(qp.attr.pd, wqe, u64::from(offset), out, mem)?;
            }
        }
        Ok((packet, touched))
    }

    /// Fills `out` with the message's bytes from `offset` on.
    fn gather(
        &self,
        pd: u32,
        wqe: &Wqe,
        mut offset: u64,
        mut out: &mut [u8],
        mem: &mut dyn Dma,
    ) -> Result<Touched, WqeFault> {
        let mut touched = Touched::default();
        for piece in &wqe.pieces {
            if out.is_empty() {
                break;
            }
            if offset >= piece.len() {
                offset -= piece.len();
                continue;
            }
            let count = (piece.len() - offset).min(out.len() as u64);
            let (now, later) = out.split_at_mut(count as usize);
            match piece {
                Piece::Memory(segment) => {
                    let addr = segment.addr.wrapping_add(offset);
                    let space = self.local(pd, segment.lkey, addr, count, Access::empty())?;
                    mem.read(space, addr, now).map_err(|_| NO_MEMORY)?;
                    touched.add(space, count);
                }
                Piece::Inline { start, .. } => {
                    let start = start + offset as usize;
                    now.copy_from_slice(&wqe.inline[start..start + count as usize]);
                }
            }
            offset = 0;
            out = later;
        }
        Ok(touched)
    }

    /// Fails a WQE when all earlier ones are complete.
    fn fail_in_turn(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        mut wqe: Outstanding,
        fault: WqeFault,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        if qp.sq.outstanding.is_empty() {
            self.fail_send(now_ps, qp, &wqe, fault, mem, fx);
        } else {
            wqe.packets = 0;
            wqe.awaited = Awaited::Failed(fault);
            qp.sq.outstanding.push_back(wqe);
            qp.sq.stalled = true;
        }
    }
}

/// RC: what comes back, or does not.
impl Nic {
    /// Something should be heard within the timeout after `at_ps`. One timer per queue pair follows the deadline.
    fn expect_answer(at_ps: u64, qp: &mut QueuePair, fx: &mut Effects) {
        let Some(timeout_ps) = response_timeout_ps(qp.path.timeout) else { return };
        qp.sq.deadline_ps = at_ps + timeout_ps;
        if !qp.sq.deadline_timer {
            qp.sq.deadline_timer = true;
            fx.timer(qp.sq.deadline_ps, Work::Retransmit { qpn: qp.qpn });
        }
    }

    pub(crate) fn retransmit_timer(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
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

    /// Part of the answer to a read request has arrived.
    pub(crate) fn read_response(
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
        let stored = if packet.payload.len() as u64 == u64::from(len) {
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

    fn receiver_not_ready(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        timer: u8,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
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

    fn fail_oldest(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        syndrome: u8,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        if let Some(wqe) = qp.sq.outstanding.pop_front() {
            self.fail_send(now_ps, qp, &wqe, WqeFault { syndrome, vendor: 0 }, mem, fx);
        }
    }
}
