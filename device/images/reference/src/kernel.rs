//! The published receive kernels (Khalilov et al., *Network-Offloaded Bandwidth-Optimal Broadcast and Allgather for
//! Distributed AI*, and the authors' prototype), step by step: what they do with each completion is here, and nothing
//! else.
//!
//! They repair no loss: a chunk that does not follow the one before it ends the iteration. They have no read fence
//! behind the owner bit and only a store fence before a doorbell, which is too little on a memory that reorders. One
//! thing is left out, which happens once in an iteration: the acknowledgement of 8 bytes to the sender.

use core::hint::black_box;

use dpa::abi::reference::{ReferenceContext, ReferenceIteration, ReferenceReport, ReferenceStatus};
use dpa::abi::{CompletionFlag, FLAG_MAGIC, Layout as _, Transport};
use dpa::group::Group;
use dpa::hw::wqe::{FLAG_ON_ERROR, FLAG_SIGNALLED};
use dpa::hw::{ControlSegment, CqeOpcode, DataSegment, GRH_BYTES, WqeOpcode, WriteWqe};
use dpa::proto::Mark;
use dpa::{
    BitmapView, CompletionQueue, Counters, CqeRef, Entity, Next, Outbox, ReceiveQueue, SendQueue, Thread, Window,
    error, fatal, fence,
};

/// Copies for each completion of copies.
const COPIES_PER_CQE: u64 = 16;

/// Body of the event handlers: the iteration that the host has written, if it is a new one; then to sleep until the
/// next chunk comes.
pub(crate) fn run(context: &mut ReferenceContext, transport: Transport) -> Next {
    if context.layout_hash != ReferenceContext::HASH || context.transport != transport as u32 {
        fatal(error::NOT_PREPARED);
    }
    let thread = Thread::current();
    if context.configured == 0 {
        if !Outbox::configure(&thread, context.outbox_id)
            || Window::configure(Entity::Zero, context.window_id, context.window_mkey).is_err()
        {
            fatal(error::NO_RESOURCE);
        }
        context.configured = 1;
    }
    let outbox = Outbox::of(&thread);
    let iteration = dpa::HostLine::attach(&context.iteration).snapshot();
    if iteration.sequence != context.ended {
        let kernel = Kernel::new(context, &iteration, &outbox);
        let ended = match (transport, iteration.counted != 0) {
            (Transport::Uc, false) => uc_plain(kernel),
            (Transport::Uc, true) => uc_counted(kernel),
            (Transport::Ud, false) => ud_plain(kernel, Copies::new(context)),
            (Transport::Ud, true) => ud_counted(kernel, Copies::new(context)),
        };
        context.consumed += u64::from(iteration.chunks) - ended.left;
        context.copies_consumed += ended.report.copy_cqes;
        context.ended = iteration.sequence;
        write_report(context, &iteration, ended);
    }
    outbox.arm_cq(context.receive_cq.number(), context.consumed);
    Next::Reschedule
}

/// What is left of an iteration when its loop has ended.
struct Ended {
    /// Chunks that have not come.
    left: u64,
    report: ReferenceReport,
}

// One symbol per loop, so that listings and crash records distinguish them.

#[inline(never)]
fn uc_plain(kernel: Kernel<'_>) -> Ended {
    kernel.receive_uc::<false>()
}

#[inline(never)]
fn uc_counted(kernel: Kernel<'_>) -> Ended {
    kernel.receive_uc::<true>()
}

#[inline(never)]
fn ud_plain(kernel: Kernel<'_>, copies: Copies) -> Ended {
    kernel.receive_ud::<false>(copies)
}

#[inline(never)]
fn ud_counted(kernel: Kernel<'_>, copies: Copies) -> Ended {
    kernel.receive_ud::<true>(copies)
}

/// A completion queue as the kernels walk it: a position and the owner bit of this pass.
struct Cursor {
    cq: CompletionQueue,
    index: u64,
    owner: u64,
}

impl Cursor {
    fn new(cq: CompletionQueue, index: u64) -> Self {
        let owner = index >> cq.depth().trailing_zeros() & 1;
        Self { cq, index, owner }
    }

    /// The next entry, if the hardware has written it.
    #[inline(always)]
    fn poll(&self) -> Option<CqeRef<'_>> {
        let entry = self.cq.entry(self.index);
        (entry.op_own() & 1 == self.owner).then_some(entry)
    }

    /// Goes to the next entry and notifies the hardware.
    #[inline(always)]
    fn advance(&mut self) {
        self.index += 1;
        if self.index & (self.cq.depth() - 1) == 0 {
            self.owner ^= 1;
        }
        self.cq.set_consumer(self.index);
    }
}

