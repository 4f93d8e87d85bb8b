//! Windows (host memory seen from the DPA) and outboxes (doorbell pages).

use std::ptr::NonNull;
use std::sync::Arc;

use flexio_sys as sys;

use crate::error::Result;
use crate::process::{Process, handle, number, warn_unless_destroyed};
use crate::raw::Raw;

/// A window: lets threads of the process load and store host memory of one protection domain, through a memory key.
#[derive(Debug)]
pub struct Window {
    process: Process,
    raw: Raw<sys::flexio_window>,
    id: u32,
}

impl Window {
    /// Creates a window onto the process's protection domain.
    ///
    /// # Errors
    /// [`crate::Error::FlexIo`].
    pub fn new(process: &Process) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: process and domain are live.
        let status =
            unsafe { (process.api().flexio_window_create)(process.raw(), process.pd().raw().cast(), &raw mut raw) };
        process.ok("flexio_window_create", status, String::new)?;
        let raw = handle("flexio_window_create", raw)?;
        let mut this = Self { process: process.clone(), raw, id: 0 };
        // SAFETY: the window is live.
        this.id = number("flexio_window_get_id", unsafe { (process.api().flexio_window_get_id)(raw.as_ptr()) })?;
        Ok(this)
    }

    /// The id a thread selects it by.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed only here.
        let status = unsafe { (self.process.api().flexio_window_destroy)(self.raw.as_ptr()) };
        warn_unless_destroyed("window", status);
    }
}

/// An outbox: the page of doorbell registers a thread writes to, until this, its clones and the queues that name it are
/// gone.
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Page>);

#[derive(Debug)]
struct Page {
    process: Process,
    raw: Raw<sys::flexio_outbox>,
    id: u32,
    uar_id: u32,
}

impl Outbox {
    /// Creates an outbox.
    ///
    /// # Errors
    /// [`crate::Error::FlexIo`].
    pub fn new(process: &Process) -> Result<Self> {
        let mut attr = sys::flexio_outbox_attr::default();
        let mut raw = std::ptr::null_mut();
        // SAFETY: the process is live and `attr` initialised (no extended UAR, no congestion control).
        let status = unsafe { (process.api().flexio_outbox_create)(process.raw(), &raw mut attr, &raw mut raw) };
        process.ok("flexio_outbox_create", status, String::new)?;
        let raw = handle("flexio_outbox_create", raw)?;
        let mut this = Page { process: process.clone(), raw, id: 0, uar_id: 0 };
        // SAFETY: the outbox is live.
        this.id = number("flexio_outbox_get_id", unsafe { (process.api().flexio_outbox_get_id)(raw.as_ptr()) })?;
        // SAFETY: as above; the page belongs to the outbox.
        let uar = unsafe { (process.api().flexio_outbox_get_uar)(raw.as_ptr()) };
        this.uar_id = match NonNull::new(uar) {
            // SAFETY: a live page of a live outbox.
            Some(uar) => number("flexio_uar_get_id", unsafe { (process.api().flexio_uar_get_id)(uar.as_ptr()) })?,
            None => process.uar_id()?,
        };
        Ok(Self(Arc::new(this)))
    }

    /// The process it belongs to.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.0.process
    }

    /// The id a thread selects it by.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// Id of the doorbell page that queues must name to be rung from this outbox.
    #[must_use]
    pub fn uar_id(&self) -> u32 {
        self.0.uar_id
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: created in `new`; queues that name its page hold a count of this object, so none is left.
        let status = unsafe { (self.process.api().flexio_outbox_destroy)(self.raw.as_ptr()) };
        warn_unless_destroyed("outbox", status);
    }
}
