//! Deadlines of the operation under way, and the close of its receive contexts when multicast has stalled.

use flexcast_proto::{Cause, FailureCode};

use super::operation::{Operation, Receiving};
use super::{DpaCarrier, DpaOperations, WORKER_PS};
use crate::engine::event::Event;
use crate::engine::{Protocol as _, State};
use crate::error::Result;
use crate::plan::Missing;

impl DpaCarrier {
    /// Notifies the protocol of the time, and of a stall. Before that the receive contexts are closed, so that what is
    /// missing then is the truth and stays so. `moved`: something else has happened since the last poll.
    /// Returns whether anything has.
    pub(super) fn poll_clock(&mut self, ops: &mut DpaOperations, now_ps: u64, mut moved: bool) -> Result<bool> {
        let Some(operation) = ops.current.as_ref() else { return Ok(moved) };
        if operation.state == State::Released && now_ps.saturating_sub(operation.ended_ps) > WORKER_PS {
            ops.fail_here(now_ps, Cause::Device(FailureCode::WorkerSilent));
            moved = true;
        }
        let Some(operation) = ops.current.as_mut() else { return Ok(moved) };
        let failing = operation.state.is_failed();
        // From the barrier to the end of multicast it is not the time that counts, but how long nothing has come.
        let stalled_ps = operation.stalled_ps(ops.stall);
        let due_ps = stalled_ps.unwrap_or(operation.deadline_ps);
        let Some(sides) = operation.stream.sides.as_mut() else { return Ok(moved) };
        if !failing && !moved && now_ps < due_ps && !sides.receiving.is_closing() {
            return Ok(false);
        }
        let deadline_ps = ops.protocol.deadline_ps().unwrap_or(u64::MAX);
        let due = now_ps >= stalled_ps.unwrap_or(deadline_ps) || failing;
        if due && matches!(sides.receiving, Receiving::Posted { .. } | Receiving::Armed) {
            sides.receiving = Receiving::Closing;
            operation.report.phases.0.cut_off_ps = Some(now_ps);
        }
        moved |= self.close_receive(ops, now_ps)?;
        let flows = |operation: &Operation| operation.stalled_ps(ops.stall).is_some() || operation.is_posting(now_ps);
        let closes = ops.current.as_ref().is_some_and(|operation| operation.stream.is_closing());
        let flows = ops.current.as_ref().is_some_and(flows);
        let waits = closes || flows;
        let notified_ps = if waits { now_ps.min(deadline_ps.saturating_sub(1)) } else { now_ps };
        ops.protocol.handle(notified_ps, Event::Time);
        if flows {
            // What is behind the stream has its full bound, however long the stream takes.
            ops.protocol.handle(now_ps, Event::Progressed);
        }
        // A time that is due is something that the state machine has been notified of.
        Ok(moved || (due && !waits))
    }

    /// Notifies the protocol of what multicast has not brought.
    fn note_missing(ops: &mut DpaOperations, now_ps: u64, missing: Missing) {
        let Some(operation) = ops.current.as_mut() else { return };
        operation.report.recovered_chunks = missing.len() as u64;
        operation.report.recovered_bytes = missing.bytes();
        let lost = missing.pieces(&operation.plan, &operation.pieces);
        operation.stream.missing = Some(missing);
        ops.protocol.handle(now_ps, Event::CutOff { lost });
    }

    /// Moves the close of the receive contexts on, and takes what is missing from their answer unless a scan
    /// has shown it.
    fn close_receive(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let Some(operation) = ops.current.as_mut() else { return Ok(false) };
        let failing = operation.state.is_failed();
        let Some(sides) = operation.stream.sides.as_mut() else { return Ok(false) };
        let mut moved = false;
        if matches!(sides.receiving, Receiving::Closing) && self.receive.is_free()? {
            self.receive.close()?;
            sides.receiving = Receiving::ClosePosted { since_ps: now_ps };
            moved = true;
        }
        let Receiving::ClosePosted { since_ps } = sides.receiving else { return Ok(moved) };
        if !self.receive.has_answered()? {
            if now_ps.saturating_sub(since_ps) > WORKER_PS {
                ops.fail_here(now_ps, Cause::Device(FailureCode::WorkerSilent));
                moved = true;
            }
            return Ok(moved);
        }
        // From here on recovery alone writes to the buffer.
        self.receive.disarm(&mut operation.receive);
        sides.receiving = Receiving::Closed;
        if operation.stream.missing.is_none() && !failing {
            let missing = self.receive.missing(&operation.plan, &self.derived)?;
            Self::note_missing(ops, now_ps, missing);
        }
        Ok(true)
    }
}
