//! An emulated BlueField-3 installation: cards with a data-path accelerator (16 cores of 16 hardware threads that execute
//! a real RISC-V ELF), a network card, and the cable or the network of switches that joins them.
//!
//! - [`World`] is everything: control calls, [`World::step`] and virtual time. One event queue, no wall clock, one seed.
//! - [`configure`] and [`with_world`] keep one world per thread of the host for the C ABIs, which have no handle for it; a [`Machine`] takes it to
//!   other threads.
//! - [`World::open_outside`] ends a port outside the machine; a [`Driver`] joins it to something and keeps the clock.
//!
//! - [`MemoryModel::Weak`] delays and reorders stores as far as fences allow it, and [`Config::detect_races`] watches who owns
//!   which memory when: the two tests of a firmware's ordering that hardware does not offer.
//!
//! Times depend on [`CostModel`], whose name stands beside every figure; instruction counts do not.

mod bus;
mod bus_watched;
mod card;
mod config;
mod control;
mod cores;
mod costs;
mod crash;
mod current;
mod debug;
mod error;
mod external;
mod heap;
mod host_memory;
mod images;
pub mod layout;
mod memory;
mod model;
mod numbering;
mod observe;
mod probe;
mod process;
mod queue;
mod race;
mod ready;
mod record;
mod regions;
mod rtos;
mod schedule;
mod snapshot;
mod stall;
mod thread;
pub mod time;
mod timed;
mod trace;
mod watch;
mod weak;
mod wiring;
mod world;

pub use card::{Card, RPC_EU, USER_EUS};
pub use config::{Config, CostModel, DrivenFrom, LinkConfig, MemoryModel};
pub use crash::CrashRecord;
pub use current::{
    Driver, EventHook, Machine, Maker, Shared, configure, is_driven, make_shared_with, on_events, relax, run_out,
    will_sleep, with_world,
};
pub use debug::{Action, DebugStop, Debugger, Resume, Stopped};
pub use emu_fabric as fabric;
pub use emu_fabric::PortCounters;
pub use emu_hart::Isa;
pub use emu_nic as nic;
pub use emu_timing as timing;
pub use error::MachineError;
pub use heap::HeapInfo;
pub use host_memory::HostMemory;
pub use numbering::{address, card_with_gid, card_with_mac};
pub use probe::{ANNOUNCED, Herald, Observer};
pub use process::{Process, ProcessStatus, Stream};
pub use race::{Access, Agent, Race, RaceKind};
pub use record::{DEFAULT_RECORDS, Ending, Record, Recording, ThreadIdentity, What};
pub use regions::{Region, RegionKind};
pub use snapshot::{CardSnapshot, Executed, ProcessSnapshot, RaceSnapshot, Snapshot, ThreadStatistics, thread_name};
pub use thread::{Thread, ThreadKind, ThreadState, Threads};
pub use wiring::{MAX_CARDS, NetworkConfig, Wiring};
pub use world::World;
