//! Emulated provider: `flexio`'s function tables over an emulated machine of the calling thread.
//!
//! Programs and tests in Rust depend on this crate to run the host library against emulated cards in their own process:
//!
//! ```
//! let provider = emu_provider::emulated(emu_machine::Config::default())?;
//! assert_eq!(provider.devices()?.len(), 2, "two cards, back to back");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Passing foreign function tables on is the one unsafe act of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::BufWriter;

use emu_machine::{Config, CostModel, LinkConfig, MachineError, Wiring};
use flexio::{EmulatorClock, Provider};

/// Name of the cost model behind every emulated time.
pub const MODEL: &str = CostModel::NAME;

/// Two emulated cards back to back, new, in virtual time 0, for the calling thread. Objects made through an earlier call
/// on this thread must be gone: their machine is.
///
/// # Errors
/// A configuration the machine refuses.
pub fn emulated(config: Config) -> Result<Provider, MachineError> {
    emu_machine::configure(config)?;
    // SAFETY: the emulator's tables implement the C functions of their names over one machine per thread; the provider is
    // used on this thread, since its objects are not `Send`.
    Ok(unsafe {
        Provider::from_tables(
            emu_libflexio::api(),
            emu_libibverbs::api(),
            emu_libdoca::api(),
            Box::new(EmulatorClock::new(emu_libibverbs::relax, emu_libibverbs::now_ps, true)),
        )
    })
}

/// Writes the frames of the calling thread's emulated cards to a pcapng file, from now on.
///
/// # Errors
/// The file cannot be written.
pub fn start_capture(file: File) -> Result<(), MachineError> {
    emu_machine::with_world(|world| world.start_capture(Box::new(BufWriter::new(file))))?
}

/// Ends the capture; the number of frames in it.
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
