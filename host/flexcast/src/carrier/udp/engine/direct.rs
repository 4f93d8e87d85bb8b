//! Operations by messages between pairs of ranks, over the connections.

use flexcast_proto::p2p::{Part, Transfer};
use flexcast_proto::{Algorithm, Failure, OperationDescriptor, RankSet, Summary};

use super::Engine;
use super::operation::State;
use crate::engine::notice::Notice;
use crate::engine::{Posted, Task};
use crate::error::Result;
use crate::mesh::{Head, Source};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::ps;
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed};
use crate::op::reduce::Reduction;
use crate::op::report::{Phases, PhasesPs, Report};
use crate::p2p::messages::sparse::{Aggregators, Outgoing, Sparse};
use crate::p2p::messages::{Begun, Direct};

/// Bytes of temporary memory that are kept between two operations in any case; more after one on a long buffer: twice
/// that, and less with each operation from then on. Whoever sums up long arrays one after the other would have the
/// pages made anew each time otherwise, which takes as long as the sum.
const SPARE_BYTES: usize = 64 << 20;

/// What decides which messages an operation takes.
#[expect(clippy::large_enum_variant, reason = "an operation by a schedule allocates nothing")]
#[derive(Debug)]
enum Work {
    /// A schedule that is known before.
    Scheduled(Direct),
    /// What the ranks' data is.
    Sparse(Box<Sparse>),
}

/// The next message to send.
struct Next {
    to: u32,
    tag: u32,
    source: Part,
    bytes: u64,
}

impl Work {
    fn summary(&self) -> Summary {
        match self {
            Self::Scheduled(direct) => direct.summary(),
            Self::Sparse(sparse) => sparse.summary(),
        }
    }

    fn poll(&mut self) -> Option<Next> {
        match self {
            Self::Scheduled(direct) => direct.poll().map(|transfer| {
                let Transfer { to, tag, source, .. } = transfer;
                Next { to, tag, source, bytes: direct.bytes(source) }
            }),
            Self::Sparse(sparse) => sparse.poll().map(|outgoing| {
                let Outgoing { to, tag, source } = outgoing;
                Next { to, tag, source, bytes: sparse.source(source).len() as u64 }
            }),
        }
    }

    fn sent(&mut self, messages: u32) {
        match self {
            Self::Scheduled(direct) => direct.sent(messages),
            Self::Sparse(sparse) => sparse.sent(messages),
        }
    }

    fn is_complete(&self) -> bool {
        match self {
            Self::Scheduled(direct) => direct.is_complete(),
            Self::Sparse(sparse) => sparse.is_complete(),
        }
    }

    /// A rank, or an aggregator by its number behind the ranks'.
    fn awaited(&self) -> Option<u32> {
        match self {
            Self::Scheduled(direct) => direct.awaited(),
            Self::Sparse(sparse) => sparse.awaited(),
        }
    }
}

/// The operation under way, if it goes by messages between pairs of ranks.
#[derive(Debug)]
pub(super) struct Exchanging {
    pub(super) request: u64,
    pub(super) name: &'static str,
    pub(super) send: Option<Buffer>,
    pub(super) receive: Buffer,
    pub(super) operation: u32,
    /// An array whose zeros are looked for, or could have been.
    array: Option<(u64, Reduction)>,
    work: Work,
    pub(super) state: State,
    /// A rank has called something else: what comes goes nowhere.
    pub(super) disagrees: bool,
    /// When the protocol's state machine wants to be notified of the time.
    pub(super) deadline_ps: u64,
    /// When something has last come or gone.
    pub(super) moved_ps: u64,
    pub(super) report: Report,
}

impl Exchanging {
    fn send(&self) -> &[u8] {
        self.send.as_ref().map_or(&[], Buffer::bytes)
    }

    /// What this rank has called.
    pub(super) fn summary(&self) -> Summary {
        self.work.summary()
    }

    /// A fragment begins to come.
    pub(super) fn begin(&mut self, from: u32, head: &Head) -> Begun {
        let message = (head.tag, head.total, head.offset);
        let begun = match &mut self.work {
            Work::Scheduled(direct) => direct.begin(from, head.summary, message),
            Work::Sparse(sparse) => sparse.begin(from, head.summary, message),
        };
        self.disagrees |= matches!(begun, Begun::Disagrees | Begun::Differs(_));
        begun
    }

    pub(super) fn place(&mut self, from: u32, head: &Head, at: u64) -> &mut [u8] {
        let (receive, at) = (self.receive.bytes_mut(), head.offset + at);
        match &mut self.work {
            Work::Scheduled(direct) => direct.place(receive, head.tag, at),
            Work::Sparse(sparse) => sparse.place(receive, from, head.tag, at),
        }
    }

