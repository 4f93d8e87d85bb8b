//! Core dumps, and what environment variables ask to be written about a program that knows nothing of it:
//!
//! - `FLEXCAST_STATE=FILE`: the state of processes and threads, for `flexcast ps` and `flexcast stats`; anew in each
//!   `FLEXCAST_STATE_EVERY` microseconds of virtual time (default 1000);
//! - `FLEXCAST_CORE_DIR=DIR`: a core dump and a report of each process that dies, in a folder that is made if it is
//!   not there;
//! - `FLEXCAST_TRACE=FILE`: a timeline, written whenever a process is destroyed;
//! - `FLEXCAST_GDB=ADDRESS`: a server for gdb-multiarch, for which the first event handler waits up to
//!   `FLEXCAST_GDB_WAIT` seconds (default 60).
//!
//! A place that cannot be written is an error of the first call that makes a process; what fails later, such as on a
//! full disk, is a line on stderr.

use core::ffi::c_char;
use std::env::{self, VarError};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use emu_libibverbs::handle;
use emu_machine::{CrashRecord, DEFAULT_RECORDS, MachineError, Observer, Snapshot};
use emu_observe::gdb;
use emu_observe::new_file::{self, NewFile};
use emu_observe::trace::Timeline;
use emu_observe::{Files, Written, core_dump};
use flexio_sys::*;

use crate::process::{Process, world};
use crate::status::{Result, failed, status, text};

/// Base of a dump's name if the caller gives none.
pub(crate) const DEFAULT_NAME: &str = "flexio_dev";

const STATE: &str = "FLEXCAST_STATE";
const STATE_EVERY: &str = "FLEXCAST_STATE_EVERY";
const CORE_DIR: &str = "FLEXCAST_CORE_DIR";
const TRACE: &str = "FLEXCAST_TRACE";
/// Longest wait for gdb, unless the environment says otherwise.
const GDB_WAIT: Duration = Duration::from_secs(60);

fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Writes files, and a line on stderr about the first that cannot be written.
struct Reported {
    files: Files,
    written: Written,
    is_reported: bool,
}

impl Reported {
    fn new(files: Files) -> Self {
        let written = files.written();
        Self { files, written, is_reported: false }
    }

    fn report(&mut self) {
        if !self.is_reported
            && let Some(failure) = self.written.failure()
        {
            emu_bridge::say(failure);
            self.is_reported = true;
        }
    }
}

impl Observer for Reported {
    fn state(&mut self, snapshot: &Snapshot) {
        self.files.state(snapshot);
        self.report();
    }

    fn crashed(&mut self, card: usize, process: &emu_machine::Process, record: &CrashRecord) {
        self.files.crashed(card, process, record);
        self.report();
    }
}

/// A whole number that a variable gives, if it is set.
fn number(name: &str, what: &str, least: u64) -> Result<Option<u64>> {
    match env::var(name) {
        Err(VarError::NotPresent) => Ok(None),
        Ok(text) => match text.parse() {
            Ok(number) if number >= least => Ok(Some(number)),
            _ => Err(failed(format!("{name} is `{text}`: {what} from {least} is possible"))),
        },
        Err(VarError::NotUnicode(_)) => Err(failed(format!("{name} is not {what}"))),
    }
}

/// Serves gdb as the environment asks; once for the process.
fn serve_gdb() -> Result<()> {
    static SERVED: Mutex<bool> = Mutex::new(false);
    let Some(address) = env::var("FLEXCAST_GDB").ok().filter(|address| !address.is_empty()) else { return Ok(()) };
    let mut served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    if *served {
        return Ok(());
    }
    let seconds = number("FLEXCAST_GDB_WAIT", "a number of seconds", 0)?;
    // The machine is made by its first use.
    world(|_| Ok::<_, MachineError>(()))?;
    gdb::serve(&address, seconds.map_or(GDB_WAIT, Duration::from_secs))
        .map_err(|error| failed(format!("FLEXCAST_GDB is `{address}`: {error}")))?;
    *served = true;
    Ok(())
}

/// Starts to observe as the environment asks, unless somebody observes already. Called before a process of a machine is
/// made.
///
/// # Errors
/// A place that it names cannot be written.
pub fn attach() -> Result<()> {
    serve_gdb()?;
    let (state, cores, trace) = (path(STATE), path(CORE_DIR), path(TRACE));
    if state.is_none() && cores.is_none() && trace.is_none() {
        return Ok(());
    }
    let every_us = number(STATE_EVERY, "a number of microseconds", 1)?.unwrap_or(1000);
    for (name, file) in [(STATE, &state), (TRACE, &trace)] {
        if let Some(file) = file {
            new_file::attempt(file)
                .map_err(|error| failed(format!("{name}: `{}` cannot be written: {error}", file.display())))?;
        }
    }
    if let Some(folder) = &cores {
        new_file::attempt_folder(folder).map_err(|error| {
            failed(format!("{CORE_DIR}: folder `{}` cannot take core dumps: {error}", folder.display()))
        })?;
    }
    world(|world| {
        if (state.is_some() || cores.is_some()) && !world.is_observed() {
            let every_us = if state.is_some() { every_us } else { u64::MAX };
            world.observe(every_us.saturating_mul(1_000_000), Box::new(Reported::new(Files::new(state, cores))));
        }
        if trace.is_some() && !world.is_recording() {
            world.start_recording(DEFAULT_RECORDS);
        }
        Ok::<_, MachineError>(())
    })
}

/// Writes what the environment asks to be written when a process goes.
///
/// # Errors
/// There is no machine.
pub fn before_destroy() -> Result<()> {
    let Some(path) = path(TRACE) else { return Ok(()) };
    let recording = world(|world| Ok::<_, MachineError>(world.recording()))?;
    let Some(recording) = recording else { return Ok(()) };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let timeline = Timeline::new(&recording, &text);
    NewFile::create(&path)
        .and_then(|mut file| timeline.write(&mut file).and_then(|()| file.finish()))
        .map_err(|error| failed(format!("{TRACE}: `{}` cannot be written: {error}", path.display())))
}

/// The base of a file's name: as given, or the default for null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn base_name<'a>(outfile: *const c_char) -> Result<&'a str> {
    if outfile.is_null() {
        return Ok(DEFAULT_NAME);
    }
    // SAFETY: not null; otherwise as this function's.
    unsafe { text(outfile, "outfile") }
}

/// Writes a core dump to `<outfile>.<process, three digits>.core`; the name defaults to `flexio_dev`. The process may
/// be alive.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_coredump_create(
    process: *mut flexio_process,
    outfile: *const c_char,
) -> flexio_status {
    status("flexio_coredump_create", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or a terminated string as the interface asks.
        let name = unsafe { base_name(outfile) }?;
        let path = core_dump::file_name(name, process.id, "core");
        world(|world| {
            let process = world.card(process.card)?.process(process.id)?;
            Ok::<_, MachineError>(core_dump::write_file(process, process.crash(), &path))
        })?
        .map_err(|error| failed(format!("`{}` cannot be written: {error}", path.display())))
    })
}
