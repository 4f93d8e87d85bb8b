//! Observing the emulated machine of a run: timeline, state file, statistics. Nothing here changes a result.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use emu_machine::{DEFAULT_RECORDS, MachineError, with_world};
use emu_observe::gdb::{self, GdbError};
use emu_observe::new_file::{self, NewFile};
use emu_observe::state::State;
use emu_observe::trace::{Summary, Timeline};
use emu_observe::{Files, Written};
use flexio::LogDecoder;

/// What to observe.
#[derive(Clone, Debug)]
pub struct ObserveOptions {
    /// Write a timeline here.
    pub trace: Option<PathBuf>,
    /// Records of the timeline at most.
    pub trace_limit: usize,
    /// Keep the state of processes and threads here.
    pub state: Option<PathBuf>,
    /// Virtual time between two states, in microseconds.
    pub state_every_us: u64,
    /// Folder for core dumps and reports of processes that die; made if it is not there.
    pub cores: Option<PathBuf>,
    /// Serve gdb on this address.
    pub gdb: Option<String>,
    /// Longest wait for gdb to connect.
    pub gdb_wait: Duration,
}

impl Default for ObserveOptions {
    fn default() -> Self {
        ObserveOptions {
            trace: None,
            trace_limit: DEFAULT_RECORDS,
            state: None,
            state_every_us: 1000,
            cores: None,
            gdb: None,
            gdb_wait: Duration::from_secs(60),
        }
    }
}

/// Why nothing can be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The machine refused.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The timeline cannot be written.
    #[error("timeline `{}` cannot be written: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The debugger's session.
    #[error(transparent)]
    Gdb(#[from] GdbError),
    /// A file that is written while the machine runs could not be.
    #[error("{0}")]
    Files(String),
}

/// An observation of the calling thread's machine, from [`Observation::start`] to [`Observation::finish`].
#[derive(Debug)]
pub struct Observation {
    trace: Option<(PathBuf, NewFile)>,
    written: Option<Written>,
    gdb: Option<gdb::Session>,
}

/// What was observed.
#[derive(Debug)]
pub struct Seen {
    /// The timeline's file and what it holds.
    pub trace: Option<(PathBuf, Summary)>,
    /// The state at the end, with everything that was destroyed.
    pub state: State,
    /// Files written for crashes.
    pub files: Vec<PathBuf>,
}

impl Observation {
    /// Starts to observe. Files are begun now, so that a place that cannot be written is known before the run.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn start(options: &ObserveOptions) -> Result<Self, ObserveError> {
        let trace = options.trace.as_ref().map(|path| {
            let file = NewFile::create(path).map_err(|source| ObserveError::Trace { path: path.clone(), source })?;
            Ok::<_, ObserveError>((path.clone(), file))
        });
        let trace = trace.transpose()?;
        if trace.is_some() {
            with_world(|world| world.start_recording(options.trace_limit))?;
        }
        let mut written = None;
        if let Some(folder) = &options.cores {
            new_file::attempt_folder(folder).map_err(|error| {
                ObserveError::Files(format!("folder `{}` cannot take core dumps: {error}", folder.display()))
            })?;
        }
        if options.state.is_some() || options.cores.is_some() {
            let files = Files::new(options.state.clone(), options.cores.clone());
            written = Some(files.written());
            let every_us = if options.state.is_some() { options.state_every_us } else { u64::MAX };
            let period_ps = every_us.saturating_mul(1_000_000);
            with_world(|world| {
                world.observe(period_ps, Box::new(files));
                world.publish_state();
            })?;
        }
        let mut observation = Observation { trace, written, gdb: None };
        observation.check()?;
        observation.gdb = options.gdb.as_ref().map(|address| gdb::serve(address, options.gdb_wait)).transpose()?;
        Ok(observation)
    }

    fn check(&self) -> Result<(), ObserveError> {
        match self.written.as_ref().and_then(Written::failure) {
            Some(failure) => Err(ObserveError::Files(failure)),
            None => Ok(()),
        }
    }

    /// Stops observing and writes what was observed; `logs` decodes messages of the firmware.
    ///
    /// # Errors
    /// A file that could not be written, now or before.
    pub fn finish(mut self, logs: Option<&LogDecoder>) -> Result<Seen, ObserveError> {
        let (recording, snapshot) = with_world(|world| {
            world.publish_state();
            world.take_observer();
            (world.take_recording(), world.snapshot())
        })?;
        let mut trace = None;
        if let (Some((path, mut file)), Some(recording)) = (self.trace.take(), recording) {
            let text = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes);
                let line = text.trim_end();
                logs.map_or_else(|| line.to_owned(), |logs| logs.line(line))
            };
            let timeline = Timeline::new(&recording, &text);
            let written = timeline.write(&mut file).and_then(|()| file.finish());
            written.map_err(|source| ObserveError::Trace { path: path.clone(), source })?;
            trace = Some((path, timeline.summary().clone()));
        }
        self.check()?;
        if let Some(session) = &self.gdb {
            session.finish()?;
        }
        let files = self.written.as_ref().map(Written::files).unwrap_or_default();
        Ok(Seen { trace, state: State::new(&snapshot), files })
    }
}

/// A timeline in a few lines: what is in it, and how to open it.
#[must_use]
pub fn trace_text(path: &Path, summary: &Summary) -> String {
    let span_us = (summary.last_ps - summary.first_ps) as f64 / 1e6;
    let mut text = format!("{}: {span_us:.3} us of virtual time (emulated)\n", path.display());
    for (kind, count) in &summary.counts {
        let _ = writeln!(text, "  {count:>10}  {kind}");
    }
    if summary.left_out > 0 {
        let _ = writeln!(text, "  {:>10}  later records left out (--trace-limit)", summary.left_out);
    }
    text.push_str("open it with Perfetto: https://ui.perfetto.dev, \"Open trace file\"");
    text
}
