//! The state file: processes and threads of a running emulated machine, for `flexcast ps` and `flexcast stats`.
//!
//! Emulated cards live inside the program that uses them, so there is no device to ask: the program writes this file,
//! whole and at once, as often as it was asked to in virtual time, and the commands read it.

use std::path::{Path, PathBuf};

use emu_machine::{CardSnapshot, ProcessSnapshot, ProcessStatus, Snapshot, ThreadState, ThreadStatistics, thread_name};
use serde::{Deserialize, Serialize};

use crate::new_file;

/// The first field of every state file.
pub const FORMAT: &str = "flexcast-state";
/// Version of the fields below; a reader refuses another one.
pub const VERSION: u32 = 1;

/// A state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Cost model behind cycles and times.
    pub model: String,
    /// Virtual time in picoseconds.
    pub time_ps: u64,
    /// Cards in the order of their names.
    pub cards: Vec<Card>,
    /// Why programs on the cards are stuck, a sentence each: the first 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnoses: Vec<String>,
    /// Races for memory; absent where the machine does not detect them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub races: Option<Races>,
}

/// Races for memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Races {
    /// How many there have been, repetitions included.
    pub count: u64,
    /// The first that are unlike one another, at most 64, each in three lines: what is wrong, and both accesses.
    pub reports: Vec<String>,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Device name.
    pub name: String,
    /// Packets sent through the port.
    pub tx_packets: u64,
    /// Packets received from the port and served.
    pub rx_packets: u64,
    /// Completion queue entries written.
    pub cqes: u64,
    /// Ethernet frames received that no steering rule led to a receive queue.
    #[serde(default)]
    pub steering_drops: u64,
    /// Messages (UC, UD) and Ethernet frames received for which no receive was posted.
    #[serde(default)]
    pub rnr_drops: u64,
    /// Processes by id.
    pub processes: Vec<Process>,
}

/// One DPA process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub id: u32,
    /// `PROCESS_n`, as the vendor's tools print it.
    pub name: String,
    /// Name of the program, empty where the host gave none.
    #[serde(default)]
    pub program: String,
    /// Build id of its image; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// `running`, `crashed`, `error`, `finished` or `destroyed`.
    pub status: String,
    /// Why it crashed, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Bytes of heap in use.
    pub heap_bytes: u64,
    /// Threads by id.
    pub threads: Vec<Thread>,
    /// Threads destroyed so long ago that they are not listed.
    #[serde(default)]
    pub forgotten_threads: u64,
}

/// One DPA thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Thread id.
    pub id: u32,
    /// `EH_p_t_t`, as the vendor's tools print it; `RPC_p_t_t` for calls.
    pub name: String,
    /// Symbol of the entry function, or of the function called last.
    pub entry: String,
    /// Execution unit.
    pub eu: u32,
    /// `created`, `waiting`, `running`, `finished` or `destroyed`.
    pub state: String,
    /// Virtual time since which it is in that state, in picoseconds.
    #[serde(default)]
    pub since_ps: u64,
    /// Address of the instruction where it is, or where it stopped last.
    #[serde(default)]
    pub pc: u64,
    /// The function that holds `pc`, with the offset in it, as `worker+0x2c`; empty where the image names none.
    #[serde(default)]
    pub symbol: String,
    /// Cycles in which it was executing.
    pub cycles: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// Time in which it was executing, in nanoseconds: ticks of the time counter.
    pub time_ticks: u64,
    /// Activations or calls.
    pub executions: u64,
}

/// Why there is no state to show.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read.
    #[error("state file `{}` cannot be read: {source}; a run writes it with `--state FILE`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("`{}` is not a state file: {reason}; a run writes one with `--state FILE`", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is of another release.
    #[error("state file `{}` has version {found}, this program reads version {VERSION}; write it anew", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file cannot be written.
    #[error("state file `{}` cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Name of a card by its index, as verbs lists it.
#[must_use]
pub fn card_name(index: usize) -> String {
    format!("mlx5_{index}")
}

