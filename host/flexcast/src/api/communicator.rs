//! A group of ranks.

mod attendance;
mod pending;
mod progress;
#[cfg(test)]
mod turns;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::RankInfo;

pub use attendance::Attendance;
pub use pending::Pending;
use progress::ProgressThread;

use crate::api::request::{Request, Test};
use crate::bootstrap::Exchange;
use crate::carrier::Parts;
use crate::carrier::endpoint::Endpoint;
use crate::engine::datapath::{Datapath, Waiter};
use crate::engine::{Admission, Posted, Requests, Task, Turns};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::config::{Config, Control};
use crate::op::lists::ListPool;
use crate::op::outcome::{Failed, Outcome};
use crate::op::report::{MessageCounts, Report, duration};
use crate::op::service_options::ControlReport;
use crate::plan::footprint::Footprint;

/// Longest that a connection which is being made anew is waited for: a card empties a queue in microseconds.
const RESTART: Duration = Duration::from_millis(20);

/// Longest that a service process takes to let go of a buffer.
const TAKE_BACK: Duration = Duration::from_secs(5);

/// Sleep of a thread that has found another one moving the communicator on.
const TAKEN: Duration = Duration::from_micros(50);

/// Longest sleep of a progress thread whose communicator has nothing under way, and that is woken when it has.
const IDLE: Duration = Duration::from_secs(1);

/// Ranks that broadcast and gather among one another.
///
/// Without a progress thread ([`Config::progress_thread`]) nothing happens by itself: [`Communicator::progress`], or a
/// test or wait that calls it, moves the protocol on. What the card does (receiving, copying, sending) needs no such
/// call. Operations of one communicator run one after another, in the order in which they were posted, which must be
/// the same on all ranks; several communicators run side by side.
///
/// A clone is the same communicator. Every function may be called from every thread. One at a time moves the protocol
/// on; those that post, test and wait meanwhile are not held up by it. The communicator ends with the last of its
/// clones and its requests.
#[derive(Clone)]
pub struct Communicator(Arc<Owner>);

/// What users hold of a communicator's state. With the last of them the progress thread ends, and has ended when that
/// returns: what was said last is with the system, although the program goes at once.
struct Owner(Arc<Shared>);

impl Deref for Owner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            thread.stop(|| self.waiter.wake());
        }
    }
}

/// A communicator's state, and what does not change of it.
struct Shared {
    thread: Option<ProgressThread>,
    waiter: Arc<dyn Waiter>,
    turns: Turns,
    requests: Requests,
    admission: Admission,
    lists: ListPool,
    endpoint: Endpoint,
    config: Config,
    footprint: Footprint,
    control: ControlReport,
    place: RankInfo,
    id: u64,
    /// Polls of callers since the progress thread's last one.
    polls: AtomicU32,
    /// Callers that wait.
    attending: AtomicU32,
    /// One of them waits for the network; the others wait for it.
    leads: AtomicBool,
    /// The progress thread waits for the network, or is about to.
    thread_waits: AtomicBool,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("place", &self.0.place).field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl Shared {
    /// Moves the protocol on for a caller that may not come back once its operations are over, unless there is a
    /// progress thread.
    fn progress(&self, datapath: &mut dyn Datapath) -> Result<bool> {
        let moved = datapath.progress()?;
        if self.thread.is_none() && !self.waiter.is_virtual() {
            // A connection that is being made anew while nothing is under way is waited for.
            let step = || match datapath.is_idle() && !datapath.may_be_left() {
                true => datapath.progress().map(Some),
                false => Ok(None),
            };
            return Ok(leave(step)? || moved);
        }
        Ok(moved)
    }

    /// Whether callers move it on, so that the progress thread would only take turns and processor away from them.
    fn is_attended(&self) -> bool {
        let polled = self.polls.swap(0, Ordering::Relaxed) >= progress::ATTENDED;
        !self.waiter.is_virtual() && (polled || self.attending.load(Ordering::Relaxed) > 0)
    }

    /// How long nothing need be polled.
    fn next(&self) -> Duration {
        let left_ps =
            |datapath: &mut dyn Datapath| datapath.deadline_ps().map(|due_ps| due_ps.saturating_sub(datapath.now_ps()));
        match self.turns.try_with(left_ps) {
            Some(left_ps) => left_ps.map_or(IDLE, duration),
            None => TAKEN,
        }
    }
}

/// Calls `step` until there is nothing to be done any more, and it returns none. Returns whether any has moved
/// anything.
fn leave(mut step: impl FnMut() -> Result<Option<bool>>) -> Result<bool> {
    let (since, mut moved) = (Instant::now(), false);
    while since.elapsed() < RESTART
        && let Some(any) = step()?
    {
        moved |= any;
    }
    Ok(moved)
}

impl Communicator {
    /// Makes a communicator of all ranks of an exchange; collective. Blocks as long as the exchange does.
    ///
    /// # Errors
    /// [`Error::Exchange`] when ranks are missing or doubled, [`Error::Peer`] when they do not fit one another or one
    /// of them could not make its part, and what [`Pending::new`] gives.
    pub fn create(endpoint: &Endpoint, exchange: &mut dyn Exchange, config: Config) -> Result<Self> {
        crate::api::split::found(endpoint, exchange, config)
    }

