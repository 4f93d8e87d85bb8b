//! Collectives between pairs of ranks, over reliable connections of an RDMA card: what all carriers over such cards
//! share.
//!
//! A communicator has no connections between all pairs of its ranks at first, since four queue pairs for each other
//! rank are many and not every program needs them. Its first such collective makes them ([`connect`]): the ranks send
//! one another their queue pairs by an Allgather, which goes by what the communicator has anyway, and which carries the
//! collective's own arguments to be compared ([`setup`]). From then on a collective is handed to a
//! [`Group`](crate::p2p::Group) of these connections ([`exchange`]). A Barrier needs none: the carrier's own barrier is
//! one.
//!
//! A sparse AllReduce has connections of its own ([`sparse`]), which its first call makes in the same way, and it
//! begins with a barrier, by which its arguments are compared: its messages have no room for that.
//!
//! A carrier with such connections is a [`PairCarrier`] ([`engine`]). Deadlines, failures and what other ranks send of
//! them are the engine's and the protocol's, as with every other operation.

mod connect;
mod engine;
mod exchange;
mod setup;
mod sparse;

pub(crate) use connect::{Maker, Refusal, unconnected};
pub(crate) use engine::{PairCarrier, begin_collective, finish, may_end, poll};
pub(crate) use exchange::{Work, blame, called};
pub(crate) use setup::{SetupOperation, Way};
pub(crate) use sparse::Adders;

use self::sparse::Session;
use crate::engine::event::Event;
use crate::op::buffer::Buffer;
use crate::p2p::Group;

/// What the protocol is to be notified of, in this order.
pub(crate) type News = [Option<Event<'static>>; 2];

/// Nothing.
const NO_NEWS: News = [None; 2];

/// A communicator's connections between pairs of ranks.
#[derive(Debug)]
pub(crate) struct Pairs {
    /// Dropped before the buffers that peers reach by it; none before it is made, and after a failure.
    pub(crate) group: Option<Group>,
    /// Whether it has connections between all pairs.
    is_complete: bool,
    /// Connections for sparse AllReduces, if there has been one: with aggregators on processors, and on DPAs.
    sessions: [Option<Session>; 2],
    /// What an Alltoall in place sends from: what comes replaces it in the user's buffer.
    kept: Option<Buffer>,
    maker: Maker,
}

impl Pairs {
    /// With the connections that there are from the beginning, if any.
    pub(crate) const fn new(maker: Maker, group: Option<Group>) -> Self {
        Self { group, is_complete: false, sessions: [None, None], kept: None, maker }
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
