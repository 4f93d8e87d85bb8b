//! Events: what is done before the program learns of one, and the structure that it gets.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use emu_libibverbs::errno::{Errno, Result, number};
use emu_libibverbs::handle::{self, CStruct, Object as _};

use crate::abi::*;
use crate::channel::{Channel, Event, Param, Pending};
use crate::id::Id;
use crate::manager;
use crate::multicast;
use crate::protocol::agent::Terms;
use crate::states;

fn connection(terms: &Terms, private: &[u8]) -> rdma_event_param {
    let (private_data, private_data_len) = shown(private);
    let conn = rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources: terms.responder_resources,
        initiator_depth: terms.initiator_depth,
        flow_control: terms.flow_control.into(),
        retry_count: terms.retry_count,
        rnr_retry_count: terms.rnr_retry_count,
        srq: terms.srq.into(),
        qp_num: terms.qpn,
    };
    let mut param = nothing();
    param.conn = conn;
    param
}

fn shown(private: &[u8]) -> (*const c_void, u8) {
    if private.is_empty() { (core::ptr::null(), 0) } else { (private.as_ptr().cast(), private.len() as u8) }
}

fn nothing() -> rdma_event_param {
    // SAFETY: integers and null pointers are valid all-zero.
    unsafe { core::mem::zeroed() }
}

/// Makes the structure that the program sees of an event.
fn published(pending: Pending) -> *mut rdma_cm_event {
    let Pending { id, listener, kind, status, param } = pending;
    let (private, shown_param) = match param {
        Param::Nothing => (Vec::new(), nothing()),
        Param::Connection { terms, private } => {
            let param = connection(&terms, &private);
            (private, param)
        }
        Param::Datagrams { ah, qpn, qkey, private } => {
            let (private_data, private_data_len) = shown(&private);
            let mut param = nothing();
            param.ud = rdma_ud_param { private_data, private_data_len, ah_attr: ah.0, qp_num: qpn, qkey };
            (private, param)
        }
        Param::Group { ah, context } => {
            let (private_data, qp_num) = (context as *const c_void, multicast::GROUP_QPN);
            let mut param = nothing();
            param.ud = rdma_ud_param { private_data, private_data_len: 0, ah_attr: ah.0, qp_num, qkey: RDMA_UDP_QKEY };
            (Vec::new(), param)
        }
    };
    let counted = Arc::clone(listener.as_ref().unwrap_or(&id));
    counted.events.take();
    let public = rdma_cm_event {
        id: id.c_address(),
        listen_id: listener.as_ref().map_or(core::ptr::null_mut(), |listener| listener.c_address()),
        event: kind,
        status,
        param: shown_param,
    };
    handle::publish(&Arc::new(Event { public: CStruct::new(public), _private: private, counted, _id: id }))
}

/// Takes the next event of a channel, waiting for it unless the program has set `O_NONBLOCK` on the descriptor. What is
/// to be done before the program learns of it is done.
pub(crate) fn next(channel: &Channel) -> Result<*mut rdma_cm_event> {
    loop {
        if let Some(pending) = channel.events.pop() {
            match prepared(pending) {
                Some(pending) => return Ok(published(pending)),
                None => continue,
            }
        }
        if channel.events.nonblocking() {
            return Err(Errno::new(libc::EAGAIN, "no event of connection management"));
        }
        channel.events.wait(None)?;
    }
}

/// An event as the program learns of it; some it does not.
fn prepared(mut pending: Pending) -> Option<Pending> {
    match pending.kind {
        RDMA_CM_EVENT_CONNECT_REQUEST => manager::request_taken(&pending.id),
        RDMA_CM_EVENT_CONNECT_RESPONSE => states::accepted(&mut pending),
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED if pending.id.lock().failed => return None,
        RDMA_CM_EVENT_REJECTED => states::flush(&pending.id),
        RDMA_CM_EVENT_MULTICAST_JOIN => multicast::joined(&mut pending),
        _ => {}
    }
    Some(pending)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    number("rdma_get_cm_event", || {
        let channel = handle::get::<Channel>(channel)?;
        if event.is_null() {
            return Err(Errno::invalid("event is null"));
        }
        let taken = next(&channel)?;
        // SAFETY: not null; the manual page asks for a writable place.
        unsafe { event.write(taken) };
        Ok(0)
    })
}

/// Acknowledges an event.
pub(crate) fn acknowledge(event: *mut rdma_cm_event) -> Result<()> {
    let event = handle::retire::<Event>(event)?;
    event.counted.acknowledge_event()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    number("rdma_ack_cm_event", || {
        acknowledge(event)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const core::ffi::c_char {
    EVENT_NAMES.get(event as usize).map_or(c"UNKNOWN EVENT", |name| *name).as_ptr()
}

/// Waits for the event of a call that was just made, where calls wait.
pub(crate) fn complete(id: &Id) -> Result<()> {
    let (waits, channel) = {
        let inner = id.lock();
        (inner.waits, Arc::clone(&inner.channel))
    };
    if !waits {
        return Ok(());
    }
    acknowledge_kept(id)?;
    let event = next(&channel)?;
    id.show(|public| public.event = event);
    // SAFETY: an event that was just published, and is acknowledged by a later call.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    let name = EVENT_NAMES.get(kind as usize).map_or("an event", |name| name.to_str().unwrap_or("an event"));
    match status {
        0 => Ok(()),
        status if kind == RDMA_CM_EVENT_REJECTED => {
            Err(Errno::new(libc::ECONNREFUSED, format!("the other end has refused (reason {status})")))
        }
        status => Err(Errno::new(status.abs(), format!("{name} with status {status}"))),
    }
}

/// Acknowledges the event of the last call that waited.
pub(crate) fn acknowledge_kept(id: &Id) -> Result<()> {
    let kept = id.seen(|public| public.event);
    if kept.is_null() {
        return Ok(());
    }
    id.show(|public| public.event = core::ptr::null_mut());
    acknowledge(kept)
}
