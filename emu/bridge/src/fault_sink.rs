//! Deaths of DPA processes, races, and what else is wrong, reported to the user of a program that cannot call Rust.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use emu_machine::nic::Counters;
use emu_machine::{CrashRecord, Diagnosis, FaultSink, Process, Race, World};

/// The environment variable that names a file for races: each is appended when it is found.
pub const RACES_VARIABLE: &str = "FLEXCAST_RACES";
/// Most races written; further ones are counted.
const MOST_WRITTEN: usize = 16;

/// Races found in the shared machine, repetitions included.
static RACES: AtomicU64 = AtomicU64::new(0);

/// Races that the shared machine has found, repetitions included; 0 if it does not detect them.
#[must_use]
pub fn races() -> u64 {
    RACES.load(Ordering::Relaxed)
}

/// Writes a line on stderr. That nobody can read it is no reason to end the program.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "flexcast: {text}");
}

/// Reports how many races there have been, if there were any: for the end of the program.
pub fn report_races() {
    if races() > 0 {
        say(format_args!("{} races for memory in all, repetitions included", races()));
    }
}

/// What a card has dropped for want of a receive queue or a receive, in a sentence; nothing if it has dropped nothing.
fn drops(card: usize, counters: &Counters) -> Option<String> {
    let reasons = [
        (counters.steering_drops, "for which no steering rule led to a receive queue (steering_drops)"),
        (counters.rnr_drops, "for which no receive was posted (rnr_drops)"),
    ];
    let reasons = reasons.into_iter().filter(|(count, _)| *count > 0);
    let text: Vec<String> = reasons.map(|(count, why)| format!("{count} {why}")).collect();
    (!text.is_empty()).then(|| format!("mlx5_{card} has dropped frames or messages: {}", text.join(", ")))
}

/// Reports what the cards have dropped, if it is anything: for the end of the program.
pub(crate) fn report_drops(world: &World) {
    for card in world.snapshot().cards {
        if let Some(text) = drops(card.index, &card.counters) {
            say(text);
        }
    }
}

/// Writes on stderr.
#[derive(Debug)]
pub(crate) struct Stderr {
    file: Option<File>,
    written: usize,
}

impl Stderr {
    /// One that writes races to the file of [`RACES_VARIABLE`], too. A file that cannot be written is reported and left
    /// alone: it is no reason to refuse a machine.
    pub(crate) fn new(detect_races: bool) -> Self {
        let path = std::env::var_os(RACES_VARIABLE).filter(|path| !path.is_empty());
        if path.is_some() && !detect_races {
            say(format_args!(
                "{RACES_VARIABLE}: the machine detects no races: set `detect_races = true` in the machine file"
            ));
        }
        let path = path.filter(|_| detect_races);
        let file = path.and_then(|path| {
            let opened = OpenOptions::new().create(true).append(true).open(&path);
            opened
                .inspect_err(|error| {
                    say(format_args!("{RACES_VARIABLE}: {} cannot be written: {error}", path.display()));
                })
                .ok()
        });
        Self { file, written: 0 }
    }
}

impl FaultSink for Stderr {
    fn died(&mut self, card: usize, process: &Process, record: &CrashRecord) {
        let reason = process.stopped().unwrap_or_else(|| record.summary());
        let name = if process.label.is_empty() { String::new() } else { format!(" ({})", process.label) };
        say(format_args!("DPA process {}{name} of mlx5_{card} has died: {reason}", process.id));
    }

    fn diagnosed(&mut self, diagnosis: &Diagnosis) {
        say(diagnosis);
    }

    fn raced(&mut self, new: &[Race], total: u64) {
        RACES.store(total, Ordering::Relaxed);
        for race in new {
            if self.written == MOST_WRITTEN {
                say("further races are counted and not reported");
            }
            self.written += 1;
            if self.written > MOST_WRITTEN {
                continue;
            }
            say(format_args!("race: {race}"));
            if let Some(file) = &mut self.file
                && let Err(error) = writeln!(file, "{race}")
            {
                say(format_args!("{RACES_VARIABLE}: the file cannot be written: {error}"));
                self.file = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use emu_machine::{Access, Agent, RaceKind};

    use super::*;

    #[test]
    fn drops_are_counted_by_reason() {
        assert_eq!(drops(0, &Counters { rx_packets: 9, ..Counters::default() }), None);
        let text = drops(1, &Counters { steering_drops: 12, rnr_drops: 3, ..Counters::default() }).unwrap_or_default();
        for part in ["mlx5_1", "12 for which no steering rule", "3 for which no receive"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn so_many_races_are_written_and_all_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("races");
        let mut fault_sink = Stderr { file: Some(File::create(&path).expect("a file")), written: 0 };
        let space = emu_machine::nic::Space::Host;
        let access = |agent| Access { agent, action: "wrote", card: 0, space, addr: 64, len: 8, at_ps: 5 };
        let race = Race { kind: RaceKind::TwoOwners, first: access(Agent::Host), second: access(Agent::Unknown) };
        let most = MOST_WRITTEN as u64;
        for total in 1..=most + 4 {
            fault_sink.raced(std::slice::from_ref(&race), total);
        }
        fault_sink.raced(&[], most + 9);
        assert_eq!(races(), most + 9);
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(text.matches("two owners wrote one line").count(), MOST_WRITTEN);
    }
}
