//! Emulated provider: `flexio`'s function tables over an emulated machine.
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
use std::time::Duration;

use emu_machine::{Config, CostModel, LinkConfig, Machine, MachineError, Wiring, World};
use flexio::{CardKind, EmulatorClock, Provider, Relax};

/// Name of the cost model behind every emulated time.
pub const MODEL: &str = CostModel::NAME;

/// An emulated machine, and the tables by which the host library drives its cards.
#[derive(Debug)]
pub struct Emulated {
    /// The provider. The machine follows it and its objects to every thread that uses them.
    pub provider: Provider,
    /// The machine, to inspect and to let time pass; see [`Machine::with`].
    pub machine: Machine,
}

impl Emulated {
    /// A new machine in virtual time 0. On the calling thread it is also the one that [`emu_machine::with_world`]
    /// finds, until the next one is made.
    ///
    /// # Errors
    /// A configuration the machine refuses.
    pub fn new(config: Config) -> Result<Self, MachineError> {
        let machine = Machine::new(config)?;
        machine.attach();
        let provider = provider_of(machine.clone());
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

/// Two emulated cards back to back (or as many as `config` says), new, in virtual time 0. The machine follows the
/// provider and its objects to every thread that uses them. On the calling thread it is also the one that
/// [`emu_machine::with_world`] finds, until the next call.
///
/// # Errors
/// A configuration the machine refuses.
pub fn emulated(config: Config) -> Result<Provider, MachineError> {
    Ok(Emulated::new(config)?.provider)
}

/// The cards that the variable `FLEXCAST_MACHINE` describes, as programs have them by the emulator's libraries: one
/// machine for all threads of the process, joined to those of other processes where the description says so, or the
/// cards of another process. Without the variable it is the default machine. It is made, and a description that is no
/// good refused, at the first call.
#[must_use]
pub fn shared() -> Provider {
    let is_virtual = !emu_libibverbs::is_bridged();
    let clock = EmulatorClock::new(emu_libibverbs::relax, emu_libibverbs::now_ps, is_virtual);
    // SAFETY: the emulator's tables implement the C functions of their names over the process's machine, for any
    // thread at any time, as its libraries do.
    unsafe { Provider::from_tables(emu_libflexio::api(), emu_libibverbs::api(), emu_libdoca::api(), Box::new(clock)) }
}

fn provider_of(machine: Machine) -> Provider {
    let (relaxed, timed) = (machine.clone(), machine.clone());
    let relax = move || relaxed.with(World::relax);
    let now_ps = move || timed.with(|world| world.now_ps());
    let clock = EmulatorClock::new(relax, now_ps, true);
    let relax = Box::new(Clock { clock, machine });
    // SAFETY: the emulator's tables implement the C functions of their names over the calling thread's machine, one
    // call at a time. That is the provider's machine on every thread, as the provider enters it for each call.
    unsafe { Provider::from_tables(emu_libflexio::api(), emu_libibverbs::api(), emu_libdoca::api(), relax) }
}

/// The clock of a machine, and the way by which calls of any thread reach it.
struct Clock<R, N> {
    clock: EmulatorClock<R, N>,
    machine: Machine,
}

impl<R: Fn() -> bool + Send + Sync, N: Fn() -> u64 + Send + Sync> Relax for Clock<R, N> {
    fn relax(&self) {
        self.clock.relax();
    }

    fn now_ps(&self) -> u64 {
        self.clock.now_ps()
    }

    fn is_virtual(&self) -> bool {
        self.clock.is_virtual()
    }

    fn clock_skew(&self) -> Duration {
        self.clock.clock_skew()
    }

    fn kind(&self) -> CardKind {
        self.clock.kind()
    }

    fn enter(&self) -> bool {
        self.machine.enter()
    }

    fn leave(&self) {
        Machine::leave();
    }
}

/// The default machine with losses on its link: `loss_ppm` frames of a million, drawn from `seed`.
#[must_use]
pub fn lossy(loss_ppm: u32, seed: u64) -> Config {
    let cable = LinkConfig { drop_ppm: loss_ppm, seed, ..LinkConfig::default() };
    Config { wiring: Wiring::Cable(cable), ..Config::default() }
}
