//! Log of the library: what it reports, by level, to a function of the program or to stderr.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Once, PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::fault::{Fault, call};
use crate::memory::User;
use crate::status::flexcast_status::{self, *};

/// Nothing.
pub const FLEXCAST_LOG_OFF: i32 = 0;
/// What cannot go on.
pub const FLEXCAST_LOG_ERROR: i32 = 1;
/// What goes on otherwise than was asked for; the default.
pub const FLEXCAST_LOG_WARN: i32 = 2;
/// What was chosen, once for each object.
pub const FLEXCAST_LOG_INFO: i32 = 3;
/// Each operation.
pub const FLEXCAST_LOG_DEBUG: i32 = 4;
/// Each message.
pub const FLEXCAST_LOG_TRACE: i32 = 5;

/// Gets a line of the log: its level (FLEXCAST_LOG_ERROR to FLEXCAST_LOG_TRACE), the part of the library that it comes
/// from, and its text, both for the duration of the call. From any thread, also one of the library's. It must not use
/// the library, and must return.
pub type flexcast_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, level: c_int, target: *const c_char, text: *const c_char)>;

/// Names of the levels, in the order of their numbers.
const NAMES: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The level, of all threads.
static LEVEL: AtomicI32 = AtomicI32::new(FLEXCAST_LOG_WARN);

type Function = unsafe extern "C" fn(*mut c_void, c_int, *const c_char, *const c_char);

/// Where lines go; none: stderr.
static SINK: RwLock<Option<(Function, User)>> = RwLock::new(None);

fn number(level: Level) -> i32 {
    match level {
        Level::ERROR => FLEXCAST_LOG_ERROR,
        Level::WARN => FLEXCAST_LOG_WARN,
        Level::INFO => FLEXCAST_LOG_INFO,
        Level::DEBUG => FLEXCAST_LOG_DEBUG,
        Level::TRACE => FLEXCAST_LOG_TRACE,
    }
}

/// Makes lines of events.
struct Lines;

/// An event's message and its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // A text never fails to be written to.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        number(*metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match LEVEL.load(Ordering::Relaxed) {
            FLEXCAST_LOG_OFF => LevelFilter::OFF,
            FLEXCAST_LOG_ERROR => LevelFilter::ERROR,
            FLEXCAST_LOG_WARN => LevelFilter::WARN,
            FLEXCAST_LOG_INFO => LevelFilter::INFO,
            FLEXCAST_LOG_DEBUG => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let (metadata, line) = (event.metadata(), text.message + &text.fields);
        emit(number(*metadata.level()), metadata.target(), &line);
    }
}

fn emit(level: i32, target: &str, line: &str) {
    let sink = *SINK.read().unwrap_or_else(PoisonError::into_inner);
    match sink {
        None => {
            let name = usize::try_from(level).ok().and_then(|level| NAMES.get(level)).unwrap_or(&"log");
            // Nobody may read it.
            let _ = writeln!(std::io::stderr(), "flexcast: {name}: {line}");
        }
        Some((function, user)) => {
            let c_string = |text: &str| CString::new(text.replace('\0', "?")).unwrap_or_default();
            let (target, line) = (c_string(target), c_string(line));
            // SAFETY: the program's function, with its own pointer and two C strings.
            unsafe { function(user.0, level, target.as_ptr(), line.as_ptr()) };
        }
    }
}

/// Begins to log, as FLEXCAST_LOG says; once.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let named = std::env::var("FLEXCAST_LOG").unwrap_or_default();
        let level = NAMES.iter().position(|name| *name == named.trim().to_ascii_lowercase());
        if let Some(level) = level.and_then(|level| i32::try_from(level).ok()) {
            LEVEL.store(level, Ordering::Relaxed);
        }
        // A program of Rust with this library in it may have one already.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Lines));
        if level.is_none() && !named.is_empty() {
            tracing::warn!("FLEXCAST_LOG is {named:?}: must be one of {}; it is taken for warn", NAMES.join(", "));
        }
    });
}

/// Sets how much is logged, FLEXCAST_LOG_OFF to FLEXCAST_LOG_TRACE, and where to: to a function of the program, which
/// gets `user`, or to stderr (NULL). Before it is called the level is what the variable FLEXCAST_LOG says (off, error,
/// warn, info, debug or trace), or else FLEXCAST_LOG_WARN, and lines go to stderr. A function that was set before may
/// still be called by other threads for a moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_log(
    level: c_int,
    callback: flexcast_log_callback,
    user: *mut c_void,
) -> flexcast_status {
    call(|| {
        if !(FLEXCAST_LOG_OFF..=FLEXCAST_LOG_TRACE).contains(&level) {
            let text = format!("level is {level}: must be {FLEXCAST_LOG_OFF} (off) to {FLEXCAST_LOG_TRACE} (trace)");
            return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
        }
        start();
        *SINK.write().unwrap_or_else(PoisonError::into_inner) = callback.map(|function| (function, User(user)));
        LEVEL.store(level, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::sync::Mutex;

    use super::*;

    unsafe extern "C" fn keep(user: *mut c_void, level: c_int, target: *const c_char, text: *const c_char) {
        // SAFETY: the list of the test, and two C strings.
        let (list, target, text) =
            unsafe { (&*user.cast::<Mutex<Vec<String>>>(), CStr::from_ptr(target), CStr::from_ptr(text)) };
        if target.to_bytes() == b"the test" {
            list.lock().unwrap().push(format!("{level} {}", text.to_string_lossy()));
        }
    }

    #[test]
    fn lines_go_to_the_program_by_their_level() {
        // Lines of other tests may come for ever.
        let list: &'static Mutex<Vec<String>> = Box::leak(Box::default());
        let user = std::ptr::from_ref(list).cast_mut().cast();
        // SAFETY: a function of the right type, and what it is given.
        let set = |level| unsafe { flexcast_log(level, Some(keep), user) };
        let say = || {
            tracing::warn!(target: "the test", rank = 3, "is late");
            tracing::info!(target: "the test", "algorithm ring");
        };
        assert_eq!(set(FLEXCAST_LOG_WARN), FLEXCAST_OK);
        say();
        assert_eq!(set(FLEXCAST_LOG_INFO), FLEXCAST_OK);
        say();
        assert_eq!(set(FLEXCAST_LOG_OFF), FLEXCAST_OK);
        say();
        assert_eq!(*list.lock().unwrap(), ["2 is late rank=3", "2 is late rank=3", "3 algorithm ring"]);
        assert_eq!(set(6), FLEXCAST_ERROR_ARGUMENT);
        // SAFETY: no function.
        assert_eq!(unsafe { flexcast_log(FLEXCAST_LOG_WARN, None, std::ptr::null_mut()) }, FLEXCAST_OK);
    }
}