    pub(crate) fn of(parts: Parts, control: ControlReport) -> Result<Self> {
        let Parts { endpoint, datapath, waiter, footprint } = parts;
        // That of the engine says who runs the protocol.
        let config = datapath.core().config.clone();
        let config = if control.control == Control::Service { config.control(Control::Service) } else { config };
        let (place, id) = (datapath.core().place, datapath.core().id);
        let options = config.progress_thread;
        let (requests, admission) = (datapath.core().requests.clone(), datapath.admission());
        let (turns, lists) = (Turns::new(datapath), ListPool::new(place.ranks()));
        let shared = |thread| Shared {
            thread,
            waiter,
            turns,
            requests,
            admission,
            lists,
            endpoint,
            config,
            footprint,
            control,
            place,
            id,
            polls: AtomicU32::new(0),
            attending: AtomicU32::new(0),
            leads: AtomicBool::new(false),
            thread_waits: AtomicBool::new(false),
        };
        match options {
            None => Ok(Self(Arc::new(Owner(Arc::new(shared(None)))))),
            Some(options) => {
                let started = ProgressThread::start(options, |thread| Arc::new(shared(Some(thread))));
                started.map(|shared| Self(Arc::new(Owner(shared))))
            }
        }
    }

    /// The own rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.0.place.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.0.place.ranks()
    }

    /// The endpoint that it was made from.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// Which control carries its operations, and why, if not the one of its parameters.
    #[must_use]
    pub fn control(&self) -> &ControlReport {
        &self.0.control
    }

