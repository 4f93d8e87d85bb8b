//! Completion contexts: completion queues in the DPA's memory.

use core::ffi::c_uint;
use std::sync::{Arc, Mutex};

use doca_sys::*;
use emu_libdoca::failure::{Failure, Result, bad_state, invalid, put, run};
use emu_libibverbs::handle::{self, Object};
use emu_machine::nic::{CqAttr, CqTarget};

use crate::context::process;
use crate::layout;
use crate::process::{Process, lock, world};
use crate::thread::Thread;

/// Most entries of a queue.
const MAX_ENTRIES: c_uint = 1 << 20;
/// Bytes of an entry.
const ENTRY_BYTES: u64 = 64;

/// A completion context.
pub(crate) struct Completion {
    pub(crate) process: Arc<Process>,
    /// log2 of its entries.
    log_depth: u8,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    thread: Option<Arc<Thread>>,
    started: Option<Started>,
}

/// What a started context has on the card.
#[derive(Clone, Copy)]
struct Started {
    number: u32,
    /// Ring, behind it the doorbell record.
    memory: u64,
    /// What kernels name it by.
    handle: u64,
}

impl Object for Completion {
    const KIND: &'static str = "completion context";
    type C = doca_dpa_completion;
    fn c_address(&self) -> *mut doca_dpa_completion {
        (self as *const Self).cast_mut().cast()
    }
}

impl Completion {
    fn started(&self) -> Result<Started> {
        let started = lock(&self.state).started;
        started.ok_or_else(|| bad_state("the completion context is not started: call doca_dpa_completion_start first"))
    }

    /// Number of the queue of a started context.
    pub(crate) fn number(&self) -> Result<u32> {
        Ok(self.started()?.number)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_completion_create(
    dpa: *mut doca_dpa,
    queue_size: c_uint,
    dpa_comp: *mut *mut doca_dpa_completion,
) -> doca_error_t {
    run("doca_dpa_completion_create", || {
        let process = process(dpa)?;
        if queue_size == 0 || queue_size > MAX_ENTRIES || dpa_comp.is_null() {
            let reason = format!("queue_size is {queue_size} (1 to {MAX_ENTRIES} are possible), or dpa_comp null");
            return Err(invalid(reason));
        }
        let log_depth = queue_size.next_power_of_two().ilog2() as u8;
        let object = Arc::new(Completion { process, log_depth, state: Mutex::default() });
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(dpa_comp, "dpa_comp", handle::publish(&object)) }
    })
}

/// Ends a context that has started; nothing happens to another.
fn stop(completion: &Arc<Completion>) -> Result<()> {
    // This call and the set of live handles hold it as well, unless another thread destroys it now.
    let users = Arc::strong_count(completion).saturating_sub(2);
    if users > 0 {
        let reason = format!("RDMA contexts complete into it ({users}): destroy them first");
        return Err(Failure(DOCA_ERROR_IN_USE, reason));
    }
    let mut state = lock(&completion.state);
    let Some(Started { number, memory, handle }) = state.started else { return Ok(()) };
    let process = &completion.process;
    world(|world| Ok::<_, Failure>(world.card(process.card)?.nic.destroy_cq(number)?))?;
    process.free(handle)?;
    process.free(memory)?;
    state.started = None;
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_completion_destroy(dpa_comp: *mut doca_dpa_completion) -> doca_error_t {
    run("doca_dpa_completion_destroy", || {
        stop(&handle::get::<Completion>(dpa_comp)?)?;
        Ok(handle::retire::<Completion>(dpa_comp).map(drop)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_completion_set_thread(
    dpa_comp: *mut doca_dpa_completion,
    thread: *mut doca_dpa_thread,
) -> doca_error_t {
    run("doca_dpa_completion_set_thread", || {
        let completion = handle::get::<Completion>(dpa_comp)?;
        let thread = handle::get::<Thread>(thread)?;
        let mut state = lock(&completion.state);
        if state.started.is_some() {
            return Err(bad_state("the completion context is started"));
        }
        if (thread.process.card, thread.process.id) != (completion.process.card, completion.process.id) {
            return Err(invalid("the thread is of another DPA context"));
        }
        state.thread = Some(thread);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_completion_start(dpa_comp: *mut doca_dpa_completion) -> doca_error_t {
    run("doca_dpa_completion_start", || {
        let completion = handle::get::<Completion>(dpa_comp)?;
        let Completion { process, log_depth, state } = &*completion;
        let mut state = lock(state);
        if state.started.is_some() {
            return Err(bad_state("the completion context is started already"));
        }
        let thread = state.thread.as_ref().map(|thread| thread.number()).transpose()?;
        let ring_bytes = ENTRY_BYTES << log_depth;
        // Nothing has completed: opcode and owner of an entry are those of none.
        let mut content = vec![0xFF; ring_bytes as usize];
        content.extend([0; 8]);
        let memory = process.place(&content)?;
        let attr = CqAttr {
            ring: process.queue_memory(memory),
            log_depth: *log_depth,
            doorbell_record: process.queue_memory(memory + ring_bytes),
            target: thread.map_or(CqTarget::None, CqTarget::DpaThread),
            overrun_ignore: false,
            always_armed: false,
            armed_at_creation: thread.is_some(),
            uar: process.uar,
        };
        let number = world(|world| Ok::<_, Failure>(world.card(process.card)?.nic.create_cq(attr)?))?;
        let handle = process.place(&layout::completion(memory, memory + ring_bytes, number, *log_depth))?;
        state.started = Some(Started { number, memory, handle });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_completion_stop(dpa_comp: *mut doca_dpa_completion) -> doca_error_t {
    run("doca_dpa_completion_stop", || {
        let completion = handle::get::<Completion>(dpa_comp)?;
        completion.started()?;
        stop(&completion)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dpa_completion_get_dpa_handle(
    dpa_comp: *mut doca_dpa_completion,
    handle: *mut doca_dpa_dev_completion_t,
) -> doca_error_t {
    run("doca_dpa_completion_get_dpa_handle", || {
        let found = handle::get::<Completion>(dpa_comp)?.started()?.handle;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(handle, "handle", found) }
    })
}
