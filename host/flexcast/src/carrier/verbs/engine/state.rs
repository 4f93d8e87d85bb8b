//! The engine as what carries a communicator's operations.

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::{Cause, Disagreement, FailureCode, RankInfo};

use super::{ALL, Engine, receive};
use crate::carrier::card::{Card, Kind};
use crate::carrier::cpu::watch;
use crate::carrier::datapath::Datapath;
use crate::engine::{Admission, Posted, Requests, Task};
use crate::error::{Error, Result};
use crate::op::config::Config;
use crate::op::outcome::Failed;
use crate::op::report::MessageCounts;

impl Engine {
    /// Begins an operation, or lets it wait for its turn.
    fn take_on_task(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        if !self.is_free() || !self.waiting.is_empty() {
            self.waiting.push_back(posted);
            return Ok(());
        }
        let now_ps = self.card.now_ps();
        self.begin(posted, now_ps).inspect_err(|_| self.end_all(Cause::Device(FailureCode::NotStarted)))?;
        // The first messages go at once; what fails here is found by whoever asks next.
        if let Err(error) = self.advance() {
            self.fault = Some(error);
        }
        Ok(())
    }
}

impl Datapath for Engine {
    fn place(&self) -> RankInfo {
        self.place
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn card(&self) -> Card {
        Card::of(Kind::Verbs(self.card.clone()))
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn now_ps(&self) -> u64 {
        self.card.now_ps()
    }

    fn admission(&self) -> Admission {
        let psn_bits = self.derived.layout.psn_bits();
        let most_chunks = (u64::from(self.derived.bitmap_words) * 64).min(1 << psn_bits);
        Admission { registered: true, collectives: Ok(()), streams: vec![ALL], psn_bits, most_chunks }
    }

    fn take_on(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        self.take_on_task(posted)
    }

    fn requests(&self) -> &Requests {
        &self.requests
    }

    fn progress(&mut self) -> Result<bool> {
        let moved = self.advance();
        if moved.is_err() {
            self.requests.give_up();
        }
        moved
    }

    fn deadline_ps(&self) -> Option<u64> {
        if self.fault.is_some() || (self.is_free() && !self.waiting.is_empty()) {
            return Some(0);
        }
        let idle_ps = [self.control.probe_ps(), self.arrivals.done_ps()];
        let Some(running) = self.current.as_ref() else {
            return idle_ps.into_iter().chain([self.pairs.deadline_ps()]).flatten().min();
        };
        let stalled_ps =
            running.stalled_ps(self.stall).filter(|_| self.incoming.remaining() > 0 && running.state.is_active());
        let quiet_ps = watch::quiet_ps(running, &self.incoming, receive::QUIET_PS);
        let own = self.place.rank();
        let waits = running.sending.is_some_and(|sending| match sending.sent < sending.chunks {
            true => self.window.room(sending.sent) == 0,
            false => self.flow.waits(own) && !self.outgoing.is_announced(),
        });
        let window_ps = waits.then(|| self.window.deadline_ps().unwrap_or(0));
        let own_ps = Some(stalled_ps.unwrap_or(running.deadline_ps));
        let all = [own_ps, quiet_ps, window_ps, self.over_ps(), self.repeat_ps(), self.wind_up_ps()];
        all.into_iter().chain(idle_ps).flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.is_free() && self.waiting.is_empty()
    }

    fn may_be_left(&self) -> bool {
        !self.control.is_restarting()
    }

    fn fail_here(&mut self, cause: Cause) {
        self.end_all(cause);
    }

    fn fault(&mut self, error: Error) {
        self.fault = Some(error);
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
