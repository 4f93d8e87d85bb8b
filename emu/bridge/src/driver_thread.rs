//! The thread that keeps a bridged machine going while the program does something else.

use std::cell::Cell;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;
use nix::sys::time::TimeSpec;

use crate::bridge::Bridge;
use crate::limits::IDLE;

/// As long as a thread of the program polls, it drives the machine itself; the driver thread checks this often whether
/// it still does. Longer than a call to poll takes.
const POLLER: Duration = Duration::from_micros(300);

/// When the machine needs somebody, for the driver thread and everybody else.
#[derive(Debug)]
pub(crate) struct Plan {
    inner: Arc<Inner>,
    /// The socket once more, for threads that wait without the machine's lock.
    socket: Option<Arc<UdpSocket>>,
}

#[derive(Debug)]
struct Inner {
    start: Instant,
    /// Wakes the driver thread; without one (no descriptors left) it sleeps a little too long.
    wake: Option<EventFd>,
    /// All in nanoseconds since the start: when something is due, until when the driver thread sleeps, when a thread
    /// last polled.
    due_ns: AtomicU64,
    asleep_until_ns: AtomicU64,
    polled_ns: AtomicU64,
    /// The program sleeps for events, so that it once polled does not mean that it goes on polling.
    sleeps: AtomicBool,
}

impl Inner {
    fn ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_nanos() as u64
    }

    fn polls(&self, now_ns: u64) -> bool {
        let polled_ns = self.polled_ns.load(Ordering::Relaxed);
        polled_ns > 0
            && !self.sleeps.load(Ordering::Relaxed)
            && now_ns.saturating_sub(polled_ns) < POLLER.as_nanos() as u64
    }
}

thread_local! {
    static IS_DRIVER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is the driver thread, and none of the program.
pub(crate) fn is_calling() -> bool {
    IS_DRIVER_THREAD.get()
}

/// Waits until one of the descriptors is readable, at most so long.
fn wait(descriptors: &[BorrowedFd<'_>], most: Duration) {
    let mut polls: Vec<_> = descriptors.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Interrupted or not: the caller checks again.
    let _ = ppoll(&mut polls, Some(TimeSpec::from_duration(most)), None);
}

impl Plan {
    pub(crate) fn new() -> Self {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).ok();
        let [due_ns, asleep_until_ns, polled_ns] = std::array::from_fn(|_| AtomicU64::new(0));
        let inner =
            Inner { start: Instant::now(), wake, due_ns, asleep_until_ns, polled_ns, sleeps: AtomicBool::new(false) };
        Self { inner: Arc::new(inner), socket: None }
    }

    pub(crate) fn start(&self) -> Instant {
        self.inner.start
    }

    pub(crate) fn set(&self, due: Instant) {
        self.inner.due_ns.store(self.inner.ns(due), Ordering::Relaxed);
    }

    /// A thread of the program polls.
    pub(crate) fn polled(&self) {
        self.inner.polled_ns.store(self.inner.ns(Instant::now()), Ordering::Relaxed);
    }

    /// See [`emu_machine::Driver::will_sleep`].
    pub(crate) fn will_sleep(&self) {
        if !self.inner.sleeps.swap(true, Ordering::Relaxed)
            && let Some(wake) = &self.inner.wake
        {
            // It may have gone to sleep without the socket.
            let _ = wake.write(1);
        }
    }

    /// Wakes the driver thread if something is due before it wakes, and nobody else is there.
    pub(crate) fn wake(&self) {
        let Inner { due_ns, asleep_until_ns, wake, .. } = &*self.inner;
        let due_ns = due_ns.load(Ordering::Relaxed);
        let asleep_until_ns = asleep_until_ns.load(Ordering::Relaxed);
        let now_ns = self.inner.ns(Instant::now());
        // Somebody who polls does what is due, but may stop: then the driver thread must be back soon.
        let late_ns = if self.inner.polls(now_ns) { now_ns + 2 * POLLER.as_nanos() as u64 } else { due_ns };
        if due_ns < asleep_until_ns
            && late_ns < asleep_until_ns
            && let Some(wake) = wake
        {
            // Full only after 2^64 wakes.
            let _ = wake.write(1);
        }
    }

    /// Something that waits for the socket, at most so long.
    pub(crate) fn sleeper(&mut self, socket: &UdpSocket, most: Duration) -> Option<Box<dyn FnOnce() + Send>> {
        if self.socket.is_none() {
            self.socket = socket.try_clone().ok().map(Arc::new);
        }
        let socket = Arc::clone(self.socket.as_ref()?);
        Some(Box::new(move || wait(&[socket.as_fd()], most)))
    }
}

/// Starts the thread. It lives as long as the process, and leaves signals to the program's threads.
///
/// # Errors
/// The system has no thread or descriptor left.
pub(crate) fn start(bridge: &Bridge) -> io::Result<()> {
    let inner = Arc::clone(&bridge.plan().inner);
    let socket = bridge.wire().socket().try_clone()?;
    let keep = move || {
        // A signal handler of the program must not run here, behind the machine's lock.
        let _ = SigSet::all().thread_block();
        IS_DRIVER_THREAD.set(true);
        loop {
            // Every call on the machine first lets happen what is due.
            if emu_machine::with_world(|_| ()).is_err() {
                return;
            }
            let now_ns = inner.ns(Instant::now());
            let polls = inner.polls(now_ns);
            let due_ns = inner.due_ns.load(Ordering::Relaxed);
            let due = Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(IDLE);
            let sleep = if polls { POLLER } else { due };
            inner.asleep_until_ns.store(now_ns + sleep.as_nanos() as u64, Ordering::Relaxed);
            let mut descriptors: Vec<_> = inner.wake.iter().map(AsFd::as_fd).collect();
            if !polls {
                descriptors.push(socket.as_fd());
            }
            wait(&descriptors, sleep);
            inner.asleep_until_ns.store(0, Ordering::Relaxed);
            if let Some(wake) = &inner.wake {
                let _ = wake.read();
            }
        }
    };
    std::thread::Builder::new().name("flexcast-bridge".to_owned()).spawn(keep).map(drop)
}
