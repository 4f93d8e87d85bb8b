//! Offload to the service processes of a card's Arm cores; another carrier has everything else.
//!
//! Ranks agree when the communicator is made ([`set_up`]): all have their service process, or none uses any. A posted
//! operation becomes a few messages to the process ([`call`]), over memory that is leased to it ([`lease`]); its end is
//! a flag in the rank's memory ([`offload`]), or in memory that the ranks of a host share ([`segment`]). Which way an
//! operation goes all ranks decide alike ([`settings`]).

mod call;
mod fault;
mod offload;
mod returning;
mod segment;
mod set_up;
mod settings;

pub(crate) use set_up::{EXCHANGES, set_up};
