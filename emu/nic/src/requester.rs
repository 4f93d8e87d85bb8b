//! The sending side: doorbells, WQEs and packets.

use std::sync::Arc;

use emu_fabric::Frame as _;

use crate::cqe::vendor;
use crate::dataflow::{NO_MEMORY, Touched, read_ranges};
use crate::effects::{Effects, FailureCause};
use crate::memory::Dma;
use crate::mkey::Access;
use crate::nic::Nic;
use crate::pacing;
use crate::packet::{Extension, Operation, Packet};
use crate::qp::{QpState, Transport};
use crate::queue_pair::{Awaited, Outstanding, QueuePair, Sending, psn_add, psn_ahead};
use crate::wqe::{BLOCK_BYTES, Fence, MAX_WQE_BYTES, Piece, SEGMENT_BYTES, Wqe, WqeFault, opcode};

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
    fn begin(&mut self, now_ps: u64, qp: &mut QueuePair, wqe: &mut Wqe, mem: &mut dyn Dma, fx: &mut Effects) -> Begun {
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
        let is_fetch = control.is_fetch();
        let mut outstanding = Outstanding {
            position,
            blocks: control.blocks().min(left),
            index: control.index,
            opcode: control.opcode,
            completion: control.completion,
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
        let fenced = match control.fence {
            Fence::None => false,
            Fence::Answers => qp.sq.reads > 0,
            Fence::All => !qp.sq.outstanding.is_empty(),
        };
        let must_wait = fenced
            || (is_fetch && qp.sq.reads >= u32::from(qp.path.max_rd_atomic))
            || (qp.attr.transport == Transport::Rc && window + packets >= PSN_WINDOW);
        if must_wait {
            return Begun::Nothing;
        }
        qp.sq.fetch = position.wrapping_add(outstanding.blocks);
        let pushed = qp.sq.pushed.take_if(|behind| *behind == qp.sq.fetch).is_some();
        if control.is_local() {
            if let Err(fault) = self.execute_locally(qp, wqe, position) {
                self.fail_in_turn(now_ps, qp, outstanding, fault, mem, fx);
                return Begun::Finished;
            }
            if qp.sq.outstanding.is_empty() {
                self.complete_send(now_ps, qp, &outstanding, fx);
            } else {
                qp.sq.outstanding.push_back(outstanding);
            }
            return Begun::Finished;
        }
        outstanding.packets = packets;
        if is_fetch {
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
            fetch_latency_ps: if pushed { 0 } else { self.fetch_latency(qp.attr.sq) },
        });
        qp.sq.next_psn = psn_add(qp.sq.next_psn, packets);
        qp.sq.outstanding.push_back(outstanding);
        Begun::Sending
    }

    /// Executes a WQE that needs no packet, once: after going back it comes by again.
    fn execute_locally(&mut self, qp: &mut QueuePair, wqe: &Wqe, position: u16) -> Result<(), WqeFault> {
        if wqe.control.opcode == opcode::NOP || qp.sq.executed.contains(&position) {
            return Ok(());
        }
        match &wqe.umr {
            Some(umr) => self.protection.bind(wqe.control.key(), qp.attr.pd, umr)?,
            None => self.protection.invalidate(wqe.control.key(), qp.attr.pd)?,
        }
        if !qp.sq.outstanding.is_empty() {
            qp.sq.executed.push(position);
        }
        Ok(())
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
        let mut first = [0; BLOCK_BYTES];
        qp.read_send_ring(position, &mut first, mem).map_err(unreachable)?;
        let size = usize::from(first[7] & 0x3F) * SEGMENT_BYTES;
        if size.div_ceil(BLOCK_BYTES) > usize::from(left) {
            // The header alone, so that the error CQE can name the WQE.
            let parsed = wqe.parse(&first[..SEGMENT_BYTES], qp.attr.transport);
            return Ok(parsed.and(Err(WqeFault::operation(vendor::SIZE))));
        }
        if size <= BLOCK_BYTES {
            return Ok(wqe.parse(&first, qp.attr.transport));
        }
        let mut bytes = [0; MAX_WQE_BYTES];
        let bytes = &mut bytes[..size];
        qp.read_send_ring(position, bytes, mem).map_err(unreachable)?;
        Ok(wqe.parse(bytes, qp.attr.transport))
    }

    /// Bytes of a full packet.
    pub(crate) fn segment_bytes(&self, qp: &QueuePair) -> u32 {
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
        let is_fetch = wqe.control.is_fetch();
        if is_fetch && qp.path.max_rd_atomic == 0 {
            return Err(WqeFault::operation(vendor::READ_DEPTH));
        }
        let needed = if is_fetch { Access::LOCAL_WRITE } else { Access::empty() };
        for piece in &wqe.pieces {
            if let Piece::Memory(segment) = piece {
                self.local(qp.attr.pd, segment.lkey, segment.addr, u64::from(segment.len), needed)?;
            }
        }
        Ok(())
    }

    /// Sends the next packet of the current WQE.
    fn send_packet(&mut self, now_ps: u64, qp: &mut QueuePair, wqe: &Wqe, mem: &mut dyn Dma, fx: &mut Effects) -> u64 {
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
        let ready_ps = now_ps + fetch_latency_ps + self.read_latency(now_ps, touched);
        let loopback = match &wqe.address {
            Some(address) => {
                let to = &address.destination;
                let forced = address.force_loopback || qp.path.force_loopback;
                if to.is_multicast() && !forced && !qp.path.block_multicast_loopback && self.has_joined(&to.gid) {
                    // The card's own members get theirs inside the card: no switch sends a packet back.
                    self.emit(ready_ps, packet.clone(), true, fx);
                }
                forced || (!to.is_multicast() && self.is_own(to))
            }
            None => {
                if self.comes_back(qp) {
                    self.emit(ready_ps, packet.clone(), true, fx);
                }
                self.turns_round(qp)
            }
        };
        if let Some(address) = wqe.address.as_ref().filter(|_| !loopback) {
            qp.sq.paced_until_ps = pacing::interval_ps(address.static_rate, packet.wire_bytes()).map(|ps| now_ps + ps);
        }
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
            opcode::ATOMIC_CS => Operation::CompareSwap,
            opcode::ATOMIC_FA => Operation::FetchAdd,
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
        if wqe.control.is_atomic() {
            let Wqe { remote_address: address, rkey, swap_or_add, compare, .. } = *wqe;
            packet.extension = Extension::Atomic { address, rkey, swap_or_add, compare };
            packet.ack_request = true;
            return Ok((packet, Touched::default()));
        }
        packet.first = number == 0;
        packet.ack_request = last && qp.attr.transport == Transport::Rc;
        let has_immediate = matches!(wqe.control.opcode, opcode::SEND_IMM | opcode::RDMA_WRITE_IMM);
        packet.immediate = (last && has_immediate).then_some(wqe.control.immediate);
        packet.invalidate = (last && wqe.control.opcode == opcode::SEND_INVAL).then(|| wqe.control.key());
        if operation == Operation::Write && packet.first {
            packet.extension = Extension::Remote { address: remote_address, rkey: wqe.rkey, len: wqe.len };
        }
        if let Some(address) = &wqe.address {
            packet.source = self.source(address.source_gid_index).unwrap_or_else(|| self.address());
            packet.destination = address.destination;
            packet.destination_qpn = address.qpn;
            packet.network = address.network;
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
                    let ranges = self.local(pd, segment.lkey, addr, count, Access::empty())?;
                    read_ranges(&ranges, now, &mut touched, mem).map_err(|_| NO_MEMORY)?;
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
