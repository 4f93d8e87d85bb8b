//! Memory: registrations that are kept, and copies that the card makes.

pub(crate) mod copier;
pub mod registration;
pub(crate) mod watch;
