//! Progress of operations: begin, advance, and the protocol's actions.

use flexcast_proto::{
    Action, Algorithm, Alpha, Cause, Failure, FailureCode, OperationDescriptor, RankSet, StallWindow, Summary,
};

use super::carrier::{Carrier, Withdrawn};
use super::descriptor::descriptor;
use super::eager::Gathered;
use super::event::Event;
use super::offload::Offload;
use super::operation::{Exchange, Operation, Purpose as _, State};
use super::protocol::Protocol as _;
use super::{Core, Posted, Task};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::config::{Config, ps};
use crate::op::decision::Decision;
use crate::op::outcome::Failed;
use crate::op::report::{Phases, PhasesPs, Report};
use crate::plan::chains::{Order, order};
use crate::plan::tuner::Losses;

/// Operations of a communicator, as its carrier sees them too.
pub(crate) struct Operations<C: Carrier> {
    /// What decides.
    pub(crate) protocol: C::Protocol,
    /// The operation of blocks under way.
    pub(crate) current: Option<Operation<C>>,
    /// The operation under way, if it goes by messages between pairs of ranks.
    pub(crate) exchange: Option<Exchange<C>>,
    pub(crate) core: Core,
    /// Room for the blocks of eager operations.
    pub(crate) gathered: Gathered,
    /// How long multicast takes.
    pub(crate) alpha: Alpha,
    /// How long it brings nothing before it has stalled.
    pub(crate) stall: StallWindow,
    /// Whether the network loses packets.
    pub(crate) losses: Losses,
    /// Buffers that the card may still reach.
    pub(crate) lost: Vec<Buffer>,
}

/// A communicator's operations, and what carries them out.
pub(crate) struct Engine<C: Carrier> {
    /// Who carries operations out in place of the carrier, if anybody does. Before the carrier, whose card its keys are
    /// of.
    pub(super) offload: Option<Box<dyn Offload>>,
    /// The operation that has begun last is the offload's.
    pub(super) is_last_offloaded: bool,
    // Buffers come after the queues by which the card reaches them.
    pub(crate) carrier: C,
    pub(crate) ops: Operations<C>,
}

impl<C: Carrier> Drop for Engine<C> {
    fn drop(&mut self) {
        self.offload = None;
        self.ops.protocol.close(self.ops.core.place);
    }
}

impl<C: Carrier> Operations<C> {
    /// None yet. `stall`: how long multicast brings nothing before it has stalled, at first.
    pub(crate) fn new(core: Core, protocol: C::Protocol, stall: StallWindow) -> Self {
        Self {
            protocol,
            current: None,
            exchange: None,
            gathered: Gathered::default(),
            alpha: Alpha::new(core.config.overheads.in_ps()),
            stall,
            losses: Losses::default(),
            lost: Vec::new(),
            core,
        }
    }

    /// Whether no operation is under way.
    pub(crate) const fn is_free(&self) -> bool {
        self.current.is_none() && self.exchange.is_none()
    }

    /// Ends everything because of something on this rank.
    pub(crate) fn fail_here(&mut self, now_ps: u64, cause: Cause) {
        let own = self.core.place.rank();
        self.protocol.handle(now_ps, Event::Failed(Failure { failed_rank: own, detecting_rank: own, cause }));
    }

    /// Makes a collective by messages between pairs of ranks the operation under way, and gives it to the protocol.
    /// `bound_ps`: how long repair may take; `foreign_bytes`: what comes from other ranks, as far as that is known.
    pub(crate) fn begin_exchange(
        &mut self,
        posted: Posted<(&'static str, C::Work)>,
        (summary, decision): (Summary, Decision),
        (bound_ps, foreign_bytes): (u64, u64),
        now_ps: u64,
    ) {
        let Posted { request, plan: (name, work), send, receive, posted_ps } = posted;
        let (number, wait_ps) = (self.protocol.operation(), ps(self.core.config.barrier_timeout));
        let phases = Phases(PhasesPs { posted_ps, armed_ps: Some(posted_ps), ..PhasesPs::default() });
        let report = Report { phases, decision, foreign_bytes, ..Report::default() };
        let (state, ended_ps, deadline_ps) = (State::Active, 0, u64::MAX);
        let exchange =
            Exchange { request, name, send, receive, number, summary, state, ended_ps, deadline_ps, report, work };
        self.exchange = Some(exchange);
        let descriptor = OperationDescriptor {
            operation: number,
            roots: RankSet::EMPTY,
            pieces: 1,
            summary,
            barrier_timeout_ps: wait_ps,
            cutoff_ps: wait_ps,
            bound_ps,
        };
        self.protocol.start_direct(descriptor, now_ps);
    }

    /// The descriptor of the current operation, by these settings and with that many chains.
    pub(crate) fn describe(&self, operation: &Operation<C>, config: &Config, chains: u32) -> OperationDescriptor {
        let Operation { plan, number, algorithm, purpose, .. } = operation;
        let descriptor = descriptor(plan, config, &self.alpha, *number, (chains, *algorithm));
        let summary = purpose.summary().unwrap_or(descriptor.summary);
        OperationDescriptor { summary, ..descriptor }
    }
}

impl<C: Carrier> Engine<C> {
    /// `stall`: how long multicast brings nothing before it has stalled, at first.
    pub(crate) fn new(carrier: C, core: Core, protocol: C::Protocol, stall: StallWindow) -> Self {
        let ops = Operations::new(core, protocol, stall);
        Self { offload: None, is_last_offloaded: false, carrier, ops }
    }

