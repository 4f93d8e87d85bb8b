//! Operations that service processes carry out, one behind the other with those of the datapath inside.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::service::wire::Refused;
use flexcast_proto::service::{self, Delivery, FailedParty, Region, StagedCause, StagedRefusal, Topology};
use flexcast_proto::{Cause, Disagreement, Failure, FailureCode, WaitedFor};
use flexcast_service::{Error as ServiceError, MemoryId, Session};

use super::call::{self, Call};
use super::returning::Returning;
use super::segment::Segment;
use super::settings::{Settings, Way};
use crate::carrier::card::{Card, DatapathKind};
use crate::engine::Core;
use crate::engine::datapath::Datapath;
use crate::engine::{Admission, Posted, Task};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::config::Control;
use crate::op::decision::Decision;
use crate::op::lease::{DeferredFree, Kept};
use crate::op::outcome::Failed;
use crate::op::report::{MessageCounts, Phases, PhasesPs, Report};

/// How long the service processes have to name who is at fault, once the hosts have found a failure.
const GRACE: Duration = Duration::from_secs(2);
/// Longest that a service process takes to let a rank go.
const FAREWELL: Duration = Duration::from_secs(1);
/// Until a flag is looked for again.
const LOOK_PS: u64 = 20_000_000;

/// An operation under way.
#[derive(Debug)]
struct Running {
    posted: Posted<Task>,
    call: Call,
    until: Instant,
}

/// A communicator's operations, and who carries them out.
pub(super) struct Engine {
    // Keys end before the memory that they are of.
    session: Session,
    deferred_free: Arc<DeferredFree>,
    /// What the ranks of this host share; after the session, whose keys are of it.
    segment: Option<Segment>,
    settings: Settings,
    /// Memory of buffers that are gone, which is being taken back.
    deferred: Vec<(MemoryId, Kept)>,
    core: Core,
    running: VecDeque<Running>,
    returning: Vec<Returning>,
    /// Buffers that the card does not let go of.
    lost: Vec<Buffer>,
    inner: Box<dyn Datapath>,
    card: Card,
    /// The DPA moves the data of Broadcasts and Allgathers.
    hands_over: bool,
    topology: Topology,
    group: u32,
    /// Since when the first operation that waits does so for keys.
    asked: Option<Instant>,
    /// Operations whose send buffer is a copy of ours.
    aside: Vec<u64>,
    /// Collectives that may be under way.
    most: usize,
    /// Buffers that are lent.
    lent: usize,
    /// The service processes have staging memory, as far as is known.
    staging: bool,
    /// The operation posted last, if service processes have it.
    last: Option<(u64, Call)>,
    failure: Option<Failure>,
    /// Since when the datapath inside has failed.
    broken: Option<Instant>,
}

impl Engine {
    pub(super) fn new(
        inner: Box<dyn Datapath>,
        card: Card,
        session: Session,
        (topology, group): (Topology, u32),
        segment: Option<Segment>,
    ) -> Self {
        let settings = Settings::of(&inner.core().config.service);
        // As the communicator was made, with control by service processes.
        let config = inner.core().config.clone().control(Control::Service);
        let core = Core::around(inner.core(), config);
        let hands_over = card.datapath() == DatapathKind::Dpa;
        let most = session.welcome().collectives.max(1) as usize;
        let deferred_free = Arc::new(DeferredFree::new(session.address()));
        Self {
            session,
            deferred_free,
            segment,
            settings,
            deferred: Vec::new(),
            core,
            running: VecDeque::new(),
            returning: Vec::new(),
            lost: Vec::new(),
            inner,
            card,
            hands_over,
            topology,
            group,
            asked: None,
            aside: Vec::new(),
            most,
            lent: 0,
            staging: true,
            last: None,
            failure: None,
            broken: None,
        }
    }

    fn takes(&self, task: &Task) -> bool {
        let is_handed_over = self.hands_over && matches!(task, Task::Blocks(_));
        !is_handed_over && call::takes(task, self.staging)
    }

    /// How an operation goes.
    fn way(&self, task: &Task) -> Way {
        let Task::Blocks(plan) = task else { return Way::Keys };
        let own = self.core.place.rank();
        let room = self.segment.as_ref().and_then(|segment| {
            let flags = self.session.look().segment_bytes(self.group, own, 0).ok()?;
            segment.bytes().checked_sub(flags)
        });
        self.settings.way(plan, &self.topology, room, self.staging)
    }

