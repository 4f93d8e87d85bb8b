//! Windows, outboxes and UARs.

use std::sync::Arc;

use emu_libibverbs::Pd;
use emu_libibverbs::handle::{self, Object};
use emu_libibverbs::umem::new_uar_page;
use flexio_sys::*;
use verbs_sys::{ibv_context, ibv_pd};

use crate::process::{Process, attribute, number_of, world};
use crate::status::{failed, out, pointer, status};

pub(crate) struct Window {
    process: Arc<Process>,
    id: u32,
    /// Held so that the domain is not deallocated first.
    _pd: Arc<Pd>,
}

impl Object for Window {
    const KIND: &'static str = "window";
    type C = flexio_window;
    fn c_address(&self) -> *mut flexio_window {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_window_create(
    process: *mut flexio_process,
    pd: *mut ibv_pd,
    window: *mut *mut flexio_window,
) -> flexio_status {
    status("flexio_window_create", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or writable as the interface asks.
        let window = unsafe { out(window, "window") }?;
        if pd.is_null() {
            return Err(failed("pd is null: a window reaches the memory of one protection domain"));
        }
        let pd = process.domain(pd)?;
        let id = world(|world| world.create_window(process.card, process.id, pd.number))?;
        window.write(handle::publish(&Arc::new(Window { process, id, _pd: pd })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_window_destroy(window: *mut flexio_window) -> flexio_status {
    status("flexio_window_destroy", || {
        let object = handle::get::<Window>(window)?;
        world(|world| world.destroy_window(object.process.card, object.process.id, object.id))?;
        handle::retire::<Window>(window)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_window_get_id(window: *mut flexio_window) -> u32 {
    number_of::<Window>("flexio_window_get_id", window, |window| window.id)
}

/// A doorbell page. Its number is what queues are created with.
pub(crate) struct Uar {
    pub(crate) id: u32,
    /// The process, for pages that belong to the caller.
    process: Option<Arc<Process>>,
}

impl Uar {
    pub(crate) fn new(process: Option<Arc<Process>>) -> Self {
        Uar { id: new_uar_page(), process }
    }
}

impl Object for Uar {
    const KIND: &'static str = "UAR";
    type C = flexio_uar;
    fn c_address(&self) -> *mut flexio_uar {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_uar_create(
    process: *mut flexio_process,
    uar: *mut *mut flexio_uar,
) -> flexio_status {
    status("flexio_uar_create", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or writable as the interface asks.
        unsafe { out(uar, "uar") }?.write(handle::publish(&Arc::new(Uar::new(Some(process)))));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_uar_destroy(uar: *mut flexio_uar) -> flexio_status {
    status("flexio_uar_destroy", || {
        if handle::get::<Uar>(uar)?.process.is_none() {
            return Err(failed("the process's own UAR goes with the process"));
        }
        handle::retire::<Uar>(uar)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_uar_get_id(uar: *mut flexio_uar) -> u32 {
    number_of::<Uar>("flexio_uar_get_id", uar, |uar| uar.id)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_uar_extend(
    in_uar: *mut flexio_uar,
    _to_extend: *mut ibv_context,
    _extended: *mut *mut flexio_uar,
) -> flexio_status {
    status("flexio_uar_extend", || {
        handle::get::<Uar>(in_uar)?;
        Err(failed("extending a UAR to another function is not emulated: an emulated card has one"))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_uar_get_extended_id(uar: *mut flexio_uar) -> u32 {
    number_of::<Uar>("flexio_uar_get_extended_id", uar, |_| u32::MAX)
}

pub(crate) struct Outbox {
    process: Arc<Process>,
    id: u32,
}

impl Object for Outbox {
    const KIND: &'static str = "outbox";
    type C = flexio_outbox;
    fn c_address(&self) -> *mut flexio_outbox {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_outbox_create(
    process: *mut flexio_process,
    fattr: *mut flexio_outbox_attr,
    outbox: *mut *mut flexio_outbox,
) -> flexio_status {
    status("flexio_outbox_create", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, outbox) = unsafe { (attribute(fattr)?, out(outbox, "outbox")?) };
        if attr.en_pcc != 0 {
            return Err(failed("programmable congestion control is not emulated"));
        }
        let id = world(|world| {
            let id = world.create_outbox(process.card, process.id)?;
            world.bind_outbox(process.card, process.id, id, process.uar.id).map(|()| id)
        })?;
        outbox.write(handle::publish(&Arc::new(Outbox { process, id })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_outbox_destroy(outbox: *mut flexio_outbox) -> flexio_status {
    status("flexio_outbox_destroy", || {
        let object = handle::get::<Outbox>(outbox)?;
        world(|world| world.destroy_outbox(object.process.card, object.process.id, object.id))?;
        handle::retire::<Outbox>(outbox)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_outbox_get_id(outbox: *mut flexio_outbox) -> u32 {
    number_of::<Outbox>("flexio_outbox_get_id", outbox, |outbox| outbox.id)
}

/// Outboxes ring through the process's UAR.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_outbox_get_uar(outbox: *mut flexio_outbox) -> *mut flexio_uar {
    pointer("flexio_outbox_get_uar", || Ok(handle::get::<Outbox>(outbox)?.process.uar.c_address()))
}
