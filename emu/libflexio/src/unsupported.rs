//! Calls for what an emulated card does not have: each fails and says so.

use core::ffi::c_int;

use flexio_sys::*;
use verbs_sys::{ibv_context, mlx5dv_devx_obj};

use crate::status::{failed, pointer, status, value};

const ETHERNET: &str = "raw Ethernet work queues are not emulated; use queue pairs";
const COMMANDS: &str = "the command queue is not emulated; use RPCs or event handlers";

macro_rules! unsupported {
    ($($reason:ident: fn $name:ident($($arg:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($(_: $arg),*) -> flexio_status {
            status(stringify!($name), || Err(failed($reason)))
        }
    )*};
}

unsupported! {
    ETHERNET: fn flexio_rq_create(
        *mut flexio_process, *mut ibv_context, u32, *const flexio_wq_attr, *mut *mut flexio_rq
    );
    ETHERNET: fn flexio_rq_set_err_state(*mut flexio_rq);
    ETHERNET: fn flexio_rq_destroy(*mut flexio_rq);
    ETHERNET: fn flexio_sq_create(
        *mut flexio_process, *mut ibv_context, u32, *const flexio_wq_attr, *mut *mut flexio_sq
    );
    ETHERNET: fn flexio_sq_destroy(*mut flexio_sq);
    ETHERNET: fn flexio_rmp_create(
        *mut flexio_process, *mut ibv_context, *const flexio_wq_attr, *mut *mut flexio_rmp
    );
    ETHERNET: fn flexio_rmp_destroy(*mut flexio_rmp);
    COMMANDS: fn flexio_cmdq_create(*mut flexio_process, *mut flexio_cmdq_attr, *mut *mut flexio_cmdq);
    COMMANDS: fn flexio_cmdq_task_add(*mut flexio_cmdq, flexio_func_t, u64);
    COMMANDS: fn flexio_cmdq_state_running(*mut flexio_cmdq);
    COMMANDS: fn flexio_cmdq_destroy(*mut flexio_cmdq);
}

/// Empty: nothing can be in it, and a program that waits for that must not wait for ever.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_cmdq_is_empty(_: *mut flexio_cmdq) -> c_int {
    value("flexio_cmdq_is_empty", 1, || Err(failed(COMMANDS)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rq_get_wq_num(_: *mut flexio_rq) -> u32 {
    value("flexio_rq_get_wq_num", u32::MAX, || Err(failed(ETHERNET)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_sq_get_wq_num(_: *mut flexio_sq) -> u32 {
    value("flexio_sq_get_wq_num", u32::MAX, || Err(failed(ETHERNET)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rmp_get_wq_num(_: *mut flexio_rmp) -> u32 {
    value("flexio_rmp_get_wq_num", u32::MAX, || Err(failed(ETHERNET)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rq_get_tir(_: *mut flexio_rq) -> *mut mlx5dv_devx_obj {
    pointer("flexio_rq_get_tir", || Err(failed(ETHERNET)))
}
