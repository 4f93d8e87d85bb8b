//! Rings and doorbell records of a queue pair, in memory.

use std::sync::atomic::Ordering;

use super::QueuePair;
use crate::effects::FailureCause;
use crate::memory::{Dma, DmaFault, QueueMemory};
use crate::wqe::{BLOCK_BYTES, parse_receive};

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

    /// The receive counter, read from the doorbell record only if nothing is known to be posted.
    ///
    /// # Errors
    /// The record cannot be read, or posts more than the ring holds.
    pub(crate) fn posted_receives(&mut self, mem: &mut dyn Dma) -> Result<u16, FailureCause> {
        if self.attr.no_rq {
            return Ok(0);
        }
        // Others may have taken what was posted when this queue pair read last.
        let is_shared = self.follow_others();
        if is_shared || self.rq.producer == self.rq.consumer {
            self.refresh_receives(mem)?;
        }
        Ok(self.rq.producer.wrapping_sub(self.rq.consumer))
    }

    /// Of a ring that is shared: its next receive is behind those that others have taken, unless one is this queue
    /// pair's own.
    fn follow_others(&mut self) -> bool {
        let Some(shared) = &self.rq.shared else { return false };
        if !shared.has_one {
            self.rq.consumer = shared.taken.load(Ordering::Relaxed);
        }
        true
    }

    /// The next receive is this queue pair's from now on, and nobody else's.
    fn take_receive(&mut self) {
        if let Some(shared) = &mut self.rq.shared
            && !std::mem::replace(&mut shared.has_one, true)
        {
            self.rq.consumer = shared.taken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A receive has completed.
    pub(crate) fn receive_completed(&mut self) {
        self.take_receive();
        match &mut self.rq.shared {
            Some(shared) => shared.has_one = false,
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

    /// Parses the next posted receive into `rq.segments`; gives its capacity.
    pub(crate) fn load_receive(&mut self, mem: &mut dyn Dma) -> Result<u64, FailureCause> {
        self.take_receive();
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
        self.read_receive_ring(self.rq.consumer, bytes, mem)
            .map_err(|fault| FailureCause::QueueMemory { addr: fault.addr })?;
        Ok(parse_receive(bytes, &mut self.rq.segments))
    }
}
