//! Completion queues in DPA memory.

use core::marker::PhantomData;

use crate::abi::CompletionQueueMemory;
use crate::arch::opaque;
use crate::hw::cqe::{OP_OWN_OFFSET, USER_INDEX_OFFSET, owner_of_pass};
use crate::hw::doorbell::cq_counter;
use crate::hw::{Be32, CqDoorbellRecord, Cqe, CqeOpcode, ErrorCqe};

/// A completion queue. Indices count completions from the queue's creation and never wrap; position in the ring and
/// expected owner bit follow from them.
///
/// Several views of one queue may exist, all on the thread that uses it: they access it by volatile loads and stores,
/// never through references.
#[derive(Debug)]
pub struct CompletionQueue {
    ring: *const Cqe,
    doorbell_record: *mut CqDoorbellRecord,
    log_depth: u32,
    number: u32,
}

impl CompletionQueue {
    /// The queue that `memory` names. If there is none, the process ends with [`crate::error::NO_MEMORY`].
    #[inline]
    #[must_use]
    pub fn attach(memory: &CompletionQueueMemory) -> Self {
        Self {
            ring: crate::there(memory.ring()) as *const Cqe,
            doorbell_record: memory.doorbell_record() as *mut CqDoorbellRecord,
            log_depth: memory.log_depth(),
            number: memory.number(),
        }
    }

    /// CQ number.
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

    /// Entry number `index`, whoever owns it.
    #[inline(always)]
    #[must_use]
    pub fn entry(&self, index: u64) -> CqeRef<'_> {
        let position = index & (self.depth() - 1);
        // SAFETY: inside the ring.
        CqeRef { at: unsafe { self.ring.add(position as usize) }, queue: PhantomData }
    }

    /// Whether the hardware has written entry number `index` and not reused it. Follow by
    /// [`crate::fence::memory_read`].
    #[inline(always)]
    #[must_use]
    pub fn is_ready(&self, index: u64) -> bool {
        let op_own = self.entry(index).op_own();
        op_own & 1 == u64::from(owner_of_pass(index, self.log_depth)) && op_own >> 4 != CqeOpcode::Invalid as u64
    }

    /// [`CompletionQueue::is_ready`] of a queue that is only polled: fewer instructions where nothing is ready.
    #[inline(always)]
    #[must_use]
    pub fn waits(memory: &CompletionQueueMemory, index: u64) -> bool {
        let queue = Self::attach(memory);
        let op_own = queue.entry(index).op_own();
        // An invalid opcode is the highest of all.
        op_own < (CqeOpcode::Invalid as u64) << 4 && op_own & 1 == u64::from(owner_of_pass(index, queue.log_depth))
    }

    /// The entries from number `index` on, at most `len` and not beyond the ring's end, as long as they are plain
    /// `opcode`.
    #[inline(always)]
    #[must_use]
    pub fn segment(&self, index: u64, len: u64, opcode: CqeOpcode) -> Segment<'_> {
        let depth = self.depth();
        let position = index & (depth - 1);
        let len = len.min(depth - position);
        // SAFETY: position + len is at most the depth.
        let (at, end) = unsafe { (self.ring.add(position as usize), self.ring.add((position + len) as usize)) };
        Segment { at, end, start: at, expected: self.plain(index, opcode), queue: PhantomData }
    }

    /// Owner and opcode byte of entry number `index` if the hardware has written it with `opcode` and no other bits.
    #[inline(always)]
    fn plain(&self, index: u64, opcode: CqeOpcode) -> u64 {
        u64::from(crate::hw::cqe::op_own(opcode, owner_of_pass(index, self.log_depth)))
    }

    /// What there is of entry number `index`, by one load of its owner and opcode byte: one comparison where it is
    /// plain `opcode`. Follow by [`crate::fence::memory_read`].
    #[inline(always)]
    #[must_use]
    pub fn poll(&self, index: u64, opcode: CqeOpcode) -> Poll<'_> {
        let entry = self.entry(index);
        let op_own = entry.op_own();
        if op_own == self.plain(index, opcode) {
            Poll::Plain(entry)
        } else if op_own >= (CqeOpcode::Invalid as u64) << 4
            || op_own & 1 != u64::from(owner_of_pass(index, self.log_depth))
        {
            Poll::Empty
        } else {
            Poll::Other(entry)
        }
    }

    /// Publishes in the doorbell record that entries before number `index` are consumed. Fence before it
    /// ([`crate::fence::memory`]) if their reads are not yet ordered.
    #[inline(always)]
    pub fn set_consumer(&self, index: u64) {
        // SAFETY: the host names the queue's doorbell record.
        unsafe { (&raw mut (*self.doorbell_record).consumer).write_volatile(Be32::new(cq_counter(index))) };
    }
}