    /// Its parameters.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// What it takes of the endpoint's card.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        self.0.footprint
    }

    /// Control messages sent so far.
    #[must_use]
    pub fn messages(&self) -> MessageCounts {
        self.0.turns.with(|datapath| datapath.messages())
    }

    /// Counters of the receive workers, all together, as of their last report.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn receive_statistics(&self) -> Result<Statistics> {
        self.0.turns.with(|datapath| datapath.receive_statistics())
    }

    /// Counters of the send workers, all together.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn send_statistics(&self) -> Result<SendReport> {
        self.0.turns.with(|datapath| datapath.send_statistics())
    }

    /// Whether the card says that the operation posted last is over, with the protocol on the card
    /// ([`Control::Device`](crate::Control::Device)), or by service processes
    /// ([`Control::Service`](crate::Control::Service)); false otherwise. Reads words of host memory that the card
    /// writes, and does nothing: a test or [`Communicator::progress`] takes note.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn is_flagged(&self) -> Result<bool> {
        self.0.turns.with(|datapath| datapath.is_flagged())
    }

    /// Moves the protocol on as far as it goes now; returns whether anything happened. Never blocks: while another
    /// thread does the same nothing happens here.
    ///
    /// # Errors
    /// The failure of a library call; the communicator is of no use afterwards. Failures of operations are theirs
    /// ([`Failed`]).
    pub fn progress(&self) -> Result<bool> {
        if self.0.thread.is_some() {
            self.0.polls.fetch_add(1, Ordering::Relaxed);
        }
        self.0.turns.try_with(|datapath| self.0.progress(datapath)).unwrap_or(Ok(false))
    }

    /// When [`Communicator::progress`] is to be called next by the endpoint's clock ([`Endpoint::now`]), even if
    /// neither peers nor card have written anything until then; none if nothing is under way. For loops that sleep
    /// until something happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline_ps().map(duration)
    }

    /// The same in picoseconds, for emulated cards, whose clocks are that fine.
    #[doc(hidden)]
    #[must_use]
    pub fn deadline_ps(&self) -> Option<u64> {
        self.0.turns.with(|datapath| datapath.deadline_ps())
    }

    /// See [`Request::test`].
    pub(crate) fn test(&self, request: Request) -> Result<Test, Box<Failed>> {
        let number = request.number();
        let mut done = self.0.requests.take_done(number);
        if done.is_none() {
            self.progress().map_err(|error| Box::new(Failed::of(error)))?;
            done = self.0.requests.take_done(number);
        }
        match done {
            Some(outcome) => {
                request.forget();
                outcome.map(Test::Done)
            }
            None => Ok(Test::Pending(request)),
        }
    }

    fn is_own(&self, request: &Request) -> bool {
        request.communicator().is_some_and(|communicator| Arc::ptr_eq(&communicator.0, &self.0))
    }

    /// Whether an operation was over when the protocol was last moved on; moves nothing. False for a request of another
    /// communicator.
    #[must_use]
    pub fn is_done(&self, request: &Request) -> bool {
        self.is_own(request) && self.0.requests.is_done(request.number())
    }

    /// A poll of a request as a future.
    pub(crate) fn poll_request(&self, number: u64, waker: &Waker) -> Poll<Outcome> {
        let requests = &self.0.requests;
        let moved = if requests.is_done(number) { Ok(false) } else { self.progress() };
        match (requests.poll_done(number, waker), moved) {
            (Poll::Pending, Err(error)) => Poll::Ready(Err(Box::new(Failed::of(error)))),
            (polled, _) => polled,
        }
    }

    /// A request is dropped: its operation goes on, and nobody asks for its end.
    pub(crate) fn abandon(&self, number: u64) {
        self.0.requests.abandon(number);
    }

    /// What this communicator takes on.
    pub(crate) fn admission(&self) -> &Admission {
        &self.0.admission
    }

    /// Where the lists of operations come from.
    pub(crate) fn lists(&self) -> &ListPool {
        &self.0.lists
    }

    /// Refuses operations once the communicator has failed.
    pub(crate) fn check_whole(&self) -> Result<()> {
        self.0.requests.broken().map_or(Ok(()), |failure| Err(self.0.requests.refusal(failure)))
    }

    /// Refuses buffers that are not of this communicator's kind of endpoint.
    pub(crate) fn check_buffers(&self, operation: &'static str, send: Option<&Buffer>, receive: &Buffer) -> Result<()> {
        let Some(other) = send.into_iter().chain([receive]).find(|buffer| !self.0.admission.takes(buffer)) else {
            return Ok(());
        };
        let reason = format!(
            "a buffer of {} bytes of another kind of endpoint: make it by this communicator's endpoint",
            other.len()
        );
        Err(Error::Argument { operation, reason })
    }

    /// Posts an operation whose arguments have been checked: takes it on, or leaves it to the thread that moves the
    /// communicator on. Wakes the progress thread.
    pub(crate) fn post_task(
        &self,
        task: Result<Task>,
        send: Option<Buffer>,
        mut receive: Buffer,
    ) -> Result<Request, Box<Failed>> {
        let plan = match task {
            Ok(plan) => plan,
            Err(error) => {
                return Err(Box::new(Failed { error, send, receive: Some(receive), report: Report::default() }));
            }
        };
        receive.mark_known();
        let number = self.0.turns.post(Posted { request: 0, plan, send, receive, posted_ps: 0 })?;
        self.wake_thread();
        Ok(Request::new(number, self.clone()))
    }

    /// Something is under way; whoever waits moves it on as well.
    fn wake_thread(&self) {
        if let Some(thread) = &self.0.thread
            && self.0.attending.load(Ordering::Relaxed) == 0
        {
            thread.notify();
            self.0.waiter.wake();
        }
    }

    /// Ends all operations of the communicator, on all ranks, as failures; it cannot be used afterwards. To be followed
    /// by tests, which give the buffers back once the card has stopped.
    pub fn cancel(&self) {
        self.0.turns.with(|datapath| datapath.fail_here(flexcast_proto::Cause::Cancelled));
        self.wake_thread();
    }

    /// Takes a buffer back from the service process of this communicator
    /// ([`Control::Service`](crate::Control::Service)), which may use it between operations: from then on it reaches
    /// the buffer by no key, and [`Buffer::as_slice`] gives the bytes. Returns at once for a buffer that this
    /// communicator has not leased to the process. The next operation leases it again, which costs what the first lease
    /// did.
    ///
    /// Blocks until the process has let go of the buffer. A process that has not within five seconds counts as gone,
    /// and with it the communicator.
    ///
    /// # Errors
    /// [`Error::Leased`]: the card does not let go of the key; the failure of a library call.
    pub fn take_back(&self, buffer: &mut Buffer) -> Result<()> {
        let (attendance, begun) = (self.attend(), Instant::now());
        loop {
            let is_late = begun.elapsed() >= TAKE_BACK;
            let step = |datapath: &mut dyn Datapath| {
                datapath.progress()?;
                datapath.take_back(buffer, is_late)
            };
            if self.0.turns.with(step)? {
                return Ok(());
            }
            if is_late {
                return buffer.check_not_leased();
            }
            attendance.pause_any(TAKEN);
        }
    }

    /// Whether no operation is under way or waits for its turn.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.turns.with(|datapath| datapath.is_idle())
    }

    /// What two ranks have called, if an operation has failed because they differ: alike on all ranks, and part of the
    /// error's text.
    #[must_use]
    pub fn disagreement(&self) -> Option<flexcast_proto::Disagreement> {
        self.0.turns.with(|datapath| datapath.disagreement())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_does_not_leave_a_connection_that_is_being_made_anew() {
        let mut steps = 0;
        let mut connection = || {
            steps += 1;
            Ok((steps <= 5).then_some(steps == 5))
        };
        assert!(leave(&mut connection).unwrap());
        assert!(!leave(&mut connection).unwrap(), "nothing is left to be done");
        assert_eq!(steps, 7);
        let since = Instant::now();
        leave(|| Ok(Some(false))).unwrap();
        assert!(since.elapsed() >= RESTART, "a card that does not answer is not waited for for ever");
    }
}
