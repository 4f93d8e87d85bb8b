//! Memory that two processes share, and descriptors that one hands to the other.
//!
//! It is two rings of bytes behind a page of words. Whatever the other process writes there, the functions of this module stay inside the
//! mapping: positions are taken modulo the length of a ring, and the length is that of the sealed file.
#![allow(unsafe_code)] // Mapping, access to memory that another process writes to, and descriptors that the system hands over as numbers.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

/// Bytes of the page of words.
const WORDS_BYTES: usize = 4096;
/// Bytes from one word to the next: processors fetch cache lines in pairs.
const WORD_STRIDE: usize = 128;
/// Shortest and longest ring that is taken from another process.
const RING_BYTES: std::ops::RangeInclusive<usize> = 4096..=64 << 20;
/// Most descriptors that the system hands over with one message.
const MOST_DESCRIPTORS: usize = 253;

/// Words of one ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// Bytes that have been written. Of the writer.
    Tail,
    /// Bytes that have been read. Of the reader.
    Head,
    /// 1: the reader sleeps until there are bytes. Set by the reader; whoever wakes it clears it.
    ReaderSleeps,
    /// 1: the writer sleeps until there is room. Set by the writer; whoever wakes it clears it.
    WriterSleeps,
}

/// Two rings. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    ring_bytes: usize,
}

// SAFETY: the mapping belongs to no thread; words are accessed as atomics, and bytes by copies whose result may be any bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes memory with rings of `ring_bytes` each, a power of two, and a descriptor for the other process.
    pub(super) fn create(ring_bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create("flexcast", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&file, (WORDS_BYTES + 2 * ring_bytes) as i64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL))?;
        Ok((Self::open(&file)?, file))
    }

    /// Maps memory that another process has made. Refused if it could become shorter, which would kill whoever accesses it, or has another layout.
    pub(super) fn open(file: &OwnedFd) -> io::Result<Self> {
        let seals = SealFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GET_SEALS)?);
        let bytes = usize::try_from(fstat(file)?.st_size).unwrap_or(0);
        let ring_bytes = bytes.saturating_sub(WORDS_BYTES) / 2;
        let is_layout = RING_BYTES.contains(&ring_bytes)
            && ring_bytes.is_power_of_two()
            && bytes == WORDS_BYTES + 2 * ring_bytes
            && seals.contains(SealFlag::F_SEAL_SHRINK);
        let len = NonZeroUsize::new(bytes).filter(|_| is_layout).ok_or(ErrorKind::InvalidData)?;
        let flags = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at a place of the system's choice replaces none; the file is as long, and stays so.
        let base = unsafe { mmap(None, len, flags, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self { base: base.cast(), ring_bytes })
    }

    /// Bytes of a ring.
    pub(super) const fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// A word of ring 0 or 1.
    pub(super) fn word(&self, ring: usize, word: Word) -> &AtomicU64 {
        let at = ((ring & 1) * 4 + word as usize) * WORD_STRIDE;
        // SAFETY: inside the first page and aligned to 128 bytes; this process accesses it as an atomic only, as long as the mapping lives.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast().as_ptr()) }
    }

    /// A position of a ring, and the bytes up to the end of the ring or `len`.
    fn run(&self, ring: usize, at: u64, len: usize) -> (NonNull<u8>, usize) {
        let at = at as usize & (self.ring_bytes - 1);
        // SAFETY: ring 0 or 1, and less than its length from its beginning: inside the mapping.
        let start = unsafe { self.base.add(WORDS_BYTES + (ring & 1) * self.ring_bytes + at) };
        (start, len.min(self.ring_bytes - at))
    }

    /// Copies bytes to positions `at` and following, at most as many as the ring has.
    pub(super) fn write(&self, ring: usize, mut at: u64, bytes: &[u8]) {
        let mut left = &bytes[..bytes.len().min(self.ring_bytes)];
        while !left.is_empty() {
            let (to, len) = self.run(ring, at, left.len());
            // SAFETY: both are `len` bytes long and do not overlap: `left` is memory of this process alone. The other process does not access these
            // bytes before the tail covers them; if it does all the same, it gets some bytes, and here nothing is read.
            unsafe { to.copy_from_nonoverlapping(NonNull::from(left).cast(), len) };
            left = &left[len..];
            at = at.wrapping_add(len as u64);
        }
    }

    /// Copies bytes from positions `at` and following, at most as many as the ring has.
    pub(super) fn read(&self, ring: usize, mut at: u64, bytes: &mut [u8]) {
        let most = bytes.len().min(self.ring_bytes);
        let mut left = &mut bytes[..most];
        while !left.is_empty() {
            let (from, len) = self.run(ring, at, left.len());
            // SAFETY: both are `len` bytes long and do not overlap: `left` is memory of this process alone. The other process does not write to these
            // bytes before the head has passed them; if it does all the same, some bytes come, and any are bytes.
            unsafe { NonNull::from(&mut *left).cast().copy_from_nonoverlapping(from, len) };
            left = &mut left[len..];
            at = at.wrapping_add(len as u64);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this mapping, of this length; references to it have the lifetime of `self`.
        let _ = unsafe { munmap(self.base.cast(), WORDS_BYTES + 2 * self.ring_bytes) };
    }
}

/// Sends bytes, and a descriptor with them. Never blocks; all or an error.
pub(super) fn send_with(socket: &UnixStream, bytes: &[u8], file: &OwnedFd) -> io::Result<()> {
    let files = [file.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&files)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None)?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

/// Receives bytes, and the descriptors that come with them. Never blocks.
pub(in super::super) fn receive_with(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    // Room for all that can come: those without would stay open.
    let mut space = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut files = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the system has just opened these for this process, and nobody else knows them.
            files.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((message.bytes, files))
}
