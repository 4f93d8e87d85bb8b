//! Operations under way, and what became of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::pin::Pin;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use flexcast_rust::{Aggregation, Cause, Communicator, Outcome, Report, Request};

use crate::call::Call;
use crate::communicator::Group;
use crate::fault::{Fault, call, guard, lock, remember};
use crate::handle::{self, Code, Kind};
use crate::memory::{User, give, out};
use crate::status::flexcast_status::{self, *};

/// An operation: to be started, under way or over. One of flexcast_post() is freed by the flexcast_wait() or
/// flexcast_test() that reports its end; one of flexcast_prepare() stays until flexcast_request_free().
pub struct flexcast_request {
    _opaque: [u8; 0],
}

/// A time of something that has not happened.
pub const FLEXCAST_NEVER: u64 = u64::MAX;

/// No failure.
pub const FLEXCAST_CAUSE_NONE: u32 = 0;
/// The failed rank was waited for in vain; the code says for what: FLEXCAST_WAITED_FOR_....
pub const FLEXCAST_CAUSE_SILENT: u32 = 1;
/// The failed rank cancelled.
pub const FLEXCAST_CAUSE_CANCELLED: u32 = 2;
/// The failed rank called another operation than the detecting rank, or with other arguments; flexcast_last_error()
/// names both calls.
pub const FLEXCAST_CAUSE_DISAGREES: u32 = 3;
/// The failed rank's worker on the card failed; the code says how: FLEXCAST_CODE_....
pub const FLEXCAST_CAUSE_DEVICE: u32 = 4;
/// The connection between them broke; the code says how: FLEXCAST_CODE_....
pub const FLEXCAST_CAUSE_CONNECTION: u32 = 5;
/// An aggregator that is no rank failed the detecting rank; the code is its number among the setting
/// `sparse.aggregators`, from 0.
pub const FLEXCAST_CAUSE_AGGREGATOR: u32 = 6;
/// The failed rank contributed a number beyond the setting `sparse.fixed_point`, infinite or not a number;
/// FLEXCAST_ERROR_CONTRIBUTION and flexcast_last_error() there say which.
pub const FLEXCAST_CAUSE_CONTRIBUTION: u32 = 7;

/// What an operation did. Times are nanoseconds of the library's clock, FLEXCAST_NEVER for what has not happened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct flexcast_report {
    /// A flexcast_status: how it ended.
    pub status: i32,
    /// 1 if the card could not be made to let go of the memory after a failure: it must stay allocated until the
    /// communicator is freed.
    pub memory_held: u32,
    /// Posted by the program.
    pub posted_ns: u64,
    /// Workers armed.
    pub armed_ns: u64,
    /// All ranks can receive.
    pub ready_ns: u64,
    /// Own bytes begun to be multicast.
    pub sending_ns: u64,
    /// Own bytes sent.
    pub sent_ns: u64,
    /// All received by multicast.
    pub received_ns: u64,
    /// Cutoff reached.
    pub cut_off_ns: u64,
    /// Everything in the buffer, what was fetched from the neighbour included.
    pub complete_ns: u64,
    /// Over.
    pub released_ns: u64,
    /// Bytes that came from other ranks.
    pub foreign_bytes: u64,
    /// Chunks that multicast lost and the neighbour had.
    pub recovered_chunks: u64,
    /// Their bytes.
    pub recovered_bytes: u64,
    /// Reads that fetched them.
    pub reads: u64,
    /// Fetch requests of the other neighbour.
    pub fetches_served: u64,
    /// Chunks that came by multicast after they had been given up for lost; not counted by the datapath "dpa".
    pub late_chunks: u64,
    /// Datagrams to the group for which the socket's receive buffer had no room; of the datapath "udp".
    pub overflowed_datagrams: u64,
    /// Why it failed: a FLEXCAST_CAUSE_... number.
    pub cause: u32,
    /// Code that belongs to the cause: FLEXCAST_CODE_... of FLEXCAST_CAUSE_DEVICE and FLEXCAST_CAUSE_CONNECTION,
    /// FLEXCAST_WAITED_FOR_... of FLEXCAST_CAUSE_SILENT, the aggregator's number of FLEXCAST_CAUSE_AGGREGATOR, else 0.
    pub code: u32,
    /// Rank that is to blame.
    pub failed_rank: u32,
    /// Rank that found it.
    pub detecting_rank: u32,
    /// The rate that limited how fast the own bytes were multicast, in Mbit/s; 0: none. Of the datapath "udp".
    pub pace_mbit_per_s: u32,
    /// 1 if the DPAs of the ranks' cards have added, of a sparse AllReduce (the setting `sparse.aggregation`).
    pub added_by_dpa: u32,
    /// Largest difference between a sum and that of the contributions, except for its rounding to a float, if they were
    /// added as fixed-point numbers (the setting `sparse.fixed_point`); else 0.
    pub sum_error: f64,
}

