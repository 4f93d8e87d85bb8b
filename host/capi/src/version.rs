//! Versions: of the interface and of the release.

use std::ffi::{CStr, c_char};

/// Version of this interface. It changes when a program that was compiled against another header could go wrong; the shared library's
/// name, libflexcast.so.1, ends in it.
pub const FLEXCAST_ABI_VERSION: u32 = 1;

/// The library's version of the interface: a program compares it with FLEXCAST_ABI_VERSION of its header before anything else.
#[unsafe(no_mangle)]
pub extern "C" fn flexcast_abi_version() -> u32 {
    FLEXCAST_ABI_VERSION
}

/// The library's release, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn flexcast_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}
