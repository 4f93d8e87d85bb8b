//! Events that wait for the program, with a descriptor that is readable while there are some.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::errno::{Errno, Result};

/// A queue with a descriptor: an event counter of the kernel, in step with the queue.
#[derive(Debug)]
pub struct Mailbox<T> {
    waiting: Mutex<VecDeque<T>>,
    fd: c_int,
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        // SAFETY: opened at creation and closed here alone.
        unsafe { libc::close(self.fd) };
    }
}

impl<T> Mailbox<T> {
    /// `what` is for the message when the process has no descriptor left.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new(what: &str) -> Result<Self> {
        // SAFETY: makes a new descriptor. Its flags decide whether a call waits.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(Errno::new(libc::EMFILE, format!("no descriptor for {what}")));
        }
        Ok(Self { waiting: Mutex::default(), fd })
    }

    /// The descriptor, for poll(2).
    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// Puts an event behind the others.
    pub fn push(&self, event: T) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        let one = 1_u64;
        // SAFETY: the descriptor is open, and eight bytes are read. A full counter would need 2^64 events.
        unsafe { libc::write(self.fd, (&raw const one).cast(), 8) };
    }

    /// Takes the first event, if there is one.
    pub fn pop(&self) -> Option<T> {
        let event = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        self.count_down();
        Some(event)
    }

    fn count_down(&self) {
        let mut one = 0_u64;
        // SAFETY: the descriptor is open, and eight bytes are written. Its counter is that of the events, or is about
        // to be.
        unsafe { libc::read(self.fd, (&raw mut one).cast(), 8) };
    }

    /// Takes the events out that `keep` does not keep.
    pub fn retain(&self, mut keep: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, taken): (Vec<T>, Vec<T>) = waiting.drain(..).partition(&mut keep);
        waiting.extend(kept);
        drop(waiting);
        for _ in &taken {
            self.count_down();
        }
        taken
    }

    /// Whether the program has set `O_NONBLOCK` on the descriptor.
    pub fn nonblocking(&self) -> bool {
        // SAFETY: the descriptor is open.
        unsafe { libc::fcntl(self.fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
    }

    /// Blocks until there is an event, as the program asked for with its call; at most so many milliseconds, if that is
    /// said.
    ///
    /// # Errors
    /// EINTR when a signal came first.
    pub fn wait(&self, most_ms: Option<i32>) -> Result<()> {
        let mut poll = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives during the call.
        match unsafe { libc::poll(&raw mut poll, 1, most_ms.unwrap_or(-1)) } {
            ready if ready >= 0 => Ok(()),
            _ => Err(Errno::new(libc::EINTR, "a signal came before an event")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_counts_what_waits() {
        let mailbox = Mailbox::new("a test").expect("a descriptor");
        let readable = || {
            let mut poll = libc::pollfd { fd: mailbox.fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
        };
        assert!(!readable() && !mailbox.nonblocking());
        mailbox.push('a');
        mailbox.push('b');
        assert_eq!((readable(), mailbox.pop()), (true, Some('a')));
        mailbox.wait(None).expect("one is left");
        assert_eq!((readable(), mailbox.pop(), readable(), mailbox.pop()), (true, Some('b'), false, None));
        "abc".chars().for_each(|event| mailbox.push(event));
        assert_eq!(mailbox.retain(|event| *event == 'b'), ['a', 'c']);
        assert_eq!((readable(), mailbox.pop(), readable()), (true, Some('b'), false));
    }
}
