//! Streams of bytes between processes of one computer, through shared memory.
//!
//! The ranks connect over a Unix socket without a place in the file system, and prove to one another who they are as
//! over TCP ([`dial`](super::dial)); whoever connects then hands over the memory ([`memory`](super::super::memory)), in
//! which the bytes lie in rings ([`rings`]). Afterwards the socket wakes whoever sleeps, and shows by its end that the
//! other process has gone. When both are gone, so is the memory: nothing has a name.
//!
//! Frames in the rings have no tags. The memory is a sealed file without a name, whose descriptor went over a socket
//! between two processes of one user that have both proven, for this very connection, that they know the key. Whoever
//! else could write to it, could also write to the memory of either process (the superuser, or a debugger of the same
//! user): a tag would not keep it out.

mod rings;

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, sockopt};
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};

pub use rings::Rings;
use rings::{Side, Word, layout, word};

use crate::memory::{Memory, send_with};

/// Bytes on their way in each direction: a power of two.
const RING_BYTES: usize = 1 << 20;
/// Connections that may wait until they are accepted; the system may allow fewer. Beyond them ranks connect over TCP.
const BACKLOG: i32 = 4096;

/// The address of the socket with a number. A zero byte in front: it is no file.
fn address(number: u64) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0flexcast-{number:016x}"))
}

/// A socket on which processes of this computer and user connect. `number`: its number, which nobody else has.
pub fn listen(number: u64) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&address(number)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Refuses processes of other users.
pub(super) fn check_user(socket: &UnixStream) -> io::Result<()> {
    let other = getsockopt(socket, sockopt::PeerCredentials)?.uid();
    if other == geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::PermissionDenied, format!("it is a process of user {other}")))
}

/// A stream of bytes.
#[derive(Debug)]
pub struct SharedStream {
    /// A byte wakes the other side; its end is the end of the other process.
    socket: UnixStream,
    rings: Arc<Rings>,
    /// The other side is gone: nothing comes behind what is in the ring.
    is_over: bool,
}

impl SharedStream {
    /// Connects to the socket with a number. The descriptor is that of the memory, for the other process once it has
    /// proven who it is. Never blocks.
    pub(super) fn connect(number: u64) -> io::Result<(Self, OwnedFd)> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        socket.connect(&address(number)?)?;
        let socket = UnixStream::from(socket);
        check_user(&socket)?;
        let (memory, file) = Memory::create(layout(RING_BYTES))?;
        Ok((Self::new(socket, memory, Side::Caller), file))
    }

    /// Reads bytes of a handshake from the socket, on which nothing else comes before; 0 at the end.
    pub(super) fn read_handshake(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT)?)
    }

    /// Writes a message of a handshake to the socket, with the descriptor of the memory or without.
    pub(super) fn write_handshake(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        // All of it or nothing: a socket without anything unread has room.
        send_with(&self.socket, bytes, file.as_slice()).map(|()| bytes.len())
    }

    /// Of a process that has connected and has handed over `file`.
    pub(super) fn accept(socket: UnixStream, file: &OwnedFd) -> io::Result<Self> {
        Ok(Self::new(socket, Memory::open(file, layout(RING_BYTES))?, Side::Called))
    }

    fn new(socket: UnixStream, memory: Memory, side: Side) -> Self {
        Self { socket, rings: Arc::new(Rings::new(memory, side)), is_over: false }
    }

    pub(super) const fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }

    /// Takes the bytes that have woken this side, and notices whether the other one is gone.
    pub(super) fn attend(&mut self) {
        let mut bytes = [0; 64];
        loop {
            match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(len) if len == bytes.len() => {}
                Ok(0) => return self.is_over = true,
                Err(Errno::EINTR) => {}
                Ok(_) | Err(Errno::EAGAIN) => return,
                Err(_) => return self.is_over = true,
            }
        }
    }

    /// Wakes the other side.
    fn wake(socket: &UnixStream) {
        // Full, there are bytes that wake it; closed, its end is noticed when this side is woken.
        let _ = send(socket.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }

    pub(super) fn read_vectored(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.rings.read(parts, || Self::wake(&self.socket))? {
            0 if !self.is_over => Err(ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }

    pub(super) fn write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_over {
            return Err(Errno::EPIPE.into());
        }
        match self.rings.write(parts, || Self::wake(&self.socket))? {
            0 => Err(ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }

    pub(super) fn shutdown(&self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Both)
    }
}

impl AsFd for SharedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The other end of a stream, of a process that writes what it likes: bytes, and positions. For fuzz targets.
#[derive(Debug)]
pub struct OtherEnd {
    stream: SharedStream,
    /// The same memory once more.
    memory: Memory,
}

impl OtherEnd {
    /// Both ends of a stream.
    pub fn pair() -> io::Result<(Self, SharedStream)> {
        let (one, other) = UnixStream::pair()?;
        one.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        let (memory, file) = Memory::create(layout(RING_BYTES))?;
        let stream = SharedStream::new(one, memory, Side::Caller);
        Ok((Self { stream, memory: Memory::open(&file, layout(RING_BYTES))? }, SharedStream::accept(other, &file)?))
    }

    /// Writes what has room.
    pub fn write(&self, bytes: &[u8]) {
        let _ = self.stream.write_vectored(&[IoSlice::new(bytes)]);
    }

    /// Writes a word of the memory, and wakes the other side.
    pub fn poke(&self, which: u8, value: u64) {
        let words = [Word::Tail, Word::Head, Word::ReaderSleeps, Word::WriterSleeps];
        let ring = usize::from(which >> 2 & 1);
        word(&self.memory, ring, words[usize::from(which & 3)]).store(value, std::sync::atomic::Ordering::Release);
        SharedStream::wake(&self.stream.socket);
    }
}

#[cfg(test)]
pub(super) fn pair() -> (SharedStream, SharedStream) {
    let (one, other) = UnixStream::pair().unwrap();
    let (memory, file) = Memory::create(layout(RING_BYTES)).unwrap();
    (SharedStream::new(one, memory, Side::Caller), SharedStream::accept(other, &file).unwrap())
}

/// A stream whose other side has written a position.
#[cfg(test)]
pub(super) fn hostile(tail: u64) -> (UnixStream, SharedStream) {
    let (one, other) = UnixStream::pair().unwrap();
    let (memory, file) = Memory::create(layout(RING_BYTES)).unwrap();
    word(&memory, 0, Word::Tail).store(tail, std::sync::atomic::Ordering::Release);
    (one, SharedStream::accept(other, &file).unwrap())
}

#[cfg(test)]
mod tests;
