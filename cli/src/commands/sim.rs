//! `flexcast sim`.

use std::path::Path;
use std::process::ExitCode;

use emu_provider::Emulated;
use flexcast_cli::{note, out};
use flexcast_lab::service;
use flexcast_lab::sim::SimError;
use flexcast_lab::sim::params::SimParams;
use flexcast_lab::sim::run::{self as sim, Tick};
use flexcast_lab::sim::sparse;
use indicatif::ProgressBar;

use super::observe;
use crate::capture::Capture;
use crate::inputs::{read_image, read_source};
use crate::progress::progress_bar;
use crate::provider_name::ProviderName;
use crate::sim_args::SimArgs;

pub(super) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    if args.spec.is_of_service() {
        return run_service(args);
    }
    if args.spec.is_sparse() {
        return run_sparse(args);
    }
    let file = args.file.as_deref().map(read_source).transpose()?;
    let (params, asked) = args.spec.resolve(file.as_ref().map(|file| file.len() as u64))?;
    let machine = asked.config_of(params.cards())?;
    let image = params.needs_image().then(|| read_image(&args.image)).transpose()?;
    let cards = Emulated::new(machine)?;
    let capture = asked.capture.as_deref().map(|path| Capture::start(&cards, path)).transpose()?;
    let observation = observe::start(&args.observe, ProviderName::Emu)?;
    let source = file.map_or_else(|| sim::source(&params), Ok)?;
    let bar = progress_bar("ranks");
    let report = sim::run(&cards.provider, image.as_ref(), &params, &source, &mut |tick| show(&bar, &params, tick));
    bar.finish_and_clear();
    // What happened matters most when something failed.
    let seen =
        observe::finish(observation, args.observe.stats, image.as_ref().map_or(&[][..], |image| &image.elf), args.json);
    if let Some(capture) = capture {
        capture.finish()?;
    }
    // A race may be why the run failed.
    let races = cards.machine.with(|world| world.take_races());
    for race in &races {
        note!("race: {race}");
    }
    let (report, seen) = (report?, seen?);
    if args.json {
        let mut value = serde_json::to_value(&report)?;
        if let Some(seen) = seen.filter(|_| args.observe.stats) {
            value["stats"] = serde_json::to_value(&seen.state)?;
        }
        out!("{value}")?;
    } else {
        out!("{report}")?;
    }
    if let Some(first) = races.into_iter().find(|race| !report.accounts_for(race)) {
        let count = report.machine.races.unwrap_or_default();
        return Err(SimError::Races { count, first: Box::new(first) }.into());
    }
    Ok(if report.digest_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The same where service processes carry the operations out.
fn run_service(args: &SimArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.file.is_none(), "--file: service processes exchange made-up bytes: give --bytes");
    let (params, asked) = args.spec.service()?;
    // A machine has two cards at least.
    let machine = asked.config_of(params.shape.hosts.max(2) as usize)?;
    let bar = progress_bar("operations");
    let (warm_up, iterations) = params.turns;
    bar.set_length(u64::from(warm_up) + 2 * u64::from(iterations));
    let report = service::run(machine, &params, &mut |over| bar.set_position(over.into()));
    bar.finish_and_clear();
    let report = report?;
    if args.json {
        out!("{}", serde_json::to_value(&report)?)?;
    } else {
        out!("{report}")?;
    }
    Ok(if report.digest_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The same of sparse AllReduces.
fn run_sparse(args: &SimArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.file.is_none(), "--file: a sparse AllReduce sums up made-up numbers: give --bytes");
    let (params, asked) = args.spec.sparse()?;
    let machine = asked.config_of(params.cards())?;
    // The option's default is the image of communicators.
    let named = |name: &'static str| if args.image.as_os_str() == "allgather" { Path::new(name) } else { &args.image };
    let image = params.image().map(|name| read_image(named(name))).transpose()?;
    let cards = Emulated::new(machine)?;
    let capture = asked.capture.as_deref().map(|path| Capture::start(&cards, path)).transpose()?;
    let observation = observe::start(&args.observe, ProviderName::Emu)?;
    let bar = progress_bar("operations");
    bar.set_length(u64::from(params.turns.0) + u64::from(params.turns.1));
    let report = sparse::run(&cards.provider, image.as_ref(), &params, &mut |over| bar.set_position(over.into()));
    bar.finish_and_clear();
    observe::finish(observation, args.observe.stats, image.as_ref().map_or(&[][..], |image| &image.elf), args.json)?;
    if let Some(capture) = capture {
        capture.finish()?;
    }
    let report = report?;
    if args.json {
        out!("{}", serde_json::to_value(&report)?)?;
    } else {
        out!("{report}")?;
    }
    Ok(if report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows a tick of a simulation.
pub(super) fn show(bar: &ProgressBar, params: &SimParams, tick: Tick) {
    match tick {
        Tick::Ready => {
            bar.set_prefix(params.algorithm.name());
            bar.set_message(params.operation.name());
            bar.set_length(u64::from(params.ranks) * u64::from(params.warm_up + params.iterations));
        }
        Tick::Ended { iteration, ranks } => {
            bar.set_position(u64::from(iteration) * u64::from(params.ranks) + u64::from(ranks));
        }
    }
}