/// The profiling counters of the prototype: around the body of the loop and around the whole of a poll that found
/// something.
#[derive(Default)]
struct Profile {
    poll: Counters,
    body: Counters,
}

impl Profile {
    /// Adds a poll that began at `poll` and whose loop body began at `body`. The sums lie in memory, as the prototype's
    /// do, and those of the body count for the poll.
    #[inline(always)]
    fn add(&mut self, poll: Counters, body: Counters) {
        let spent = Counters::read().since(body);
        self.body.instructions += spent.instructions;
        self.body.cycles += spent.cycles;
        black_box(&mut *self);
        let spent = Counters::read().since(poll);
        self.poll.instructions += spent.instructions;
        self.poll.cycles += spent.cycles;
        black_box(self);
    }
}

/// What a kernel works with.
struct Kernel<'k> {
    iteration: &'k ReferenceIteration,
    outbox: &'k Outbox,
    network: Cursor,
    receive_queue: ReceiveQueue,
    bitmap: BitmapView,
    /// Chunk that must come next.
    expected: u32,
    /// Chunks to come.
    left: u64,
    status: (ReferenceStatus, u32),
}

/// What copies staged chunks (UD).
struct Copies {
    done: Cursor,
    queue: SendQueue,
    /// Copies that may be posted.
    capacity: u64,
    staging: u64,
    stride: u64,
    lkey: u32,
}

impl Copies {
    fn new(context: &ReferenceContext) -> Self {
        let queue = SendQueue::attach(&context.copy_queue);
        Self {
            done: Cursor::new(CompletionQueue::attach(&context.copy_cq), context.copies_consumed),
            capacity: queue.depth(),
            queue,
            staging: context.staging.address,
            stride: u64::from(context.staging.stride),
            lkey: context.staging.lkey,
        }
    }
}

impl<'k> Kernel<'k> {
    fn new(context: &ReferenceContext, iteration: &'k ReferenceIteration, outbox: &'k Outbox) -> Self {
        let bitmap = BitmapView::attach(&context.bitmap, iteration.chunks);
        bitmap.clear();
        Self {
            iteration,
            outbox,
            network: Cursor::new(CompletionQueue::attach(&context.receive_cq), context.consumed),
            receive_queue: ReceiveQueue::attach(&context.receive_queue),
            bitmap,
            expected: 0,
            left: u64::from(iteration.chunks),
            status: (ReferenceStatus::Complete, 0),
        }
    }

    /// RDMA Writes with immediate: a completion each, and a receive posted again for each.
    #[inline(always)]
    fn receive_uc<const COUNTED: bool>(mut self) -> Ended {
        let mut profile = Profile::default();
        while self.network.poll().is_none() {}
        let begin = Counters::read();
        while self.left != 0 {
            let poll = if COUNTED { Counters::read() } else { Counters::default() };
            let Some(entry) = self.network.poll() else { continue };
            let body = if COUNTED { Counters::read() } else { Counters::default() };
            let (op_own, chunk) = (entry.op_own(), entry.immediate_raw());
            if let Err(refused) = self.take(op_own, chunk, CqeOpcode::WriteImmediate) {
                self.status = refused;
                break;
            }
            self.network.advance();
            fence::memory_write();
            self.receive_queue.post_more(1);
            self.left -= 1;
            if COUNTED {
                profile.add(poll, body);
            }
        }
        self.end(begin, &profile, 0)
    }

    /// Datagrams: each is copied from its staging slot by an RDMA Write of the card to itself, which has a doorbell of
    /// its own. One completion covers [`COPIES_PER_CQE`] copies; their receives are posted again then.
    #[inline(always)]
    fn receive_ud<const COUNTED: bool>(mut self, mut copies: Copies) -> Ended {
        let mut profile = Profile::default();
        let first = copies.done.index;
        let depth = copies.queue.depth();
        while self.network.poll().is_none() {}
        let begin = Counters::read();
        while self.left != 0 || copies.capacity != depth {
            let poll = if COUNTED { Counters::read() } else { Counters::default() };
            let mut body = None;
            if self.left != 0
                && copies.capacity != 0
                && let Some(entry) = self.network.poll()
            {
                body = Some(if COUNTED { Counters::read() } else { Counters::default() });
                let (op_own, chunk) = (entry.op_own(), entry.immediate_raw());
                let bytes = entry.byte_count().wrapping_sub(GRH_BYTES);
                if let Err(refused) = self.take(op_own, chunk, CqeOpcode::SendImmediate) {
                    self.status = refused;
                    break;
                }
                let slot = self.network.index & (self.receive_queue.depth() - 1);
                self.network.advance();
                self.left -= 1;
                self.copy(&copies, chunk, slot, bytes);
                copies.capacity -= 1;
            }
            if let Some(entry) = copies.done.poll() {
                let op_own = entry.op_own();
                if op_own >> 4 != CqeOpcode::Requester as u64 {
                    self.status = (ReferenceStatus::CopyOpcode, op_own as u32);
                    break;
                }
                let copied = COPIES_PER_CQE.min(depth - copies.capacity);
                self.receive_queue.post_more(copied as u16);
                fence::memory_write();
                copies.done.advance();
                copies.capacity += copied;
            }
            if COUNTED && let Some(body) = body {
                profile.add(poll, body);
            }
        }
        let copied = copies.done.index - first;
        self.end(begin, &profile, copied)
    }

