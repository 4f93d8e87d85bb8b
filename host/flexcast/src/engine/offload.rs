//! Interface of an offload: whoever carries operations out for this rank, such as a service process on a card's Arm
//! cores.
//!
//! All ranks give the same operations to their offloads ([`Offload::takes`]); the others go by the carrier. The two
//! share the engine's queue and never overlap. Operations of the offload may overlap one another.

use flexcast_proto::Failure;

use super::{Carrier, Core, Engine, Posted, Task};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::outcome::Failed;

/// Why the communicator fails, as an offload has found.
#[derive(Debug)]
pub(crate) struct OffloadFault {
    pub(crate) failure: Failure,
    /// What two ranks have called, in words, if that is because it differs.
    pub(crate) calls: Option<String>,
}

/// What has become of an operation that an offload was given.
#[cfg_attr(not(any(feature = "service", test)), expect(dead_code, reason = "service processes are the only offload"))]
pub(crate) enum Begun {
    /// It is under way.
    Yes,
    /// It is to be given again.
    NotYet(Posted<Task>),
    /// It cannot be carried out.
    Failed(Posted<Task>, OffloadFault),
}

/// Whoever carries operations out for this rank. It finishes their requests by the core that it is given.
pub(crate) trait Offload: Send {
    /// Whether it carries out such an operation, alike on all ranks.
    fn takes(&self, task: &Task) -> bool;

    /// Brings what an operation reads to where it is read, before the operation waits for its turn.
    ///
    /// # Errors
    /// It does not fit, or there is no memory.
    fn prepare(&mut self, posted: &mut Posted<Task>) -> Result<()>;

    /// Whether none of its operations is under way.
    fn is_idle(&self) -> bool;

    /// Whether, besides, no memory of an operation is on its way back.
    fn is_free(&self) -> bool;

    /// Begins an operation, if it can by now.
    fn begin(&mut self, posted: Posted<Task>) -> Begun;

    /// Takes what has come, and ends operations. One that has to begin again goes back to the head of the queue.
    /// Returns whether anything has happened, and why the communicator is to fail.
    fn poll(&mut self, core: &mut Core, now_ps: u64) -> (bool, Option<OffloadFault>);

    /// The communicator has failed: ends what is under way and what waits, each once its memory is back. To be called
    /// once.
    fn fail(&mut self, core: &mut Core, failure: Failure, now_ps: u64);

    /// Whether [`Offload::fail`] has been called. Faults that are found later do not count.
    fn has_failed(&self) -> bool;

    /// When it is to be polled next even if nothing comes; none if it waits for nothing. `has_waiting`: the operation
    /// at the head of the queue is for it.
    fn deadline_ps(&self, now_ps: u64, has_waiting: bool) -> Option<u64>;

    /// See [`Datapath::take_back`](super::Datapath::take_back).
    fn take_back(&mut self, buffer: &mut Buffer, is_late: bool) -> bool;

    /// Whether the data of the operation that it began last is there.
    fn is_flagged(&self) -> bool;
}

impl<C: Carrier> Engine<C> {
    fn offloads(&self, task: &Task) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.takes(task))
    }

    /// Whether the operation at the head of the queue is for the offload.
    pub(super) fn has_waiting_offloaded(&self) -> bool {
        self.ops.core.waiting.front().is_some_and(|posted| self.offloads(&posted.plan))
    }

    /// Whether the carrier can begin the operation at the head of the queue.
    pub(super) fn is_turn_of_carrier(&self) -> bool {
        let is_idle = self.offload.as_ref().is_none_or(|offload| offload.is_idle());
        self.ops.is_free() && is_idle && !self.has_waiting_offloaded()
    }

    /// Makes an admitted operation wait for its turn, if it is for the offload; otherwise gives it back.
    ///
    /// # Errors
    /// It cannot be prepared: with its buffers.
    pub(super) fn take_on_offloaded(&mut self, mut posted: Posted<Task>) -> Result<Option<Posted<Task>>, Box<Failed>> {
        let Some(offload) = self.offload.as_mut() else { return Ok(Some(posted)) };
        if !offload.takes(&posted.plan) {
            // With an offload the engine has admitted all collectives.
            if let Task::Collective(collective) = &posted.plan
                && let Err(error) =
                    self.carrier.admission(&self.ops.core.config).check_collective(collective.kind().name())
            {
                return Err(posted.refuse(error));
            }
            return Ok(Some(posted));
        }
        if let Err(error) = offload.prepare(&mut posted) {
            return Err(posted.refuse(error));
        }
        self.ops.core.waiting.push_back(posted);
        let now_ps = self.carrier.now_ps();
        if let Err(error) = self.begin_offloaded(now_ps) {
            self.ops.core.set_fault(error);
        }
        Ok(None)
    }

    /// Moves the operations of the offload on. Returns whether anything has happened.
    pub(super) fn move_offload(&mut self) -> Result<bool> {
        let Some(offload) = self.offload.as_mut() else { return Ok(false) };
        let now_ps = self.carrier.now_ps();
        let (moved, fault) = offload.poll(&mut self.ops.core, now_ps);
        match fault.filter(|_| !offload.has_failed()) {
            Some(fault) => self.fail_by_offload(fault, now_ps).map(|()| true),
            None => Ok(self.begin_offloaded(now_ps)? || moved),
        }
    }

    /// Begins operations of the offload that are at the head of the queue, as many as can. Returns whether any has.
    fn begin_offloaded(&mut self, now_ps: u64) -> Result<bool> {
        let mut moved = false;
        let Self { offload: Some(offload), ops, .. } = self else { return Ok(moved) };
        while ops.is_free()
            && ops.core.broken.is_none()
            && let Some(posted) = ops.core.waiting.pop_front_if(|posted| offload.takes(&posted.plan))
        {
            match offload.begin(posted) {
                Begun::Yes => (moved, self.is_last_offloaded) = (true, true),
                Begun::NotYet(posted) => {
                    ops.core.waiting.push_front(posted);
                    return Ok(moved);
                }
                Begun::Failed(posted, fault) => {
                    ops.core.waiting.push_front(posted);
                    return self.fail_by_offload(fault, now_ps).map(|()| true);
                }
            }
        }
        Ok(moved)
    }

    /// The communicator fails, as the offload has found, or this rank.
    pub(super) fn fail_by_offload(&mut self, fault: OffloadFault, now_ps: u64) -> Result<()> {
        let OffloadFault { failure, calls } = fault;
        // Ranks that wait by the protocol are notified of a failure of this one by it, at once. Others' failures their
        // own offloads report.
        let notified = if failure.failed_rank == self.ops.core.place.rank() && self.ops.core.requests.broken().is_none()
        {
            self.fail_here(failure.cause);
            self.carry_out(now_ps).and_then(|()| self.carrier.flush(&mut self.ops, now_ps))
        } else {
            Ok(())
        };
        let Self { offload, ops: super::Operations { core, .. }, .. } = self;
        core.broken = Some(failure);
        core.requests.break_by(failure, calls);
        if let Some(offload) = offload.as_mut().filter(|offload| !offload.has_failed()) {
            offload.fail(core, failure, now_ps);
        }
        notified
    }
}
