//! The table of functions through which host code talks to DOCA common.

use core::ffi::c_char;

use verbs_sys::{LoadError, Loader};

use crate::bindings::*;

macro_rules! doca_api {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// Pointers to the exported C functions, under their C names.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)] // the names are those of the vendor's reference
        pub struct DocaApi {
            $(pub $name: unsafe extern "C" fn($($arg: $ty),*) -> $ret,)*
        }

        impl DocaApi {
            fn from_library(library: &Loader) -> Result<Self, LoadError> {
                // SAFETY: the types are those of the vendor's prototypes.
                unsafe { Ok(DocaApi { $($name: library.function(stringify!($name))?,)* }) }
            }
        }
    };
}

doca_api! {
    fn doca_error_get_name(error: doca_error_t) -> *const c_char;
    fn doca_error_get_descr(error: doca_error_t) -> *const c_char;
    fn doca_devinfo_create_list(dev_list: *mut *mut *mut doca_devinfo, nb_devs: *mut u32) -> doca_error_t;
    fn doca_devinfo_destroy_list(dev_list: *mut *mut doca_devinfo) -> doca_error_t;
    fn doca_devinfo_get_pci_addr_str(devinfo: *const doca_devinfo, pci_addr_str: *mut c_char) -> doca_error_t;
    fn doca_devinfo_get_mac_addr(devinfo: *const doca_devinfo, mac_addr: *mut u8, size: u32) -> doca_error_t;
    fn doca_devinfo_get_iface_name(devinfo: *const doca_devinfo, iface_name: *mut c_char, size: u32) -> doca_error_t;
    fn doca_devinfo_get_ibdev_name(devinfo: *const doca_devinfo, ibdev_name: *mut c_char, size: u32) -> doca_error_t;
    fn doca_dev_open(devinfo: *mut doca_devinfo, dev: *mut *mut doca_dev) -> doca_error_t;
    fn doca_dev_close(dev: *mut doca_dev) -> doca_error_t;
    fn doca_dev_as_devinfo(dev: *const doca_dev) -> *mut doca_devinfo;
}

/// Fills the table from `libdoca_common.so.2`.
///
/// # Errors
/// [`LoadError`] names the library or the function that is missing.
pub fn load() -> Result<DocaApi, LoadError> {
    const NAMES: [&str; 3] =
        ["libdoca_common.so.2", "libdoca_common.so", "/opt/mellanox/doca/lib/x86_64-linux-gnu/libdoca_common.so.2"];
    DocaApi::from_library(&Loader::open(&NAMES, INSTALL)?)
}

/// Fills the table from `libdoca_common.so.2` in a folder, such as the emulator's.
///
/// # Errors
/// As [`load`].
pub fn load_from(folder: &std::path::Path) -> Result<DocaApi, LoadError> {
    DocaApi::from_library(&Loader::open_in(folder, &["libdoca_common.so.2", "libdoca_common.so"], INSTALL)?)
}

const INSTALL: &str = "install DOCA (package doca-sdk-common)";
