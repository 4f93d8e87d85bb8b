//! Memory: registrations that are kept, copies that the card makes, and the nodes on which threads work.

pub mod nodes;
pub mod registration;
pub(crate) mod watch;
