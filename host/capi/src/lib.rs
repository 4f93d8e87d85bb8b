//! The C ABI of the collective library: `libflexcast.so`, `libflexcast.a`, and `include/flexcast.h`, which cbindgen makes of these files
//! (`cargo xtask header`).
//!
//! Whatever a program does wrong with a handle is an error code: handles are numbers with a generation, looked up in a table of their
//! thread ([`handle`]), and never addresses. No panic leaves a function ([`fault`]). Memory of the program is reached only where a
//! function's documentation says so.
//!
//! Functions are `unsafe` in Rust's sense: each pointer argument is null, which is refused, or points at what the header says.
#![allow(non_camel_case_types)] // The names are those of the header.
#![allow(unsafe_code)] // The boundary itself: exported symbols, pointers of the caller.
#![allow(clippy::missing_safety_doc)] // Said once, above and at the top of the header.

mod bootstrap;
mod card;
mod communicator;
mod config;
mod fault;
mod handle;
mod memory;
mod operation;
mod request;
mod status;

use std::ffi::{CStr, c_char};

pub use bootstrap::*;
pub use card::*;
pub use communicator::*;
pub use config::*;
pub use fault::flexcast_last_error;
pub use operation::*;
pub use request::*;
pub use status::*;

/// Version of this interface. It changes when a program that was compiled against another header could go wrong.
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
