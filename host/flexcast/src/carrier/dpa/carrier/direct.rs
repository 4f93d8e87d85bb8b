//! Operations over connections of their own, by the algorithms of [`p2p`](crate::p2p): no worker of the card and no
//! barrier has a part in them.

use std::time::Duration;

use flexcast_proto::{Algorithm, Cause, Failure, FailureCode};

use super::operation::Operation;
use super::{DpaCarrier, DpaOperations};
use crate::carrier::pairs::{blame, called};
use crate::engine::event::Event;
use crate::engine::{Engine, Posted, Protocol as _};
use crate::error::Result;
use crate::op::decision::Decision;
use crate::op::outcome::Failed;
use crate::op::report::Report;
use crate::p2p::bound::Bound;
use crate::p2p::{self, Buffer};
use crate::plan::chains::{Order, order};

/// A peer that has acknowledged nothing for so long has not been reached by any probe or restart: a connection of the
/// library is silent for 8.4 ms then.
const STALL: Duration = Duration::from_millis(1);

impl DpaCarrier {
    /// Begins an operation whose data goes over connections of its own.
    pub(super) fn begin_over_connections(
        engine: &mut Engine<Self>,
        mut posted: Posted,
        decision: Decision,
        now_ps: u64,
    ) -> std::result::Result<(), Box<Failed>> {
        let Engine { carrier, ops, .. } = engine;
        let stream = match carrier.prepare_stream(ops, &mut posted, decision.algorithm()) {
            Ok(stream) => stream,
            Err(error) => return Err(posted.refuse(error)),
        };
        ops.current = Some(Operation::new(posted, decision, None, stream));
        Self::start_direct(engine, now_ps).map_err(|error| engine.withdraw(error))
    }

    /// Starts the current operation.
    fn start_direct(engine: &mut Engine<Self>, now_ps: u64) -> Result<()> {
        let ops = &mut engine.ops;
        let number = ops.protocol.operation();
        ops.current.iter_mut().for_each(|operation| operation.number = number);
        let Some(operation) = ops.current.as_ref() else { return Ok(()) };
        let config = &ops.core.config;
        let Order { chains, .. } = order(&operation.plan, config, ops.core.place.rank());
        let descriptor = ops.describe(operation, config, chains);
        ops.protocol.start_direct(descriptor, now_ps);
        if let Some(operation) = ops.current.as_mut() {
            operation.state.start();
            operation.report.phases.0.armed_ps = Some(now_ps);
        }
        // A rank may have called something else.
        engine.carry_out(now_ps)?;
        let Engine { carrier, ops, .. } = engine;
        let is_active = |operation: &&Operation| operation.state.is_active();
        let Some(operation) = ops.current.as_ref().filter(is_active) else { return Ok(()) };
        let (algorithm, receive) = (operation.algorithm, Buffer { region: operation.receive.region()?, offset: 0 });
        let bound = Bound::of_plan(&operation.plan, algorithm, true);
        match (bound, carrier.pairs.group.as_mut()) {
            // The own block is in its place.
            (Ok(bound), Some(group)) => match group.start(bound, Some([receive; 2]), false) {
                Ok(()) => carrier.note_direct(ops, now_ps),
                Err(error) => Self::fail_direct(ops, now_ps, &error),
            },
            // Neither is chosen without connections, nor for what they cannot do.
            _ => ops.fail_here(now_ps, Cause::Device(FailureCode::NotStarted)),
        }
        engine.carry_out(now_ps)
    }

    /// Polls the connections of an operation that goes over them. Returns whether anything has happened.
    pub(super) fn poll_direct(&mut self, ops: &mut DpaOperations, now_ps: u64) -> bool {
        let Some(operation) = ops.current.as_ref() else { return false };
        if !operation.algorithm.is_direct() || !operation.state.is_active() {
            return false;
        }
        match self.pairs.group.as_mut().map(p2p::Group::advance) {
            None | Some(Ok(false)) => return false,
            Some(Ok(true)) => self.note_direct(ops, now_ps),
            Some(Err(error)) => Self::fail_direct(ops, now_ps, &error),
        }
        true
    }

    /// Notifies the protocol of how far the connections are.
    fn note_direct(&mut self, ops: &mut DpaOperations, now_ps: u64) {
        let (Some(operation), Some(group)) = (ops.current.as_mut(), self.pairs.group.as_ref()) else { return };
        let event = if group.is_complete() {
            operation.report.phases.0.received_ps = Some(now_ps);
            Event::TransferredAll
        } else {
            let own = ops.core.place.rank();
            Event::Transferred { awaited: group.awaited().map_or(own, |(rank, _)| rank) }
        };
        ops.protocol.handle(now_ps, event);
    }

    /// An operation over connections has ended: whether they have stalled decides, on all ranks alike, how the next
    /// ones go.
    pub(super) fn note_silence(&mut self, operation: &Operation, now_ps: u64) {
        let Some(group) = self.pairs.group.as_mut() else { return };
        let (silence, restarts) = (group.take_silence(), group.take_restarts());
        if group.has_stalled() {
            self.backoff.stalled(operation.number);
            return;
        }
        self.backoff.went_well(operation.number);
        let Report { phases, decision, .. } = &operation.report;
        let took = Duration::from_nanos(now_ps.saturating_sub(phases.0.armed_ps.unwrap_or(now_ps)) / 1000);
        let multicast = decision.predicted(Algorithm::Multicast).unwrap_or(took);
        if self.slowness.note(took, multicast, restarts > 0 || silence >= STALL) {
            tracing::debug!(operation = operation.number, ?silence, restarts, "connections stall");
            group.report_stall();
        }
    }

    /// The connections have failed.
    fn fail_direct(ops: &mut DpaOperations, now_ps: u64, error: &p2p::Error) {
        tracing::error!(%error, "an operation over connections of its own failed");
        let own = ops.core.place.rank();
        if let Some(operation) = ops.current.as_ref() {
            let config = &ops.core.config;
            let Order { chains, .. } = order(&operation.plan, config, own);
            let own = ops.describe(operation, config, chains).summary;
            if let Some(event) = called(error, own) {
                ops.protocol.handle(now_ps, event);
            }
        }
        let (failed_rank, cause) = blame(own, error);
        ops.protocol.handle(now_ps, Event::Failed(Failure { failed_rank, detecting_rank: own, cause }));
    }
}
