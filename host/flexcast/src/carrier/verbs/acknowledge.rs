//! Acknowledgements: how far roots may be ahead, sent by their receivers, and taken by the roots.

use flexcast_proto::{Algorithm, Immediate};

use super::carrier::{VerbsCarrier, VerbsOperations};
use super::queues::{Acknowledgement, Event};
use super::receive;
use crate::carrier::cpu::window;
use crate::engine::Operation;
use crate::error::Result;

/// Acknowledgements are repeated after [`receive::QUIET_PS`], and after twice as long each time, up to this power of
/// two.
const MOST_DOUBLINGS: u32 = 4;

/// Acknowledgements that are repeated since nothing comes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repeats {
    /// When data last came.
    since_ps: u64,
    /// Repeated so often since then.
    count: u32,
    /// When that was last.
    at_ps: u64,
}

/// An operation that was multicast and is over.
#[derive(Debug, Default)]
pub(super) struct Past {
    collective_id: Option<u32>,
    /// First sequence number, chunks and rank of each root that waits for acknowledgements.
    roots: Vec<(u32, u32, u32)>,
}

/// The operation under way, if its roots wait for acknowledgements.
fn windowed(ops: &VerbsOperations) -> Option<&Operation<VerbsCarrier>> {
    let operation = ops.current.as_ref().filter(|operation| operation.algorithm == Algorithm::Multicast)?;
    (operation.stream.window_chunks < u32::MAX).then_some(operation)
}

impl VerbsCarrier {
    /// Acknowledges to roots how far their blocks have come, where they wait for that.
    pub(super) fn acknowledge(&mut self, ops: &VerbsOperations) -> Result<()> {
        let mut due = Vec::new();
        if let Some(operation) = windowed(ops) {
            let (step, flow) = (window::step(operation.stream.window_chunks), &self.flow);
            self.incoming.acknowledgements(step, |rank| flow.waits(rank), |rank, chunks| due.push((rank, chunks)));
        }
        due.into_iter().try_for_each(|(rank, chunks)| self.acknowledge_root(ops, rank, chunks, false))
    }

    /// Acknowledges to a root of the operation under way.
    fn acknowledge_root(&mut self, ops: &VerbsOperations, rank: u32, chunks: u32, idle: bool) -> Result<()> {
        match self.collective_id.filter(|_| self.flow.is_acknowledged(rank)) {
            Some(collective_id) => self.acknowledge_operation(ops, collective_id, rank, (chunks, idle)),
            None => Ok(()),
        }
    }

    /// Acknowledges to a root of an operation.
    fn acknowledge_operation(
        &mut self,
        ops: &VerbsOperations,
        collective_id: u32,
        rank: u32,
        (chunks, idle): (u32, bool),
    ) -> Result<()> {
        let Some(root) = self.roots.get(rank as usize).copied() else { return Ok(()) };
        let acknowledgement = Acknowledgement {
            collective_id: collective_id.into(),
            rank: ops.core.place.rank().into(),
            chunks: chunks.into(),
            idle: u32::from(idle).into(),
        };
        self.queues.acknowledge(rank, root, acknowledgement)
    }

    /// When acknowledgements are to be repeated: one may have been lost, or all chunks that would have brought the
    /// next.
    pub(super) fn repeat_ps(&self, ops: &VerbsOperations) -> Option<u64> {
        let watch = windowed(ops).filter(|operation| operation.state.is_active())?.stream.watch?;
        let waits = self.arrivals.is_empty();
        let Repeats { since_ps, count, at_ps } = self.repeats;
        let (from_ps, count) = if watch.since_ps() == since_ps { (at_ps, count) } else { (watch.since_ps(), 0) };
        waits.then(|| from_ps.saturating_add(receive::QUIET_PS << count.min(MOST_DOUBLINGS)))
    }

