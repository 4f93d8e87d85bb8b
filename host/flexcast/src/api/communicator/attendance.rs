//! Callers that wait for their operations.
//!
//! They move the communicator on themselves: to be woken by the progress thread, which the network has woken, takes
//! twice as long as to be woken by the network. The progress thread stays away meanwhile ([`Communicator::attend`]). Of
//! several callers one waits for the network, and the others for it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::progress::ATTENDED;
use super::{Communicator, Shared};
use crate::api::request::{Request, Test};
use crate::op::outcome::{Done, Failed};

/// Longest that a caller sleeps before it polls by itself, the clock among other things.
const LONGEST_SLEEP: Duration = Duration::from_millis(2);

/// A caller that waits, or is about to: the progress thread leaves the communicator to it, and comes back milliseconds
/// after the last one is gone.
#[derive(Debug)]
pub struct Attendance<'c> {
    communicator: &'c Communicator,
}

/// One that waits for the network for all.
struct Lead<'s>(&'s Shared);

impl<'s> Lead<'s> {
    fn take(shared: &'s Shared) -> Option<Self> {
        (!shared.leads.swap(true, Ordering::Acquire)).then(|| Self(shared))
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.leads.store(false, Ordering::Release);
    }
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        let shared = &*self.communicator.0;
        if shared.attending.fetch_sub(1, Ordering::Relaxed) > 1 {
            // One of the others waits for the network from here on.
            shared.requests.wake_one();
        }
    }
}

impl Attendance<'_> {
    /// Lets time pass after a test in vain: until the operation may be over or something may have come, `most` or some
    /// milliseconds at most. Does nothing for a request of another communicator.
    pub fn pause(&self, request: &Request, most: Duration) {
        if self.communicator.is_own(request) {
            self.pass(Some(request.number()), most);
        }
    }

    /// The same, for whoever waits for more than one operation.
    pub fn pause_any(&self, most: Duration) {
        self.pass(None, most);
    }

    fn pass(&self, request: Option<u64>, most: Duration) {
        let (shared, most) = (&*self.communicator.0, most.min(LONGEST_SLEEP));
        let sleep = || shared.requests.sleep(request, most);
        // Virtual time advances only with polls: the thread's, if there is one.
        if shared.waiter.is_virtual() && shared.thread.is_some() {
            return sleep();
        }
        if !shared.waiter.blocks() {
            shared.waiter.wait(Duration::ZERO);
            // There may be more ranks and threads than processors, and others want the lock.
            std::thread::yield_now();
            return;
        }
        match Lead::take(shared) {
            Some(_lead) => shared.waiter.wait(shared.next().min(most)),
            None => sleep(),
        }
    }
}

impl Communicator {
    /// Keeps the progress thread, if there is one, away from the communicator while the caller waits. For loops around
    /// [`Request::test`] that check something else, too: [`Attendance::pause`] lets time pass between two rounds.
    /// An operation that is posted meanwhile does not wake the thread.
    #[must_use]
    pub fn attend(&self) -> Attendance<'_> {
        let shared = &*self.0;
        shared.attending.fetch_add(1, Ordering::SeqCst);
        // Of virtual time the thread is the source.
        if shared.thread.is_some() && !shared.waiter.is_virtual() {
            shared.polls.fetch_add(ATTENDED, Ordering::Relaxed);
            if shared.thread_waits.load(Ordering::SeqCst) {
                shared.waiter.wake();
            }
        }
        Attendance { communicator: self }
    }

    /// See [`Request::wait`].
    pub(crate) fn wait(&self, mut request: Request) -> Result<Done, Box<Failed>> {
        let attendance = self.attend();
        loop {
            match self.test(request)? {
                Test::Done(done) => return Ok(done),
                Test::Pending(pending) => request = pending,
            }
            attendance.pause(&request, LONGEST_SLEEP);
        }
    }
}
