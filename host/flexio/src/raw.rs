//! Pointers to objects of the C libraries.

use std::fmt;
use std::ptr::NonNull;

/// A pointer to a live object of a C library, which may go from thread to thread.
pub(crate) struct Raw<T>(NonNull<T>);

// SAFETY: verbs objects may be used from every thread, several at a time (verbs(7), "libibverbs is thread safe").
// FlexIO says nothing about threads, so that every call of it is made under one lock (`Provider::flexio`), which orders
// calls of different threads. Neither library ties an object to the thread that made it.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above; sharing the pointer gives nobody access to what it points at without such a call.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// Wraps what a library has returned.
    pub(crate) const fn new(raw: NonNull<T>) -> Self {
        Self(raw)
    }

    /// The pointer, for a call.
    pub(crate) const fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

impl<T> fmt::Debug for Raw<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
