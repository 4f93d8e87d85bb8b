//! Processes that have forked, and processes that end.
//!
//! The machine does not come along into a child: its threads are not there, its locks are in whatever state they were,
//! and its neighbours know the parent. So every call in the child is refused before it takes a lock. A child that has
//! its own first call, or that executes another program, begins anew.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::errno::{Errno, Result};

/// Somebody has called for cards; from then on a child is a child.
static USED: AtomicBool = AtomicBool::new(false);
static CHILD: AtomicBool = AtomicBool::new(false);

/// What every call in a child is answered.
pub const REASON: &str = "the process was forked after its first call for a card, and its cards are the parent's: open \
    them in the parent alone, fork before the first call, or execute another program";

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

extern "C" fn at_exit() {
    if !is_child() {
        // A panic must not reach the C library's frames; the process ends in any case.
        let _ = std::panic::catch_unwind(emu_bridge::leave);
    }
}

/// Whether this is a child of a process that has used cards.
#[must_use]
pub fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Before a call that has to do with no card does anything else. What `flexcast dpacc` makes calls before `main`, and a
/// program may fork behind that.
///
/// # Errors
/// ENODEV in a child of a process that has used cards.
pub fn enter_without_card() -> Result<()> {
    if is_child() {
        return Err(Errno::new(libc::ENODEV, REASON));
    }
    Ok(())
}

/// Before any other call does anything else.
///
/// # Errors
/// ENODEV in a child of a process that has used cards.
pub fn enter() -> Result<()> {
    enter_without_card()?;
    if !USED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler does nothing but store to an atomic, which a child of any process may. Without memory for
        // it nothing is registered, and children are as they were.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // SAFETY: the library is never unloaded (`xtask/src/emu_libs.rs`), so the handler is there when the process
        // ends.
        unsafe { libc::atexit(at_exit) };
    }
    Ok(())
}
