//! Description of an emulated machine: one form for machine files, command line options and tests.
//!
//! [`Machine`] says in the user's words what a machine is: cards, what joins them, faults, memory model, timing model.
//! A machine file is that in TOML; options of the command line set its fields, over those of a file where one is given;
//! tests build it as a struct. [`Machine::config`] turns it into the [`emu_machine::Config`] of a machine, and
//! [`ConfigError`] says what cannot be.

mod bridge;
mod error;
mod job;
mod machine;
mod memory;
mod network;
mod share;
mod station;
mod timing;

pub use bridge::{BridgeTable, MOST_TIMEOUT_MS, PeerTable};
pub use emu_fabric::Priorities;
pub use emu_machine::DrivenFrom;
pub use error::ConfigError;
pub use job::JobTable;
pub use machine::Machine;
pub use memory::{Memory, MemoryTable};
pub use network::{LinkTable, NetworkTable};
pub use share::{AttachTable, MOST_CLIENTS, ShareTable};
pub use station::{GeneratorTable, ReflectorTable, ReplayTable, TapTable};
pub use timing::{Timing, TimingError};
