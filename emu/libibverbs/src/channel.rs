//! Completion channels. Waiting for an event lets virtual time pass until one comes, so nothing blocks.

use core::ffi::{c_int, c_uint, c_void};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use emu_machine::with_world;
use verbs_sys::*;

use crate::cq::Cq;
use crate::device::Context;
use crate::errno::{Errno, number, out, pointer, status};
use crate::handle::{self, CStruct, Object};

pub(crate) struct Channel {
    public: CStruct<ibv_comp_channel>,
    pub(crate) id: u32,
    pub(crate) context: Arc<Context>,
    events: Mutex<VecDeque<u32>>,
    pub(crate) queues: Mutex<BTreeMap<u32, Weak<Cq>>>,
    fd: c_int,
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
        // SAFETY: opened at creation and closed here alone.
        unsafe { libc::close(self.fd) };
    }
}

static CHANNELS: Mutex<BTreeMap<u32, Weak<Channel>>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer("ibv_create_comp_channel", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: makes a new descriptor. Nobody signals it: it is there for programs that set its flags.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(Errno::new(libc::EMFILE, "no descriptor for a completion channel"));
        }
        let public = ibv_comp_channel { context: context.c_address(), fd, refcnt: 0 };
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let channel = Arc::new(Channel {
            public: CStruct::new(public),
            id,
            context,
            events: Mutex::default(),
            queues: Mutex::default(),
            fd,
        });
        CHANNELS.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::downgrade(&channel));
        Ok(handle::publish(&channel))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status("ibv_destroy_comp_channel", || {
        let object = handle::get::<Channel>(channel)?;
        let users = object.queues.lock().unwrap_or_else(PoisonError::into_inner).len();
        if users > 0 {
            return Err(Errno::new(libc::EBUSY, format!("{users} completion queues use the channel")));
        }
        handle::retire::<Channel>(channel)?;
        Ok(())
    })
}

/// Hands events of the machine to their channels.
fn distribute() -> crate::errno::Result<()> {
    while let Some((_, id, cqn)) = with_world(|world| world.take_channel_event())? {
        let channel = CHANNELS.lock().unwrap_or_else(PoisonError::into_inner).get(&id).and_then(Weak::upgrade);
        if let Some(channel) = channel {
            channel.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(cqn);
        }
    }
    Ok(())
}

/// Waits for an event. With `O_NONBLOCK` on the channel's descriptor it lets one thing happen and then gives EAGAIN;
/// otherwise it gives EAGAIN only when the machine has nothing left to do, because no event could ever come.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    number("ibv_get_cq_event", || {
        let channel = handle::get::<Channel>(channel)?;
        // SAFETY: the descriptor is open while the channel lives.
        let nonblocking = unsafe { libc::fcntl(channel.fd, libc::F_GETFL) } & libc::O_NONBLOCK != 0;
        let mut progress = true;
        loop {
            distribute()?;
            let event = channel.events.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some(cqn) = event {
                let queues = channel.queues.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(queue) = queues.get(&cqn).and_then(Weak::upgrade) else { continue };
                // SAFETY: the manual page asks for two writable pointers.
                unsafe {
                    out(cq, "cq")?.write(queue.c_address());
                    out(cq_context, "cq_context")?.write((*queue.c_address()).cq_context);
                }
                return Ok(0);
            }
            if !progress {
                return Err(Errno::new(libc::EAGAIN, "no completion event"));
            }
            progress = crate::relax() && !nonblocking;
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    status("ibv_ack_cq_events", || {
        let queue = handle::get::<Cq>(cq)?;
        // SAFETY: the queue is alive; the field is this library's to write.
        unsafe { (*queue.c_address()).comp_events_completed += nevents };
        Ok(())
    });
}
