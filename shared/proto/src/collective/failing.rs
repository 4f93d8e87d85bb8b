//! Failure of an operation: found here, or reported by another rank.

use super::{Participant, State};
use crate::agreement::{Disagreement, Summary};
use crate::failure::{Cause, Failure};
use crate::ranks::RankSet;
use crate::verdict::{self, Verdict};

impl Participant {
    /// How long a failure for silence is held before it counts: a quarter of the bound, which leaves neighbours the
    /// time to contradict.
    pub(super) const fn settling_ps(&self) -> u64 {
        self.descriptor.bound_ps / 4
    }

    /// Whether the operation has failed because somebody is silent, and who it is may still turn out.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.state == State::Failing
    }

    /// Ends the operation under way as a failure, here and on all ranks. Returns whether there was one.
    ///
    /// A rank that has been released already learns of it, too, since this one takes part in nothing any more.
    pub fn cancel(&mut self) -> bool {
        let running = self.state == State::Running;
        if running {
            let own = self.place.rank();
            self.fail(Failure { failed_rank: own, detecting_rank: own, cause: Cause::Cancelled });
        }
        running
    }

    /// What two ranks have called, if the operation has failed because they differ: alike on all ranks, whichever found
    /// it.
    #[must_use]
    pub fn disagreement(&self) -> Option<Disagreement> {
        let failure = self.failure.map(|held| held.failure).filter(|failure| failure.cause == Cause::Disagrees)?;
        let calls = self.calls_of(&failure)?;
        Some(Disagreement { ranks: [failure.failed_rank, failure.detecting_rank], calls })
    }

    /// What failed rank and detecting rank of a failure have called, as far as this rank knows.
    pub(super) fn calls_of(&self, failure: &Failure) -> Option<[Summary; 2]> {
        if failure.cause != Cause::Disagrees {
            return None;
        }
        let own = self.place.rank();
        let found = self.agreement.found();
        let found = found.map(|found| Disagreement { ranks: [found.rank, own], calls: [found.theirs, found.own] });
        let known = [found, self.learned].into_iter().flatten();
        let ranks = [failure.failed_rank, failure.detecting_rank];
        known.into_iter().find(|known| known.ranks == ranks).map(|known| known.calls)
    }

    /// Another rank has said what failed rank and detecting rank of a failure have called: kept if that is the failure
    /// that this rank believes in.
    #[cold]
    pub(super) fn learn(&mut self, failure: &Failure, calls: Option<[Summary; 2]>) {
        let is_held = self.failure.is_some_and(|held| held.failure == *failure);
        if let Some(calls) = calls.filter(|_| is_held) {
            self.learned.get_or_insert(Disagreement { ranks: [failure.failed_rank, failure.detecting_rank], calls });
        }
    }

    pub(super) fn compare(&mut self) {
        if let Some(found) = self.agreement.found() {
            self.fail(Failure { failed_rank: found.rank, detecting_rank: self.place.rank(), cause: Cause::Disagrees });
        }
    }

    /// The operation cannot be completed any more; all that this rank is connected with are notified, its neighbours
    /// alone while somebody is only held to be silent, and pass it on. Changes nothing if it has failed before.
    ///
    /// Nor does a connection that breaks to a rank that may have left in good order: one that has reported a failure
    /// itself, or, once somebody is held to be silent and the barrier is passed, one that this rank does not wait for,
    /// which may have ended its part before.
    pub fn fail(&mut self, failure: Failure) {
        if matches!(failure.cause, Cause::Connection(_)) && self.may_have_left(failure.failed_rank) {
            return;
        }
        let current = matches!(self.state, State::Running | State::Failing);
        let operation = if current { self.descriptor.operation } else { self.barrier.operation() };
        self.failed(None, operation, failure);
    }

    fn may_have_left(&self, rank: u32) -> bool {
        let needless = self.failure.is_some_and(|held| {
            let (waited_for, _) = self.waiting_for();
            // Its own reads are from the left.
            let needed = if waited_for == self.place.rank() { self.place.left() } else { waited_for };
            rank != held.failure.failed_rank && rank != needed
        });
        // A rank that fails reports why before it goes, and few can have ended their part while this rank is still in
        // the barrier.
        (needless && (self.passed_ps.is_some() || self.direct.is_some())) || self.reported_by.contains(rank)
    }

    /// An operation has failed, as `from` says or as was found here. If it is the next one, everybody else is done with
    /// the current one, or can be: so is this rank, first. But if it is accused, it says at once whom it waits for.
    pub(super) fn failed(&mut self, from: Option<u32>, operation: u32, reported: Failure) {
        if let Some(from) = from {
            self.reported_by.insert(from);
        }
        let running = self.state == State::Running;
        let next = running && operation == self.descriptor.operation.wrapping_add(1);
        let waits = matches!(self.state, State::Running | State::Failing);
        let same = operation == self.descriptor.operation;
        let failure = if waits { verdict::answer(reported, self.place, self.waiting_for(), same) } else { reported };
        // What was answered is the own view, not the neighbour's.
        let source = from.filter(|_| failure == reported);
        match &mut self.failure {
            Some(held) if held.operation == operation || next => {
                let new = held.take(failure, from, source, self.place);
                // One that is accused says whom it believes to be silent.
                if let Some(from) = from.filter(|_| held.answers(&reported, self.place)) {
                    self.unnotified.insert(from);
                }
                if !new {
                    return;
                }
            }
            // Another rank is ahead of this one, and has failed in what it was at. Nobody gets there any more: it is no
            // news.
            Some(held) if operation.wrapping_sub(held.operation).cast_signed() > 0 => return,
            failed => *failed = Some(Verdict::new(operation, failure, source)),
        }
        if verdict::is_silence(&failure) {
            self.unnotified = self.unnotified.or(&RankSet::of(self.place.left())).or(&RankSet::of(self.place.right()));
        } else {
            // This rank goes now: whoever may see its connections break must know before why.
            self.place.for_each_connected(|rank| _ = self.unnotified.insert(rank));
        }
        if verdict::is_silence(&failure) && failure.detecting_rank == self.place.rank() {
            // It may be alive, and out of reach on the ring.
            self.unnotified.insert(failure.failed_rank);
        }
        if let Some(from) = from.filter(|_| failure != reported) {
            self.unnotified.insert(from);
        }
        self.unnotified.remove(self.place.rank());
        if next {
            return;
        }
        if waits && verdict::is_silence(&failure) {
            if running {
                // The time that was given last may be long past.
                self.failing_ps = None;
            }
            self.state = State::Failing;
        } else {
            self.state = State::Failed;
        }
    }
}
