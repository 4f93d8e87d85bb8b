//! DPA contexts and the memory of their processes.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Arc, Mutex};

use doca_sys::*;
use emu_libdoca::failure::{Failure, Result, bad_state, invalid, put, run, unsupported};
use emu_libdoca::{Dev, DevInfo};
use emu_libflexio::App;
use emu_libibverbs::handle::{self, Object};
use emu_machine::Function;
use emu_machine::time::PS_PER_S;
use flexio_sys::{
    FLEXIO_MSG_DEV_DEBUG, FLEXIO_MSG_DEV_ERROR, FLEXIO_MSG_DEV_INFO, FLEXIO_MSG_DEV_NO_PRINT, FLEXIO_MSG_DEV_WARN,
};

use crate::process::{Process, lock, world};

/// Execution units of a card, of which the first is the operating system's.
pub(crate) const UNITS: c_uint = 256;
/// Most threads of a kernel that is launched.
pub(crate) const MAX_THREADS: c_uint = 128;

/// A context.
pub(crate) struct Dpa {
    dev: Arc<Dev>,
    state: Mutex<State>,
}

struct State {
    app: Option<Arc<App>>,
    /// Of FlexIO's messages.
    level: u8,
    process: Option<Arc<Process>>,
}

impl Object for Dpa {
    const KIND: &'static str = "DPA context";
    type C = doca_dpa;
    fn c_address(&self) -> *mut doca_dpa {
        (self as *const Self).cast_mut().cast()
    }
}

/// The process of a context that has started.
pub(crate) fn process(dpa: *const doca_dpa) -> Result<Arc<Process>> {
    let dpa = handle::get::<Dpa>(dpa)?;
    let state = lock(&dpa.state);
    state.process.clone().ok_or_else(|| bad_state("the DPA context is not started: call doca_dpa_start first"))
}

