//! Errors of collectives over reliable connections, with the rank concerned.

use flexcast_proto::p2p::{BlocksError, MessageError, ScheduleError};
use flexcast_proto::{RankError, Summary};

/// Any failure of a point-to-point collective.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter outside its range.
    #[error("{what} is {value}: must be {limit}")]
    OutOfRange {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        limit: String,
    },
    /// The operation is none.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// There is no such rank.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// The buffer cannot be divided like this.
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    /// The card or its library refused something.
    #[error(transparent)]
    Flexio(#[from] flexio::Error),
    /// What a rank sent of its queue pairs cannot be used.
    #[error("connection information of rank {rank}: {reason}")]
    ConnectInfo {
        /// Whose it is.
        rank: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// The group was prepared for other operations.
    #[error(
        "rank {peer} gets or sends {messages} messages, but the connection is for {limit}: prepare the group for it"
    )]
    NotConnected {
        /// The peer.
        peer: u32,
        /// Messages of the operation in one direction.
        messages: u32,
        /// What there are receives for; 0 without a connection.
        limit: u32,
    },
    /// One at a time.
    #[error("operation {operation} is not complete: drive it to its end before the next")]
    Busy {
        /// Its number.
        operation: u32,
    },
    /// After a failure the state of the connections is not known.
    #[error("an earlier operation of this group has failed: make a new one")]
    Failed,
    /// A peer runs another operation.
    #[error("rank {peer} runs {theirs}, but this rank {own}: all ranks must call the same with the same arguments")]
    Mismatch {
        /// The peer.
        peer: u32,
        /// What it runs.
        theirs: String,
        /// What this rank runs.
        own: String,
        /// Kind, root and bytes of the Broadcast or Allgather that the peer runs; none if it runs something else, or
        /// that cannot be derived.
        peer_blocks: Option<Summary>,
        /// What a communicator's call on the peer was; none if it is none.
        peer_call: Option<Summary>,
        /// Bytes that go between the two, by the peer's call and by this rank's.
        bytes: [u64; 2],
    },
    /// A peer sent what it should not.
    #[error("from rank {peer}: {reason}")]
    Protocol {
        /// The peer.
        peer: u32,
        /// What it was.
        reason: String,
    },
    /// At the other end of a connection there is not the rank that was meant.
    #[error(
        "the other end of the connection to rank {peer} is not the rank that was meant: {came}; give all ranks the \
         same connection information, of one start of each rank"
    )]
    WrongPeer {
        /// The rank that was meant.
        peer: u32,
        /// What came.
        came: String,
    },
    /// A message that is not due.
    #[error("operation {operation}: a message that is not due")]
    Message {
        /// Its number.
        operation: u32,
        /// What came.
        #[source]
        source: MessageError,
    },
    /// A connection broke.
    #[error("the connection to rank {peer} broke; is it still there, and its memory registered?")]
    Connection {
        /// The peer.
        peer: u32,
        /// What its completion says.
        #[source]
        source: flexio::Error,
    },
    /// Nothing happened for too long.
    #[error(
        "operation {operation}: waited {waited_us} us ({polls} polls) for {what} of rank {peer}; is it still there?"
    )]
    Timeout {
        /// The operation's number.
        operation: u32,
        /// Who owes the first thing that is missing.
        peer: u32,
        /// What that is.
        what: &'static str,
        /// Time without progress, by the provider's clock.
        waited_us: u64,
        /// Polls of the completion queue in vain.
        polls: u64,
    },
}

flexcast_error::debug_as_display!(Error);

/// A result of this part of the library.
pub(crate) type Result<T> = std::result::Result<T, Error>;
