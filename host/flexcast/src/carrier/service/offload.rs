//! Offload of operations to the service processes of a card's Arm cores.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexcast_proto::service::wire::Refused;
use flexcast_proto::service::{Delivery, Region, StagedRefusal, Topology};
use flexcast_proto::{Failure, RankInfo};
use flexcast_service::{Error as ServiceError, MemoryId, Session};

use super::call::{self, Call};
use super::fault::ServiceFault;
use super::returning::Returning;
use super::segment::Segment;
use super::settings::{Settings, Way};
use crate::carrier::endpoint::{DatapathKind, Endpoint};
use crate::engine::offload::{Begun, Offload, OffloadFault};
use crate::engine::{Core, Posted, Task};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::decision::Decision;
use crate::op::lease::{DeferredFree, Kept};
use crate::op::report::{Phases, PhasesPs, Report};
use crate::op::service_options::ServiceOptions;

/// How long the service processes have to name who is at fault, once the hosts have found a failure.
const GRACE: Duration = Duration::from_secs(2);
/// Longest that a service process takes to let a rank go.
const FAREWELL: Duration = Duration::from_secs(1);
/// Until the flags of operations are polled again.
const POLL_PS: u64 = 20_000_000;

/// An operation under way.
#[derive(Debug)]
struct Running {
    posted: Posted<Task>,
    call: Call,
    until: Instant,
}

/// How the own service process is reached, and what the ranks agreed on.
pub(super) struct Agreed {
    pub(super) session: Session,
    pub(super) topology: Topology,
    /// Number of the group that the communicator's ranks form at the service processes.
    pub(super) group: u32,
    /// What the ranks of this host share.
    pub(super) segment: Option<Segment>,
}

/// A communicator's operations at the service processes.
pub(super) struct ServiceOffload {
    // Keys end before the memory that they are of.
    session: Session,
    deferred_free: Arc<DeferredFree>,
    /// After the session, whose keys are of it.
    segment: Option<Segment>,
    settings: Settings,
    options: ServiceOptions,
    place: RankInfo,
    /// Memory of buffers that are gone, which is being taken back.
    deferred: Vec<(MemoryId, Kept)>,
    running: VecDeque<Running>,
    returning: Vec<Returning>,
    /// Buffers that the card does not let go of.
    lost: Vec<Buffer>,
    endpoint: Endpoint,
    /// The DPA moves the data of Broadcasts and Allgathers.
    hands_over: bool,
    topology: Topology,
    group: u32,
    /// Since when the first operation that waits does so for keys.
    asked: Option<Instant>,
    /// Operations whose send buffer is a copy of ours.
    copies: Vec<u64>,
    /// Collectives that may be under way.
    most: usize,
    /// Buffers that are leased.
    leased: usize,
    /// The service processes have staging memory, as far as is known.
    staging: bool,
    /// The operation begun last.
    last: Option<(u64, Call)>,
    has_failed: bool,
    /// Since when the communicator has failed by its protocol.
    broken: Option<Instant>,
}

impl ServiceOffload {
    /// That of a communicator with this core, on this endpoint.
    pub(super) fn new(core: &Core, endpoint: Endpoint, agreed: Agreed) -> Self {
        let Agreed { session, topology, group, segment } = agreed;
        let options = core.config.service.clone();
        Self {
            deferred_free: Arc::new(DeferredFree::new(session.address())),
            most: session.welcome().collectives.max(1) as usize,
            session,
            segment,
            settings: Settings::of(&options),
            options,
            place: core.place,
            deferred: Vec::new(),
            running: VecDeque::new(),
            returning: Vec::new(),
            lost: Vec::new(),
            hands_over: endpoint.datapath() == DatapathKind::Dpa,
            endpoint,
            topology,
            group,
            asked: None,
            copies: Vec::new(),
            leased: 0,
            staging: true,
            last: None,
            has_failed: false,
            broken: None,
        }
    }

    /// How an operation goes.
    fn way(&self, task: &Task) -> Way {
        let Task::Blocks(plan) = task else { return Way::Keys };
        let room = self.segment.as_ref().and_then(|segment| {
            let flags = self.session.client_ref().segment_bytes(self.group, self.place.rank(), 0).ok()?;
            segment.bytes().checked_sub(flags)
        });
        self.settings.way(plan, &self.topology, room, self.staging)
    }

    /// Whether an operation has to wait for the one that has the segment.
    fn is_segment_busy(&self, way: Way) -> bool {
        let has_it = |running: &Running| matches!(running.call, Call::Staged(call) if call.is_shared);
        way == Way::Staged(Delivery::Hierarchical) && self.running.iter().any(has_it)
    }

