//! Rings and doorbell records of a queue pair, in memory.

use super::QueuePair;
use crate::effects::FailureCause;
use crate::memory::{Dma, DmaFault, QueueMemory};
use crate::wqe::BLOCK_BYTES;

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

    /// Reads bytes of a receive entry from its start.
    pub(crate) fn read_receive_ring(&self, index: u16, out: &mut [u8], mem: &mut dyn Dma) -> Result<(), DmaFault> {
        let log_bytes = u32::from(self.attr.log_rq_depth) + u32::from(self.attr.log_rq_stride);
        read_ring(self.attr.rq, log_bytes, u64::from(index) << self.attr.log_rq_stride, out, mem)
    }

    pub(crate) fn send_depth(&self) -> u16 {
        1 << self.attr.log_sq_depth
    }

    /// The receives posted to its own ring. The doorbell record is read only if nothing is known to be posted.
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

    /// A receive has completed.
    pub(crate) fn receive_completed(&mut self) {
        match &mut self.rq.shared {
            Some(share) => share.own = None,
            None => self.rq.consumer = self.rq.consumer.wrapping_add(1),
        }
    }

    pub(crate) fn refresh_receives(&mut self, mem: &mut dyn Dma) -> Result<(), FailureCause> {
        let record = self.attr.doorbell_record;
        let mut word = [0; 4];
        mem.read(record.space, record.addr, &mut word)
            .map_err(|fault| FailureCause::QueueMemory { addr: fault.addr })?;
        let producer_index = u32::from_be_bytes(word) as u16;
        let depth = 1_u32 << self.attr.log_rq_depth;
        if u32::from(producer_index.wrapping_sub(self.rq.consumer)) > depth {
            let consumer_index = self.rq.consumer;
            return Err(FailureCause::BadDoorbell { is_send: false, producer_index, consumer_index, depth });
        }
        self.rq.producer = producer_index;
        Ok(())
    }
}
