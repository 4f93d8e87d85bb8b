//! A group of ranks.

mod pending;

use std::collections::VecDeque;
use std::fmt;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::wire::Codec;
use flexcast_proto::{Alpha, CollectiveIds, Failure, Place};

pub use pending::Pending;

use crate::api::buffer::Buffer;
use crate::api::card::Card;
use crate::api::config::{Config, Derived, Footprint};
use crate::api::request::{Done, MessageCounts, Report, Request, Test};
use crate::bootstrap::Exchange;
use crate::dpa::receive::Receive;
use crate::dpa::send::Send;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::protocol::control::Control;
use crate::protocol::engine::Running;
use crate::protocol::machine::Machine;

/// The queues and threads of a communicator. Dropped as one: what can reach memory before the memory.
pub(crate) struct Parts {
    pub(crate) control: Control,
    pub(crate) machine: Machine,
    pub(crate) send: Send,
    pub(crate) receive: Receive,
    _units: Units,
}

/// The execution units of a communicator, given back when it is dropped.
struct Units {
    card: Card,
    units: Vec<u32>,
    hot_bytes: u64,
}

impl Drop for Units {
    fn drop(&mut self) {
        let mut all = self.card.units();
        all.give_back(&self.units);
        all.hot_bytes -= self.hot_bytes;
    }
}

/// Ranks that broadcast and gather among one another.
///
/// Nothing happens by itself: [`Communicator::progress`], or a test or wait that calls it, moves the protocol on. What the card does
/// (receiving, copying, sending) needs no such call. Operations of one communicator run one after another, in the order in which they
/// were posted, which must be the same on all ranks; several communicators run side by side.
pub struct Communicator {
    pub(crate) parts: Parts,
    // Buffers come after everything of the card that can reach them.
    pub(crate) current: Option<Running>,
    pub(crate) waiting: VecDeque<Posted>,
    /// Finished operations that nobody has asked for yet, by request.
    pub(crate) done: Vec<(u64, Done)>,
    /// Buffers that the card may still reach.
    pub(crate) lost: Vec<Buffer>,
    pub(crate) card: Card,
    pub(crate) config: Config,
    pub(crate) derived: Derived,
    footprint: Footprint,
    pub(crate) place: Place,
    pub(crate) id: u64,
    pub(crate) codec: Codec,
    pub(crate) ids: CollectiveIds,
    pub(crate) alpha: Alpha,
    /// Chunks discarded as late or foreign by the end of the last operation, if that was cut off.
    pub(crate) late_chunks: Option<u64>,
    pub(crate) broken: Option<Failure>,
    pub(crate) messages: MessageCounts,
    /// What went wrong while an operation was posted; the next call of `progress` tells.
    pub(crate) trouble: Option<Error>,
    /// The protocol's machine was told something between two calls of `progress`.
    pub(crate) told: bool,
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

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("place", &self.place).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Communicator {
    /// Makes a communicator of all ranks of an exchange; collective. Blocks as long as the exchange does.
    ///
    /// # Errors
    /// [`Error::Exchange`] when ranks are missing or doubled, [`Error::Peer`] when they do not fit one another or one of them could not make
    /// its part, and what [`Pending::new`] gives.
    pub fn create(card: &Card, exchange: &mut dyn Exchange, config: Config) -> Result<Self> {
        crate::api::split::found(card, exchange, config)
    }

    /// The own rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.place.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.place.ranks()
    }

    /// The card.
    #[must_use]
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Its parameters.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it takes of the card.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// Control messages sent so far.
    #[must_use]
    pub fn messages(&self) -> MessageCounts {
        self.messages
    }

    /// Counters of the receive workers, all together, as of their last report.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn receive_statistics(&self) -> Result<Statistics> {
        self.parts.receive.statistics()
    }

    /// Counters of the send workers, all together.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn send_statistics(&self) -> Result<SendReport> {
        self.parts.send.report()
    }

    /// Whether the card says that the operation posted last is over, with the protocol on the card ([`Control::Device`](crate::Control::Device)); false otherwise. Looks at a
    /// word of host memory that the card writes, and does nothing: a test or [`Communicator::progress`] takes note.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn is_flagged(&self) -> Result<bool> {
        self.parts.machine.conductor().map_or(Ok(false), |conductor| conductor.is_flagged())
    }

    /// Whether an operation is over; moves the protocol on.
    ///
    /// # Errors
    /// [`Error::ForeignRequest`]; the failure of a library call, after which the communicator is of no use.
    pub fn test(&mut self, request: Request) -> Result<Test> {
        if request.communicator != self.id {
            return Err(Error::ForeignRequest { request: request.number });
        }
        if !self.is_done(&request) {
            self.progress()?;
        }
        Ok(match self.done.iter().position(|(number, _)| *number == request.number) {
            Some(at) => Test::Done(self.done.swap_remove(at).1),
            None => Test::Pending(request),
        })
    }

    /// Whether an operation was over when the protocol was last moved on; moves nothing. False for a request of another communicator.
    #[must_use]
    pub fn is_done(&self, request: &Request) -> bool {
        request.communicator == self.id && self.done.iter().any(|(number, _)| *number == request.number)
    }

    /// Waits until an operation is over. It ends: every phase of an operation has its bound.
    ///
    /// # Errors
    /// As [`Communicator::test`].
    pub fn wait(&mut self, mut request: Request) -> Result<Done> {
        loop {
            match self.test(request)? {
                Test::Done(done) => return Ok(done),
                Test::Pending(pending) => request = pending,
            }
            self.card.device().provider().relax().relax();
        }
    }

    /// Ends all operations of the communicator, on all ranks, as failures; it cannot be used afterwards. To be followed by tests, which
    /// give the buffers back once the card has stopped.
    pub fn cancel(&mut self) {
        self.fail_here(flexcast_proto::Cause::Cancelled);
    }

    /// Whether no operation is under way or waits for its turn.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    pub(crate) fn finish(&mut self, request: u64, done: Done) {
        self.done.push((request, done));
    }

    /// Refuses what waits for its turn.
    pub(crate) fn refuse_waiting(&mut self, failure: Failure) {
        for posted in std::mem::take(&mut self.waiting) {
            let report = Report { failure: Some(failure), ..Report::default() };
            let done = Done {
                result: Err(Error::Broken { failure }),
                send: posted.send,
                receive: Some(posted.receive),
                report,
            };
            self.finish(posted.request, done);
        }
    }
}