    /// Leases the memory of an operation to the service process; where it can by now, what calls name of it.
    fn lease(&mut self, posted: &mut Posted<Task>) -> Result<Option<(Region, Region)>, ServiceFault> {
        let Self { session, deferred_free, leased, .. } = self;
        let client = session.client();
        let mut region = |buffer: &mut Buffer| -> Result<Option<Region>, ServiceFault> {
            let mut refusal = None;
            let id = buffer.lease(deferred_free, |region| {
                *leased += 1;
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
    fn copy_send(&mut self, posted: &mut Posted<Task>) -> Result<()> {
        let len = posted.receive.len();
        let mut copy = self.endpoint.buffer(len)?;
        copy.copy_from(0, &posted.receive, 0, len)?;
        posted.send = Some(copy);
        self.copies.push(posted.request);
        Ok(())
    }

    /// Posts an operation to the service process; none while it has not got the keys.
    fn post(&mut self, posted: &mut Posted<Task>, way: Way) -> Result<Option<Call>, ServiceFault> {
        let Some(memory) = self.lease(posted)? else {
            if self.session.client().is_gone() {
                return Err(ServiceFault::Service(ServiceError::Gone));
            }
            let since = *self.asked.get_or_insert_with(Instant::now);
            let is_late = since.elapsed() > self.options.operation;
            return if is_late { Err(ServiceFault::Late) } else { Ok(None) };
        };
        let own = (self.group, self.place.rank(), self.place.ranks());
        let segment = self.segment.as_ref().and_then(|segment| segment.id);
        call::post(self.session.client(), own, &posted.plan, memory, (way, segment))
            .map(Some)
            .map_err(ServiceFault::Service)
    }

    /// Ends an operation once its memory is back, as far as that does not stay leased. `error`: what it has failed by.
    fn give_back(&mut self, core: &Core, posted: Posted<Task>, now_ps: u64, error: Option<(Failure, Error)>) {
        let Posted { request, plan, mut send, receive, posted_ps } = posted;
        if let Some(at) = self.copies.iter().position(|number| *number == request) {
            self.copies.swap_remove(at);
            // Its memory goes once it is taken back.
            send = None;
        }
        let complete_ps = error.is_none().then_some(now_ps);
        let phases = PhasesPs { posted_ps, complete_ps, released_ps: Some(now_ps), ..PhasesPs::default() };
        let foreign_bytes = match error {
            None => call::foreign_bytes(&plan, self.place.rank(), self.place.ranks()),
            Some(_) => 0,
        };
        let (failure, error) = error.unzip();
        let decision = Decision::by_service();
        let report = Report { phases: Phases(phases), decision, foreign_bytes, failure, ..Report::default() };
        let all = error.is_some() || self.leased > self.options.buffers as usize;
        let Self { session, deferred_free, .. } = self;
        let ended = Returning::begin(session.client(), deferred_free, request, (send, receive), (report, error, all));
        self.returning.push(ended);
        self.poll_returning(core);
    }

    fn poll_returning(&mut self, core: &Core) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(returning) = self.returning.get_mut(at) {
            let (is_over, back) = returning.poll(self.session.client());
            self.leased = self.leased.saturating_sub(back);
            if !is_over {
                at += 1;
                continue;
            }
            let (request, outcome, lost) = self.returning.remove(at).end();
            self.lost.extend(lost);
            core.requests.finish(request, outcome);
            moved = true;
        }
        moved
    }

    /// Takes memory back of buffers that are gone.
    fn poll_deferred(&mut self) -> bool {
        let Self { session, deferred_free, deferred, leased, .. } = self;
        let client = session.client();
        for (id, kept) in deferred_free.take() {
            if client.take_back(id).is_err() {
                client.lose();
            }
            deferred.push((id, kept));
        }
        let before = deferred.len();
        deferred.retain(|(id, _)| client.taken_back(*id).is_none());
        *leased = leased.saturating_sub(before - deferred.len());
        deferred.len() != before
    }

    /// Ends operations under way that are over, in their order. Returns whether there was any.
    ///
    /// # Errors
    /// What one has failed by.
    fn end(&mut self, core: &mut Core, now_ps: u64) -> Result<bool, ServiceFault> {
        let mut moved = false;
        while let Some(Running { call, until, .. }) = self.running.front() {
            let (call, until) = (*call, *until);
            let client = self.session.client();
            let ended = match call {
                Call::Keys(context) => client.end(context, self.place.rank()),
                Call::Staged(call) => client.end_staged(call, self.segment.as_ref().and_then(Segment::region)),
            };
            match ended {
                Ok(true) => {
                    if let Some(Running { posted, .. }) = self.running.pop_front() {
                        self.give_back(core, posted, now_ps, None);
                    }
                }
                Ok(false) if Instant::now() < until => return Ok(moved),
                Ok(false) => return Err(ServiceFault::Late),
                // Nothing of it has begun, on any rank: staging memory is for a group of all of its processes.
                Err(ServiceError::Refused(Refused::Staged(
                    StagedRefusal::NoStaging { .. } | StagedRefusal::Exhausted { .. },
                ))) if matches!(call, Call::Staged(_)) => {
                    tracing::info!("the service processes have no staging memory for this communicator");
                    self.staging = false;
                    if let Some(Running { posted, .. }) = self.running.pop_front() {
                        core.waiting.push_front(posted);
                    }
                }
                Err(error) => return Err(ServiceFault::Service(error)),
            }
            moved = true;
        }
        Ok(moved)
    }
}

impl Offload for ServiceOffload {
    fn takes(&self, task: &Task) -> bool {
        let is_handed_over = self.hands_over && matches!(task, Task::Blocks(_));
        !is_handed_over && call::takes(task, self.staging)
    }

    fn prepare(&mut self, posted: &mut Posted<Task>) -> Result<()> {
        if let Posted { plan: Task::Blocks(plan), send: Some(send), receive, .. } = posted
            && !send.is_empty()
        {
            receive.copy_from(plan.block(plan.own()).offset as usize, send, 0, send.len())?;
        }
        if call::reads_send(&posted.plan) && posted.send.is_none() {
            self.copy_send(posted)?;
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    fn is_free(&self) -> bool {
        self.running.is_empty() && self.returning.is_empty()
    }

    fn begin(&mut self, mut posted: Posted<Task>) -> Begun {
        let way = self.way(&posted.plan);
        if self.running.len() >= self.most || self.is_segment_busy(way) {
            return Begun::NotYet(posted);
        }
        let begun = self.post(&mut posted, way);
        match begun {
            Ok(None) => Begun::NotYet(posted),
            Ok(Some(call)) => {
                self.asked = None;
                self.last = Some((posted.request, call));
                let until = Instant::now() + self.options.operation;
                self.running.push_back(Running { posted, call, until });
                Begun::Yes
            }
            Err(fault) => {
                self.asked = None;
                Begun::Failed(posted, fault.reported(self.place.rank(), &self.topology))
            }
        }
    }

    fn poll(&mut self, core: &mut Core, now_ps: u64) -> (bool, Option<OffloadFault>) {
        let mut moved = match self.session.progress() {
            Ok(any) => {
                if any {
                    // The bound counts from the last sign of the service process, and of what it does for this rank.
                    let until = Instant::now() + self.options.operation;
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
        let ended = self.end(core, now_ps);
        moved |= self.poll_returning(core);
        moved |= self.poll_deferred();
        let fault = match ended {
            Err(fault) => Some(fault.reported(self.place.rank(), &self.topology)),
            Ok(any) => {
                moved |= any;
                // Who is at fault, the service processes may know better than the protocol.
                core.requests.broken().and_then(|failure| {
                    let since = *self.broken.get_or_insert_with(Instant::now);
                    let is_over = self.running.is_empty() || since.elapsed() > GRACE;
                    is_over.then(|| OffloadFault { failure, calls: core.requests.calls() })
                })
            }
        };
        (moved, fault)
    }

    fn fail(&mut self, core: &mut Core, failure: Failure, now_ps: u64) {
        self.has_failed = true;
        for Running { posted, .. } in std::mem::take(&mut self.running) {
            let error = core.requests.failed(posted.plan.name(), failure, None);
            self.give_back(core, posted, now_ps, Some((failure, error)));
        }
        for posted in std::mem::take(&mut core.waiting) {
            let error = core.requests.refusal(failure);
            self.give_back(core, posted, now_ps, Some((failure, error)));
        }
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn deadline_ps(&self, now_ps: u64, has_waiting: bool) -> Option<u64> {
        (has_waiting || !self.is_free()).then(|| now_ps.saturating_add(POLL_PS))
    }

    fn take_back(&mut self, buffer: &mut Buffer, is_late: bool) -> bool {
        let Some(memory) = buffer.lease_of(&self.deferred_free) else { return true };
        let client = self.session.client();
        if client.take_back(memory).is_err() || is_late {
            client.lose();
        }
        let is_back = client.taken_back(memory).is_some();
        if is_back {
            // The lease goes with the key, and not before: nobody borrows bytes that somebody may still write.
            buffer.end_lease(&self.deferred_free);
            self.leased = self.leased.saturating_sub(1);
        }
        is_back
    }

    fn is_flagged(&self) -> bool {
        let Some((request, call)) = self.last else { return false };
        if !self.running.iter().any(|running| running.posted.request == request) {
            return true;
        }
        let client = self.session.client_ref();
        let flagged = match call {
            Call::Keys(context) => client.is_flagged(context, self.place.rank()),
            Call::Staged(call) => client.is_staged_flagged(call, self.segment.as_ref().and_then(Segment::region)),
        };
        // What else can be wrong with it, its end reports.
        flagged.unwrap_or(false)
    }
}

impl Drop for ServiceOffload {
    /// Leaves the group, so that the other ranks do not miss this one. With operations under way it counts as dead:
    /// they cannot end without it.
    fn drop(&mut self) {
        let own = self.place.rank();
        if !self.running.is_empty()
            || self.has_failed
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
