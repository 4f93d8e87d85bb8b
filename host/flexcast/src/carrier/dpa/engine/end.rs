//! End of an operation: released by all, or failed.

use flexcast_proto::Algorithm;

use super::operation::{Fault, Receiving, Running, State};
use super::{Engine, WORKER_PS};
use crate::carrier::pairs::{PairEngine as _, SetupOperation};
use crate::engine::descriptor::activations_ps;
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::outcome::{Done, Failed};

impl Engine {
    /// Whether chunks came after the cutoff of the operation before shows once the workers report again.
    fn notice_late_chunks(&mut self, cut_off: bool) -> Result<()> {
        let late = self.parts.receive.late_chunks()?;
        if self.late_chunks.is_some_and(|before| late > before) {
            self.alpha.came_late();
            self.stall.came_late();
        }
        self.late_chunks = cut_off.then_some(late);
        Ok(())
    }

    /// Ends an operation that all ranks are done with, once its own sends are over.
    pub(super) fn release(&mut self, now_ps: u64) -> Result<()> {
        let over = |running: &Running| match &running.state {
            // What a look has shown to be lost may have been read before the receive contexts have closed.
            State::Releasing { sides, .. } => !sides.sending.is_under_way() && sides.receiving.is_over(),
            _ => false,
        };
        // What others tell of where they want their bytes must not find this rank gone; once the communicator has
        // failed it may never come.
        if let Some(running) =
            self.current.as_ref().filter(|running| over(running) && running.algorithm == Algorithm::Multicast)
            && self.core.broken.is_none()
            && !self.parts.receive.are_targets_known(running.operation)?
        {
            return Ok(());
        }
        // The caller may stay away for long once its operation is over.
        if self.parts.driver.is_waiting() {
            return Ok(());
        }
        let Some(mut running) = self.current.take_if(|running| over(running)) else { return Ok(()) };
        self.parts.driver.note(now_ps, &mut running.report);
        let phases = &mut running.report.phases.0;
        phases.released_ps.get_or_insert(now_ps);
        // The poll that found the last byte may release it too.
        phases.complete_ps.get_or_insert(phases.received_ps.unwrap_or(now_ps));
        match running.algorithm {
            Algorithm::Multicast => {}
            Algorithm::Eager => return self.release_eager(running, now_ps),
            _ => {
                self.note_silence(&running, now_ps);
                self.finish(running, now_ps);
                return Ok(());
            }
        }
        if let (Some(received_ps), Some(ready_ps)) = (phases.received_ps, phases.ready_ps) {
            let steps_ps = activations_ps(&running.plan, &self.core.config);
            let took_ps = received_ps.saturating_sub(ready_ps).saturating_sub(steps_ps);
            let bytes = running.plan.link_bytes(&self.core.config);
            self.alpha.observe(bytes, self.core.config.link_gbit_per_s, took_ps);
        }
        if let Some(watch) = running.watch {
            self.stall.observe(watch.longest_ps());
        }
        let closed =
            |state: &State| matches!(state.sides(), Some(sides) if matches!(sides.receiving, Receiving::Closed));
        self.notice_late_chunks(closed(&running.state))?;
        self.losses.note(running.report.recovered_chunks > 0 || running.report.fetches_served > 0);
        self.ids.release(running.collective_id, now_ps);
        self.parts.receive.disarm(&mut running.receive);
        self.finish(running, now_ps);
        Ok(())
    }

    /// Ends an operation that has gone well, or goes on with what it was run for.
    fn finish(&mut self, running: Running, now_ps: u64) {
        let Running { request, send, receive, report, setup, .. } = running;
        match setup {
            Some(setup) => self.finish_setup(*setup, (request, send, receive, report), now_ps),
            None => self.core.requests.finish(request, Ok(Done { send, receive, report })),
        }
    }

    /// Ends an operation whose data has come with the barrier.
    fn release_eager(&mut self, mut running: Running, now_ps: u64) -> Result<()> {
        if let Some(gathered) = self.parts.driver.take_eager()? {
            gathered.place(&running.plan, &mut running.receive)?;
            self.gathered = gathered;
        }
        self.finish(running, now_ps);
        Ok(())
    }

    /// After a failure: gives the buffers back once nothing of the card can reach them any more.
    pub(super) fn wind_up(&mut self, now_ps: u64) -> Result<bool> {
        let Some(running) = self.current.as_ref() else { return Ok(false) };
        let Some(Fault { since_ps, crash, .. }) = running.state.fault() else { return Ok(false) };
        let (since_ps, crashed) = (*since_ps, crash.is_some());
        self.parts.driver.cancel_reads();
        let receives = running.state.sides().is_some_and(|sides| !sides.receiving.is_over());
        let sends = running.state.is_sending();
        if !crashed && sends && self.parts.send.is_free()? && !self.parts.send.is_closing() {
            self.parts.send.close()?;
        }
        // Others must know why this rank goes before they see that it has gone.
        let over = !receives && !sends && !self.parts.copier.is_busy() && self.parts.driver.is_quiet();
        // A dead process will not answer. What it has posted may still be sent, and what it has armed be written to:
        // the buffers stay here.
        if !over && !crashed && now_ps.saturating_sub(since_ps) <= WORKER_PS {
            return Ok(false);
        }
        let Some(mut running) = self.current.take() else { return Ok(false) };
        if running.algorithm.is_direct() {
            // With its queue pairs ends what its card still does; the communicator has no other operation.
            self.parts.pairs.group = None;
        }
        self.parts.receive.disarm(&mut running.receive);
        let name = running.name();
        let Running { request, send, copied, receive, report, state, setup, .. } = running;
        let State::Failing { fault: Fault { failure, crash, .. }, .. } = state else { return Ok(false) };
        let error = crash.map_or_else(|| self.core.requests.failed(name, failure, None), Error::Flexio);
        let failed = if over {
            // Peers may hold its key: the next owner of these bytes gets another one.
            let renew = |buffer: Buffer| buffer.renewed(self.card.pd());
            Failed { error, send: send.map(renew).transpose()?, receive: Some(renew(receive)?), report }
        } else {
            self.lost.extend(send.into_iter().chain(copied));
            self.lost.push(receive);
            Failed { error, send: None, receive: None, report }
        };
        self.core.requests.finish(request, Err(SetupOperation::failed(setup, failed)));
        Ok(true)
    }

    /// Ends the current operation, which could not be started.
    pub(super) fn end_unstarted(&mut self, error: Error) {
        let Some(request) = self.current.as_ref().map(|running| running.request) else { return };
        let failed = self.withdraw(error);
        self.core.requests.finish(request, Err(failed));
    }
}
