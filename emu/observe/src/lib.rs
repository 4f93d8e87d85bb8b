//! Observation of an emulated machine as files that other tools read: a timeline ([`trace`]), the state of processes
//! and threads ([`state`]), core dumps ([`core_dump`]). [`Files`] writes those that are written while the machine runs,
//! each of them whole or not at all ([`new_file`]).
//!
//! The machine says what happened ([`emu_machine::World::start_recording`], [`emu_machine::World::observe`]); this crate
//! turns it into formats, and nothing here changes a run.

pub mod core_dump;
mod files;
pub mod new_file;
pub mod state;
pub mod trace;

pub use files::{Files, Written};
