//! Emulated provider: `flexio`'s function tables over an emulated machine of the calling thread.
//!
//! Programs and tests in Rust depend on this crate to run the host library against emulated cards in their own process:
//!
//! ```
//! let cards = emu_provider::Emulated::new(emu_machine::Config::default())?;
//! assert_eq!(cards.provider.devices()?.len(), 2, "two cards, back to back");
//! assert_eq!(cards.machine.with(|world| world.now_ps()), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Passing foreign function tables on is the one unsafe act of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::BufWriter;

use emu_machine::{Config, CostModel, LinkConfig, Machine, MachineError, Wiring, World};
use flexio::{EmulatorClock, Provider};

/// Name of the cost model behind every emulated time.
pub const MODEL: &str = CostModel::NAME;

/// An emulated machine, and the tables by which the host library drives its cards.
#[derive(Debug)]
pub struct Emulated {
    /// The provider, for the calling thread, as long as it makes no other machine.
    pub provider: Provider,
    /// The machine, to look at and to let time pass; see [`Machine::with`].
    pub machine: Machine,
}

impl Emulated {
    /// A new machine in virtual time 0, for the calling thread. Objects made through an earlier one of this thread must be gone: its
    /// machine is reached by its own handle alone from now on.
    ///
    /// # Errors
    /// A configuration the machine refuses.
    pub fn new(config: Config) -> Result<Self, MachineError> {
        let machine = Machine::new(config)?;
        machine.attach();
        // SAFETY: the emulator's tables implement the C functions of their names over one machine per thread; the provider is
        // used on this thread, since its objects are not `Send`.
        let provider = unsafe {
            Provider::from_tables(
                emu_libflexio::api(),
                emu_libibverbs::api(),
                emu_libdoca::api(),
                Box::new(EmulatorClock::new(emu_libibverbs::relax, emu_libibverbs::now_ps, true)),
            )
        };
        Ok(Self { provider, machine })
    }

    /// Writes the frames of the cards to a pcapng file, from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn start_capture(&self, file: File) -> Result<(), MachineError> {
        self.machine.with(|world| world.start_capture(Box::new(BufWriter::new(file))))
    }

    /// Ends the capture; the number of frames in it.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn finish_capture(&self) -> Result<u64, MachineError> {
        self.machine.with(World::finish_capture)
    }
}

/// The provider of a new machine; see [`Emulated::new`], which gives a handle of the machine, too.
///
/// # Errors
/// A configuration the machine refuses.
pub fn emulated(config: Config) -> Result<Provider, MachineError> {
    Ok(Emulated::new(config)?.provider)
}

/// As [`Emulated::start_capture`], for the machine that the calling thread has made last.
///
/// # Errors
/// The file cannot be written.
pub fn start_capture(file: File) -> Result<(), MachineError> {
    emu_machine::with_world(|world| world.start_capture(Box::new(BufWriter::new(file))))?
}

/// As [`Emulated::finish_capture`], for the machine that the calling thread has made last.
///
/// # Errors
/// The file could not be written.
pub fn finish_capture() -> Result<u64, MachineError> {
    emu_machine::with_world(emu_machine::World::finish_capture)?
}

/// The default machine with losses on its link: `loss_ppm` frames of a million, drawn from `seed`.
#[must_use]
pub fn lossy(loss_ppm: u32, seed: u64) -> Config {
    let cable = LinkConfig { drop_ppm: loss_ppm, seed, ..LinkConfig::default() };
    Config { wiring: Wiring::Cable(cable), ..Config::default() }
}
