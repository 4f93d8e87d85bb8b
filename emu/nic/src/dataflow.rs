//! Parts that requester and responder share: the engines' clocks, packets on their way out, and memory behind local
//! keys.

use std::collections::VecDeque;
use std::sync::Arc;

use emu_fabric::{Frame as _, NetworkFrame as _, PRIORITIES, Priorities};

use crate::address::Address;
use crate::cqe::{syndrome, vendor};
use crate::effects::{Effects, FailureCause, Work};
use crate::memory::{Dma, DmaFault, QueueMemory, Space};
use crate::mkey::{Access, Range, Ranges};
use crate::nic::Nic;
use crate::packet::{Extension, Operation, Packet};
use crate::port::Lane;
use crate::qp::Transport;
use crate::queue_pair::QueuePair;
use crate::wqe::{BLOCK_BYTES, DataSegment, WqeFault};

/// The send engine of the port, and that of the loopback path.
pub(crate) const PORT_LANE: usize = 0;
pub(crate) const LOOPBACK_LANE: usize = 1;

#[derive(Debug, Default)]
pub(crate) struct ReceiveEngine {
    pub(crate) waiting: VecDeque<Packet>,
    pub(crate) busy_until_ps: u64,
}

/// When each part of the card is free again.
#[derive(Debug)]
pub(crate) struct Engines {
    pub(crate) lanes: [Lane; 2],
    pub(crate) receive: ReceiveEngine,
    /// For a packet of each priority.
    pub(crate) port_busy_ps: [u64; PRIORITIES],
    loopback_busy_ps: u64,
    pcie_read_busy_ps: u64,
    pub(crate) pcie_write_busy_ps: u64,
}

impl Default for Engines {
    fn default() -> Self {
        Self {
            lanes: [Priorities::Strict, Priorities::Shared].map(|priorities| Lane::new(priorities, [1; PRIORITIES])),
            receive: ReceiveEngine::default(),
            port_busy_ps: [0; PRIORITIES],
            loopback_busy_ps: 0,
            pcie_read_busy_ps: 0,
            pcie_write_busy_ps: 0,
        }
    }
}

/// What a data access costs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Touched {
    pub(crate) host_bytes: u64,
    pub(crate) dpa: bool,
}

impl Touched {
    pub(crate) fn add(&mut self, space: Space, bytes: u64) {
        match space {
            Space::Host => self.host_bytes += bytes,
            Space::Dpa(_) => self.dpa = true,
        }
    }
}

/// What became of a packet handed to a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// Its last bit has left.
    pub(crate) done_ps: u64,
    /// The engine should not prepare the next packet earlier.
    pub(crate) engine_ps: u64,
}

/// A queue's ring in memory, of `1 << log_bytes` bytes.
fn read_ring(ring: QueueMemory, log_bytes: u32, at: u64, out: &mut [u8], mem: &mut dyn Dma) -> Result<(), DmaFault> {
    let size = 1_u64 << log_bytes;
    let offset = at & (size - 1);
    let until_end = (size - offset).min(out.len() as u64) as usize;
    let (head, tail) = out.split_at_mut(until_end);
    mem.read(ring.space, ring.at(offset), head)?;
    if tail.is_empty() {
        return Ok(());
    }
    if tail.len() as u64 > size {
        // A WQE longer than its ring: the caller's size check refuses it.
        return Err(DmaFault { addr: ring.addr, len: out.len() as u64 });
    }
    mem.read(ring.space, ring.addr, tail)
}

impl QueuePair {
    /// Reads WQE bytes from the send ring, starting at a block.
    pub(crate) fn read_send_ring(&self, block: u16, out: &mut [u8], mem: &mut dyn Dma) -> Result<(), DmaFault> {
        let log_bytes = u32::from(self.attr.log_sq_depth) + BLOCK_BYTES.ilog2();
        read_ring(self.attr.sq, log_bytes, u64::from(block) * BLOCK_BYTES as u64, out, mem)
    }

    pub(crate) fn send_depth(&self) -> u16 {
        1 << self.attr.log_sq_depth
    }

