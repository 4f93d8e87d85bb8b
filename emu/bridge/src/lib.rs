//! Joins an emulated card to others outside the process, and makes the machine of programs that cannot call Rust.
//!
//! - [`MachineFile`] is a machine written down: TOML, named by the environment variable [`VARIABLE`].
//! - [`Wire`] carries whole RoCEv2 Ethernet frames in UDP datagrams to its neighbours, to each in order and at the pace at which
//!   it takes them.
//! - [`Bridge`] lets the machine run by itself: virtual time follows the wall clock and never overtakes it, frames that leave
//!   the machine go to the neighbours, theirs arrive. A thread does so while the program does something else.
//! - [`with_world`] and [`relax`] are those of `emu_machine`, with the shared machine made from the file.
//!
//! All clocks and sockets of the emulator are here. Figures of a bridged run are *measured*: they say how fast the emulator
//! and the computer are, nothing of a card.

mod bridge;
mod datagram;
mod file;
mod herald;
mod joint;
mod keeper;
mod pace;
mod peer;
mod process;
mod shared;
mod wire;

pub use bridge::{Bridge, BridgeCounters};
pub use file::{FileError, LinkTable, MachineFile, MemoryTable, NetworkTable};
pub use herald::{RACES_VARIABLE, races, tell_races};
pub use joint::{BridgeTable, MOST_TIMEOUT_MS, PeerTable};
pub use peer::Neighbour;
pub use shared::{INLINE, PATIENCE, VARIABLE, is_driven, leave, relax, will_sleep, with_world};
pub use wire::{Wire, WireCounters};
