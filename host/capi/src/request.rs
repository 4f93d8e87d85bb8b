//! Operations under way, and what became of them.

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;
use std::time::Duration;

use flexcast_rust::{Cause, Report, Request, Test};

use crate::communicator::Group;
use crate::fault::{Fault, call};
use crate::handle;
use crate::memory::{give, out};
use crate::status::flexcast_status::{self, *};

/// An operation, under way or over. Made by the operations; to be freed when it is over.
pub struct flexcast_request {
    _opaque: [u8; 0],
}

/// A time of something that has not happened.
pub const FLEXCAST_NEVER: u64 = u64::MAX;

/// No failure.
pub const FLEXCAST_CAUSE_NONE: u32 = 0;
/// The culprit was waited for in vain; the code tells for what.
pub const FLEXCAST_CAUSE_SILENT: u32 = 1;
/// The culprit cancelled.
pub const FLEXCAST_CAUSE_CANCELLED: u32 = 2;
/// The culprit called another operation than the witness, or with other arguments.
pub const FLEXCAST_CAUSE_DISAGREES: u32 = 3;
/// The culprit's worker on the card failed.
pub const FLEXCAST_CAUSE_DEVICE: u32 = 4;
/// The connection between them broke.
pub const FLEXCAST_CAUSE_CONNECTION: u32 = 5;

/// What an operation did. Times are nanoseconds of the library's clock, FLEXCAST_NEVER for what has not happened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct flexcast_report {
    /// A flexcast_status: how it ended.
    pub status: i32,
    /// 1 if the card could not be made to let go of the memory after a failure: it must stay allocated until the communicator is freed.
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
    /// Code that belongs to the cause.
    pub code: u32,
    /// Rank that is to blame.
    pub culprit: u32,
    /// Rank that found it.
    pub witness: u32,
    /// The rate that limited how fast the own bytes were multicast, in Mbit/s; 0: none. Of the datapath "udp".
    pub pace_mbit_per_s: u32,
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
            Some(Cause::Device(code)) => (FLEXCAST_CAUSE_DEVICE, code.into()),
            Some(Cause::Connection(code)) => (FLEXCAST_CAUSE_CONNECTION, code.into()),
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
            culprit: report.failure.map_or(0, |failure| failure.culprit),
            witness: report.failure.map_or(0, |failure| failure.witness),
            pace_mbit_per_s: report.pace_mbit_per_s.unwrap_or(0),
        }
    }
}

enum State {
    UnderWay { group: Rc<Group>, request: Option<Request>, claims: Vec<u64> },
    Over { fault: Option<Fault>, report: Box<flexcast_report> },
}

/// An operation and its outcome.
pub(crate) struct Operation(RefCell<State>);

impl Operation {
    pub(crate) fn new(group: Rc<Group>, request: Request, claims: Vec<u64>) -> Rc<Self> {
        group.begun();
        Rc::new(Self(RefCell::new(State::UnderWay { group, request: Some(request), claims })))
    }

    /// Moves it on; `Some` when it is over: how.
    fn test(&self) -> Result<Option<Option<Fault>>, Fault> {
        let mut state = self.0.borrow_mut();
        let (fault, report, group, claims) = match &mut *state {
            State::Over { fault, .. } => return Ok(Some(fault.clone())),
            State::UnderWay { group, request, claims } => {
                let tested = group.with(|communicator| {
                    Ok(request.take().map(|request| (communicator.test(request), communicator.disagreement())))
                })?;
                match tested {
                    Some((Ok(Test::Pending(pending)), _)) => {
                        *request = Some(pending);
                        return Ok(None);
                    }
                    // The last use of the buffers.
                    Some((Ok(Test::Done(done)), _)) => {
                        let report = flexcast_report::new(FLEXCAST_OK, &done.report, false);
                        (None, report, Rc::clone(group), std::mem::take(claims))
                    }
                    // A buffer that does not come back is held: the card may still reach the memory.
                    Some((Err(failed), differ)) => {
                        let mut fault = Fault::from(&failed.error);
                        if let Some(differ) = differ {
                            fault.text = format!("{} ({differ})", fault.text);
                        }
                        let report = flexcast_report::new(fault.status, &failed.report, failed.receive.is_none());
                        (Some(fault), report, Rc::clone(group), std::mem::take(claims))
                    }
                    None => {
                        return Err(Fault::new(FLEXCAST_ERROR_INTERNAL, "the operation was lost in an earlier call"));
                    }
                }
            }
        };
        group.ended(&claims, report.memory_held != 0);
        *state = State::Over { fault: fault.clone(), report: Box::new(report) };
        Ok(Some(fault))
    }
}

/// Whether an operation is over (`done` becomes 1) or not (0); moves its communicator on. Once over, the status is the operation's own, and
/// stays so until the request is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_test(request: *mut flexcast_request, done: *mut c_int) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for an int.
        let place = unsafe { out(done, "done") }?;
        let outcome = handle::get::<Operation>(request)?.test()?;
        place.put(outcome.is_some().into());
        outcome.flatten().map_or(Ok(()), Err)
    })
}

/// Waits until an operation is over; the status is its own. It ends: every phase of an operation has its bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_wait(request: *mut flexcast_request) -> flexcast_status {
    call(|| {
        let operation = handle::get::<Operation>(request)?;
        loop {
            if let Some(fault) = operation.test()? {
                return fault.map_or(Ok(()), Err);
            }
            // There may be more ranks than processors.
            std::thread::yield_now();
        }
    })
}

/// Fills `report`, of `size` = sizeof(flexcast_report) bytes, with what an operation did that is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_request_report(
    request: *mut flexcast_request,
    report: *mut flexcast_report,
    size: usize,
) -> flexcast_status {
    call(|| {
        let operation = handle::get::<Operation>(request)?;
        match &*operation.0.borrow() {
            // SAFETY: the caller gives as many bytes as it says.
            State::Over { report: value, .. } => unsafe { give(report, size, **value, "report") },
            State::UnderWay { .. } => Err(under_way("has no report yet")),
        }
    })
}

fn under_way(what: &str) -> Fault {
    Fault::new(FLEXCAST_ERROR_BUSY, format!("the operation is under way and {what}: test or wait until it is over"))
}

/// Frees the request of an operation that is over. Refused (FLEXCAST_ERROR_BUSY) before: the card uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_request_free(request: *mut flexcast_request) -> flexcast_status {
    call(|| {
        if matches!(&*handle::get::<Operation>(request)?.0.borrow(), State::UnderWay { .. }) {
            return Err(under_way("cannot be freed"));
        }
        handle::remove::<Operation>(request).map(drop)
    })
}
