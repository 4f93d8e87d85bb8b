//! Datapath over an Ethernet interface: IP multicast, and TCP for what it has lost.
//!
//! Whoever moves the communicator on receives and sends ([`carrier`]); while nothing is to be done its thread sleeps on
//! the sockets ([`waiter`]). A root's chunks are datagrams to a group ([`datagram`], [`sockets`]), as far ahead of its
//! receivers as their socket buffers allow ([`window`](super::cpu::window)). Receivers take chunks to their places and
//! see what is lost ([`incoming`](super::cpu::incoming)); it is read from the left neighbour, over the connections that
//! carry the protocol's messages ([`mesh`](flexcast_mesh)). Ranks of one computer share memory
//! ([`memory`](flexcast_mesh::memory)): datagrams are received once for all of them ([`fanout`]).

pub(crate) mod carrier;
mod check;
pub(crate) mod datagram;
pub(crate) mod defaults;
mod fanout;
mod igmp;
pub(crate) mod interface;
mod meminfo;
mod pace;
pub(crate) mod part;
mod path;
mod pump;
pub(crate) mod sockets;
mod tap;
mod tuning_bytes;
pub(crate) mod waiter;
mod workers;

pub use check::MulticastArrival;
pub use interface::{DEFAULT_PORT, Interface, ReceiveBuffer, UdpOptions};
#[doc(hidden)]
pub use tap::{MakeTap, Tap};
