//! The engine as what carries a communicator's operations.

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::{Cause, Disagreement, FailureCode};

use super::{ALL, Engine, receive};
use crate::carrier::card::{Card, Kind};
use crate::carrier::cpu::watch;
use crate::carrier::datapath::Datapath;
use crate::engine::Core;
use crate::engine::{Admission, Posted, Task};
use crate::error::Result;
use crate::op::outcome::Failed;
use crate::op::report::MessageCounts;

impl Datapath for Engine {
    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    fn card(&self) -> Card {
        Card::of(Kind::Verbs(self.card.clone()))
    }

    fn now_ps(&self) -> u64 {
        self.card.now_ps()
    }

    fn admission(&self) -> Admission {
        let psn_bits = self.derived.layout.psn_bits();
        let most_chunks = (u64::from(self.derived.bitmap_words) * 64).min(1 << psn_bits);
        Admission { registered: true, collectives: Ok(()), streams: vec![ALL], psn_bits, most_chunks }
    }

    fn is_free(&self) -> bool {
        self.current.is_none() && !self.pairs.is_busy()
    }

    fn start(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        let now_ps = self.card.now_ps();
        self.begin(posted, now_ps).inspect_err(|_| self.end_all(Cause::Device(FailureCode::NotStarted)))?;
        // The first messages go at once; what fails here is found by whoever asks next.
        if let Err(error) = self.advance() {
            self.core.set_fault(error);
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<bool> {
        self.move_on()
    }

    fn deadline_ps(&self) -> Option<u64> {
        if self.core.is_due(self.is_free()) {
            return Some(0);
        }
        let idle_ps = [self.control.probe_ps(), self.arrivals.done_ps()];
        let Some(running) = self.current.as_ref() else {
            return idle_ps.into_iter().chain([self.pairs.deadline_ps()]).flatten().min();
        };
        let stalled_ps =
            running.stalled_ps(self.stall).filter(|_| self.incoming.remaining() > 0 && running.state.is_active());
        let quiet_ps = watch::quiet_ps(running, &self.incoming, receive::QUIET_PS);
        let own = self.core.place.rank();
        let waits = running.sending.is_some_and(|sending| match sending.sent < sending.chunks {
            true => self.window.room(sending.sent) == 0,
            false => self.flow.waits(own) && !self.outgoing.is_announced(),
        });
        let window_ps = waits.then(|| self.window.deadline_ps().unwrap_or(0));
        let own_ps = Some(stalled_ps.unwrap_or(running.deadline_ps));
        let all = [own_ps, quiet_ps, window_ps, self.over_ps(), self.repeat_ps(), self.wind_up_ps()];
        all.into_iter().chain(idle_ps).flatten().min()
    }

    fn may_be_left(&self) -> bool {
        !self.control.is_restarting()
    }

    fn fail_here(&mut self, cause: Cause) {
        self.end_all(cause);
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.conversation.disagreement()
    }

    fn messages(&self) -> MessageCounts {
        self.conversation.messages()
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        Ok(self.statistics)
    }

    fn send_statistics(&self) -> Result<SendReport> {
        Ok(self.sent)
    }
}
