//! Message streams: what the firmware prints.
//!
//! The vendor's library prints from a thread of its own every millisecond. A machine that runs by itself has such a
//! thread. Otherwise nothing happens outside the caller's own calls, so messages are printed by
//! [`flexio_msg_stream_flush`], RPCs, error queries and the destruction of streams and processes, in the order in which
//! they were sent.

use core::ffi::{CStr, c_int};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emu_libibverbs::handle::{self, Object};
use flexio_sys::*;
use libc::{FILE, pthread_t};

use crate::process::{Process, lock, world};
use crate::status::{Failure, Result, failed, input, out, status, value};

/// Shortest buffer of a stream.
const MIN_BUFFER_BYTES: usize = 2048;
/// Longest name of a stream.
const MAX_NAME_BYTES: usize = 32;

/// Time between two turns of the printing thread.
const PRINT_INTERVAL: Duration = Duration::from_millis(10);

/// Where a process's streams print, by stream.
pub(crate) type Sinks = Arc<Mutex<BTreeMap<u32, Sink>>>;

/// Starts a thread that prints the messages of a process as long as it lives.
///
/// # Errors
/// The system has no thread left.
fn start_printer(process: &Process) -> Result<()> {
    let (sinks, card, id) = (Arc::downgrade(&process.sinks), process.card, process.id);
    let print = move || {
        while let Some(sinks) = sinks.upgrade() {
            for sink in lock(&sinks).values() {
                // A stream that is gone, or a file that is full, its owner's next call reports.
                if sink.drain(card, id).is_ok() {
                    // SAFETY: the file is open until the stream is destroyed, which takes it out of the list first.
                    unsafe { libc::fflush(sink.out) };
                }
            }
            drop(sinks);
            std::thread::sleep(PRINT_INTERVAL);
        }
    };
    let started = std::thread::Builder::new().name("flexcast-print".to_owned()).spawn(print);
    started.map(drop).map_err(|error| failed(format!("no thread that prints messages: {error}")))
}

/// Where a stream's messages go.
pub(crate) struct Sink {
    id: u32,
    out: *mut FILE,
}

// SAFETY: C streams lock themselves.
unsafe impl Send for Sink {}

impl Sink {
    /// Prints what has arrived.
    pub(crate) fn drain(&self, card: usize, process: u32) -> Result<()> {
        let messages = world(|world| world.take_stream_messages(card, process, self.id))?;
        for message in &messages {
            let text = message.split(|&byte| byte == 0).next().unwrap_or(&[]);
            // SAFETY: the creator of the stream keeps its file open until the stream is destroyed.
            let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), self.out) };
            if written != text.len() {
                return Err(failed(format!("{} of {} message bytes could be printed", written, text.len())));
            }
        }
        Ok(())
    }
}

pub(crate) struct Stream {
    process: Arc<Process>,
    id: u32,
}

impl Object for Stream {
    const KIND: &'static str = "message stream";
    type C = flexio_msg_stream;
    fn c_address(&self) -> *mut flexio_msg_stream {
        (self as *const Self).cast_mut().cast()
    }
}

/// Checks attributes and makes a stream in the process.
///
/// # Safety
/// `attr` and `ppthread` must be null or valid, the name in `attr` a terminated string.
unsafe fn open(
    process: &Process,
    attr: *const flexio_msg_stream_attr_t,
    file: *mut FILE,
    ppthread: *mut pthread_t,
) -> Result<u32> {
    // SAFETY: as this function's.
    let attr = unsafe { input(attr, "stream_fattr") }?;
    if file.is_null() {
        return Err(failed("out is null: a stream needs a file to print to"));
    }
    if !attr.data_bsize.is_power_of_two() || attr.data_bsize < MIN_BUFFER_BYTES {
        return Err(failed(format!(
            "data_bsize is {}: it must be a power of two and at least {MIN_BUFFER_BYTES}",
            attr.data_bsize
        )));
    }
    if attr.sync_mode > FLEXIO_LOG_DEV_SYNC_MODE_BATCH {
        return Err(failed(format!("sync_mode {}: the tracer is not emulated", attr.sync_mode)));
    }
    if u32::from(attr.level) > FLEXIO_MSG_DEV_DEBUG {
        return Err(failed(format!(
            "level {}: 1 to {FLEXIO_MSG_DEV_DEBUG} exist, and 0 for {FLEXIO_MSG_DEV_INFO}",
            attr.level
        )));
    }
    if !attr.stream_name.is_null() {
        // SAFETY: not null, and terminated as the caller vouches.
        let bytes = unsafe { CStr::from_ptr(attr.stream_name) }.count_bytes();
        if bytes > MAX_NAME_BYTES {
            return Err(failed(format!("stream_name has {bytes} bytes: at most {MAX_NAME_BYTES} are possible")));
        }
    }
    // As the vendor's library does: a zeroed structure makes a stream that prints.
    let level = if u32::from(attr.level) == FLEXIO_MSG_DEV_NO_PRINT { FLEXIO_MSG_DEV_INFO as u8 } else { attr.level };
    let id = world(|world| world.create_stream(process.card, process.id, level))?;
    if !ppthread.is_null() {
        // There is no printing thread. The caller's own is what can neither be joined by accident nor be invalid.
        // SAFETY: not null, and writable as the caller vouches.
        unsafe { ppthread.write(libc::pthread_self()) };
    }
    let mut sinks = lock(&process.sinks);
    let is_first = sinks.is_empty();
    sinks.insert(id, Sink { id, out: file });
    drop(sinks);
    if is_first && emu_libibverbs::is_bridged() && !process.has_printer.swap(true, Ordering::Relaxed) {
        start_printer(process)?;
    }
    Ok(id)
}

