//! Waits of the program.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::communicator::{Group, flexcast_comm};
use crate::fault::{Fault, call};
use crate::handle;
use crate::memory::out;
use crate::request::{Operation, flexcast_request, in_callback};
use crate::status::flexcast_status::{self, *};

/// Refuses what waits, in a callback: what is waited for may be the callback of this very thread.
fn refuse_in_callback(what: &str) -> Result<(), Fault> {
    if !in_callback() {
        return Ok(());
    }
    let text =
        format!("the call {what}, in a callback of an operation: return from that first, or use flexcast_test()");
    Err(Fault::new(FLEXCAST_ERROR_BUSY, text))
}

/// Waits until an operation is over, at most so long; `Some` when it is: how.
fn wait(operation: &Arc<Operation>, most: Option<Duration>) -> Result<Option<Option<Fault>>, Fault> {
    refuse_in_callback("waits")?;
    let since = Instant::now();
    let mut over = operation.test()?;
    // Its progress thread leaves it to the caller.
    let communicator = if over.is_none() { operation.communicator()? } else { None };
    let attendance = communicator.as_ref().map(|communicator| communicator.attend());
    while over.is_none() {
        let left = most.map_or(Duration::MAX, |most| most.saturating_sub(since.elapsed()));
        if left.is_zero() {
            break;
        }
        // Another thread may be at it, which this one then waits for.
        let (mut paused, attendance) = (false, attendance.as_ref());
        over = operation.test_and(|request| {
            if let Some(attendance) = attendance {
                attendance.pause(request, left);
                paused = true;
            }
        })?;
        if !paused {
            std::thread::yield_now();
        }
    }
    Ok(over)
}

/// Waits until an operation is over; the status is its own, and a request of flexcast_post() is freed. It ends: every
/// phase of an operation has its bound. The caller moves the communicator on and sleeps where it can, and the progress
/// thread stays away meanwhile. Not to be called from a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_wait(request: *mut flexcast_request) -> flexcast_status {
    call(|| {
        let operation = handle::get::<Operation>(request)?;
        let outcome = wait(&operation, None)?;
        operation.consume(request);
        outcome.flatten().map_or(Ok(()), Err)
    })
}

/// Waits `timeout_ns` nanoseconds at most, and a millisecond longer at worst; FLEXCAST_NEVER: until it is over. `done`
/// becomes 1 if the operation is over, else 0, and then the status is FLEXCAST_OK. The request is not freed: for its
/// report (flexcast_request_report()), for loops that poll something else, too, and for several threads that wait for
/// one request. flexcast_request_free() or flexcast_wait() frees it then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_wait_for(
    request: *mut flexcast_request,
    timeout_ns: u64,
    done: *mut c_int,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for an int.
        let place = unsafe { out(done, "done") }?;
        let outcome = wait(&handle::get::<Operation>(request)?, Some(Duration::from_nanos(timeout_ns)))?;
        place.put(outcome.is_some().into());
        outcome.flatten().map_or(Ok(()), Err)
    })
}

/// Moves the operations of a communicator on as flexcast_progress(), and if nothing happens waits until something may
/// have come, `timeout_ns` nanoseconds at most and a millisecond longer at worst; it may return before. For loops that
/// wait for more than one operation, or for something else, too. The progress thread stays away meanwhile. Not to be
/// called from a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_progress_for(
    comm: *mut flexcast_comm,
    timeout_ns: u64,
    moved: *mut c_int,
) -> flexcast_status {
    call(|| {
        refuse_in_callback("may wait")?;
        let any = handle::get::<Group>(comm)?.with(|communicator| {
            let attendance = communicator.attend();
            if communicator.progress()? {
                return Ok(true);
            }
            attendance.pause_any(Duration::from_nanos(timeout_ns));
            Ok(communicator.progress()?)
        })?;
        if !moved.is_null() {
            // SAFETY: not null, so a place for an int.
            unsafe { out(moved, "moved") }?.put(any.into());
        }
        Ok(())
    })
}
