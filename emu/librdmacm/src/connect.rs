//! Connections: asking, accepting, refusing, ending; and the states of their queue pairs.

use core::ffi::{c_int, c_void};

use emu_libibverbs::errno::{Errno, Result, number, out};
use emu_libibverbs::{handle, now_ps};
use emu_machine::nic::MAX_RD_ATOMIC;
use verbs_sys::*;

use crate::abi::*;
use crate::events;
use crate::id::{Id, Stage};
use crate::manager;
use crate::protocol::agent::Terms;
use crate::protocol::mad::private;
use crate::protocol::service::{REQ_BYTES, SIDR_REQ_BYTES, Space};
use crate::protocol::times;
use crate::states::{attributes, flush, make_ready};

/// Retries where the program does not say, as in rdma-core.
const RETRIES: u8 = 7;
const MOST_RETRIES: u8 = 7;

/// The program's private data, checked.
///
/// # Safety
/// If `bytes` is not 0, `data` must point at so many.
unsafe fn private_data(data: *const c_void, bytes: u8, most: usize, message: &str) -> Result<Vec<u8>> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    if data.is_null() {
        return Err(Errno::invalid(format!("private_data is null, and private_data_len {bytes}")));
    }
    if usize::from(bytes) > most {
        return Err(Errno::invalid(format!(
            "private_data_len is {bytes}: {message} has room for {most} bytes of the program's"
        )));
    }
    // SAFETY: not null; the caller vouches for the length.
    Ok(unsafe { core::slice::from_raw_parts(data.cast::<u8>(), bytes.into()) }.to_vec())
}

/// How many reads and atomics are outstanding, or served, at a time.
fn depth(name: &str, asked: u8, most: u8) -> Result<u8> {
    match asked {
        RDMA_MAX_RESP_RES => Ok(most.min(MAX_RD_ATOMIC)),
        asked if asked > MAX_RD_ATOMIC => Err(Errno::invalid(format!(
            "{name} is {asked}: the card has {MAX_RD_ATOMIC} at most, and 255 stands for as many as there are"
        ))),
        asked => Ok(asked),
    }
}

/// More than there are stand for the most, as in Linux: libfabric asks for 15.
fn retries(asked: u8) -> u8 {
    asked.min(MOST_RETRIES)
}

