//! Files that are written while the machine runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emu_machine::{CrashRecord, Observer, Process, Snapshot};

use crate::state::{State, card_name};
use crate::{core_dump, new_file};

/// Writes the state file, over and over, and a core dump and a report of each process that dies.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Where the state goes.
    pub state: Option<PathBuf>,
    /// Folder for core dumps and crash reports: `<card>.<process>.core` and `.crash`.
    pub cores: Option<PathBuf>,
    written: Written,
}

/// What became of the files; shared with the [`Files`] that the machine owns.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<Mutex<Outcome>>);

#[derive(Debug, Default)]
struct Outcome {
    files: Vec<PathBuf>,
    failure: Option<String>,
}

impl Written {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        // Plain data, whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files written for crashes so far.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.outcome().files.clone()
    }

    /// The first file that could not be written, and why.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.outcome().failure.clone()
    }

    fn note<E: std::fmt::Display>(&self, result: Result<Option<PathBuf>, E>) {
        let mut outcome = self.outcome();
        match result {
            Ok(path) => outcome.files.extend(path),
            Err(error) => drop(outcome.failure.get_or_insert_with(|| error.to_string())),
        }
    }
}

impl Files {
    /// A writer of the state to `state` and of core dumps into the folder `cores`.
    #[must_use]
    pub fn new(state: Option<PathBuf>, cores: Option<PathBuf>) -> Self {
        Files { state, cores, ..Files::default() }
    }

    /// What will have become of the files.
    #[must_use]
    pub fn written(&self) -> Written {
        self.written.clone()
    }
}

impl Observer for Files {
    fn state(&mut self, snapshot: &Snapshot) {
        if let Some(path) = &self.state {
            self.written.note(State::new(snapshot).write(path).map(|()| None));
        }
    }

    fn crashed(&mut self, card: usize, process: &Process, record: &CrashRecord) {
        let Some(folder) = &self.cores else { return };
        let name = card_name(card);
        let path = |kind| folder.join(core_dump::file_name(&name, process.id, kind));
        let failed = |path: &Path, error: std::io::Error| format!("`{}` cannot be written: {error}", path.display());
        let (core, report) = (path("core"), path("crash"));
        let dumped = core_dump::write_file(process, Some(record), &core);
        self.written.note(dumped.map_err(|error| failed(&core, error)).map(|()| Some(core.clone())));
        let reported = new_file::write(&report, record.to_string());
        self.written.note(reported.map_err(|error| failed(&report, error)).map(|()| Some(report.clone())));
    }
}
