//! Memory that processes share, and descriptors that one hands to another.
//!
//! It is rings of bytes behind words. Whatever another process writes there, the functions of this module stay inside
//! the mapping: positions are taken modulo the length of a ring, and the file is sealed at the length that the layout
//! has.
#![allow(unsafe_code)] // Mapping, and access to memory that another process writes to.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// Bytes of a page: rings begin at one.
const PAGE_BYTES: usize = 4096;
/// Bytes from one word to the next: processors fetch cache lines in pairs.
const WORD_STRIDE: usize = 128;
/// Most descriptors that the system hands over with one message.
const MOST_DESCRIPTORS: usize = 253;

/// What lies where in memory that processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Words of 64 bits, each in cache lines of its own.
    pub words: usize,
    /// Rings of bytes behind them.
    pub rings: usize,
    /// Bytes of each ring: a power of two, and whole pages.
    pub ring_bytes: usize,
}

impl Layout {
    const fn words_bytes(&self) -> usize {
        (self.words * WORD_STRIDE).next_multiple_of(PAGE_BYTES)
    }

    const fn bytes(&self) -> usize {
        self.words_bytes() + self.rings * self.ring_bytes
    }
}

/// Words and rings. Unmapped when dropped.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the mapping belongs to no thread; words are accessed as atomics, and bytes by copies whose result may be any
// bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes memory of a layout, all zeros, and a descriptor for the other processes.
    pub fn create(layout: Layout) -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create("flexcast", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&file, layout.bytes() as i64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL))?;
        Ok((Self::open(&file, layout)?, file))
    }

    /// Maps memory that another process has made. Refused if it could become shorter, which would kill whoever accesses
    /// it, or is not as long as the layout.
    pub fn open(file: &OwnedFd, layout: Layout) -> io::Result<Self> {
        debug_assert!(
            layout.ring_bytes.is_power_of_two() && layout.ring_bytes.is_multiple_of(PAGE_BYTES),
            "{layout:?}"
        );
        let seals = SealFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GET_SEALS)?);
        let bytes = usize::try_from(fstat(file)?.st_size).unwrap_or(0);
        let fits = bytes == layout.bytes() && seals.contains(SealFlag::F_SEAL_SHRINK);
        let len = NonZeroUsize::new(bytes).filter(|_| fits).ok_or(ErrorKind::InvalidData)?;
        let flags = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at a place of the system's choice replaces none; the file is as long, and stays so.
        let base = unsafe { mmap(None, len, flags, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self { base: base.cast(), layout })
    }

    /// Where the first ring is in this process, as long as the mapping lives, and its bytes.
    ///
    /// # Panics
    /// There is none.
    pub fn ring(&self) -> (NonNull<u8>, usize) {
        self.run(0, 0, self.layout.ring_bytes)
    }

    /// Bytes of a ring.
    pub const fn ring_bytes(&self) -> usize {
        self.layout.ring_bytes
    }

    /// A word, by its number.
    ///
    /// # Panics
    /// There are fewer.
    pub fn word(&self, number: usize) -> &AtomicU64 {
        assert!(number < self.layout.words, "word {number} of {}", self.layout.words);
        // SAFETY: before the rings, and aligned to 128 bytes; this process accesses it as an atomic only, as long as
        // the mapping lives.
        unsafe { AtomicU64::from_ptr(self.base.add(number * WORD_STRIDE).cast().as_ptr()) }
    }

    /// A position of a ring, and the bytes up to the end of the ring or `len`.
    ///
    /// # Panics
    /// There is no such ring.
    fn run(&self, ring: usize, at: u64, len: usize) -> (NonNull<u8>, usize) {
        let Layout { rings, ring_bytes, .. } = self.layout;
        assert!(ring < rings, "ring {ring} of {rings}");
        let at = at as usize & (ring_bytes - 1);
        // SAFETY: one of the rings, and less than its length from its beginning: inside the mapping.
        let start = unsafe { self.base.add(self.layout.words_bytes() + ring * ring_bytes + at) };
        (start, len.min(ring_bytes - at))
    }

    /// Copies bytes to positions `at` and following, at most as many as the ring has.
    pub fn write(&self, ring: usize, mut at: u64, bytes: &[u8]) {
        let mut left = &bytes[..bytes.len().min(self.ring_bytes())];
        while !left.is_empty() {
            let (to, len) = self.run(ring, at, left.len());
            // SAFETY: both are `len` bytes long and do not overlap: `left` is memory of this process alone. Other
            // processes do not access these bytes before the tail covers them; one that does all the same gets some
            // bytes, and here nothing is read.
            unsafe { to.copy_from_nonoverlapping(NonNull::from(left).cast(), len) };
            left = &left[len..];
            at = at.wrapping_add(len as u64);
        }
    }

    /// Copies bytes from positions `at` and following, at most as many as the ring has.
    pub fn read(&self, ring: usize, mut at: u64, bytes: &mut [u8]) {
        let most = bytes.len().min(self.ring_bytes());
        let mut left = &mut bytes[..most];
        while !left.is_empty() {
            let (from, len) = self.run(ring, at, left.len());
            // SAFETY: both are `len` bytes long and do not overlap: `left` is memory of this process alone. Other
            // processes do not write to these bytes before the head has passed them; if one does all the same, some
            // bytes come, and any are bytes.
            unsafe { NonNull::from(&mut *left).cast().copy_from_nonoverlapping(from, len) };
            left = &mut left[len..];
            at = at.wrapping_add(len as u64);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this mapping, of this length; references to it have the lifetime of `self`.
        let _ = unsafe { munmap(self.base.cast(), self.layout.bytes()) };
    }
}

/// Sends bytes, and descriptors with them, over a socket that is connected. Never blocks; all or an error.
pub(crate) fn send_with(socket: &impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_to(socket, None, bytes, files)
}

/// The same to an address.
pub fn send_with_to(socket: &impl AsFd, to: &UnixAddr, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_to(socket, Some(to), bytes, files)
}

fn send_to(socket: &impl AsFd, to: Option<&UnixAddr>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let files: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&files)];
    let rights = if files.is_empty() { &rights[..0] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let sent = sendmsg(socket.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, to)?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

/// Receives bytes, and the descriptors that come with them, as far as this process may open more. Never blocks.
pub(crate) fn receive_with(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_from(socket, bytes).map(|(len, files, _)| (len, files))
}

/// The same, and the user whose process has sent them; none unless the socket has asked for that (`SO_PASSCRED`).
pub fn receive_from(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>, Option<u32>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut parts, &mut control, flags)?;
    let (mut files, mut user) = (Vec::new(), None);
    for part in control.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(some) => files.extend(some),
            RecvAncillaryMessage::ScmCredentials(sender) => user = Some(sender.uid.as_raw()),
            _ => {}
        }
    }
    Ok((received.bytes, files, user))
}
