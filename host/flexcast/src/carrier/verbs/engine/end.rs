//! End of an operation: released by all, or failed.

use flexcast_proto::{Algorithm, Cause, Failure};

use super::{Engine, Running};
use crate::carrier::cpu::operation::State;
use crate::carrier::pairs::{PairEngine as _, SetupOperation};
use crate::engine::notice::Notice;
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::outcome::{Done, Failed};

/// Longest that the card is waited for after a failure, until it is done with the buffers.
const WIND_UP_PS: u64 = 1_000_000_000_000;

impl Engine {
    /// Ends everything because of something on this rank.
    pub(super) fn end_all(&mut self, cause: Cause) {
        let own = self.core.place.rank();
        let now_ps = self.card.now_ps();
        self.conversation.notify(now_ps, Notice::Failed(Failure { failed_rank: own, detecting_rank: own, cause }));
    }

    /// The operation under way fails, and the communicator with it.
    pub(super) fn fail(&mut self, now_ps: u64, failure: Failure) {
        self.core.fail(failure, self.conversation.disagreement());
        if let Some(running) = self.current.as_mut() {
            if running.state.is_active() {
                running.report.failure = Some(failure);
                self.failed_ps = now_ps;
            }
            running.state.fail(failure);
        }
        self.pairs.fail(failure, now_ps);
        self.core.refuse_waiting(failure);
    }

    /// Ends an operation that all ranks are done with, once the card is done with its buffers.
    pub(super) fn release(&mut self, now_ps: u64) -> Result<bool> {
        // A chunk that came late may have made a piece whole that is still being read. And what this rank has said is
        // with the card before the caller may stay away.
        let is_busy = self.control.reading() || self.control.is_waiting();
        let over =
            |running: &mut Running| matches!(running.state, State::Released) && running.sending.is_none() && !is_busy;
        let Some(mut running) = self.current.take_if(over) else { return Ok(false) };
        running.finish(now_ps, &mut self.conversation, &mut self.gathered)?;
        if running.algorithm != Algorithm::Eager {
            let config = &self.core.config;
            running.observe(config, config, &mut self.alpha, &mut self.stall);
            self.pass(&running);
            self.losses.note(running.report.recovered_chunks > 0 || running.report.fetches_served > 0);
        }
        running.report.late_chunks = self.incoming.late();
        self.free_id(now_ps);
        let Running { request, send, receive, report, setup, .. } = running;
        match setup {
            Some(setup) => self.finish_setup(*setup, (request, send, receive, report), now_ps),
            None => self.core.requests.finish(request, Ok(Done { send, receive, report })),
        }
        Ok(true)
    }

    /// After a failure: gives the buffers back once nothing of the card can reach them any more.
    pub(super) fn wind_up(&mut self, now_ps: u64) -> Result<bool> {
        let Some(State::Failed(failure)) = self.current.as_ref().map(|running| running.state) else { return Ok(false) };
        self.control.cancel_reads();
        // Others must know why this rank goes before they see that it has gone.
        let over =
            self.queues.completed() == self.queues.posted() && !self.control.reading() && self.control.is_drained();
        if !over && now_ps.saturating_sub(self.failed_ps) <= WIND_UP_PS {
            return Ok(false);
        }
        let Some(running) = self.current.take() else { return Ok(false) };
        self.collective_id = None;
        let error = self.core.requests.failed(running.name(), failure, None);
        let Running { request, send, receive, report, setup, .. } = running;
        let failed = if over {
            // Peers may hold its key: the next owner of these bytes gets another one.
            let renew = |buffer: Buffer| buffer.renewed(self.card.pd());
            Failed { error, send: send.map(renew).transpose()?, receive: Some(renew(receive)?), report }
        } else {
            self.lost.extend(send);
            self.lost.push(receive);
            Failed { error, send: None, receive: None, report }
        };
        self.core.requests.finish(request, Err(SetupOperation::failed(setup, failed)));
        Ok(true)
    }

    /// When [`Engine::wind_up`] waits no longer; none without a failure.
    pub(super) fn wind_up_ps(&self) -> Option<u64> {
        let running = self.current.as_ref()?;
        matches!(running.state, State::Failed(_)).then(|| self.failed_ps.saturating_add(WIND_UP_PS + 1))
    }
}
