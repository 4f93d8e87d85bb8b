//! Packets that arrive: the receive engine, and whom a packet is for.

use crate::address::MULTICAST_QPN;
use crate::effects::{Effects, Work};
use crate::memory::Dma;
use crate::nic::Nic;
use crate::note::Note;
use crate::packet::{Operation, Packet};
use crate::partition::same_partition;
use crate::qp::QpState;

impl Nic {
    /// The last bit of a packet has arrived at the port.
    pub fn handle_packet(&mut self, now_ps: u64, packet: Packet, mem: &mut dyn Dma, fx: &mut Effects) {
        self.note(now_ps, || Note::Arrived { packet: (&packet).into(), loopback: false });
        let to = packet.destination;
        if to.is_multicast() {
            if !self.has_joined(&to.gid) {
                self.noting_drops(now_ps, &packet, |nic| nic.counters.multicast_drops += 1);
                return;
            }
        } else if !self.is_own(&to) {
            self.noting_drops(now_ps, &packet, |nic| nic.counters.address_drops += 1);
            return;
        }
        if packet.damage.is_some() {
            self.counters.icrc_drops += 1;
            return;
        }
        let engine = &mut self.engines.receive;
        let idle = engine.waiting.is_empty() && engine.busy_until_ps <= now_ps;
        if idle {
            self.receive(now_ps, &packet, mem, fx);
        } else if engine.waiting.len() < self.config.timing.receive_buffer_packets {
            if engine.waiting.is_empty() {
                fx.timer(engine.busy_until_ps, Work::Receive);
            }
            engine.waiting.push_back(packet);
        } else {
            self.noting_drops(now_ps, &packet, |nic| nic.counters.rx_buffer_drops += 1);
        }
    }

    /// The receive engine serves a packet from the port.
    pub(crate) fn receive(&mut self, now_ps: u64, packet: &Packet, mem: &mut dyn Dma, fx: &mut Effects) {
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += packet.frame_bytes();
        let copies = self.route(now_ps, packet, mem, fx);
        // The engine may run ahead of PCIe by the latency it has anyway, not more.
        let timing = &self.config.timing;
        let pcie = self.engines.pcie_write_busy_ps.saturating_sub(timing.completion_latency_ps);
        self.engines.receive.busy_until_ps = (now_ps + copies.max(1) * timing.receive_service_ps).max(pcie);
    }

    /// Gives a packet to whom it is for: one queue pair, or each member of a group. Says how many that were.
    pub(crate) fn route(&mut self, now_ps: u64, packet: &Packet, mem: &mut dyn Dma, fx: &mut Effects) -> u64 {
        if !packet.destination.is_multicast() {
            let qpn = packet.destination_qpn;
            self.noting_drops(now_ps, packet, |nic| nic.deliver(now_ps, qpn, packet, mem, fx));
            return 1;
        }
        if packet.destination_qpn != MULTICAST_QPN {
            self.noting_drops(now_ps, packet, |nic| nic.counters.qp_drops += 1);
            return 1;
        }
        let members = self.members(&packet.destination.gid);
        self.counters.multicast_copies += members.len() as u64;
        for &qpn in &members {
            self.noting_drops(now_ps, packet, |nic| nic.deliver(now_ps, qpn, packet, mem, fx));
        }
        members.len() as u64
    }

    fn deliver(&mut self, now_ps: u64, qpn: u32, packet: &Packet, mem: &mut dyn Dma, fx: &mut Effects) {
        let Some(qp) = self.qps.get(qpn) else {
            self.counters.qp_drops += 1;
            return;
        };
        if qp.attr.transport != packet.transport || !matches!(qp.state, QpState::Rtr | QpState::Rts) {
            self.counters.qp_drops += 1;
            return;
        }
        if !same_partition(packet.pkey, self.pkey(qp)) {
            self.counters.pkey_drops += 1;
            return;
        }
        self.with_qp(qpn, |nic, qp| match packet.operation {
            Operation::ReadResponse | Operation::AtomicAcknowledge => nic.response(now_ps, qp, packet, mem, fx),
            Operation::Acknowledge => nic.acknowledged(now_ps, qp, packet, mem, fx),
            _ => nic.respond(now_ps, qp, packet, mem, fx),
        });
    }
}