    /// Whether an operation has to wait for the one that has the segment.
    fn is_segment_busy(&self, way: Way) -> bool {
        let has_it = |running: &Running| matches!(running.call, Call::Staged(call) if call.is_shared);
        way == Way::Staged(Delivery::Hierarchical) && self.running.iter().any(has_it)
    }

    /// Lets the service process use the memory of an operation; where it can by now, what calls name of it.
    fn lend(&mut self, posted: &mut Posted<Task>) -> Result<Option<(Region, Region)>, ServiceFault> {
        let Self { session, deferred_free, lent, .. } = self;
        let client = session.client();
        let mut region = |buffer: &mut Buffer| -> Result<Option<Region>, ServiceFault> {
            let mut refusal = None;
            let id = buffer.lend(deferred_free, |region| {
                *lent += 1;
                client.share(region).map_err(|error| {
                    let reason = error.to_string();
                    refusal = Some(error);
                    Error::Argument { operation: "service", reason }
                })
            });
            let id = id.map_err(|error| refusal.map_or(ServiceFault::Own(error), ServiceFault::Service))?;
            client.key(id).map_err(ServiceFault::Service)
        };
        let Posted { plan, send, receive, .. } = posted;
        let into = region(receive)?;
        let from = match send.as_mut().filter(|_| call::reads_send(plan)) {
            Some(send) => region(send)?,
            None => into,
        };
        Ok(from.zip(into))
    }

    /// In place the blocks of others would overwrite what they read: the own blocks are copied to a buffer of their
    /// own.
    fn copy_aside(&mut self, posted: &mut Posted<Task>) -> Result<()> {
        let len = posted.receive.len();
        let mut aside = self.card.buffer(len)?;
        aside.copy_from(0, &posted.receive, 0, len)?;
        posted.send = Some(aside);
        self.aside.push(posted.request);
        Ok(())
    }

    /// Starts what waits, as far as it can: operations of the service processes and of the datapath inside never
    /// overlap. Returns whether anything was started.
    fn start(&mut self) -> bool {
        let mut moved = false;
        while self.failure.is_none()
            && let Some(mut posted) = self.core.waiting.pop_front()
        {
            if !self.takes(&posted.plan) {
                if !self.running.is_empty() {
                    self.core.waiting.push_front(posted);
                    return moved;
                }
                let request = posted.request;
                self.last = None;
                if let Err(failed) = self.inner.take_on(posted) {
                    self.core.requests.finish(request, Err(failed));
                }
                moved = true;
                continue;
            }
            let way = self.way(&posted.plan);
            if !self.inner.is_idle() || self.running.len() >= self.most || self.is_segment_busy(way) {
                self.core.waiting.push_front(posted);
                return moved;
            }
            let call = match self.lend(&mut posted) {
                Ok(None) if self.session.client().is_gone() => Err(ServiceFault::Service(ServiceError::Gone)),
                Ok(None) => {
                    let since = *self.asked.get_or_insert_with(Instant::now);
                    if since.elapsed() <= self.core.config.service.operation {
                        self.core.waiting.push_front(posted);
                        return moved;
                    }
                    Err(ServiceFault::Late)
                }
                Ok(Some(memory)) => {
                    let own = (self.group, self.core.place.rank(), self.core.place.ranks());
                    let segment = self.segment.as_ref().and_then(|segment| segment.id);
                    call::post(self.session.client(), own, &posted.plan, memory, (way, segment))
                        .map_err(ServiceFault::Service)
                }
                Err(fault) => Err(fault),
            };
            moved = true;
            self.asked = None;
            match call {
                Ok(call) => {
                    self.last = Some((posted.request, call));
                    let until = Instant::now() + self.core.config.service.operation;
                    self.running.push_back(Running { posted, call, until });
                }
                Err(fault) => {
                    let (failure, calls) = (self.told(&fault), Self::calls(&fault));
                    self.core.waiting.push_front(posted);
                    self.fail(failure, calls);
                }
            }
        }
        moved
    }

    /// What ranks have called, in words, if that is what service processes have found to differ.
    fn calls(fault: &ServiceFault) -> Option<String> {
        let ServiceFault::Service(ServiceError::Failed(failure)) = fault else { return None };
        let failed_rank = failure.failed_rank;
        match failure.cause {
            service::Cause::Bytes { detecting_rank, found, expected } => Some(format!(
                "{failed_rank} sends {found} bytes to rank {detecting_rank}; rank {detecting_rank} expects {expected} \
                 bytes"
            )),
            service::Cause::Operation { found, expected } => {
                Some(format!("{failed_rank} called {found}; a rank of another service process called {expected}"))
            }
            service::Cause::Died | service::Cause::Read(_) => None,
        }
    }

