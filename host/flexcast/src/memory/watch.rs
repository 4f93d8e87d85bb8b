//! Watch over memory by userfaultfd: unmapping, moving and emptying of watched pages is reported before the system call
//! that does it returns.
//!
//! Pages are registered for write protection, which is never set: nothing of their use changes, and no page fault is
//! handled here. The kernel holds whoever unmaps pages up until the event has been read (userfaultfd(2),
//! UFFD_FEATURE_EVENT_UNMAP). The thread that reads it allocates and frees nothing, and takes no lock that is held
//! while something is allocated or freed: otherwise it could wait for itself. It notes the pages, and whoever searches
//! for a registration takes the notes first ([`Watch::take`]), which waits for an event that was read and is not noted
//! yet.
#![allow(unsafe_code)] // A system call that the standard library does not have, and its structures.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{SysconfVar, sysconf};

use super::registration::Range;
use crate::error::{Error, Result};

/// linux/userfaultfd.h: version of the interface, and events that are asked for.
const API: u64 = 0xAA;
const EVENTS: u64 = FEATURE_REMAP | FEATURE_REMOVE | FEATURE_UNMAP;
const FEATURE_REMAP: u64 = 1 << 2;
const FEATURE_REMOVE: u64 = 1 << 3;
const FEATURE_UNMAP: u64 = 1 << 6;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
/// Flag of the system call: faults of the kernel are none of ours, which every process may ask for.
const USER_MODE_ONLY: i32 = 1;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const MESSAGE_BYTES: usize = 32;

