//! End of operations: released by all, or failed.

use flexcast_proto::{Algorithm, Cause, FailureCode, ProgressWatch};

use super::carrier::{Carrier, LetGo};
use super::operation::{Exchange, Operation, Purpose as _, State};
use super::protocol::Protocol as _;
use super::{Engine, Operations};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::outcome::Failed;
use crate::op::report::Report;

/// Longest that a carrier is waited for after a failure, until nothing reaches the buffers any more.
pub(crate) const WIND_UP_PS: u64 = 1_000_000_000_000;

/// Enters the times of the end into a report.
fn note_end(report: &mut Report, now_ps: u64) {
    let phases = &mut report.phases.0;
    phases.released_ps.get_or_insert(now_ps);
    // The poll that found the last byte may release it too.
    phases.complete_ps.get_or_insert(phases.received_ps.unwrap_or(now_ps));
}

impl<C: Carrier> Operations<C> {
    /// The estimates of the network learn from an operation's multicast. `steps_ps`: what the turns of its roots have
    /// taken beyond the data. `watch`: how data has come.
    pub(crate) fn observe(&mut self, operation: &Operation<C>, steps_ps: u64, watch: Option<ProgressWatch>) {
        let (phases, config) = (&operation.report.phases.0, &self.core.config);
        if let (Some(received_ps), Some(ready_ps)) = (phases.received_ps, phases.ready_ps) {
            let took_ps = received_ps.saturating_sub(ready_ps).saturating_sub(steps_ps);
            self.alpha.observe(operation.plan.link_bytes(config), config.link_gbit_per_s, took_ps);
        }
        if let Some(watch) = watch {
            self.stall.observe(watch.longest_ps());
        }
    }
}

impl<C: Carrier> Engine<C> {
    /// Ends an operation that all ranks are done with, once the carrier is done with its buffers.
    pub(super) fn release(&mut self, now_ps: u64) -> Result<bool> {
        let is_released = |operation: &Operation<C>| operation.state == State::Released;
        if !self.ops.current.as_ref().is_some_and(is_released) || !self.carrier.may_end(&mut self.ops, now_ps)? {
            return Ok(false);
        }
        let Some(mut operation) = self.ops.current.take() else { return Ok(false) };
        match self.end(&mut operation, now_ps) {
            Ok(()) => C::finish(self, operation, now_ps),
            Err(error) => {
                // It is over for the others: this rank alone has not got its result.
                let Operation { request, send, receive, report, purpose, .. } = operation;
                let failed = Failed { error, send, receive: Some(receive), report };
                self.ops.core.requests.finish(request, Err(purpose.refuse(failed)));
                self.fail_here(Cause::Device(FailureCode::UnknownCause));
            }
        }
        Ok(true)
    }

    /// What there is to be done of an operation that all ranks are done with.
    fn end(&mut self, operation: &mut Operation<C>, now_ps: u64) -> Result<()> {
        self.ops.protocol.note(now_ps, &mut operation.report);
        note_end(&mut operation.report, now_ps);
        if operation.algorithm == Algorithm::Eager
            && let Some(gathered) = self.ops.protocol.take_eager()?
        {
            gathered.place(&operation.plan, &mut operation.receive)?;
            self.ops.gathered = gathered;
        }
        self.carrier.ended(&mut self.ops, operation, now_ps)
    }

    /// After a failure: gives the buffers back once nothing of the carrier can reach them any more.
    pub(super) fn wind_up(&mut self, now_ps: u64) -> Result<bool> {
        let Some(operation) = self.ops.current.as_ref() else { return Ok(false) };
        let (State::Failed(failure), since_ps) = (operation.state, operation.ended_ps) else { return Ok(false) };
        let let_go = self.carrier.has_let_go(&mut self.ops, now_ps)?;
        if let_go == LetGo::NotYet && now_ps.saturating_sub(since_ps) <= WIND_UP_PS {
            return Ok(false);
        }
        let Some(mut operation) = self.ops.current.take() else { return Ok(false) };
        let name = operation.name();
        self.carrier.abandon(&mut operation);
        let error = self.carrier.error_of(&mut self.ops, Some(&mut operation), name, failure);
        let Operation { request, send, receive, report, purpose, .. } = operation;
        // Peers may hold its key: the next owner of these bytes gets another one. A buffer that cannot get one is
        // freed.
        let mut renew = |buffer: Buffer| match let_go {
            LetGo::Yes => self
                .carrier
                .renew(buffer)
                .inspect_err(|error| tracing::error!(%error, "a buffer is freed instead of given back"))
                .ok(),
            LetGo::NotYet | LetGo::Never => {
                self.ops.lost.push(buffer);
                None
            }
        };
        let failed = Failed { error, send: send.and_then(&mut renew), receive: renew(receive), report };
        self.ops.core.requests.finish(request, Err(purpose.refuse(failed)));
        Ok(true)
    }

    /// Ends an exchange that is over, or has failed.
    pub(super) fn end_exchange(&mut self, now_ps: u64) -> Result<bool> {
        let is_over = |exchange: &Exchange<C>| !exchange.state.is_active();
        if !self.ops.exchange.as_ref().is_some_and(is_over) || !self.carrier.may_end_exchange(&mut self.ops, now_ps) {
            return Ok(false);
        }
        let Some(mut exchange) = self.ops.exchange.take() else { return Ok(false) };
        let request = exchange.request;
        if exchange.state == State::Released {
            note_end(&mut exchange.report, now_ps);
        }
        let outcome = self.carrier.end_exchange(&mut self.ops, exchange, now_ps);
        self.ops.core.requests.finish(request, outcome.unwrap_or_else(|error| Err(Box::new(Failed::of(error)))));
        Ok(true)
    }

    /// When [`Engine::wind_up`] waits no longer; none without a failure.
    pub(super) fn wind_up_ps(&self) -> Option<u64> {
        let of_blocks = self.ops.current.as_ref().map(|operation| (operation.state, operation.ended_ps));
        let (state, since_ps) = of_blocks?;
        state.is_failed().then(|| since_ps.saturating_add(WIND_UP_PS + 1))
    }
}
