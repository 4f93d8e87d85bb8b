//! DPA threads that completions start.

use std::sync::Arc;

use flexio_sys as sys;

use crate::error::Result;
use crate::process::{Process, handle, number, warn_unless_destroyed};
use crate::raw::Raw;

/// Which execution unit (hardware thread) a handler runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// The runtime picks one.
    Any,
    /// This one; unit `n` is thread `n % 16` of core `n / 16`. Unit 0 belongs to the system.
    Unit(u32),
    /// Any of a group set up by the administrator.
    Group(u32),
}

/// An event handler: a thread of the process and the entry it runs, until this, its clones and the queues bound to it
/// are gone.
#[derive(Clone, Debug)]
pub struct EventHandler(Arc<Handler>);

#[derive(Debug)]
struct Handler {
    process: Process,
    raw: Raw<sys::flexio_event_handler>,
    /// `None` only while it is made.
    thread: Option<Raw<sys::flexio_thread>>,
    id: u32,
}

impl EventHandler {
    /// Creates the thread. It sleeps until [`EventHandler::run`] and then until its completion queue has an event.
    ///
    /// # Errors
    /// [`crate::Error::Image`] for an unknown entry, [`crate::Error::FlexIo`] when the unit is not to be had.
    pub fn new(process: &Process, entry: &str, argument: u64, affinity: Affinity) -> Result<Self> {
        let stub = process.application().handler(entry)?;
        let (kind, id) = match affinity {
            Affinity::Any => (sys::FLEXIO_AFFINITY_NONE, 0),
            Affinity::Unit(id) => (sys::FLEXIO_AFFINITY_STRICT, id),
            Affinity::Group(id) => (sys::FLEXIO_AFFINITY_GROUP, id),
        };
        let mut attr = sys::flexio_event_handler_attr {
            host_stub_func: stub,
            continuable: 0,
            // Two conventions are in use: the value here or that of `run` reaches the handler. Giving both the same
            // value is right under either.
            arg: argument,
            thread_local_storage_daddr: argument,
            affinity: sys::flexio_affinity { type_: kind, id },
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the process is live, the key registered with its application, `attr` initialised.
        let status = unsafe { (process.api().flexio_event_handler_create)(process.raw(), &raw mut attr, &raw mut raw) };
        process.ok("flexio_event_handler_create", status, || format!("{entry} on {affinity:?}"))?;
        let raw = handle("flexio_event_handler_create", raw)?;
        let mut this = Handler { process: process.clone(), raw, thread: None, id: 0 };
        // SAFETY: the handler is live and owns its thread.
        let thread = unsafe { (process.api().flexio_event_handler_get_thread)(raw.as_ptr()) };
        this.thread = Some(handle("flexio_event_handler_get_thread", thread)?);
        // SAFETY: as above.
        let id = unsafe { (process.api().flexio_event_handler_get_id)(raw.as_ptr()) };
        this.id = number("flexio_event_handler_get_id", id)?;
        Ok(Self(Arc::new(this)))
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.0.process
    }

    /// The thread's id, as crash records show it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id
    }

    pub(crate) fn thread(&self) -> *mut sys::flexio_thread {
        self.0.thread.map_or(std::ptr::null_mut(), Raw::as_ptr)
    }

    /// Lets events start it; its completion queue must exist.
    ///
    /// # Errors
    /// [`crate::Error::FlexIo`].
    pub fn run(&self, argument: u64) -> Result<()> {
        // SAFETY: the handler is live.
        let status = unsafe { (self.process().api().flexio_event_handler_run)(self.0.raw.as_ptr(), argument) };
        self.process().ok("flexio_event_handler_run", status, || format!("handler {}", self.id()))
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // SAFETY: created in `new`; queues bound to it hold a count of this object, so none is left.
        let status = unsafe { (self.process.api().flexio_event_handler_destroy)(self.raw.as_ptr()) };
        warn_unless_destroyed("event handler", status);
    }
}
