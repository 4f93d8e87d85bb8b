//! Shared receive queues: receives that several queue pairs take from one queue in memory.
//!
//! The receives are a ring that is filled in order, or a linked list in a ring: each entry begins with 16 bytes whose
//! bytes 2 and 3 are the index of the next one (`mlx5_wqe_srq_next_seg`), for receives complete in another order than
//! they were posted, and their entries are used again in that one.

use serde::{Deserialize, Serialize};

use crate::effects::FailureCause;
use crate::memory::{Dma, QueueMemory};
use crate::wqe::SEGMENT_BYTES;

/// How a shared receive queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Protection domain of its receives' keys.
    pub pd: u32,
    /// The ring, 16-byte aligned.
    pub ring: QueueMemory,
    /// log2 of its entries, 0 to 15. One of a list is never posted: its index is what the last posted one names next.
    pub log_depth: u8,
    /// log2 of an entry's bytes, 4 (a ring) or 5 (a list) to 10.
    pub log_stride: u8,
    /// The doorbell record, 4-byte aligned: how many receives have been posted, big-endian, modulo 2^16.
    pub doorbell_record: QueueMemory,
    /// Which entry follows which.
    pub order: ReceiveOrder,
}

/// Which entry of a shared receive queue follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceiveOrder {
    /// The next in memory.
    Ring,
    /// The one that it names. The first is entry 0.
    List,
}

/// How far a shared receive queue has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqProgress {
    /// How it was made.
    pub attr: SrqAttr,
    /// Receives that queue pairs have taken, modulo 2^16.
    pub taken: u16,
    /// With fewer receives left than this an event is raised, once; 0 without.
    pub limit: u16,
}

#[derive(Debug)]
pub(crate) struct SharedReceives {
    pub(crate) attr: SrqAttr,
    /// Queue pairs that take from it.
    pub(crate) users: u32,
    /// It goes with the last of them.
    pub(crate) temporary: bool,
    /// Index of the next receive, and how many have been taken before it.
    head: u16,
    taken: u16,
    /// Receives posted, as last read from the doorbell record.
    producer: u16,
    limit: u16,
}

impl SharedReceives {
    pub(crate) fn new(attr: SrqAttr, temporary: bool) -> Self {
        Self { attr, users: 0, temporary, head: 0, taken: 0, producer: 0, limit: 0 }
    }

    pub(crate) fn progress(&self) -> SrqProgress {
        SrqProgress { attr: self.attr, taken: self.taken, limit: self.limit }
    }

    /// Bytes of an entry before its segments.
    pub(crate) fn head_bytes(&self) -> usize {
        match self.attr.order {
            ReceiveOrder::Ring => 0,
            ReceiveOrder::List => SEGMENT_BYTES,
        }
    }

    /// The receives that nobody has taken. The record is read only if nothing is known to be there.
    ///
    /// # Errors
    /// The record cannot be read, or posts more than the ring holds.
    pub(crate) fn posted(&mut self, mem: &mut dyn Dma) -> Result<u16, FailureCause> {
        if self.producer == self.taken {
            self.refresh(mem)?;
        }
        Ok(self.producer.wrapping_sub(self.taken))
    }

    fn refresh(&mut self, mem: &mut dyn Dma) -> Result<(), FailureCause> {
        let record = self.attr.doorbell_record;
        let mut word = [0; 4];
        mem.read(record.space, record.addr, &mut word)
            .map_err(|fault| FailureCause::QueueMemory { addr: fault.addr })?;
        let (producer_index, consumer_index) = (u32::from_be_bytes(word) as u16, self.taken);
        let depth = 1 << self.attr.log_depth;
        if u32::from(producer_index.wrapping_sub(consumer_index)) > depth {
            return Err(FailureCause::BadDoorbell { is_send: false, producer_index, consumer_index, depth });
        }
        self.producer = producer_index;
        Ok(())
    }

    /// Reads bytes of an entry from its start.
    ///
    /// # Errors
    /// It is in memory that the card cannot reach.
    pub(crate) fn read(&self, index: u16, out: &mut [u8], mem: &mut dyn Dma) -> Result<(), FailureCause> {
        let slot = u64::from(index) & ((1 << self.attr.log_depth) - 1);
        let addr = self.attr.ring.at(slot << self.attr.log_stride);
        mem.read(self.attr.ring.space, addr, out).map_err(|fault| FailureCause::QueueMemory { addr: fault.addr })
    }

    /// Takes the next of the posted receives; gives its index, and whether so few are left that the event is due.
    ///
    /// # Errors
    /// As [`posted`](Self::posted), and [`read`](Self::read).
    pub(crate) fn take(&mut self, mem: &mut dyn Dma) -> Result<(u16, bool), FailureCause> {
        let index = self.head;
        self.head = match self.attr.order {
            ReceiveOrder::Ring => index.wrapping_add(1),
            ReceiveOrder::List => {
                let mut next = [0; 4];
                self.read(index, &mut next, mem)?;
                u16::from_be_bytes([next[2], next[3]])
            }
        };
        self.taken = self.taken.wrapping_add(1);
        Ok((index, self.is_low(mem)?))
    }

    /// Asks for an event with fewer than `limit` receives left, 0 for none.
    pub(crate) fn arm(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Whether that event is due, which is then no longer asked for.
    ///
    /// # Errors
    /// As [`posted`](Self::posted).
    pub(crate) fn is_low(&mut self, mem: &mut dyn Dma) -> Result<bool, FailureCause> {
        if self.limit == 0 {
            return Ok(false);
        }
        self.refresh(mem)?;
        let is_low = self.producer.wrapping_sub(self.taken) < self.limit;
        if is_low {
            self.limit = 0;
        }
        Ok(is_low)
    }
}
