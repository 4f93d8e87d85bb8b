//! Failures of queues that no completion reports, or not in full: whose they are, and who is notified.
//!
//! An event goes to the open device that owns the queue. Queues made by DevX or FlexIO have no verbs object: their
//! events go to every open device of their card, with a stand-in of which only the number can be asked for (`qp_num`,
//! and `mlx5dv_init_obj` for completion queues). The real library reports such queues through DevX event channels
//! only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use emu_machine::World;
use emu_machine::nic::{AsyncEvent, FailureCause};
use verbs_sys::*;

use crate::device::Context;
use crate::errno::Result;
use crate::handle::{self, CStruct, Object};
use crate::machine::{self, on_machine, with_world};
use crate::mailbox::Mailbox;

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
pub(crate) struct ForeignQp {
    public: CStruct<ibv_qp>,
}

impl Object for ForeignQp {
    const KIND: &'static str = "queue pair of an asynchronous event";
    type C = ibv_qp;
    fn c_address(&self) -> *mut ibv_qp {
        self.public.get()
    }
}

/// A queue of a verbs object, which events can be about.
pub(crate) trait Source: Send + Sync {
    /// Makes it the element of an event that the program takes; false if it is being destroyed.
    fn take(&self, event: &mut ibv_async_event) -> bool;
}

/// What an event is about. Events of objects destroyed meanwhile are not reported.
#[derive(Clone)]
enum Element {
    Own(Weak<dyn Source>),
    ForeignCq(u32),
    ForeignQp(u32),
}

#[derive(Clone)]
pub(crate) struct Raised {
    event_type: ibv_event_type,
    element: Element,
}

/// The events of an open device.
pub(crate) type Events = Mailbox<Raised>;

/// An object, and the open device that it was made from.
type Owned = (Weak<dyn Source>, Weak<Context>);

/// Those that are watched.
struct Sources {
    owned: BTreeMap<u64, Owned>,
    /// How many were left when those of dead objects were last taken out.
    swept: usize,
}

/// Objects by the addresses of their rings (completion queues) or doorbell records (queue pairs): what ties a number of
/// some machine to an object of this process.
static SOURCES: Mutex<Sources> = Mutex::new(Sources { owned: BTreeMap::new(), swept: 0 });
static CONTEXTS: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

/// Has events of a queue reported to `context`, by the address of its ring or doorbell record.
pub(crate) fn watch<S: Source + 'static>(context: &Arc<Context>, addr: u64, source: &Arc<S>) {
    let source: Arc<dyn Source> = Arc::<S>::clone(source);
    let mut sources = SOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    // A thousand cards have tens of thousands of queues: not at each.
    if sources.owned.len() > 2 * sources.swept + 64 {
        sources.owned.retain(|_, (source, _)| source.strong_count() > 0);
        sources.swept = sources.owned.len();
    }
    sources.owned.insert(addr, (Arc::downgrade(&source), Arc::downgrade(context)));
}

/// What is at an address, if it is live, and whose it is.
fn owned(addr: u64) -> Option<(Element, Arc<Context>)> {
    let sources = SOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    let (source, context) = sources.owned.get(&addr)?;
    let live = source.upgrade()?;
    Some((Element::Own(Arc::downgrade(&live)), context.upgrade()?))
}

pub(crate) fn watch_context(context: &Arc<Context>) {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    contexts.retain(|context| context.strong_count() > 0);
    contexts.push(Arc::downgrade(context));
}

/// Identifies the calling thread's machine: the address of its first card, which does not move.
pub(crate) fn machine() -> Result<usize> {
    if machine::is_elsewhere()? {
        return Ok(0);
    }
    on_machine(|world| world.card(0).map(|card| std::ptr::from_ref(card) as usize))
}

/// Where the ring or the doorbell record of an event's queue lies; 0 if there is no such queue any more.
fn place(world: &mut World, card: usize, event: AsyncEvent) -> u64 {
    let Ok(card) = world.card(card) else { return 0 };
    match event {
        AsyncEvent::CqError { cqn, .. } => card.nic.query_cq(cqn).map_or(0, |attr| attr.ring.addr),
        AsyncEvent::QpFatal { qpn, .. } | AsyncEvent::LastReceive { qpn } => {
            card.nic.query_qp(qpn).map_or(0, |query| query.attr.doorbell_record.addr)
        }
        AsyncEvent::SrqError { srqn, .. } | AsyncEvent::SrqLimit { srqn } => {
            card.nic.query_srq(srqn).map_or(0, |progress| progress.attr.ring.addr)
        }
        AsyncEvent::UnknownQueue { .. } => 0,
    }
}

/// What an event is in verbs, and whose it is if a verbs object has it.
fn classify(event: AsyncEvent, place: u64) -> Option<(Raised, Option<Arc<Context>>)> {
    let (event_type, foreign) = match event {
        AsyncEvent::CqError { cqn, .. } => (IBV_EVENT_CQ_ERR, Element::ForeignCq(cqn)),
        AsyncEvent::QpFatal { qpn, cause } => {
            let event_type = match cause {
                FailureCause::RemoteAccess => IBV_EVENT_QP_ACCESS_ERR,
                FailureCause::InvalidRequest => IBV_EVENT_QP_REQ_ERR,
                _ => IBV_EVENT_QP_FATAL,
            };
            (event_type, Element::ForeignQp(qpn))
        }
        AsyncEvent::LastReceive { qpn } => (IBV_EVENT_QP_LAST_WQE_REACHED, Element::ForeignQp(qpn)),
        // Shared receive queues are made by verbs alone; one that is gone has no events.
        AsyncEvent::SrqError { .. } | AsyncEvent::SrqLimit { .. } => {
            let is_limit = matches!(event, AsyncEvent::SrqLimit { .. });
            let event_type = if is_limit { IBV_EVENT_SRQ_LIMIT_REACHED } else { IBV_EVENT_SRQ_ERR };
            let (element, owner) = owned(place)?;
            return Some((Raised { event_type, element }, Some(owner)));
        }
        // A card ignores doorbells of queues that are not there; the machine's log reports them.
        AsyncEvent::UnknownQueue { .. } => return None,
    };
    Some(match owned(place) {
        Some((element, owner)) => (Raised { event_type, element }, Some(owner)),
        None => (Raised { event_type, element: foreign }, None),
    })
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
pub(crate) fn publish(context: &Context, raised: Raised) -> Option<ibv_async_event> {
    let mut event = ibv_async_event { event_type: raised.event_type, ..Default::default() };
    match raised.element {
        Element::Own(source) => source.upgrade()?.take(&mut event).then_some(())?,
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
