//! Aggregators that are no ranks, as a worker sees them. They have numbers behind those of the ranks.

use flexcast_proto::{Cause, Failure, FailureCode};

use super::Engine;
use super::operation::State;
use crate::engine::notice::Notice;
use crate::mesh::aggregator::Report;
use crate::mesh::external;
use crate::mesh::{NONSENSE, failure_code};
use crate::op::config::ps;

/// How long an operation that has failed waits for the reason of an aggregator.
const REASON_PS: u64 = 500_000_000_000;

impl Engine {
    /// The number of an aggregator among those of the communicator; none of a rank.
    pub(super) const fn aggregator(&self, peer: u32) -> Option<u32> {
        peer.checked_sub(self.core.place.ranks())
    }

    /// The rank that is waited for, where that is known, of a peer that is.
    pub(super) fn awaited_rank(&self, peer: u32) -> u32 {
        match self.aggregator(peer) {
            None => peer,
            Some(number) => self.external.waits_for(number).unwrap_or(self.core.place.rank()),
        }
    }

    /// Whether the operation under way needs aggregators.
    fn uses_external(&self) -> bool {
        self.exchanging.as_ref().is_some_and(|exchanging| exchanging.state.is_active() && exchanging.is_sparse())
            && self.external.count() > 0
    }

    /// An operation with aggregators begins: one whose connection has ended meanwhile is connected anew.
    pub(super) fn begin_apart(&mut self) {
        for number in self.mesh.aggregators() {
            self.receive_frames(number);
        }
        self.mesh.renew();
        let now_ps = self.interface.now_ps();
        self.external.begin(now_ps);
    }

    /// The aggregator that the operation under way has failed by as another rank says, while this one has not heard
    /// why.
    fn unexplained(&self) -> Option<u32> {
        let exchanging = self.exchanging.as_ref()?;
        let State::Failed(failure) = exchanging.state else { return None };
        let Cause::Aggregator(number) = failure.cause else { return None };
        let number = u32::from(number);
        let is_open = failure.detecting_rank != self.core.place.rank() && !self.external.has_reason(number);
        is_open.then_some(number)
    }

    /// Whether an operation that has failed does not end yet: the aggregator tells each rank its reason, and this one's
    /// may come a little later than what another rank says.
    pub(super) fn awaits_reason(&mut self, now_ps: u64) -> bool {
        if self.unexplained().is_none() {
            self.reason_ps = None;
            return false;
        }
        now_ps < *self.reason_ps.get_or_insert(now_ps.saturating_add(REASON_PS))
    }

    /// Takes note of what an aggregator says.
    pub(super) fn heed(&mut self, peer: u32, report: Report) {
        let Some(number) = self.aggregator(peer).filter(|_| self.uses_external()) else {
            if let Report::Refused { reason } = report {
                if let Some(number) = self.unexplained().filter(|number| self.aggregator(peer) == Some(*number)) {
                    return self.external.blame(number, external::refusal(&reason));
                }
                // The next operation dials anew.
                tracing::warn!(peer, reason, "an aggregator serves this job no longer");
            }
            return;
        };
        let (now_ps, detecting_rank) = (self.interface.now_ps(), self.core.place.rank());
        let failed = |failed_rank, cause| Notice::Failed(Failure { failed_rank, detecting_rank, cause });
        let notice = match report {
            Report::Waiting { rank } => {
                if let Some(known) = self.external.get_mut(number) {
                    known.waits_for = Some(rank);
                }
                let Some(exchanging) = &self.exchanging else { return };
                // Nothing has moved: it is no progress.
                let since_ps = exchanging.moved_ps;
                let Some(peer) = exchanging.awaited() else { return };
                let awaited = self.awaited_rank(peer);
                return self.conversation.notify(since_ps, Notice::Transferred { awaited });
            }
            Report::Lost { rank } if rank == detecting_rank => return self.fail_external(number, external::lost()),
            Report::Lost { rank } => failed(rank, Cause::Connection(FailureCode::ConnectionReset)),
            Report::Silent { rank } => failed(rank, Cause::Silent(flexcast_proto::WaitedFor::Block)),
            Report::Differs { rank, theirs } => {
                Notice::Disagrees { rank, theirs, own: self.conversation.participant().summary() }
            }
            Report::Refused { reason } => return self.fail_external(number, external::refusal(&reason)),
            // It is for ranks with cards.
            Report::Endpoint { .. } => return self.fail_external(number, external::broken(NONSENSE)),
        };
        self.conversation.notify(now_ps, notice);
    }

    /// The connection to a peer has broken.
    pub(super) fn break_connection(&mut self, peer: u32, code: u16) {
        let Some(number) = self.aggregator(peer) else { return self.conversation.broken(peer, failure_code(code)) };
        let is_unexplained = self.unexplained() == Some(number);
        if !self.uses_external() && !is_unexplained {
            return;
        }
        let found = self.mesh.fault(peer).map(|fault| fault.reason);
        let reason = found.unwrap_or_else(|| external::broken(code));
        if is_unexplained { self.external.blame(number, reason) } else { self.fail_external(number, reason) }
    }

    fn fail_external(&mut self, number: u32, reason: String) {
        self.external.blame(number, reason);
        let (now_ps, own) = (self.interface.now_ps(), self.core.place.rank());
        let failure = Failure { failed_rank: own, detecting_rank: own, cause: Cause::Aggregator(number as u16) };
        self.conversation.notify(now_ps, Notice::Failed(failure));
    }

    /// When an aggregator that is waited for counts as silent: before this rank would be held to be the failed rank.
    pub(super) fn external_deadline_ps(&self) -> Option<(u64, u32)> {
        let exchanging = self.exchanging.as_ref().filter(|_| self.uses_external())?;
        let bound_ps = external::patience_ps(ps(self.core.config.barrier_timeout));
        let owes = |number: &u32| exchanging.waits_for(self.core.place.ranks() + number);
        let heard_ps = |number: u32| self.external.get(number).map_or(0, |known| known.heard_ps);
        let since_ps = |number: u32| heard_ps(number).max(exchanging.moved_ps);
        let deadlines = (0..self.external.count()).filter(owes).map(|at| (since_ps(at).saturating_add(bound_ps), at));
        deadlines.min()
    }

    /// Fails the operation if an aggregator has been silent for too long. Returns whether it was.
    pub(super) fn look_at_external(&mut self, now_ps: u64) -> bool {
        let Some((_, number)) = self.external_deadline_ps().filter(|(deadline_ps, _)| *deadline_ps <= now_ps) else {
            return false;
        };
        self.fail_external(number, external::silent(self.core.config.barrier_timeout));
        true
    }
}
