//! Send queues in DPA memory with one basic block (64 bytes) per entry.

use core::marker::PhantomData;

use crate::abi::SendQueueMemory;
use crate::completion::{CompletionQueue, CqeRef, Segment};
use crate::hw::doorbell::queue_counter;
use crate::hw::wqe::{FLAG_ON_ERROR, FLAG_SIGNALLED, SendWqe};
use crate::hw::{Be32, Be64, ControlSegment, Cqe, CqeOpcode, DataSegment, QpDoorbellRecord, WriteWqe};

/// A send queue. Indices count entries from the queue's creation and never wrap.
#[derive(Debug)]
pub struct SendQueue {
    ring: *mut WriteWqe,
    doorbell_record: *mut QpDoorbellRecord,
    log_depth: u32,
    number: u32,
}

impl SendQueue {
    /// The queue that `memory` names. If there is none, the process ends with [`crate::error::NO_MEMORY`].
    #[inline]
    #[must_use]
    pub fn attach(memory: &SendQueueMemory) -> Self {
        Self {
            ring: crate::there(memory.ring()) as *mut WriteWqe,
            doorbell_record: memory.doorbell_record() as *mut QpDoorbellRecord,
            log_depth: memory.log_depth(),
            number: memory.number(),
        }
    }

    /// QP number.
    #[inline(always)]
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Number of entries.
    #[inline(always)]
    #[must_use]
    pub const fn depth(&self) -> u64 {
        1 << (self.log_depth & 63)
    }

    /// Entry number `index`.
    #[inline(always)]
    #[must_use]
    pub fn slot(&self, index: u64) -> WriteSlot<'_> {
        // SAFETY: inside the ring.
        WriteSlot { at: unsafe { self.ring.add((index & (self.depth() - 1)) as usize) }, queue: PhantomData }
    }

    /// Writes entry number `index` as a send.
    #[inline]
    pub fn write_send(&self, index: u64, entry: SendWqe) {
        // SAFETY: inside the ring; a send has the size of a basic block.
        unsafe { self.slot(index).at.cast::<SendWqe>().write_volatile(entry) };
    }

    /// Writes the beginning of entry number `index`, as numbers that the hardware reads big-endian: one store each. At
    /// most a basic block.
    #[inline(always)]
    pub fn write_words<const N: usize>(&self, index: u64, words: [u64; N]) {
        const { assert!(N * size_of::<u64>() <= size_of::<WriteWqe>(), "more than a basic block") };
        let at = self.slot(index).at.cast::<Be64>();
        for (position, word) in words.into_iter().enumerate() {
            // SAFETY: inside the entry, which is 64-byte aligned.
            unsafe { at.add(position).write_volatile(Be64::new(word)) };
        }
    }

    /// The entries from number `index` on, walked in step with the entries of the same numbers of `queue` as long as
    /// they are plain `opcode`: at most `len`, and not beyond the end of either ring.
    #[inline(always)]
    #[must_use]
    pub fn pair<'q>(
        &'q self,
        queue: &'q CompletionQueue,
        index: u64,
        len: u64,
        opcode: CqeOpcode,
    ) -> PairedSegment<'q> {
        let position = index & (self.depth() - 1);
        let completions = queue.segment(index, len.min(self.depth() - position), opcode);
        // SAFETY: inside the ring.
        let slots = unsafe { self.ring.add(position as usize) };
        let delta = (slots as isize).wrapping_sub(completions.position() as isize);
        PairedSegment { completions, delta, queue: PhantomData }
    }

    /// Publishes in the doorbell record that entries before number `index` are written. Fence before it
    /// ([`crate::fence::memory_write`]) and after it, before the doorbell ([`crate::fence::outbox`]).
    #[inline(always)]
    pub fn set_producer(&self, index: u64) {
        // SAFETY: the host names the queue's doorbell record.
        unsafe { (&raw mut (*self.doorbell_record).send).write_volatile(Be32::new(queue_counter(index))) };
    }

    /// Entries posted as the doorbell record gives them, modulo 65,536.
    #[inline(always)]
    #[must_use]
    pub fn producer(&self) -> u16 {
        // SAFETY: the host names the queue's doorbell record, which only this thread writes.
        unsafe { (&raw const (*self.doorbell_record).send).read_volatile() }.get() as u16
    }
}