    /// The receive counter, read from the doorbell record only if nothing is known to be posted.
    ///
    /// # Errors
    /// The record cannot be read, or posts more than the ring holds.
    pub(crate) fn posted_receives(&mut self, mem: &mut dyn Dma) -> Result<u16, FailureCause> {
        if self.attr.no_rq {
            return Ok(0);
        }
        if self.rq.producer == self.rq.consumer {
            self.refresh_receives(mem)?;
        }
        Ok(self.rq.producer.wrapping_sub(self.rq.consumer))
    }

    pub(crate) fn refresh_receives(&mut self, mem: &mut dyn Dma) -> Result<(), FailureCause> {
        let record = self.attr.doorbell_record;
        let mut word = [0; 4];
        mem.read(record.space, record.addr, &mut word)
            .map_err(|fault| FailureCause::QueueMemory { addr: fault.addr })?;
        let producer_index = u32::from_be_bytes(word) as u16;
        let depth = 1_u32 << self.attr.log_rq_depth;
        if u32::from(producer_index.wrapping_sub(self.rq.consumer)) > depth {
            return Err(FailureCause::BadDoorbell { producer_index, consumer_index: self.rq.consumer, depth });
        }
        self.rq.producer = producer_index;
        Ok(())
    }

    /// Parses the next posted receive into `rq.segments`; gives its capacity.
    pub(crate) fn load_receive(&mut self, mem: &mut dyn Dma) -> Result<u64, FailureCause> {
        // Most receives have few segments; the longest has 1 KiB of them.
        let (mut short, mut long);
        let stride = 1_usize << self.attr.log_rq_stride;
        let bytes = if stride <= BLOCK_BYTES {
            short = [0; BLOCK_BYTES];
            &mut short[..stride]
        } else {
            long = [0; 1024];
            &mut long[..stride]
        };
        let log_bytes = u32::from(self.attr.log_rq_depth) + u32::from(self.attr.log_rq_stride);
        read_ring(self.attr.rq, log_bytes, u64::from(self.rq.consumer) * stride as u64, bytes, mem)
            .map_err(|fault| FailureCause::QueueMemory { addr: fault.addr })?;
        Ok(crate::wqe::parse_receive(bytes, &mut self.rq.segments))
    }
}

/// Engines.
impl Nic {
    pub(crate) fn is_own(&self, destination: &Address) -> bool {
        destination.mac == self.config.mac || self.config.gids.contains(&destination.gid)
    }

    pub(crate) fn peer(qp: &QueuePair) -> Address {
        Address { mac: qp.path.dmac, gid: qp.path.rgid }
    }

    pub(crate) fn source(&self, gid_index: usize) -> Option<Address> {
        Some(Address { mac: self.config.mac, gid: *self.config.gids.get(gid_index)? })
    }

    /// Whether a queue pair's packets turn round inside the card. A datagram's address decides on its own.
    pub(crate) fn turns_round(&self, qp: &QueuePair) -> bool {
        qp.path.force_loopback || (qp.attr.transport != Transport::Ud && self.is_own(&Self::peer(qp)))
    }

    /// Puts a queue pair with something to send into its engine's queue.
    pub(crate) fn wake(&mut self, now_ps: u64, qp: &mut QueuePair, fx: &mut Effects) {
        if qp.sq.queued {
            return;
        }
        qp.sq.queued = true;
        let index = if self.turns_round(qp) { LOOPBACK_LANE } else { PORT_LANE };
        let queue = self.lane_queue(index, qp);
        self.engines.lanes[index].push(queue, qp.qpn);
        self.start_lane(now_ps, index, fx);
    }

