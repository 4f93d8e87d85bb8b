//! Operations over connections of their own, by the algorithms of [`p2p`](crate::p2p): no worker of the card and no
//! barrier has a part in them.

use std::time::Duration;

use flexcast_proto::{Algorithm, Failure, FailureCode};

use super::Engine;
use super::operation::{Running, State};
use crate::carrier::pairs::{blame, called};
use crate::engine::descriptor::descriptor;
use crate::engine::notice::Notice;
use crate::error::Result;
use crate::op::report::Report;
use crate::p2p::{self, Buffer};
use crate::plan::chains::{Order, order};
use crate::plan::tuner;
use crate::plan::{Kind, Plan};

/// A peer that has acknowledged nothing for so long has not been reached by any probe or restart: a connection of the
/// library is silent for 8.4 ms then.
const STALL: Duration = Duration::from_millis(1);

/// Gives an operation to the connections; the own block is in its place.
fn begin(
    group: &mut p2p::Group,
    algorithm: Algorithm,
    plan: &Plan,
    receive: Buffer<'_>,
) -> std::result::Result<bool, p2p::Error> {
    match (&plan.kind, tuner::schedule(algorithm), tuner::tree(algorithm)) {
        (Kind::Allgather { bytes }, Some(schedule), _) => group.allgather(schedule, *bytes, None, receive)?,
        (Kind::Allgatherv { bytes }, Some(schedule), _) => {
            let mut end = 0;
            let ends: Vec<u64> = bytes.iter().map(|bytes| (end += bytes, end).1).collect();
            group.allgatherv(schedule, &ends, None, receive)?;
        }
        (Kind::Broadcast { root, bytes }, _, Some(tree)) => {
            group.broadcast(tree, *root, *bytes, tuner::segment_bytes(tree, *bytes), receive)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

impl Engine {
    /// Starts the current operation, whose data goes over connections of its own.
    pub(super) fn start_direct(&mut self, algorithm: Algorithm, now_ps: u64) -> Result<()> {
        let Some(running) = self.current.as_mut() else { return Ok(()) };
        let driver = &mut self.parts.driver;
        running.operation = driver.operation();
        let Order { chains, .. } = order(&running.plan, &self.core.config, self.core.place.rank());
        let descriptor =
            descriptor(&running.plan, &self.core.config, &self.alpha, running.operation, (chains, algorithm));
        driver.start_direct(descriptor, now_ps);
        running.state.start_without_workers();
        running.report.phases.0.armed_ps = Some(now_ps);
        // A rank may have called something else.
        self.do_steps(now_ps)?;
        let is_active = |running: &&mut Running| matches!(running.state, State::Active(_));
        let Some(running) = self.current.as_mut().filter(is_active) else { return Ok(()) };
        let receive = Buffer { region: running.receive.region()?, offset: 0 };
        let begun = self.parts.pairs.group.as_mut().map(|group| begin(group, algorithm, &running.plan, receive));
        match begun {
            Some(Ok(true)) => self.note_direct(now_ps),
            Some(Err(error)) => self.fail_direct(now_ps, &error),
            // Neither is chosen without connections, nor for what they cannot do.
            Some(Ok(false)) | None => self.fail_device(now_ps, FailureCode::NotStarted),
        }
        self.do_steps(now_ps)
    }

    /// Polls the connections of an operation that goes over them. Returns whether anything has happened.
    pub(super) fn poll_direct(&mut self, now_ps: u64) -> bool {
        let Some(running) = self.current.as_ref() else { return false };
        if !running.algorithm.is_direct() || !matches!(running.state, State::Active(_)) {
            return false;
        }
        match self.parts.pairs.group.as_mut().map(p2p::Group::advance) {
            None | Some(Ok(false)) => return false,
            Some(Ok(true)) => self.note_direct(now_ps),
            Some(Err(error)) => self.fail_direct(now_ps, &error),
        }
        true
    }

    /// Notifies the driver of how far the connections are.
    fn note_direct(&mut self, now_ps: u64) {
        let (Some(running), Some(group)) = (self.current.as_mut(), self.parts.pairs.group.as_ref()) else { return };
        let notice = if group.is_complete() {
            running.report.phases.0.received_ps = Some(now_ps);
            Notice::TransferredAll
        } else {
            let own = self.core.place.rank();
            Notice::Transferred { awaited: group.awaited().map_or(own, |(rank, _)| rank) }
        };
        self.parts.driver.notify(now_ps, notice);
    }

    /// An operation over connections has ended: whether they have stalled decides, on all ranks alike, how the next
    /// ones go.
    pub(super) fn note_silence(&mut self, running: &Running, now_ps: u64) {
        let Some(group) = self.parts.pairs.group.as_mut() else { return };
        let (silence, restarts) = (group.take_silence(), group.take_restarts());
        if group.is_told() {
            self.backoff.stalled(running.operation);
            return;
        }
        self.backoff.went_well(running.operation);
        let Report { phases, decision, .. } = &running.report;
        let took = Duration::from_nanos(now_ps.saturating_sub(phases.0.armed_ps.unwrap_or(now_ps)) / 1000);
        let multicast = decision.predicted(Algorithm::Multicast).unwrap_or(took);
        if self.slowness.note(took, multicast, restarts > 0 || silence >= STALL) {
            tracing::debug!(operation = running.operation, ?silence, restarts, "connections stall");
            group.tell();
        }
    }

    /// The connections have failed.
    fn fail_direct(&mut self, now_ps: u64, error: &p2p::Error) {
        tracing::error!(%error, "an operation over connections of its own failed");
        let own = self.core.place.rank();
        if let Some(running) = self.current.as_ref() {
            let Order { chains, .. } = order(&running.plan, &self.core.config, own);
            let of = (chains, running.algorithm);
            let own = descriptor(&running.plan, &self.core.config, &self.alpha, running.operation, of).summary;
            if let Some(notice) = called(error, own) {
                self.parts.driver.notify(now_ps, notice);
            }
        }
        let (failed_rank, cause) = blame(own, error);
        self.parts.driver.notify(now_ps, Notice::Failed(Failure { failed_rank, detecting_rank: own, cause }));
    }
}
