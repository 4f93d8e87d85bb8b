//! Runs of the throughput harness and of the published kernels, with the machine's own view of them.

use emu_machine::{Config, with_world};
use emu_provider::{MODEL, emulated, lossy};
use flexcast_lab::reference;
use flexcast_lab::tput::TputError;
use flexcast_lab::tput::plan::{Params, Plan};
use flexcast_lab::tput::report::Report;
use flexcast_lab::tput::run::{Cards, ImageFile, made_up_bytes, names, run};

/// A run and what the emulated machine knows of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The report, its wall time set to 0: that is the host's, not the run's.
    pub report: Report,
    /// Hash over all events of the machine.
    pub trace_hash: u64,
    /// How many events those were.
    pub trace_events: u64,
    /// Virtual time at the end, in picoseconds.
    pub end_ps: u64,
}

/// Broadcasts `bytes` made-up bytes from card to card of a new machine.
///
/// # Errors
/// Those of the harness.
///
/// # Panics
/// The emulated machine cannot be made.
pub fn tput(params: Params, bytes: u64) -> Result<Outcome, TputError> {
    tput_elf("allgather", crate::image_bytes("allgather"), params, bytes)
}

/// [`tput`] with an image that no file has.
///
/// # Errors
/// Those of the harness.
///
/// # Panics
/// The emulated machine cannot be made.
pub fn tput_elf(name: &str, elf: Vec<u8>, params: Params, bytes: u64) -> Result<Outcome, TputError> {
    tput_with(lossy(params.loss_ppm, params.seed), name, elf, params, bytes)
}

/// [`tput`] on a machine of one's own; its losses are its own, too.
///
/// # Errors
/// Those of the harness.
///
/// # Panics
/// The emulated machine cannot be made.
pub fn tput_on(machine: Config, params: Params, bytes: u64) -> Result<Outcome, TputError> {
    tput_with(machine, "allgather", crate::image_bytes("allgather"), params, bytes)
}

fn tput_with(machine: Config, name: &str, elf: Vec<u8>, params: Params, bytes: u64) -> Result<Outcome, TputError> {
    let plan = Plan::new(params, bytes)?;
    let provider = emulated(machine).expect("a valid configuration");
    let names = names(&provider, None, None)?;
    let image = ImageFile { name: name.to_owned(), elf };
    let source = made_up_bytes(bytes, params.seed).expect("memory");
    let mut report = run(&provider, &names, &image, &plan, &source, MODEL, &mut |_| ())?;
    report.wall_s = 0.0;
    let (trace_hash, trace_events, end_ps) =
        with_world(|world| (world.trace_hash(), world.trace_events(), world.now_ps())).expect("this thread's machine");
    Ok(Outcome { report, trace_hash, trace_events, end_ps })
}

/// Runs the published kernels on a machine of one's own, with an image that may have been changed.
///
/// # Errors
/// Those of the harness.
///
/// # Panics
/// The emulated machine cannot be made.
pub fn reference(
    machine: Config,
    elf: Vec<u8>,
    params: reference::Params,
    bytes: u64,
) -> Result<reference::Report, TputError> {
    let plan = reference::Plan::new(params, bytes)?;
    let provider = emulated(machine).expect("a valid configuration");
    let cards = Cards::open(&provider, None, None)?;
    let image = ImageFile { name: "reference".to_owned(), elf };
    let source = made_up_bytes(bytes, params.seed).expect("memory");
    let report = reference::run(&cards, &image, &plan, &source, MODEL)?;
    Ok(reference::Report { wall_s: 0.0, ..report })
}