impl flexcast_report {
    fn new(status: flexcast_status, report: &Report, memory_held: bool) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(FLEXCAST_NEVER);
        let time = |time: Option<Duration>| time.map_or(FLEXCAST_NEVER, ns);
        let phases = &report.phases;
        let (cause, code) = match report.failure.map(|failure| failure.cause) {
            None => (FLEXCAST_CAUSE_NONE, 0),
            Some(Cause::Silent(waited_for)) => (FLEXCAST_CAUSE_SILENT, u32::from(waited_for as u8)),
            Some(Cause::Cancelled) => (FLEXCAST_CAUSE_CANCELLED, 0),
            Some(Cause::Disagrees) => (FLEXCAST_CAUSE_DISAGREES, 0),
            Some(Cause::Device(code)) => (FLEXCAST_CAUSE_DEVICE, code.to_raw().into()),
            Some(Cause::Connection(code)) => (FLEXCAST_CAUSE_CONNECTION, code.to_raw().into()),
            Some(Cause::Aggregator(number)) => (FLEXCAST_CAUSE_AGGREGATOR, number.into()),
            Some(Cause::Contribution) => (FLEXCAST_CAUSE_CONTRIBUTION, 0),
        };
        Self {
            status: status as i32,
            memory_held: memory_held.into(),
            posted_ns: ns(phases.posted()),
            armed_ns: time(phases.armed()),
            ready_ns: time(phases.ready()),
            sending_ns: time(phases.sending()),
            sent_ns: time(phases.sent()),
            received_ns: time(phases.received()),
            cut_off_ns: time(phases.cut_off()),
            complete_ns: time(phases.complete()),
            released_ns: time(phases.released()),
            foreign_bytes: report.foreign_bytes,
            recovered_chunks: report.recovered_chunks,
            recovered_bytes: report.recovered_bytes,
            reads: report.reads,
            fetches_served: report.fetches_served,
            late_chunks: report.late_chunks,
            overflowed_datagrams: report.overflowed_datagrams,
            cause,
            code,
            failed_rank: report.failure.map_or(0, |failure| failure.failed_rank),
            detecting_rank: report.failure.map_or(0, |failure| failure.detecting_rank),
            pace_mbit_per_s: report.pace_mbit_per_s.unwrap_or(0),
            added_by_dpa: (report.decision.aggregation() == Some(Aggregation::Dpa)).into(),
            sum_error: report.decision.fixed_point().map_or(0.0, |format| format.error()),
        }
    }
}

enum State {
    /// Not posted yet.
    Ready,
    UnderWay {
        communicator: Communicator,
        /// None while a thread posts or tests it.
        request: Option<Request>,
        claims: Vec<u64>,
        /// It has ended while a thread tested it: that one tests again.
        again: bool,
    },
    Over {
        fault: Option<Fault>,
        report: Box<flexcast_report>,
    },
}

/// An operation that is to be called back, and how it has failed.
type Due = (Arc<Operation>, Option<Fault>);

thread_local! {
    /// Callbacks that are due while one runs on this thread; `None`: none runs.
    static DUE: RefCell<Option<VecDeque<Due>>> = const { RefCell::new(None) };
}

