//! `flexcast trace`, `ps` and `stats`, and the options of other commands that observe the emulated machine.

use std::process::ExitCode;

use emu_observe::state::State;
use flexcast_cli::observe::{Observation, Seen, trace_text};
use flexcast_cli::tables::{self, Filter};
use flexcast_cli::{note, out};
use flexio::LogDecoder;

use super::{deploy, sim, tput};
use crate::inspect_args::{PsArgs, StateArgs, StatsArgs, TraceArgs, Traced};
use crate::observe_args::ObserveArgs;
use crate::provider_name::ProviderName;

/// Starts to observe as the options say; before anything is made on the machine.
pub(super) fn start(args: &ObserveArgs, provider: ProviderName) -> anyhow::Result<Option<Observation>> {
    let Some(options) = args.options() else { return Ok(None) };
    anyhow::ensure!(
        provider == ProviderName::Emu,
        "--trace, --stats, --state, --core-dir and --gdb observe the emulated machine: leave them out with \
         --provider system and use dpa-ps and dpa-statistics"
    );
    Ok(Some(Observation::start(&options)?))
}

/// Stops observing and says where things are; on stderr if stdout belongs to JSON.
pub(super) fn finish(
    observation: Option<Observation>,
    stats: bool,
    elf: &[u8],
    json: bool,
) -> anyhow::Result<Option<Seen>> {
    let Some(observation) = observation else { return Ok(None) };
    let seen = observation.finish(LogDecoder::new(elf).ok().as_ref())?;
    let mut lines = Vec::new();
    if stats && !json {
        lines.push(tables::stats(&seen.state).to_string());
    }
    for file in &seen.files {
        lines.push(format!("written: {}", file.display()));
    }
    if let Some((path, summary)) = &seen.trace {
        lines.push(trace_text(path, summary));
    }
    for line in lines {
        if json {
            note!("{line}");
        } else {
            out!("{line}")?;
        }
    }
    Ok(Some(seen))
}

pub(super) fn trace(mut args: TraceArgs) -> anyhow::Result<ExitCode> {
    match &mut args.command {
        Traced::Tput(command) => {
            command.observe.trace.get_or_insert(args.output);
            tput::run(command)
        }
        Traced::Sim(command) => {
            command.observe.trace.get_or_insert(args.output);
            sim::run(command)
        }
        Traced::Run(command) => {
            command.deploy.observe.trace.get_or_insert(args.output);
            deploy::run(command)
        }
    }
}

fn read(args: &StateArgs, thread: Option<u32>) -> anyhow::Result<State> {
    let state = State::read(&args.file)?;
    if let Some(name) = &args.device {
        let names: Vec<&str> = state.cards.iter().map(|card| card.name.as_str()).collect();
        anyhow::ensure!(
            names.contains(&name.as_str()),
            "no card `{name}` in this state; there are {}",
            names.join(", ")
        );
    }
    Ok(Filter { device: args.device.clone(), process: args.process_id, thread }.apply(state))
}

fn print(state: &State, json: bool, table: &comfy_table::Table) -> anyhow::Result<ExitCode> {
    if json {
        out!("{}", serde_json::to_string(state)?)?;
    } else {
        out!("{:.3} us of virtual time (emulated, {})", state.time_ps as f64 / 1e6, state.model)?;
        out!("{table}")?;
        for line in tables::remarks(state) {
            out!("{line}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn ps(args: &PsArgs) -> anyhow::Result<ExitCode> {
    let state = read(&args.state, None)?;
    print(&state, args.state.json, &tables::ps(&state, args.threads))
}

pub(super) fn stats(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let state = read(&args.state, args.thread_id)?;
    print(&state, args.state.json, &tables::stats(&state))
}
