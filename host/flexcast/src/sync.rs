//! Locks of what callers share: those of the standard library; with feature `interleavings` those of a checker, which
//! tries the orders in which threads can take them.

#[cfg(feature = "interleavings")]
pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "interleavings"))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use std::sync::{PoisonError, TryLockError};
