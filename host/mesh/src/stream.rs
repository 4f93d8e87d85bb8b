//! Streams of bytes between two ranks: TCP, or shared memory where both are processes of one computer.

use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::SockRef;

use crate::shared::SharedStream;

/// A stream. Nothing blocks: what cannot be done now is [`io::ErrorKind::WouldBlock`].
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Through shared memory.
    Shared(SharedStream),
}

impl Stream {
    /// The one of shared memory, if it is that.
    #[must_use]
    pub(crate) const fn shared(&self) -> Option<&SharedStream> {
        match self {
            Self::Tcp(_) => None,
            Self::Shared(stream) => Some(stream),
        }
    }

    /// Takes note of what has made its descriptor readable, where that is not the bytes themselves.
    pub(crate) fn attend(&mut self) {
        if let Self::Shared(stream) = self {
            stream.attend();
        }
    }

    /// Reads what has come, as far as it fits; 0 at the end.
    pub fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_vectored(parts),
            Self::Shared(stream) => stream.read_vectored(parts),
        }
    }

    /// Writes what has room.
    pub fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            // Not `TcpStream::write_vectored`, which raises SIGPIPE in programs that are not Rust's.
            Self::Tcp(stream) => SockRef::from(&*stream).send_vectored_with_flags(parts, nix::libc::MSG_NOSIGNAL),
            Self::Shared(stream) => stream.write_vectored(parts),
        }
    }

    /// Reads bytes of a handshake, which come before all others; 0 at the end.
    pub(super) fn read_handshake(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Shared(stream) => stream.read_handshake(bytes),
        }
    }

    /// Writes bytes of a handshake, with a descriptor where there is shared memory to hand over.
    pub(super) fn write_handshake(&mut self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => SockRef::from(&*stream).send_with_flags(bytes, nix::libc::MSG_NOSIGNAL),
            Self::Shared(stream) => stream.write_handshake(bytes, file),
        }
    }

    /// Ends both directions; the other side learns of it.
    pub(crate) fn shutdown(&self) {
        // It fails where the stream has ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Shared(stream) => stream.shutdown(),
        };
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<SharedStream> for Stream {
    fn from(stream: SharedStream) -> Self {
        Self::Shared(stream)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Shared(stream) => stream.as_fd(),
        }
    }
}
