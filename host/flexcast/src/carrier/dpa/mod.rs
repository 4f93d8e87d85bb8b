//! Carrier on the DPA: threads that receive and send, and the memory through which the host commands them.

pub(crate) mod card;
pub(crate) mod card_protocol;
pub(crate) mod carrier;
mod copier;
pub(crate) mod mailbox;
pub(crate) mod part;
mod protocol;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod sparse;
pub(crate) mod targets;
pub(crate) mod waiter;
