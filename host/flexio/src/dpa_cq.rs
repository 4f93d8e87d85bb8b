//! Completion queues in DPA memory.

use std::sync::Arc;

use flexcast_hw::Cqe;
use flexio_sys as sys;
use zerocopy::IntoBytes as _;

use crate::addr::DevAddr;
use crate::dpa_memory::DeviceBuffer;
use crate::error::{Error, Result};
use crate::event_handler::EventHandler;
use crate::process::{handle, number, warn_unless_destroyed};
use crate::raw::Raw;
use crate::window::Outbox;

/// Who learns of completions.
#[derive(Clone, Copy, Debug)]
pub enum CqTarget<'a> {
    /// A completion on the armed queue starts this handler.
    Thread(&'a EventHandler),
    /// Nobody: device code polls.
    Polled,
}

/// A completion queue whose ring and doorbell record lie in DPA memory, until this, its clones and the queue pairs that
/// complete into it are gone.
#[derive(Clone, Debug)]
pub struct DpaCompletionQueue(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    outbox: Outbox,
    raw: Raw<sys::flexio_cq>,
    number: u32,
    log_depth: u8,
    ring: DeviceBuffer,
    doorbell_record: DeviceBuffer,
    _handler: Option<EventHandler>,
}

/// log2 of the deepest queue of this crate.
pub(crate) const MAX_LOG_DEPTH: u8 = 15;

impl DpaCompletionQueue {
    /// Creates a queue of `2^log_depth` entries, armed.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a depth above 2^15, [`Error::FlexIo`].
    pub fn new(outbox: &Outbox, log_depth: u8, target: CqTarget<'_>) -> Result<Self> {
        check_log_depth("log2 of the depth of a completion queue", log_depth)?;
        let process = outbox.process();
        // Every entry starts with owner bit 1: the card writes 0 in its first pass.
        let entries = vec![Cqe::INITIAL; 1 << log_depth];
        let ring = DeviceBuffer::from_bytes(process, entries.as_bytes())?;
        let doorbell_record = DeviceBuffer::zeroed(process, 8)?;
        let mut attr = sys::flexio_cq_attr {
            log_cq_depth: log_depth,
            uar_id: outbox.uar_id(),
            cq_ring_qmem: device_memory(ring.addr()),
            cq_dbr_daddr: doorbell_record.addr().get(),
            ..Default::default()
        };
        let handler = match target {
            CqTarget::Thread(handler) => {
                if !handler.process().is_same(process) {
                    return Err(Error::Foreign { what: "event handler", parent: "process" });
                }
                attr.element_type = sys::FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD as u8;
                attr.__bindgen_anon_1.thread = handler.thread();
                Some(handler.clone())
            }
            CqTarget::Polled => {
                attr.element_type = sys::FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ as u8;
                None
            }
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: process, outbox page, ring, record and thread are live and outlive the queue: it owns them or holds a
        // count. A null context means the process's own.
        let status = unsafe {
            (process.api().flexio_cq_create)(process.raw(), std::ptr::null_mut(), &raw const attr, &raw mut raw)
        };
        process.ok("flexio_cq_create", status, || format!("2^{log_depth} entries"))?;
        let raw = handle("flexio_cq_create", raw)?;
        let mut this =
            Queue { outbox: outbox.clone(), raw, number: 0, log_depth, ring, doorbell_record, _handler: handler };
        // SAFETY: the queue is live.
        this.number = number("flexio_cq_get_cq_num", unsafe { (process.api().flexio_cq_get_cq_num)(raw.as_ptr()) })?;
        Ok(Self(Arc::new(this)))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// log2 of its entries.
    #[must_use]
    pub fn log_depth(&self) -> u8 {
        self.0.log_depth
    }

    /// Address of the ring.
    #[must_use]
    pub fn ring(&self) -> DevAddr {
        self.0.ring.addr()
    }

    /// Address of the doorbell record.
    #[must_use]
    pub fn doorbell_record(&self) -> DevAddr {
        self.0.doorbell_record.addr()
    }

    /// The outbox it is rung from.
    #[must_use]
    pub fn outbox(&self) -> &Outbox {
        &self.0.outbox
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: created in `new`; queue pairs that complete here hold a count of this object, so none is left. The
        // ring is freed after this.
        let status = unsafe { (self.outbox.process().api().flexio_cq_destroy)(self.raw.as_ptr()) };
        warn_unless_destroyed("completion queue", status);
    }
}

pub(crate) fn check_log_depth(what: &'static str, log_depth: u8) -> Result<()> {
    if log_depth > MAX_LOG_DEPTH {
        return Err(Error::OutOfRange { what, value: u64::from(log_depth), limit: format!("at most {MAX_LOG_DEPTH}") });
    }
    Ok(())
}

pub(crate) fn device_memory(addr: DevAddr) -> sys::flexio_qmem {
    let mut memory = sys::flexio_qmem { memtype: sys::FLEXIO_MEMTYPE_DPA, ..Default::default() };
    memory.__bindgen_anon_1.daddr = addr.get();
    memory
}
