//! `flexcast deploy` and `flexcast run`: load an image, prove that it runs, listen to it.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexcast_cli::logs::LogDecoder;
use flexcast_cli::out;
use flexcast_lab::pingpong;
use flexcast_lab::tput::run::ImageFile;
use flexcast_lab::tput::run::bring_up;
use flexio::{AbiExpectation, Application, MsgLevel, MsgStream, Process, ProtectionDomain, Provider};

use super::look;
use crate::args::ImageArgs;
use crate::inputs::{open_provider, read_image};

pub(super) fn deploy(args: &ImageArgs) -> anyhow::Result<ExitCode> {
    with_image(args, |process, _, _| {
        let answer = bring_up(process)?;
        out!("bring-up: the image answered {answer:#018x}, as the ABI demands")?;
        Ok(())
    })
}

pub(super) fn run(args: &ImageArgs) -> anyhow::Result<ExitCode> {
    with_image(args, |process, logs, provider| {
        let outcome = talk(process, provider);
        // What the device said last matters most when something failed.
        let printed = logs();
        outcome?;
        printed
    })
}

/// Bring-up, and a ping for an image that answers one.
fn talk(process: &Process, provider: &Provider) -> anyhow::Result<()> {
    let answer = bring_up(process)?;
    out!("bring-up: {answer:#018x}")?;
    let image = process.application().image();
    if image.entry_named("pong").is_err() {
        return Ok(());
    }
    let devices = provider.devices()?;
    let Some(peer) = devices.last() else { bail!("no card to ping from") };
    let client = provider.open(&peer.name)?;
    let pong = pingpong::ping(process, &client, &[b"ping", b"a longer ping, of which every byte comes back"])?;
    for (index, round_trip_ps) in pong.round_trips_ps.iter().enumerate() {
        let kind = if provider.relax().is_virtual() { "emulated" } else { "measured" };
        out!("ping {index}: answered after {:.2} us ({kind})", *round_trip_ps as f64 / 1e6)?;
    }
    anyhow::ensure!(pong.equal, "an answer differs from its ping");
    Ok(())
}

/// Loads the image, prints its entries, and calls `body` with the process, a printer of its logs, and the provider.
fn with_image(
    args: &ImageArgs,
    body: impl FnOnce(&Process, &mut dyn FnMut() -> anyhow::Result<()>, &Provider) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let provider = open_provider(args.provider, 0, 1)?;
    let file = read_image(&args.image)?;
    let look = look::start(&args.look, args.provider)?;
    let outcome = provision(args, &provider, &file, body);
    let seen = look::finish(look, args.look.stats, &file.elf, false);
    outcome?;
    seen?;
    Ok(ExitCode::SUCCESS)
}

fn provision(
    args: &ImageArgs,
    provider: &Provider,
    file: &ImageFile,
    body: impl FnOnce(&Process, &mut dyn FnMut() -> anyhow::Result<()>, &Provider) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(provider, &file.name, &file.elf, Some(abi))?;
    let names: Vec<String> = provider.devices()?.into_iter().map(|device| device.name).collect();
    let name = args.device.as_deref().or(names.first().map(String::as_str)).context("no card to deploy to")?;
    let device = provider.open(name)?;
    let pd = ProtectionDomain::new(&device)?;
    let process = Process::new(&application, &pd)?;
    out!("{} on {name}, ABI {ABI_VERSION}", file.name)?;
    for entry in application.image().entries() {
        out!("  {:<20} {:#010x}  {}", entry.name, entry.addr, entry.kind)?;
    }
    let decoder = LogDecoder::new(&file.elf)?;
    let mut stream = MsgStream::new(&process, MsgLevel::Debug)?;
    let mut print_logs = || -> anyhow::Result<()> {
        for line in stream.lines()? {
            out!("  device: {}", decoder.line(&line))?;
        }
        Ok(())
    };
    body(&process, &mut print_logs, provider)?;
    process.check()?;
    Ok(())
}
