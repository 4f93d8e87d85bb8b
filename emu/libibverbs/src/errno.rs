//! Errors as the verbs API reports them: positive errno values returned by calls, or null and `errno`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use emu_machine::MachineError;
use emu_machine::nic::NicError;

use crate::handle::BadHandle;

/// An errno value with the reason, which C programs find on stderr (`log.rs`).
#[derive(Debug)]
pub struct Errno {
    /// The value.
    pub value: i32,
    /// Why.
    pub reason: String,
}

/// What the calls of this crate work with.
pub type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    /// An errno value with its reason.
    pub fn new(value: i32, reason: impl Into<String>) -> Self {
        Errno { value, reason: reason.into() }
    }

    /// EINVAL.
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, reason)
    }

    /// EOPNOTSUPP.
    pub fn unsupported(reason: impl Into<String>) -> Self {
        Self::new(libc::EOPNOTSUPP, reason)
    }
}

impl From<BadHandle> for Errno {
    fn from(bad: BadHandle) -> Self {
        Self::invalid(bad.to_string())
    }
}

impl From<NicError> for Errno {
    fn from(error: NicError) -> Self {
        let value = match error {
            NicError::PdInUse { .. }
            | NicError::CqInUse { .. }
            | NicError::SrqInUse { .. }
            | NicError::QpAttached { .. }
            | NicError::QpSteered { .. }
            | NicError::MkeyBound { .. }
            | NicError::QpTaken { .. }
            | NicError::FlowTableInUse { .. } => libc::EBUSY,
            NicError::TooManyKeys { .. }
            | NicError::TooManyQueues { .. }
            | NicError::TooManyVhcas { .. }
            | NicError::TooManyFlows { .. } => libc::ENOMEM,
            _ => libc::EINVAL,
        };
        Self::new(value, error.to_string())
    }
}

impl From<MachineError> for Errno {
    fn from(error: MachineError) -> Self {
        let value = match error {
            MachineError::NoCard { .. } | MachineError::NotAttached(_) => libc::ENODEV,
            MachineError::Elsewhere(_) => libc::EOPNOTSUPP,
            MachineError::HeapFull { .. } => libc::ENOMEM,
            _ => libc::EINVAL,
        };
        Self::new(value, error.to_string())
    }
}

/// Sets the calling thread's `errno`.
pub fn set(value: i32) {
    // SAFETY: the C library gives each thread a valid, writable location.
    unsafe { *libc::__errno_location() = value };
}

fn run<T>(call: &'static str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    crate::log::start();
    // After a panic the objects of this library may be half changed, but each is behind its own lock and whole in
    // Rust's sense; the caller learns of it from the error.
    let result = crate::fork::enter().and_then(|()| catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| panicked()));
    result.inspect_err(|error| failed(call, error))
}

#[cold]
fn panicked<T>() -> Result<T> {
    Err(Errno::new(libc::EIO, "the emulator panicked; see the message above"))
}

/// Not a part of [`run`], of which each call has a copy.
#[cold]
fn failed(call: &'static str, error: &Errno) {
    let mild = matches!(error.value, libc::EAGAIN | libc::EINTR);
    if !crate::log::refused(call, &error.reason, mild) {
        tracing::debug!(call, errno = error.value, reason = error.reason, "verbs call failed");
    }
    set(error.value);
}

/// A call that returns 0 or an errno value.
pub fn status(call: &'static str, f: impl FnOnce() -> Result<()>) -> i32 {
    run(call, f).map_or_else(|error| error.value, |()| 0)
}

/// A call that returns a number, or -1 and `errno`.
pub fn number(call: &'static str, f: impl FnOnce() -> Result<i32>) -> i32 {
    run(call, f).unwrap_or(-1)
}

/// A call that returns a pointer, or null and `errno`.
pub fn pointer<T>(call: &'static str, f: impl FnOnce() -> Result<*mut T>) -> *mut T {
    run(call, f).unwrap_or(std::ptr::null_mut())
}

/// A writable out-parameter.
///
/// # Safety
/// If not null, `p` must be valid for writes and not be accessed otherwise during the call.
///
/// # Errors
/// EINVAL if it is null.
pub unsafe fn out<'a, T>(p: *mut T, name: &str) -> Result<&'a mut std::mem::MaybeUninit<T>> {
    // SAFETY: the caller vouches for it; uninitialised contents are allowed.
    unsafe { p.cast::<std::mem::MaybeUninit<T>>().as_mut() }.ok_or_else(|| Errno::invalid(format!("{name} is null")))
}

/// A readable structure.
///
/// # Safety
/// If not null, `p` must point at an initialised `T` that nobody writes during the call.
///
/// # Errors
/// EINVAL if it is null.
pub unsafe fn input<'a, T>(p: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { p.as_ref() }.ok_or_else(|| Errno::invalid(format!("{name} is null")))
}