    /// A fragment has come. False: it cannot have.
    pub(super) fn came(&mut self, from: u32, head: &Head) -> bool {
        let send = self.send.as_ref().map_or(&[][..], Buffer::bytes);
        let (come, receive) = ((head.offset + head.bytes, head.total), self.receive.bytes_mut());
        match &mut self.work {
            Work::Scheduled(direct) => direct.came(from, head.tag, come, send, receive),
            Work::Sparse(sparse) => sparse.came(from, head.tag, come, receive),
        }
    }

    /// Whether it goes through aggregators.
    pub(super) const fn is_sparse(&self) -> bool {
        matches!(self.work, Work::Sparse(_))
    }

    /// Whom it waits for: a rank, or an aggregator by its number behind the ranks'.
    pub(super) fn awaited(&self) -> Option<u32> {
        self.work.awaited()
    }

    /// Whether an aggregator owes it something.
    pub(super) fn waits_for(&self, aggregator: u32) -> bool {
        matches!(&self.work, Work::Sparse(sparse) if sparse.waits_for(aggregator))
    }

    /// Whether there is something to do although nothing comes.
    pub(super) fn is_busy(&self) -> bool {
        matches!(&self.work, Work::Sparse(sparse) if sparse.is_busy())
    }

    /// Does what needs no message, for a while: others want to be heard. Returns whether there was anything.
    fn advance(&mut self) -> bool {
        match &mut self.work {
            Work::Scheduled(_) => false,
            Work::Sparse(sparse) => sparse.advance(self.send.as_ref().map(Buffer::bytes), self.receive.bytes_mut()),
        }
    }
}

impl Source for Exchanging {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, part: Part, at: u64) -> &[u8] {
        match &self.work {
            Work::Scheduled(direct) => direct.source(self.send(), self.receive.bytes(), part, at),
            Work::Sparse(sparse) => sparse.source(part).get(at as usize..).unwrap_or_default(),
        }
    }
}

impl Engine {
    /// Begins an operation that goes by messages between pairs of ranks.
    pub(super) fn begin_direct(&mut self, posted: Posted<Task>, decision: Decision) -> Result<(), Box<Failed>> {
        let Posted { request, plan: task, send, mut receive, posted_ps } = posted;
        let started = self.bind(&task, decision.algorithm(), send.as_ref(), &mut receive);
        let work = match started {
            Ok(work) => work,
            Err(error) => {
                return Err(Box::new(Failed { error, send, receive: Some(receive), report: Report::default() }));
            }
        };
        let phases = Phases(PhasesPs { posted_ps, armed_ps: Some(posted_ps), ..PhasesPs::default() });
        let foreign_bytes = match &work {
            Work::Scheduled(direct) => direct.foreign_bytes(),
            // Not known yet.
            Work::Sparse(_) => 0,
        };
        let report = Report { phases, decision, foreign_bytes, ..Report::default() };
        let array = match &task {
            Task::Collective(Collective::SparseAllreduce { bytes, reduction, .. }) => Some((*bytes, *reduction)),
            _ => None,
        };
        let operation = self.conversation.participant().operation();
        let bound_ps = ps(self.core.config.barrier_timeout);
        let descriptor = OperationDescriptor {
            operation,
            roots: RankSet::EMPTY,
            pieces: 1,
            summary: work.summary(),
            barrier_timeout_ps: bound_ps,
            cutoff_ps: bound_ps,
            bound_ps,
        };
        let now_ps = self.interface.now_ps();
        self.conversation.start_direct(descriptor, now_ps);
        self.exchanging = Some(Exchanging {
            request,
            name: task.name(),
            send,
            receive,
            operation,
            array,
            work,
            state: State::Active,
            disagrees: false,
            deadline_ps: u64::MAX,
            moved_ps: now_ps,
            report,
        });
        self.exchange(true, now_ps);
        Ok(())
    }

    /// The schedule of an operation, and the own part of its data in place.
    fn bind(&mut self, task: &Task, algorithm: Algorithm, send: Option<&Buffer>, receive: &mut Buffer) -> Result<Work> {
        if let Task::Collective(collective) = task
            && let Collective::SparseAllreduce { bytes, reduction, options } = collective
            && algorithm == Algorithm::Sparse
        {
            let (summary, reproducible) = (collective.summary(algorithm), self.core.config.reproducible);
            let what = (*bytes, *reduction, *options);
            let aggregators = match self.external.count() {
                0 => Aggregators::Ranks,
                count => Aggregators::External(count),
            };
            if let Aggregators::External(_) = aggregators {
                self.begin_apart();
            }
            let spare = std::mem::take(&mut self.spare_spots);
            let sparse = Sparse::new(what, self.core.place, aggregators, (summary, reproducible), spare)?;
            return Ok(Work::Sparse(Box::new(sparse)));
        }
        let spare = std::mem::take(&mut self.spare);
        let mut direct = match task {
            Task::Blocks(plan) => {
                let operation = self.conversation.participant().operation();
                let own = crate::engine::descriptor::descriptor(
                    plan,
                    &self.core.config,
                    &self.alpha,
                    operation,
                    (1, algorithm),
                );
                if let Some(send) = send {
                    receive.copy_from(plan.block(self.core.place.rank()).offset as usize, send, 0, send.len())?;
                }
                let Summary { kind, root, amount, .. } = own.summary;
                Direct::of_plan(plan, self.core.place, Summary::between_pairs(kind, root, amount, 0, algorithm), spare)?
            }
            Task::Collective(collective) => {
                Direct::of_collective(collective, self.core.place, collective.summary(algorithm), spare)?
            }
        };
        let placed = matches!(task, Task::Blocks(_));
        direct.start(send.filter(|_| !placed).map(Buffer::bytes), receive.bytes_mut(), placed)?;
        Ok(Work::Scheduled(direct))
    }

