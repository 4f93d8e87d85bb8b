//! The running thread: its context and its counters.

use crate::{arch, hw, sys};

/// The running thread.
#[derive(Debug)]
pub struct Thread {
    context: *mut hw::ThreadContext,
}

impl Thread {
    /// The thread that executes this.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        Self { context: sys::thread_context() }
    }

    /// The runtime's context of this thread.
    #[inline]
    #[must_use]
    pub fn context(&self) -> hw::ThreadContext {
        // SAFETY: the runtime keeps the context at this address for the life of the thread; volatile, because the
        // runtime updates it.
        unsafe { self.context.read_volatile() }
    }

    /// Device address of the outbox page selected last.
    #[inline]
    #[must_use]
    pub fn outbox_base(&self) -> u64 {
        // SAFETY: as in `context`.
        unsafe { (&raw const (*self.context).outbox_base).read_volatile() }
    }

    /// Number of the thread.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u32 {
        sys::thread_id(self.context)
    }

    /// The value given as thread-local storage at creation.
    #[inline]
    #[must_use]
    pub fn local_storage(&self) -> u64 {
        sys::thread_local_storage(self.context)
    }

    pub(crate) fn raw(&self) -> *mut hw::ThreadContext {
        self.context
    }
}

/// Time of the device in nanoseconds since an arbitrary start.
#[inline(always)]
#[must_use]
pub fn time() -> u64 {
    arch::time()
}

/// Cycle and instruction counters of the execution unit; differences are meaningful within one activation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Cycles.
    pub cycles: u64,
    /// Instructions retired.
    pub instructions: u64,
}

impl Counters {
    /// Both counters now; costs two instructions.
    #[inline(always)]
    #[must_use]
    pub fn read() -> Self {
        Self { cycles: arch::cycles(), instructions: arch::instructions() }
    }

    /// What passed since `earlier`.
    #[inline(always)]
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cycles: self.cycles.wrapping_sub(earlier.cycles),
            instructions: self.instructions.wrapping_sub(earlier.instructions),
        }
    }
}
