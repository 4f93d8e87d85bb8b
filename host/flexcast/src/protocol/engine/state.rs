//! State of a communicator: its operations, and what carries them out.

use std::collections::VecDeque;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::{Alpha, CollectiveIds, Failure, RankInfo, StallWindow};

use super::Running;
use crate::api::buffer::Buffer;
use crate::api::card::Card;
use crate::api::config::{Config, Derived};
use crate::api::outcome::{Failed, Outcome};
use crate::api::report::Report;
use crate::dpa::receive::Receive;
use crate::dpa::send::Send;
use crate::error::{Error, Result};
use crate::memory::copier::Copier;
use crate::p2p::Group;
use crate::plan::Plan;
use crate::protocol::driver::Driver;
use crate::tuner::{Backoff, Conditions, Losses, Slowness};

/// The queues and threads of a communicator. Dropped as one: what can reach memory before the memory.
pub(crate) struct Parts {
    pub(crate) driver: Box<dyn Driver>,
    /// Connections for operations that go by neither multicast nor the barrier; none if they cannot be chosen, or after a failure.
    pub(crate) direct: Option<Group>,
    pub(crate) send: Send,
    pub(crate) receive: Receive,
    pub(crate) copier: Copier,
    pub(crate) _units: Units,
}

/// The execution units of a communicator, given back when it is dropped.
pub(crate) struct Units {
    pub(crate) card: Card,
    pub(crate) units: Vec<u32>,
    pub(crate) hot_bytes: u64,
}

impl Drop for Units {
    fn drop(&mut self) {
        let mut all = self.card.units();
        all.give_back(&self.units);
        all.hot_bytes -= self.hot_bytes;
    }
}

/// What a communicator locks: all that changes.
pub(crate) struct Engine {
    pub(crate) parts: Parts,
    // Buffers come after everything of the card that can reach them.
    pub(crate) current: Option<Running>,
    pub(crate) waiting: VecDeque<Posted>,
    /// Finished operations that nobody has asked for yet, by request.
    pub(crate) done: Vec<(u64, Outcome)>,
    /// Operations that nobody will ask for.
    pub(crate) abandoned: Vec<u64>,
    /// An operation has ended, or a library call failed, since this was last taken.
    pub(crate) ended: bool,
    /// A library call has failed.
    pub(crate) useless: bool,
    /// Buffers that the card may still reach.
    pub(crate) lost: Vec<Buffer>,
    pub(crate) card: Card,
    pub(crate) config: Config,
    pub(crate) derived: Derived,
    /// What the choice of an algorithm follows from, beside the operation.
    pub(crate) conditions: Conditions,
    /// Whether operations keep off their connections.
    pub(crate) backoff: Backoff,
    pub(crate) slowness: Slowness,
    pub(crate) place: RankInfo,
    pub(crate) id: u64,
    pub(crate) ids: CollectiveIds,
    pub(crate) alpha: Alpha,
    pub(crate) stall: StallWindow,
    pub(crate) losses: Losses,
    /// Chunks discarded as late or foreign by the end of the last operation, if that was cut off.
    pub(crate) late_chunks: Option<u64>,
    pub(crate) broken: Option<Failure>,
    /// Why the progress thread has ended; the next call of `progress` returns it.
    pub(crate) fault: Option<Error>,
    /// When the driver was last polled.
    pub(crate) polled_ps: u64,
    /// The driver was notified of something, or has polled something, between two calls of `progress`.
    pub(crate) notified: bool,
    pub(crate) posted: u64,
}

/// An operation that waits for its turn.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) request: u64,
    pub(crate) plan: Plan,
    pub(crate) send: Option<Buffer>,
    pub(crate) receive: Buffer,
    pub(crate) posted_ps: u64,
}

impl Posted {
    /// Gives the buffers back of an operation that the card has nothing of.
    pub(super) fn refuse(self, error: Error) -> Box<Failed> {
        let Self { send, receive, .. } = self;
        Box::new(Failed { error, send, receive: Some(receive), report: Report::default() })
    }
}

impl Engine {
    pub(crate) fn receive_statistics(&self) -> Result<Statistics> {
        self.parts.receive.statistics()
    }

    pub(crate) fn send_statistics(&self) -> Result<SendReport> {
        self.parts.send.report()
    }

    pub(crate) fn is_flagged(&self) -> Result<bool> {
        self.parts.driver.is_flagged()
    }

    pub(crate) fn is_done(&self, request: u64) -> bool {
        self.done.iter().any(|(number, _)| *number == request)
    }

    /// The end of an operation, which is given once.
    pub(crate) fn take_done(&mut self, request: u64) -> Option<Outcome> {
        let at = self.done.iter().position(|(number, _)| *number == request)?;
        Some(self.done.swap_remove(at).1)
    }

    /// Nobody will ask for the end of an operation: its buffers are dropped then.
    pub(crate) fn abandon(&mut self, request: u64) {
        if self.take_done(request).is_none() {
            self.abandoned.push(request);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    pub(crate) fn finish(&mut self, request: u64, outcome: Outcome) {
        self.ended = true;
        match self.abandoned.iter().position(|abandoned| *abandoned == request) {
            Some(at) => _ = self.abandoned.swap_remove(at),
            None => self.done.push((request, outcome)),
        }
    }

    /// Refuses what waits for its turn.
    pub(crate) fn refuse_waiting(&mut self, failure: Failure) {
        for Posted { request, send, receive, .. } in std::mem::take(&mut self.waiting) {
            let report = Report { failure: Some(failure), ..Report::default() };
            let error = Error::Broken { failure };
            self.finish(request, Err(Box::new(Failed { error, send, receive: Some(receive), report })));
        }
    }
}