    /// The failure of the communicator that something of the service processes is.
    fn told(&self, fault: &ServiceFault) -> Failure {
        let own = self.core.place.rank();
        let rank_of = |failed_rank| match failed_rank {
            FailedParty::Rank(rank) => rank,
            // The first rank that it serves stands for it.
            FailedParty::Process(process) => self.topology.served_by(process).next().unwrap_or(own),
        };
        let of_process = |failed_rank| match failed_rank {
            FailedParty::Rank(_) => Cause::Connection(FailureCode::Program),
            FailedParty::Process(_) => Cause::Device(FailureCode::ServiceProcess),
        };
        tracing::warn!(rank = own, %fault, "an operation by service processes has failed");
        let (failed_rank, cause) = match fault {
            ServiceFault::Service(ServiceError::Failed(failure)) => {
                let cause = match failure.cause {
                    service::Cause::Died => of_process(failure.failed_rank),
                    service::Cause::Read(status) => Cause::Connection(FailureCode::of_completion(status.into())),
                    service::Cause::Bytes { .. } | service::Cause::Operation { .. } => Cause::Disagrees,
                };
                (rank_of(failure.failed_rank), cause)
            }
            ServiceFault::Service(ServiceError::StagedFailed(failure)) => {
                let cause = match failure.cause {
                    StagedCause::Died => of_process(failure.failed_rank),
                    StagedCause::Transfer(status) => Cause::Connection(FailureCode::of_completion(status.into())),
                    StagedCause::Disagrees => Cause::Disagrees,
                };
                (rank_of(failure.failed_rank), cause)
            }
            ServiceFault::Late => (own, Cause::Silent(WaitedFor::Block)),
            ServiceFault::Service(_) | ServiceFault::Own(_) => (own, Cause::Device(FailureCode::ServiceProcess)),
        };
        Failure { failed_rank, detecting_rank: own, cause }
    }