    /// Starts an operation, ahead of which there is none.
    ///
    /// # Errors
    /// It cannot be started: with its buffers.
    pub(super) fn post(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        let now_ps = posted.posted_ps;
        if let Err(error) = self.carrier.before_begin(&mut self.ops, now_ps) {
            return Err(posted.refuse(error));
        }
        self.begin(posted, now_ps)?;
        C::begun(self, now_ps).map_err(|error| {
            self.fail_here(Cause::Device(FailureCode::NotStarted));
            self.withdraw(error)
        })
    }

    /// Makes a posted operation the one under way.
    fn begin(&mut self, posted: Posted<Task>, now_ps: u64) -> Result<(), Box<Failed>> {
        self.is_last_offloaded = false;
        let Posted { request, plan, send, receive, posted_ps } = posted;
        let begun = match plan {
            Task::Blocks(plan) => {
                let decision = self.carrier.decide(&mut self.ops, &plan);
                let posted = Posted { request, plan, send, receive, posted_ps };
                match decision.algorithm().is_direct() {
                    true => C::begin_direct(self, posted, decision, now_ps),
                    false => self.begin_blocks(posted, decision, C::Purpose::default(), now_ps),
                }
            }
            Task::Collective(plan) => {
                C::begin_collective(self, Posted { request, plan, send, receive, posted_ps }, now_ps)
            }
        };
        // Other ranks wait for it.
        begun.inspect_err(|_| self.fail_here(Cause::Device(FailureCode::NotStarted)))
    }

    /// Begins an operation whose blocks are multicast, or ride on the barrier. `purpose`: what it is run for.
    ///
    /// # Errors
    /// It cannot be started: with its buffers.
    pub(crate) fn begin_blocks(
        &mut self,
        mut posted: Posted,
        decision: Decision,
        purpose: C::Purpose,
        now_ps: u64,
    ) -> Result<(), Box<Failed>> {
        let stream = match self.carrier.prepare(&mut self.ops, &mut posted, &decision) {
            Ok(stream) => stream,
            Err(error) => return Err(purpose.refuse(*posted.refuse(error))),
        };
        self.ops.current = Some(Operation::new(posted, decision, purpose, stream));
        self.start(now_ps).map(drop).map_err(|error| self.withdraw(error))
    }

    /// Gives a deferred operation to the carrier and the protocol if they can take it now. Returns whether they have.
    fn start(&mut self, now_ps: u64) -> Result<bool> {
        let Self { carrier, ops, .. } = self;
        let Some(operation) = ops.current.as_mut().filter(|operation| operation.state == State::Deferred) else {
            return Ok(false);
        };
        operation.number = ops.protocol.operation();
        if operation.algorithm == Algorithm::Eager {
            self.start_eager(now_ps)?;
        } else if !carrier.arm(ops, now_ps)? {
            return Ok(false);
        }
        if let Some(operation) = &mut self.ops.current {
            operation.state.start();
        }
        Ok(true)
    }

    /// Gives an operation to the protocol whose blocks ride on the barrier.
    fn start_eager(&mut self, now_ps: u64) -> Result<()> {
        let Some(operation) = self.ops.current.as_ref() else { return Ok(()) };
        let mut gathered = std::mem::take(&mut self.ops.gathered);
        gathered.begin(&operation.plan, &operation.receive)?;
        let config = &self.ops.core.config;
        let Order { chains, .. } = order(&operation.plan, config, self.ops.core.place.rank());
        let descriptor = self.ops.describe(operation, config, chains);
        self.ops.protocol.start_eager(descriptor, gathered, now_ps)?;
        if let Some(operation) = self.ops.current.as_mut() {
            operation.state.start();
            operation.report.phases.0.armed_ps = Some(now_ps);
        }
        self.carry_out(now_ps)
    }

    /// Takes the current operation back after a failure to start it, with its buffers. Other ranks are still to be
    /// notified that it fails.
    pub(crate) fn withdraw(&mut self, error: Error) -> Box<Failed> {
        let Some(mut operation) = self.ops.current.take() else { return Box::new(Failed::of(error)) };
        let withdrawn = self.carrier.withdraw(&mut operation);
        let Operation { send, receive, report, purpose, .. } = operation;
        let failed = match withdrawn {
            Withdrawn::Clean => Failed { error, send, receive: Some(receive), report },
            Withdrawn::Renew => {
                let mut renew = |buffer: Buffer| self.carrier.renew(buffer).ok();
                Failed { error, send: send.and_then(&mut renew), receive: renew(receive), report }
            }
            Withdrawn::Held => {
                self.ops.lost.extend(send.into_iter().chain([receive]));
                Failed { error, send: None, receive: None, report }
            }
        };
        purpose.refuse(failed)
    }

