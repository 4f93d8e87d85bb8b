//! Log messages of programs.
//!
//! A message goes to every backend whose limits let its level through. What the emulator itself refuses goes to stderr
//! (`emu_libibverbs::log`), whatever the backends of the libraries' messages are.

use core::ffi::{CStr, c_char, c_int};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doca_sys::*;
use emu_libibverbs::handle::{self, Object};
use libc::FILE;

use crate::failure::{Result, invalid, put, run_without_card, text, unsupported};

/// Most log sources and backends of a program.
const MAX_ENTRIES: usize = 256;
/// The levels, and how messages name them.
const LEVELS: [(doca_log_level, &str); 7] = [
    (DOCA_LOG_LEVEL_DISABLE, "DIS"),
    (DOCA_LOG_LEVEL_CRIT, "CRT"),
    (DOCA_LOG_LEVEL_ERROR, "ERR"),
    (DOCA_LOG_LEVEL_WARNING, "WRN"),
    (DOCA_LOG_LEVEL_INFO, "INF"),
    (DOCA_LOG_LEVEL_DEBUG, "DBG"),
    (DOCA_LOG_LEVEL_TRACE, "TRC"),
];

unsafe extern "C" {
    fn flexcast_doca_streams(out: *mut *mut FILE, err: *mut *mut FILE);
}

/// stdout and stderr of the C library.
#[must_use]
pub fn streams() -> [Stream; 2] {
    let (mut out, mut err) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: both locals may be written.
    unsafe { flexcast_doca_streams(&raw mut out, &raw mut err) };
    [Stream(out), Stream(err)]
}

/// A stream of the C library, which whoever names it keeps open.
#[derive(Clone, Copy, Debug)]
pub struct Stream(*mut FILE);

// SAFETY: C streams lock themselves.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Writes bytes, and hands them to the system at once.
    pub fn write(self, bytes: &[u8]) {
        // SAFETY: open, as whoever named it vouches; the bytes are a slice. A full disk is no reason to end a program.
        unsafe {
            libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0);
            libc::fflush(self.0);
        }
    }
}

/// Where messages go.
#[derive(Clone, Copy)]
enum Sink {
    Stream(Stream),
    Descriptor(c_int),
    /// A buffer of the program's, and its function that takes what is there.
    Buffer {
        start: usize,
        capacity: usize,
        flush: unsafe extern "C" fn(*mut c_char),
    },
}

impl Sink {
    fn write(self, line: &str) {
        match self {
            Sink::Stream(stream) => stream.write(line.as_bytes()),
            Sink::Descriptor(fd) => {
                // SAFETY: the bytes are a slice; a descriptor that is closed is an error and no more.
                unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
            }
            Sink::Buffer { start, capacity, flush } => {
                // What does not fit is cut off.
                let line = &line.as_bytes()[..line.len().min(capacity - 1)];
                let to = std::ptr::with_exposed_provenance_mut::<c_char>(start);
                // SAFETY: the program gave the buffer with its capacity, in which line and terminator fit, and the
                // function to call with it.
                unsafe {
                    core::ptr::copy_nonoverlapping(line.as_ptr(), to.cast(), line.len());
                    to.add(line.len()).write(0);
                    flush(to);
                }
            }
        }
    }
}

struct Backend {
    sink: Sink,
    /// For the libraries' messages.
    is_sdk: bool,
    /// Levels that pass: at least the first, at most the second.
    limits: Mutex<(u32, u32)>,
}

impl Object for Backend {
    const KIND: &'static str = "log backend";
    type C = doca_log_backend;
    fn c_address(&self) -> *mut doca_log_backend {
        (self as *const Self).cast_mut().cast()
    }
}

struct Log {
    sources: BTreeMap<c_int, String>,
    backends: Vec<Arc<Backend>>,
    /// Most verbose and most severe level.
    lower: u32,
    upper: u32,
    sdk: u32,
    has_standard: bool,
}

static LOG: Mutex<Log> = Mutex::new(Log {
    sources: BTreeMap::new(),
    backends: Vec::new(),
    lower: DOCA_LOG_LEVEL_INFO,
    upper: DOCA_LOG_LEVEL_CRIT,
    sdk: DOCA_LOG_LEVEL_INFO,
    has_standard: false,
});

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn checked(level: u32) -> Result<u32> {
    if LEVELS.iter().any(|(known, _)| *known == level) {
        return Ok(level);
    }
    Err(invalid(format!("log level {level}: 10, 20, ... 70 exist (DOCA_LOG_LEVEL_*)")))
}

