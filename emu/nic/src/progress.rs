//! Missing receives, and entries that the card cannot execute: why a program is stuck.

use crate::cqe::syndrome;
use crate::wqe::{DataSegment, WqeFault};

/// How long a queue pair (RC) has had no receive for a message of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// RNR NAKs since the last message that found a receive.
    pub naks: u64,
    /// When the first of them was sent, in picoseconds.
    pub since_ps: u64,
}

/// A work queue entry that names what the card does not have or does not do. A completion in error follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedEntry {
    /// The queue pair.
    pub qpn: u32,
    /// A send entry, or a receive.
    pub is_send: bool,
    /// Index of the entry, modulo 2^16.
    pub index: u16,
    /// Of a send: opcode and operation modifier.
    pub opcode: (u8, u8),
    /// Syndrome and vendor syndrome; see [`syndrome`](crate::syndrome) and [`vendor`](crate::vendor).
    pub syndrome: (u8, u8),
    /// Of a memory key that refuses: the key, first byte and bytes.
    pub segment: Option<(u32, u64, u32)>,
}

impl RefusedEntry {
    /// The entry of a queue pair that failed for a reason of its own; `None` if the reason is the peer's.
    pub(crate) fn new(
        (qpn, is_send, index): (u32, bool, u16),
        opcode: (u8, u8),
        fault: WqeFault,
        segment: Option<DataSegment>,
    ) -> Option<Self> {
        let own = [syndrome::LOCAL_LENGTH, syndrome::LOCAL_QP_OPERATION, syndrome::LOCAL_PROTECTION];
        let segment = segment.map(|DataSegment { lkey, addr, len, .. }| (lkey, addr, len));
        own.contains(&fault.syndrome).then_some(Self {
            qpn,
            is_send,
            index,
            opcode,
            syndrome: (fault.syndrome, fault.vendor),
            segment,
        })
    }
}
