//! Aggregators that are no ranks, as a worker sees them. They have numbers behind those of the ranks.

use flexcast_mesh::aggregator::Report;
use flexcast_mesh::external;
use flexcast_mesh::{NONSENSE, failure_code};
use flexcast_proto::{Cause, Failure, FailureCode};

use super::{UdpCarrier, UdpOperations};
use crate::engine::State;
use crate::engine::event::Event;
use crate::op::config::ps;

/// How long an operation that has failed waits for the reason of an aggregator.
const REASON_PS: u64 = 500_000_000_000;

/// The number of an aggregator among those of the communicator; none of a rank.
pub(super) const fn aggregator(ops: &UdpOperations, peer: u32) -> Option<u32> {
    peer.checked_sub(ops.core.place.ranks())
}

impl UdpCarrier {
    /// The rank that is waited for, where that is known, of a peer that is.
    pub(super) fn awaited_rank(&self, ops: &UdpOperations, peer: u32) -> u32 {
        match aggregator(ops, peer) {
            None => peer,
            Some(number) => self.external.waits_for(number).unwrap_or(ops.core.place.rank()),
        }
    }

    /// Whether the operation under way needs aggregators.
    fn uses_external(&self, ops: &UdpOperations) -> bool {
        ops.exchange.as_ref().is_some_and(|exchange| exchange.state.is_active() && exchange.is_sparse())
            && self.external.count() > 0
    }

    /// An operation with aggregators begins: one whose connection has ended meanwhile is connected anew.
    pub(super) fn begin_external(&mut self, ops: &mut UdpOperations) {
        for number in self.mesh.aggregators() {
            self.receive_frames(ops, number);
        }
        self.mesh.renew();
        let now_ps = self.interface.now_ps();
        self.external.begin(now_ps);
    }

    /// The aggregator that the operation under way has failed by as another rank says, while this one has not been
    /// sent the reason.
    fn unexplained(&self, ops: &UdpOperations) -> Option<u32> {
        let exchange = ops.exchange.as_ref()?;
        let State::Failed(failure) = exchange.state else { return None };
        let Cause::Aggregator(number) = failure.cause else { return None };
        let number = u32::from(number);
        let is_open = failure.detecting_rank != ops.core.place.rank() && !self.external.has_reason(number);
        is_open.then_some(number)
    }

    /// Whether an operation that has failed does not end yet: the aggregator sends each rank its reason, and this one's
    /// may come a little later than what another rank says.
    pub(super) fn awaits_reason(&mut self, ops: &UdpOperations, now_ps: u64) -> bool {
        if self.unexplained(ops).is_none() {
            self.reason_ps = None;
            return false;
        }
        now_ps < *self.reason_ps.get_or_insert(now_ps.saturating_add(REASON_PS))
    }

    /// Takes a report of an aggregator.
    pub(super) fn take_report(&mut self, ops: &mut UdpOperations, peer: u32, report: Report) {
        let Some(number) = aggregator(ops, peer).filter(|_| self.uses_external(ops)) else {
            if let Report::Refused { reason } = report {
                if let Some(number) = self.unexplained(ops).filter(|number| aggregator(ops, peer) == Some(*number)) {
                    return self.external.blame(number, external::refusal(&reason));
                }
                // The next operation dials anew.
                tracing::warn!(peer, reason, "an aggregator serves this job no longer");
            }
            return;
        };
        let (now_ps, detecting_rank) = (self.interface.now_ps(), ops.core.place.rank());
        let failed = |failed_rank, cause| Event::Failed(Failure { failed_rank, detecting_rank, cause });
        let event = match report {
            Report::Waiting { rank } => {
                if let Some(known) = self.external.get_mut(number) {
                    known.waits_for = Some(rank);
                }
                let Some(exchange) = &ops.exchange else { return };
                // Nothing has moved: it is no progress.
                let since_ps = exchange.work.moved_ps;
                let Some(peer) = exchange.awaited() else { return };
                let awaited = self.awaited_rank(ops, peer);
                return ops.protocol.handle(since_ps, Event::Transferred { awaited });
            }
            Report::Lost { rank } if rank == detecting_rank => {
                return self.fail_external(ops, number, external::lost());
            }
            Report::Lost { rank } => failed(rank, Cause::Connection(FailureCode::ConnectionReset)),
            Report::Silent { rank } => failed(rank, Cause::Silent(flexcast_proto::WaitedFor::Block)),
            Report::Differs { rank, theirs } => {
                Event::Disagrees { rank, theirs, own: ops.protocol.participant().summary() }
            }
            Report::Refused { reason } => return self.fail_external(ops, number, external::refusal(&reason)),
            // It is for ranks with cards.
            Report::ConnectInfo { .. } => return self.fail_external(ops, number, external::broken(NONSENSE)),
        };
        ops.protocol.handle(now_ps, event);
    }

    /// The connection to a peer has broken.
    pub(super) fn break_connection(&mut self, ops: &mut UdpOperations, peer: u32, code: u16) {
        let Some(number) = aggregator(ops, peer) else { return ops.protocol.broken(peer, failure_code(code)) };
        let is_unexplained = self.unexplained(ops) == Some(number);
        if !self.uses_external(ops) && !is_unexplained {
            return;
        }
        let found = self.mesh.fault(peer).map(|fault| fault.reason);
        let reason = found.unwrap_or_else(|| external::broken(code));
        if is_unexplained { self.external.blame(number, reason) } else { self.fail_external(ops, number, reason) }
    }

    fn fail_external(&mut self, ops: &mut UdpOperations, number: u32, reason: String) {
        self.external.blame(number, reason);
        ops.fail_here(self.interface.now_ps(), Cause::Aggregator(number as u16));
    }

    /// When an aggregator that is waited for counts as silent: before this rank would be held to be the failed rank.
    pub(super) fn external_deadline_ps(&self, ops: &UdpOperations) -> Option<(u64, u32)> {
        let exchange = ops.exchange.as_ref().filter(|_| self.uses_external(ops))?;
        let bound_ps = external::patience_ps(ps(ops.core.config.barrier_timeout));
        let owes = |number: &u32| exchange.waits_for(ops.core.place.ranks() + number);
        let received_ps = |number: u32| self.external.get(number).map_or(0, |known| known.received_ps);
        let since_ps = |number: u32| received_ps(number).max(exchange.work.moved_ps);
        let deadlines = (0..self.external.count()).filter(owes).map(|at| (since_ps(at).saturating_add(bound_ps), at));
        deadlines.min()
    }

    /// Fails the operation if an aggregator has been silent for too long. Returns whether it was.
    pub(super) fn detect_silence(&mut self, ops: &mut UdpOperations, now_ps: u64) -> bool {
        let due = self.external_deadline_ps(ops).filter(|(deadline_ps, _)| *deadline_ps <= now_ps);
        let Some((_, number)) = due else { return false };
        self.fail_external(ops, number, external::silent(ops.core.config.barrier_timeout));
        true
    }
}