    /// Sends what may be sent, and notices how far the operation is. `came`: something has come. Returns whether
    /// anything moved.
    pub(super) fn exchange(&mut self, came: bool, now_ps: u64) -> bool {
        let Self { exchanging, mesh, .. } = self;
        let Some(exchanging) = exchanging.as_mut().filter(|exchanging| exchanging.state.is_active()) else {
            return false;
        };
        let mut moved = came | exchanging.advance();
        loop {
            let finished = mesh.take_finished();
            exchanging.work.sent(finished);
            let mut posted = false;
            while let Some(Next { to, tag, source, bytes }) = exchanging.work.poll() {
                let (operation, summary) = (exchanging.operation, exchanging.work.summary());
                let head = Head { operation, tag, summary, total: bytes, offset: 0, bytes: 0 };
                mesh.transfer(to, head, source, &*exchanging);
                posted = true;
            }
            moved |= posted | (finished > 0);
            if !mesh.flush(&*exchanging) && !posted && finished == 0 {
                break;
            }
            moved = true;
        }
        if !moved {
            return false;
        }
        exchanging.moved_ps = now_ps;
        let notice = if exchanging.work.is_complete() {
            let phases = &mut exchanging.report.phases.0;
            phases.received_ps.get_or_insert(now_ps);
            Notice::TransferredAll
        } else {
            // Whoever has got everything may still wait for another one to take what it sends.
            let awaited = exchanging.work.awaited().or_else(|| mesh.slow_taker());
            let awaited = awaited.map_or(self.core.place.rank(), |peer| self.awaited_rank(peer));
            Notice::Transferred { awaited }
        };
        self.conversation.notify(now_ps, notice);
        true
    }

    /// The operation has failed: nothing more of it is sent.
    pub(super) fn fail_direct(&mut self, failure: Failure) {
        let Self { exchanging, mesh, .. } = self;
        if let Some(exchanging) = exchanging {
            exchanging.state.fail(failure);
            exchanging.report.failure = Some(failure);
            mesh.abandon(&*exchanging);
        }
    }

    /// Ends an operation that this rank is done with, or that has failed.
    pub(super) fn release_direct(&mut self, now_ps: u64) -> bool {
        let is_over = self.exchanging.as_ref().is_some_and(|exchanging| !exchanging.state.is_active());
        if !is_over || self.lingers(now_ps) || self.awaits_reason(now_ps) {
            return false;
        }
        let Some(exchanging) = self.exchanging.take() else { return false };
        let Exchanging { request, name, send, receive, state, mut report, array, work, .. } = exchanging;
        self.spare_limit = (2 * receive.len()).max(self.spare_limit - self.spare_limit / 16);
        let kept = SPARE_BYTES.max(self.spare_limit);
        let found = match work {
            Work::Scheduled(direct) => {
                let spare = direct.into_spare();
                if spare.bytes() <= kept {
                    self.spare = spare;
                }
                None
            }
            Work::Sparse(sparse) => {
                report.foreign_bytes = sparse.foreign_bytes();
                report.messages = sparse.messages();
                let found = sparse.found();
                let spare = sparse.into_spare();
                if spare.bytes() <= kept {
                    self.spare_spots = spare;
                }
                Some(found)
            }
        };
        // After a failure, too: no operation follows one.
        if let Some((bytes, reduction)) = array {
            self.densities.note(bytes, reduction, found);
        }
        if let State::Failed(failure) = state {
            let error = self.error_of(name, failure);
            self.core.requests.finish(request, Err(Box::new(Failed { error, send, receive: Some(receive), report })));
            return true;
        }
        let phases = &mut report.phases.0;
        phases.released_ps = Some(now_ps);
        phases.complete_ps.get_or_insert(phases.received_ps.unwrap_or(now_ps));
        self.core.requests.finish(request, Ok(Done { send, receive, report }));
        true
    }
}
