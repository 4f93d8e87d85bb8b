//! Observers of the machine that change nothing: recorder, snapshots, race detector.

pub(crate) mod observer;
pub(crate) mod race;
pub(crate) mod record;
pub(crate) mod snapshot;
pub(crate) mod watch;
