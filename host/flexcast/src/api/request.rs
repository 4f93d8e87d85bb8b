//! Operations as their caller sees them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use flexcast_proto::Failure;

use crate::api::buffer::Buffer;
use crate::api::communicator::Communicator;
use crate::error::{Error, Result};

/// An operation under way, which keeps its communicator. Its buffers come back when it is over, by one of three ways:
///
/// - [`Communicator::wait`] or [`Communicator::test`];
/// - as a future: it ends with what `wait` returns. It moves the protocol on whenever it is polled, and is woken when the operation ends;
///   somebody must make progress in the meantime, such as a progress thread ([`Config::progress_thread`](crate::Config::progress_thread)).
///
/// Dropping it does not end the operation, which other ranks rely on: its buffers are dropped when it ends.
#[must_use = "the buffers are in the operation: test or wait for it"]
pub struct Request {
    number: u64,
    /// `None` once the end has been told.
    communicator: Option<Communicator>,
}

impl Request {
    pub(crate) fn new(number: u64, communicator: Communicator) -> Self {
        Self { number, communicator: Some(communicator) }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The communicator that made it.
    pub(crate) fn communicator(&self) -> Option<&Communicator> {
        self.communicator.as_ref()
    }

    /// Its end has been told: there is nothing left to abandon.
    pub(crate) fn forget(mut self) {
        self.communicator = None;
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            communicator.abandon(self.number);
        }
    }
}

impl Future for Request {
    type Output = Outcome;

    /// After its end it ends again and again, with [`Error::ForeignRequest`] and without buffers.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Some(communicator) = &self.communicator else {
            return Poll::Ready(Err(Box::new(Failed::of(Error::ForeignRequest { request: self.number }))));
        };
        let polled = communicator.poll_request(self.number, context.waker());
        if polled.is_ready() {
            self.communicator = None;
        }
        polled
    }
}

/// How an operation has ended.
pub type Outcome = Result<Done, Box<Failed>>;

/// What a test of a request gives.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an operation allocates nothing, not even for its result")]
pub enum Test {
    /// It is over, and all bytes are where they should be.
    Done(Done),
    /// It is not; the request is given back.
    Pending(Request),
}

/// An operation that has ended well.
#[derive(Debug)]
pub struct Done {
    /// The send buffer, if it had one.
    pub send: Option<Buffer>,
    /// The receive buffer, or the buffer of a Broadcast.
    pub receive: Buffer,
    /// What happened.
    pub report: Report,
}

/// An operation that was not begun, or that failed: why, and its buffers. As an error it is its reason.
pub struct Failed {
    /// Why.
    pub error: Error,
    /// The send buffer, if it had one.
    ///
    /// After a failure that the card could not be made to stop for, and after that of a library call, buffers stay with the communicator
    /// until it is dropped.
    pub send: Option<Buffer>,
    /// The receive buffer, or the buffer of a Broadcast; see `send`.
    pub receive: Option<Buffer>,
    /// What happened before.
    pub report: Report,
}

impl Failed {
    /// A failure without buffers.
    pub(crate) fn of(error: Error) -> Self {
        Self { error, send: None, receive: None, report: Report::default() }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// The buffers are dropped.
impl From<Box<Failed>> for Error {
    fn from(failed: Box<Failed>) -> Self {
        failed.error
    }
}
/// When an operation got where, by the card's clock; `None` for what did not happen.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases(pub(crate) PhasesPs);

impl Phases {
    /// In picoseconds, for figures of emulated cards, whose clocks are that fine.
    #[doc(hidden)]
    #[must_use]
    pub const fn in_ps(&self) -> &PhasesPs {
        &self.0
    }

    /// Posted by the user.
    #[must_use]
    pub fn posted(&self) -> Duration {
        duration(self.0.posted_ps)
    }

    /// Workers armed: bitmaps clear, receives posted.
    #[must_use]
    pub fn armed(&self) -> Option<Duration> {
        self.0.armed_ps.map(duration)
    }

    /// Barrier passed: all ranks can receive.
    #[must_use]
    pub fn ready(&self) -> Option<Duration> {
        self.0.ready_ps.map(duration)
    }

    /// Own block begun to be multicast.
    #[must_use]
    pub fn sending(&self) -> Option<Duration> {
        self.0.sending_ps.map(duration)
    }

    /// Own block sent.
    #[must_use]
    pub fn sent(&self) -> Option<Duration> {
        self.0.sent_ps.map(duration)
    }

    /// All blocks received by multicast.
    #[must_use]
    pub fn received(&self) -> Option<Duration> {
        self.0.received_ps.map(duration)
    }

    /// Cutoff reached.
    #[must_use]
    pub fn cut_off(&self) -> Option<Duration> {
        self.0.cut_off_ps.map(duration)
    }

    /// Everything in the buffer, fetched chunks included.
    #[must_use]
    pub fn complete(&self) -> Option<Duration> {
        self.0.complete_ps.map(duration)
    }

    /// Buffers given back.
    #[must_use]
    pub fn released(&self) -> Option<Duration> {
        self.0.released_ps.map(duration)
    }
}

impl fmt::Debug for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut phases = f.debug_struct("Phases");
        phases.field("posted", &self.posted());
        phases.field("armed", &self.armed());
        phases.field("ready", &self.ready());
        phases.field("sending", &self.sending());
        phases.field("sent", &self.sent());
        phases.field("received", &self.received());
        phases.field("cut_off", &self.cut_off());
        phases.field("complete", &self.complete());
        phases.field("released", &self.released());
        phases.finish()
    }
}

/// A time of the card's clock, to the nanosecond below.
pub(crate) const fn duration(ps: u64) -> Duration {
    Duration::from_nanos(ps / 1000)
}

#[doc(hidden)]
/// [`Phases`] in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhasesPs {
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
