//! Results as DOCA reports them: a code, and an explanation on stderr.

use core::ffi::{CStr, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use doca_sys::*;
use emu_libibverbs::errno::Errno;
use emu_libibverbs::handle::BadHandle;
use emu_libibverbs::{fork, log};
use emu_machine::MachineError;
use emu_machine::nic::NicError;

/// A code, and the reason for the log.
#[derive(Debug)]
pub struct Failure(pub doca_error_t, pub String);

/// What a call gives.
pub type Result<T> = std::result::Result<T, Failure>;

impl From<BadHandle> for Failure {
    fn from(bad: BadHandle) -> Self {
        Failure(DOCA_ERROR_INVALID_VALUE, bad.to_string())
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Failure(DOCA_ERROR_DRIVER, error.reason)
    }
}

impl From<NicError> for Failure {
    fn from(error: NicError) -> Self {
        Failure(DOCA_ERROR_DRIVER, error.to_string())
    }
}

impl From<MachineError> for Failure {
    fn from(error: MachineError) -> Self {
        // The cause of a refused image or call is what the user needs to see.
        let reason = error.with_causes();
        let code = match error {
            MachineError::Crashed(_) | MachineError::ProcessStopped { .. } => DOCA_ERROR_BAD_STATE,
            MachineError::BadDeviceRange { .. } | MachineError::NotAllocated { .. } => DOCA_ERROR_INVALID_VALUE,
            MachineError::NoFreeExecutionUnit { .. } | MachineError::HeapFull { .. } => DOCA_ERROR_NO_MEMORY,
            _ => DOCA_ERROR_DRIVER,
        };
        Failure(code, reason)
    }
}

/// An argument that cannot be.
pub fn invalid(reason: impl Display) -> Failure {
    Failure(DOCA_ERROR_INVALID_VALUE, reason.to_string())
}

/// A call that comes too early, too late or twice.
pub fn bad_state(reason: impl Display) -> Failure {
    Failure(DOCA_ERROR_BAD_STATE, reason.to_string())
}

/// What the emulated card does not have.
pub fn unsupported(reason: impl Display) -> Failure {
    Failure(DOCA_ERROR_NOT_SUPPORTED, reason.to_string())
}

/// Carries out a call, and says why it failed if it did.
pub fn run(call: &str, f: impl FnOnce() -> Result<()>) -> doca_error_t {
    run_entered(call, fork::enter, f)
}

/// The same for a call that has to do with no card: a process may fork behind it.
pub(crate) fn run_without_card(call: &str, f: impl FnOnce() -> Result<()>) -> doca_error_t {
    run_entered(call, fork::enter_without_card, f)
}

fn run_entered(
    call: &str,
    enter: fn() -> emu_libibverbs::errno::Result<()>,
    f: impl FnOnce() -> Result<()>,
) -> doca_error_t {
    log::start();
    let entered = enter().map_err(|error| Failure(DOCA_ERROR_BAD_STATE, error.reason));
    let result = entered.and_then(|()| {
        let panicked =
            || Err(Failure(DOCA_ERROR_UNEXPECTED, "the emulator panicked; see the message above".to_owned()));
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| panicked())
    });
    let Err(Failure(code, reason)) = result else { return DOCA_SUCCESS };
    if !log::refused(call, &reason, false) {
        tracing::debug!(call, code, reason, "DOCA call failed");
    }
    code
}

/// A writable out-parameter.
///
/// # Safety
/// If not null, `p` must be valid for writes.
///
/// # Errors
/// It is null.
pub unsafe fn put<T>(p: *mut T, name: &str, value: T) -> Result<()> {
    if p.is_null() {
        return Err(invalid(format!("{name} is null")));
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { p.write(value) };
    Ok(())
}

/// A C string.
///
/// # Safety
/// If not null, `p` must point at a terminated string.
///
/// # Errors
/// It is null, or no UTF-8.
pub unsafe fn text(p: *const c_char, name: &str) -> Result<String> {
    if p.is_null() {
        return Err(invalid(format!("{name} is null")));
    }
    // SAFETY: not null; the caller vouches for the terminator.
    let text = unsafe { CStr::from_ptr(p) };
    Ok(text.to_str().map_err(|_| invalid(format!("{name} is not UTF-8")))?.to_owned())
}
