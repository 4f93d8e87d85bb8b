//! Names and descriptions of result codes, and the release.

use core::ffi::{CStr, c_char};

use doca_sys::*;

const TEXTS: [(&CStr, &CStr); 31] = [
    (c"DOCA_SUCCESS", c"success"),
    (c"DOCA_ERROR_UNKNOWN", c"unknown error"),
    (c"DOCA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (c"DOCA_ERROR_IN_USE", c"resource in use"),
    (c"DOCA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (c"DOCA_ERROR_AGAIN", c"temporarily unavailable, try again"),
    (c"DOCA_ERROR_INVALID_VALUE", c"invalid input"),
    (c"DOCA_ERROR_NO_MEMORY", c"memory allocation failure"),
    (c"DOCA_ERROR_INITIALIZATION", c"initialization failure"),
    (c"DOCA_ERROR_TIME_OUT", c"time limit exceeded"),
    (c"DOCA_ERROR_SHUTDOWN", c"shut down"),
    (c"DOCA_ERROR_CONNECTION_RESET", c"connection reset by the peer"),
    (c"DOCA_ERROR_CONNECTION_ABORTED", c"connection aborted"),
    (c"DOCA_ERROR_CONNECTION_INPROGRESS", c"connection in progress"),
    (c"DOCA_ERROR_NOT_CONNECTED", c"not connected"),
    (c"DOCA_ERROR_NO_LOCK", c"no lock available"),
    (c"DOCA_ERROR_NOT_FOUND", c"not found"),
    (c"DOCA_ERROR_IO_FAILED", c"input or output failure"),
    (c"DOCA_ERROR_BAD_STATE", c"bad state for the operation"),
    (c"DOCA_ERROR_UNSUPPORTED_VERSION", c"unsupported version"),
    (c"DOCA_ERROR_OPERATING_SYSTEM", c"operating system failure"),
    (c"DOCA_ERROR_DRIVER", c"driver failure"),
    (c"DOCA_ERROR_UNEXPECTED", c"unexpected failure"),
    (c"DOCA_ERROR_ALREADY_EXIST", c"exists already"),
    (c"DOCA_ERROR_FULL", c"no room left"),
    (c"DOCA_ERROR_EMPTY", c"nothing there"),
    (c"DOCA_ERROR_IN_PROGRESS", c"operation in progress"),
    (c"DOCA_ERROR_TOO_BIG", c"too big"),
    (c"DOCA_ERROR_AUTHENTICATION", c"authentication failure"),
    (c"DOCA_ERROR_BAD_CONFIG", c"bad configuration"),
    (c"DOCA_ERROR_SKIPPED", c"skipped"),
];

fn texts(error: doca_error_t) -> (&'static CStr, &'static CStr) {
    TEXTS.get(error as usize).copied().unwrap_or(TEXTS[DOCA_ERROR_UNKNOWN as usize])
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_error_get_name(error: doca_error_t) -> *const c_char {
    texts(error).0.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_error_get_descr(error: doca_error_t) -> *const c_char {
    texts(error).1.as_ptr()
}

/// The release whose interface the headers have, as `doca_version.h` names it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_version_runtime() -> *const c_char {
    DOCA_VERSION_STRING.as_ptr().cast()
}