#[repr(C)]
struct Handshake {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Registered {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

nix::ioctl_readwrite!(handshake, 0xAA, 0x3F, Handshake);
nix::ioctl_readwrite!(register, 0xAA, 0x00, Registered);

/// A watch, with the thread that reads its events.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    /// Bytes of a page of the system: ranges are watched by whole pages.
    page: u64,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    fault: OwnedFd,
    stop: EventFd,
    /// Events that are read and not noted yet.
    handling: AtomicU32,
    notes: Mutex<Notes>,
}

/// Most ranges that are noted one by one.
const NOTES: usize = 256;

/// Pages that are not what they were.
#[derive(Debug)]
struct Notes {
    ranges: [Option<Range>; NOTES],
    count: usize,
}

/// Everything, where there were too many to note.
fn everything() -> Option<Range> {
    Range::new(0, u64::MAX).ok()
}

fn failed(source: io::Error) -> Error {
    Error::Watch { source }
}

impl Watch {
    /// A watch over nothing.
    pub(crate) fn new() -> Result<Self> {
        let flags = nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: the call takes flags and gives a descriptor.
        let fault = unsafe { nix::libc::syscall(nix::libc::SYS_userfaultfd, flags) };
        let Ok(fault @ 0..) = i32::try_from(fault) else { return Err(failed(io::Error::last_os_error())) };
        // SAFETY: the descriptor is new, and nobody else's.
        let fault = unsafe { OwnedFd::from_raw_fd(fault) };
        let mut asked = Handshake { api: API, features: EVENTS, ioctls: 0 };
        // SAFETY: the structure is the one that this request reads and writes.
        unsafe { handshake(fault.as_raw_fd(), &raw mut asked) }.map_err(|errno| failed(errno.into()))?;
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let events = std::fs::File::from(fault.try_clone().map_err(failed)?);
        let notes = Mutex::new(Notes { ranges: [None; NOTES], count: 0 });
        let shared = Arc::new(Shared { fault, stop, handling: AtomicU32::new(0), notes });
        let read = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("flexcast-watch".to_owned());
        let thread = thread.spawn(move || read.run(events)).map_err(failed)?;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|bytes| u64::try_from(bytes).ok());
        Ok(Self { shared, page: page.filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096), thread: Some(thread) })
    }

    /// Watches all pages of a range from now on. False for memory that cannot be watched, such as that of a file.
    pub(crate) fn add(&self, range: Range) -> bool {
        let start = range.address() & !(self.page - 1);
        let len = (range.last() | (self.page - 1)).wrapping_add(1).wrapping_sub(start);
        let mut asked = Registered { start, len, mode: MODE_WRITE_PROTECT, ioctls: 0 };
        // SAFETY: the structure is the one that this request reads and writes; pages that are not there are refused.
        unsafe { register(self.shared.fault.as_raw_fd(), &raw mut asked) }.is_ok()
    }

    /// Gives `gone` what has changed since the last call, that of system calls that have returned included.
    pub(crate) fn take(&self, gone: impl FnMut(Range)) {
        while self.shared.handling.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        let taken = {
            let mut notes = self.shared.notes();
            if notes.count == 0 {
                return;
            }
            let taken = notes.ranges;
            (notes.ranges, notes.count) = ([None; NOTES], 0);
            taken
        };
        // Outside of the lock: what is given up is freed.
        taken.into_iter().flatten().for_each(gone);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It fails only when it was written to before.
        let _ = self.shared.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut events: std::fs::File) {
        loop {
            let mut ready =
                [PollFd::new(self.fault.as_fd(), PollFlags::POLLIN), PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ready, PollTimeout::NONE).is_err() {
                continue;
            }
            if ready[1].any() == Some(true) {
                // Nothing is watched any more once the last descriptor is closed, and whoever waits goes on.
                return;
            }
            self.handling.fetch_add(1, Ordering::SeqCst);
            let mut message = [0; MESSAGE_BYTES];
            // From here on whoever unmaps goes on.
            if events.read(&mut message).is_ok_and(|bytes| bytes == MESSAGE_BYTES)
                && let Some(range) = changed(&message)
            {
                self.notes().add(range);
            }
            self.handling.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Notes {
    fn add(&mut self, range: Range) {
        match self.ranges.get_mut(self.count) {
            Some(place) => {
                *place = Some(range);
                self.count += 1;
            }
            None => self.ranges[0] = everything(),
        }
    }
}

/// The pages that an event reports.
fn changed(message: &[u8; MESSAGE_BYTES]) -> Option<Range> {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| message[at + byte]));
    match message[0] {
        // From, to, length.
        EVENT_REMAP => Range::new(word(8), word(24)).ok(),
        // Start, end.
        EVENT_REMOVE | EVENT_UNMAP => Range::new(word(8), word(16).saturating_sub(word(8))).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;
    use crate::harness::skipped;

    #[test]
    fn what_is_unmapped_is_reported_before_the_call_returns() {
        let watch = match Watch::new() {
            Ok(watch) => watch,
            Err(error) => {
                skipped(error);
                return;
            }
        };
        let page = usize::try_from(watch.page).unwrap();
        let bytes = NonZeroUsize::new(4 * page).unwrap();
        let taken = || {
            let mut ranges = Vec::new();
            watch.take(|range| ranges.push((range.address(), range.length())));
            ranges
        };
        for _ in 0..100 {
            let (access, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
            // SAFETY: new memory, at an address that the system chooses.
            let start = unsafe { mmap_anonymous(None, bytes, access, flags) }.unwrap();
            let address = start.as_ptr() as u64;
            // The first three pages, by some of their bytes.
            assert!(watch.add(Range::new(address + 5, 2 * page as u64).unwrap()));
            assert!(taken().is_empty());
            // SAFETY: nothing refers to the memory of the test.
            unsafe { munmap(start.byte_add(page), page) }.unwrap();
            assert_eq!(taken(), [(address + page as u64, page as u64)]);
            // SAFETY: as above.
            unsafe { munmap(start.byte_add(3 * page), page) }.unwrap();
            assert!(taken().is_empty(), "a page that is not watched");
            // SAFETY: as above; the page between is gone already.
            unsafe { munmap(start, 3 * page) }.unwrap();
            assert!(taken().iter().any(|(from, _)| *from == address));
        }
        assert!(!watch.add(Range::new(page as u64, 1).unwrap()), "there is no memory there");
    }

    #[test]
    fn more_than_can_be_noted_is_everything() {
        let mut notes = Notes { ranges: [None; NOTES], count: 0 };
        for at in 0..=NOTES as u64 {
            notes.add(Range::new(4096 * at, 4096).unwrap());
        }
        assert!(notes.ranges[0].unwrap().contains(Range::new(4096 * NOTES as u64, 4096).unwrap()));
    }
}
