//! Memory: registrations that are kept, and the watch over memory of the program that is freed.

pub mod registration;
pub(crate) mod watch;