    /// Moves the protocol on as far as it goes now; returns whether anything happened. Never blocks.
    pub(crate) fn move_on(&mut self) -> Result<bool> {
        self.ops.core.check_fault()?;
        let now_ps = self.carrier.now_ps();
        let mut moved = self.carrier.receive(&mut self.ops, now_ps)?;
        if let Some(posted) = self.ops.core.next(self.is_turn_of_carrier()) {
            let request = posted.request;
            if let Err(failed) = self.begin(posted, now_ps) {
                self.ops.core.requests.finish(request, Err(failed));
            }
            moved = true;
        }
        let now_ps = self.carrier.now_after_receive(now_ps);
        moved = C::advance(self, moved, now_ps)?;
        self.carry_out(now_ps)?;
        moved |= self.carrier.send_data(&mut self.ops, now_ps)?;
        self.carry_out(now_ps)?;
        moved |= self.release(now_ps)?;
        moved |= self.wind_up(now_ps)?;
        moved |= self.end_exchange(now_ps)?;
        self.carrier.flush(&mut self.ops, now_ps)?;
        Ok(self.move_offload()? || moved)
    }

    /// Tries again to start a deferred operation. Returns whether it has begun, or has ended since it could not.
    pub(crate) fn start_deferred(&mut self, now_ps: u64) -> bool {
        match self.start(now_ps) {
            Ok(started) => started,
            Err(error) => {
                let request = self.ops.current.as_ref().map(|operation| operation.request);
                self.fail_here(Cause::Device(FailureCode::NotStarted));
                let failed = self.withdraw(error);
                if let Some(request) = request {
                    self.ops.core.requests.finish(request, Err(failed));
                }
                true
            }
        }
    }

    /// Does what the protocol asks for.
    pub(crate) fn carry_out(&mut self, now_ps: u64) -> Result<()> {
        let Self { carrier, ops, offload, .. } = self;
        while let Some(action) = ops.protocol.next() {
            match action {
                Action::Send { to, message } => {
                    if let Some(encoded) = ops.protocol.encode(&message) {
                        carrier.send_message(ops, to, message.operation, encoded)?;
                    }
                }
                Action::Multicast => carrier.multicast(ops, now_ps)?,
                Action::Read { from, pieces } => {
                    let at = ops.protocol.offer();
                    carrier.read(ops, from, &pieces, at)?;
                }
                Action::Release => ops.release(now_ps),
                Action::Fail(failure) => {
                    ops.fail(failure, now_ps);
                    let noted = carrier.failed(ops, failure, now_ps);
                    // An offload ends them itself, together with what it has under way.
                    if offload.is_none() {
                        ops.core.refuse_waiting(failure);
                    }
                    noted?;
                }
            }
        }
        ops.note(now_ps);
        Ok(())
    }

    /// Ends everything because of something on this rank.
    pub(crate) fn fail_here(&mut self, cause: Cause) {
        let now_ps = self.carrier.now_ps();
        self.ops.fail_here(now_ps, cause);
        self.carrier.wake();
    }
}

impl<C: Carrier> Operations<C> {
    /// All ranks have what they need of the operation under way from this one.
    fn release(&mut self, now_ps: u64) {
        if let Some(operation) = self.current.as_mut()
            && operation.state.release()
        {
            operation.ended_ps = now_ps;
        }
        if let Some(exchange) = self.exchange.as_mut()
            && exchange.state.release()
        {
            exchange.ended_ps = now_ps;
        }
    }

    /// The operation under way fails, and the communicator with it.
    fn fail(&mut self, failure: Failure, now_ps: u64) {
        self.core.fail(failure, self.protocol.disagreement());
        let own = self.core.place.rank();
        self.current.iter_mut().for_each(|operation| operation.fail(failure, own, now_ps));
        self.exchange.iter_mut().for_each(|exchange| exchange.fail(failure, now_ps));
    }

    /// Takes the protocol's deadline, and enters what it knows into the report.
    fn note(&mut self, now_ps: u64) {
        let deadline_ps = self.protocol.deadline_ps().unwrap_or(u64::MAX);
        if let Some(operation) = self.current.as_mut() {
            operation.deadline_ps = deadline_ps;
            self.protocol.note(now_ps, &mut operation.report);
        }
        if let Some(exchange) = self.exchange.as_mut() {
            exchange.deadline_ps = deadline_ps;
            self.protocol.note(now_ps, &mut exchange.report);
        }
    }
}