    /// A send engine serves the next queue pair: one packet.
    pub(crate) fn send(&mut self, now_ps: u64, index: usize, mem: &mut dyn Dma, fx: &mut Effects) {
        if !self.engines.lanes[index].look(now_ps) {
            return;
        }
        let busy_until_ps = now_ps + self.config.timing.send_service_ps;
        while let Some(qpn) = self.engines.lanes[index].pop(now_ps) {
            let mut sent = None;
            let before = self.counters.tx_bytes;
            let mut parked = false;
            self.with_qp(qpn, |nic, qp| {
                // Answers go first: a peer waits for them.
                let ahead_ps = nic.send_response(now_ps, qp, mem, fx).or_else(|| nic.send_request(now_ps, qp, mem, fx));
                qp.sq.queued = ahead_ps.is_some();
                sent = ahead_ps.map(|ahead_ps| (nic.lane_queue(index, qp), ahead_ps));
                if let Some(until_ps) = qp.sq.paced_until_ps {
                    parked = true;
                    fx.timer(until_ps, Work::Paced { qpn });
                }
            });
            if let Some((queue, ahead_ps)) = sent {
                let bytes = self.counters.tx_bytes - before;
                let lane = &mut self.engines.lanes[index];
                if !parked {
                    lane.push(queue, qpn);
                }
                lane.sent(queue, bytes, busy_until_ps, ahead_ps);
                break;
            }
            // It had nothing to send, which takes no time.
        }
        self.start_lane(now_ps, index, fx);
    }

    /// When data that the card starts to read now is there.
    pub(crate) fn read_latency(&mut self, now_ps: u64, touched: Touched) -> u64 {
        let timing = &self.config.timing;
        if touched.host_bytes > 0 {
            let busy = &mut self.engines.pcie_read_busy_ps;
            *busy = (*busy).max(now_ps) + timing.pcie_ps(touched.host_bytes);
            *busy - now_ps + timing.pcie_latency_ps
        } else if touched.dpa {
            timing.dpa_latency_ps
        } else {
            0
        }
    }

    /// Data that the card starts to write now occupies PCIe.
    pub(crate) fn write_traffic(&mut self, now_ps: u64, touched: Touched) {
        if touched.host_bytes > 0 {
            let busy = &mut self.engines.pcie_write_busy_ps;
            *busy = (*busy).max(now_ps) + self.config.timing.pcie_ps(touched.host_bytes);
        }
    }

    /// Latency of a WQE's fetch.
    pub(crate) fn fetch_latency(&self, ring: QueueMemory) -> u64 {
        match ring.space {
            Space::Host => self.config.timing.pcie_latency_ps,
            Space::Dpa(_) => self.config.timing.dpa_latency_ps,
        }
    }

    /// Sends a packet that is complete at `ready_ps`, through the port or round inside the card.
    pub(crate) fn emit(&mut self, ready_ps: u64, packet: Packet, loopback: bool, fx: &mut Effects) -> Sent {
        let timing = &self.config.timing;
        // A WQE's fetch, its payload's read and a few payloads queueing for PCIe are in flight together; further ahead
        // the engine would only fill the port's queue.
        let queueing_ps = 4 * timing.pcie_ps(u64::from(self.config.port_mtu.bytes()));
        let ahead_ps = 2 * timing.pcie_latency_ps.max(timing.dpa_latency_ps) + queueing_ps;
        let done_ps = if loopback {
            let engines = &mut self.engines;
            let done_ps = engines.loopback_busy_ps.max(ready_ps) + timing.pcie_ps(packet.payload.len() as u64);
            engines.loopback_busy_ps = done_ps;
            let at_ps = done_ps + timing.pcie_latency_ps;
            self.counters.loopback_packets += 1;
            self.note_sent(done_ps, at_ps, &packet, true);
            let slot = self.loopback.insert(packet);
            fx.timer(at_ps, Work::Loopback { slot });
            done_ps
        } else {
            let queue = self.port_queue(packet.priority());
            let (start_ps, done_ps) = self.take_port(ready_ps, queue, packet.wire_bytes());
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += packet.frame_bytes();
            self.note_sent(start_ps, done_ps, &packet, false);
            fx.packets.push((start_ps, packet));
            done_ps
        };
        Sent { done_ps, engine_ps: done_ps.saturating_sub(ahead_ps) }
    }