/// Whether the program is in a callback on this thread.
pub(crate) fn in_callback() -> bool {
    DUE.with_borrow(Option::is_some)
}

/// A function of the program, for the end of an operation.
pub(crate) struct Callback {
    pub(crate) function: unsafe extern "C" fn(*mut c_void, *mut flexcast_request, flexcast_status),
    pub(crate) user: User,
}

/// An operation and its outcome.
pub(crate) struct Operation {
    group: Arc<Group>,
    call: Call,
    /// Whoever posts it waits at once.
    awaited: bool,
    /// It stays when it is over, and may be posted again.
    stays: bool,
    callback: Option<Callback>,
    /// Its own handle, for the callback.
    handle: AtomicPtr<flexcast_request>,
    state: Mutex<State>,
}

impl Kind for Operation {
    type Handle = flexcast_request;
    const CODE: Code = Code::Request;
}

impl Operation {
    /// An operation that is not posted, and its handle.
    pub(crate) fn new(
        group: Arc<Group>,
        call: Call,
        awaited: bool,
        stays: bool,
        callback: Option<Callback>,
    ) -> Result<(Arc<Self>, *mut flexcast_request), Fault> {
        let (handle, state) = (AtomicPtr::default(), Mutex::new(State::Ready));
        let operation = Arc::new(Self { group, call, awaited, stays, callback, handle, state });
        let handle = handle::insert(Arc::clone(&operation))?;
        operation.handle.store(handle, Ordering::Relaxed);
        Ok((operation, handle))
    }

    /// Posts it.
    ///
    /// # Safety
    /// Its memory is readable and writable as the header says.
    pub(crate) unsafe fn post(self: &Arc<Self>) -> Result<(), Fault> {
        let communicator = {
            let mut state = lock(&self.state)?;
            match &*state {
                State::UnderWay { .. } => return Err(under_way("cannot be posted again")),
                State::Over { .. } if !self.stays => {
                    let text = "the request is one of flexcast_post(), which posts it once: make one that can be \
                        started again by flexcast_prepare()";
                    return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
                }
                State::Ready | State::Over { .. } => {}
            }
            let communicator = self.group.begin()?;
            *state =
                State::UnderWay { communicator: communicator.clone(), request: None, claims: Vec::new(), again: false };
            communicator
        };
        // Whoever posts waits at once: the progress thread is not woken.
        let _attendance = self.awaited.then(|| communicator.attend());
        // Outside of the lock: to post moves others on, whose callbacks may use this one.
        let bytes = [self.call.send, self.call.receive].map(|memory| memory.map_or(0, |memory| memory.bytes));
        tracing::debug!(sent = bytes[0], received = bytes[1], "{} is posted", self.call.name());
        // SAFETY: by this function's contract.
        match unsafe { self.claim_and_post(&communicator) } {
            Ok((request, claimed)) => {
                if let State::UnderWay { request: place, claims, .. } = &mut *lock(&self.state)? {
                    (*place, *claims) = (Some(request), claimed);
                }
                if self.is_notified() {
                    // From now on whoever ends it notifies.
                    self.test()?;
                }
                Ok(())
            }
            Err(fault) => {
                self.group.begun_in_vain();
                *lock(&self.state)? = State::Ready;
                Err(fault)
            }
        }
    }

