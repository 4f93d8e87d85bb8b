//! Event handlers and their threads.

use std::sync::Arc;

use emu_libibverbs::handle::{self, Object};
use emu_machine::MachineError;
use flexio_sys::*;

use crate::process::{Process, attribute, number_of, world};
use crate::status::{failed, out, pointer, status};

pub(crate) struct EventHandler {
    process: Arc<Process>,
    thread: Arc<Thread>,
}

impl Object for EventHandler {
    const KIND: &'static str = "event handler";
    type C = flexio_event_handler;
    fn c_address(&self) -> *mut flexio_event_handler {
        (self as *const Self).cast_mut().cast()
    }
}

/// The thread of an event handler, to bind completion queues to.
pub(crate) struct Thread {
    pub(crate) card: usize,
    pub(crate) process: u32,
    pub(crate) id: u32,
}

impl Object for Thread {
    const KIND: &'static str = "thread";
    type C = flexio_thread;
    fn c_address(&self) -> *mut flexio_thread {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_event_handler_create(
    process: *mut flexio_process,
    fattr: *mut flexio_event_handler_attr,
    event_handler_ptr: *mut *mut flexio_event_handler,
) -> flexio_status {
    status("flexio_event_handler_create", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, handler) = unsafe { (attribute(fattr)?, out(event_handler_ptr, "event_handler_ptr")?) };
        let function = process.app.function(attr.host_stub_func)?;
        let unit = match attr.affinity.type_ {
            FLEXIO_AFFINITY_NONE => None,
            FLEXIO_AFFINITY_STRICT => Some(attr.affinity.id),
            other => return Err(failed(format!("affinity type {other}: none (0) and strict (1) are emulated"))),
        };
        let (card, id) = (process.card, process.id);
        let tls = attr.thread_local_storage_daddr;
        let thread = world(|world| {
            let thread = world.create_thread(card, id, function.addr, attr.arg, tls, unit)?;
            if attr.continuable != 0 {
                world.make_continuable(card, thread)?;
            }
            Ok::<_, MachineError>(thread)
        })?;
        let thread = Arc::new(Thread { card, process: id, id: thread });
        handle::publish(&thread);
        handler.write(handle::publish(&Arc::new(EventHandler { process, thread })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_event_handler_run(
    event_handler: *mut flexio_event_handler,
    user_arg: u64,
) -> flexio_status {
    status("flexio_event_handler_run", || {
        let handler = handle::get::<EventHandler>(event_handler)?;
        world(|world| world.run_event_handler(handler.process.card, handler.thread.id, user_arg))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_event_handler_destroy(
    event_handler: *mut flexio_event_handler,
) -> flexio_status {
    status("flexio_event_handler_destroy", || {
        let handler = handle::get::<EventHandler>(event_handler)?;
        // The handler and the set of live handles hold the thread as well.
        let queues = Arc::strong_count(&handler.thread).saturating_sub(2);
        if queues > 0 {
            return Err(failed(format!("completion queues of its thread still exist ({queues}): destroy them first")));
        }
        world(|world| world.destroy_thread(handler.process.card, handler.thread.id))?;
        handle::retire::<Thread>(handler.thread.c_address())?;
        handle::retire::<EventHandler>(event_handler)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_event_handler_get_thread(
    event_handler: *mut flexio_event_handler,
) -> *mut flexio_thread {
    pointer("flexio_event_handler_get_thread", || Ok(handle::get::<EventHandler>(event_handler)?.thread.c_address()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_event_handler_get_id(event_handler: *mut flexio_event_handler) -> u32 {
    number_of::<EventHandler>("flexio_event_handler_get_id", event_handler, |handler| handler.thread.id)
}

/// The object id is the thread's, by which DevX commands name it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_event_handler_get_obj_id(event_handler: *mut flexio_event_handler) -> u32 {
    number_of::<EventHandler>("flexio_event_handler_get_obj_id", event_handler, |handler| handler.thread.id)
}
