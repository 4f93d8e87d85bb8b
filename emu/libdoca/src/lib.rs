//! The C ABI of DOCA common over the emulated cards, as far as finding and opening a device goes, and that of its log
//! and of its command lines.
//!
//! Card `i` is the device `mlx5_i`, and its Arm cores' function, where the machine has it, `mlx5_i_arm`. As in
//! `emu-libibverbs`, handles are checked against the set of live ones, and a panic becomes `DOCA_ERROR_UNEXPECTED`.
// A C ABI passes raw pointers.
#![allow(unsafe_code)]

mod argp;
mod device;
pub mod failure;
mod log;
mod names;

pub use device::{Dev, DevInfo};
pub use log::{Stream, streams};

use doca_sys::DocaApi;

/// The emulator's functions, under their C names.
#[must_use]
pub fn api() -> DocaApi {
    use {device::*, names::*};
    emu_libibverbs::log::leave_to_host();
    DocaApi {
        doca_error_get_name,
        doca_error_get_descr,
        doca_devinfo_create_list,
        doca_devinfo_destroy_list,
        doca_devinfo_get_pci_addr_str,
        doca_devinfo_get_mac_addr,
        doca_devinfo_get_iface_name,
        doca_devinfo_get_ibdev_name,
        doca_dev_open,
        doca_dev_close,
        doca_dev_as_devinfo,
    }
}
