//! Operations under way: their state, from the post to the end, as the engine keeps it.

use std::fmt;

use flexcast_proto::{Algorithm, Cause, Failure, Pieces, Summary};

use super::event::Event;
use super::{Carrier, Posted};
use crate::error::Error;
use crate::op::buffer::Buffer;
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed, Outcome};
use crate::op::report::{Phases, PhasesPs, Report};
use crate::plan::Plan;

/// Where an operation is between its post and its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    /// The carrier has nothing of it, since it cannot take it yet.
    Deferred,
    Active,
    /// All ranks have what they need from this one.
    Released,
    /// It has failed, on this rank or on another.
    Failed(Failure),
}

impl State {
    pub(crate) const fn is_active(&self) -> bool {
        matches!(self, Self::Active)
    }

    pub(crate) const fn is_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// The carrier has taken a deferred operation.
    pub(crate) fn start(&mut self) {
        if matches!(self, Self::Deferred) {
            *self = Self::Active;
        }
    }

    /// All ranks are done with an operation under way. Returns whether that is news.
    pub(crate) fn release(&mut self) -> bool {
        let is_news = self.is_active();
        if is_news {
            *self = Self::Released;
        }
        is_news
    }

    /// The operation fails. The first failure counts. One that is released has ended well on all ranks: only this
    /// rank's own carrier (`own`), which may still send, can fail it. Returns whether that is news.
    pub(crate) fn fail(&mut self, failure: Failure, own: u32) -> bool {
        let is_own = matches!(failure.cause, Cause::Device(_)) && failure.detecting_rank == own;
        let is_news = match self {
            Self::Deferred | Self::Active => true,
            Self::Released => is_own,
            Self::Failed(_) => false,
        };
        if is_news {
            *self = Self::Failed(failure);
        }
        is_news
    }
}

/// What an operation of blocks is run for.
pub(crate) trait Purpose: Default + fmt::Debug + Send {
    /// Name of what the user has called; none if it is the operation itself.
    fn name(&self) -> Option<&'static str>;

    /// What is compared with the other ranks instead of the operation.
    fn summary(&self) -> Option<Summary>;

    /// Gives the user's buffers back for those of the operation, if these are others.
    fn refuse(self, failed: Failed) -> Box<Failed>;
}

/// Operations are run for themselves.
impl Purpose for () {
    fn name(&self) -> Option<&'static str> {
        None
    }

    fn summary(&self) -> Option<Summary> {
        None
    }

    fn refuse(self, failed: Failed) -> Box<Failed> {
        Box::new(failed)
    }
}

/// An operation of blocks that is under way.
pub(crate) struct Operation<C: Carrier> {
    pub(crate) request: u64,
    pub(crate) plan: Plan,
    /// The cut of its blocks for recovery.
    pub(crate) pieces: Pieces,
    pub(crate) send: Option<Buffer>,
    pub(crate) receive: Buffer,
    pub(crate) algorithm: Algorithm,
    pub(crate) purpose: C::Purpose,
    /// Its number, alike on all ranks; that of the next one while it is deferred.
    pub(crate) number: u32,
    pub(crate) state: State,
    /// When it was released, or failed.
    pub(crate) ended_ps: u64,
    /// When the protocol's state machine wants to be notified of the time.
    pub(crate) deadline_ps: u64,
    pub(crate) report: Report,
    /// What the carrier keeps of it.
    pub(crate) stream: C::Stream,
}

impl<C: Carrier> fmt::Debug for Operation<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, state, algorithm, .. } = self;
        f.debug_struct("Operation").field("number", number).field("state", state).field("by", algorithm).finish()
    }
}

impl<C: Carrier> Operation<C> {
    /// One that has not begun.
    pub(crate) fn new(posted: Posted, decision: Decision, purpose: C::Purpose, stream: C::Stream) -> Self {
        let Posted { request, plan, send, receive, posted_ps } = posted;
        let report = Report {
            phases: Phases(PhasesPs { posted_ps, ..PhasesPs::default() }),
            decision,
            foreign_bytes: plan.foreign_bytes(),
            ..Report::default()
        };
        Self {
            request,
            pieces: plan.pieces(),
            plan,
            send,
            receive,
            algorithm: decision.algorithm(),
            purpose,
            number: 0,
            state: State::Deferred,
            ended_ps: 0,
            deadline_ps: u64::MAX,
            report,
            stream,
        }
    }

