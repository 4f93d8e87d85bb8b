//! Completion channels.
//!
//! In a machine that runs by itself (a bridged one) waiting for an event blocks, and the channel's descriptor is
//! readable while there is one. In others waiting lets virtual time pass until an event comes.

use core::ffi::{c_int, c_uint, c_void};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use emu_machine::FunctionId;
use verbs_sys::*;

use crate::card;
use crate::card::events;
use crate::card::request::Request;
use crate::cq::Cq;
use crate::device::Context;
use crate::errno::{Errno, Result, number, out, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::machine::{self, with_world};
use crate::mailbox::Mailbox;

/// Longest wait in a machine that does not run by itself, in virtual time: 120 s, as long as a handler may run. A peer
/// without receives can be asked for ever, and then there is always something left to do.
const BLOCKING_BOUND_PS: u64 = 120_000_000_000_000;

/// Milliseconds between two checks whether another process that has the card is there still.
const BETWEEN_CHECKS_MS: i32 = 100;

pub(crate) struct Channel {
    public: CStruct<ibv_comp_channel>,
    pub(crate) id: u32,
    pub(crate) context: Arc<Context>,
    events: Mailbox<u32>,
    queues: Mutex<BTreeMap<u32, Weak<Cq>>>,
}

impl Channel {
    fn queues(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Cq>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the program how many queues use the channel.
    fn show_users(&self, queues: &BTreeMap<u32, Weak<Cq>>) {
        // SAFETY: a field of the structure, which lives as long as `self` and is aligned. This library accesses it as
        // an atomic alone, and programs read it.
        let shown = unsafe { AtomicI32::from_ptr(&raw mut (*self.public.get()).refcnt) };
        shown.store(queues.len() as i32, Ordering::Relaxed);
    }

    /// A completion queue begins to use it.
    pub(crate) fn add(&self, queue: &Arc<Cq>) {
        let mut queues = self.queues();
        queues.insert(queue.number, Arc::downgrade(queue));
        self.show_users(&queues);
    }

    /// A completion queue uses it no more.
    pub(crate) fn remove(&self, queue: &Cq) {
        let mut queues = self.queues();
        queues.remove(&queue.number);
        self.show_users(&queues);
    }
}

impl Object for Channel {
    const KIND: &'static str = "completion channel";
    type C = ibv_comp_channel;
    fn c_address(&self) -> *mut ibv_comp_channel {
        self.public.get()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        CHANNELS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

static CHANNELS: Mutex<BTreeMap<u32, Weak<Channel>>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer("ibv_create_comp_channel", || {
        let context = handle::get::<Context>(context)?;
        if let Some(link) = emu_bridge::attached()? {
            let started = link.watch(|| distribute().is_ok());
            started.map_err(|error| Errno::new(libc::EAGAIN, format!("no thread for completion events: {error}")))?;
        }
        let events = Mailbox::new("a completion channel")?;
        let public = ibv_comp_channel { context: context.c_address(), fd: events.fd(), refcnt: 0 };
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let channel = Arc::new(Channel { public: CStruct::new(public), id, context, events, queues: Mutex::default() });
        CHANNELS.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::downgrade(&channel));
        Ok(handle::publish(&channel))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status("ibv_destroy_comp_channel", || {
        let object = handle::get::<Channel>(channel)?;
        let users = object.queues().len();
        if users > 0 {
            return Err(Errno::new(libc::EBUSY, format!("{users} completion queues use the channel")));
        }
        handle::retire::<Channel>(channel)?;
        Ok(())
    })
}

/// The next events of this process: channels and completion queues. Those of other processes are kept for them.
fn taken() -> Result<Vec<(u32, u32)>> {
    if machine::is_elsewhere()? {
        return card::call(FunctionId::default(), Request::TakeEvents)?.events();
    }
    Ok(with_world(|world| {
        let taken = std::iter::from_fn(|| world.take_channel_event()).map(|(_, id, cqn)| (id, cqn));
        taken.filter(|&(id, cqn)| !events::keep(id, cqn)).collect()
    })?)
}

/// Hands events of the machine to their channels.
pub(crate) fn distribute() -> Result<()> {
    for (id, cqn) in taken()? {
        let channel = CHANNELS.lock().unwrap_or_else(PoisonError::into_inner).get(&id).and_then(Weak::upgrade);
        if let Some(channel) = channel {
            channel.events.push(cqn);
        }
    }
    Ok(())
}

/// Waits for an event. In a machine that does not run by itself it gives EAGAIN when nothing is left to do, because no
/// event could ever come, or after 120 s of virtual time. With `O_NONBLOCK` on the channel's descriptor it gives EAGAIN
/// instead of waiting, after letting one thing happen.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    number("ibv_get_cq_event", || {
        let channel = handle::get::<Channel>(channel)?;
        // Before an event is taken that could be given to nobody.
        // SAFETY: the manual page asks for two writable pointers.
        let (cq, cq_context) = unsafe { (out(cq, "cq")?, out(cq_context, "cq_context")?) };
        let (driven, nonblocking) = (emu_bridge::is_driven()?, channel.events.nonblocking());
        // A thread fetches events from another process; nothing would report that the process is gone.
        let bound = machine::is_elsewhere()?.then_some(BETWEEN_CHECKS_MS);
        let end_ps = card::now_ps().saturating_add(BLOCKING_BOUND_PS);
        let mut progress = true;
        loop {
            distribute()?;
            if let Some(cqn) = channel.events.pop() {
                let queue = channel.queues().get(&cqn).and_then(Weak::upgrade);
                let Some(queue) = queue.filter(|queue| queue.completion_events.take()) else { continue };
                cq.write(queue.c_address());
                // SAFETY: the queue is alive; nobody changes the field after its creation.
                cq_context.write(unsafe { (*queue.c_address()).cq_context });
                return Ok(0);
            }
            if !progress {
                return Err(Errno::new(libc::EAGAIN, "no completion event"));
            }
            if driven && !nonblocking {
                channel.events.wait(bound)?;
            } else {
                progress = machine::relax() && !nonblocking && card::now_ps() <= end_ps;
            }
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    status("ibv_ack_cq_events", || handle::get::<Cq>(cq)?.acknowledge_completion_events(nevents));
}