    /// # Safety
    /// As for [`Operation::post`].
    unsafe fn claim_and_post(&self, communicator: &Communicator) -> Result<(Request, Vec<u64>), Fault> {
        let (endpoint, Call { send, receive, .. }) = (self.group.endpoint(), &self.call);
        let mut claims = Vec::new();
        let posted = (|| {
            for (memory, written, what) in [(receive, true, "receive"), (send, false, "send")] {
                if let Some(memory) = memory {
                    claims.push(endpoint.claims.claim(memory.start, memory.bytes, written, what)?);
                }
            }
            let memory = endpoint.memory();
            let is_copied = self.call.is_copied();
            // SAFETY: the caller vouches for the memory; no other operation writes it, as `claim` has seen.
            let buffer = |start: *mut u8, bytes| unsafe {
                if is_copied { memory.unregistered(start, bytes) } else { memory.buffer(start, bytes) }
            };
            // SAFETY: the same, and it is given as a send buffer.
            let source = |start: *mut u8, bytes| unsafe {
                if is_copied { memory.unregistered(start, bytes) } else { memory.source(start, bytes) }
            };
            let receive = receive.map(|receive| buffer(receive.start.cast(), receive.bytes)).transpose()?;
            let send = send.map(|send| source(send.start.cast(), send.bytes)).transpose()?;
            let call = self.call.with(send, receive)?;
            communicator.post(call).map_err(|refused| Fault::from(&refused.error))
        })();
        match posted {
            Ok(request) => Ok((request, claims)),
            Err(fault) => {
                endpoint.claims.release(&claims);
                Err(fault)
            }
        }
    }

    /// Its communicator while it is under way.
    pub(crate) fn communicator(&self) -> Result<Option<Communicator>, Fault> {
        Ok(match &*lock(&self.state)? {
            State::UnderWay { communicator, .. } => Some(communicator.clone()),
            State::Ready | State::Over { .. } => None,
        })
    }

    /// Frees its handle, after its end was reported, unless it stays.
    pub(crate) fn consume(&self, request: *mut flexcast_request) {
        if !self.stays {
            // Another thread, or the callback, may have freed it.
            let _ = handle::remove::<Self>(request);
        }
    }

    /// Whether somebody is to be notified of its end.
    fn is_notified(&self) -> bool {
        self.callback.is_some() || self.group.is_watched()
    }

    /// Moves it on; `Some` when it is over: how.
    pub(crate) fn test(self: &Arc<Self>) -> Result<Option<Option<Fault>>, Fault> {
        self.test_and(|_| {})
    }

    /// The same; what is done with one that is not over, such as to let time pass.
    pub(crate) fn test_and(
        self: &Arc<Self>,
        mut pending: impl FnMut(&Request),
    ) -> Result<Option<Option<Fault>>, Fault> {
        loop {
            let (communicator, mut request) = match &mut *lock(&self.state)? {
                State::Over { fault, .. } => return Ok(Some(fault.clone())),
                State::Ready => {
                    let text = "the operation was not posted: call flexcast_start() first";
                    return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
                }
                State::UnderWay { communicator, request, again, .. } => match request.take() {
                    Some(request) => (communicator.clone(), request),
                    None => {
                        // Another thread is at it, or this one, further up.
                        *again = true;
                        return Ok(None);
                    }
                },
            };
            // Outside of the lock, as in `post`.
            let waker = if self.is_notified() {
                Waker::from(Arc::new(Ended(Arc::downgrade(self))))
            } else {
                Waker::noop().clone()
            };
            match Pin::new(&mut request).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => return self.end(communicator, outcome).map(Some),
                Poll::Pending => pending(&request),
            }
            if let State::UnderWay { request: place, again, .. } = &mut *lock(&self.state)? {
                *place = Some(request);
                if !std::mem::take(again) {
                    return Ok(None);
                }
            }
        }
    }

    /// It is over: the memory is the program's again, and who is to be notified is notified.
    fn end(self: &Arc<Self>, communicator: Communicator, outcome: Outcome) -> Result<Option<Fault>, Fault> {
        let (fault, report) = match outcome {
            // The last use of the buffers.
            Ok(done) => (None, flexcast_report::new(FLEXCAST_OK, &done.report, false)),
            // A buffer that does not come back is held: the card may still reach the memory.
            Err(failed) => {
                let fault = Fault::from(&failed.error);
                let report = flexcast_report::new(fault.status, &failed.report, failed.receive.is_none());
                (Some(fault), report)
            }
        };
        let held = report.memory_held != 0;
        let over = State::Over { fault: fault.clone(), report: Box::new(report) };
        // Before the communicator may be freed: whoever frees it waits for the progress thread, which this may be.
        drop(communicator);
        if let State::UnderWay { claims, communicator, .. } = std::mem::replace(&mut *lock(&self.state)?, over) {
            drop(communicator);
            self.group.end(&claims, held);
        }
        self.notify(fault.clone());
        Ok(fault)
    }

    /// Calls back, and counts it. One that ends while a callback runs on this thread has its turn when that has
    /// returned: a callback may post an operation that is over at once, whose callback posts another, and so on.
    fn notify(self: &Arc<Self>, fault: Option<Fault>) {
        let this = (Arc::clone(self), fault);
        let mut next = DUE.with_borrow_mut(|due| match due {
            Some(due) => {
                due.push_back(this);
                None
            }
            None => {
                *due = Some(VecDeque::new());
                Some(this)
            }
        });
        while let Some((operation, fault)) = next {
            operation.call_back(fault);
            next = DUE.with_borrow_mut(|due| match due.as_mut().and_then(VecDeque::pop_front) {
                Some(next) => Some(next),
                None => {
                    *due = None;
                    None
                }
            });
        }
    }

    fn call_back(&self, fault: Option<Fault>) {
        if let Some(Callback { function, user }) = &self.callback {
            let status = fault.as_ref().map_or(FLEXCAST_OK, |fault| fault.status);
            fault.iter().for_each(|fault| remember(&fault.text));
            // SAFETY: the program's function, with its own pointer; no lock is held.
            unsafe { function(user.0, self.handle.load(Ordering::Relaxed), status) };
        }
        self.group.count();
    }
}

