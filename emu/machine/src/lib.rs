//! An emulated BlueField-3 installation: cards with a data-path accelerator (16 cores of 16 hardware threads that
//! execute a real RISC-V ELF), a network card, and the cable or the network of switches that joins them.
//!
//! - [`World`] is everything: control calls, [`World::step`] and virtual time. One event queue, no wall clock, one
//!   seed.
//! - [`configure`] and [`with_world`] keep one world per thread of the host for the C ABIs, which have no handle for
//!   it; a [`Machine`] takes it to other threads.
//! - [`World::open_outside`] ends a port outside the machine; a [`Driver`] joins it to something and keeps the clock.
//!
//! - [`MemoryModel::Weak`] delays and reorders stores as far as fences allow it, and [`Config::detect_races`] watches
//!   who owns which memory when: the two tests of a firmware's ordering that hardware does not offer.
//!
//! Imports point one way:
//!
//! - `dpa`: processes, memory and threads as state; `config`, `numbering`, `host_memory`, `host_process`;
//! - `weak`, `observe`: delayed stores; recorder, race detector, snapshots;
//! - `bus`: what a thread's loads and stores reach and cost; `timed`: cores under a timing model;
//! - `card`, `wires`: one card, and what joins several;
//! - `world`: events, the RTOS, scheduling, control calls, and everything else that needs the whole machine.
//!
//! Times depend on [`CostModel`], whose name stands with every figure; instruction counts do not.

mod bus;
mod card;
mod config;
mod current;
mod dpa;
mod error;
mod function;
mod host_memory;
mod host_process;
mod near;
mod numbering;
mod observe;
mod ranges;
pub mod time;
mod timed;
mod trace;
mod weak;
mod wires;
mod world;

pub use card::{Card, RPC_EU};
pub use config::wiring::{LinkConfig, NetworkConfig, Wiring};
pub use config::{Config, CostModel, DrivenFrom, MemoryModel};
pub use current::{
    Driver, EventHook, Machine, Maker, Shared, configure, has_own, is_driven, make_shared_with, on_events, peek, relax,
    run_out, will_sleep, with_world,
};
pub use dpa::crash::ANNOUNCED;
pub use dpa::crash::CrashRecord;
pub use dpa::heap::HeapInfo;
pub use dpa::layout;
pub use dpa::layout::USER_EUS;
pub use dpa::process::{Process, ProcessStatus, Stream};
pub use dpa::regions::{Region, RegionKind};
pub use dpa::statistics::{Executed, ThreadStatistics, thread_name};
pub use dpa::thread::{Thread, ThreadKind, ThreadState, Threads};
pub use emu_fabric as fabric;
pub use emu_fabric::PortCounters;
pub use emu_hart::Isa;
pub use emu_nic as nic;
pub use emu_timing as timing;
pub use error::MachineError;
pub use function::{ArmTraffic, Function, FunctionId};
pub use host_memory::HostMemory;
pub use host_process::HostProcess;
pub use numbering::MAX_CARDS;
pub use numbering::{address, arm_address, card_with_gid, card_with_mac, gid_table};
pub use observe::diagnosis::{Diagnosis, Gone, Lock, Symptom, Waits};
pub use observe::observer::{FaultSink, Observer};
pub use observe::race::RaceSnapshot;
pub use observe::race::{Access, Agent, Race, RaceKind};
pub use observe::record::{DEFAULT_RECORDS, Ending, Record, Recording, ThreadIdentity, What};
pub use observe::snapshot::{CardSnapshot, ProcessSnapshot, Snapshot};
pub use world::debug::{Action, DebugStop, Debugger, Resume, Stopped};
pub use world::{Station, World};