    /// Ends everything: what is under way once its memory is back.
    fn fail(&mut self, failure: Failure, calls: Option<String>) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(failure);
        // Ranks that wait by the hosts' control learn it by that; what goes out goes at once. Others' failures their
        // service processes tell.
        if failure.failed_rank == self.core.place.rank() && self.core.requests.broken().is_none() {
            self.inner.fail_here(failure.cause);
            if let Err(error) = self.inner.progress() {
                self.core.set_fault(error);
            }
        }
        self.core.requests.break_by(failure, calls);
        let running = std::mem::take(&mut self.running);
        let waiting = std::mem::take(&mut self.core.waiting);
        let now_ps = self.inner.now_ps();
        for Running { posted, .. } in running {
            let error = self.core.requests.failed(posted.plan.name(), failure, None);
            self.give_back(posted, now_ps, Some(error));
        }
        for posted in waiting {
            let error = self.core.requests.refusal(failure);
            self.give_back(posted, now_ps, Some(error));
        }
    }

    /// Ends an operation once its memory is back, as far as that does not stay lent.
    fn give_back(&mut self, posted: Posted<Task>, now_ps: u64, error: Option<Error>) {
        let Posted { request, plan, mut send, receive, posted_ps } = posted;
        if let Some(at) = self.aside.iter().position(|number| *number == request) {
            self.aside.swap_remove(at);
            // Its memory goes once it is taken back.
            send = None;
        }
        let complete_ps = error.is_none().then_some(now_ps);
        let phases = PhasesPs { posted_ps, complete_ps, released_ps: Some(now_ps), ..PhasesPs::default() };
        let failure = self.failure.filter(|_| error.is_some());
        let foreign_bytes = match error {
            None => call::foreign_bytes(&plan, self.core.place.rank(), self.core.place.ranks()),
            Some(_) => 0,
        };
        let decision = Decision::by_service();
        let report = Report { phases: Phases(phases), decision, foreign_bytes, failure, ..Report::default() };
        let all = error.is_some() || self.lent > self.core.config.service.buffers as usize;
        let Self { session, deferred_free, .. } = self;
        let ended = Returning::begin(session.client(), deferred_free, request, (send, receive), (report, error, all));
        self.returning.push(ended);
        self.poll_returning();
    }

    fn poll_returning(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(returning) = self.returning.get_mut(at) {
            let (is_over, back) = returning.poll(self.session.client());
            self.lent = self.lent.saturating_sub(back);
            if !is_over {
                at += 1;
                continue;
            }
            let (request, outcome, lost) = self.returning.remove(at).end();
            self.lost.extend(lost);
            self.core.requests.finish(request, outcome);
            moved = true;
        }
        moved
    }

    /// Takes memory back of buffers that are gone.
    fn poll_graves(&mut self) -> bool {
        let Self { session, deferred_free, deferred, lent, .. } = self;
        let client = session.client();
        for (id, kept) in deferred_free.take() {
            if client.take_back(id).is_err() {
                client.lose();
            }
            deferred.push((id, kept));
        }
        let before = deferred.len();
        deferred.retain(|(id, _)| client.taken_back(*id).is_none());
        *lent = lent.saturating_sub(before - deferred.len());
        deferred.len() != before
    }

    /// How the operations under way have ended, in their order.
    fn end(&mut self) -> bool {
        let mut moved = false;
        while let Some(Running { call, until, .. }) = self.running.front() {
            let (call, until, own) = (*call, *until, self.core.place.rank());
            let client = self.session.client();
            let ended = match call {
                Call::Keys(context) => client.end(context, own),
                Call::Staged(call) => client.end_staged(call, self.segment.as_ref().and_then(Segment::region)),
            };
            let fault = match ended {
                Ok(true) => {
                    if let Some(Running { posted, .. }) = self.running.pop_front() {
                        self.give_back(posted, self.inner.now_ps(), None);
                    }
                    moved = true;
                    continue;
                }
                Ok(false) if Instant::now() < until => return moved,
                Ok(false) => ServiceFault::Late,
                // Nothing of it has begun, on any rank: staging memory is for a group of all of its processes.
                Err(ServiceError::Refused(Refused::Staged(
                    StagedRefusal::NoStaging { .. } | StagedRefusal::Exhausted { .. },
                ))) if matches!(call, Call::Staged(_)) => {
                    tracing::info!("the service processes have no staging memory for this communicator");
                    self.staging = false;
                    if let Some(Running { posted, .. }) = self.running.pop_front() {
                        self.core.waiting.push_front(posted);
                    }
                    moved = true;
                    continue;
                }
                Err(error) => ServiceFault::Service(error),
            };
            let (failure, calls) = (self.told(&fault), Self::calls(&fault));
            self.fail(failure, calls);
            return true;
        }
        moved
    }

    fn serve(&mut self) -> bool {
        let mut moved = match self.session.progress() {
            Ok(any) => {
                if any {
                    // The bound counts from the last sign of the service process, and of what it does for this rank.
                    let until = Instant::now() + self.core.config.service.operation;
                    self.running.iter_mut().for_each(|running| running.until = until);
                }
                any
            }
            Err(error) => {
                tracing::warn!(%error, "the session with the service process has failed");
                self.session.client().lose();
                true
            }
        };
        moved |= self.end();
        moved |= self.poll_returning();
        moved |= self.poll_graves();
        moved |= self.start();
        if self.failure.is_none()
            && let Some(failure) = self.core.requests.broken()
        {
            let since = *self.broken.get_or_insert_with(Instant::now);
            if self.running.is_empty() || since.elapsed() > GRACE {
                let calls = self.inner.disagreement().map(|calls| calls.to_string());
                self.fail(failure, calls);
                moved = true;
            }
        }
        moved
    }
}

/// What has failed.
#[derive(Debug)]
enum ServiceFault {
    Service(ServiceError),
    Own(Error),
    /// No end within the bound.
    Late,
}

impl std::fmt::Display for ServiceFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Service(error) => error.fmt(f),
            Self::Own(error) => error.fmt(f),
            Self::Late => f.write_str(
                "it has not ended in time: raise `operation` of the service options, or look for \
                a rank that has not called it",
            ),
        }
    }
}

impl Datapath for Engine {
    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    fn now_ps(&self) -> u64 {
        self.inner.now_ps()
    }

    fn admission(&self) -> Admission {
        // Those that go to the datapath inside are refused when they come.
        Admission { collectives: Ok(()), ..self.inner.admission() }
    }

