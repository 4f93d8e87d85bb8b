//! Plan of an algorithm: for each rank a list of messages that it sends, a list of those that it receives, and a list
//! of reductions.
//!
//! All are functions of the rank's place, so that nothing is stored. A send may depend on arrivals, and always on the
//! *first* so many of the list, and so may a reduction: that is what lets one machine run them all (`Schedule`).

use super::blocks::Span;
use super::layout::Part;
use super::reduction::{Reduction, Start};

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The receiver.
    pub to: u32,
    /// What to send: blocks of the own buffers.
    pub source: Part,
    /// Where it goes: as many bytes of the receiver's buffers, by the receiver's division.
    pub target: Part,
    /// The message's number among all that the receiver gets, from 0; to be carried with it.
    pub tag: u32,
    /// How many messages must have arrived here before: those with tags below.
    pub after: u32,
}

impl Transfer {
    /// A message from receive buffer to receive buffer, at the same place in both.
    pub(super) const fn in_place(to: u32, blocks: Span, tag: u32, after: u32) -> Self {
        Self { to, source: Part::receive(blocks), target: Part::receive(blocks), tag, after }
    }
}

/// A message to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// The sender.
    pub from: u32,
    /// Where it comes to lie.
    pub target: Part,
}

impl Arrival {
    /// A message into the receive buffer.
    pub(super) const fn receive(from: u32, blocks: Span) -> Self {
        Self { from, target: Part::receive(blocks) }
    }
}

/// A reduction, once the first `after` messages have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub(super) after: u32,
    pub(super) reduction: Reduction,
}

/// One rank's part of an algorithm. Messages of one connection are sent, and arrive, in the order of their tags.
pub(super) trait Plan {
    /// Number of messages that this rank sends.
    fn sends(&self) -> u32;

    /// One of them, by its number; they are to be sent in order.
    fn send(&self, index: u32) -> Transfer;

    /// Number of messages that this rank receives.
    fn receives(&self) -> u32;

    /// One of them, by its tag.
    fn receive(&self, tag: u32) -> Arrival;

    /// A reduction by its number; they are made in order, each before the sends that depend on as many messages. None
    /// behind the last.
    fn reduction(&self, _index: u32) -> Option<Step> {
        None
    }

    /// The part of the contribution that goes nowhere but to this rank's own result.
    fn start(&self) -> Option<Start> {
        None
    }
}
