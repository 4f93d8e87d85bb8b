//! Command queues: tasks of the host's that worker threads run.

use core::ffi::c_int;
use std::sync::Arc;

use emu_libibverbs::handle::{self, Object};
use flexio_sys::*;

use crate::process::{Process, attribute, world};
use crate::status::{Result, failed, out, status, value};

pub(crate) struct Cmdq {
    process: Arc<Process>,
    id: u32,
}

impl Object for Cmdq {
    const KIND: &'static str = "command queue";
    type C = flexio_cmdq;
    fn c_address(&self) -> *mut flexio_cmdq {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cmdq_create(
    process: *mut flexio_process,
    fattr: *mut flexio_cmdq_attr,
    cmdq: *mut *mut flexio_cmdq,
) -> flexio_status {
    status("flexio_cmdq_create", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, cmdq) = unsafe { (attribute(fattr)?, out(cmdq, "cmdq")?) };
        let workers = u32::try_from(attr.workers).ok().filter(|workers| *workers > 0);
        let workers = workers.ok_or_else(|| failed(format!("workers is {}: 1 are needed at least", attr.workers)))?;
        if attr.batch_size < 1 {
            return Err(failed(format!("batch_size is {}: 1 is the least", attr.batch_size)));
        }
        let started = match attr.state {
            FLEXIO_CMDQ_STATE_PENDING => false,
            FLEXIO_CMDQ_STATE_RUNNING => true,
            other => return Err(failed(format!("state {other}: pending (0) and running (1) are"))),
        };
        let id = world(|world| world.create_command_queue(process.card, process.id, workers, started))?;
        cmdq.write(handle::publish(&Arc::new(Cmdq { process, id })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cmdq_task_add(
    cmdq: *mut flexio_cmdq,
    host_func: flexio_func_t,
    arg: u64,
) -> flexio_status {
    status("flexio_cmdq_task_add", || {
        let Cmdq { process, id } = &*handle::get::<Cmdq>(cmdq)?;
        let function = process.app.function(host_func)?;
        world(|world| world.add_task(process.card, process.id, *id, function.addr, arg))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cmdq_state_running(cmdq: *mut flexio_cmdq) -> flexio_status {
    status("flexio_cmdq_state_running", || {
        let Cmdq { process, id } = &*handle::get::<Cmdq>(cmdq)?;
        world(|world| world.run_command_queue(process.card, process.id, *id))
    })
}

/// How long a program that waits sleeps between two calls, at most: so much virtual time passes in one.
const TURN_PS: u64 = 1_000_000_000;

/// A program that waits for an empty queue asks again and again, and sleeps in between: time passes in the call.
/// Without a queue it is empty. The answer is a truth value, which says that all tasks were performed: those that wait
/// when their process ends never are.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cmdq_is_empty(cmdq: *mut flexio_cmdq) -> c_int {
    const CALL: &str = "flexio_cmdq_is_empty";
    value(CALL, 1, || {
        let queue = handle::get::<Cmdq>(cmdq)?;
        Ok(value(CALL, 0, || is_empty(&queue)))
    })
}

fn is_empty(queue: &Cmdq) -> Result<c_int> {
    let Cmdq { process, id } = queue;
    // The bridge drives a machine that follows the wall clock.
    let is_driven = emu_libibverbs::is_bridged();
    let is_empty = world(|world| {
        let end_ps = world.now_ps().saturating_add(TURN_PS);
        loop {
            let is_empty = world.command_queue_is_empty(process.card, process.id, *id)?;
            if is_empty || is_driven || world.now_ps() >= end_ps || !world.step() {
                return Ok::<_, emu_machine::MachineError>(is_empty);
            }
        }
    });
    process.after_progress()?;
    is_empty.map(c_int::from).map_err(|failure| {
        failed(format!(
            "{}; tasks of the command queue have not been performed and never will be: test flexio_err_status_get \
             while you wait for it",
            failure.reason
        ))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cmdq_destroy(cmdq: *mut flexio_cmdq) -> flexio_status {
    status("flexio_cmdq_destroy", || {
        let Cmdq { process, id } = &*handle::get::<Cmdq>(cmdq)?;
        world(|world| world.destroy_command_queue(process.card, process.id, *id))?;
        handle::retire::<Cmdq>(cmdq)?;
        Ok(())
    })
}
