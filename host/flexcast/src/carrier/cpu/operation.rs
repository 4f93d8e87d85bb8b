//! State of the operation under way.

use flexcast_proto::{Algorithm, Alpha, Failure, Pieces, ProgressWatch, StallWindow};

use crate::carrier::pairs::SetupOperation;
use crate::engine::Posted;
use crate::engine::conversation::Conversation;
use crate::engine::descriptor::activations_ps;
use crate::engine::eager::Gathered;
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::config::Config;
use crate::op::decision::Decision;
use crate::op::report::{Phases, PhasesPs, Report};
use crate::plan::Plan;

/// Where an operation is between its post and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
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

    pub(crate) fn release(&mut self) {
        if self.is_active() {
            *self = Self::Released;
        }
    }

    /// The first failure counts; one that comes behind the end does not.
    pub(crate) fn fail(&mut self, failure: Failure) {
        if self.is_active() {
            *self = Self::Failed(failure);
        }
    }
}

/// The own block on its way to the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) first_psn: u32,
    pub(crate) chunks: u32,
    /// Chunks that the system has.
    pub(crate) sent: u32,
    /// When it last took any.
    pub(crate) moved_ps: u64,
    /// When the system would take no more.
    pub(crate) full_ps: Option<u64>,
}

/// The operation under way. `R`: what has been asked of a peer, where the datapath keeps count of that itself.
#[derive(Debug)]
pub(crate) struct Running<R> {
    pub(crate) request: u64,
    pub(crate) plan: Plan,
    /// The cut of its blocks for recovery.
    pub(crate) pieces: Pieces,
    /// Chunks of each root that may be under way.
    pub(crate) window_chunks: u32,
    pub(crate) send: Option<Buffer>,
    pub(crate) receive: Buffer,
    pub(crate) algorithm: Algorithm,
    /// What it is run for, if not for itself.
    pub(crate) setup: Option<Box<SetupOperation>>,
    /// Its number, alike on all ranks.
    pub(crate) operation: u32,
    pub(crate) state: State,
    /// It is this rank's turn.
    pub(crate) sending: Option<Sending>,
    /// How data comes, from the barrier on.
    pub(crate) watch: Option<ProgressWatch>,
    /// Multicast has stalled, and all that is missing has been asked for.
    pub(crate) given_up: bool,
    /// Pieces have been given up.
    pub(crate) repairs: bool,
    pub(crate) reads: R,
    /// When the protocol's state machine wants to be notified of the time.
    pub(crate) deadline_ps: u64,
    pub(crate) report: Report,
}

impl<R> Running<R> {
    /// An operation that has not begun, with its number among all. `armed_ps`: since when it can receive.
    pub(crate) fn new(posted: Posted, decision: Decision, operation: u32, armed_ps: u64, reads: R) -> Self {
        let Posted { request, plan, send, receive, posted_ps } = posted;
        let report = Report {
            phases: Phases(PhasesPs { posted_ps, armed_ps: Some(armed_ps), ..PhasesPs::default() }),
            decision,
            foreign_bytes: plan.foreign_bytes(),
            ..Report::default()
        };
        Self {
            request,
            pieces: plan.pieces(),
            window_chunks: u32::MAX,
            plan,
            send,
            receive,
            algorithm: decision.algorithm(),
            setup: None,
            operation,
            state: State::Active,
            sending: None,
            watch: None,
            given_up: false,
            repairs: false,
            reads,
            deadline_ps: u64::MAX,
            report,
        }
    }

    /// All ranks are done with it: its report gets the times of its end, and the user's buffer the blocks that rode on
    /// the barrier.
    ///
    /// # Errors
    /// A block does not fit the buffer.
    pub(crate) fn finish(
        &mut self,
        now_ps: u64,
        conversation: &mut Conversation,
        gathered: &mut Gathered,
    ) -> Result<()> {
        let phases = &mut self.report.phases.0;
        phases.released_ps = Some(now_ps);
        phases.complete_ps.get_or_insert(phases.received_ps.unwrap_or(now_ps));
        if self.algorithm == Algorithm::Eager
            && let Some(taken) = conversation.take_eager()
        {
            taken.place(&self.plan, &mut self.receive)?;
            *gathered = taken;
        }
        Ok(())
    }

    /// The estimates of the network learn from its multicast, whose chains were those of `ordered`.
    pub(crate) fn observe(&self, ordered: &Config, config: &Config, alpha: &mut Alpha, stall: &mut StallWindow) {
        let phases = &self.report.phases.0;
        if let (Some(received_ps), Some(ready_ps)) = (phases.received_ps, phases.ready_ps) {
            let steps_ps = activations_ps(&self.plan, ordered);
            let took_ps = received_ps.saturating_sub(ready_ps).saturating_sub(steps_ps);
            alpha.observe(self.plan.link_bytes(config), config.link_gbit_per_s, took_ps);
        }
        if let Some(watch) = self.watch {
            stall.observe(watch.longest_ps());
        }
    }

    /// Name of what the user has called.
    pub(crate) fn name(&self) -> &'static str {
        self.setup.as_ref().map_or(self.plan.kind.name(), |setup| setup.name)
    }

    /// When its multicast counts as stalled; none before the barrier, and once that has been found.
    pub(crate) fn stalled_ps(&self, window: StallWindow) -> Option<u64> {
        let watch = self.watch.filter(|_| !self.given_up && self.algorithm == Algorithm::Multicast)?;
        Some(watch.stalled_ps(window, 0))
    }

    /// Whether its buffers are the user's again.
    pub(crate) const fn is_over(&self) -> bool {
        match self.state {
            State::Active => false,
            State::Released => self.sending.is_none(),
            State::Failed(_) => true,
        }
    }
}
