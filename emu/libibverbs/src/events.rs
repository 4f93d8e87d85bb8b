//! Asynchronous events: failures of queues that no completion tells, or not all of it.
//!
//! An event goes to the open device that owns the queue. Queues made by DevX or FlexIO have no verbs object: their events
//! go to every open device of their card, with a stand-in of which only the number can be asked for (`qp_num`, and
//! `mlx5dv_init_obj` for completion queues). The real library tells of such queues through DevX event channels only.

use core::ffi::{c_char, c_int};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use emu_bridge::with_world;
use emu_machine::World;
use emu_machine::nic::{AsyncEvent, FailureCause};
use verbs_sys::*;

use crate::cq::Cq;
use crate::device::Context;
use crate::errno::{Errno, Result, number, out, status};
use crate::handle::{self, CStruct, Object};
use crate::mailbox::Mailbox;
use crate::qp::Qp;

/// Longest wait of a blocking call, in virtual time: 100 ms. A machine with a polling thread never comes to rest.
const BLOCKING_BOUND_PS: u64 = 100_000_000_000;

/// A completion queue without a verbs object.
pub(crate) struct ForeignCq {
    public: CStruct<ibv_cq>,
    pub(crate) number: u32,
}

impl Object for ForeignCq {
    const KIND: &'static str = "completion queue of an asynchronous event";
    type C = ibv_cq;
    fn c_address(&self) -> *mut ibv_cq {
        self.public.get()
    }
}

/// A queue pair without a verbs object.
struct ForeignQp {
    public: CStruct<ibv_qp>,
}

impl Object for ForeignQp {
    const KIND: &'static str = "queue pair of an asynchronous event";
    type C = ibv_qp;
    fn c_address(&self) -> *mut ibv_qp {
        self.public.get()
    }
}

