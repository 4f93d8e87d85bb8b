//! Receivers of what happens to the machine.

use super::diagnosis::Diagnosis;
use super::race::Race;
use super::snapshot::Snapshot;
use crate::dpa::crash::CrashRecord;
use crate::dpa::process::Process;

/// Is notified of what happens to the machine. Called on the thread that drives it; virtual time stands still
/// meanwhile.
pub trait Observer: Send {
    /// The state: once in each period that was asked for, when a process has ended, a race been found or a
    /// program on the card been found to be stuck, and before a
    /// process goes.
    fn state(&mut self, snapshot: &Snapshot);

    /// A process has died: `thread` of the record faulted, nothing has been stopped or freed yet.
    fn crashed(&mut self, card: usize, process: &Process, record: &CrashRecord);
}

/// Is notified at once of what nobody may miss, whether or not the host ever asks. Called on the thread that drives the
/// machine; virtual time stands still meanwhile.
pub trait FaultSink: Send {
    /// A process has died; `record` says of what, and its status says so already.
    fn died(&mut self, card: usize, process: &Process, record: &CrashRecord);

    /// A program on the card is stuck, or is about to be. Each queue and each thread is reported once for one reason.
    fn diagnosed(&mut self, diagnosis: &Diagnosis);

    /// Races have been found: those of which nothing like them has been reported before, and how many there have been
    /// in all.
    fn raced(&mut self, new: &[Race], total: u64);
}