    /// Sends an acknowledgement or an atomic's answer at `ready_ps`, but not before what the responder sent earlier. It
    /// takes no engine: the link orders it among the port's packets.
    pub(crate) fn emit_acknowledgement(
        &mut self,
        ready_ps: u64,
        qp: &mut QueuePair,
        (psn, message_number): (u32, u32),
        extension: Extension,
        fx: &mut Effects,
    ) {
        let at_ps = ready_ps.max(qp.rq.last_response_ps);
        let operation = match extension {
            Extension::AtomicAcknowledge { .. } => Operation::AtomicAcknowledge,
            _ => Operation::Acknowledge,
        };
        let mut packet = self.connected_packet(qp, operation, psn);
        packet.extension = extension;
        packet.message_number = message_number;
        if self.turns_round(qp) {
            self.counters.loopback_packets += 1;
            self.note_sent(at_ps, at_ps, &packet, true);
            let slot = self.loopback.insert(packet);
            fx.timer(at_ps, Work::Loopback { slot });
        } else {
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += packet.frame_bytes();
            self.note_sent(at_ps, at_ps, &packet, false);
            fx.packets.push((at_ps, packet));
        }
        qp.rq.last_response_ps = at_ps;
    }

    /// A packet to the peer of a connected queue pair: a message of its own, without payload.
    pub(crate) fn connected_packet(&self, qp: &QueuePair, operation: Operation, psn: u32) -> Packet {
        Packet {
            source: self.source(usize::from(qp.path.sgid_index)).unwrap_or_else(|| self.address()),
            destination: Self::peer(qp),
            network: qp.path.network(),
            pkey: self.pkey(qp),
            transport: qp.attr.transport,
            operation,
            first: true,
            last: true,
            solicited: false,
            ack_request: false,
            destination_qpn: qp.path.dest_qpn,
            psn,
            immediate: None,
            invalidate: None,
            message_number: 0,
            extension: Extension::None,
            payload: Arc::default(),
            damage: None,
        }
    }
}

/// Fills `out`, which is as long as the ranges are together.
pub(crate) fn read_ranges(
    ranges: &[Range],
    mut out: &mut [u8],
    touched: &mut Touched,
    mem: &mut dyn Dma,
) -> Result<(), DmaFault> {
    for range in ranges {
        let (now, later) = out.split_at_mut(range.len.min(out.len() as u64) as usize);
        mem.read(range.space, range.addr, now)?;
        touched.add(range.space, range.len);
        out = later;
    }
    Ok(())
}

/// Stores `data`, which is as long as the ranges are together.
pub(crate) fn write_ranges(
    ranges: &[Range],
    mut data: &[u8],
    touched: &mut Touched,
    mem: &mut dyn Dma,
) -> Result<(), DmaFault> {
    for range in ranges {
        let (now, later) = data.split_at(range.len.min(data.len() as u64) as usize);
        mem.write(range.space, range.addr, now)?;
        touched.add(range.space, range.len);
        data = later;
    }
    Ok(())
}

/// Memory behind local keys.
impl Nic {
    /// Scatters `data` into `segments`, from `offset` bytes in.
    pub(crate) fn scatter(
        &self,
        pd: u32,
        segments: &[DataSegment],
        mut offset: u64,
        mut data: &[u8],
        mem: &mut dyn Dma,
    ) -> Result<Touched, WqeFault> {
        let mut touched = Touched::default();
        for segment in segments {
            if data.is_empty() {
                break;
            }
            let len = u64::from(segment.len);
            if offset >= len {
                offset -= len;
                continue;
            }
            let count = (len - offset).min(data.len() as u64);
            let (now, later) = data.split_at(count as usize);
            let addr = segment.addr.wrapping_add(offset);
            let ranges = self.local(pd, segment.lkey, addr, count, Access::LOCAL_WRITE)?;
            write_ranges(&ranges, now, &mut touched, mem).map_err(|_| NO_MEMORY)?;
            offset = 0;
            data = later;
        }
        Ok(touched)
    }

    /// Checks a local access.
    pub(crate) fn local(&self, pd: u32, lkey: u32, addr: u64, len: u64, access: Access) -> Result<Ranges, WqeFault> {
        self.protection
            .translate(lkey, pd, addr, len, access)
            .map_err(|fault| WqeFault { syndrome: syndrome::LOCAL_PROTECTION, vendor: fault.vendor_syndrome() })
    }
}

/// A local key allows the access, but there is nothing behind it.
pub(crate) const NO_MEMORY: WqeFault = WqeFault { syndrome: syndrome::LOCAL_PROTECTION, vendor: vendor::NO_MEMORY };