fn flush(process: &Process, id: u32) -> Result<()> {
    let sinks = lock(&process.sinks);
    let sink = sinks.get(&id).ok_or_else(|| failed("the stream has no file"))?;
    sink.drain(process.card, process.id)?;
    // SAFETY: the file is open until the stream is destroyed.
    if unsafe { libc::fflush(sink.out) } != 0 {
        return Err(failed("the file cannot be flushed"));
    }
    Ok(())
}

fn close(process: &Process, id: u32) -> Result<()> {
    flush(process, id)?;
    lock(&process.sinks).remove(&id);
    world(|world| world.destroy_stream(process.card, process.id, id))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_msg_stream_create(
    process: *mut flexio_process,
    stream_fattr: *mut flexio_msg_stream_attr_t,
    file: *mut FILE,
    ppthread: *mut pthread_t,
    stream: *mut *mut flexio_msg_stream,
) -> flexio_status {
    status("flexio_msg_stream_create", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or valid as the interface asks.
        let (stream, id) = unsafe { (out(stream, "stream")?, open(&process, stream_fattr, file, ppthread)?) };
        stream.write(handle::publish(&Arc::new(Stream { process, id })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_msg_stream_destroy(stream: *mut flexio_msg_stream) -> flexio_status {
    status("flexio_msg_stream_destroy", || {
        let object = handle::get::<Stream>(stream)?;
        close(&object.process, object.id)?;
        handle::retire::<Stream>(stream)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_msg_stream_flush(stream: *mut flexio_msg_stream) -> flexio_status {
    status("flexio_msg_stream_flush", || {
        let stream = handle::get::<Stream>(stream)?;
        flush(&stream.process, stream.id)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_msg_stream_get_id(stream: *mut flexio_msg_stream) -> c_int {
    value("flexio_msg_stream_get_id", -1, || Ok(handle::get::<Stream>(stream)?.id as c_int))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_msg_stream_level_set(
    stream: *mut flexio_msg_stream,
    level: flexio_msg_dev_level,
) -> flexio_status {
    status("flexio_msg_stream_level_set", || {
        let stream = handle::get::<Stream>(stream)?;
        if stream.id == FLEXIO_MSG_DEV_DEFAULT_STREAM_ID {
            return Err(failed("the level of the default stream cannot be changed"));
        }
        if u32::from(level) == FLEXIO_MSG_DEV_ALWAYS_PRINT || u32::from(level) > FLEXIO_MSG_DEV_DEBUG {
            return Err(failed(format!("level {level} cannot be set: 0 and 2 to {FLEXIO_MSG_DEV_DEBUG} can")));
        }
        world(|world| world.set_stream_level(stream.process.card, stream.process.id, stream.id, level))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_log_dev_init(
    process: *mut flexio_process,
    log_fattr: *mut flexio_msg_stream_attr_t,
    file: *mut FILE,
    ppthread: *mut pthread_t,
) -> flexio_status {
    status("flexio_log_dev_init", || {
        let process = handle::get::<Process>(process)?;
        let mut log = lock(&process.log);
        if log.is_some() {
            return Err(failed("the log of the process is open already"));
        }
        // SAFETY: null, or valid as the interface asks.
        *log = Some(unsafe { open(&process, log_fattr, file, ppthread) }?);
        Ok(())
    })
}

fn the_log(process: &Process) -> Result<u32> {
    lock(&process.log).ok_or_else(|| failed("the log of the process is not open"))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_log_dev_flush(process: *mut flexio_process) -> flexio_status {
    status("flexio_log_dev_flush", || {
        let process = handle::get::<Process>(process)?;
        flush(&process, the_log(&process)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_log_dev_destroy(process: *mut flexio_process) -> flexio_status {
    status("flexio_log_dev_destroy", || {
        let process = handle::get::<Process>(process)?;
        close(&process, the_log(&process)?)?;
        *lock(&process.log) = None;
        Ok::<_, Failure>(())
    })
}
