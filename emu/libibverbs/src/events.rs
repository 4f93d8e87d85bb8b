//! Asynchronous events: failures of queues that no completion tells, or not all of it.
//!
//! An event goes to the open device that owns the queue. Queues made by DevX or FlexIO have no verbs object: their events
//! go to every open device of their card, with a stand-in of which only the number can be asked for (`qp_num`, and
//! `mlx5dv_init_obj` for completion queues). The real library tells of such queues through DevX event channels only.

use core::ffi::{c_char, c_int};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use emu_machine::nic::{AsyncEvent, FailureCause};
use emu_machine::{World, with_world};
use verbs_sys::*;

use crate::cq::Cq;
use crate::device::Context;
use crate::errno::{Errno, Result, number, out, status};
use crate::handle::{self, CStruct, Object};
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
struct Raised {
    event_type: ibv_event_type,
    element: Element,
}

/// The events of an open device.
pub(crate) struct Events {
    waiting: Mutex<VecDeque<Raised>>,
    fd: c_int,
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: opened at creation and closed here alone.
        unsafe { libc::close(self.fd) };
    }
}

impl Events {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: makes a new descriptor. Its flags decide whether a call waits, and it is readable while events wait.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(Errno::new(libc::EMFILE, "no descriptor for asynchronous events"));
        }
        Ok(Self { waiting: Mutex::default(), fd })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    fn push(&self, raised: Raised) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(raised);
        let one = 1_u64;
        // SAFETY: the descriptor is open, and eight bytes are read. A full counter would need 2^64 events.
        unsafe { libc::write(self.fd, (&raw const one).cast(), 8) };
    }

    fn pop(&self) -> Option<Raised> {
        let raised = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        let mut one = 0_u64;
        // SAFETY: the descriptor is open, its counter is that of the events, so it is not 0 and nothing blocks.
        unsafe { libc::read(self.fd, (&raw mut one).cast(), 8) };
        Some(raised)
    }
}

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

/// What an event is in verbs, whose it is if a verbs object has it, and how it is told otherwise.
fn classify(world: &mut World, card: usize, event: AsyncEvent) -> Option<(Raised, Option<Arc<Context>>)> {
    let nic = &world.card(card).ok()?.nic;
    match event {
        AsyncEvent::CqError { cqn, .. } => {
            let ring = nic.query_cq(cqn).map(|attr| attr.ring.addr);
            let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
            let owned = ring.and_then(|ring| queues.get(&ring)).and_then(Weak::upgrade);
            let element = owned.as_ref().map_or(Element::ForeignCq(cqn), |cq| Element::Cq(Arc::downgrade(cq)));
            Some((Raised { event_type: IBV_EVENT_CQ_ERR, element }, owned.map(|cq| Arc::clone(&cq.context))))
        }
        AsyncEvent::QpFatal { qpn, cause } => {
            let event_type = match cause {
                FailureCause::RemoteAccess => IBV_EVENT_QP_ACCESS_ERR,
                FailureCause::InvalidRequest => IBV_EVENT_QP_REQ_ERR,
                _ => IBV_EVENT_QP_FATAL,
            };
            let record = nic.query_qp(qpn).ok().map(|query| query.attr.doorbell_record.addr);
            let queue_pairs = QUEUE_PAIRS.lock().unwrap_or_else(PoisonError::into_inner);
            let owned = record.and_then(|record| queue_pairs.get(&record)).and_then(Weak::upgrade);
            let element = owned.as_ref().map_or(Element::ForeignQp(qpn), |qp| Element::Qp(Arc::downgrade(qp)));
            Some((Raised { event_type, element }, owned.map(|qp| Arc::clone(qp.context()))))
        }
        // A card ignores doorbells of queues that are not there; the machine's log tells of them.
        AsyncEvent::UnknownQueue { .. } => None,
    }
}

/// Hands events of the calling thread's machine to their devices.
fn distribute() -> Result<()> {
    let machine = machine()?;
    let raised: Vec<_> = with_world(|world| {
        let mut raised = Vec::new();
        while let Some((card, event)) = world.take_async_event() {
            raised.extend(classify(world, card, event).map(|(event, owner)| (card, event, owner)));
        }
        raised
    })?;
    for (card, event, owner) in raised {
        if let Some(owner) = owner {
            owner.events.push(event);
            continue;
        }
        let contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let live = contexts.iter().filter_map(Weak::upgrade);
        for context in live.filter(|context| context.card == card && context.machine == machine) {
            context.events.push(event.clone());
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
/// EAGAIN; otherwise it lets the machine run and gives EAGAIN when that has nothing left to do, or after 100 ms of virtual
/// time.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    number("ibv_get_async_event", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: the manual page asks for a writable event.
        let event = unsafe { out(event, "event") }?;
        // SAFETY: the descriptor is open while the device is.
        let nonblocking = unsafe { libc::fcntl(context.events.fd, libc::F_GETFL) } & libc::O_NONBLOCK != 0;
        let end_ps = crate::now_ps().saturating_add(BLOCKING_BOUND_PS);
        loop {
            distribute()?;
            while let Some(raised) = context.events.pop() {
                if let Some(told) = publish(&context, raised) {
                    event.write(told);
                    return Ok(0);
                }
            }
            if nonblocking || crate::now_ps() > end_ps || !crate::relax() {
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
