//! Operations by messages between pairs of ranks, over the connections.

use flexcast_mesh::{Head, Source};
use flexcast_proto::p2p::{Part, Transfer};
use flexcast_proto::{Algorithm, Summary};

use super::{UdpCarrier, UdpOperations};
use crate::engine::descriptor::direct_summary;
use crate::engine::event::Event;
use crate::engine::{self, Engine, Posted, State, Task};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::ps;
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed, Outcome};
use crate::op::reduce::Reduction;
use crate::op::report::Report;
use crate::p2p::messages::sparse::{Aggregators, Outgoing, Sparse};
use crate::p2p::messages::{Begun, Direct};

/// Bytes of temporary memory that are kept between two operations in any case; more after one on a long buffer: twice
/// that, and less with each operation from then on. Whoever sums up long arrays one after the other would have the
/// pages made anew each time otherwise, which takes as long as the sum.
const SPARE_BYTES: usize = 64 << 20;

/// What decides which messages an operation takes.
#[expect(clippy::large_enum_variant, reason = "an operation by a schedule allocates nothing")]
#[derive(Debug)]
enum Kind {
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

impl Kind {
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

/// What the carrier keeps of an operation by messages between pairs of ranks.
#[derive(Debug)]
pub(crate) struct Work {
    kind: Kind,
    /// An array whose zeros are looked for, or could have been.
    array: Option<(u64, Reduction)>,
    /// A rank has called something else: what comes goes nowhere.
    pub(super) disagrees: bool,
    /// When something has last come or gone.
    pub(super) moved_ps: u64,
}

/// The operation under way, if it goes by messages between pairs of ranks.
pub(super) type Exchange = engine::Exchange<UdpCarrier>;

impl Exchange {
    fn send(&self) -> &[u8] {
        self.send.as_ref().map_or(&[], Buffer::bytes)
    }

    /// A fragment begins to come.
    pub(super) fn begin(&mut self, from: u32, head: &Head) -> Begun {
        let message = (head.tag, head.total, head.offset);
        let begun = match &mut self.work.kind {
            Kind::Scheduled(direct) => direct.begin(from, head.summary, message),
            Kind::Sparse(sparse) => sparse.begin(from, head.summary, message),
        };
        self.work.disagrees |= matches!(begun, Begun::Disagrees | Begun::Differs(_));
        begun
    }

    pub(super) fn place(&mut self, from: u32, head: &Head, at: u64) -> &mut [u8] {
        let (receive, at) = (self.receive.bytes_mut(), head.offset + at);
        match &mut self.work.kind {
            Kind::Scheduled(direct) => direct.place(receive, head.tag, at),
            Kind::Sparse(sparse) => sparse.place(receive, from, head.tag, at),
        }
    }

    /// A fragment has come. False: it cannot have.
    pub(super) fn came(&mut self, from: u32, head: &Head) -> bool {
        let send = self.send.as_ref().map_or(&[][..], Buffer::bytes);
        let (come, receive) = ((head.offset + head.bytes, head.total), self.receive.bytes_mut());
        match &mut self.work.kind {
            Kind::Scheduled(direct) => direct.came(from, head.tag, come, send, receive),
            Kind::Sparse(sparse) => sparse.came(from, head.tag, come, receive),
        }
    }

    /// Whether it goes through aggregators.
    pub(super) const fn is_sparse(&self) -> bool {
        matches!(self.work.kind, Kind::Sparse(_))
    }

    /// Whom it waits for: a rank, or an aggregator by its number behind the ranks'.
    pub(super) fn awaited(&self) -> Option<u32> {
        self.work.kind.awaited()
    }

    /// Whether an aggregator owes it something.
    pub(super) fn waits_for(&self, aggregator: u32) -> bool {
        matches!(&self.work.kind, Kind::Sparse(sparse) if sparse.waits_for(aggregator))
    }

    /// Whether there is something to do although nothing comes.
    pub(super) fn is_busy(&self) -> bool {
        matches!(&self.work.kind, Kind::Sparse(sparse) if sparse.is_busy())
    }

