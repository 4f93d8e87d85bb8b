//! Acknowledgements: how far roots may be ahead, told by their receivers, and heard by them.

use flexcast_proto::{Algorithm, Immediate};

use super::{Engine, Running, receive};
use crate::carrier::cpu::window;
use crate::carrier::verbs::queues::{Acknowledgement, Event};
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

impl Engine {
    /// Tells roots how far their blocks have come, where they wait for that.
    pub(super) fn acknowledge(&mut self) -> Result<()> {
        let mut told = Vec::new();
        if let Some(running) = self.windowed() {
            let (step, flow) = (window::step(running.window_chunks), &self.flow);
            self.incoming.acknowledgements(step, |rank| flow.waits(rank), |rank, chunks| told.push((rank, chunks)));
        }
        told.into_iter().try_for_each(|(rank, chunks)| self.tell(rank, chunks, false))
    }

    /// The operation under way, if its roots wait for acknowledgements.
    fn windowed(&self) -> Option<&Running> {
        let running = self.current.as_ref().filter(|running| running.algorithm == Algorithm::Multicast)?;
        (running.window_chunks < u32::MAX).then_some(running)
    }

    /// Acknowledges to a root of the operation under way.
    fn tell(&mut self, rank: u32, chunks: u32, idle: bool) -> Result<()> {
        match self.collective_id.filter(|_| self.flow.is_acknowledged(rank)) {
            Some(collective_id) => self.tell_of(collective_id, rank, chunks, idle),
            None => Ok(()),
        }
    }

    fn tell_of(&mut self, collective_id: u32, rank: u32, chunks: u32, idle: bool) -> Result<()> {
        let Some(root) = self.roots.get(rank as usize).copied() else { return Ok(()) };
        let told = Acknowledgement {
            collective_id: collective_id.into(),
            rank: self.core.place.rank().into(),
            chunks: chunks.into(),
            idle: u32::from(idle).into(),
        };
        self.queues.acknowledge(rank, root, told)
    }

    /// When acknowledgements are to be repeated: one may have been lost, or all chunks that would have brought the
    /// next.
    pub(super) fn repeat_ps(&self) -> Option<u64> {
        let watch = self.windowed().filter(|running| running.state.is_active())?.watch?;
        let waits = self.arrivals.is_empty();
        let Repeats { since_ps, count, at_ps } = self.repeats;
        let (from_ps, count) = if watch.since_ps() == since_ps { (at_ps, count) } else { (watch.since_ps(), 0) };
        waits.then(|| from_ps.saturating_add(receive::QUIET_PS << count.min(MOST_DOUBLINGS)))
    }

    /// Repeats acknowledgements where that is due.
    pub(super) fn repeat(&mut self, now_ps: u64) -> Result<()> {
        if self.repeat_ps().is_none_or(|due_ps| now_ps < due_ps) {
            return Ok(());
        }
        let since_ps = self.current.as_ref().and_then(|running| running.watch).map_or(now_ps, |watch| watch.since_ps());
        let count = if since_ps == self.repeats.since_ps { self.repeats.count } else { 0 };
        self.repeats = Repeats { since_ps, count: count.saturating_add(1), at_ps: now_ps };
        // Of a block that has been seen to its end its root may not know, if the next one has not begun.
        let sends = self.current.as_ref().is_some_and(|running| running.report.phases.0.sending_ps.is_some());
        let has_begun = |rank| match self.flow.next(rank) {
            Some(next) if next == self.core.place.rank() => sends,
            next => next.is_none_or(|next| self.incoming.has_begun(next)),
        };
        let is_awaited = |(rank, _, whole): &(u32, u32, bool)| !whole || (self.flow.waits(*rank) && !has_begun(*rank));
        let told: Vec<_> = self.incoming.seen().filter(is_awaited).map(|(rank, chunks, _)| (rank, chunks)).collect();
        told.into_iter().try_for_each(|(rank, chunks)| self.tell(rank, chunks, true))
    }

    /// The operation under way is over here. What was lost may have been read before its root had sent all: that need
    /// not wait for this rank.
    pub(super) fn pass(&mut self, running: &Running) {
        self.past.collective_id = self.collective_id.filter(|_| running.window_chunks < u32::MAX);
        self.past.roots.clear();
        let waiting = self.incoming.others().filter(|(.., rank)| self.flow.is_acknowledged(*rank));
        self.past.roots.extend(waiting);
    }

    /// A chunk has come that is not of the operation under way: tells its root that it need not wait, if it is of the
    /// one before.
    pub(super) fn tell_past(&mut self, immediate: Immediate) -> Result<()> {
        let Some(collective_id) = self.past.collective_id.filter(|id| *id == immediate.collective_id) else {
            return Ok(());
        };
        let is_of = |(first_psn, chunks, _): &&(u32, u32, u32)| {
            immediate.psn.checked_sub(*first_psn).is_some_and(|number| number < *chunks)
        };
        match self.past.roots.iter().find(is_of) {
            Some((.., rank)) => self.tell_of(collective_id, *rank, u32::MAX, false),
            None => Ok(()),
        }
    }

    /// Takes acknowledgements, and what the card is done with. Returns whether there was anything.
    pub(super) fn poll_own(&mut self, now_ps: u64) -> Result<bool> {
        let Self { queues, window, statistics, collective_id, current, .. } = self;
        let (mut failed, mut idle) = (None, Vec::new());
        let any = queues.poll_own(|event| match event {
            Event::Acknowledged(told) if Some(told.collective_id.get()) == *collective_id => {
                window.acknowledge(told.rank.get(), told.chunks.get());
                idle.extend((told.idle.get() != 0).then_some(told.rank.get()));
            }
            Event::Acknowledged(_) => statistics.wrong_id += 1,
            Event::Failed(status) => failed = failed.or(Some(status)),
        })?;
        // What a rank that is idle has not seen, although it was sent long ago, it has lost.
        if let Some(sending) = current.as_ref().and_then(|running| running.sending)
            && window.has_been_full(receive::QUIET_PS, now_ps)
            && queues.completed() == queues.posted()
        {
            idle.into_iter().for_each(|rank| window.acknowledge(rank, sending.sent));
        }
        if let Some(status) = failed {
            self.fail_datagrams(now_ps, status);
        }
        Ok(any)
    }
}
