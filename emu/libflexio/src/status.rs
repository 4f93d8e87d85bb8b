//! Results as FlexIO reports them: a status, and an explanation on stderr.

use core::ffi::{CStr, c_char};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use emu_libibverbs::errno::Errno;
use emu_libibverbs::handle::BadHandle;
use emu_libibverbs::{fork, log};
use emu_machine::MachineError;
use emu_machine::nic::NicError;
use flexio_sys::*;

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    /// What the call returns.
    pub status: flexio_status,
    /// What is printed.
    pub reason: String,
}

/// What a call gives.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A failure with the ordinary status.
pub(crate) fn failed(reason: impl Display) -> Failure {
    Failure { status: FLEXIO_STATUS_FAILED, reason: reason.to_string() }
}

macro_rules! failure_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                failed(error)
            }
        }
    )*};
}
failure_from!(BadHandle, NicError);

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        failed(error.reason)
    }
}

impl From<MachineError> for Failure {
    fn from(error: MachineError) -> Self {
        // The cause of a refused image or call is what the user needs to see.
        let reason = error.with_causes();
        let status = match error {
            MachineError::Crashed(_) | MachineError::ProcessStopped { .. } => FLEXIO_STATUS_FATAL_ERR,
            _ => FLEXIO_STATUS_FAILED,
        };
        Failure { status, reason }
    }
}

fn run<T>(call: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    run_entered(call, fork::enter, f)
}

fn run_entered<T>(
    call: &str,
    enter: fn() -> emu_libibverbs::errno::Result<()>,
    f: impl FnOnce() -> Result<T>,
) -> Result<T> {
    log::start();
    // The emulator's own state is behind locks that recover from a panic, and the caller learns of it from the status.
    let result = enter().map_err(Failure::from).and_then(|()| {
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
            Err(Failure {
                status: FLEXIO_STATUS_FATAL_ERR,
                reason: "the emulator panicked; see the message above".to_owned(),
            })
        })
    });
    if let Err(failure) = &result
        && !log::refused(call, &failure.reason, false)
    {
        // Errors are the lowest level of the vendor's library, which cannot be switched off.
        eprintln!("{call}: {}", failure.reason);
    }
    result
}

/// A call that returns a status.
pub(crate) fn status(call: &str, f: impl FnOnce() -> Result<()>) -> flexio_status {
    run(call, f).map_or_else(|failure| failure.status, |()| FLEXIO_STATUS_SUCCESS)
}

/// A call that returns a status and has to do with no card: a process may fork behind it.
pub(crate) fn status_without_card(call: &str, f: impl FnOnce() -> Result<()>) -> flexio_status {
    run_entered(call, fork::enter_without_card, f).map_or_else(|failure| failure.status, |()| FLEXIO_STATUS_SUCCESS)
}

/// A call that returns something else, with its value for failures.
pub(crate) fn value<T>(call: &str, on_failure: T, f: impl FnOnce() -> Result<T>) -> T {
    run(call, f).unwrap_or(on_failure)
}

/// A getter of a pointer.
pub(crate) fn pointer<T>(call: &str, f: impl FnOnce() -> Result<*mut T>) -> *mut T {
    value(call, core::ptr::null_mut(), f)
}

/// A writable out-parameter.
///
/// # Safety
/// If not null, `p` must be valid for writes and not be accessed otherwise during the call.
pub(crate) unsafe fn out<'a, T>(p: *mut T, name: &str) -> Result<&'a mut MaybeUninit<T>> {
    // SAFETY: the caller vouches for it; uninitialised contents are allowed.
    unsafe { p.cast::<MaybeUninit<T>>().as_mut() }.ok_or_else(|| failed(format!("{name} is null")))
}

/// A readable structure.
///
/// # Safety
/// If not null, `p` must point at an initialised `T` that nobody writes during the call.
pub(crate) unsafe fn input<'a, T>(p: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { p.as_ref() }.ok_or_else(|| failed(format!("{name} is null")))
}

/// A C string of at most [`FLEXIO_MAX_NAME_LEN`] bytes.
///
/// # Safety
/// If not null, `p` must point at a terminated string.
pub(crate) unsafe fn text<'a>(p: *const c_char, name: &str) -> Result<&'a str> {
    if p.is_null() {
        return Err(failed(format!("{name} is null")));
    }
    // SAFETY: not null; the caller vouches for the terminator.
    let text = unsafe { CStr::from_ptr(p) }.to_str().map_err(|_| failed(format!("{name} is not UTF-8")))?;
    if text.is_empty() || text.len() > FLEXIO_MAX_NAME_LEN as usize {
        return Err(failed(format!("{name} has {} bytes: 1 to {FLEXIO_MAX_NAME_LEN} are possible", text.len())));
    }
    Ok(text)
}

static LEVEL: AtomicU32 = AtomicU32::new(FLEXIO_LOG_LVL_ERR);

/// Errors are printed at every level, and this library prints nothing else: the level is only remembered.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_log_lvl_set(lvl: flexio_log_lvl_t) -> flexio_log_lvl_t {
    LEVEL.swap(lvl, Ordering::Relaxed)
}
