//! The requester: doorbells, WQEs, and the packets that they become.

mod answers;
mod packets;

use super::datapath::Datapath;
use crate::access::Access;
use crate::cqe::vendor;
use crate::cx::Cx;
use crate::effects::FailureCause;
use crate::ethernet::{HEADER_BYTES, MAX_FRAME_BYTES};
use crate::memory::{Dma, DmaFault};
use crate::progress::RefusedEntry;
use crate::psn::{packets, psn_add, psn_ahead};
use crate::qp::{Mtu, QpState};
use crate::queue_pair::QueuePair;
use crate::queue_pair::send_queue::{Awaited, Outstanding, Sending};
use crate::transport::Transport;
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

/// The sending side of all queue pairs.
#[derive(Debug)]
pub(crate) struct Requester {
    /// The port's: the largest UD message.
    port_mtu: Mtu,
}

impl Requester {
    pub(crate) fn new(port_mtu: Mtu) -> Self {
        Self { port_mtu }
    }

    /// A send doorbell has reached the card.
    pub(crate) fn doorbell(&self, dp: &mut Datapath, qp: &mut QueuePair, producer_index: u16, cx: &mut Cx<'_>) {
        if !matches!(qp.state, QpState::Rts | QpState::Err) {
            cx.log.counters.ignored_doorbells += 1;
            return;
        }
        let depth = if qp.attr.no_sq { 0 } else { qp.send_depth() };
        let posted = producer_index.wrapping_sub(qp.sq.retired);
        if posted > depth {
            cx.log.counters.bad_doorbells += 1;
            let consumer_index = qp.sq.retired;
            let depth = u32::from(depth);
            let cause = FailureCause::BadDoorbell { is_send: true, producer_index, consumer_index, depth };
            dp.fail_qp(qp, cause, cx);
            return;
        }
        if posted <= qp.sq.producer.wrapping_sub(qp.sq.retired) {
            // Nothing new.
            return;
        }
        qp.sq.producer = producer_index;
        if qp.state == QpState::Err {
            dp.flush(qp, cx);
        } else {
            dp.port.wake(cx.now_ps, qp, cx.fx);
        }
    }

    /// Sends one packet if there is one to send; gives the time until which the engine is held.
    pub(crate) fn send_request(&self, dp: &mut Datapath, qp: &mut QueuePair, cx: &mut Cx<'_>) -> Option<u64> {
        if qp.state != QpState::Rts || qp.sq.waits_for_receiver {
            return None;
        }
        // The WQE is used together with the queue pair, and put back for its vectors.
        let mut wqe = std::mem::take(&mut qp.sq.wqe);
        let begun = match qp.sq.sending {
            Some(_) => Begun::Sending,
            None => self.begin(dp, qp, &mut wqe, cx),
        };
        let engine_ps = match begun {
            Begun::Nothing => None,
            Begun::Finished => Some(cx.now_ps),
            Begun::Sending => Some(self.send_packet(dp, qp, &wqe, cx)),
        };
        qp.sq.wqe = wqe;
        engine_ps
    }