/// Kernels run on a card; its own Arm cores are another function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_cap_is_supported(devinfo: *const doca_devinfo) -> doca_error_t {
    let info = match handle::get::<DevInfo>(devinfo) {
        Ok(info) if info.id.function == Function::Host => return DOCA_SUCCESS,
        Ok(_) => return DOCA_ERROR_NOT_SUPPORTED,
        Err(bad) => bad,
    };
    run("doca_dpa_cap_is_supported", || Err(info.into()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_create(dev: *mut doca_dev, dpa: *mut *mut doca_dpa) -> doca_error_t {
    run("doca_dpa_create", || {
        let dev = handle::get::<Dev>(dev)?;
        if dpa.is_null() {
            return Err(invalid("dpa is null"));
        }
        if dev.info.id.function != Function::Host {
            return Err(unsupported("kernels are started through the host's function here: open that device"));
        }
        let state = State { app: None, level: FLEXIO_MSG_DEV_INFO as u8, process: None };
        let object = Arc::new(Dpa { dev, state: Mutex::new(state) });
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(dpa, "dpa", handle::publish(&object)) }
    })
}

fn stop(dpa: &Dpa) -> Result<()> {
    let mut state = lock(&dpa.state);
    let Some(process) = state.process.take() else { return Ok(()) };
    // Launches hold events, and those the process.
    crate::launch::forget_finished(&process)?;
    let users = Arc::strong_count(&process) - 1;
    if users > 0 {
        state.process = Some(process);
        let reason = format!("objects of the DPA context, or kernels that run, still exist ({users}): end them first");
        return Err(Failure(DOCA_ERROR_IN_USE, reason));
    }
    process.destroy()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_destroy(dpa: *mut doca_dpa) -> doca_error_t {
    run("doca_dpa_destroy", || {
        stop(&*handle::get::<Dpa>(dpa)?)?;
        Ok(handle::retire::<Dpa>(dpa).map(drop)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_set_app(dpa: *mut doca_dpa, app: *mut doca_dpa_app) -> doca_error_t {
    run("doca_dpa_set_app", || {
        let dpa = handle::get::<Dpa>(dpa)?;
        // The driver makes the same object for programs of both interfaces.
        let app = handle::get::<App>(app.cast())?;
        let mut state = lock(&dpa.state);
        if state.process.is_some() {
            return Err(bad_state("the DPA context is started"));
        }
        state.app = Some(app);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_start(dpa: *mut doca_dpa) -> doca_error_t {
    run("doca_dpa_start", || {
        let dpa = handle::get::<Dpa>(dpa)?;
        let mut state = lock(&dpa.state);
        if state.process.is_some() {
            return Err(bad_state("the DPA context is started already"));
        }
        let app = state.app.as_ref().ok_or_else(|| bad_state("it has no application: call doca_dpa_set_app first"))?;
        state.process = Some(Process::create(&dpa.dev, app, state.level)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_stop(dpa: *mut doca_dpa) -> doca_error_t {
    run("doca_dpa_stop", || {
        process(dpa)?;
        stop(&*handle::get::<Dpa>(dpa)?)
    })
}

/// A number that is not 0, as kernels do not choose a context without one; `doca_dpa_dev_device_set` ignores it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_get_dpa_handle(
    dpa: *mut doca_dpa,
    handle: *mut doca_dpa_dev_t,
) -> doca_error_t {
    run("doca_dpa_get_dpa_handle", || {
        let process = process(dpa)?;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(handle, "handle", u64::from(process.id) + 1) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_set_log_level(
    dpa: *mut doca_dpa,
    log_level: doca_dpa_dev_log_level_t,
) -> doca_error_t {
    run("doca_dpa_set_log_level", || {
        let dpa = handle::get::<Dpa>(dpa)?;
        let level = match log_level {
            DOCA_DPA_DEV_LOG_LEVEL_DISABLE => FLEXIO_MSG_DEV_NO_PRINT,
            DOCA_DPA_DEV_LOG_LEVEL_ERROR => FLEXIO_MSG_DEV_ERROR,
            DOCA_DPA_DEV_LOG_LEVEL_WARNING => FLEXIO_MSG_DEV_WARN,
            DOCA_DPA_DEV_LOG_LEVEL_INFO => FLEXIO_MSG_DEV_INFO,
            DOCA_DPA_DEV_LOG_LEVEL_DEBUG => FLEXIO_MSG_DEV_DEBUG,
            other => return Err(invalid(format!("log level {other}: 10, 30, 40, 50 and 60 exist"))),
        };
        let mut state = lock(&dpa.state);
        state.level = level as u8;
        state.process.as_ref().map_or(Ok(()), |process| process.set_level(level as u8))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_get_total_num_eus_available(
    dpa: *mut doca_dpa,
    total_num_eus: *mut c_uint,
) -> doca_error_t {
    run("doca_dpa_get_total_num_eus_available", || {
        process(dpa)?;
        let units = world(|world| Ok::<_, Failure>(world.config().units.clone()))?;
        // Of a whole card those that its operating system keeps as well.
        let count = if units == emu_machine::USER_EUS { UNITS } else { units.count() as u32 };
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(total_num_eus, "total_num_eus", count) }
    })
}

/// The time after which an activation is ended, in seconds.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_get_kernel_max_run_time(
    dpa: *const doca_dpa,
    value: *mut c_ulonglong,
) -> doca_error_t {
    run("doca_dpa_get_kernel_max_run_time", || {
        handle::get::<Dpa>(dpa)?;
        let longest_ps = world(|world| Ok::<_, Failure>(world.config().handler_watchdog_ps))?;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(value, "value", longest_ps / PS_PER_S) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_get_max_threads_per_kernel(
    dpa: *const doca_dpa,
    value: *mut c_uint,
) -> doca_error_t {
    run("doca_dpa_get_max_threads_per_kernel", || {
        handle::get::<Dpa>(dpa)?;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(value, "value", MAX_THREADS) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_peek_at_last_error(dpa: *const doca_dpa) -> doca_error_t {
    run("doca_dpa_peek_at_last_error", || {
        let process = process(dpa)?;
        process.print()?;
        process.check()
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_mem_alloc(
    dpa: *mut doca_dpa,
    size: usize,
    dev_ptr: *mut doca_dpa_dev_uintptr_t,
) -> doca_error_t {
    run("doca_dpa_mem_alloc", || {
        let process = process(dpa)?;
        if size == 0 || dev_ptr.is_null() {
            return Err(invalid(format!("size is {size}, or dev_ptr null")));
        }
        let addr = world(|world| world.heap_alloc(process.card, process.id, size as u64))?;
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(dev_ptr, "dev_ptr", addr) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_mem_free(dpa: *mut doca_dpa, dev_ptr: doca_dpa_dev_uintptr_t) -> doca_error_t {
    run("doca_dpa_mem_free", || process(dpa)?.free(dev_ptr))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_memset(
    dpa: *mut doca_dpa,
    dev_ptr: doca_dpa_dev_uintptr_t,
    value: c_int,
    size: usize,
) -> doca_error_t {
    run("doca_dpa_memset", || {
        let process = process(dpa)?;
        // As in C: the value is converted to a byte.
        world(|world| world.fill_memory(process.card, process.id, dev_ptr, size as u64, value as u8))
    })
}

/// Checks a host buffer of a copy.
fn check_buffer(buffer: *const c_void, size: usize) -> Result<()> {
    if buffer.is_null() || size == 0 || isize::try_from(size).is_err() {
        return Err(invalid(format!("{size} bytes at {buffer:p} cannot be copied")));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_h2d_memcpy(
    dpa: *mut doca_dpa,
    dst_ptr: doca_dpa_dev_uintptr_t,
    src_ptr: *mut c_void,
    size: usize,
) -> doca_error_t {
    run("doca_dpa_h2d_memcpy", || {
        let process = process(dpa)?;
        check_buffer(src_ptr, size)?;
        // SAFETY: not null; readable for `size` bytes as the caller promises.
        let source = unsafe { core::slice::from_raw_parts(src_ptr.cast::<u8>(), size) };
        process.write(dst_ptr, source)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_d2h_memcpy(
    dpa: *mut doca_dpa,
    dst_ptr: *mut c_void,
    src_ptr: doca_dpa_dev_uintptr_t,
    size: usize,
) -> doca_error_t {
    run("doca_dpa_d2h_memcpy", || {
        let process = process(dpa)?;
        check_buffer(dst_ptr, size)?;
        // Nothing is allocated for more than there is.
        let heap = world(|world| world.heap_info(process.card, process.id))?;
        if size as u64 > heap.size {
            return Err(invalid(format!("{size} bytes: the DPA's memory has {}", heap.size)));
        }
        let mut bytes = vec![0; size];
        process.read(src_ptr, &mut bytes)?;
        // SAFETY: not null; writable for `size` bytes as the caller promises.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), dst_ptr.cast(), size) };
        Ok(())
    })
}
