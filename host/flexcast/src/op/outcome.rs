//! Ends of operations: buffers given back, or a failure.

use std::fmt;

use crate::error::Error;
use crate::op::buffer::Buffer;
use crate::op::report::Report;

/// How an operation has ended.
pub type Outcome = Result<Done, Box<Failed>>;

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
    /// After a failure that the card could not be made to stop for, and after that of a library call, buffers stay with
    /// the communicator until it is dropped.
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
