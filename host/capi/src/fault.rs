//! End of every C function: a code, and a text for the thread. Panics end here, and so do calls in a forked child.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use flexcast_rust::Error;

use crate::status::flexcast_status::{self, *};

/// A code and its text.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) status: flexcast_status,
    pub(crate) text: String,
}

impl Fault {
    pub(crate) fn new(status: flexcast_status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn null(what: &str) -> Self {
        Self::new(FLEXCAST_ERROR_NULL, format!("{what} is NULL"))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self { status: flexcast_status::of(error), text }
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
    /// A panic has left objects in an unknown state.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps a text for flexcast_last_error().
pub(crate) fn remember(text: &str) {
    let text = CString::new(text.replace('\0', "?")).ok();
    // At the end of a thread there is nobody to report it to.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// The process whose objects the library keeps; 0: there has been none yet.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// From now on the library is this process's. Called before anything is made that a forked child could not use: it
/// shares connections and open files with its parent, and has none of the threads that may hold a lock.
pub(crate) fn own() -> Result<(), Fault> {
    // Another thread may have been first.
    let _ = OWNER.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
    same_process()?;
    crate::log::start();
    Ok(())
}

fn same_process() -> Result<(), Fault> {
    let (owner, this) = (OWNER.load(Ordering::Relaxed), std::process::id());
    if owner == 0 || owner == this {
        return Ok(());
    }
    Err(Fault::new(
        FLEXCAST_ERROR_FORKED,
        format!(
            "process {this} was forked from process {owner}, whose endpoints and connections these are: fork before \
             the library is used, or exec() in the child"
        ),
    ))
}

/// An object of several threads, unless a panic has left it in an unknown state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Fault> {
    mutex
        .lock()
        .map_err(|_| Fault::new(FLEXCAST_ERROR_INTERNAL, "the object cannot be used any more: a call of it panicked"))
}

/// Runs what is not a function of the header, such as the body of a thread: a panic becomes a fault.
pub(crate) fn guard<T>(body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    // Locks that the panic held are poisoned: `lock` refuses what they guard.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = format!("a mistake of this library: {}; please report it", message(&*panic));
        // Dropping what was thrown could panic again.
        std::mem::forget(panic);
        Err(Fault::new(FLEXCAST_ERROR_INTERNAL, text))
    })
}

/// Runs the body of a function.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Fault>) -> flexcast_status {
    let result = if let Err(fault) = same_process() {
        Err(fault)
    } else if PANICKED.try_with(Cell::get).unwrap_or(true) {
        Err(Fault::new(FLEXCAST_ERROR_INTERNAL, "this thread cannot use the library any more: a call of it panicked"))
    } else {
        // What a panic leaves behind is not used again: every later call on this thread is refused.
        let mut returned = false;
        let result = guard(|| {
            let result = body();
            returned = true;
            result
        });
        PANICKED.set(!returned);
        result
    };
    match result {
        Ok(()) => FLEXCAST_OK,
        Err(fault) => {
            remember(&fault.text);
            fault.status
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without text")
}

/// What went wrong in the last call of this thread that did not return FLEXCAST_OK: the value, the limit and the next
/// step. The text is the library's, and valid until the next such call.
#[unsafe(no_mangle)]
pub extern "C" fn flexcast_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr())).ok().flatten().unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: a C string that is valid until the next failure of this thread.
        unsafe { CStr::from_ptr(flexcast_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_code_and_ends_the_use_of_the_thread() {
        std::thread::spawn(|| {
            assert_eq!(call(|| Ok(())), FLEXCAST_OK);
            assert_eq!(call(|| panic!("slot {} is gone", 3)), FLEXCAST_ERROR_INTERNAL);
            assert!(last().contains("slot 3 is gone"), "{}", last());
            assert_eq!(call(|| Ok(())), FLEXCAST_ERROR_INTERNAL);
            assert!(last().contains("panicked"), "{}", last());
        })
        .join()
        .unwrap();
        assert_eq!(call(|| Ok(())), FLEXCAST_OK, "other threads are not concerned");
    }

    #[test]
    fn causes_are_part_of_the_text() {
        let error = flexio::Error::NotInstalled { missing: "libflexio.so".to_owned(), source: "no such file".into() };
        let fault = Fault::from(Error::from(error));
        assert_eq!(fault.status, FLEXCAST_ERROR_NOT_INSTALLED);
        assert!(fault.text.contains("libflexio.so") && fault.text.contains("no such file"), "{}", fault.text);
        remember("a\0b");
        assert_eq!(last(), "a?b");
    }
}