    fn take_on(&mut self, mut posted: Posted<Task>) -> Result<(), Box<Failed>> {
        let takes = self.takes(&posted.plan);
        if !takes
            && let Task::Collective(collective) = &posted.plan
            && let Err(error) = self.inner.admission().check_collective(collective.kind().name())
        {
            return Err(posted.refuse(error));
        }
        self.last = None;
        if !takes && self.core.waiting.is_empty() && self.running.is_empty() {
            return self.inner.take_on(posted);
        }
        if takes
            && let Posted { plan: Task::Blocks(plan), send: Some(send), receive, .. } = &mut posted
            && !send.is_empty()
            && let Err(error) = receive.copy_from(plan.block(plan.own()).offset as usize, send, 0, send.len())
        {
            return Err(posted.refuse(error));
        }
        if takes
            && call::reads_send(&posted.plan)
            && posted.send.is_none()
            && let Err(error) = self.copy_aside(&mut posted)
        {
            return Err(posted.refuse(error));
        }
        self.core.waiting.push_back(posted);
        self.start();
        Ok(())
    }

    fn advance(&mut self) -> Result<bool> {
        self.core.check_fault()?;
        let moved = self.inner.progress()?;
        Ok(self.serve() || moved)
    }

    fn take_back(&mut self, buffer: &mut Buffer, is_late: bool) -> Result<bool> {
        let Some(memory) = buffer.lease_of(&self.deferred_free) else { return Ok(true) };
        let client = self.session.client();
        if client.take_back(memory).is_err() || is_late {
            client.lose();
        }
        let is_back = client.taken_back(memory).is_some();
        if is_back {
            // The lease goes with the key, and not before: nobody borrows bytes that somebody may still write.
            buffer.unlend(&self.deferred_free);
            self.lent = self.lent.saturating_sub(1);
        }
        Ok(is_back)
    }

    fn deadline_ps(&self) -> Option<u64> {
        // What waits for keys is no reason to hurry; a fault is.
        if self.core.is_due(false) {
            return Some(0);
        }
        let idle = self.running.is_empty() && self.core.waiting.is_empty() && self.returning.is_empty();
        let look_ps = (!idle).then(|| self.inner.now_ps().saturating_add(LOOK_PS));
        self.inner.deadline_ps().into_iter().chain(look_ps).min()
    }

    fn is_free(&self) -> bool {
        self.running.is_empty() && self.returning.is_empty() && self.inner.is_idle()
    }

    fn start(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        self.inner.take_on(posted)
    }

    fn may_be_left(&self) -> bool {
        self.inner.may_be_left()
    }

    fn fail_here(&mut self, cause: Cause) {
        self.inner.fail_here(cause);
        let own = self.core.place.rank();
        self.fail(Failure { failed_rank: own, detecting_rank: own, cause }, None);
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.inner.disagreement()
    }

    fn messages(&self) -> MessageCounts {
        self.inner.messages()
    }

    fn is_flagged(&self) -> Result<bool> {
        if !self.core.waiting.is_empty() {
            return Ok(false);
        }
        let Some((request, call)) = self.last else { return self.inner.is_flagged() };
        if !self.running.iter().any(|running| running.posted.request == request) {
            return Ok(true);
        }
        let client = self.session.look();
        let flagged = match call {
            Call::Keys(context) => client.is_flagged(context, self.core.place.rank()),
            Call::Staged(call) => client.is_staged_flagged(call, self.segment.as_ref().and_then(Segment::region)),
        };
        // What else can be wrong with it, its end tells.
        Ok(flagged.unwrap_or(false))
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        self.inner.receive_statistics()
    }

    fn send_statistics(&self) -> Result<SendReport> {
        self.inner.send_statistics()
    }
}

impl Drop for Engine {
    /// Leaves the group, so that the other ranks do not miss this one. With operations under way it counts as dead:
    /// they cannot end without it.
    fn drop(&mut self) {
        let own = self.core.place.rank();
        if !self.running.is_empty()
            || self.failure.is_some()
            || self.session.end().is_some()
            || self.session.client().leave(self.group, own).is_err()
        {
            return;
        }
        let begun = Instant::now();
        while !self.session.client().has_left(self.group, own)
            && self.session.end().is_none()
            && begun.elapsed() < FAREWELL
        {
            match self.session.progress() {
                Ok(true) => {}
                Ok(false) => std::thread::sleep(Duration::from_micros(100)),
                Err(_) => return,
            }
        }
    }
}
