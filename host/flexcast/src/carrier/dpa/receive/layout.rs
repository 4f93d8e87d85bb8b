//! Memory that host and receive contexts share, and the queues as the firmware is given them.

use std::mem::size_of;

use flexcast_abi::{
    CompletionFlag, CompletionQueueMemory, ContextRefusal, DeviceAddress, Queue, ReceiveQueueMemory, ReceiveReport,
    RunRow, SendQueueMemory,
};
use flexio::{DevAddr, DpaCompletionQueue, DpaQueuePair};

use crate::error::{Error, Result};
use crate::op::config::Derived;

pub(super) const ROW_BYTES: u64 = size_of::<RunRow>() as u64;

/// Where things lie in the host memory that the workers write through their windows, and from which rows are written to
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    contexts: usize,
    bitmap_bytes: usize,
    pub(super) row_bytes: usize,
}

impl Shared {
    pub(crate) fn new(derived: &Derived, ranks: u32) -> Self {
        let bitmap_bytes = 8 * (derived.bitmap_words + derived.tail_words) as usize;
        let row_bytes = ranks as usize * ROW_BYTES as usize;
        Self {
            contexts: derived.streams as usize,
            bitmap_bytes: bitmap_bytes.next_multiple_of(64),
            row_bytes: row_bytes.next_multiple_of(64),
        }
    }

    pub(super) const fn flag(self) -> usize {
        0
    }

    pub(super) const fn report(self, context: usize) -> usize {
        self.flag() + size_of::<CompletionFlag>() + context * size_of::<ReceiveReport>()
    }

    /// The bitmaps of a receive context, twice: the `odd` copy lies behind the other.
    pub(super) const fn bitmap(self, context: usize, odd: bool) -> usize {
        self.report(self.contexts) + (2 * context + odd as usize) * self.bitmap_bytes
    }

    pub(super) const fn rows(self, context: usize) -> usize {
        self.bitmap(self.contexts, false) + context * self.row_bytes
    }

    pub(crate) const fn bytes(self) -> usize {
        self.rows(self.contexts)
    }
}

pub(super) fn device(addr: DevAddr) -> DeviceAddress {
    DeviceAddress::new(addr.get())
}

pub(crate) fn cq_memory(cq: &DpaCompletionQueue) -> CompletionQueueMemory {
    Queue::new(device(cq.ring()), device(cq.doorbell_record()), cq.number(), u32::from(cq.log_depth()))
}

pub(crate) fn receive_memory(qp: &DpaQueuePair) -> ReceiveQueueMemory {
    let log_depth = qp.depths().log_receive.unwrap_or(0);
    Queue::new(device(qp.receive_ring()), device(qp.doorbell_record()), qp.number(), u32::from(log_depth))
}

pub(crate) fn send_memory(qp: &DpaQueuePair) -> SendQueueMemory {
    let log_depth = qp.depths().log_send.unwrap_or(0);
    Queue::new(device(qp.send_ring()), device(qp.doorbell_record()), qp.number(), u32::from(log_depth))
}

/// Turns the answer of a `prepare` RPC into a result.
pub(crate) fn accepted(what: &'static str, answer: std::result::Result<(), ContextRefusal>) -> Result<()> {
    answer.map_err(|refusal| {
        let name = refusal.fault().map_or_else(|| "unknown".to_owned(), |fault| format!("{fault:?}"));
        Error::Context { what, number: refusal.part, code: refusal.code.into(), name }
    })
}
