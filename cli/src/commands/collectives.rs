//! Simulations that other commands run: each on a machine of its own.

use emu_config::Machine;
use flexcast_lab::sim::SimError;
use flexcast_lab::sim::algorithm::Algorithm;
use flexcast_lab::sim::params::{Operation, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run;
use flexcast_lab::tput::run::ImageFile;
use indicatif::ProgressBar;

/// An Allgather among `ranks` ranks, a card each, of `bytes` bytes from each of them, once.
pub(super) fn allgather(algorithm: Algorithm, ranks: u32, bytes: u64) -> SimParams {
    let params =
        SimParams { ranks, operation: Operation::Allgather, algorithm, bytes, warm_up: 0, ..SimParams::default() };
    sized(params)
}

/// The same of a file of `bytes` bytes, cut evenly.
pub(super) fn allgather_file(algorithm: Algorithm, ranks: u32, bytes: u64) -> SimParams {
    sized(allgather(algorithm, ranks, 0).of_file(bytes))
}

fn sized(params: SimParams) -> SimParams {
    let max_receive_bytes = params.receive_bytes().max(1);
    SimParams { config: params.config.max_receive_bytes(max_receive_bytes), ..params }
}

/// Runs one. `source`: the bytes to gather; made up if `None`.
///
/// # Errors
/// [`SimError`].
pub(super) fn simulate(
    machine: &Machine,
    image: &ImageFile,
    params: &SimParams,
    source: Option<&[u8]>,
    bar: &ProgressBar,
) -> Result<Report, SimError> {
    // Before that many bytes are made up.
    params.check()?;
    let machine =
        emu_machine::Config { uc_multicast: params.needs_uc_multicast(), ..machine.config_of(params.cards())? };
    let provider = emu_provider::emulated(machine)?;
    let made_up;
    let source = match source {
        Some(source) => source,
        None => {
            made_up = run::source(params)?;
            &made_up
        }
    };
    run::run(&provider, Some(image), params, source, &mut |tick| super::sim::show(bar, params, tick))
}