/// An entry in the ring. Every getter loads from memory; the hardware may own the entry.
#[derive(Clone, Copy, Debug)]
pub struct CqeRef<'q> {
    at: *const Cqe,
    queue: PhantomData<&'q CompletionQueue>,
}

impl CqeRef<'_> {
    /// The owner and opcode byte, zero-extended.
    #[inline(always)]
    #[must_use]
    pub fn op_own(self) -> u64 {
        // SAFETY: inside the ring; volatile, because the hardware writes it.
        u64::from(unsafe { self.at.cast::<u8>().add(OP_OWN_OFFSET).read_volatile() })
    }

    /// User index in bits 63:32, immediate as a number in bits 31:0: one load and one `rev8`.
    #[inline(always)]
    #[must_use]
    pub fn user_index_and_immediate(self) -> u64 {
        // SAFETY: the pair is 8-byte aligned inside the entry; software owns it.
        u64::from_be(unsafe { self.at.cast::<u8>().add(USER_INDEX_OFFSET).cast::<u64>().read_volatile() })
    }

    /// User index of the queue pair, 24 bits.
    #[inline(always)]
    #[must_use]
    pub fn user_index(self) -> u32 {
        (self.user_index_and_immediate() >> 32) as u32 & 0xFF_FFFF
    }

    /// Immediate as it lies in memory, without a swap.
    #[inline(always)]
    #[must_use]
    pub fn immediate_raw(self) -> u32 {
        // SAFETY: inside the entry, 4-byte aligned; software owns it.
        unsafe { self.at.cast::<u8>().add(USER_INDEX_OFFSET + 4).cast::<u32>().read_volatile() }
    }

    /// Received bytes.
    #[inline(always)]
    #[must_use]
    pub fn byte_count(self) -> u32 {
        self.byte_count_raw().get()
    }

    /// Received bytes as they lie in memory, for comparison without a swap.
    #[inline(always)]
    #[must_use]
    pub fn byte_count_raw(self) -> Be32 {
        // SAFETY: inside the ring.
        unsafe { (&raw const (*self.at).byte_count).read_volatile() }
    }

    /// Index of the work queue entry that completed.
    #[inline(always)]
    #[must_use]
    pub fn wqe_counter(self) -> u16 {
        // SAFETY: inside the ring.
        unsafe { (&raw const (*self.at).wqe_counter).read_volatile() }.get()
    }

    /// Syndrome of an error entry.
    #[inline]
    #[must_use]
    pub fn syndrome(self) -> u8 {
        // SAFETY: inside the ring; an error entry has the size of an entry.
        unsafe { (&raw const (*self.at.cast::<ErrorCqe>()).syndrome).read_volatile() }
    }
}

/// What [`CompletionQueue::poll`] found.
#[derive(Clone, Copy, Debug)]
pub enum Poll<'q> {
    /// The hardware has not written the entry.
    Empty,
    /// An entry of the expected opcode, with no other bits than the owner.
    Plain(CqeRef<'q>),
    /// An entry of another opcode or with other bits.
    Other(CqeRef<'q>),
}

/// Consecutive entries of one pass of the ring: a cursor that costs one comparison for owner and opcode and one for the
/// end.
#[derive(Debug)]
pub struct Segment<'q> {
    at: *const Cqe,
    end: *const Cqe,
    start: *const Cqe,
    expected: u64,
    queue: PhantomData<&'q CompletionQueue>,
}

impl<'q> Segment<'q> {
    /// The next entry, if there is one left in the segment and the hardware has written it with the expected opcode and
    /// no other bits. Follow by [`crate::fence::memory_read`].
    #[inline(always)]
    #[must_use]
    pub fn peek(&self) -> Option<CqeRef<'q>> {
        if self.at == self.end {
            return None;
        }
        let entry = CqeRef { at: self.at, queue: PhantomData };
        (entry.op_own() == self.expected).then_some(entry)
    }

    /// Goes to the next entry; stays at the end.
    #[inline(always)]
    pub fn advance(&mut self) {
        if self.at != self.end {
            // SAFETY: not the end, so inside the ring.
            let next = unsafe { self.at.add(1) };
            // Hidden from the compiler, which would otherwise keep a second pointer or a count-down in step: one
            // instruction per entry.
            self.at = opaque(next as u64) as *const Cqe;
        }
    }

    /// Entries passed.
    #[inline(always)]
    #[must_use]
    pub fn passed(&self) -> u64 {
        (self.at as u64 - self.start as u64) / size_of::<Cqe>() as u64
    }

    #[inline(always)]
    pub(crate) fn position(&self) -> *const Cqe {
        self.at
    }
}
