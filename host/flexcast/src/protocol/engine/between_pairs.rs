//! Collectives between pairs of ranks, over reliable connections of the host: no worker of the card has a part in them.

use flexcast_proto::Cause;

use super::{Engine, NOT_STARTED};
use crate::api::buffer::Buffer;
use crate::api::config::ps;
use crate::api::outcome::{Done, Failed};
use crate::api::report::Report;
use crate::datapath::Posted;
use crate::datapath::pairs::{Bounds, Errand, News, Refusal, Way};
use crate::error::Result;
use crate::plan::direct::Collective;
use crate::protocol::driver::Notice;
use crate::tuner::Tuning;

impl Engine {
    /// Whether no operation is under way.
    pub(super) const fn is_free(&self) -> bool {
        self.current.is_none() && !self.parts.pairs.is_busy()
    }

    /// Begins a collective, or what has to come before it.
    pub(super) fn launch_collective(&mut self, posted: Posted<Collective>, now_ps: u64) -> Result<(), Box<Failed>> {
        let table = Tuning::between_pairs();
        let decision = self.conditions.decide_collective(&table, &posted.plan, self.config.reproducible);
        if posted.plan == Collective::Barrier || self.parts.pairs.needs_connections() {
            let (posted, errand) = self.parts.pairs.errand(posted, &decision, &self.config)?;
            return self.launch_blocks(posted, Some(errand), now_ps);
        }
        let bounds = Bounds {
            operation: self.parts.driver.operation(),
            wait_ps: ps(self.config.barrier_timeout),
            repair_ps: ps(self.config.recovery_timeout),
        };
        let descriptor = self.parts.pairs.begin(posted, decision, bounds)?;
        self.parts.driver.start_direct(descriptor, now_ps);
        // What has come early may differ: then nothing is sent.
        if let Err(error) = self.carry_out(now_ps) {
            self.fault = Some(error);
        }
        let news = self.parts.pairs.start(now_ps);
        self.notified |= self.take_news(news, now_ps);
        Ok(())
    }

    fn take_news(&mut self, news: News, now_ps: u64) -> bool {
        let any = news.iter().any(Option::is_some);
        news.into_iter().flatten().for_each(|notice| self.parts.driver.notify(now_ps, notice));
        any
    }

    /// Moves the collective on that is under way. Returns whether anything has happened.
    pub(super) fn poll_pairs(&mut self, now_ps: u64) -> bool {
        let Some(deadline_ps) = self.parts.pairs.exchange.as_ref().map(|exchange| exchange.deadline_ps) else {
            return false;
        };
        let news = self.parts.pairs.poll(now_ps);
        let any = self.take_news(news, now_ps);
        self.parts.driver.notify(now_ps, Notice::Time);
        any || now_ps >= deadline_ps
    }

    /// Ends a collective that is over. Returns whether one was.
    pub(super) fn end_pairs(&mut self, now_ps: u64) -> Result<bool> {
        // What this rank has said of it is with the card before the caller may stay away.
        if !self.parts.pairs.is_busy() || (self.broken.is_none() && self.parts.driver.is_waiting()) {
            return Ok(false);
        }
        let ended = match self.parts.pairs.release(now_ps) {
            Some(ended) => Some(ended),
            None => self.parts.pairs.wind_up(self.parts.driver.is_quiet(), now_ps)?,
        };
        let Some((request, outcome)) = ended else { return Ok(false) };
        self.requests.finish(request, outcome);
        Ok(true)
    }

    /// An errand is over: what it was run for goes on, or is done.
    pub(super) fn finish_errand(
        &mut self,
        errand: Errand,
        (request, send, receive, report): (u64, Option<Buffer>, Buffer, Report),
        now_ps: u64,
    ) {
        let connecting = match errand.way {
            Way::Barrier => return self.requests.finish(request, Ok(Done { send, receive, report })),
            Way::Connect(connecting) => *connecting,
        };
        let posted = connecting.posted;
        let failed = match self.parts.pairs.connect(connecting.pending, &receive) {
            Ok(()) => match self.launch_collective(posted, now_ps) {
                Ok(()) => return,
                Err(failed) => failed,
            },
            Err(Refusal::Everywhere(error)) => return self.requests.finish(request, Err(posted.refuse(error))),
            Err(Refusal::Here(error)) => posted.refuse(error),
        };
        self.requests.finish(request, Err(failed));
        self.end_all(Cause::Device(NOT_STARTED));
    }
}
