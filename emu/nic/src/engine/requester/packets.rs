//! Packets of requests.

use std::sync::Arc;

use emu_fabric::Frame as _;

use super::Requester;
use crate::address::RoceVersion;
use crate::cx::Cx;
use crate::engine::datapath::Datapath;
use crate::engine::port::Sent;
use crate::ethernet::{self, ADDRESSES_BYTES};
use crate::keys::Touched;
use crate::pacing;
use crate::packet::{Extension, Network, Operation, Packet};
use crate::psn::{part, psn_add};
use crate::queue_pair::QueuePair;
use crate::steering::{FlowAction, FlowDirection};
use crate::transport::Transport;
use crate::wire::MIN_FRAME_BYTES;
use crate::wqe::{Wqe, WqeFault, opcode};

/// One packet of a message.
#[derive(Clone, Copy)]
struct Cut {
    /// Its place in the message, from 0 on.
    number: u32,
    psn: u32,
    last: bool,
}

impl Requester {
    /// Sends the next packet of the current WQE.
    pub(super) fn send_packet(&self, dp: &mut Datapath, qp: &mut QueuePair, wqe: &Wqe, cx: &mut Cx<'_>) -> u64 {
        let Some(sending) = &mut qp.sq.sending else { return cx.now_ps };
        let number = sending.packet;
        let (packets, psn) = (sending.packets, psn_add(sending.first_psn, number));
        let fetch_latency_ps = std::mem::take(&mut sending.fetch_latency_ps);
        let is_read = wqe.control.opcode == opcode::RDMA_READ;
        // A read request asks for all the rest at once.
        sending.packet = if is_read { packets } else { number + 1 };
        let finished = sending.packet == packets;
        let (packet, touched) = match self.build(dp, qp, wqe, Cut { number, psn, last: finished }, cx) {
            Ok(built) => built,
            Err(fault) => {
                qp.sq.sending = None;
                if let Some(outstanding) = qp.sq.outstanding.pop_back() {
                    Self::fail_in_turn(dp, qp, outstanding, fault, cx);
                }
                return cx.now_ps;
            }
        };
        let ready_ps = cx.now_ps + fetch_latency_ps + dp.pcie.read_latency(cx.now_ps, touched);
        let loopback = match &wqe.address {
            Some(address) => {
                let to = &address.destination;
                let forced = address.force_loopback || qp.path.force_loopback;
                if to.is_multicast() && !forced && !qp.path.block_multicast_loopback && dp.groups.has_joined(&to.gid) {
                    // The card's own members get theirs inside the card: no switch sends a packet back.
                    dp.port.emit(ready_ps, packet.clone(), true, cx);
                }
                forced || (!to.is_multicast() && dp.port.identity.is_own(to))
            }
            None => {
                if dp.groups.come_back_to(qp) {
                    dp.port.emit(ready_ps, packet.clone(), true, cx);
                }
                dp.port.identity.turns_round(qp)
            }
        };
        if let Some(address) = wqe.address.as_ref().filter(|_| !loopback) {
            qp.sq.paced_until_ps =
                pacing::interval_ps(address.static_rate, packet.wire_bytes()).map(|ps| cx.now_ps + ps);
        }
        let sent = match Self::steered(dp, &packet) {
            Some(FlowAction::Drop | FlowAction::Queue(_)) => {
                // No rule of a send queue's leads to a receive queue.
                cx.log.counters.steering_drops += 1;
                Sent { done_ps: ready_ps, engine_ps: cx.now_ps, behind_ps: ready_ps }
            }
            Some(FlowAction::Port | FlowAction::Table(_)) | None => dp.port.emit(ready_ps, packet, loopback, cx),
        };
        if finished {
            qp.sq.sending = None;
        }
        if qp.attr.transport == Transport::Rc {
            Self::expect_answer(sent.done_ps, qp, cx.fx);
        } else if finished && let Some(outstanding) = qp.sq.outstanding.pop_front() {
            // Nothing comes back: what is sent is complete.
            dp.completions.complete_send(sent.done_ps, qp, &outstanding, cx.fx);
        }
        sent.engine_ps
    }

    /// What a steering rule says of a frame that is to leave.
    fn steered(dp: &Datapath, packet: &Packet) -> Option<FlowAction> {
        if packet.transport != Transport::Ethernet {
            return None;
        }
        dp.steering.decide(FlowDirection::Transmit, &ethernet::parse(&packet.payload).fields)
    }

    /// Makes an Ethernet frame of a message, with what the card adds to it.
    fn frame(dp: &Datapath, qp: &QueuePair, wqe: &Wqe, cx: &mut Cx<'_>) -> Result<(Packet, Touched), WqeFault> {
        let added = wqe.offloads.added_bytes();
        let bytes = added + wqe.len as usize;
        let mut frame = cx.fx.payload(bytes.max(MIN_FRAME_BYTES) as u32);
        let mut touched = Touched::default();
        if let Some(out) = Arc::get_mut(&mut frame) {
            touched = dp.keys.gather(qp.attr.pd, wqe, 0, &mut out[added..bytes], cx.mem)?;
            out[bytes..].fill(0);
            if added > 0 {
                // The tag goes behind the addresses.
                out.copy_within(added..added + ADDRESSES_BYTES, 0);
            }
            wqe.offloads.apply(out);
        }
        let packet = Packet::ethernet(frame).ok_or_else(WqeFault::length)?;
        Ok((packet, touched))
    }

    /// Makes a packet of a message.
    fn build(
        &self,
        dp: &Datapath,
        qp: &QueuePair,
        wqe: &Wqe,
        cut: Cut,
        cx: &mut Cx<'_>,
    ) -> Result<(Packet, Touched), WqeFault> {
        let (Cut { number, psn, last }, identity) = (cut, &dp.port.identity);
        let (offset, len) = part(number, self.segment_bytes(qp), wqe.len);
        let operation = match wqe.control.opcode {
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM => Operation::Write,
            opcode::RDMA_READ => Operation::ReadRequest,
            opcode::ATOMIC_CS => Operation::CompareSwap,
            opcode::ATOMIC_FA => Operation::FetchAdd,
            _ => Operation::Send,
        };
        let mut packet = identity.packet(qp, operation, psn);
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
            let source = identity.source(qp.function, address.source_gid_index);
            let (source, version) = source.unwrap_or_else(|| (identity.address(), RoceVersion::V2));
            packet.source = source;
            packet.destination = address.destination;
            packet.destination_qpn = address.qpn;
            packet.network = Network { version, ..address.network };
            // A key with the top bit set is privileged: it stands for the queue pair's own.
            let qkey = if address.qkey >> 31 == 1 { qp.path.qkey } else { address.qkey };
            packet.extension = Extension::Datagram { qkey, source_qpn: qp.qpn };
        }
        let mut touched = Touched::default();
        if qp.attr.transport == Transport::Ethernet {
            return Self::frame(dp, qp, wqe, cx);
        }
        if len > 0 {
            packet.payload = cx.fx.payload(len);
            if let Some(out) = Arc::get_mut(&mut packet.payload) {
                touched = dp.keys.gather(qp.attr.pd, wqe, u64::from(offset), out, cx.mem)?;
            }
        }
        Ok((packet, touched))
    }
}
