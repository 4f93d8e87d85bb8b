//! Collectives between pairs of ranks, over reliable connections of an RDMA card: what all datapaths over such cards
//! share.
//!
//! A communicator has no connections between all pairs of its ranks at first, since four queue pairs for each other
//! rank are many and not every program needs them. Its first such collective makes them ([`connect`]): the ranks tell
//! one another their queue pairs by an Allgather, which goes by what the communicator has anyway, and which carries the
//! collective's own arguments to be compared ([`setup`]). From then on a collective is handed to a
//! [`Group`](crate::p2p::Group) of these connections ([`exchange`]). A Barrier needs none: the datapath's own barrier
//! is one.
//!
//! A sparse AllReduce has connections of its own ([`sparse`]), which its first call makes in the same way, and it
//! begins with a barrier, by which its arguments are compared: its messages have no room for that.
//!
//! The engine of a datapath ([`engine`]) asks for what comes next, and notifies the protocol of it: deadlines, failures
//! and what other ranks say of them are the protocol's, as with every other operation.

mod connect;
mod engine;
mod exchange;
mod setup;
mod sparse;

pub(crate) use connect::{Maker, Refusal, unconnected};
pub(crate) use engine::PairEngine;
pub(crate) use exchange::{Bounds, blame, called};
pub(crate) use setup::{SetupOperation, Way};
pub(crate) use sparse::Adders;

use self::exchange::Exchange;
use self::sparse::Session;
use crate::engine::notice::Notice;
use crate::op::buffer::Buffer;
use crate::p2p::Group;

/// What the protocol is to be notified of, in this order.
pub(crate) type News = [Option<Notice>; 2];

/// Nothing.
const NO_NEWS: News = [None; 2];

/// A communicator's connections between pairs of ranks, and the collective that is under way on them.
#[derive(Debug)]
pub(crate) struct Pairs {
    /// Dropped before the buffers that peers reach by it; none before it is made, and after a failure.
    pub(crate) group: Option<Group>,
    /// Whether it has connections between all pairs.
    is_complete: bool,
    /// Connections for sparse AllReduces, if there has been one: with aggregators on processors, and on DPAs.
    sessions: [Option<Session>; 2],
    pub(crate) exchange: Option<Exchange>,
    /// What an Alltoall in place sends from: what comes replaces it in the user's buffer.
    kept: Option<Buffer>,
    maker: Maker,
}

impl Pairs {
    /// With the connections that there are from the beginning, if any.
    pub(crate) const fn new(maker: Maker, group: Option<Group>) -> Self {
        Self { group, is_complete: false, sessions: [None, None], exchange: None, kept: None, maker }
    }

    /// Whether a collective is under way on them.
    pub(crate) const fn is_busy(&self) -> bool {
        self.exchange.is_some()
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            group.leave(self.maker.lingering());
        }
        self.sessions.iter_mut().filter_map(Option::take).for_each(Session::leave);
    }
}
