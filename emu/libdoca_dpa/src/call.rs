//! Calls of kernels and launches, in two halves around the function that packs their arguments (src/c/call.c).

use core::ffi::{c_uint, c_void};
use std::sync::Arc;

use doca_sys::*;
use emu_libdoca::failure::{Result, bad_state, invalid, put, run};
use emu_libflexio::call::{allocate, take};
use emu_libflexio::{Function, Rpc};
use emu_libibverbs::handle;
use flexio_sys::flexio_func_arg_pack_fn_t;

use crate::context::{MAX_THREADS, process};
use crate::event::Event;
use crate::launch::{self, Kernel};
use crate::process::{Process, of_flexio, world};

unsafe extern "C" {
    // So that the C half is linked.
    pub(crate) fn doca_dpa_rpc(dpa: *mut doca_dpa, func: doca_dpa_func_t, retval: *mut u64, ...) -> doca_error_t;
}

/// Keeps the C half in every archive that has this crate.
#[used]
static C_HALF: unsafe extern "C" fn(*mut doca_dpa, doca_dpa_func_t, *mut u64, ...) -> doca_error_t = doca_dpa_rpc;

/// What the C half carries between the two, `struct flexcast_doca_call` there.
#[repr(C)]
pub(crate) struct Call {
    argbuf: *mut c_void,
    pack: flexio_func_arg_pack_fn_t,
    function: u64,
    unpack: u64,
}

/// `struct flexcast_doca_launch` of the C half.
#[repr(C)]
pub(crate) struct Asked {
    wait_event: *mut doca_sync_event,
    wait_threshold: u64,
    comp_event: *mut doca_sync_event,
    comp_count: u64,
    num_threads: c_uint,
    adds: c_uint,
}

/// The name of the call that the C half serves.
fn name(launch: Option<&Asked>) -> &'static str {
    match launch {
        None => "doca_dpa_rpc",
        Some(Asked { adds: 0, .. }) => "doca_dpa_kernel_launch_update_set",
        Some(_) => "doca_dpa_kernel_launch_update_add",
    }
}

/// A kernel by the function that the host names it by.
pub(crate) fn kernel(process: &Process, func: doca_dpa_func_t) -> Result<Function> {
    if func.is_none() {
        return Err(invalid("func is null"));
    }
    process.app.function(func).map_err(of_flexio)
}

/// The sync event of a launch, if it has one.
fn event(event: *mut doca_sync_event) -> Result<Option<Arc<Event>>> {
    if event.is_null() { Ok(None) } else { Ok(Some(handle::get::<Event>(event)?)) }
}

fn check_launch(launch: &Asked) -> Result<()> {
    if launch.num_threads == 0 || launch.num_threads > MAX_THREADS {
        return Err(invalid(format!("num_threads is {}: 1 to {MAX_THREADS} are possible", launch.num_threads)));
    }
    for event in [event(launch.wait_event)?, event(launch.comp_event)?].into_iter().flatten() {
        event.value()?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexcast_doca_call_begin(
    dpa: *mut doca_dpa,
    func: doca_dpa_func_t,
    retval: *mut u64,
    launch: *const Asked,
    call: *mut Call,
) -> doca_error_t {
    // SAFETY: null, or of the C half.
    let launch = unsafe { launch.as_ref() };
    run(name(launch), || {
        let process = process(dpa)?;
        process.check()?;
        match launch {
            None if retval.is_null() => return Err(invalid("retval is null")),
            None => {}
            Some(launch) => check_launch(launch)?,
        }
        let Function { name, addr, rpc } = kernel(&process, func)?;
        let Some(Rpc { unpack, argbuf_bytes, pack, .. }) = rpc else {
            return Err(invalid(format!("{name} takes no arguments from the host: it has no pack function")));
        };
        let argbuf = allocate(argbuf_bytes);
        // SAFETY: the C half passes its own structure.
        unsafe { put(call, "call", Call { argbuf, pack: Some(pack), function: addr, unpack }) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexcast_doca_call_finish(
    dpa: *mut doca_dpa,
    retval: *mut u64,
    launch: *const Asked,
    call: *mut Call,
) -> doca_error_t {
    // SAFETY: null, or of the C half.
    let launch = unsafe { launch.as_ref() };
    run(name(launch), || {
        // SAFETY: the C half passes the structure that the first half filled, and does not use the buffer again.
        let (arguments, function, unpack) = unsafe { (take((*call).argbuf), (*call).function, (*call).unpack) };
        let process = process(dpa)?;
        let Some(asked) = launch else {
            let result = execute(&process, &arguments, function, unpack);
            process.print()?;
            launch::progress(&process)?;
            // SAFETY: checked by the first half.
            return unsafe { put(retval, "retval", result?) };
        };
        let entry = process.app.symbol(launch::ENTRY).map_err(|_| {
            bad_state("the image has no device library of DOCA: its sources do not include doca_dpa_dev.h")
        })?;
        let kernel = Kernel { entry, function, unpack, arguments, threads: asked.num_threads };
        let wait = event(asked.wait_event)?.map(|event| (event, asked.wait_threshold));
        let end = event(asked.comp_event)?.map(|event| (event, asked.comp_count, asked.adds != 0));
        launch::add(&process, &kernel, wait, end)
    })
}

/// Virtual time that passes before a call returns to the host: entries that the kernel has posted are on their way by
/// then, and the threads that they wake have begun. How long a card takes is not published; this is the upper end of
/// what is assumed of calls.
const RETURN_PS: u64 = 100_000_000;

fn execute(process: &Process, arguments: &[u8], function: u64, unpack: u64) -> Result<u64> {
    let (card, id) = (process.card, process.id);
    let is_driven = emu_libibverbs::is_bridged();
    world(|world| {
        let result = emu_libflexio::call::run(world, (card, id), arguments, function, unpack);
        // A machine that follows the wall clock goes on by itself.
        if !is_driven {
            world.run_until(RETURN_PS, |_| false);
        }
        result
    })
}
