//! The control queue: how the host wakes a thread without a call.

use dpa::abi::{CompletionQueueMemory, ContextFault, ReceiveQueueMemory};
use dpa::hw::{CqeOpcode, DataSegment, INVALID_LKEY};
use dpa::{CompletionQueue, ReceiveQueue, fence};

use crate::prepare::check_queue;

/// Receive queue and CQ of a thread's control connection.
pub struct Control {
    cq: CompletionQueue,
    queue: ReceiveQueue,
}

/// What came.
#[derive(Clone, Copy, Default)]
pub struct ControlEvents {
    /// At least one message.
    pub message: bool,
    /// Syndrome of an error completion.
    pub error: Option<u8>,
}

impl Control {
    /// The control queue in this memory.
    pub fn attach(cq: &CompletionQueueMemory, queue: &ReceiveQueueMemory) -> Self {
        Self { cq: CompletionQueue::attach(cq), queue: ReceiveQueue::attach(queue) }
    }

    /// Whether they can be one.
    pub fn check(cq: &CompletionQueueMemory, queue: &ReceiveQueueMemory) -> Result<(), ContextFault> {
        check_queue(cq)?;
        check_queue(queue)?;
        if cq.log_depth() < queue.log_depth() { Err(ContextFault::QueueDepth) } else { Ok(()) }
    }

    /// Writes the receive entries, which hold no bytes, and posts them.
    pub fn post_all(&self) {
        for index in 0..self.queue.depth() {
            self.queue.write(index, DataSegment::new(0, INVALID_LKEY, 0));
        }
        fence::memory_write();
        self.queue.set_producer(self.queue.depth());
    }

    /// Consumes all completions and posts their receives again. What the host wrote before these messages can then be
    /// read.
    #[cold]
    #[inline(never)]
    pub fn take(&self, consumed: &mut u64) -> ControlEvents {
        let mut events = ControlEvents::default();
        let first = *consumed;
        while self.cq.is_ready(*consumed) {
            fence::memory_read();
            let entry = self.cq.entry(*consumed);
            let opcode = entry.op_own() >> 4;
            if opcode == CqeOpcode::ResponderError as u64 || opcode == CqeOpcode::RequesterError as u64 {
                events.error = Some(entry.syndrome());
            } else {
                events.message = true;
            }
            *consumed += 1;
        }
        if *consumed != first {
            // No fence: branches up to here depended on all that was read of the entries given back, and the receives
            // never change.
            self.cq.set_consumer(*consumed);
            self.queue.set_producer(*consumed + self.queue.depth());
        }
        events
    }
}
