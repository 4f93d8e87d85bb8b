//! Users of memory and memory keys: queues by their rings and records, and posted entries by the keys that they name.
//! So that memory or a key which goes while a queue uses it can be reported.

use std::ops::Range;

use super::Nic;
use crate::memory::{Dma, QueueMemory, Space};
use crate::queue_pair::QueuePair;
use crate::wqe::{BLOCK_BYTES, Control, MAX_WQE_BYTES, Piece, SEGMENT_BYTES, Wqe, parse_receive};

/// Bytes of a completion queue entry.
const CQE_BYTES: u64 = 64;
/// Bytes of a doorbell record.
const RECORD_BYTES: u64 = 8;

/// Most posted entries of a queue that are read in search of a key, and of all queues.
const MOST_ENTRIES: (usize, usize) = (64, 4096);

/// What of a queue lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePart {
    /// Ring of a completion queue.
    CqRing,
    /// Its doorbell record.
    CqRecord,
    /// Receive ring of a queue pair.
    ReceiveRing,
    /// Its send ring.
    SendRing,
    /// Its doorbell record.
    QpRecord,
    /// Ring of a shared receive queue.
    SrqRing,
    /// Its doorbell record.
    SrqRecord,
}

/// An entry that is posted and not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedEntry {
    /// The queue pair.
    pub qpn: u32,
    /// A send entry, or a receive.
    pub is_send: bool,
    /// Index of the entry, modulo 2^16.
    pub index: u16,
}

impl Nic {
    /// The first queue of which something lies in a range of memory: what, and its number.
    #[must_use]
    pub fn queue_in(&self, space: Space, range: &Range<u64>) -> Option<(QueuePart, u32)> {
        let lies = |at: QueueMemory, bytes: u64| {
            at.space == space && at.addr < range.end && range.start < at.addr.saturating_add(bytes)
        };
        let of_cq = |cqn: u32| {
            let attr = self.query_cq(cqn)?;
            let parts = [
                (QueuePart::CqRing, attr.ring, CQE_BYTES << attr.log_depth),
                (QueuePart::CqRecord, attr.doorbell_record, RECORD_BYTES),
            ];
            parts.into_iter().find(|(_, at, bytes)| lies(*at, *bytes)).map(|(part, ..)| (part, cqn))
        };
        let of_qp = |qpn: u32| {
            let attr = &self.qps.get(qpn)?.attr;
            let receive = if attr.no_rq { 0 } else { 1 << (attr.log_rq_depth + attr.log_rq_stride) };
            let send = if attr.no_sq { 0 } else { (BLOCK_BYTES as u64) << attr.log_sq_depth };
            let parts = [
                (QueuePart::ReceiveRing, attr.rq, receive),
                (QueuePart::SendRing, attr.sq, send),
                (QueuePart::QpRecord, attr.doorbell_record, RECORD_BYTES),
            ];
            parts.into_iter().find(|(_, at, bytes)| *bytes > 0 && lies(*at, *bytes)).map(|(part, ..)| (part, qpn))
        };
        let queues = self.completion_queues(|attr| attr.ring.space == space || attr.doorbell_record.space == space);
        let of_srq = |srqn: u32| {
            let attr = self.query_srq(srqn).ok()?.attr;
            let parts = [
                (QueuePart::SrqRing, attr.ring, 1 << (attr.log_depth + attr.log_stride)),
                (QueuePart::SrqRecord, attr.doorbell_record, RECORD_BYTES),
            ];
            parts.into_iter().find(|(_, at, bytes)| lies(*at, *bytes)).map(|(part, ..)| (part, srqn))
        };
        let of_qp = || self.queue_pairs(0).find_map(of_qp);
        let shared = || self.datapath.shared.numbers(|shared| !shared.temporary);
        queues.into_iter().find_map(of_cq).or_else(of_qp).or_else(|| shared().into_iter().find_map(of_srq))
    }

    /// A posted entry that names a memory key, of a queue pair whose rings are in memory of the DPA: its program has no
    /// other way to learn of it. The oldest entries of each queue are read, and nothing is changed.
    pub fn posted_with_key(&self, key: u32, mem: &mut dyn Dma) -> Option<PostedEntry> {
        let mut left = MOST_ENTRIES.1;
        self.queue_pairs(0).find_map(|qpn| {
            let qp = self.qps.get(qpn).filter(|qp| matches!(qp.attr.doorbell_record.space, Space::Dpa(_)))?;
            let found = send_with_key(qp, key, &mut left, mem).map(|index| (true, index));
            let found = found.or_else(|| receive_with_key(qp, key, &mut left, mem).map(|index| (false, index)));
            found.map(|(is_send, index)| PostedEntry { qpn, is_send, index })
        })
    }
}

fn send_with_key(qp: &QueuePair, key: u32, left: &mut usize, mem: &mut dyn Dma) -> Option<u16> {
    let (mut wqe, mut bytes) = (Wqe::default(), [0; MAX_WQE_BYTES]);
    let mut position = qp.sq.retired;
    for _ in 0..MOST_ENTRIES.0 {
        if position == qp.sq.producer {
            break;
        }
        *left = left.checked_sub(1)?;
        let posted = qp.sq.producer.wrapping_sub(position);
        let (head, _) = bytes.split_first_chunk_mut::<SEGMENT_BYTES>()?;
        qp.read_send_ring(position, head, mem).ok()?;
        let control = Control::parse(head);
        let blocks = control.blocks().clamp(1, posted);
        let len = (control.segments * SEGMENT_BYTES).min(usize::from(blocks) * BLOCK_BYTES);
        qp.read_send_ring(position, &mut bytes[..len], mem).ok()?;
        let names = |piece: &Piece| matches!(piece, Piece::Memory(segment) if segment.lkey == key);
        if wqe.parse(&bytes[..len], qp.attr.transport).is_ok() && wqe.pieces.iter().any(names) {
            return Some(control.index);
        }
        position = position.wrapping_add(blocks);
    }
    None
}

fn receive_with_key(qp: &QueuePair, key: u32, left: &mut usize, mem: &mut dyn Dma) -> Option<u16> {
    if qp.attr.no_rq {
        return None;
    }
    let mut word = [0; 4];
    let record = qp.attr.doorbell_record;
    mem.read(record.space, record.addr, &mut word).ok()?;
    let posted = (u32::from_be_bytes(word) as u16).wrapping_sub(qp.rq.consumer);
    let stride = 1_usize << qp.attr.log_rq_stride;
    let (mut bytes, mut segments) = ([0; 1024], Vec::new());
    let read = usize::from(posted.min(1 << qp.attr.log_rq_depth)).min(MOST_ENTRIES.0).min(*left);
    *left -= read;
    (0..read as u16).map(|at| qp.rq.consumer.wrapping_add(at)).find(|index| {
        qp.read_receive_ring(*index, &mut bytes[..stride], mem).is_ok() && {
            parse_receive(&bytes[..stride], &mut segments);
            segments.iter().any(|segment| segment.lkey == key)
        }
    })
}
