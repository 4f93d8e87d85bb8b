//! State of a communicator: its operations, and what carries them out.

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::{Alpha, Cause, CollectiveIds, Disagreement, StallWindow};

use super::Running;
use crate::carrier::card::{Card, Kind};
use crate::carrier::datapath::Datapath;
use crate::carrier::dpa::card::{DpaCard, TakenUnits};
use crate::carrier::dpa::copier::Copier;
use crate::carrier::dpa::driver::Driver;
use crate::carrier::dpa::receive::Receive;
use crate::carrier::dpa::send::Send;
use crate::carrier::pairs::Pairs;
use crate::engine::Core;
use crate::engine::eager::Gathered;
use crate::engine::{Admission, Posted, Task};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::config::{Control, Derived};
use crate::op::outcome::Failed;
use crate::op::report::MessageCounts;
use crate::op::stream;
use crate::plan::tuner::{Backoff, Conditions, Losses, Slowness};

/// The queues and threads of a communicator. Dropped as one: what can reach memory before the memory.
pub(crate) struct Parts {
    pub(crate) driver: Box<dyn Driver>,
    /// Connections for operations that go by neither multicast nor the barrier.
    pub(crate) pairs: Pairs,
    pub(crate) send: Send,
    pub(crate) receive: Receive,
    pub(crate) copier: Copier,
    pub(crate) _units: TakenUnits,
}

/// What a communicator locks: all that changes.
pub(crate) struct Engine {
    pub(crate) parts: Parts,
    /// Room for the blocks of eager operations.
    pub(crate) gathered: Gathered,
    // Buffers come after everything of the card that can reach them.
    pub(crate) current: Option<Running>,
    pub(crate) core: Core,
    /// Buffers that the card may still reach.
    pub(crate) lost: Vec<Buffer>,
    pub(crate) card: DpaCard,
    pub(crate) derived: Derived,
    /// What the choice of an algorithm follows from, beside the operation.
    pub(crate) conditions: Conditions,
    /// Whether operations keep off their connections.
    pub(crate) backoff: Backoff,
    pub(crate) slowness: Slowness,
    pub(crate) ids: CollectiveIds,
    pub(crate) alpha: Alpha,
    pub(crate) stall: StallWindow,
    pub(crate) losses: Losses,
    /// Chunks discarded as late or foreign by the end of the last operation, if that was cut off.
    pub(crate) late_chunks: Option<u64>,
    /// When the driver was last polled.
    pub(crate) polled_ps: u64,
    /// The driver was notified of something, or has polled something, between two calls of `progress`.
    pub(crate) notified: bool,
}

impl Datapath for Engine {
    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    fn card(&self) -> Card {
        Card::of(Kind::Dpa(self.card.clone()))
    }

    fn now_ps(&self) -> u64 {
        self.card.now_ps()
    }

    fn admission(&self) -> Admission {
        let psn_bits = self.derived.layout.psn_bits();
        let most_chunks = (u64::from(self.derived.bitmap_words) * 64).min(1 << psn_bits);
        let streams =
            stream::received(self.core.config.transport, self.core.config.subgroups, self.core.place).collect();
        let refusal =
            "is carried by the hosts, but the protocol runs on the card (control = device): set control to host";
        let collectives = if self.core.config.control == Control::Device { Err(refusal) } else { Ok(()) };
        Admission { registered: true, collectives, streams, psn_bits, most_chunks }
    }

    fn is_free(&self) -> bool {
        self.current.is_none() && !self.parts.pairs.is_busy()
    }

    fn start(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        self.begin(posted)
    }

    fn advance(&mut self) -> Result<bool> {
        self.move_on()
    }

    fn deadline_ps(&self) -> Option<u64> {
        self.next_ps()
    }

    fn may_be_left(&self) -> bool {
        self.parts.driver.may_be_left()
    }

    fn fail_here(&mut self, cause: Cause) {
        self.end_all(cause);
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.parts.driver.disagreement()
    }

    fn messages(&self) -> MessageCounts {
        self.parts.driver.messages()
    }

    fn is_flagged(&self) -> Result<bool> {
        self.parts.driver.is_flagged()
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        self.parts.receive.statistics()
    }

    fn send_statistics(&self) -> Result<SendReport> {
        self.parts.send.report()
    }
}