    /// Repeats acknowledgements where that is due.
    pub(super) fn repeat(&mut self, ops: &VerbsOperations, now_ps: u64) -> Result<()> {
        if self.repeat_ps(ops).is_none_or(|due_ps| now_ps < due_ps) {
            return Ok(());
        }
        let watch = ops.current.as_ref().and_then(|operation| operation.stream.watch);
        let since_ps = watch.map_or(now_ps, |watch| watch.since_ps());
        let count = if since_ps == self.repeats.since_ps { self.repeats.count } else { 0 };
        self.repeats = Repeats { since_ps, count: count.saturating_add(1), at_ps: now_ps };
        // Of a block that has been seen to its end its root may not know, if the next one has not begun.
        let sends = ops.current.as_ref().is_some_and(|operation| operation.report.phases.0.sending_ps.is_some());
        let has_begun = |rank| match self.flow.next(rank) {
            Some(next) if next == ops.core.place.rank() => sends,
            next => next.is_none_or(|next| self.incoming.has_begun(next)),
        };
        let is_awaited = |(rank, _, whole): &(u32, u32, bool)| !whole || (self.flow.waits(*rank) && !has_begun(*rank));
        let due: Vec<_> = self.incoming.seen().filter(is_awaited).map(|(rank, chunks, _)| (rank, chunks)).collect();
        due.into_iter().try_for_each(|(rank, chunks)| self.acknowledge_root(ops, rank, chunks, true))
    }

    /// The operation under way is over here. What was lost may have been read before its root had sent all: that need
    /// not wait for this rank.
    pub(super) fn pass(&mut self, operation: &Operation<Self>) {
        self.past.collective_id = self.collective_id.filter(|_| operation.stream.window_chunks < u32::MAX);
        self.past.roots.clear();
        let waiting = self.incoming.others().filter(|(.., rank)| self.flow.is_acknowledged(*rank));
        self.past.roots.extend(waiting);
    }

    /// A chunk has come that is not of the operation under way: acknowledges to its root that it need not wait, if it
    /// is of the one before.
    pub(super) fn acknowledge_past(&mut self, ops: &VerbsOperations, immediate: Immediate) -> Result<()> {
        let Some(collective_id) = self.past.collective_id.filter(|id| *id == immediate.collective_id) else {
            return Ok(());
        };
        let is_of = |(first_psn, chunks, _): &&(u32, u32, u32)| {
            immediate.psn.checked_sub(*first_psn).is_some_and(|number| number < *chunks)
        };
        match self.past.roots.iter().find(is_of) {
            Some((.., rank)) => self.acknowledge_operation(ops, collective_id, *rank, (u32::MAX, false)),
            None => Ok(()),
        }
    }

    /// Takes acknowledgements, and what the card is done with. Returns whether there was anything.
    pub(super) fn poll_own(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> Result<bool> {
        let Self { queues, window, statistics, collective_id, .. } = self;
        let (mut failed, mut idle) = (None, Vec::new());
        let any = queues.poll_own(|event| match event {
            Event::Acknowledged(acknowledgement) if Some(acknowledgement.collective_id.get()) == *collective_id => {
                window.acknowledge(acknowledgement.rank.get(), acknowledgement.chunks.get());
                idle.extend((acknowledgement.idle.get() != 0).then_some(acknowledgement.rank.get()));
            }
            Event::Acknowledged(_) => statistics.wrong_id += 1,
            Event::Failed(status) => failed = failed.or(Some(status)),
        })?;
        // What a rank that is idle has not seen, although it was sent long ago, it has lost.
        if let Some(sending) = ops.current.as_ref().and_then(|operation| operation.stream.sending)
            && window.has_been_full(receive::QUIET_PS, now_ps)
            && queues.completed() == queues.posted()
        {
            idle.into_iter().for_each(|rank| window.acknowledge(rank, sending.sent));
        }
        if let Some(status) = failed {
            Self::fail_datagrams(ops, now_ps, status);
        }
        Ok(any)
    }
}