fn add(sink: Sink, is_sdk: bool, backend: *mut *mut doca_log_backend) -> Result<()> {
    if backend.is_null() {
        return Err(invalid("backend is null"));
    }
    let mut log = locked(&LOG);
    if log.backends.len() >= MAX_ENTRIES {
        return Err(invalid(format!("there are {MAX_ENTRIES} log backends already")));
    }
    let limits = if is_sdk { (DOCA_LOG_LEVEL_CRIT, log.sdk) } else { (log.upper, log.lower) };
    let object = Arc::new(Backend { sink, is_sdk, limits: Mutex::new(limits) });
    log.backends.push(Arc::clone(&object));
    // SAFETY: not null, and writable as the caller promises.
    unsafe { put(backend, "backend", handle::publish(&object)) }
}

fn create_with_file(file: *mut FILE, is_sdk: bool, backend: *mut *mut doca_log_backend) -> Result<()> {
    if file.is_null() {
        return Err(invalid("fptr is null"));
    }
    add(Sink::Stream(Stream(file)), is_sdk, backend)
}

fn create_with_fd(fd: c_int, is_sdk: bool, backend: *mut *mut doca_log_backend) -> Result<()> {
    if fd < 0 {
        return Err(invalid(format!("fd is {fd}")));
    }
    add(Sink::Descriptor(fd), is_sdk, backend)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_create_with_file(
    fptr: *mut FILE,
    backend: *mut *mut doca_log_backend,
) -> doca_error_t {
    run_without_card("doca_log_backend_create_with_file", || create_with_file(fptr, false, backend))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_create_with_file_sdk(
    fptr: *mut FILE,
    backend: *mut *mut doca_log_backend,
) -> doca_error_t {
    run_without_card("doca_log_backend_create_with_file_sdk", || create_with_file(fptr, true, backend))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_create_with_fd(
    fd: c_int,
    backend: *mut *mut doca_log_backend,
) -> doca_error_t {
    run_without_card("doca_log_backend_create_with_fd", || create_with_fd(fd, false, backend))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_create_with_fd_sdk(
    fd: c_int,
    backend: *mut *mut doca_log_backend,
) -> doca_error_t {
    run_without_card("doca_log_backend_create_with_fd_sdk", || create_with_fd(fd, true, backend))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_create_with_buf(
    buf: *mut c_char,
    capacity: usize,
    handler: log_flush_callback,
    backend: *mut *mut doca_log_backend,
) -> doca_error_t {
    run_without_card("doca_log_backend_create_with_buf", || match handler {
        Some(flush) if !buf.is_null() && capacity > 0 => {
            add(Sink::Buffer { start: buf.expose_provenance(), capacity, flush }, false, backend)
        }
        _ => Err(invalid("buf or handler is null, or capacity 0")),
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_create_with_syslog(
    _name: *const c_char,
    _backend: *mut *mut doca_log_backend,
) -> doca_error_t {
    run_without_card("doca_log_backend_create_with_syslog", || Err(unsupported("a backend for syslog is not emulated")))
}

/// Two backends: stdout for INFO and what is more verbose, stderr for what is more severe.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_create_standard() -> doca_error_t {
    run_without_card("doca_log_backend_create_standard", || {
        locked(&LOG).has_standard = true;
        Ok(())
    })
}

fn with_limits(backend: *mut doca_log_backend, is_sdk: bool, change: impl FnOnce(&mut (u32, u32))) -> Result<()> {
    let backend = handle::get::<Backend>(backend)?;
    if backend.is_sdk != is_sdk {
        let whose = if is_sdk { "the program's" } else { "the libraries'" };
        return Err(invalid(format!("this backend is for {whose} own messages")));
    }
    change(&mut locked(&backend.limits));
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_set_level_lower_limit(
    backend: *mut doca_log_backend,
    level: u32,
) -> doca_error_t {
    run_without_card("doca_log_backend_set_level_lower_limit", || {
        let level = checked(level)?;
        with_limits(backend, false, |limits| limits.1 = level)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_set_level_upper_limit(
    backend: *mut doca_log_backend,
    upper_limit: u32,
) -> doca_error_t {
    run_without_card("doca_log_backend_set_level_upper_limit", || {
        let level = checked(upper_limit)?;
        with_limits(backend, false, |limits| limits.0 = level)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_backend_set_sdk_level(
    backend: *mut doca_log_backend,
    level: u32,
) -> doca_error_t {
    run_without_card("doca_log_backend_set_sdk_level", || {
        let level = checked(level)?;
        with_limits(backend, true, |limits| limits.1 = level)
    })
}

/// Changes a limit of the program's messages, and that of all backends.
pub(crate) fn set_lower_limit(level: u32) -> Result<()> {
    let level = checked(level)?;
    let mut log = locked(&LOG);
    log.lower = level;
    log.backends.iter().filter(|backend| !backend.is_sdk).for_each(|backend| locked(&backend.limits).1 = level);
    Ok(())
}

/// Changes the limit of the libraries' messages.
pub(crate) fn set_sdk_limit(level: u32) -> Result<()> {
    let level = checked(level)?;
    let mut log = locked(&LOG);
    log.sdk = level;
    log.backends.iter().filter(|backend| backend.is_sdk).for_each(|backend| locked(&backend.limits).1 = level);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_level_set_global_lower_limit(level: u32) -> doca_error_t {
    run_without_card("doca_log_level_set_global_lower_limit", || set_lower_limit(level))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_level_set_global_upper_limit(upper_limit: u32) -> doca_error_t {
    run_without_card("doca_log_level_set_global_upper_limit", || {
        let level = checked(upper_limit)?;
        let mut log = locked(&LOG);
        log.upper = level;
        log.backends.iter().filter(|backend| !backend.is_sdk).for_each(|backend| locked(&backend.limits).0 = level);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_level_set_global_sdk_limit(level: u32) -> doca_error_t {
    run_without_card("doca_log_level_set_global_sdk_limit", || set_sdk_limit(level))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_level_get_global_lower_limit() -> u32 {
    locked(&LOG).lower
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_level_get_global_upper_limit() -> u32 {
    locked(&LOG).upper
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_level_get_global_sdk_limit() -> u32 {
    locked(&LOG).sdk
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_register_source(
    source_name: *const c_char,
    source: *mut c_int,
) -> doca_error_t {
    run_without_card("doca_log_register_source", || {
        // SAFETY: null, or terminated and writable as the caller promises.
        let name = unsafe { text(source_name, "source_name") }?;
        let mut log = locked(&LOG);
        let number = log.sources.last_key_value().map_or(1, |(last, _)| last + 1);
        if log.sources.len() >= MAX_ENTRIES {
            return Err(invalid(format!("there are {MAX_ENTRIES} log sources already")));
        }
        // SAFETY: as above.
        unsafe { put(source, "source", number) }?;
        log.sources.insert(number, name);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_log_unregister_source(source: c_int) -> doca_error_t {
    run_without_card("doca_log_unregister_source", || {
        locked(&LOG).sources.remove(&source);
        Ok(())
    })
}

/// A message: time of day, process, level, source and line, function, and the text.
fn line(level: u32, source: &str, at: c_int, function: &str, text: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let day = now.as_secs() % 86_400;
    let name = LEVELS.iter().find(|(known, _)| *known == level).map_or("???", |(_, name)| name);
    format!(
        "[{:02}:{:02}:{:02}:{:06}][{}][DOCA][{name}][{source}:{at}][{function}] {text}\n",
        day / 3600,
        day / 60 % 60,
        day % 60,
        now.subsec_micros(),
        std::process::id(),
    )
}

/// The second half of `doca_log`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexcast_doca_log(
    level: u32,
    source: c_int,
    at: c_int,
    func: *const c_char,
    message: *const c_char,
) -> doca_error_t {
    run_without_card("doca_log", || {
        let level = checked(level)?;
        if message.is_null() {
            return Err(invalid("format is null"));
        }
        // SAFETY: not null; terminated, as the C half made it.
        let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
        // SAFETY: null, or terminated as the caller promises.
        let function = if func.is_null() { "".into() } else { unsafe { CStr::from_ptr(func) }.to_string_lossy() };
        let log = locked(&LOG);
        let Some(name) = log.sources.get(&source) else {
            return Err(invalid(format!("{source} is no log source; DOCA_LOG_REGISTER makes one")));
        };
        let line = line(level, name, at, &function, &message);
        let passes = |(upper, lower): (u32, u32)| (upper..=lower).contains(&level);
        let mut sinks: Vec<Sink> = log
            .backends
            .iter()
            .filter(|backend| !backend.is_sdk && passes(*locked(&backend.limits)))
            .map(|backend| backend.sink)
            .collect();
        if log.has_standard && passes((log.upper, log.lower)) {
            sinks.push(Sink::Stream(streams()[usize::from(level < DOCA_LOG_LEVEL_INFO)]));
        }
        // A handler of the program's may log itself.
        drop(log);
        sinks.into_iter().for_each(|sink| sink.write(&line));
        Ok(())
    })
}
