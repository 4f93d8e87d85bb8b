//! Requests: operations under way.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::op::outcome::{Done, Failed, Outcome};

/// An operation under way, which keeps its communicator. Its buffers come back when it is over, by one of three ways:
///
/// - [`Request::wait`] or [`Request::test`];
/// - as a future: it ends with what `wait` returns. It moves the protocol on whenever it is polled, and is woken when
///   the operation ends; somebody must make progress in the meantime, such as a progress thread
///   ([`Config::progress_thread`](crate::Config::progress_thread)).
///
/// Dropping it does not end the operation, which other ranks rely on: its buffers are dropped when it ends.
#[must_use = "the buffers are in the operation: test or wait for it"]
pub struct Request {
    number: u64,
    /// `None` once the end has been given to the caller.
    communicator: Option<Communicator>,
}

impl Request {
    pub(crate) fn new(number: u64, communicator: Communicator) -> Self {
        Self { number, communicator: Some(communicator) }
    }

    /// Waits until the operation is over. It ends: every phase of an operation has its bound.
    ///
    /// # Errors
    /// As [`Request::test`].
    pub fn wait(self) -> Result<Done, Box<Failed>> {
        match self.communicator.clone() {
            Some(communicator) => communicator.wait(self),
            None => Err(Box::new(Failed::of(Error::RequestOver { request: self.number }))),
        }
    }

    /// Whether the operation is over; moves the protocol on.
    ///
    /// # Errors
    /// That of the operation. The failure of a library call, after which the communicator is of no use: without
    /// buffers.
    pub fn test(self) -> Result<Test, Box<Failed>> {
        match self.communicator.clone() {
            Some(communicator) => communicator.test(self),
            None => Err(Box::new(Failed::of(Error::RequestOver { request: self.number }))),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The communicator that made it.
    pub(crate) fn communicator(&self) -> Option<&Communicator> {
        self.communicator.as_ref()
    }

    /// Its end has been given to the caller: there is nothing left to abandon.
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

    /// After its end it ends again and again, with [`Error::RequestOver`] and without buffers.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Some(communicator) = &self.communicator else {
            return Poll::Ready(Err(Box::new(Failed::of(Error::RequestOver { request: self.number }))));
        };
        let polled = communicator.poll_request(self.number, context.waker());
        if polled.is_ready() {
            self.communicator = None;
        }
        polled
    }
}

/// What a test of a request gives.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an operation allocates nothing, not even for its result")]
pub enum Test {
    /// It is over, and all bytes are where they should be.
    Done(Done),
    /// It is not; the request is given back.
    Pending(Request),
}
