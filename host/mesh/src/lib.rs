//! Connections of a rank to its peers, over TCP or through shared memory: control messages, reads of what multicast has
//! lost, and the messages of point-to-point collectives. There is no RDMA here.
//!
//! Frames ([`frame`]) of one connection come in the order in which they were sent. One of an operation that has not
//! begun here waits in the connection, with all behind it: ranks may be several operations ahead of one another where
//! no barrier keeps them together.
//!
//! A connection between ranks begins with a handshake under the communicator's key (`dial` on one side, `strangers` on
//! the other). It needs both of them, and frames wait until it is over. Frames over TCP have `tags` under its
//! keys, so that bytes count only if the peer has sent them on this very connection and in this order.
//!
//! What a user of this crate has to do:
//!
//! 1. [`listen`], and let the ranks exchange their addresses. [`Mesh::connect`] makes the connections of a
//!    communicator, and later ones are made when something is sent.
//! 2. Wait for [`Mesh::descriptors`], [`Mesh::shared_listeners`] and [`Mesh::deadline`], then call [`Mesh::admit`],
//!    [`Mesh::receive`] and [`Mesh::flush`]. None of them blocks. What has come goes to a [`Listener`], what is sent is
//!    taken from a [`Source`].
//! 3. Ask what has failed: [`Mesh::take_broken`] and [`Mesh::fault`].
//!
//! A program that accepts connections of several communicators has [`Strangers`] and one [`Peer`] for each connection
//! instead of a [`Mesh`].
//!
//! [`aggregator`] has the messages between workers and aggregators of sparse AllReduce that are no ranks, [`external`]
//! what workers know of these aggregators, [`memory`] the shared memory below, and [`nodes`] where threads work that
//! handle its packets.

pub mod aggregator;
mod connect;
mod dial;
mod error;
mod events;
pub mod external;
pub mod frame;
#[doc(hidden)]
pub mod hostile;
pub mod memory;
mod mesh;
pub mod nodes;
mod peer;
mod shared;
mod strangers;
mod stream;
mod tags;

pub use connect::{Connect, SharedListeners, dial_aggregator, listen};
pub use error::{Error, Result};
pub use events::{Address, Event, Fault, Interest, Listener, Read, Source, Watch};
pub use frame::{END, Frame, Head, MESSAGE, MOST_FRAME_BYTES};
pub use mesh::Mesh;
pub use peer::{NONSENSE, Peer, failure_code};
pub use shared::{Rings, SharedStream, listen as listen_shared};
pub use strangers::{Arrival, Host, Reached, Strangers, Turned};
pub use stream::Stream;
