//! Descriptors that count what has ended.

use std::ffi::c_int;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::fault::Fault;
use crate::status::flexcast_status::*;

/// The descriptor, which is made for the first one who asks.
pub(crate) fn descriptor(ended: &OnceLock<EventFd>) -> Result<c_int, Fault> {
    if ended.get().is_none() {
        let made = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(|errno| {
            let text = format!("no eventfd can be made: {errno}; see the limit of open files (`ulimit -n`)");
            Fault::new(FLEXCAST_ERROR_LIMIT, text)
        })?;
        // Another thread may have been first.
        let _ = ended.set(made);
    }
    Ok(ended.get().map_or(-1, |ended| ended.as_raw_fd()))
}

/// One more has ended.
pub(crate) fn count(ended: &EventFd) {
    // It fails only when nobody has read it for very long; then it is readable all the same.
    let _ = ended.write(1);
}
