//! Doorbells: 64-bit stores to the thread's outbox page.

use crate::{Thread, error, fatal, hw, sys};

/// The outbox of the running thread.
#[derive(Debug)]
pub struct Outbox {
    base: *mut u64,
}

impl Outbox {
    /// Maps outbox `id` for this thread; false if the runtime refuses. Once per thread.
    #[must_use]
    pub fn configure(thread: &Thread, id: u32) -> bool {
        match u16::try_from(id) {
            Ok(id) => sys::outbox_config(thread.raw(), id) == 0,
            Err(_) => false,
        }
    }

    /// The outbox that this thread has configured. If it has configured none, the process ends with
    /// [`crate::error::NO_RESOURCE`].
    #[inline(always)]
    #[must_use]
    pub fn of(thread: &Thread) -> Self {
        let base = thread.outbox_base() as *mut u64;
        if base.is_null() {
            fatal(error::NO_RESOURCE);
        }
        Self { base }
    }

    /// Notifies the hardware that completions before number `consumer` of CQ `cqn` are consumed, and asks for an event
    /// with the next one. If there is one already the event comes at once.
    #[inline(always)]
    pub fn arm_cq(&self, cqn: u32, consumer: u64) {
        self.store(hw::outbox::CQ_DOORBELL, hw::outbox::cq_arm_value(cqn, consumer as u32));
    }

    /// Notifies the hardware that entries before number `producer` of the send queue of `qpn` are ready.
    #[inline(always)]
    pub fn ring_sq(&self, qpn: u32, producer: u64) {
        self.store(hw::outbox::SQ_DOORBELL, hw::outbox::sq_doorbell_value(qpn, producer as u16));
    }

    #[inline(always)]
    fn store(&self, offset: u64, value: u64) {
        // SAFETY: the runtime maps the whole 4 KiB page at the context's outbox base; `offset` is a register inside it.
        // A value can only concern queues whose doorbells this outbox's UAR may ring.
        unsafe { self.base.byte_add(offset as usize).write_volatile(value) };
    }
}
