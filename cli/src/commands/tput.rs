//! `flexcast tput`.

use std::fs::File;
use std::process::ExitCode;

use anyhow::Context as _;
use flexcast::Transport;
use flexcast_cli::stdout::StdoutError;
use flexcast_cli::{note, out};
use flexcast_lab::machine;
use flexcast_lab::tput::TputError;
use flexcast_lab::tput::plan::Plan;
use flexcast_lab::tput::report::{Report, table};
use flexcast_lab::tput::run::{made_up_bytes, names, run as run_plan};
use flexio::Provider;

use super::{look, progress_bar, read_image, read_source, show};
use crate::args::{ProviderName, TputArgs};

/// Bytes to send when neither a number nor a file is given.
const DEFAULT_BYTES: u64 = 8 << 20;

pub(super) fn run(args: &TputArgs) -> anyhow::Result<ExitCode> {
    let params = args.params()?;
    let file = args.file.as_deref().map(read_source).transpose()?;
    let bytes = file.as_ref().map_or(args.bytes.unwrap_or(DEFAULT_BYTES), |file| file.len() as u64);
    // Limits before anything is opened, and before that many bytes are made up.
    let plan = Plan::new(params, bytes)?;
    plan.check_memory()?;
    let asked = args.machine.params(args.seed)?;
    let config = emu_machine::Config { uc_multicast: params.transport == Transport::UcMulticast, ..asked.config()? };
    let model = config.model_name().to_owned();
    let provider = match args.provider {
        ProviderName::Emu => emu_provider::emulated(config)?,
        ProviderName::System => {
            if let Some(option) = args.machine.given() {
                anyhow::bail!("{option} is for the emulated machine: leave it out with --provider system");
            }
            Provider::system()?
        }
    };
    let image = read_image(&args.image)?;
    if let Some(path) = &args.machine.pcap {
        let file = File::create(path).with_context(|| format!("capture `{}` cannot be written", path.display()))?;
        emu_provider::start_capture(file)?;
    }
    let look = look::start(&args.look, args.provider)?;
    let source = file.map_or_else(|| made_up_bytes(bytes, params.seed), Ok)?;
    let names = names(&provider, args.server.as_deref(), args.client.as_deref())?;
    let bar = progress_bar("repetitions");
    bar.set_prefix(format!("{} x{}", params.transport.name(), params.threads));
    let outcome = run_plan(&provider, &names, &image, &plan, &source, &model, &mut |tick| show(&bar, tick));
    bar.finish_and_clear();
    let printed = match &outcome {
        Ok(report) if !args.json => print(report),
        _ => Ok(()),
    };
    // What happened matters most when something failed.
    let looked = look::finish(look, args.look.stats, &image.elf, args.json);
    if let Some(path) = &args.machine.pcap {
        note!("{} packets in {}", emu_provider::finish_capture()?, path.display());
    }
    let mut seen = None;
    let mut races = Vec::new();
    if args.provider == ProviderName::Emu {
        let (report, found) = machine::report(&asked)?;
        (seen, races) = (Some(report), found);
    }
    // A race may be why the run failed.
    for race in &races {
        note!("race: {race}");
    }
    let (mut report, looked) = (outcome?, looked?);
    printed?;
    report.machine = seen;
    if args.json {
        let mut value = serde_json::to_value(&report)?;
        if let Some(looked) = looked.filter(|_| args.look.stats) {
            value["stats"] = serde_json::to_value(&looked.state)?;
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
