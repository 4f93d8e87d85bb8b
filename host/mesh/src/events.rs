//! Events of connections: what peers send, who takes it, and who has what is sent.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use flexcast_proto::p2p::Part;
use flexcast_proto::session::origin;

use crate::frame::Head;
use crate::stream::Stream;

/// Where the other end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// Over TCP; none where that is not known.
    Tcp(Option<SocketAddr>),
    /// A process of this computer, through memory.
    Shared,
}

impl Address {
    pub(crate) fn of(stream: &Stream) -> Self {
        match stream {
            Stream::Tcp(stream) => Self::Tcp(stream.peer_addr().ok()),
            Stream::Shared(_) => Self::Shared,
        }
    }

    /// Whose connections count as of one, if it has an address.
    pub(crate) fn origin(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => address.map(|address| origin(address.ip())),
            Self::Shared => None,
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(Some(address)) => address.fmt(f),
            Self::Tcp(None) => f.write_str("an address that is not known"),
            Self::Shared => f.write_str("shared memory of this computer"),
        }
    }
}

/// What is wrong with the connection to a rank, beyond a code of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where the rank is, or seems to be.
    pub address: String,
    /// What is wrong, and what helps: the rest of a sentence that begins with the connection.
    pub reason: String,
}

/// A read of a range of a peer's buffer, by the one who asks or the one who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Number of the operation.
    pub operation: u32,
    /// Chosen by the one who asks; the answer brings it back.
    pub tag: u32,
    /// Where the range begins in the buffer, in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
}

/// What a peer has sent.
#[derive(Debug)]
pub enum Event<'e> {
    /// A control message, with eager data behind it or none.
    Message {
        /// The rank that has sent it.
        from: u32,
        /// The message and the data.
        bytes: &'e [u8],
    },
    /// It asks for a range of the own buffer: [`Mesh::serve`](crate::Mesh::serve) answers.
    Request {
        /// The rank that asks.
        from: u32,
        /// What it wants. Not checked yet against the buffer.
        read: Read,
    },
    /// A part of what was read of it ([`Mesh::read`](crate::Mesh::read)). Parts come in order.
    Data {
        /// The rank that has sent it.
        from: u32,
        /// Number of the operation.
        operation: u32,
        /// Tag of the read.
        tag: u32,
        /// Where the bytes belong in the buffer.
        offset: u64,
        /// The bytes.
        bytes: &'e [u8],
    },
}

/// Whoever takes what comes.
pub trait Listener {
    /// Whether a frame of an operation can be taken now; otherwise it waits until that operation begins. `transfer`: it
    /// is a fragment of a message.
    fn is_due(&self, operation: u32, transfer: bool) -> bool;

    /// A message, a request or data has come.
    fn take(&mut self, event: Event<'_>);

    /// A fragment comes. False: it cannot be, and nothing more is taken from that rank.
    fn begin(&mut self, from: u32, head: &Head) -> bool;

    /// Where the bytes of a fragment belong, from number `at` on, up to the next that belong somewhere else. Empty:
    /// nowhere any more.
    fn place(&mut self, from: u32, head: &Head, at: u64) -> &mut [u8];

    /// All bytes of a fragment are in their places.
    fn end(&mut self, from: u32, head: &Head);
}

/// Whoever has what is sent.
pub trait Source {
    /// The buffer that peers read from ([`Event::Request`]).
    fn buffer(&self) -> &[u8];

    /// The bytes of a message from number `at` on, up to the next that lie somewhere else.
    fn part(&self, part: Part, at: u64) -> &[u8];
}

/// Nothing to be sent.
impl Source for () {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, _: Part, _: u64) -> &[u8] {
        &[]
    }
}

/// What is waited for on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Until it has something to read.
    pub read: bool,
    /// Until it has room to write.
    pub write: bool,
}

/// Whoever waits for streams to become readable.
pub trait Watch {
    /// Waits for this one, too.
    fn watch(&mut self, stream: BorrowedFd<'_>);

    /// Does not wait for this one any more: it is closed next, or is a connection of a rank.
    fn forget(&mut self, stream: BorrowedFd<'_>);
}