/// Is woken when an operation has ended.
struct Ended(Weak<Operation>);

impl Wake for Ended {
    fn wake(self: Arc<Self>) {
        // Without the operation its handle was freed, which only happens when it is over.
        if let Some(operation) = self.0.upgrade() {
            // A failure of the operation is reported to whoever tests or is called back.
            let _ = guard(|| operation.test());
        }
    }
}

/// Whether an operation is over (`done` becomes 1) or not (0); moves its communicator on. Once over, the status is the
/// operation's own, and a request of flexcast_post() is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_test(request: *mut flexcast_request, done: *mut c_int) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for an int.
        let place = unsafe { out(done, "done") }?;
        let operation = handle::get::<Operation>(request)?;
        let outcome = operation.test()?;
        place.put(outcome.is_some().into());
        if outcome.is_some() {
            operation.consume(request);
        }
        outcome.flatten().map_or(Ok(()), Err)
    })
}

/// Fills `report`, of `size` = sizeof(flexcast_report) bytes, with what an operation did that is over. For a request of
/// flexcast_post(): after flexcast_wait_for(), or in the callback, since flexcast_wait() and flexcast_test() free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_request_report(
    request: *mut flexcast_request,
    report: *mut flexcast_report,
    size: usize,
) -> flexcast_status {
    call(|| {
        let operation = handle::get::<Operation>(request)?;
        match &*lock(&operation.state)? {
            // SAFETY: the caller gives as many bytes as it says.
            State::Over { report: value, .. } => unsafe { give(report, size, **value, "report") },
            State::UnderWay { .. } => Err(under_way("has no report yet")),
            State::Ready => Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, "the operation was not posted and has no report")),
        }
    })
}

fn under_way(what: &str) -> Fault {
    Fault::new(FLEXCAST_ERROR_BUSY, format!("the operation is under way and {what}: test or wait until it is over"))
}

/// Frees a request of flexcast_prepare() that is not under way, or one of flexcast_post() that is over and was not
/// freed by flexcast_wait() or flexcast_test(). Refused (FLEXCAST_ERROR_BUSY) before: the card uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_request_free(request: *mut flexcast_request) -> flexcast_status {
    call(|| {
        if matches!(&*lock(&handle::get::<Operation>(request)?.state)?, State::UnderWay { .. }) {
            return Err(under_way("cannot be freed"));
        }
        handle::remove::<Operation>(request).map(drop)
    })
}