    /// Does what needs no message, for a while: others want to be heard. Returns whether there was anything.
    fn advance(&mut self) -> bool {
        match &mut self.work.kind {
            Kind::Scheduled(_) => false,
            Kind::Sparse(sparse) => sparse.advance(self.send.as_ref().map(Buffer::bytes), self.receive.bytes_mut()),
        }
    }
}

impl Source for Exchange {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, part: Part, at: u64) -> &[u8] {
        match &self.work.kind {
            Kind::Scheduled(direct) => direct.source(self.send(), self.receive.bytes(), part, at),
            Kind::Sparse(sparse) => sparse.source(part).get(at as usize..).unwrap_or_default(),
        }
    }
}

/// Begins an operation that goes by messages between pairs of ranks.
///
/// # Errors
/// It cannot be carried: with its buffers.
pub(super) fn begin(
    engine: &mut Engine<UdpCarrier>,
    posted: Posted<Task>,
    decision: Decision,
) -> Result<(), Box<Failed>> {
    let Engine { carrier, ops, .. } = engine;
    let Posted { request, plan: task, send, mut receive, posted_ps } = posted;
    let started = carrier.bind(ops, &task, decision.algorithm(), (send.as_ref(), &mut receive));
    let kind = match started {
        Ok(kind) => kind,
        Err(error) => {
            return Err(Box::new(Failed { error, send, receive: Some(receive), report: Report::default() }));
        }
    };
    let foreign_bytes = match &kind {
        Kind::Scheduled(direct) => direct.foreign_bytes(),
        // Not known yet.
        Kind::Sparse(_) => 0,
    };
    let array = match &task {
        Task::Collective(Collective::SparseAllreduce { bytes, reduction, .. }) => Some((*bytes, *reduction)),
        _ => None,
    };
    let (now_ps, summary) = (carrier.interface.now_ps(), kind.summary());
    let work = Work { kind, array, disagrees: false, moved_ps: now_ps };
    let posted = Posted { request, plan: (task.name(), work), send, receive, posted_ps };
    let bound_ps = ps(ops.core.config.barrier_timeout);
    ops.begin_exchange(posted, (summary, decision), (bound_ps, foreign_bytes), now_ps);
    carrier.exchange(ops, true, now_ps);
    Ok(())
}

impl UdpCarrier {
    /// The schedule of an operation, and the own part of its data in place.
    fn bind(
        &mut self,
        ops: &mut UdpOperations,
        task: &Task,
        algorithm: Algorithm,
        (send, receive): (Option<&Buffer>, &mut Buffer),
    ) -> Result<Kind> {
        if let Task::Collective(collective) = task
            && let Collective::SparseAllreduce { bytes, reduction, options } = collective
            && algorithm == Algorithm::Sparse
        {
            let (summary, reproducible) = (collective.summary(algorithm), ops.core.config.reproducible);
            let what = (*bytes, *reduction, *options);
            let aggregators = match self.external.count() {
                0 => Aggregators::Ranks,
                count => Aggregators::External(count),
            };
            if let Aggregators::External(_) = aggregators {
                self.begin_external(ops);
            }
            let spare = std::mem::take(&mut self.spare_spots);
            let sparse = Sparse::new(what, ops.core.place, aggregators, (summary, reproducible), spare)?;
            return Ok(Kind::Sparse(Box::new(sparse)));
        }
        let spare = std::mem::take(&mut self.spare);
        let mut direct = match task {
            Task::Blocks(plan) => {
                if let Some(send) = send {
                    receive.copy_from(plan.block(ops.core.place.rank()).offset as usize, send, 0, send.len())?;
                }
                Direct::of_plan(plan, ops.core.place, direct_summary(plan, algorithm), spare)?
            }
            Task::Collective(collective) => {
                Direct::of_collective(collective, ops.core.place, collective.summary(algorithm), spare)?
            }
        };
        let placed = matches!(task, Task::Blocks(_));
        direct.start(send.filter(|_| !placed).map(Buffer::bytes), receive.bytes_mut(), placed)?;
        Ok(Kind::Scheduled(direct))
    }

    /// Sends what may be sent, and notices how far the operation is. `came`: something has come. Returns whether
    /// anything moved.
    pub(super) fn exchange(&mut self, ops: &mut UdpOperations, came: bool, now_ps: u64) -> bool {
        let mesh = &mut self.mesh;
        let Some(exchange) = ops.exchange.as_mut().filter(|exchange| exchange.state.is_active()) else {
            return false;
        };
        let mut moved = came | exchange.advance();
        loop {
            let finished = mesh.take_finished();
            exchange.work.kind.sent(finished);
            let mut posted = false;
            while let Some(Next { to, tag, source, bytes }) = exchange.work.kind.poll() {
                let (operation, summary) = (exchange.number, exchange.summary);
                let head = Head { operation, tag, summary, total: bytes, offset: 0, bytes: 0 };
                mesh.transfer(to, head, source, &*exchange);
                posted = true;
            }
            moved |= posted | (finished > 0);
            if !mesh.flush(&*exchange) && !posted && finished == 0 {
                break;
            }
            moved = true;
        }
        if !moved {
            return false;
        }
        exchange.work.moved_ps = now_ps;
        let event = if exchange.work.kind.is_complete() {
            let phases = &mut exchange.report.phases.0;
            phases.received_ps.get_or_insert(now_ps);
            Event::TransferredAll
        } else {
            // Whoever has got everything may still wait for another one to take what it sends.
            let awaited = exchange.work.kind.awaited().or_else(|| mesh.slow_taker());
            let own = ops.core.place.rank();
            Event::Transferred { awaited: awaited.map_or(own, |peer| self.awaited_rank(ops, peer)) }
        };
        ops.protocol.handle(now_ps, event);
        true
    }

    /// Ends an operation that this rank is done with, or that has failed.
    pub(super) fn end(&mut self, ops: &UdpOperations, exchange: Exchange) -> Outcome {
        let Exchange { name, send, receive, state, mut report, work: Work { kind, array, .. }, .. } = exchange;
        self.spare_limit = (2 * receive.len()).max(self.spare_limit - self.spare_limit / 16);
        let kept = SPARE_BYTES.max(self.spare_limit);
        let found = match kind {
            Kind::Scheduled(direct) => {
                let spare = direct.into_spare();
                if spare.bytes() <= kept {
                    self.spare = spare;
                }
                None
            }
            Kind::Sparse(sparse) => {
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
            let error = self.failure_error(ops, name, failure);
            return Err(Box::new(Failed { error, send, receive: Some(receive), report }));
        }
        Ok(Done { send, receive, report })
    }
}
