//! Joins an emulated card to others outside the process, and makes the machine of programs that cannot call Rust.
//!
//! - [`make`] builds the machine of a description ([`emu_config::Machine`]), and starts its bridge. Programs that
//!   cannot call Rust have that of the file which the environment variable [`VARIABLE`] names.
//! - [`Wire`] carries whole RoCEv2 Ethernet frames in UDP datagrams to its peers, to each in order and at the pace at
//!   which it takes them.
//! - [`Bridge`] lets the machine run by itself: virtual time follows the wall clock and never overtakes it, frames that
//!   leave the machine go to the peers, theirs arrive. A thread does so while the program does something else.
//! - [`Remote`] and [`Session`] are the two ends of one card that several processes of a computer use: `[share]` and
//!   `[attach]` of a description.
//! - [`with_world`] and [`relax`] are those of `emu_machine`, with the shared machine made from the file.
//!
//! All clocks and sockets of the emulator are here. Figures of a bridged run are *measured*: they say how fast the
//! emulator and the computer are, nothing of a card.

mod bridge;
mod datagram;
mod driver_thread;
mod error;
mod fault_sink;
mod flush;
mod launcher;
mod limits;
mod make;
mod names;
mod pace;
mod peer;
mod peers;
mod process;
mod share;
mod shared;
mod station;
mod wire;

pub use bridge::{Bridge, BridgeCounters};
pub use error::BridgeError;
pub use fault_sink::{RACES_VARIABLE, races, report_races, say};
pub use limits::PEER_TIMEOUT_VARIABLE;
pub use make::{check, make};
pub use names::{NAMES_VARIABLE, device_names};
pub use peer::PeerConfig;
pub use peers::attempt;
pub use process::process_number;
pub use share::{
    Client, Lost, MAX_MESSAGE_BYTES, Remote, RemoteClock, Reply, Seldom, Session, ShareCounters, VERSION, serve_with,
    share_counters, take_away,
};
pub use shared::{INLINE, VARIABLE, attached, await_socket, is_driven, leave, relax, will_sleep, with_world};
pub use station::GeneratorReport;
pub use wire::{Wire, WireCounters};
