//! `flexcast tput`.

use std::process::ExitCode;

use flexcast::Transport;
use flexcast_cli::stdout::StdoutError;
use flexcast_cli::{note, out};
use flexcast_lab::machine;
use flexcast_lab::tput::TputError;
use flexcast_lab::tput::plan::Plan;
use flexcast_lab::tput::report::{Report, table};
use flexcast_lab::tput::run::{made_up_bytes, names, run as run_plan};

use super::{observe, tput_hosts};
use crate::args::TputArgs;
use crate::capture::Capture;
use crate::inputs::{read_image, read_source};
use crate::progress::{progress_bar, show};

pub(super) fn run(args: &TputArgs) -> anyhow::Result<ExitCode> {
    if let Some(side) = args.hosts.side() {
        return tput_hosts::run(args, &side);
    }
    let asked = args.machine.machine(args.spec.seed)?;
    let params = args.spec.params(asked.seed.unwrap_or_default(), asked.losses_ppm());
    let file = args.file.as_deref().map(read_source).transpose()?;
    let bytes = file.as_ref().map_or(args.spec.bytes(), |file| file.len() as u64);
    // Limits before anything is opened, and before that many bytes are made up.
    let plan = Plan::new(params, bytes)?;
    plan.check_memory()?;
    let uc_multicast = params.transport == Transport::UcMulticast;
    let config = emu_machine::Config { uc_multicast, ..asked.config_of_pair()? };
    let model = config.model_name().to_owned();
    let (provider, emulated) = args.pair.open(&args.machine, config)?;
    let image = read_image(&args.image)?;
    let capture = emulated.as_ref().zip(asked.capture.as_deref());
    let capture = capture.map(|(cards, path)| Capture::start(cards, path)).transpose()?;
    let observation = observe::start(&args.observe, args.pair.provider)?;
    let source = file.map_or_else(|| made_up_bytes(bytes, params.seed), Ok)?;
    let names = names(&provider, args.pair.receiver.as_deref(), args.pair.sender.as_deref())?;
    let bar = progress_bar("repetitions");
    bar.set_prefix(format!("{} x{}", params.transport.name(), params.threads));
    let outcome = run_plan(&provider, &names, &image, &plan, &source, &model, &mut |tick| show(&bar, tick));
    bar.finish_and_clear();
    let printed = match &outcome {
        Ok(report) if !args.pair.json => print(report),
        _ => Ok(()),
    };
    // What happened matters most when something failed.
    let observed = observe::finish(observation, args.observe.stats, &image.elf, args.pair.json);
    if let Some(capture) = capture {
        capture.finish()?;
    }
    let mut seen = None;
    let mut races = Vec::new();
    if emulated.is_some() {
        let (report, found) = machine::report(&asked)?;
        (seen, races) = (Some(report), found);
    }
    // A race may be why the run failed.
    for race in &races {
        note!("race: {race}");
    }
    let (mut report, observed) = (outcome?, observed?);
    printed?;
    report.machine = seen;
    if args.pair.json {
        let mut value = serde_json::to_value(&report)?;
        if let Some(observed) = observed.filter(|_| args.observe.stats) {
            value["stats"] = serde_json::to_value(&observed.state)?;
        }
        out!("{value}")?;
    } else if let Some(seen) = report.machine.as_ref().filter(|_| !asked.is_plain()) {
        out!("{seen}")?;
    }
    if let Some(first) = races.into_iter().next() {
        let count = report.machine.and_then(|machine| machine.races).unwrap_or_default();
        return Err(TputError::Races { count, first: Box::new(first) }.into());
    }
    Ok(if report.digest_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report) -> Result<(), StdoutError> {
    out!("{}", table(std::slice::from_ref(report)))?;
    match &report.accesses {
        Some(accesses) => out!("{accesses}"),
        None => Ok(()),
    }
}
