//! Notifications among the threads of a communicator: counters in DPA memory, and activations of threads.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{self, Shared};
use crate::group::count;
use crate::{fence, sys};

/// The communicator's line of signals. What a thread wrote before it signals is visible to whoever sees the signal.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    at: *const abi::Signals,
}

impl Signals {
    /// The line that `memory` names; none if it names none, or its address is misaligned.
    #[inline]
    #[must_use]
    pub fn attach(memory: &Shared<abi::Signals>) -> Option<Self> {
        memory.is_there().then_some(Self { at: memory.address() as *const abi::Signals })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the host names an aligned line that outlives the threads; `offset` is that of a word in it which
        // threads access by atomic instructions only.
        unsafe { &*self.at.byte_add(offset).cast::<AtomicU64>() }
    }

    /// A number that the host wrote before the threads began.
    fn number(&self, offset: usize) -> u32 {
        // SAFETY: as above; nobody writes it any more.
        unsafe { self.at.byte_add(offset).cast::<u32>().read() }
    }

    /// Threads that send.
    #[must_use]
    pub fn senders(&self) -> u32 {
        self.number(offset_of!(abi::Signals, senders))
    }

    fn wake_progress_thread(&self) {
        // A thread that is woken must see what it was woken for.
        fence::memory();
        // Refused only if there is no such thread: then nobody waits.
        sys::activate(self.number(offset_of!(abi::Signals, progress)));
    }

    fn count(&self, offset: usize, sequence: u32, all: u32) {
        if count(self.word(offset), sequence, all) {
            self.wake_progress_thread();
        }
    }

    fn have_all(&self, offset: usize, sequence: u64, all: u32) -> bool {
        self.word(offset).load(Ordering::Acquire) >= sequence << 32 | u64::from(all)
    }

    /// A receive context is armed for operation `sequence`; the last one wakes the progress thread.
    pub fn armed(&self, sequence: u64) {
        self.count(offset_of!(abi::Signals, armed), sequence as u32, self.number(offset_of!(abi::Signals, contexts)));
    }

    /// Whether all receive contexts are armed for operation `sequence`.
    #[must_use]
    pub fn are_armed(&self, sequence: u64) -> bool {
        self.have_all(offset_of!(abi::Signals, armed), sequence, self.number(offset_of!(abi::Signals, contexts)))
    }

    /// All receive contexts have completed operation `sequence`; wakes the progress thread.
    pub fn complete(&self, sequence: u64) {
        self.word(offset_of!(abi::Signals, complete)).store(sequence, Ordering::Release);
        self.wake_progress_thread();
    }

    /// Whether all receive contexts have completed operation `sequence`.
    #[must_use]
    pub fn is_complete(&self, sequence: u64) -> bool {
        self.word(offset_of!(abi::Signals, complete)).load(Ordering::Acquire) >= sequence
    }

    /// Lets the send workers send operation `sequence`. They are to be woken ([`crate::entry::activate`]) afterwards.
    pub fn go(&self, sequence: u64) {
        self.word(offset_of!(abi::Signals, go)).store(sequence, Ordering::Release);
        fence::memory();
    }

    /// Whether operation `sequence` may be sent.
    #[must_use]
    pub fn may_go(&self, sequence: u64) -> bool {
        self.word(offset_of!(abi::Signals, go)).load(Ordering::Acquire) >= sequence
    }

    /// A send worker announces the end of operation `sequence`; the last one wakes the progress thread.
    pub fn announced(&self, sequence: u64) {
        self.count(offset_of!(abi::Signals, announced), sequence as u32, self.senders());
    }

    /// Whether all send workers have announced the end of operation `sequence`.
    #[must_use]
    pub fn are_announced(&self, sequence: u64) -> bool {
        self.have_all(offset_of!(abi::Signals, announced), sequence, self.senders())
    }

    /// A send worker's sends of operation `sequence` are over; the last one wakes the progress thread.
    pub fn sent(&self, sequence: u64) {
        self.count(offset_of!(abi::Signals, sent), sequence as u32, self.senders());
    }

    /// Whether the sends of operation `sequence` are over.
    #[must_use]
    pub fn are_sent(&self, sequence: u64) -> bool {
        self.have_all(offset_of!(abi::Signals, sent), sequence, self.senders())
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::DeviceAddress;

    fn at(address: u64) -> Option<Signals> {
        Signals::attach(&Shared::new(DeviceAddress::new(address)))
    }

    #[test]
    fn all_of_an_operation_are_counted_and_no_straggler() {
        let mut line = abi::Signals { contexts: 2, senders: 1, ..Default::default() };
        let signals = at(core::ptr::from_mut(&mut line) as u64).unwrap();
        signals.armed(1);
        assert!(!signals.are_armed(1));
        signals.armed(1);
        assert!(signals.are_armed(1) && !signals.are_armed(2));
        signals.armed(2);
        assert!(signals.are_armed(1) && !signals.are_armed(2));
        assert!(!signals.may_go(1));
        signals.go(1);
        assert!(signals.may_go(1) && !signals.may_go(2));
        signals.announced(1);
        assert!(signals.are_announced(1) && !signals.are_sent(1));
        signals.sent(1);
        signals.complete(3);
        assert!(signals.are_sent(1) && signals.is_complete(2) && !signals.is_complete(4));
        assert!(at(0).is_none() && at(8).is_none());
    }
}
