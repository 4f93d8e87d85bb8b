//! Versions: of the interface and of the release.

use std::ffi::{CStr, c_char};

/// Version of this interface. A library of a version serves programs of all versions from 1 to its own: functions,
/// codes and fields are added, and structures are distinguished by their size. A change that programs do not survive
/// would end in another name of the shared library than libflexcast.so.1.
pub const FLEXCAST_ABI_VERSION: u32 = 1;

/// The library's version of the interface. A program checks that it is no less than FLEXCAST_ABI_VERSION of its header
/// before anything else.
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
