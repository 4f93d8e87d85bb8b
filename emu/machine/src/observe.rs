//! Observers of the machine that change nothing: recorder, snapshots, diagnoses, race detector.

pub(crate) mod diagnosis;
pub(crate) mod observer;
pub(crate) mod race;
pub(crate) mod record;
pub(crate) mod sample;
pub(crate) mod snapshot;
pub(crate) mod watch;
