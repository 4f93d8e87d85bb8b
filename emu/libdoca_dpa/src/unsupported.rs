//! Calls for what the emulated card, or this library, does not have.

use core::ffi::{c_char, c_uint, c_void};

use doca_sys::*;
use emu_libdoca::failure::{run, unsupported};

macro_rules! unsupported {
    ($($why:literal: fn $name:ident($($ty:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($(_: $ty),*) -> doca_error_t {
            run(stringify!($name), || Err(unsupported($why)))
        }
    )*};
}

unsupported! {
    "a DPA context on a second device is not emulated: an emulated card shows one function to its DPA":
    fn doca_dpa_device_extend(*mut doca_dpa, *mut doca_dev, *mut *mut doca_dpa);
    "groups of threads are not emulated":
    fn doca_dpa_thread_group_create(*mut doca_dpa, c_uint, *mut *mut doca_dpa_thread_group);
    "asynchronous operations are not emulated: RDMA over a connection to the own card copies memory":
    fn doca_dpa_async_ops_create(*mut doca_dpa, c_uint, u64, *mut *mut doca_dpa_async_ops);
    "a file for the messages of kernels is not emulated: they go to stdout":
    fn doca_dpa_log_file_set_path(*mut doca_dpa, *const c_char);
    "traces of kernels are not emulated":
    fn doca_dpa_trace_file_set_path(*mut doca_dpa, *const c_char);
    "a map for the card's Arm cores is not emulated":
    fn doca_mmap_export_pci(*mut doca_mmap, *const doca_dev, *mut *const c_void, *mut usize);
    "the program's own memory for a sync event is not emulated: the number is in the DPA's memory":
    fn doca_sync_event_set_addr(*mut doca_sync_event, *mut u64);
}