/// What an event is about. Events of objects destroyed meanwhile are not reported.
#[derive(Clone, Debug)]
enum Element {
    Cq(Weak<Cq>),
    Qp(Weak<Qp>),
    ForeignCq(u32),
    ForeignQp(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Raised {
    event_type: ibv_event_type,
    element: Element,
}

/// The events of an open device.
pub(crate) type Events = Mailbox<Raised>;

/// Rings and doorbell records of live objects: what ties a number of some machine to an object of this process.
static QUEUES: Mutex<BTreeMap<u64, Weak<Cq>>> = Mutex::new(BTreeMap::new());
static QUEUE_PAIRS: Mutex<BTreeMap<u64, Weak<Qp>>> = Mutex::new(BTreeMap::new());
static CONTEXTS: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

pub(crate) fn watch_cq(cq: &Arc<Cq>) {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    queues.retain(|_, cq| cq.strong_count() > 0);
    queues.insert(cq.buffer.addr(), Arc::downgrade(cq));
}

pub(crate) fn watch_qp(qp: &Arc<Qp>) {
    let mut queue_pairs = QUEUE_PAIRS.lock().unwrap_or_else(PoisonError::into_inner);
    queue_pairs.retain(|_, qp| qp.strong_count() > 0);
    queue_pairs.insert(qp.record_address() as u64, Arc::downgrade(qp));
}

pub(crate) fn watch_context(context: &Arc<Context>) {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    contexts.retain(|context| context.strong_count() > 0);
    contexts.push(Arc::downgrade(context));
}

/// Tells the calling thread's machine from others: the address of its first card, which does not move.
pub(crate) fn machine() -> Result<usize> {
    Ok(with_world(|world| world.card(0).map(|card| std::ptr::from_ref(card) as usize))??)
}

/// Where the ring or the doorbell record of an event's queue lies; 0 if there is no such queue any more.
fn place(world: &mut World, card: usize, event: AsyncEvent) -> u64 {
    let Ok(card) = world.card(card) else { return 0 };
    match event {
        AsyncEvent::CqError { cqn, .. } => card.nic.query_cq(cqn).map_or(0, |attr| attr.ring.addr),
        AsyncEvent::QpFatal { qpn, .. } => card.nic.query_qp(qpn).map_or(0, |query| query.attr.doorbell_record.addr),
        AsyncEvent::UnknownQueue { .. } => 0,
    }
}

/// What an event is in verbs, and whose it is if a verbs object has it.
fn classify(event: AsyncEvent, place: u64) -> Option<(Raised, Option<Arc<Context>>)> {
    match event {
        AsyncEvent::CqError { cqn, .. } => {
            let owned = QUEUES.lock().unwrap_or_else(PoisonError::into_inner).get(&place).and_then(Weak::upgrade);
            let element = owned.as_ref().map_or(Element::ForeignCq(cqn), |cq| Element::Cq(Arc::downgrade(cq)));
            Some((Raised { event_type: IBV_EVENT_CQ_ERR, element }, owned.map(|cq| Arc::clone(&cq.context))))
        }
        AsyncEvent::QpFatal { qpn, cause } => {
            let event_type = match cause {
                FailureCause::RemoteAccess => IBV_EVENT_QP_ACCESS_ERR,
                FailureCause::InvalidRequest => IBV_EVENT_QP_REQ_ERR,
                _ => IBV_EVENT_QP_FATAL,
            };
            let owned = QUEUE_PAIRS.lock().unwrap_or_else(PoisonError::into_inner).get(&place).and_then(Weak::upgrade);
            let element = owned.as_ref().map_or(Element::ForeignQp(qpn), |qp| Element::Qp(Arc::downgrade(qp)));
            Some((Raised { event_type, element }, owned.map(|qp| Arc::clone(qp.context()))))
        }
        // A card ignores doorbells of queues that are not there; the machine's log tells of them.
        AsyncEvent::UnknownQueue { .. } => None,
    }
}

/// Hands events of the calling thread's machine to their devices.
pub(crate) fn distribute() -> Result<()> {
    let machine = machine()?;
    let raised: Vec<_> = with_world(|world| {
        let mut raised = Vec::new();
        while let Some((card, event)) = world.take_async_event() {
            raised.push((card, event, place(world, card, event)));
        }
        raised
    })?;
    for (card, event, place) in raised {
        let Some((raised, owner)) = classify(event, place) else { continue };
        if let Some(owner) = owner {
            owner.events.push(raised);
            continue;
        }
        let contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let live = contexts.iter().filter_map(Weak::upgrade);
        for context in live.filter(|context| context.card == card && context.machine == machine) {
            context.events.push(raised.clone());
        }
    }
    Ok(())
}

/// The event as C sees it; `None` if its object is gone.
fn publish(context: &Context, raised: Raised) -> Option<ibv_async_event> {
    let mut event = ibv_async_event { event_type: raised.event_type, ..Default::default() };
    match raised.element {
        Element::Cq(cq) => event.element.cq = cq.upgrade()?.c_address(),
        Element::Qp(qp) => event.element.qp = qp.upgrade()?.c_address(),
        Element::ForeignCq(number) => {
            // SAFETY: integers, null pointers and unlocked mutexes are valid all-zero.
            let mut public: ibv_cq = unsafe { core::mem::zeroed() };
            (public.context, public.handle) = (context.c_address(), number);
            event.element.cq = handle::publish(&Arc::new(ForeignCq { public: CStruct::new(public), number }));
        }
        Element::ForeignQp(number) => {
            // SAFETY: as above.
            let mut public: ibv_qp = unsafe { core::mem::zeroed() };
            (public.context, public.handle, public.qp_num) = (context.c_address(), number, number);
            event.element.qp = handle::publish(&Arc::new(ForeignQp { public: CStruct::new(public) }));
        }
    }
    Some(event)
}

/// Waits for an event. With `O_NONBLOCK` on the device's `async_fd` it looks once, without letting time pass, and gives
/// EAGAIN; otherwise it blocks in a machine that runs by itself; another it lets run, and gives EAGAIN when that has nothing left
/// to do, or after 100 ms of virtual time.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    number("ibv_get_async_event", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: the manual page asks for a writable event.
        let event = unsafe { out(event, "event") }?;
        let (driven, nonblocking) = (emu_bridge::is_driven()?, context.events.nonblocking());
        let end_ps = crate::now_ps().saturating_add(BLOCKING_BOUND_PS);
        loop {
            distribute()?;
            while let Some(raised) = context.events.pop() {
                if let Some(told) = publish(&context, raised) {
                    event.write(told);
                    return Ok(0);
                }
            }
            if driven && !nonblocking {
                context.events.wait()?;
            } else if nonblocking || crate::now_ps() > end_ps || !crate::relax() {
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
        let event = unsafe { crate::errno::input(event, "event") }?;
        // SAFETY: the pointers of the union are alike, and are looked up before they are followed.
        let (cq, qp) = unsafe { (event.element.cq, event.element.qp) };
        if event.event_type == IBV_EVENT_CQ_ERR {
            if handle::retire::<ForeignCq>(cq).is_err() {
                let cq = handle::get::<Cq>(cq)?;
                // SAFETY: the queue is alive; the field is this library's to write.
                unsafe { (*cq.c_address()).async_events_completed += 1 };
            }
        } else if handle::retire::<ForeignQp>(qp).is_err() {
            let qp = handle::get::<Qp>(qp)?;
            // SAFETY: as above.
            unsafe { (*qp.c_address()).events_completed += 1 };
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
