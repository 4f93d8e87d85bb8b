//! `flexcast tput`.

use std::fs::File;
use std::process::ExitCode;

use anyhow::Context as _;
use flexcast_cli::provider::{self, MODEL};
use flexcast_cli::tput::plan::Plan;
use flexcast_cli::tput::report::table;
use flexcast_cli::tput::run::{Cards, made_up_bytes, run as run_plan};

use super::{look, open_provider, progress_bar, read_image, read_source, show};
use crate::args::{ProviderName, TputArgs};

/// Bytes to send when neither a number nor a file is given.
const DEFAULT_BYTES: u64 = 8 << 20;

pub(super) fn run(args: &TputArgs) -> anyhow::Result<ExitCode> {
    let params = args.params()?;
    let file = args.file.as_deref().map(read_source).transpose()?;
    let bytes = file.as_ref().map_or(args.bytes.unwrap_or(DEFAULT_BYTES), |file| file.len() as u64);
    // Limits before anything is opened, and before that many bytes are made up.
    let plan = Plan::new(params, bytes)?;
    let machine = open_provider(args.provider, params.loss_ppm, params.seed)?;
    let image = read_image(&args.image)?;
    if let Some(path) = &args.pcap {
        anyhow::ensure!(
            args.provider == ProviderName::Emu,
            "--pcap captures the emulated link: leave it out with --provider system, and capture at the port"
        );
        let file = File::create(path).with_context(|| format!("capture `{}` cannot be written", path.display()))?;
        provider::start_capture(file)?;
    }
    let look = look::start(&args.look, args.provider)?;
    let source = file.unwrap_or_else(|| made_up_bytes(bytes, params.seed));
    let cards = Cards::open(&machine, args.server.as_deref(), args.client.as_deref())?;
    let bar = progress_bar();
    bar.set_prefix(format!("{} x{}", params.transport.name(), params.threads));
    let outcome = run_plan(&cards, &image, &plan, &source, MODEL, &mut |tick| show(&bar, tick));
    bar.finish_and_clear();
    if let Ok(report) = &outcome
        && !args.json
    {
        println!("{}", table(std::slice::from_ref(report)));
    }
    // What happened matters most when something failed.
    let seen = look::finish(look, args.look.stats, &image.elf, args.json);
    let (report, seen) = (outcome?, seen?);
    if let Some(path) = &args.pcap {
        eprintln!("{} packets in {}", provider::finish_capture()?, path.display());
    }
    if args.json {
        let mut value = serde_json::to_value(&report)?;
        if let Some(seen) = seen.filter(|_| args.look.stats) {
            value["stats"] = serde_json::to_value(&seen.state)?;
        }
        println!("{value}");
    }
    Ok(if report.digest_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