    /// A completion of the network: opcode, chunk number, bitmap.
    #[inline(always)]
    fn take(&mut self, op_own: u64, chunk: u32, opcode: CqeOpcode) -> Result<(), (ReferenceStatus, u32)> {
        if op_own >> 4 != opcode as u64 {
            return Err((ReferenceStatus::Opcode, op_own as u32));
        }
        // The senders store the number as this side loads it.
        if self.bitmap.mark(u64::from(chunk)) != Mark::First || chunk != self.expected {
            return Err((ReferenceStatus::Gap, chunk));
        }
        self.expected += 1;
        Ok(())
    }

    /// Writes the work queue entry of a copy, all three segments of it, and rings.
    #[inline(always)]
    fn copy(&self, copies: &Copies, chunk: u32, slot: u64, bytes: u32) {
        let index = copies.queue.producer();
        let qpn = copies.queue.number();
        // The last of an iteration is signalled, too: nothing else would report that it is there.
        let signalled = u64::from(self.expected) % COPIES_PER_CQE == 0 || self.left == 0;
        if let Some(entry) = copies.queue.entries::<WriteWqe>(u64::from(index), 1).peek() {
            entry.set_head(ControlSegment::head(index, WqeOpcode::Write, qpn, WriteWqe::SEGMENTS));
            entry.set_tail(ControlSegment::tail(if signalled { FLAG_SIGNALLED } else { FLAG_ON_ERROR }, 0));
            let offset = u64::from(chunk).wrapping_mul(u64::from(self.iteration.chunk_bytes));
            entry.set_remote(self.iteration.destination.wrapping_add(offset));
            entry.set_remote_key(dpa::hw::Be32::new(self.iteration.rkey));
            entry.set_extent(DataSegment::extent(bytes, copies.lkey));
            let source = copies.staging.wrapping_add(slot.wrapping_mul(copies.stride));
            entry.set_source(source.wrapping_add(u64::from(GRH_BYTES)));
        }
        fence::memory_write();
        let posted = u64::from(copies.queue.producer().wrapping_add(1));
        copies.queue.set_producer(posted);
        self.outbox.ring_sq(qpn, posted);
    }

    fn end(self, begin: Counters, profile: &Profile, copy_cqes: u64) -> Ended {
        let spent = Counters::read().since(begin);
        let Self { left, status: (status, detail), .. } = self;
        let report = ReferenceReport {
            cqes: u64::from(self.iteration.chunks) - left,
            instructions: spent.instructions,
            cycles: spent.cycles,
            poll_instructions: profile.poll.instructions,
            poll_cycles: profile.poll.cycles,
            body_instructions: profile.body.instructions,
            body_cycles: profile.body.cycles,
            copy_cqes,
            status: status as u32,
            detail,
            reserved: [0; 6],
            sequence: 0,
        };
        Ended { left, report }
    }
}

/// Writes the report; the last worker of the group writes the completion flag.
fn write_report(context: &ReferenceContext, iteration: &ReferenceIteration, ended: Ended) {
    let window = Window::configured(Entity::Zero);
    let Ok(report) = window.cell::<ReferenceReport>(context.report_host) else { fatal(error::NO_RESOURCE) };
    report.store_part::<0, _>(&ended.report);
    fence::window_writeback();
    report.store_at::<{ core::mem::offset_of!(ReferenceReport, sequence) }>(iteration.sequence);
    fence::window_writeback();
    if ended.report.status != ReferenceStatus::Complete as u32 {
        return;
    }
    if Group::attach(&context.group).count(iteration.sequence as u32, context.workers) {
        let Ok(flag) = window.cell::<CompletionFlag>(context.flag_host) else { fatal(error::NO_RESOURCE) };
        flag.store_at::<{ core::mem::offset_of!(CompletionFlag, value) }>(FLAG_MAGIC + iteration.sequence);
        fence::window_writeback();
    }
}