impl State {
    /// The state as a snapshot has it.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        State {
            format: FORMAT.to_owned(),
            version: VERSION,
            model: snapshot.model.clone(),
            time_ps: snapshot.now_ps,
            cards: snapshot.cards.iter().map(Card::new).collect(),
            diagnoses: snapshot.diagnoses.iter().map(ToString::to_string).collect(),
            races: snapshot.races.as_ref().map(|races| Races {
                count: races.count,
                reports: races.reports.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    /// Reads a state file.
    ///
    /// # Errors
    /// [`StateError`]: the file is not there, is something else, or is of another version.
    pub fn read(path: &Path) -> Result<Self, StateError> {
        let bytes = flexcast_files::bytes(path, flexcast_files::RECORD)
            .map_err(|source| StateError::Read { path: path.to_owned(), source })?;
        let bad = |reason: String| StateError::Format { path: path.to_owned(), reason };
        // The version decides whether the rest can be understood.
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if value["format"] != FORMAT {
            return Err(bad(format!("its field `format` is not \"{FORMAT}\"")));
        }
        match value["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                let found = u32::try_from(version).unwrap_or(u32::MAX);
                return Err(StateError::Version { path: path.to_owned(), found });
            }
            None => return Err(bad("it has no version".to_owned())),
        }
        serde_json::from_value(value).map_err(|error| bad(error.to_string()))
    }

    /// Writes a state file, whole or not at all: a reader never sees half of one.
    ///
    /// # Errors
    /// [`StateError::Write`].
    pub fn write(&self, path: &Path) -> Result<(), StateError> {
        let failed = |source| StateError::Write { path: path.to_owned(), source };
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        new_file::write(path, text).map_err(failed)
    }
}

impl Card {
    fn new(card: &CardSnapshot) -> Self {
        Card {
            name: card_name(card.index),
            tx_packets: card.counters.tx_packets,
            rx_packets: card.counters.rx_packets,
            cqes: card.counters.cqes,
            steering_drops: card.counters.steering_drops,
            rnr_drops: card.counters.rnr_drops,
            processes: card.processes.iter().map(Process::new).collect(),
        }
    }
}

impl Process {
    fn new(process: &ProcessSnapshot) -> Self {
        let (status, cause) = match &process.status {
            ProcessStatus::Healthy => ("running", None),
            ProcessStatus::Finished => ("finished", None),
            ProcessStatus::Crashed(record) => ("crashed", Some(record.summary())),
            ProcessStatus::UserError(code, record) => {
                ("error", Some(format!("firmware error {code:#x}; {}", record.summary())))
            }
        };
        Process {
            id: process.id,
            name: format!("PROCESS_{}", process.id),
            program: process.label.clone(),
            build_id: process.build_id.clone(),
            status: if process.destroyed && cause.is_none() { "destroyed" } else { status }.to_owned(),
            cause,
            heap_bytes: process.heap.allocated,
            threads: process.threads.iter().map(|thread| Thread::new(process.id, thread)).collect(),
            forgotten_threads: process.forgotten_threads,
        }
    }
}

impl Thread {
    fn new(process: u32, thread: &ThreadStatistics) -> Self {
        let state = match thread.state {
            _ if thread.destroyed => "destroyed",
            ThreadState::Created => "created",
            ThreadState::Waiting => "waiting",
            ThreadState::Running => "running",
            ThreadState::Finished => "finished",
        };
        Thread {
            id: thread.id,
            name: thread_name(thread.kind, process, thread.id),
            entry: thread.entry.clone(),
            eu: thread.eu,
            state: state.to_owned(),
            since_ps: thread.since_ps,
            pc: thread.pc,
            symbol: thread.symbol.as_ref().map_or_else(String::new, |(name, offset)| format!("{name}+{offset:#x}")),
            cycles: thread.cycles,
            instructions: thread.instructions,
            time_ticks: thread.ticks,
            executions: thread.executions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_kinds_and_versions_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state.json");
        assert!(matches!(State::read(&path), Err(StateError::Read { .. })));
        for (text, part) in [
            ("not json", "not a state file"),
            ("{}", "`format`"),
            (r#"{"format":"flexcast-state"}"#, "no version"),
            (r#"{"format":"flexcast-state","version":2}"#, "has version 2"),
            (r#"{"format":"flexcast-state","version":1}"#, "missing field"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = State::read(&path).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state.json");
        let state = State::new(&Snapshot {
            model: "M".to_owned(),
            now_ps: 17,
            cards: Vec::new(),
            diagnoses: Vec::new(),
            races: None,
        });
        state.write(&path).expect("written");
        assert_eq!(State::read(&path).expect("read"), state);
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 1, "nothing else is left");
        assert!(state.write(&folder.path().join("no/such/folder")).is_err());
    }
}
