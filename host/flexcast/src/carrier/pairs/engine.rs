//! Collectives between pairs of ranks in the engine of a datapath over RDMA cards: begin, progress and end.

use flexcast_proto::{Algorithm, Cause, FailureCode, OperationDescriptor};

use super::setup::Connecting;
use super::sparse::Need;
use super::{Bounds, News, Pairs, Refusal, SetupOperation, Way};
use crate::carrier::datapath::Datapath;
use crate::engine::Posted;
use crate::engine::Task;
use crate::engine::notice::Notice;
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::ps;
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed};
use crate::op::report::Report;
use crate::op::sparse_cost::Densities;
use crate::op::tuning::Tuning;
use crate::plan::tuner::Conditions;

/// The engine of a datapath, which has operations of blocks of its own.
pub(crate) trait PairEngine: Datapath {
    fn pairs(&self) -> &Pairs;

    fn pairs_mut(&mut self) -> &mut Pairs;

    fn conditions(&self) -> &Conditions;

    /// Number of the operation that is posted next.
    fn operation(&self) -> u32;

    /// Takes an operation that has no barrier.
    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64);

    fn notify(&mut self, now_ps: u64, notice: Notice);

    /// Does what the protocol asks for.
    fn carry_out(&mut self, now_ps: u64) -> Result<()>;

    /// Begins a setup operation. False: it cannot begin yet, and waits for its turn.
    fn begin_setup(&mut self, posted: Posted, setup: Box<SetupOperation>, now_ps: u64) -> Result<bool, Box<Failed>>;

    /// Whether a setup operation that is multicast could begin now.
    fn has_room(&self, now_ps: u64) -> bool;

    /// Whether what this rank has said of operations has not all gone to the card, although none has failed.
    fn has_more_to_say(&self) -> bool;

    /// Whether all that this rank has said is acknowledged.
    fn is_heard(&self) -> bool;

    /// Begins a collective, or what has to come before it. False: it cannot begin yet, and waits for its turn.
    ///
    /// # Errors
    /// It cannot be carried: with its buffers.
    fn begin_collective(&mut self, posted: Posted<Collective>, now_ps: u64) -> Result<bool, Box<Failed>> {
        let (table, is_ordered) = (Tuning::between_pairs(), self.core().config.reproducible);
        let decision = self.conditions().decide_collective(table, &posted.plan, is_ordered, &Densities::default());
        let is_barrier = posted.plan == Collective::Barrier;
        let need = self.pairs().need(&posted.plan, decision.algorithm(), &self.core().config);
        if is_barrier || self.pairs().needs_connections(need.as_ref()) {
            // Before queue pairs are made for it.
            if !is_barrier && !self.has_room(now_ps) {
                self.core_mut().waiting.push_front(posted.map(Task::Collective));
                return Ok(false);
            }
            let (posted, setup) = self.pairs().setup(posted, &decision, &self.core().config)?;
            return self.begin_setup(posted, setup, now_ps);
        }
        if need.is_some() && self.conditions().ranks > 1 {
            // Its messages do not say what is called: the barrier does.
            let what = (posted.plan.kind().name(), posted.plan.summary(decision.algorithm()));
            let (posted, setup) = self.pairs().meeting(posted, what, &self.core().config)?;
            return self.begin_setup(posted, setup, now_ps);
        }
        self.start_collective(posted, now_ps)?;
        Ok(true)
    }

    /// Begins a collective whose connections are there.
    ///
    /// # Errors
    /// It cannot be carried: with its buffers.
    fn start_collective(&mut self, posted: Posted<Collective>, now_ps: u64) -> Result<(), Box<Failed>> {
        let (table, is_ordered) = (Tuning::between_pairs(), self.core().config.reproducible);
        let decision = self.conditions().decide_collective(table, &posted.plan, is_ordered, &Densities::default());
        let need = self.pairs().need(&posted.plan, decision.algorithm(), &self.core().config);
        let bounds = Bounds {
            operation: self.operation(),
            wait_ps: ps(self.core().config.barrier_timeout),
            repair_ps: ps(self.core().config.recovery_timeout),
        };
        let decision = decision.with_aggregation(need.as_ref().map(Need::aggregation));
        let decision = decision.with_fixed_point(need.as_ref().and_then(Need::fixed_point));
        let descriptor = self.pairs_mut().begin(posted, decision, bounds, need)?;
        self.start_direct(descriptor, now_ps);
        // What has come early may differ: then nothing is sent.
        if let Err(error) = self.carry_out(now_ps) {
            self.core_mut().set_fault(error);
        }
        let news = self.pairs_mut().start(now_ps);
        self.take_news(news, now_ps);
        Ok(())
    }

    fn take_news(&mut self, news: News, now_ps: u64) -> bool {
        let any = news.iter().any(Option::is_some);
        news.into_iter().flatten().for_each(|notice| self.notify(now_ps, notice));
        any
    }

    /// Moves the collective on that is under way. Returns whether anything has happened.
    fn poll_pairs(&mut self, now_ps: u64) -> bool {
        let Some(deadline_ps) = self.pairs().exchange.as_ref().map(|exchange| exchange.deadline_ps) else {
            return false;
        };
        let news = self.pairs_mut().poll(now_ps);
        let any = self.take_news(news, now_ps);
        self.notify(now_ps, Notice::Time);
        any || now_ps >= deadline_ps
    }

    /// Ends a collective that is over. Returns whether one was.
    fn end_pairs(&mut self, now_ps: u64) -> Result<bool> {
        // The caller may stay away for long once it has ended.
        if !self.pairs().is_busy() || self.has_more_to_say() {
            return Ok(false);
        }
        let (is_heard, requests) = (self.is_heard(), self.core().requests.clone());
        let ended = match self.pairs_mut().release(now_ps) {
            Some(ended) => Some(ended),
            None => self.pairs_mut().wind_up(&requests, is_heard, now_ps)?,
        };
        let Some((request, outcome)) = ended else { return Ok(false) };
        requests.finish(request, outcome);
        Ok(true)
    }

    /// A setup operation is over: what it was run for goes on, or is done.
    fn finish_setup(
        &mut self,
        setup: SetupOperation,
        (request, send, receive, mut report): (u64, Option<Buffer>, Buffer, Report),
        now_ps: u64,
    ) {
        // A failure that came together with the setup operation's end has found no collective that it could end: none
        // begins.
        if let Some(failure) = self.core().requests.broken()
            && !matches!(setup.way, Way::Barrier)
        {
            report.failure = Some(failure);
            let error = self.core().requests.failed(setup.name, failure, None);
            let failed = Failed { error, send: None, receive: None, report };
            return self.core().requests.finish(request, Err(SetupOperation::failed(Some(Box::new(setup)), failed)));
        }
        let SetupOperation { name, summary, way } = setup;
        let connecting = match way {
            Way::Barrier => {
                report.decision = Decision::of(Algorithm::Dissemination);
                return self.core().requests.finish(request, Ok(Done { send, receive, report }));
            }
            Way::Connect(connecting) => *connecting,
            Way::Meet(posted) => {
                if let Err(failed) = self.start_collective(*posted, now_ps) {
                    self.core().requests.finish(request, Err(failed));
                    self.fail_here(Cause::Device(FailureCode::NotStarted));
                }
                return;
            }
        };
        let Connecting { pending, need, posted } = connecting;
        let failed = match self.pairs_mut().connect(pending, &receive, need.as_ref()) {
            Ok(()) => {
                let meeting = self.pairs().meeting(posted, (name, summary), &self.core().config);
                match meeting.and_then(|(posted, setup)| self.begin_setup(posted, setup, now_ps)) {
                    Ok(_) => return,
                    Err(failed) => failed,
                }
            }
            Err(Refusal::Everywhere(error)) => return self.core().requests.finish(request, Err(posted.refuse(error))),
            Err(Refusal::Here(error)) => posted.refuse(error),
        };
        self.core().requests.finish(request, Err(failed));
        self.fail_here(Cause::Device(FailureCode::NotStarted));
    }
}
