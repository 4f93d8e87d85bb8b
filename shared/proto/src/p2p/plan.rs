//! Plan of an algorithm: for each rank a list of messages that it sends and a list of those that it receives.
//!
//! Both are functions of the rank's place, so that nothing is stored. A send may depend on arrivals, and always on the
//! *first* so many of the list: that is what lets one machine run them all (`Schedule`).

use super::blocks::Span;

/// A message to send: blocks, which go to the same place in the receiver's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The receiver.
    pub to: u32,
    /// What to send.
    pub blocks: Span,
    /// The message's number among all that the receiver gets, from 0; to be carried with it.
    pub tag: u32,
    /// How many messages must have arrived here before: those with tags below.
    pub after: u32,
}

/// A message to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// The sender.
    pub from: u32,
    /// What it brings.
    pub blocks: Span,
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
}
