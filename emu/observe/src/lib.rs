//! Observation of an emulated machine as files that other tools read: a timeline ([`trace`]), the state of processes
//! and threads ([`state`]), core dumps ([`core_dump`]). [`Files`] writes those that are written while the machine runs,
//! each of them whole or not at all ([`new_file`]). [`gdb`] serves a debugger.
//!
//! The machine says what happened ([`emu_machine::World::start_recording`], [`emu_machine::World::observe`]); this
//! crate turns it into formats, and nothing here changes a run, unless somebody at a debugger does.

pub mod core_dump;
mod files;
pub mod gdb;
pub mod new_file;
pub mod state;
pub mod trace;

pub use files::{Files, Written};