    /// Fetches the next WQE and decides what is to happen to it.
    fn begin(&self, dp: &mut Datapath, qp: &mut QueuePair, wqe: &mut Wqe, cx: &mut Cx<'_>) -> Begun {
        if !qp.sq.has_work() {
            return Begun::Nothing;
        }
        let position = qp.sq.fetch;
        let left = qp.sq.producer.wrapping_sub(position);
        let fetched = match Self::fetch(qp, position, left, wqe, cx.mem) {
            Ok(parsed) => parsed.and_then(|()| self.validate(dp, qp, wqe)),
            Err(cause) => {
                dp.fail_qp(qp, cause, cx);
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
            let segments = wqe.pieces.iter().filter_map(Piece::memory);
            let segment = dp.keys.first_refused(qp.attr.pd, segments, Self::local_access(is_fetch));
            let opcode = (control.opcode, control.modifier);
            cx.fx.refused.extend(RefusedEntry::new((qp.qpn, true, control.index), opcode, fault, segment));
            Self::fail_in_turn(dp, qp, outstanding, fault, cx);
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
            if let Err(fault) = Self::execute_locally(dp, qp, wqe, position) {
                Self::fail_in_turn(dp, qp, outstanding, fault, cx);
                return Begun::Finished;
            }
            if qp.sq.outstanding.is_empty() {
                dp.completions.complete_send(cx.now_ps, qp, &outstanding, cx.fx);
            } else {
                qp.sq.outstanding.push_back(outstanding);
            }
            return Begun::Finished;
        }
        outstanding.packets = packets;
        if is_fetch {
            outstanding.awaited = Awaited::Response(wqe.pieces.iter().filter_map(Piece::memory).collect());
            qp.sq.reads += 1;
        }
        qp.sq.sending = Some(Sending {
            packet: std::mem::take(&mut qp.sq.skip).min(packets - 1),
            packets,
            first_psn: qp.sq.next_psn,
            fetch_latency_ps: if pushed { 0 } else { dp.pcie.fetch_latency(qp.attr.sq) },
        });
        qp.sq.next_psn = psn_add(qp.sq.next_psn, packets);
        qp.sq.outstanding.push_back(outstanding);
        Begun::Sending
    }

    /// Executes a WQE that needs no packet, once: after going back it comes by again.
    fn execute_locally(dp: &mut Datapath, qp: &mut QueuePair, wqe: &Wqe, position: u16) -> Result<(), WqeFault> {
        if wqe.control.opcode == opcode::NOP || qp.sq.executed.contains(&position) {
            return Ok(());
        }
        match &wqe.umr {
            Some(umr) => dp.keys.bind(wqe.control.key(), qp.attr.pd, umr)?,
            None => dp.keys.invalidate(wqe.control.key(), qp.attr.pd)?,
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
        let unreachable = |fault: DmaFault| FailureCause::QueueMemory { addr: fault.addr };
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
            Transport::Ud => self.port_mtu.bytes(),
            Transport::Ethernet => MAX_FRAME_BYTES as u32,
            Transport::Rc | Transport::Uc => qp.path.path_mtu.bytes(),
        }
    }

    /// Checks what the WQE's bytes alone do not show.
    fn validate(&self, dp: &Datapath, qp: &QueuePair, wqe: &Wqe) -> Result<(), WqeFault> {
        if wqe.control.qpn != qp.qpn {
            return Err(WqeFault::operation(vendor::QPN));
        }
        if let Some(address) = &wqe.address {
            if wqe.len > self.port_mtu.bytes() {
                return Err(WqeFault::length());
            }
            if dp.port.identity.source(qp.function, address.source_gid_index).is_none() {
                return Err(WqeFault::operation(vendor::ADDRESS));
            }
        }
        if qp.attr.transport == Transport::Ethernet && !wqe.control.is_local() {
            let most = MAX_FRAME_BYTES - wqe.offloads.added_bytes();
            if !(HEADER_BYTES..=most).contains(&(wqe.len as usize)) {
                return Err(WqeFault::length());
            }
        }
        let is_fetch = wqe.control.is_fetch();
        if is_fetch && qp.path.max_rd_atomic == 0 {
            return Err(WqeFault::operation(vendor::READ_DEPTH));
        }
        let needed = Self::local_access(is_fetch);
        for piece in &wqe.pieces {
            if let Piece::Memory(segment) = piece {
                dp.keys.local(qp.attr.pd, segment.lkey, segment.addr, u64::from(segment.len), needed)?;
            }
        }
        Ok(())
    }

    /// What a WQE needs of its local keys.
    fn local_access(is_fetch: bool) -> Access {
        if is_fetch { Access::LOCAL_WRITE } else { Access::empty() }
    }

    /// Fails a WQE when all earlier ones are complete.
    fn fail_in_turn(dp: &mut Datapath, qp: &mut QueuePair, mut wqe: Outstanding, fault: WqeFault, cx: &mut Cx<'_>) {
        if qp.sq.outstanding.is_empty() {
            dp.fail_send(qp, &wqe, fault, cx);
        } else {
            wqe.packets = 0;
            wqe.awaited = Awaited::Failed(fault);
            qp.sq.outstanding.push_back(wqe);
            qp.sq.stalled = true;
        }
    }
}
