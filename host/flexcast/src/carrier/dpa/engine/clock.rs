//! Deadlines of the operation under way, and the close of its receive contexts when multicast has stalled.

use flexcast_proto::FailureCode;

use super::operation::{Receiving, State};
use super::{Engine, WORKER_PS};
use crate::engine::notice::Notice;
use crate::error::Result;
use crate::plan::Missing;

impl Engine {
    /// Notifies the protocol of the time, and of a stall. Before it hears of that the receive contexts are closed, so
    /// that what is missing then is the truth and stays so. `moved`: something else has happened since the last poll.
    /// Returns whether anything has.
    pub(super) fn poll_clock(&mut self, now_ps: u64, mut moved: bool) -> Result<bool> {
        let Some(running) = self.current.as_ref() else { return Ok(moved) };
        if let State::Releasing { since_ps, .. } = running.state
            && now_ps.saturating_sub(since_ps) > WORKER_PS
        {
            self.fail_device(now_ps, FailureCode::WorkerSilent);
            moved = true;
        }
        let Some(running) = self.current.as_mut() else { return Ok(moved) };
        let failing = running.state.is_failing();
        // From the barrier to the end of multicast it is not the time that counts, but how long nothing has come.
        let stalled_ps = running.stalled_ps(self.stall);
        let due_ps = stalled_ps.unwrap_or(running.deadline_ps);
        let Some(sides) = running.state.sides_mut() else { return Ok(moved) };
        if !failing && !moved && now_ps < due_ps && !sides.receiving.is_closing() {
            return Ok(false);
        }
        let deadline_ps = self.parts.driver.deadline_ps().unwrap_or(u64::MAX);
        let due = now_ps >= stalled_ps.unwrap_or(deadline_ps) || failing;
        if due && matches!(sides.receiving, Receiving::Posted { .. } | Receiving::Armed) {
            sides.receiving = Receiving::Closing;
            running.report.phases.0.cut_off_ps = Some(now_ps);
        }
        moved |= self.close_receive(now_ps)?;
        let closing =
            |running: &super::Running| running.state.sides().is_some_and(|sides| sides.receiving.is_closing());
        let receives = |running: &super::Running| running.stalled_ps(self.stall).is_some();
        let sends = |running: &super::Running| running.is_posting(now_ps);
        let waits =
            self.current.as_ref().is_some_and(|running| closing(running) || receives(running) || sends(running));
        let flows = self.current.as_ref().is_some_and(|running| receives(running) || sends(running));
        let told_ps = if waits { now_ps.min(deadline_ps.saturating_sub(1)) } else { now_ps };
        self.parts.driver.notify(told_ps, Notice::Time);
        if flows {
            // What is behind the stream has its full bound, however long the stream takes.
            self.parts.driver.notify(now_ps, Notice::Progressed);
        }
        // A time that is due is something that the state machine has been notified of.
        Ok(moved || (due && !waits))
    }

    /// Notifies the protocol of what multicast has not brought.
    fn note_missing(&mut self, now_ps: u64, missing: Missing) {
        let Some(running) = self.current.as_mut() else { return };
        running.report.recovered_chunks = missing.len() as u64;
        running.report.recovered_bytes = missing.bytes();
        let lost = missing.pieces(&running.plan, &running.pieces);
        running.missing = Some(missing);
        self.parts.driver.notify(now_ps, Notice::CutOff { lost });
    }

    /// Moves the close of the receive contexts on, and takes what is missing from their answer unless a look has told.
    fn close_receive(&mut self, now_ps: u64) -> Result<bool> {
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        let failing = running.state.is_failing();
        let Some(sides) = running.state.sides_mut() else { return Ok(false) };
        let parts = &mut self.parts;
        let mut moved = false;
        if matches!(sides.receiving, Receiving::Closing) && parts.receive.is_free()? {
            parts.receive.close()?;
            sides.receiving = Receiving::ClosePosted { since_ps: now_ps };
            moved = true;
        }
        let Receiving::ClosePosted { since_ps } = sides.receiving else { return Ok(moved) };
        if !parts.receive.has_answered()? {
            if now_ps.saturating_sub(since_ps) > WORKER_PS {
                self.fail_device(now_ps, FailureCode::WorkerSilent);
                moved = true;
            }
            return Ok(moved);
        }
        // From here on recovery alone writes to the buffer.
        parts.receive.disarm(&mut running.receive);
        sides.receiving = Receiving::Closed;
        if running.missing.is_none() && !failing {
            let missing = parts.receive.missing(&running.plan, &self.derived)?;
            self.note_missing(now_ps, missing);
        }
        Ok(true)
    }
}
