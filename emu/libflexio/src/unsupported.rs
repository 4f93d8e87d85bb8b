//! Calls for what an emulated card does not have: each fails and says so.

use core::ffi::c_char;

use flexio_sys::*;
use verbs_sys::ibv_context;

use crate::status::{failed, status, value};

const POOLS: &str = "receive queues that several queues share (RMP) are not emulated: make one with flexio_rq_create";

const RESOURCES: &str = "files of execution units are not emulated: name the unit in the program, or none";

macro_rules! unsupported {
    ($($reason:ident: fn $name:ident($($arg:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($(_: $arg),*) -> flexio_status {
            status(stringify!($name), || Err(failed($reason)))
        }
    )*};
}

unsupported! {
    POOLS: fn flexio_rmp_create(
        *mut flexio_process, *mut ibv_context, *const flexio_wq_attr, *mut *mut flexio_rmp
    );
    POOLS: fn flexio_rmp_destroy(*mut flexio_rmp);
    RESOURCES: fn flexio_resources_create(*const c_char, *const c_char, usize, *mut *mut flexio_resource);
    RESOURCES: fn flexio_resources_destroy(*mut flexio_resource);
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rmp_get_wq_num(_: *mut flexio_rmp) -> u32 {
    value("flexio_rmp_get_wq_num", u32::MAX, || Err(failed(POOLS)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_resources_get_eugs_num(_: *mut flexio_resource) -> u32 {
    value("flexio_resources_get_eugs_num", 0, || Err(failed(RESOURCES)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_resources_get_eus_num(_: *mut flexio_resource) -> u32 {
    value("flexio_resources_get_eus_num", 0, || Err(failed(RESOURCES)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_resources_get_eus(_: *mut flexio_resource) -> *mut u32 {
    value("flexio_resources_get_eus", core::ptr::null_mut(), || Err(failed(RESOURCES)))
}
