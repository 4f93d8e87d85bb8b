//! Operations by messages between pairs of ranks, over the connections.

use flexcast_mesh::{Head, Mesh, Source};
use flexcast_proto::Algorithm;
use flexcast_proto::p2p::{Part, Transfer};

use super::{UdpCarrier, UdpOperations};
use crate::engine::{self, Engine, Posted, State, Task};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::ps;
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed, Outcome};
use crate::p2p;
use crate::p2p::executor::{Executor, Link, LinkEvent, Taken};
use crate::p2p::local::{Local, Slices};
use flexcast_reduce::Reduction;
use flexcast_sparse::messages::{Aggregators, Begun, Outgoing, Sparse};

/// Bytes of temporary memory that are kept between two operations in any case; more after one on a long buffer: twice
/// that, and less with each operation from then on. Whoever sums up long arrays one after the other would have the
/// pages made anew each time otherwise, which takes as long as the sum.
const SPARE_BYTES: usize = 64 << 20;

/// What decides which messages an operation takes.
#[expect(clippy::large_enum_variant, reason = "an operation by a schedule allocates nothing")]
#[derive(Debug)]
enum Kind {
    /// A schedule that is known before.
    Scheduled(Local),
    /// What the ranks' data is.
    Sparse(Box<Sparse>),
}

impl Kind {
    fn is_complete(&self) -> bool {
        match self {
            Self::Scheduled(local) => local.executor().is_complete(),
            Self::Sparse(sparse) => sparse.is_complete(),
        }
    }

    /// A rank, or an aggregator by its number behind the ranks'.
    fn awaited(&self) -> Option<u32> {
        match self {
            Self::Scheduled(local) => local.executor().awaited(),
            Self::Sparse(sparse) => sparse.awaited(),
        }
    }
}

/// Connections as the link of an operation: its messages go in frames.
struct Frames<'m> {
    mesh: &'m mut Mesh,
    /// What the frames of all messages begin with.
    head: Head,
    /// Messages were taken since the last flush. Short ones are sent then: they are copied.
    has_taken: bool,
}

impl Link<Slices<'_>> for Frames<'_> {
    fn operation(&self) -> u32 {
        self.head.operation
    }

    fn take(&mut self, transfer: &Transfer, executor: &Executor, slices: &Slices<'_>) -> p2p::Result<Taken> {
        let head = Head { tag: transfer.tag, total: executor.bytes(transfer.source), ..self.head };
        self.mesh.transfer(transfer.to, head, transfer.source, &Message(executor, slices));
        self.has_taken = true;
        Ok(Taken::Waits)
    }

    fn flush(&mut self, executor: &Executor, slices: &Slices<'_>) -> p2p::Result<bool> {
        Ok(self.mesh.flush(&Message(executor, slices)) | std::mem::take(&mut self.has_taken))
    }

    fn poll(&mut self, notify: &mut dyn FnMut(LinkEvent) -> p2p::Result<()>) -> p2p::Result<bool> {
        let sent = self.mesh.take_finished();
        notify(LinkEvent::Sent(sent))?;
        Ok(sent > 0)
    }
}

/// Bytes of messages that are sent.
struct Message<'m, 'b>(&'m Executor, &'m Slices<'b>);

impl Source for Message<'_, '_> {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, part: Part, at: u64) -> &[u8] {
        self.1.bytes(self.0.run(part, at))
    }
}

/// The same of a sparse AllReduce.
struct SparseMessages<'s>(&'s Sparse);

impl Source for SparseMessages<'_> {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, part: Part, at: u64) -> &[u8] {
        part_of(self.0, part, at)
    }
}

fn part_of(sparse: &Sparse, part: Part, at: u64) -> &[u8] {
    sparse.source(part).get(at as usize..).unwrap_or_default()
}

/// What the carrier keeps of an operation by messages between pairs of ranks.
#[derive(Debug)]
pub(crate) struct Work {
    kind: Kind,
    /// An array that is scanned for zeros, or could have been.
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
            Kind::Scheduled(local) => local.begin(from, head.summary, message),
            Kind::Sparse(sparse) => sparse.begin(from, head.summary, message),
        };
        self.work.disagrees |= matches!(begun, Begun::Disagrees | Begun::Differs(_));
        begun
    }

    pub(super) fn place(&mut self, from: u32, head: &Head, at: u64) -> &mut [u8] {
        let (receive, at) = (self.receive.bytes_mut(), head.offset + at);
        match &mut self.work.kind {
            Kind::Scheduled(local) => local.place(receive, from, head.tag, at),
            Kind::Sparse(sparse) => sparse.place(receive, from, head.tag, at),
        }
    }

    /// A fragment has come. False: it cannot have.
    pub(super) fn came(&mut self, from: u32, head: &Head) -> bool {
        let send = self.send.as_ref().map_or(&[][..], Buffer::bytes);
        let (come, receive) = ((head.offset + head.bytes, head.total), self.receive.bytes_mut());
        match &mut self.work.kind {
            Kind::Scheduled(local) => local.came((from, head.tag), come, send, receive),
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

    /// Sends what may be sent. Returns whether anything has moved.
    ///
    /// # Errors
    /// More was reported as sent than was to be.
    fn advance(&mut self, mesh: &mut Mesh) -> p2p::Result<bool> {
        let Self { work: Work { kind, .. }, send, receive, number, summary, .. } = self;
        let send = send.as_ref().map(Buffer::bytes);
        let head = Head { operation: *number, tag: 0, summary: *summary, total: 0, offset: 0, bytes: 0 };
        match kind {
            Kind::Scheduled(local) => {
                let mut link = Frames { mesh, head, has_taken: false };
                local.advance(&mut link, send.unwrap_or_default(), receive.bytes_mut())
            }
            Kind::Sparse(sparse) => {
                // What needs no message goes on for a while only: others wait for their turn.
                let mut moved = sparse.advance(send, receive.bytes_mut());
                while let Some(Outgoing { to, tag, source }) = sparse.poll() {
                    let total = sparse.source(source).len() as u64;
                    mesh.transfer(to, Head { tag, total, ..head }, source, &SparseMessages(sparse));
                    moved = true;
                }
                while mesh.flush(&SparseMessages(sparse)) {
                    moved = true;
                }
                let sent = mesh.take_finished();
                sparse.sent(sent);
                Ok(moved || sent > 0)
            }
        }
    }
}

impl Source for Exchange {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, part: Part, at: u64) -> &[u8] {
        match &self.work.kind {
            Kind::Scheduled(local) => local.source(self.send(), self.receive.bytes(), part, at),
            Kind::Sparse(sparse) => part_of(sparse, part, at),
        }
    }
}

