//! End of an operation: released by all, or failed.

use super::descriptor::activations_ps;
use super::{Close, Engine, Running, WORKER_PS};
use crate::api::buffer::Buffer;
use crate::api::outcome::{Done, Failed};
use crate::error::{Error, Result};

impl Engine {
    /// Whether chunks came after the cutoff of the operation before shows once the workers report again.
    fn notice_late_chunks(&mut self, cut_off: bool) -> Result<()> {
        let late = self.parts.receive.late_chunks()?;
        if self.late_chunks.is_some_and(|before| late > before) {
            self.alpha.came_late();
        }
        self.late_chunks = cut_off.then_some(late);
        Ok(())
    }

    pub(super) fn release(&mut self, now_ps: u64) -> Result<()> {
        let over = |running: &Running| {
            running.releasing_ps.is_some() && running.failing.is_none() && !running.sending.is_under_way()
        };
        // What others tell of where they want their bytes must not find this rank gone.
        if let Some(running) = self.current.as_ref().filter(|running| over(running))
            && !self.parts.receive.are_targets_known(running.operation)?
        {
            return Ok(());
        }
        let Some(mut running) = self.current.take_if(|running| over(running)) else { return Ok(()) };
        let phases = &mut running.report.phases.0;
        if let Some(conductor) = self.parts.machine.conductor() {
            conductor.note_phases(phases);
        }
        phases.released_ps.get_or_insert(now_ps);
        // The look that found the last byte may release it too.
        phases.complete_ps.get_or_insert(phases.received_ps.unwrap_or(now_ps));
        if let (Some(received_ps), Some(ready_ps)) = (phases.received_ps, phases.ready_ps) {
            let steps_ps = activations_ps(&running.plan, &self.config);
            let took_ps = received_ps.saturating_sub(ready_ps).saturating_sub(steps_ps);
            let bytes = running.plan.link_bytes(&self.config);
            self.alpha.observe(bytes, self.config.link_gbit_per_s, took_ps);
        }
        self.notice_late_chunks(running.close == Close::Done)?;
        self.ids.release(running.collective_id, now_ps);
        self.parts.receive.disarm(&mut running.receive);
        let Running { request, send, receive, report, .. } = running;
        self.finish(request, Ok(Done { send, receive, report }));
        Ok(())
    }

    /// After a failure: gives the buffers back once nothing of the card can reach them any more.
    pub(super) fn wind_up(&mut self, now_ps: u64) -> Result<bool> {
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        let Some((failure, since_ps)) = running.failing else { return Ok(false) };
        self.parts.control.cancel_reads();
        let crashed = running.crash.is_some();
        let contexts = running.told_ps.is_none() || running.received || running.close == Close::Done;
        if !crashed && running.sending.is_under_way() && self.parts.send.is_free()? && !self.parts.send.is_closing() {
            self.parts.send.close()?;
        }
        let sends = !running.sending.is_under_way();
        // Others must know why this rank goes before they see that it has gone.
        let over = contexts && sends && !self.parts.control.reading() && self.parts.control.is_drained();
        // A dead process will not answer. What it has posted may still be sent, and what it has armed be written to: the buffers stay here.
        if !over && !crashed && now_ps.saturating_sub(since_ps) <= WORKER_PS {
            return Ok(false);
        }
        let Some(mut running) = self.current.take() else { return Ok(false) };
        self.parts.receive.disarm(&mut running.receive);
        let Running { request, plan, send, copied, receive, report, crash, .. } = running;
        let error = crash.map_or_else(|| Error::Failed { operation: plan.kind.name(), failure }, Error::Flexio);
        let failed = if over {
            // Peers may hold its key: the next owner of these bytes gets another one.
            let renew = |buffer: Buffer| self.card.renew(buffer);
            Failed { error, send: send.map(renew).transpose()?, receive: Some(renew(receive)?), report }
        } else {
            self.lost.extend(send.into_iter().chain(copied));
            self.lost.push(receive);
            Failed { error, send: None, receive: None, report }
        };
        self.finish(request, Err(Box::new(failed)));
        Ok(true)
    }
}