/// An entry of the send queue that holds an RDMA Write.
#[derive(Clone, Copy, Debug)]
pub struct WriteSlot<'q> {
    at: *mut WriteWqe,
    queue: PhantomData<&'q SendQueue>,
}

impl WriteSlot<'_> {
    pub(crate) fn start(self) -> *mut WriteWqe {
        self.at
    }

    /// Writes the whole entry.
    #[inline]
    pub fn write(self, entry: WriteWqe) {
        // SAFETY: inside the ring.
        unsafe { self.at.write_volatile(entry) };
    }

    /// Writes the first eight bytes ([`ControlSegment::head`]): index, opcode, QP number, size. One `rev8` and one
    /// store.
    #[inline(always)]
    pub fn set_head(self, head: u64) {
        // SAFETY: inside the ring, 64-byte aligned.
        unsafe { self.at.cast::<Be64>().write_volatile(Be64::new(head)) };
    }

    /// Sets the remote address.
    #[inline(always)]
    pub fn set_remote(self, address: u64) {
        // SAFETY: inside the ring.
        unsafe { (&raw mut (*self.at).remote.address).write_volatile(Be64::new(address)) };
    }

    /// Sets the remote key.
    #[inline]
    pub fn set_remote_key(self, rkey: u32) {
        // SAFETY: inside the ring.
        unsafe { (&raw mut (*self.at).remote.rkey).write_volatile(Be32::new(rkey)) };
    }

    /// Sets length, local key and local address.
    #[inline]
    pub fn set_data(self, data: DataSegment) {
        // SAFETY: inside the ring.
        unsafe { (&raw mut (*self.at).data).write_volatile(data) };
    }

    /// Sets the length.
    #[inline]
    pub fn set_byte_count(self, bytes: u32) {
        // SAFETY: inside the ring.
        unsafe { (&raw mut (*self.at).data.byte_count).write_volatile(Be32::new(bytes)) };
    }

    /// Chooses whether the entry gets a completion.
    #[inline]
    pub fn set_signalled(self, signalled: bool) {
        let flags = if signalled { FLAG_SIGNALLED } else { FLAG_ON_ERROR };
        // SAFETY: inside the ring.
        let control: *mut ControlSegment = unsafe { &raw mut (*self.at).control };
        // SAFETY: inside the entry.
        unsafe { (&raw mut (*control).flags).write_volatile(flags) };
    }
}

/// Completions and the send queue entries of the same numbers, walked together.
#[derive(Debug)]
pub struct PairedSegment<'q> {
    completions: Segment<'q>,
    delta: isize,
    queue: PhantomData<&'q SendQueue>,
}

impl<'q> PairedSegment<'q> {
    /// See [`Segment::peek`]; with the send queue entry of the same number.
    #[inline(always)]
    #[must_use]
    pub fn peek(&self) -> Option<(CqeRef<'q>, WriteSlot<'q>)> {
        let entry = self.completions.peek()?;
        let at = (self.completions.position() as isize).wrapping_add(self.delta) as *mut WriteWqe;
        // `pair` limited both to the send queue's contiguous entries and both have 64 bytes, so `at` is inside its
        // ring.
        Some((entry, WriteSlot { at, queue: PhantomData }))
    }

    /// Goes to the next pair; stays at the end.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.completions.advance();
    }

    /// Pairs passed.
    #[inline(always)]
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.completions.passed()
    }
}

const _: () = assert!(size_of::<Cqe>() == size_of::<WriteWqe>());
