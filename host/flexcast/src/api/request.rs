//! Operations as their caller sees them.

use std::fmt;

use flexcast_proto::Failure;

use crate::api::buffer::Buffer;
use crate::error::{Error, Result};

/// An operation under way. Test it on the communicator that made it; its buffers come back when it is done.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the buffers are in the operation: test or wait for it"]
pub struct Request {
    pub(crate) number: u64,
    pub(crate) communicator: u64,
}

/// What a test of a request gives.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an operation allocates nothing, not even for its result")]
pub enum Test {
    /// It is over.
    Done(Done),
    /// It is not; the request is given back.
    Pending(Request),
}

/// A finished operation.
#[derive(Debug)]
pub struct Done {
    /// Whether all bytes are where they should be.
    pub result: Result<()>,
    /// The send buffer, if it had one.
    ///
    /// After a failure that the card could not be made to stop for, buffers stay with the communicator until it is dropped.
    pub send: Option<Buffer>,
    /// The receive buffer, or the buffer of a Broadcast.
    pub receive: Option<Buffer>,
    /// What happened.
    pub report: Report,
}

/// An operation that was not begun: why, and its buffers. As an error it is its reason.
pub struct Refused {
    /// Why.
    pub error: Error,
    /// The send buffer.
    pub send: Option<Buffer>,
    /// The receive buffer.
    pub receive: Option<Buffer>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// When an operation got where, in picoseconds of the card's clock; `None` for what did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Posted by the user.
    pub posted_ps: u64,
    /// Workers armed: bitmaps clear, receives posted.
    pub armed_ps: Option<u64>,
    /// Barrier passed: all ranks can receive.
    pub ready_ps: Option<u64>,
    /// Own block begun to be multicast.
    pub sending_ps: Option<u64>,
    /// Own block sent.
    pub sent_ps: Option<u64>,
    /// All blocks received by multicast.
    pub received_ps: Option<u64>,
    /// Cutoff reached.
    pub cut_off_ps: Option<u64>,
    /// Everything in the buffer, fetched chunks included.
    pub complete_ps: Option<u64>,
    /// Buffers given back.
    pub released_ps: Option<u64>,
}

/// What an operation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When.
    pub phases: Phases,
    /// Bytes that came from other ranks.
    pub foreign_bytes: u64,
    /// Chunks that multicast lost and the left neighbour had.
    pub recovered_chunks: u64,
    /// Their bytes.
    pub recovered_bytes: u64,
    /// Reads that fetched them.
    pub reads: u64,
    /// Fetch requests of the right neighbour; at most 1.
    pub fetches_served: u64,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
}

/// Control messages sent since the communicator was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// Barrier signals.
    pub barrier: u64,
    /// Activations of the next root.
    pub activate: u64,
    /// Requests for missing blocks.
    pub fetch: u64,
    /// Blocks offered to the right neighbour.
    pub acknowledge: u64,
    /// Final messages.
    pub last: u64,
    /// Failures told.
    pub failed: u64,
}

impl MessageCounts {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.barrier + self.activate + self.fetch + self.acknowledge + self.last + self.failed
    }
}
