//! DPA threads and the execution units that they are bound to.

use core::ffi::c_uint;
use std::sync::{Arc, Mutex};

use doca_sys::*;
use emu_libdoca::failure::{Failure, Result, bad_state, invalid, put, run};
use emu_libibverbs::handle::{self, Object};

use crate::call::kernel;
use crate::context::{UNITS, process};
use crate::layout;
use crate::process::{Process, lock, world};

struct Affinity {
    /// Held so that the context is not stopped first.
    _process: Arc<Process>,
    unit: Mutex<Option<u32>>,
}

impl Object for Affinity {
    const KIND: &'static str = "affinity";
    type C = doca_dpa_eu_affinity;
    fn c_address(&self) -> *mut doca_dpa_eu_affinity {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_eu_affinity_create(
    dpa: *mut doca_dpa,
    affinity: *mut *mut doca_dpa_eu_affinity,
) -> doca_error_t {
    run("doca_dpa_eu_affinity_create", || {
        let process = process(dpa)?;
        if affinity.is_null() {
            return Err(invalid("affinity is null"));
        }
        let object = Arc::new(Affinity { _process: process, unit: Mutex::default() });
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(affinity, "affinity", handle::publish(&object)) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_eu_affinity_destroy(affinity: *mut doca_dpa_eu_affinity) -> doca_error_t {
    run("doca_dpa_eu_affinity_destroy", || Ok(handle::retire::<Affinity>(affinity).map(drop)?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_eu_affinity_set(
    affinity: *mut doca_dpa_eu_affinity,
    eu_id: c_uint,
) -> doca_error_t {
    run("doca_dpa_eu_affinity_set", || {
        let affinity = handle::get::<Affinity>(affinity)?;
        if eu_id >= UNITS {
            return Err(invalid(format!("execution unit {eu_id}: 0 to {} exist", UNITS - 1)));
        }
        *lock(&affinity.unit) = Some(eu_id);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_eu_affinity_clear(affinity: *mut doca_dpa_eu_affinity) -> doca_error_t {
    run("doca_dpa_eu_affinity_clear", || {
        *lock(&handle::get::<Affinity>(affinity)?.unit) = None;
        Ok(())
    })
}

/// A thread.
pub(crate) struct Thread {
    pub(crate) process: Arc<Process>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Address of its kernel, and what that is given.
    kernel: Option<(u64, u64)>,
    local_storage: u64,
    unit: Option<u32>,
    /// Number of a started thread, and where it finds what it knows of itself.
    started: Option<(u32, u64)>,
}

impl Object for Thread {
    const KIND: &'static str = "DPA thread";
    type C = doca_dpa_thread;
    fn c_address(&self) -> *mut doca_dpa_thread {
        (self as *const Self).cast_mut().cast()
    }
}

impl Thread {
    /// The card's number of a started thread.
    pub(crate) fn number(&self) -> Result<u32> {
        let started = lock(&self.state).started;
        let (number, _) =
            started.ok_or_else(|| bad_state("the thread is not started: call doca_dpa_thread_start first"))?;
        Ok(number)
    }
}

/// Changes a thread that has not started.
fn configure(thread: *mut doca_dpa_thread, f: impl FnOnce(&Process, &mut State) -> Result<()>) -> Result<()> {
    let thread = handle::get::<Thread>(thread)?;
    let mut state = lock(&thread.state);
    if state.started.is_some() {
        return Err(bad_state("the thread is started"));
    }
    f(&thread.process, &mut state)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_thread_create(
    dpa: *mut doca_dpa,
    dpa_thread: *mut *mut doca_dpa_thread,
) -> doca_error_t {
    run("doca_dpa_thread_create", || {
        let process = process(dpa)?;
        if dpa_thread.is_null() {
            return Err(invalid("dpa_thread is null"));
        }
        let object = Arc::new(Thread { process, state: Mutex::default() });
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(dpa_thread, "dpa_thread", handle::publish(&object)) }
    })
}

/// Ends a thread that has started; nothing happens to another.
fn stop(thread: &Arc<Thread>) -> Result<()> {
    // This call and the set of live handles hold it as well, unless another thread destroys it now.
    let users = Arc::strong_count(thread).saturating_sub(2);
    if users > 0 {
        let reason = format!("completion contexts of the thread still exist ({users}): destroy them first");
        return Err(Failure(DOCA_ERROR_IN_USE, reason));
    }
    let started = lock(&thread.state).started.take();
    let Some((number, record)) = started else { return Ok(()) };
    let process = &thread.process;
    process.print()?;
    world(|world| {
        world.destroy_thread(process.card, number)?;
        world.heap_free(process.card, process.id, record)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_thread_destroy(dpa_thread: *mut doca_dpa_thread) -> doca_error_t {
    run("doca_dpa_thread_destroy", || {
        stop(&handle::get::<Thread>(dpa_thread)?)?;
        Ok(handle::retire::<Thread>(dpa_thread).map(drop)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_thread_set_func_arg(
    thread: *mut doca_dpa_thread,
    func: doca_dpa_func_t,
    arg: u64,
) -> doca_error_t {
    run("doca_dpa_thread_set_func_arg", || {
        configure(thread, |process, state| {
            state.kernel = Some((kernel(process, func)?.addr, arg));
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_thread_set_local_storage(
    thread: *mut doca_dpa_thread,
    dev_ptr: doca_dpa_dev_uintptr_t,
) -> doca_error_t {
    run("doca_dpa_thread_set_local_storage", || {
        configure(thread, |_, state| {
            state.local_storage = dev_ptr;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_thread_set_affinity(
    thread: *mut doca_dpa_thread,
    eu_affinity: *mut doca_dpa_eu_affinity,
) -> doca_error_t {
    run("doca_dpa_thread_set_affinity", || {
        let unit = *lock(&handle::get::<Affinity>(eu_affinity)?.unit);
        configure(thread, |_, state| {
            state.unit = Some(unit.ok_or_else(|| bad_state("the affinity has no execution unit"))?);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_thread_start(thread: *mut doca_dpa_thread) -> doca_error_t {
    run("doca_dpa_thread_start", || {
        configure(thread, |process, state| {
            let (entry, arg) =
                state.kernel.ok_or_else(|| bad_state("it has no kernel: call doca_dpa_thread_set_func_arg first"))?;
            let own = layout::Thread { local_storage: state.local_storage, count: 1, ..Default::default() };
            let (card, id, unit) = (process.card, process.id, state.unit);
            let record = process.place(&own.bytes())?;
            state.started = Some(world(|world| match world.create_thread(card, id, entry, arg, record, unit) {
                Ok(number) => Ok((number, record)),
                Err(error) => {
                    world.heap_free(card, id, record)?;
                    Err(error)
                }
            })?);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_thread_stop(thread: *mut doca_dpa_thread) -> doca_error_t {
    run("doca_dpa_thread_stop", || {
        let thread = handle::get::<Thread>(thread)?;
        thread.number()?;
        stop(&thread)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_thread_run(thread: *mut doca_dpa_thread) -> doca_error_t {
    run("doca_dpa_thread_run", || {
        let thread = handle::get::<Thread>(thread)?;
        let number = thread.number()?;
        world(|world| world.run_event_handler(thread.process.card, number, 0))
    })
}

/// What other kernels start a thread by.
struct Notification {
    thread: Arc<Thread>,
    is_started: Mutex<bool>,
}

impl Object for Notification {
    const KIND: &'static str = "notification completion";
    type C = doca_dpa_notification_completion;
    fn c_address(&self) -> *mut doca_dpa_notification_completion {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_notification_completion_create(
    dpa: *mut doca_dpa,
    thread: *mut doca_dpa_thread,
    notify_comp: *mut *mut doca_dpa_notification_completion,
) -> doca_error_t {
    run("doca_dpa_notification_completion_create", || {
        let process = process(dpa)?;
        let thread = handle::get::<Thread>(thread)?;
        if (thread.process.card, thread.process.id) != (process.card, process.id) || notify_comp.is_null() {
            return Err(invalid("the thread is of another DPA context, or notify_comp is null"));
        }
        let object = Arc::new(Notification { thread, is_started: Mutex::default() });
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(notify_comp, "notify_comp", handle::publish(&object)) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_notification_completion_destroy(
    notify_comp: *mut doca_dpa_notification_completion,
) -> doca_error_t {
    run("doca_dpa_notification_completion_destroy", || Ok(handle::retire::<Notification>(notify_comp).map(drop)?))
}

/// Starts or stops one; it must not be so already.
fn switch(notify_comp: *mut doca_dpa_notification_completion, on: bool) -> Result<()> {
    let object = handle::get::<Notification>(notify_comp)?;
    object.thread.number()?;
    let mut is_started = lock(&object.is_started);
    if *is_started == on {
        let what = if on { "started already" } else { "not started" };
        return Err(bad_state(format!("the notification completion is {what}")));
    }
    *is_started = on;
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_notification_completion_start(
    notify_comp: *mut doca_dpa_notification_completion,
) -> doca_error_t {
    run("doca_dpa_notification_completion_start", || switch(notify_comp, true))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_notification_completion_stop(
    notify_comp: *mut doca_dpa_notification_completion,
) -> doca_error_t {
    run("doca_dpa_notification_completion_stop", || switch(notify_comp, false))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_notification_completion_get_dpa_handle(
    notify_comp: *mut doca_dpa_notification_completion,
    comp_handle: *mut doca_dpa_dev_notification_completion_t,
) -> doca_error_t {
    run("doca_dpa_notification_completion_get_dpa_handle", || {
        let object = handle::get::<Notification>(notify_comp)?;
        if !*lock(&object.is_started) {
            return Err(bad_state("the notification completion is not started"));
        }
        let number = object.thread.number()?;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(comp_handle, "comp_handle", u64::from(number) + 1) }
    })
}