/// What an identifier says of itself. `offered` is what the other end serves and has outstanding, if that is known.
fn own_terms(id: &Id, param: Option<&rdma_conn_param>, offered: Option<Terms>) -> Result<Terms> {
    let (_, device) = id.device()?;
    let most_served = offered.map_or(MAX_RD_ATOMIC, |theirs| theirs.initiator_depth);
    let most_outstanding = offered.map_or(MAX_RD_ATOMIC, |theirs| theirs.responder_resources);
    let served = param.map_or(RDMA_MAX_RESP_RES, |param| param.responder_resources);
    let outstanding = param.map_or(RDMA_MAX_INIT_DEPTH, |param| param.initiator_depth);
    let qp = id.qp();
    let (qpn, srq) = if qp.is_null() {
        let param = param.ok_or_else(|| {
            Errno::invalid("the identifier has no queue pair, and conn_param, which would name one, is null")
        })?;
        (param.qp_num, param.srq != 0)
    } else {
        // SAFETY: the program's live queue pair.
        unsafe { ((*qp).qp_num, !(*qp).srq.is_null()) }
    };
    let inner = id.lock();
    Ok(Terms {
        qpn: qpn & 0xFF_FFFF,
        psn: 0,
        ca_guid: device.guid,
        responder_resources: depth("responder_resources", served, most_served)?,
        initiator_depth: depth("initiator_depth", outstanding, most_outstanding)?,
        flow_control: param.is_none_or(|param| param.flow_control != 0),
        retry_count: retries(param.map_or(RETRIES, |param| param.retry_count)),
        rnr_retry_count: retries(param.map_or(RETRIES, |param| param.rnr_retry_count)),
        srq,
        mtu: device.mtu_code,
        ack_timeout: inner.ack_timeout.unwrap_or(times::ACK_TIMEOUT),
        traffic_class: inner.traffic_class,
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    number("rdma_connect", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: null, or initialised as the manual page asks.
        let param = unsafe { conn_param.as_ref() };
        let (stage, remote, local, mut data) = {
            let inner = id.lock();
            (inner.stage, inner.remote, inner.local, inner.connect_data.clone())
        };
        let (Some(remote), Some(local)) = (remote.filter(|_| stage == Stage::RouteResolved), local) else {
            return Err(Errno::invalid(match stage {
                Stage::Connected => "the identifier has asked for a connection already: use another one",
                _ => "the route is not resolved: call rdma_resolve_addr and rdma_resolve_route first",
            }));
        };
        let (most, message) = match id.space {
            Space::Tcp => (REQ_BYTES, "a request for a connection (REQ)"),
            Space::Udp => (SIDR_REQ_BYTES, "a request for a queue pair (SIDR_REQ)"),
        };
        if let Some(param) = param {
            // SAFETY: the manual page asks for so many bytes.
            data.extend(unsafe { private_data(param.private_data, param.private_data_len, most, message) }?);
        }
        if data.len() > most {
            let given = data.len();
            return Err(Errno::invalid(format!(
                "private data and ai_connect are {given} bytes together: {message} has room for {most}"
            )));
        }
        let path = id.path()?;
        let service = id.service(remote.port);
        let mut manager = manager::lock()?;
        let conn = match id.space {
            Space::Tcp => {
                let terms = Terms { psn: manager.number(), ..own_terms(&id, param, None)? };
                id.lock().own = terms;
                manager.agent.connect(path, (service, local.port), &terms, &data, now_ps())?
            }
            Space::Udp => manager.agent.query(path, (service, local.port), &data, now_ps())?,
        };
        id.lock().stage = Stage::Connected;
        manager.attach(conn, &id);
        manager.act();
        drop(manager);
        events::complete(&id)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    number("rdma_accept", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: null, or initialised as the manual page asks.
        let param = unsafe { conn_param.as_ref() };
        let (theirs, conn) = {
            let inner = id.lock();
            (inner.theirs, inner.conn)
        };
        let conn = conn.ok_or_else(|| Errno::invalid("nobody asks for a connection with the identifier"))?;
        let (most, message) = match id.space {
            Space::Tcp => (private::REP, "an acceptance (REP)"),
            Space::Udp => (private::SIDR_REP, "the answer to a request for a queue pair (SIDR_REP)"),
        };
        let data = match param {
            // SAFETY: the manual page asks for so many bytes.
            Some(param) => unsafe { private_data(param.private_data, param.private_data_len, most, message) }?,
            None => Vec::new(),
        };
        if id.space == Space::Udp {
            let qp = id.qp();
            // SAFETY: the program's live queue pair.
            let own = (!qp.is_null()).then(|| unsafe { (*qp).qp_num });
            let qpn = own.or(param.map(|param| param.qp_num)).ok_or_else(|| {
                Errno::invalid("the identifier has no queue pair, and conn_param, which would name one, is null")
            })?;
            let mut manager = manager::lock()?;
            manager.agent.show(conn, (qpn & 0xFF_FFFF, RDMA_UDP_QKEY), &data, now_ps())?;
            manager.act();
            return Ok(0);
        }
        let terms = Terms { psn: manager::lock()?.number(), ..own_terms(&id, param, theirs)? };
        id.lock().own = terms;
        let made = make_ready(&id);
        let mut manager = manager::lock()?;
        let accepted = made.and_then(|()| Ok(manager.agent.accept(conn, &terms, &data, now_ps())?));
        manager.act();
        drop(manager);
        if accepted.is_err() {
            flush(&id);
        }
        accepted?;
        events::complete(&id)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    number("rdma_establish", || {
        if !handle::get::<Id>(id)?.qp().is_null() {
            return Err(Errno::invalid(
                "the identifier has a queue pair: its connection is established before RDMA_CM_EVENT_ESTABLISHED comes",
            ));
        }
        manager::with_conn(id, |manager, _, conn| Ok(manager.agent.establish(conn)?))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data_at: *const c_void,
    private_data_len: u8,
) -> c_int {
    number("rdma_reject", || {
        let (most, message) = match handle::get::<Id>(id)?.space {
            Space::Tcp => (private::REJ, "a refusal (REJ)"),
            Space::Udp => (private::SIDR_REP, "the answer to a request for a queue pair (SIDR_REP)"),
        };
        // SAFETY: the manual page asks for so many bytes.
        let data = unsafe { private_data(private_data_at, private_data_len, most, message) }?;
        manager::with_conn(id, |manager, _, conn| Ok(manager.agent.reject(conn, &data, now_ps())?))?;
        Ok(0)
    })
}

/// Data have come before the other end has confirmed the connection: the program says so, which has learnt it by an
/// asynchronous event.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    number("rdma_notify", || {
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::invalid(format!(
                "event {event}: IBV_EVENT_COMM_EST ({IBV_EVENT_COMM_EST}) is of meaning"
            )));
        }
        manager::with_conn(id, |manager, _, conn| Ok(manager.agent.data_came(conn)?))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    number("rdma_disconnect", || {
        let object = handle::get::<Id>(id)?;
        if object.space == Space::Udp {
            return Err(Errno::invalid("identifiers of RDMA_PS_UDP have no connection that could end"));
        }
        flush(&object);
        manager::with_conn(id, |manager, _, conn| Ok(manager.agent.disconnect(conn, now_ps())?))?;
        events::complete(&object)?;
        Ok(0)
    })
}

/// The attributes that bring a queue pair of the program's own into the state that `qp_attr` names.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    number("rdma_init_qp_attr", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: null, or with the state as the manual page asks.
        let state = unsafe { qp_attr.as_ref() }.ok_or_else(|| Errno::invalid("qp_attr is null"))?.qp_state;
        let (attr, mask) = attributes(&id, state)?;
        // SAFETY: not null, and writable as the manual page asks.
        unsafe {
            out(qp_attr, "qp_attr")?.write(attr);
            out(qp_attr_mask, "qp_attr_mask")?.write(mask as c_int);
        }
        Ok(0)
    })
}
