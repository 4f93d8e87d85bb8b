//! Completion queues in device memory.

use std::sync::Arc;

use emu_libibverbs::handle::{self, Object};
use emu_machine::nic::{CqAttr, CqTarget};
use flexio_sys::*;
use verbs_sys::ibv_context;

use crate::process::{Process, attribute, number_of, world};
use crate::status::{Result, failed, out, status};
use crate::thread::Thread;

pub(crate) struct Cq {
    process: Arc<Process>,
    number: u32,
    /// Held so that the thread is not destroyed first.
    _thread: Option<Arc<Thread>>,
}

impl Object for Cq {
    const KIND: &'static str = "completion queue";
    type C = flexio_cq;
    fn c_address(&self) -> *mut flexio_cq {
        (self as *const Self).cast_mut().cast()
    }
}

/// The thread that the card's events of a queue go to, if any.
fn target(process: &Process, attr: &flexio_cq_attr) -> Result<Option<Arc<Thread>>> {
    match u32::from(attr.element_type) {
        FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD => {
            // SAFETY: a queue of this type has this member of the union; as a handle it is searched for, not
            // dereferenced.
            let thread = handle::get::<Thread>(unsafe { attr.__bindgen_anon_1.thread })?;
            if (thread.card, thread.process) != (process.card, process.id) {
                return Err(failed("the thread belongs to another process"));
            }
            Ok(Some(thread))
        }
        FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ => Ok(None),
        other => Err(failed(format!(
            "completion queue element type {other}: DPA thread ({FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD}) and polled \
             ({FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ}) are emulated"
        ))),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cq_create(
    process: *mut flexio_process,
    ibv_ctx: *mut ibv_context,
    fattr: *const flexio_cq_attr,
    cq: *mut *mut flexio_cq,
) -> flexio_status {
    status("flexio_cq_create", || {
        let process = handle::get::<Process>(process)?;
        process.check_context(ibv_ctx)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, cq) = unsafe { (attribute(fattr)?, out(cq, "cq")?) };
        for (what, asked) in [
            ("completion compression", attr.cqe_comp_type != FLEXIO_CQE_COMP_NONE),
            ("a collapsed completion queue", attr.cc),
            ("moderation", attr.cq_max_count > 1 || attr.cq_period > 0),
        ] {
            if asked {
                return Err(failed(format!("{what} is not emulated")));
            }
        }
        if attr.log_cq_depth > 22 {
            return Err(failed(format!("log_cq_depth is {}: at most 22 is possible", attr.log_cq_depth)));
        }
        let thread = target(&process, attr)?;
        let target = thread.as_ref().map_or(CqTarget::None, |thread| CqTarget::DpaThread(thread.id));
        let ring = process.queue_memory("cq_ring_qmem", &attr.cq_ring_qmem, 64 << attr.log_cq_depth)?;
        let doorbell_record = process.device_memory("cq_dbr_daddr", attr.cq_dbr_daddr, 8)?;
        let attr = CqAttr {
            ring,
            log_depth: attr.log_cq_depth,
            doorbell_record,
            target,
            overrun_ignore: attr.overrun_ignore != 0,
            always_armed: attr.always_armed != 0,
            armed_at_creation: !attr.no_arm && thread.is_some(),
            uar: attr.uar_id,
        };
        let number = world(|world| Ok::<_, crate::status::Failure>(world.card(process.card)?.nic.create_cq(attr)?))?;
        cq.write(handle::publish(&Arc::new(Cq { process, number, _thread: thread })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cq_destroy(cq: *mut flexio_cq) -> flexio_status {
    status("flexio_cq_destroy", || {
        let object = handle::get::<Cq>(cq)?;
        world(|world| {
            let card = world.card(object.process.card)?;
            Ok::<_, crate::status::Failure>(card.nic.destroy_cq(object.number)?)
        })?;
        handle::retire::<Cq>(cq)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cq_get_cq_num(cq: *mut flexio_cq) -> u32 {
    number_of::<Cq>("flexio_cq_get_cq_num", cq, |cq| cq.number)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cq_query_moderation(
    cq: *mut flexio_cq,
    max_count: *mut u16,
    period: *mut u16,
    mode: *mut u16,
) -> flexio_status {
    status("flexio_cq_query_moderation", || {
        handle::get::<Cq>(cq)?;
        // SAFETY: null, or writable as the interface asks.
        unsafe {
            out(max_count, "max_count")?.write(0);
            out(period, "period")?.write(0);
            out(mode, "mode")?.write(FLEXIO_CQ_PERIOD_MODE_EVENT as u16);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cq_modify_moderation(
    cq: *mut flexio_cq,
    max_count: u16,
    period: u16,
    _mode: u16,
) -> flexio_status {
    status("flexio_cq_modify_moderation", || {
        handle::get::<Cq>(cq)?;
        if max_count > 1 || period > 0 {
            return Err(failed("moderation is not emulated: every completion counts"));
        }
        Ok(())
    })
}
