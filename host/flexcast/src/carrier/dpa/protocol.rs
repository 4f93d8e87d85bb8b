//! Protocol of a communicator over a card: on this host, or on the card's progress thread.

use flexcast_abi::ReceiveView;
use flexcast_proto::sequencer::Turn;
use flexcast_proto::wire::{Availability, Encoded};
use flexcast_proto::{Action, Disagreement, Message, OperationDescriptor, RankInfo};

use super::card::DpaCard;
use super::card_protocol::CardProtocol;
use crate::carrier::connect_info::{ConnectInfo, Ends};
use crate::engine::Protocol;
use crate::engine::conversation::Conversation;
use crate::engine::eager::Gathered;
use crate::engine::event::Event;
use crate::error::Result;
use crate::op::config::Config;
use crate::op::report::{MessageCounts, Report};

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

/// What connects the card's progress thread to its peers.
#[derive(Clone, Copy)]
pub(crate) struct Connect<'c> {
    pub(crate) card: &'c DpaCard,
    pub(crate) config: &'c Config,
    /// Connection information of all ranks, in order.
    pub(crate) all: &'c [ConnectInfo],
    /// The communicator's id, alike on all ranks.
    pub(crate) communicator: u64,
    /// Number of the first operation.
    pub(crate) first_operation: u32,
    /// The receive contexts, as the card's progress thread sees them.
    pub(crate) views: &'c [ReceiveView],
}

/// An operation that the card's progress thread takes.
pub(crate) struct Posting {
    pub(crate) descriptor: OperationDescriptor,
    /// The rank's turn to multicast; none if it is no root.
    pub(crate) turn: Option<Turn>,
    /// Where peers may read what they have lost.
    pub(crate) here: Availability,
    /// Local key of the same buffer.
    pub(crate) lkey: u32,
    /// Number of the operation among those of the receive contexts.
    pub(crate) receive_sequence: u64,
    /// The same of the send threads; 0 if this rank does not send.
    pub(crate) send_sequence: u64,
}

/// Who runs the protocol.
#[derive(Debug)]
pub(crate) enum DpaProtocol {
    /// This host.
    Host(Box<Conversation>),
    /// The card's progress thread.
    Card(Box<CardProtocol>),
}

impl DpaProtocol {
    /// The host's, before operation number `first`. Blocks of up to `eager_bytes` in all may ride on the barrier.
    pub(crate) fn on_host(place: RankInfo, first: u32, eager_bytes: u64) -> Self {
        Self::Host(Box::new(Conversation::new(place, first, eager_bytes)))
    }

    /// Whether this host runs the protocol. Then an operation may start before the own block is in the receive buffer
    /// ([`Event::OwnBlock`]), and lost pieces are read while multicast goes on or receive contexts close
    /// ([`Event::Lost`]). A protocol on the card would have to be notified by the host, which is to have nothing to do
    /// before the end: it sees by itself when its receive contexts are complete, and is notified of a cutoff once they
    /// cannot be any more.
    pub(crate) const fn is_on_host(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// Whoever runs it.
    fn runner(&self) -> &dyn Protocol {
        match self {
            Self::Host(conversation) => &**conversation,
            Self::Card(card) => &**card,
        }
    }

    fn runner_mut(&mut self) -> &mut dyn Protocol {
        match self {
            Self::Host(conversation) => &mut **conversation,
            Self::Card(card) => &mut **card,
        }
    }

    /// Whether the right neighbour waits for pieces that are not known to be whole here.
    pub(crate) fn owes(&self) -> bool {
        match self {
            Self::Host(conversation) => conversation.participant().owes(),
            Self::Card(_) => false,
        }
    }

    /// When the barrier of the current operation was passed, in picoseconds of the card's clock.
    pub(crate) fn ready_ps(&self) -> Option<u64> {
        match self {
            Self::Host(conversation) => conversation.participant().ready_ps(),
            Self::Card(card) => card.ready_ps(),
        }
    }

    /// Whether multicast is over for the right neighbour, as far as is known.
    pub(crate) fn is_over_for_neighbour(&self) -> bool {
        match self {
            Self::Host(conversation) => conversation.participant().is_over_for_neighbour(),
            Self::Card(card) => card.is_over_for_neighbour(),
        }
    }

    /// The protocol, if this host runs it.
    pub(crate) const fn host_mut(&mut self) -> Option<&mut Conversation> {
        match self {
            Self::Host(conversation) => Some(conversation),
            Self::Card(_) => None,
        }
    }

    /// The progress thread, if it runs the protocol.
    pub(crate) const fn card(&self) -> Option<&CardProtocol> {
        match self {
            Self::Host(_) => None,
            Self::Card(card) => Some(card),
        }
    }

    /// Most bytes of all blocks of an operation that ride on the barrier.
    pub(crate) fn eager_bytes(&self) -> u64 {
        match self {
            Self::Host(conversation) => conversation.eager_bytes(),
            Self::Card(card) => card.eager_bytes(),
        }
    }
}

impl Protocol for DpaProtocol {
    fn operation(&self) -> u32 {
        self.runner().operation()
    }

    fn start_eager(&mut self, descriptor: OperationDescriptor, gathered: Gathered, now_ps: u64) -> Result<()> {
        self.runner_mut().start_eager(descriptor, gathered, now_ps)
    }

    fn take_eager(&mut self) -> Result<Option<Gathered>> {
        self.runner_mut().take_eager()
    }

    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64) {
        self.runner_mut().start_direct(descriptor, now_ps);
    }

    fn handle(&mut self, now_ps: u64, event: Event<'_>) {
        self.runner_mut().handle(now_ps, event);
    }

    fn next(&mut self) -> Option<Action> {
        self.runner_mut().next()
    }

    fn encode(&mut self, message: &Message) -> Option<(Encoded, Vec<u8>)> {
        self.runner_mut().encode(message)
    }

    fn offer(&self) -> Option<Availability> {
        self.runner().offer()
    }

    fn deadline_ps(&self) -> Option<u64> {
        self.runner().deadline_ps()
    }

    fn note(&self, now_ps: u64, report: &mut Report) {
        self.runner().note(now_ps, report);
    }

    fn messages(&self) -> MessageCounts {
        self.runner().messages()
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.runner().disagreement()
    }

    fn close(&mut self, place: RankInfo) {
        *self = Self::on_host(place, 0, 0);
    }
}