    /// Name of what the user has called.
    pub(crate) fn name(&self) -> &'static str {
        self.purpose.name().unwrap_or_else(|| self.plan.kind.name())
    }

    /// The operation fails.
    pub(crate) fn fail(&mut self, failure: Failure, own: u32, now_ps: u64) {
        if self.state.fail(failure, own) {
            self.ended_ps = now_ps;
            self.report.failure = Some(failure);
        }
    }
}

/// A collective by messages between pairs of ranks that is under way: it has no barrier.
pub(crate) struct Exchange<C: Carrier> {
    pub(crate) request: u64,
    /// Name of what the user has called.
    pub(crate) name: &'static str,
    pub(crate) send: Option<Buffer>,
    pub(crate) receive: Buffer,
    /// Its number, alike on all ranks.
    pub(crate) number: u32,
    /// What this rank has called.
    pub(crate) summary: Summary,
    pub(crate) state: State,
    /// When it was released, or failed.
    pub(crate) ended_ps: u64,
    /// When the protocol's state machine wants to be notified of the time.
    pub(crate) deadline_ps: u64,
    pub(crate) report: Report,
    /// What the carrier keeps of it.
    pub(crate) work: C::Work,
}

impl<C: Carrier> fmt::Debug for Exchange<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, state, name, .. } = self;
        f.debug_struct("Exchange").field("number", number).field("state", state).field("name", name).finish()
    }
}

impl<C: Carrier> Exchange<C> {
    /// The collective fails, unless it is over.
    pub(crate) fn fail(&mut self, failure: Failure, now_ps: u64) {
        if self.state.is_active() {
            self.state = State::Failed(failure);
            self.ended_ps = now_ps;
            self.report.failure = Some(failure);
        }
    }

    /// Messages have moved: what the protocol is notified of. `awaited`: who owes the first thing that is missing; none
    /// if the exchange is complete.
    pub(crate) fn transferred(&mut self, awaited: Option<u32>, now_ps: u64) -> Event<'static> {
        let Some(awaited) = awaited else {
            self.report.phases.0.received_ps.get_or_insert(now_ps);
            return Event::TransferredAll;
        };
        Event::Transferred { awaited }
    }

    /// What its request ends with. `error_of`: the error of a failure.
    pub(crate) fn into_outcome(self, error_of: impl FnOnce(&'static str, Failure) -> Error) -> Outcome {
        let Self { name, send, receive, state, report, .. } = self;
        let State::Failed(failure) = state else { return Ok(Done { send, receive, report }) };
        let error = error_of(name, failure);
        Err(Box::new(Failed { error, send, receive: Some(receive), report }))
    }
}

#[cfg(test)]
mod tests {
    use flexcast_proto::FailureCode;

    use super::*;

    fn failure(cause: Cause, detecting_rank: u32) -> Failure {
        Failure { failed_rank: 1, detecting_rank, cause }
    }

    #[test]
    fn every_state_takes_what_it_can_and_nothing_else() {
        let lost = failure(Cause::Connection(FailureCode::ConnectionReset), 0);
        let own = failure(Cause::Device(FailureCode::Copy), 0);
        let others = failure(Cause::Device(FailureCode::Copy), 2);
        let states = [State::Deferred, State::Active, State::Released, State::Failed(lost)];
        let after = |act: &dyn Fn(&mut State)| {
            states.map(|mut state| {
                act(&mut state);
                state
            })
        };
        let [_, active, released, failed] = states;
        assert_eq!(after(&State::start), [active, active, released, failed]);
        assert_eq!(after(&|state| _ = state.release()), [states[0], released, released, failed]);
        assert_eq!(after(&|state| _ = state.fail(lost, 0)), [failed, failed, released, failed]);
        assert_eq!(after(&|state| _ = state.fail(others, 0))[2], released, "another rank's card");
        assert_eq!(after(&|state| _ = state.fail(own, 0))[2], State::Failed(own), "the own sends may fail it");
        assert_eq!(after(&|state| _ = state.fail(own, 0))[3], failed, "the first failure counts");
    }
}
