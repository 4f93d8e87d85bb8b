//! Waits for sockets.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flexcast_mesh::{Interest, Rings, Watch};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::fanout::Fanout;
use crate::engine::datapath::Waiter;
use crate::error::{Error, Result};

/// Events taken at a time.
const EVENTS: usize = 64;
/// Polls in vain before a thread sleeps. Among eight ranks with a processor each an Allgather of 64 bytes took 38 us
/// with 100, and 74 to 84 us with 10 (measured).
const YIELDS: u32 = 100;
/// Longest that a thread polls before it sleeps: where others want the processor, it gets it back only after they have
/// had their turns, and the system gives it sooner to one that is woken.
const POLLING: Duration = Duration::from_micros(200);

/// What a communicator waits for. A clone waits for the same.
#[derive(Clone)]
pub(crate) struct SocketWaiter(Arc<Shared>);

struct Shared {
    epoll: Epoll,
    /// Wakes whoever waits.
    wake_up: EventFd,
    /// What whoever waited has seen, and nobody has taken.
    seen: Mutex<Vec<EpollEvent>>,
    memory: Mutex<Memory>,
}

/// Shared memory in which something may come: nothing of it is seen by the system.
#[derive(Default)]
struct Memory {
    rings: Vec<Arc<Rings>>,
    fanout: Option<Arc<Fanout>>,
    /// Threads that sleep, or are about to: peers have to wake them.
    sleepers: u32,
}

impl Memory {
    fn is_ready(&self) -> bool {
        self.rings.iter().any(|rings| rings.is_ready()) || self.fanout.as_ref().is_some_and(|fanout| fanout.is_ready())
    }

    /// Asks the peers to wake this side. Returns whether there is something already.
    fn arm(&self) -> bool {
        let is_ready = self.rings.iter().fold(false, |ready, rings| ready | rings.arm());
        is_ready | self.fanout.as_ref().is_some_and(|fanout| fanout.arm())
    }

    /// Peers need not wake this side any more.
    fn disarm(&self) {
        self.rings.iter().for_each(|rings| rings.disarm());
        self.fanout.iter().for_each(|fanout| fanout.disarm());
    }
}

impl Shared {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is ready, after at most so long. Returns whether there was anything.
    fn poll(&self, timeout: EpollTimeout) -> std::result::Result<bool, Errno> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(errno),
        };
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&events[..count]);
        Ok(count > 0)
    }
}

fn failed(errno: Errno) -> Error {
    Error::Socket { what: "epoll".to_owned(), source: errno.into(), next: "see the limit of open files (`ulimit -n`)" }
}

/// Token of the wake-up.
const WAKE_UP: u64 = u64::MAX;

