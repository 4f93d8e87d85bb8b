//! Turns of threads at a communicator: one at a time moves it on; what others post meanwhile is taken on.

use super::{Datapath, Posted, Requests, Task};
use crate::op::outcome::Failed;
use crate::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A communicator's datapath, and who has it.
pub(crate) struct Turns {
    datapath: Mutex<Box<dyn Datapath>>,
    requests: Requests,
}

/// The right to move a communicator on.
struct Turn<'s> {
    // Before the end of the turn, so that it is free by then: fields are dropped in their order.
    datapath: MutexGuard<'s, Box<dyn Datapath>>,
    _end: TurnEnd<'s>,
}

/// When a turn is over, those whose operations have ended are notified, and what others have posted meanwhile is taken
/// on.
struct TurnEnd<'s>(&'s Turns);

impl Drop for TurnEnd<'_> {
    fn drop(&mut self) {
        let Self(turns) = self;
        turns.requests.notify_ended();
        // Whoever has posted in vain has done so before this poll, or gets the next turn.
        if turns.requests.has_posted() {
            drop(turns.try_turn());
        }
    }
}

impl Turns {
    /// Of a communicator that nobody else has yet.
    pub(crate) fn new(datapath: Box<dyn Datapath>) -> Self {
        Self { requests: datapath.core().requests.clone(), datapath: Mutex::new(datapath) }
    }

    /// Takes on what was posted while another thread had the turn, and gives the turn.
    fn begin_turn<'s>(&'s self, mut datapath: MutexGuard<'s, Box<dyn Datapath>>) -> Turn<'s> {
        while let Some(mut posted) = self.requests.take_posted() {
            let request = posted.request;
            posted.posted_ps = datapath.now_ps();
            if let Err(failed) = datapath.take_on(posted) {
                self.requests.finish(request, Err(failed));
            }
        }
        Turn { datapath, _end: TurnEnd(self) }
    }

    /// The turn, if no other thread has it.
    fn try_turn(&self) -> Option<Turn<'_>> {
        match self.datapath.try_lock() {
            Ok(datapath) => Some(self.begin_turn(datapath)),
            // After a panic the protocol's bounds end what is under way.
            Err(TryLockError::Poisoned(poisoned)) => Some(self.begin_turn(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Does something with the datapath, unless another thread has it.
    pub(crate) fn try_with<R>(&self, body: impl FnOnce(&mut dyn Datapath) -> R) -> Option<R> {
        self.try_turn().map(|mut turn| body(&mut **turn.datapath))
    }

    /// Does something with the datapath, after other threads.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut dyn Datapath) -> R) -> R {
        let datapath = self.datapath.lock().unwrap_or_else(PoisonError::into_inner);
        body(&mut **self.begin_turn(datapath).datapath)
    }

    /// Takes an operation on, or leaves it to the thread that has the turn; the number of its request.
    ///
    /// # Errors
    /// It cannot be started: with its buffers.
    pub(crate) fn post(&self, posted: Posted<Task>) -> Result<u64, Box<Failed>> {
        let Some(mut turn) = self.try_turn() else {
            let request = self.requests.leave(posted);
            // That thread may have just finished.
            drop(self.try_turn());
            return Ok(request);
        };
        let (request, posted_ps) = (self.requests.open(), turn.datapath.now_ps());
        // With the protocol on the card, that needs nobody from here on.
        turn.datapath.take_on(Posted { request, posted_ps, ..posted })?;
        Ok(request)
    }
}
