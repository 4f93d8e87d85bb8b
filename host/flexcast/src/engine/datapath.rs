//! Interface of the engine to communicators.

use std::time::Duration;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::{Cause, Disagreement, Failure};

use super::offload::{Offload, OffloadFault};
use super::{Admission, Carrier, Core, Engine, Posted, Protocol as _, Task};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::outcome::Failed;
use crate::op::report::MessageCounts;

/// What carries the operations of a communicator. One thread has it at a time.
pub(crate) trait Datapath: Send {
    /// The rank and its settings, the queue, and how operations end.
    fn core(&self) -> &Core;

    /// The same, to be changed.
    fn core_mut(&mut self) -> &mut Core;

    /// The time that operations count by, in picoseconds.
    fn now_ps(&self) -> u64;

    /// What it takes on.
    fn admission(&self) -> Admission;

    /// Whether no operation is under way.
    fn is_free(&self) -> bool;

    /// Takes an admitted operation on: starts it if none is ahead of it, otherwise it waits for its turn.
    ///
    /// # Errors
    /// The operation cannot be started, or the communicator has failed: with its buffers.
    fn take_on(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>>;

    /// Gives operations to somebody else from now on ([`Offload::takes`]).
    #[cfg_attr(
        not(any(feature = "service", test)),
        expect(dead_code, reason = "service processes are the only offload")
    )]
    fn set_offload(&mut self, _offload: Box<dyn Offload>) {}

    /// Moves the protocol on as far as it goes now; returns whether anything happened. Never blocks.
    fn advance(&mut self) -> Result<bool>;

    /// The same. After an error nothing may end any more: whoever waits is to poll.
    fn progress(&mut self) -> Result<bool> {
        let moved = self.advance();
        if moved.is_err() {
            self.core().requests.give_up();
        }
        moved
    }

    /// Takes back what a service process may use of a buffer that no operation has; returns whether that is done, or
    /// there was nothing. To be called again until then, with [`Datapath::progress`] between. `is_late`: a process that
    /// has not answered by now counts as gone.
    ///
    /// # Errors
    /// The failure of a library call.
    fn take_back(&mut self, _buffer: &mut Buffer, _is_late: bool) -> Result<bool> {
        Ok(true)
    }

    /// When [`Datapath::progress`] is to be called next even if nothing comes, by [`Datapath::now_ps`]; none if nothing
    /// is under way.
    fn deadline_ps(&self) -> Option<u64>;

    /// Whether no operation is under way or waits for its turn.
    fn is_idle(&self) -> bool {
        self.is_free() && self.core().waiting.is_empty()
    }

    /// Whether a caller whose operations are over may stay away: what this rank has said of them goes out without
    /// [`Datapath::progress`]. If not, a few more calls of it help, which wait for nobody else.
    fn may_be_left(&self) -> bool {
        true
    }

    /// Ends everything because of something on this rank.
    fn fail_here(&mut self, cause: Cause);

    fn disagreement(&self) -> Option<Disagreement>;

    fn messages(&self) -> MessageCounts;

    /// See [`Communicator::is_flagged`](crate::Communicator::is_flagged).
    fn is_flagged(&self) -> Result<bool> {
        Ok(false)
    }

    fn receive_statistics(&self) -> Result<Statistics>;

    fn send_statistics(&self) -> Result<SendReport>;
}

impl<C: Carrier> Datapath for Engine<C> {
    fn core(&self) -> &Core {
        &self.ops.core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.ops.core
    }

    fn now_ps(&self) -> u64 {
        self.carrier.now_ps()
    }

    fn admission(&self) -> Admission {
        let admission = self.carrier.admission(&self.ops.core.config);
        match self.offload {
            None => admission,
            // What the carrier does not take of the others is refused by `take_on`.
            Some(_) => Admission { collectives: Ok(()), ..admission },
        }
    }

    fn is_free(&self) -> bool {
        self.ops.is_free() && self.offload.as_ref().is_none_or(|offload| offload.is_free())
    }

    fn take_on(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        // Posted by another thread while this one has found the failure.
        if let Some(failure) = self.ops.core.requests.broken() {
            return Err(posted.refuse(self.ops.core.requests.refusal(failure)));
        }
        let Some(posted) = self.take_on_offloaded(posted)? else { return Ok(()) };
        if self.ops.core.waiting.is_empty() && self.is_turn_of_carrier() {
            return self.post(posted);
        }
        self.ops.core.waiting.push_back(posted);
        Ok(())
    }

    fn set_offload(&mut self, offload: Box<dyn Offload>) {
        self.offload = Some(offload);
    }

    fn advance(&mut self) -> Result<bool> {
        self.move_on()
    }

    fn take_back(&mut self, buffer: &mut Buffer, is_late: bool) -> Result<bool> {
        Ok(self.offload.as_mut().is_none_or(|offload| offload.take_back(buffer, is_late)))
    }

    fn deadline_ps(&self) -> Option<u64> {
        if self.ops.core.is_due(self.is_turn_of_carrier()) || self.carrier.is_due() {
            return Some(0);
        }
        let own_ps = self.carrier.deadline_ps(&self.ops);
        let has_waiting = self.has_waiting_offloaded();
        let offload_ps = self.offload.as_ref().and_then(|offload| offload.deadline_ps(self.now_ps(), has_waiting));
        own_ps.into_iter().chain(self.wind_up_ps()).chain(offload_ps).min()
    }

    fn may_be_left(&self) -> bool {
        self.carrier.may_be_left(&self.ops)
    }

    fn fail_here(&mut self, cause: Cause) {
        if self.offload.is_none() {
            return Self::fail_here(self, cause);
        }
        let own = self.ops.core.place.rank();
        let failure = Failure { failed_rank: own, detecting_rank: own, cause };
        if let Err(error) = self.fail_by_offload(OffloadFault { failure, calls: None }, self.carrier.now_ps()) {
            self.ops.core.set_fault(error);
        }
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.ops.protocol.disagreement()
    }

    fn messages(&self) -> MessageCounts {
        self.ops.protocol.messages()
    }

    fn is_flagged(&self) -> Result<bool> {
        match &self.offload {
            Some(_) if !self.ops.core.waiting.is_empty() => Ok(false),
            Some(offload) if self.is_last_offloaded => Ok(offload.is_flagged()),
            _ => self.carrier.is_flagged(&self.ops),
        }
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        self.carrier.receive_statistics()
    }

    fn send_statistics(&self) -> Result<SendReport> {
        self.carrier.send_statistics()
    }
}

/// How a thread waits for a datapath without holding it.
pub(crate) trait Waiter: Send + Sync {
    /// Lets time pass after a poll in vain: until something may have come, at most so long.
    fn wait(&self, most: Duration);

    /// The same for a thread that others wake ([`Waiter::wake`]) after they have made `is_called` true. `_stays_awake`:
    /// it has a processor to itself, and polls for a while before it sleeps; otherwise others that compute want that.
    fn sleep(&self, most: Duration, _stays_awake: bool, is_called: &dyn Fn() -> bool) {
        if !is_called() {
            self.wait(most);
        }
    }

    /// Ends the waits of other threads.
    fn wake(&self);

    /// Whether [`Waiter::wait`] returns as soon as something has come; otherwise it returns at once, and is to be
    /// called again and again.
    fn blocks(&self) -> bool;

    /// Whether time goes on by waits alone.
    fn is_virtual(&self) -> bool;
}
