//! Interface of the protocol's drivers.
//!
//! A driver runs the protocol's state machine of a communicator, here (`host`) or on the card (`device`). The engine
//! gives it operations, notifies it of what the card's workers have done, and carries out its steps. It does not know
//! which one it has.

use std::fmt;

use flexcast_abi::ReceiveView;
use flexcast_proto::sequencer::Turn;
use flexcast_proto::wire::Availability;
use flexcast_proto::{Disagreement, OperationDescriptor, PieceSet};

use crate::carrier::control::Read;
use crate::carrier::dpa::card::DpaCard;
use crate::carrier::dpa::send::Send as SendThreads;
use crate::carrier::endpoint::Endpoint;
use crate::carrier::endpoint::Ends;
use crate::engine::eager::Gathered;
use crate::engine::notice::{Notice, Step};
use crate::error::Result;
use crate::op::config::Config;
use crate::op::report::{MessageCounts, Report};
use crate::plan::Plan;

/// Queue pairs of a rank's connections: rank and number of each.
#[derive(Debug)]
pub(crate) struct QueuePairs {
    /// The card's, which carry control messages; none where the host runs the protocol.
    pub(crate) control: Vec<(u32, u32)>,
    /// Those by which peers read, and which read from them: the host's, or where the card runs the protocol, the card's
    /// to the left neighbour and the host's for the right one.
    pub(crate) ends: Vec<Ends>,
    /// Address and key of the memory that peers write eager data to; zeros where it rides on the messages.
    pub(crate) rows: (u64, u32),
}

/// What connects a driver to its peers.
#[derive(Clone, Copy)]
pub(crate) struct Connect<'c> {
    pub(crate) card: &'c DpaCard,
    pub(crate) config: &'c Config,
    /// Endpoints of all ranks, in order.
    pub(crate) all: &'c [Endpoint],
    /// The communicator's id, alike on all ranks.
    pub(crate) communicator: u64,
    /// Number of the first operation.
    pub(crate) first_operation: u32,
    /// The receive contexts, as the card's progress thread sees them.
    pub(crate) views: &'c [ReceiveView],
}

/// An operation that begins.
pub(crate) struct Posting<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) config: &'p Config,
    pub(crate) descriptor: OperationDescriptor,
    /// The rank's turn to multicast; none if it is no root.
    pub(crate) turn: Option<Turn>,
    /// Address and local key of the own block.
    pub(crate) source: (u64, u32),
    /// Where peers may read what they have lost.
    pub(crate) here: Availability,
    /// Local key of the same buffer.
    pub(crate) lkey: u32,
    pub(crate) collective_id: u32,
    /// Number of the operation among those of the receive contexts.
    pub(crate) receive_sequence: u64,
}

/// A driver of the protocol's state machine.
pub(crate) trait Driver: fmt::Debug + Send {
    fn queue_pairs(&self) -> QueuePairs;

    /// Connects to the peers. `senders`: activation ids of the send threads.
    fn connect(&mut self, connect: Connect<'_>, senders: &[u32]) -> Result<()>;

    /// Number of the operation that is posted next.
    fn operation(&self) -> u32;

    /// Whether an operation may start before the own block is in the receive buffer. Then it is notified of it
    /// ([`Notice::OwnBlock`]); otherwise the driver takes it as delivered from the start.
    fn takes_late_copies(&self) -> bool;

    /// Whether messages of the next operations may be lost.
    fn expect_losses(&mut self, expected: bool);

    /// Takes an operation that the receive contexts have just been given, and gives the send threads what they can know
    /// of it. Returns whether that is all: they send without another command, when it is this rank's turn.
    fn start(&mut self, posting: &Posting<'_>, send: &mut SendThreads) -> Result<bool>;

    /// Most bytes of all blocks of an operation that this driver carries on its barrier ([`Driver::start_eager`]); at
    /// most half of them on one message.
    fn eager_bytes(&self) -> u64;

    /// Takes an operation whose blocks are so short that they ride on the barrier: workers have no part in it.
    /// `gathered` has the own one.
    fn start_eager(&mut self, descriptor: OperationDescriptor, gathered: Gathered, now_ps: u64) -> Result<()>;

    /// The blocks of an eager operation that is over, as [`Driver::start_eager`] was given them.
    fn take_eager(&mut self) -> Result<Option<Gathered>>;

    /// Takes an operation whose data goes over connections of its own, which the driver knows nothing of: it is
    /// notified of how far it is ([`Notice::Transferred`]), and compares what ranks have called with those that signal
    /// a barrier. Never with the protocol on the card.
    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64);

    /// Takes note of what has happened on this rank.
    fn notify(&mut self, now_ps: u64, notice: Notice);

    /// Takes what has come from peers, and from the card if the state machine is there. Returns whether there was
    /// anything.
    fn poll(&mut self, now_ps: u64) -> Result<bool>;

    /// The next thing to do; to be called until there is none, after everything that has happened.
    fn next(&mut self) -> Result<Option<Step>>;

    /// Whether it has lost pieces read while multicast goes on, or while receive contexts close ([`Notice::Lost`]).
    fn repairs_beside(&self) -> bool;

    /// Whether the right neighbour waits for pieces that are not known to be whole here.
    fn owes(&self) -> bool;

    /// Reads ranges of pieces from a peer, none if nothing is missing of them, and then counts the pieces as whole. The
    /// tag of the reads is the number of the first piece.
    fn fetch(&mut self, pieces: PieceSet, reads: &[Read]) -> Result<()>;

    /// Has sent what waited for room, and peers probed that do not answer.
    fn flush(&mut self, now_ps: u64) -> Result<()>;

    /// When [`Driver::flush`] is to be called whether anything has happened or not, in picoseconds of the card's clock.
    fn flush_ps(&self) -> Option<u64>;

    /// When [`Notice::Time`] is due, in picoseconds of the card's clock.
    fn deadline_ps(&self) -> Option<u64>;

    /// When the barrier of the current operation was passed, in picoseconds of the card's clock.
    fn ready_ps(&self) -> Option<u64>;

    /// Whether multicast is over for the right neighbour, as far as the driver knows.
    fn is_over_for_neighbour(&self) -> bool;

    /// Enters what the protocol knows of the current operation into its report.
    fn note(&self, now_ps: u64, report: &mut Report);

    /// Whether the card has written that the operation posted last is over. False where the card does not know.
    fn is_flagged(&self) -> Result<bool>;

    /// Control messages sent so far.
    fn messages(&self) -> MessageCounts;

    /// What this rank and another have called, if that differs.
    fn disagreement(&self) -> Option<Disagreement>;

    /// Forgets reads that have not begun.
    fn cancel_reads(&mut self);

    /// Whether messages of this host wait for room in a queue of the card.
    fn is_waiting(&self) -> bool {
        false
    }

    /// See [`Datapath::may_be_left`](crate::carrier::datapath::Datapath::may_be_left).
    fn may_be_left(&self) -> bool {
        true
    }

    /// Whether no read is under way, and all messages of this host have been acknowledged.
    fn is_quiet(&self) -> bool;
}
