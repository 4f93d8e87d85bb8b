//! Datapath on the DPA: threads that receive and send, and the memory through which the host commands them.

pub(crate) mod card;
mod copier;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod engine;
mod host;
pub(crate) mod mailbox;
pub(crate) mod part;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod sparse;
pub(crate) mod targets;
pub(crate) mod waiter;
