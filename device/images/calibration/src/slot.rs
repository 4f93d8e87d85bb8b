//! Fixture of a kernel: the thread's outbox and window, its receives, and a place for the result.

use dpa::abi::calibration::{KernelContext, KernelResult};
use dpa::abi::{ContextFault, Layout as _, QueueFault};
use dpa::hw::{DataSegment, INVALID_LKEY};
use dpa::{Counters, Entity, Outbox, ReceiveQueue, Thread, Window, error, fatal, fence};

/// Outbox and window of the running thread.
pub(crate) struct Slot {
    pub(crate) outbox: Outbox,
    pub(crate) window: Window,
}

impl Slot {
    /// Takes what the context names; a handler of this image runs once, so nothing is configured before.
    pub(crate) fn take(context: &KernelContext) -> Self {
        if context.layout_hash != KernelContext::HASH {
            fatal(error::NOT_PREPARED);
        }
        let thread = Thread::current();
        if !Outbox::configure(&thread, context.outbox_id) {
            fatal(error::NO_RESOURCE);
        }
        let window = Window::configure(Entity::Zero, context.window_id, context.window_mkey);
        Self { outbox: Outbox::of(&thread), window: window.unwrap_or_else(|_| fatal(error::NO_RESOURCE)) }
    }

    /// Writes the result for the host.
    pub(crate) fn report(&self, context: &KernelContext, span: &Span, errors: u64, found: u64) {
        let Ok(cell) = self.window.cell::<KernelResult>(context.result_host) else { fatal(error::NO_RESOURCE) };
        let result = KernelResult {
            begin_ns: span.begin_ns,
            end_ns: span.end_ns,
            cycles: span.spent.cycles,
            instructions: span.spent.instructions,
            errors,
            found,
            reserved: 0,
            done: 0,
        };
        cell.store_part::<0, _>(&result);
        fence::window_writeback();
        cell.store_at::<{ core::mem::offset_of!(KernelResult, done) }>(1);
        fence::window_writeback();
    }
}

/// From when to when something took place, and what it took.
pub(crate) struct Span {
    begin_ns: u64,
    end_ns: u64,
    spent: Counters,
}

/// The beginning of a [`Span`].
pub(crate) struct Begin {
    ns: u64,
    counters: Counters,
}

impl Begin {
    #[inline(always)]
    pub(crate) fn now() -> Self {
        Self { ns: dpa::thread::time(), counters: Counters::read() }
    }

    #[inline(always)]
    pub(crate) fn end(self) -> Span {
        let spent = Counters::read().since(self.counters);
        Span { begin_ns: self.ns, end_ns: dpa::thread::time(), spent }
    }
}

/// RPC `prepare`: checks the queues that are there, writes the receive entries and posts them.
pub(crate) fn prepare(context: &mut KernelContext) -> Result<(), ContextFault> {
    if context.layout_hash != KernelContext::HASH {
        return Err(ContextFault::AbiHash);
    }
    if context.receive_queue.is_none() {
        return Ok(());
    }
    let mut verdict = context.receive_cq.check().and(context.receive_queue.check());
    if context.buffers != 0 {
        verdict = verdict.and(context.send_cq.check()).and(context.send_queue.check());
    }
    verdict.map_err(|fault| match fault {
        QueueFault::Address => ContextFault::QueueAddress,
        QueueFault::Depth => ContextFault::QueueDepth,
    })?;
    let queue = ReceiveQueue::attach(&context.receive_queue);
    for index in 0..queue.depth() {
        queue.write(index, receive_entry(context, index));
    }
    fence::memory_write();
    queue.set_producer(queue.depth());
    fence::memory();
    Ok(())
}

/// Writes with immediate only use entries up; datagrams are scattered into buffers.
fn receive_entry(context: &KernelContext, index: u64) -> DataSegment {
    if context.buffers == 0 {
        return DataSegment::new(0, INVALID_LKEY, 0);
    }
    let at = context.buffers.wrapping_add(index.wrapping_mul(u64::from(context.buffer_bytes)));
    DataSegment::new(context.buffer_bytes, context.lkey, at)
}