/// Begins an operation that goes by messages between pairs of ranks.
///
/// # Errors
/// It cannot be carried: with its buffers.
pub(super) fn begin(
    engine: &mut Engine<UdpCarrier>,
    mut posted: Posted<Task>,
    decision: Decision,
) -> Result<(), Box<Failed>> {
    let Engine { carrier, ops, .. } = engine;
    let kind = match carrier.bind(ops, &mut posted, decision.algorithm()) {
        Ok(kind) => kind,
        Err(error) => return Err(posted.refuse(error)),
    };
    let (summary, foreign_bytes) = match &kind {
        Kind::Scheduled(local) => (local.summary(), local.executor().foreign_bytes()),
        // Not known yet.
        Kind::Sparse(sparse) => (sparse.summary(), 0),
    };
    let array = match &posted.plan {
        Task::Collective(Collective::SparseAllreduce { bytes, reduction, .. }) => Some((*bytes, *reduction)),
        _ => None,
    };
    let now_ps = carrier.interface.now_ps();
    let work = Work { kind, array, disagrees: false, moved_ps: now_ps };
    let posted = posted.map(|task| (task.name(), work));
    let bound_ps = ps(ops.core.config.barrier_timeout);
    ops.begin_exchange(posted, (summary, decision), (bound_ps, foreign_bytes), now_ps);
    carrier.exchange(ops, true, now_ps);
    Ok(())
}

impl UdpCarrier {
    /// The schedule of an operation, and the own part of its data in place.
    fn bind(&mut self, ops: &mut UdpOperations, posted: &mut Posted<Task>, algorithm: Algorithm) -> Result<Kind> {
        if let Task::Collective(collective) = &posted.plan
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
            let spare = std::mem::take(&mut self.spare_slots);
            let sparse = Sparse::new(what, ops.core.place, aggregators, (summary, reproducible), spare)?;
            return Ok(Kind::Sparse(Box::new(sparse)));
        }
        let spare = std::mem::take(&mut self.spare);
        Ok(Kind::Scheduled(posted.bind(ops.core.place, algorithm, spare)?))
    }

    /// Sends what may be sent, and notices how far the operation is. `came`: something has come. Returns whether
    /// anything moved.
    pub(super) fn exchange(&mut self, ops: &mut UdpOperations, came: bool, now_ps: u64) -> bool {
        let mesh = &mut self.mesh;
        let Some(exchange) = ops.exchange.as_mut().filter(|exchange| exchange.state.is_active()) else {
            return false;
        };
        match exchange.advance(mesh) {
            Ok(moved) if !moved && !came => return false,
            Ok(_) => {}
            Err(error) => {
                ops.fail_link(&error, now_ps);
                return true;
            }
        }
        exchange.work.moved_ps = now_ps;
        // Whoever has got everything may still wait for another one to take what it sends.
        let owing = exchange.work.kind.awaited().or_else(|| mesh.slow_taker());
        let is_complete = exchange.work.kind.is_complete();
        let own = ops.core.place.rank();
        let awaited = owing.map_or(own, |peer| self.awaited_rank(ops, peer));
        let Some(exchange) = ops.exchange.as_mut() else { return true };
        let event = exchange.transferred((!is_complete).then_some(awaited), now_ps);
        ops.protocol.handle(now_ps, event);
        true
    }

    /// Ends an operation that this rank is done with, or that has failed.
    pub(super) fn end(&mut self, ops: &UdpOperations, exchange: Exchange) -> Outcome {
        let Exchange { name, send, receive, state, mut report, work: Work { kind, array, .. }, .. } = exchange;
        self.spare_limit = (2 * receive.len()).max(self.spare_limit - self.spare_limit / 16);
        let kept = SPARE_BYTES.max(self.spare_limit);
        let found = match kind {
            Kind::Scheduled(local) => {
                let spare = local.into_spare();
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
                    self.spare_slots = spare;
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
