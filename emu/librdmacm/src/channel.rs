//! Event channels and events.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emu_libibverbs::Mailbox;
use emu_libibverbs::errno::{Errno, Result, number, pointer};
use emu_libibverbs::handle::{self, CStruct, Object};
use verbs_sys::*;

use crate::abi::*;
use crate::connect;
use crate::device;
use crate::id::Id;
use crate::manager;
use crate::multicast;
use crate::protocol::agent::Terms;

/// What an event brings besides its kind.
#[derive(Debug)]
pub(crate) enum Param {
    Nothing,
    /// Of a connection, on the other end's terms.
    Connection {
        terms: Terms,
        private: Vec<u8>,
    },
    /// Of a queue pair for datagrams.
    Datagrams {
        ah: Way,
        qpn: u32,
        qkey: u32,
        private: Vec<u8>,
    },
    /// Of a membership; the program's pointer.
    Group {
        ah: Way,
        context: usize,
    },
}

/// An `ibv_ah_attr` that can be printed.
#[derive(Clone, Copy)]
pub(crate) struct Way(pub(crate) ibv_ah_attr);

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "from GID index {}", self.0.grh.sgid_index)
    }
}

/// An event that waits for the program.
pub(crate) struct Pending {
    pub(crate) id: Arc<Id>,
    /// Who was asked, where `id` is new.
    pub(crate) listener: Option<Arc<Id>>,
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) param: Param,
}

/// An event channel.
pub(crate) struct Channel {
    public: CStruct<rdma_event_channel>,
    pub(crate) events: Mailbox<Pending>,
    /// Identifiers that report here.
    pub(crate) users: AtomicUsize,
}

impl Object for Channel {
    const KIND: &'static str = "event channel";
    type C = rdma_event_channel;
    fn c_address(&self) -> *mut rdma_event_channel {
        self.public.get()
    }
}

impl Channel {
    /// A new one, a live handle.
    pub(crate) fn open() -> Result<Arc<Self>> {
        let events = Mailbox::new("an event channel")?;
        let public = CStruct::new(rdma_event_channel { fd: events.fd() });
        let channel = Arc::new(Self { public, events, users: AtomicUsize::new(0) });
        handle::publish(&channel);
        Ok(channel)
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer("rdma_create_event_channel", || {
        device::devices()?;
        Ok(Channel::open()?.c_address())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    number("rdma_destroy_event_channel", || {
        let object = handle::get::<Channel>(channel)?;
        let users = object.users.load(Ordering::Relaxed);
        if users > 0 {
            let reason = format!("{users} identifiers report to the channel: destroy them first");
            return Err(Errno::new(libc::EBUSY, reason));
        }
        handle::retire::<Channel>(channel)?;
        Ok(0)
    });
}

/// An event that the program has, until it acknowledges it.
pub(crate) struct Event {
    public: CStruct<rdma_cm_event>,
    _private: Vec<u8>,
    /// Whose events wait for the acknowledgement.
    counted: Arc<Id>,
    _id: Arc<Id>,
}

impl Object for Event {
    const KIND: &'static str = "event of connection management";
    type C = rdma_cm_event;
    fn c_address(&self) -> *mut rdma_cm_event {
        self.public.get()
    }
}

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
        RDMA_CM_EVENT_CONNECT_RESPONSE => connect::accepted(&mut pending),
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED if pending.id.lock().failed => return None,
        RDMA_CM_EVENT_REJECTED => connect::flush(&pending.id),
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