impl SocketWaiter {
    pub(crate) fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let wake_up = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(failed)?;
        epoll.add(&wake_up, EpollEvent::new(EpollFlags::EPOLLIN, WAKE_UP)).map_err(failed)?;
        Ok(Self(Arc::new(Shared { epoll, wake_up, seen: Mutex::default(), memory: Mutex::default() })))
    }

    /// Waits for a descriptor to become readable.
    pub(crate) fn add(&self, descriptor: BorrowedFd<'_>, token: u64) -> Result<()> {
        self.0.epoll.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, token)).map_err(failed)
    }

    /// Waits for datagrams that come through a socket which other ranks wait for, too: one of those that sleep is woken
    /// for each, once.
    pub(crate) fn add_shared(&self, descriptor: BorrowedFd<'_>, token: u64) -> Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET | EpollFlags::EPOLLEXCLUSIVE;
        self.0.epoll.add(descriptor, EpollEvent::new(flags, token)).map_err(failed)
    }

    /// Waits for the datagrams that this computer's ranks share, too.
    pub(crate) fn add_fanout(&self, fanout: Arc<Fanout>) {
        self.0.memory().fanout = Some(fanout);
    }

    /// Waits for what comes in shared memory, too.
    pub(crate) fn add_rings(&self, rings: Arc<Rings>) {
        self.0.memory().rings.push(rings);
    }

    /// What is waited for in shared memory may be something else now, and a peer's call to wake may have been taken by
    /// a thread that does not sleep: those that do are woken for what there is, and by the peers for what comes.
    pub(crate) fn rearm(&self) {
        let memory = self.0.memory();
        if memory.sleepers > 0 && memory.arm() {
            self.wake();
        }
    }

    /// Waits for a connection to become readable and writable, as far as that is of interest.
    pub(crate) fn change(
        &self,
        descriptor: BorrowedFd<'_>,
        token: u64,
        before: Option<Interest>,
        now: Interest,
    ) -> Result<()> {
        let flags = |interest: Interest| {
            let part = |wanted, flag| if wanted { flag } else { EpollFlags::empty() };
            part(interest.read, EpollFlags::EPOLLIN) | part(interest.write, EpollFlags::EPOLLOUT)
        };
        let (before, now) = (before.map_or(EpollFlags::empty(), flags), flags(now));
        let mut event = EpollEvent::new(now, token);
        // The system reports a broken connection even where nothing is of interest: a descriptor whose owner cannot
        // take note of that is not registered.
        let changed = match (before.is_empty(), now.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => self.0.epoll.add(descriptor, event),
            (false, true) => self.0.epoll.delete(descriptor),
            (false, false) => self.0.epoll.modify(descriptor, &mut event),
        };
        changed.map_err(failed)
    }

    /// Does not wait for a connection any more.
    pub(crate) fn remove(&self, descriptor: BorrowedFd<'_>, before: Option<Interest>) {
        if before.is_some_and(|interest| interest.read || interest.write) {
            // One that has been closed is gone by itself.
            let _ = self.0.epoll.delete(descriptor);
        }
    }

    /// The tokens of descriptors that can be read now, or have failed. That one can be written is no token: whoever has
    /// something to send tries.
    pub(crate) fn poll(&self, ready: &mut Vec<u64>) -> Result<()> {
        ready.clear();
        let is_slept = self.0.memory().sleepers > 0;
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_empty() {
            drop(seen);
            self.0.poll(EpollTimeout::ZERO).map_err(failed)?;
            seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        }
        // One that is not ready any more costs a read in vain.
        for event in seen.drain(..) {
            if event.data() == WAKE_UP {
                // It stays readable until those who sleep have returned.
                if !is_slept {
                    let _ = self.0.wake_up.read();
                }
                continue;
            }
            if event.events() != EpollFlags::EPOLLOUT {
                ready.push(event.data());
            }
        }
        Ok(())
    }
}

/// Waits for streams of which it is not known who is at their other end.
pub(crate) struct ListenerWatch<'w>(pub(super) &'w SocketWaiter, pub(super) u64);

impl Watch for ListenerWatch<'_> {
    fn watch(&mut self, stream: BorrowedFd<'_>) {
        if let Err(error) = self.0.add(stream, self.1) {
            tracing::warn!(%error, "a connection is handled late");
        }
    }

    fn forget(&mut self, stream: BorrowedFd<'_>) {
        let _ = self.0.0.epoll.delete(stream);
    }
}

impl AsFd for SocketWaiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.epoll.0.as_fd()
    }
}

impl SocketWaiter {
    /// Waits at most so long, the first part of it awake: for so many polls in vain.
    fn pass(&self, most: Duration, polls: u32, is_called: &dyn Fn() -> bool) {
        if most.is_zero() || !self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return;
        }
        // To sleep and be woken takes longer than most answers do; meanwhile others may have the processor.
        let since = Instant::now();
        for _ in 0..polls {
            if since.elapsed() >= POLLING.min(most) {
                break;
            }
            if self.0.memory().is_ready() || self.0.poll(EpollTimeout::ZERO) != Ok(false) {
                return;
            }
            std::thread::yield_now();
        }
        let left = most.saturating_sub(since.elapsed());
        if left.is_zero() {
            return;
        }
        // Whole milliseconds, upwards: rather late than a loop.
        let timeout = EpollTimeout::from(u16::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u16::MAX));
        let is_ready = {
            let mut memory = self.0.memory();
            memory.sleepers += 1;
            memory.arm()
        };
        // From here on the wake-up is left to those who sleep: a call before that is seen here, and a later one writes
        // to it.
        if !is_ready && !is_called() {
            let _ = self.0.poll(timeout);
        }
        let mut memory = self.0.memory();
        memory.sleepers -= 1;
        if memory.sleepers == 0 {
            memory.disarm();
        }
    }
}

impl Waiter for SocketWaiter {
    fn wait(&self, most: Duration) {
        self.pass(most, YIELDS, &|| false);
    }

    fn sleep(&self, most: Duration, stays_awake: bool, is_called: &dyn Fn() -> bool) {
        self.pass(most, if stays_awake { YIELDS } else { 0 }, is_called);
    }

    fn wake(&self) {
        // It fails only when its counter is full: then it wakes already.
        let _ = self.0.wake_up.write(1);
    }

    fn blocks(&self) -> bool {
        true
    }

    fn is_virtual(&self) -> bool {
        false
    }
}
