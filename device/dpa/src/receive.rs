//! Receive queues in DPA memory with one scatter element per entry (16 bytes).

use crate::abi::ReceiveQueueMemory;
use crate::hw::doorbell::queue_counter;
use crate::hw::{Be32, DataSegment, QpDoorbellRecord};

/// A receive queue. Indices count entries from the queue's creation and never wrap.
#[derive(Debug)]
pub struct ReceiveQueue {
    ring: *mut DataSegment,
    doorbell_record: *mut QpDoorbellRecord,
    log_depth: u32,
}

impl ReceiveQueue {
    /// The queue that `memory` names. If there is none, the process ends with [`crate::error::NO_MEMORY`].
    #[inline]
    #[must_use]
    pub fn attach(memory: &ReceiveQueueMemory) -> Self {
        Self {
            ring: crate::there(memory.ring()) as *mut DataSegment,
            doorbell_record: memory.doorbell_record() as *mut QpDoorbellRecord,
            log_depth: memory.log_depth(),
        }
    }

    /// Number of entries.
    #[inline(always)]
    #[must_use]
    pub const fn depth(&self) -> u64 {
        1 << (self.log_depth & 63)
    }

    /// Writes entry number `index`.
    #[inline]
    pub fn write(&self, index: u64, segment: DataSegment) {
        // SAFETY: inside the ring.
        unsafe { self.ring.add((index & (self.depth() - 1)) as usize).write_volatile(segment) };
    }

    /// Publishes in the doorbell record that entries before number `index` are posted. New entries must be fenced
    /// before it ([`crate::fence::memory_write`]).
    #[inline(always)]
    pub fn set_producer(&self, index: u64) {
        self.store_producer(Be32::new(queue_counter(index)));
    }

    /// Posts `count` receives again by reading the doorbell record, adding to it and writing it back. New entries must
    /// be fenced before it ([`crate::fence::memory_write`]).
    #[inline(always)]
    pub fn post_more(&self, count: u16) {
        // SAFETY: the host names the queue's doorbell record, which only this thread writes.
        let posted = unsafe { (&raw const (*self.doorbell_record).receive).read_volatile() }.get() as u16;
        self.store_producer(Be32::new(posted.wrapping_add(count).into()));
    }

    #[inline(always)]
    fn store_producer(&self, value: Be32) {
        // SAFETY: the host names the queue's doorbell record.
        unsafe { (&raw mut (*self.doorbell_record).receive).write_volatile(value) };
    }
}
