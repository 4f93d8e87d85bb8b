//! Providers by name.

// Passing foreign function tables on is the one unsafe act of this crate.
#![allow(unsafe_code)]

use emu_machine::{Config, CostModel, LinkConfig, MachineError};
use flexio::{Provider, Relax};

/// Name of the cost model behind every emulated time.
pub const MODEL: &str = CostModel::NAME;

/// Waiting beside the emulator: virtual time passes only here.
#[derive(Debug)]
struct EmulatedRelax;

impl Relax for EmulatedRelax {
    fn relax(&self) {
        emu_libibverbs::relax();
    }

    fn now_ps(&self) -> u64 {
        emu_machine::with_world(|world| world.now_ps()).unwrap_or(0)
    }

    fn is_virtual(&self) -> bool {
        true
    }
}

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
        Provider::from_tables(emu_libflexio::api(), emu_libibverbs::api(), emu_libdoca::api(), Box::new(EmulatedRelax))
    })
}

/// The default machine with losses on the link.
#[must_use]
pub fn config(loss_ppm: u32, seed: u64) -> Config {
    Config { link: LinkConfig { drop_ppm: loss_ppm, seed, ..LinkConfig::default() }, ..Config::default() }
}
