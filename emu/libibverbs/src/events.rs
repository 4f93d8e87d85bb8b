//! Asynchronous events, as programs take them; see [`failures`](crate::failures).

use core::ffi::{c_char, c_int};

use verbs_sys::*;

use crate::card::now_ps;
use crate::cq::Cq;
use crate::device::Context;
use crate::errno::{Errno, input, number, out, status};
use crate::failures::{ForeignCq, ForeignQp, distribute, publish};
use crate::handle;
use crate::machine::{self, relax};
use crate::qp::Qp;
use crate::srq::Srq;

/// Longest wait of a blocking call, in virtual time: 100 ms. A machine with a polling thread never comes to rest.
const BLOCKING_BOUND_PS: u64 = 100_000_000_000;

/// Waits for an event. With `O_NONBLOCK` on the device's `async_fd` it checks once, without letting time pass, and
/// gives EAGAIN; otherwise it blocks in a machine that runs by itself; another it lets run, and gives EAGAIN when that
/// has nothing left to do, or after 100 ms of virtual time.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    number("ibv_get_async_event", || {
        let context = handle::get::<Context>(context)?;
        if machine::is_elsewhere()? {
            return Err(Errno::unsupported(
                "of queues at another process's card only completions report, and no events",
            ));
        }
        // SAFETY: the manual page asks for a writable event.
        let event = unsafe { out(event, "event") }?;
        let (driven, nonblocking) = (emu_bridge::is_driven()?, context.events.nonblocking());
        let end_ps = now_ps().saturating_add(BLOCKING_BOUND_PS);
        loop {
            distribute()?;
            while let Some(raised) = context.events.pop() {
                if let Some(taken) = publish(&context, raised) {
                    event.write(taken);
                    return Ok(0);
                }
            }
            if driven && !nonblocking {
                context.events.wait(None)?;
            } else if nonblocking || now_ps() > end_ps || !relax() {
                return Err(Errno::new(libc::EAGAIN, "no asynchronous event"));
            }
        }
    })
}

/// Every event must be acknowledged; its element must not be used afterwards unless the program has it otherwise.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    status("ibv_ack_async_event", || {
        // SAFETY: null, or an event from `ibv_get_async_event` as the manual page asks.
        let event = unsafe { input(event, "event") }?;
        // SAFETY: the pointers of the union are alike, and are checked before they are dereferenced.
        let (cq, qp) = unsafe { (event.element.cq, event.element.qp) };
        if event.event_type == IBV_EVENT_CQ_ERR {
            if handle::retire::<ForeignCq>(cq).is_err() {
                handle::get::<Cq>(cq)?.acknowledge_async_event()?;
            }
        } else if matches!(event.event_type, IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED) {
            // SAFETY: as above.
            handle::get::<Srq>(unsafe { event.element.srq })?.acknowledge_event()?;
        } else if handle::retire::<ForeignQp>(qp).is_err() {
            handle::get::<Qp>(qp)?.acknowledge_event()?;
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    let text = match event {
        IBV_EVENT_CQ_ERR => c"completion queue error",
        IBV_EVENT_QP_FATAL => c"queue pair fatal error",
        IBV_EVENT_QP_REQ_ERR => c"queue pair: invalid request of its peer",
        IBV_EVENT_QP_ACCESS_ERR => c"queue pair: access violation of its peer",
        IBV_EVENT_COMM_EST => c"communication established",
        IBV_EVENT_SQ_DRAINED => c"send queue drained",
        IBV_EVENT_PATH_MIG => c"path migrated",
        IBV_EVENT_PATH_MIG_ERR => c"path migration failed",
        IBV_EVENT_DEVICE_FATAL => c"device fatal error",
        IBV_EVENT_PORT_ACTIVE => c"port active",
        IBV_EVENT_PORT_ERR => c"port error",
        IBV_EVENT_LID_CHANGE => c"local identifier changed",
        IBV_EVENT_PKEY_CHANGE => c"partition key table changed",
        IBV_EVENT_SM_CHANGE => c"subnet manager changed",
        IBV_EVENT_SRQ_ERR => c"shared receive queue error",
        IBV_EVENT_SRQ_LIMIT_REACHED => c"shared receive queue limit reached",
        IBV_EVENT_QP_LAST_WQE_REACHED => c"last receive of a queue pair reached",
        IBV_EVENT_CLIENT_REREGISTER => c"client reregistration",
        IBV_EVENT_GID_CHANGE => c"identifier table changed",
        IBV_EVENT_WQ_FATAL => c"work queue fatal error",
        _ => c"unknown",
    };
    text.as_ptr()
}
