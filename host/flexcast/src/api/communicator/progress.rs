//! The progress thread of a communicator.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::Shared;
use crate::engine::datapath::Datapath;
use crate::error::{Error, Result};
use crate::op::config::ThreadOptions;

/// Sleep of a thread whose communicator has nothing under way: neighbours may still need an answer.
const IDLE: Duration = Duration::from_millis(1);
/// Sleep between two polls of an operation that does not move.
const BUSY: Duration = Duration::from_micros(20);
/// Polls of callers between two of the thread's. So many show that a caller waits for its operations itself: the thread
/// then only takes turns and processor away from it.
pub(super) const ATTENDED: u32 = 16;
/// Sleep of the thread meanwhile: so long nobody polls once the callers stay away.
const AWAY: Duration = Duration::from_millis(2);
/// Longest sleep of a thread that is woken while something is under way.
const STALE: Duration = Duration::from_millis(5);
/// Polls in vain before the thread sleeps between them.
const SPINS: u32 = 1000;

/// What the thread is asked to do.
#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Something was posted since the thread last slept.
    posted: bool,
    stop: bool,
}

impl Signal {
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    /// Whether something was posted, or the thread is to end.
    fn is_set(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.posted || state.stop
    }

    /// Sleeps until the signal is set, at most so long; whether the thread goes on.
    fn sleep(&self, most: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |state: &mut State| !state.posted && !state.stop;
        let (mut state, _) =
            self.changed.wait_timeout_while(state, most, quiet).unwrap_or_else(PoisonError::into_inner);
        state.posted = false;
        !state.stop
    }
}

/// The thread. It ends with its communicator.
#[derive(Debug)]
pub(super) struct ProgressThread {
    signal: Arc<Signal>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl ProgressThread {
    /// Makes a communicator's shared state around a thread that moves it on.
    pub(super) fn start(options: ThreadOptions, make: impl FnOnce(Self) -> Arc<Shared>) -> Result<Arc<Shared>> {
        let failed = |source| Error::ProgressThread { cpu: options.cpu, source };
        let signal = Arc::new(Signal::default());
        let (send, receive) = std::sync::mpsc::sync_channel::<Weak<Shared>>(1);
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let of_thread = Arc::clone(&signal);
        let run = move || {
            let pinned = options.cpu.map_or(Ok(()), pin);
            let goes_on = pinned.is_ok();
            if ready.send(pinned).is_ok()
                && goes_on
                && let Ok(shared) = receive.recv()
            {
                drive(&shared, &of_thread, options.cpu.is_some());
            }
        };
        let handle = thread::Builder::new().name("flexcast".to_owned()).spawn(run).map_err(failed)?;
        is_ready.recv().unwrap_or(Ok(())).map_err(failed)?;
        let shared = make(Self { signal, handle: Mutex::new(Some(handle)) });
        // The thread waits for this.
        let _ = send.send(Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Something was posted.
    pub(super) fn notify(&self) {
        self.signal.set(|state| state.posted = true);
    }

    /// Ends it: `wake` wakes it where it waits for the network. Afterwards it holds nothing of the communicator, unless
    /// it is the calling thread.
    pub(super) fn stop(&self, wake: impl FnOnce()) {
        self.signal.set(|state| state.stop = true);
        wake();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread itself may have had the last count of the communicator.
        if let Some(handle) = handle.filter(|handle| handle.thread().id() != thread::current().id()) {
            let _ = handle.join();
        }
    }
}

/// Moves a communicator on until it is gone, or of no use any more. A thread that is pinned has that processor to
/// itself.
fn drive(shared: &Weak<Shared>, signal: &Signal, pinned: bool) {
    let mut in_vain = 0;
    loop {
        let sleep = {
            let Some(shared) = shared.upgrade() else { return };
            if shared.is_attended() {
                drop(shared);
                // Whoever posts without waiting ends it.
                if !signal.sleep(AWAY) {
                    return;
                }
                continue;
            }
            let progress = |datapath: &mut dyn Datapath| (datapath.progress(), datapath.is_idle());
            // While another thread moves it on, this one need not.
            let (moved, idle) = shared.turns.try_with(progress).unwrap_or((Ok(false), false));
            match moved {
                Ok(true) => {
                    in_vain = 0;
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    // The next wait or test reports it.
                    shared.turns.with(|datapath| datapath.core_mut().set_fault(error));
                    return;
                }
            }
            if shared.waiter.blocks() {
                // Sockets, posts, callers that wait and the end of the communicator wake it. A caller may move it on
                // meanwhile, and change when it is due.
                let most = if idle { shared.next() } else { shared.next().min(STALE) };
                shared.thread_waits.store(true, Ordering::SeqCst);
                let is_called = || signal.is_set() || shared.attending.load(Ordering::SeqCst) > 0;
                shared.waiter.sleep(most, pinned, &is_called);
                shared.thread_waits.store(false, Ordering::Relaxed);
                if !signal.sleep(Duration::ZERO) {
                    return;
                }
                continue;
            }
            if idle {
                in_vain = 0;
                Some(IDLE)
            } else {
                shared.waiter.wait(Duration::ZERO);
                in_vain += 1;
                // Virtual time advances only with polls.
                (in_vain > SPINS && !shared.waiter.is_virtual()).then_some(BUSY)
            }
        };
        if !signal.sleep(sleep.unwrap_or(Duration::ZERO)) {
            return;
        }
    }
}

/// Keeps the calling thread on a processor.
fn pin(cpu: u32) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu as usize)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}
