//! `flexcast deploy` and `flexcast run`: load an image, prove that it runs, listen to it.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use emu_machine::with_world;
use emu_observe::state::State;
use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexcast_cli::out;
use flexcast_lab::pingpong;
use flexcast_lab::tput::run::ImageFile;
use flexcast_lab::tput::run::bring_up;
use flexio::{
    AbiExpectation, Application, CardKind, LogDecoder, MsgLevel, MsgStream, Process, ProtectionDomain, Provider,
};

use super::observe;
use crate::args::{ImageArgs, RunArgs};
use crate::inputs::{open_provider, read_image};

pub(super) fn deploy(args: &ImageArgs) -> anyhow::Result<ExitCode> {
    with_image(args, |process, logs, _| {
        let answered = bring_up(process);
        if let Ok(answer) = &answered {
            out!("bring-up: the image answered {answer:#018x}, as the ABI demands")?;
        }
        // What the device said last matters most when something failed.
        let printed = logs();
        answered?;
        printed
    })
}

pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let call = call(&args.call)?;
    with_image(&args.deploy, |process, logs, provider| {
        let outcome = talk(process, provider).and_then(|()| match call {
            Some((name, argument)) => call_rpc(process, provider, name, argument),
            None => Ok(()),
        });
        // What the device said last matters most when something failed.
        let printed = logs();
        outcome?;
        printed
    })
}

/// The RPC that `--call` names, and its argument.
fn call(words: &[String]) -> anyhow::Result<Option<(&str, u64)>> {
    let Some((name, rest)) = words.split_first() else { return Ok(None) };
    let Some(text) = rest.first() else { return Ok(Some((name, 0))) };
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let limit = "give a whole number from 0 to 18446744073709551615, or 0x and hexadecimal digits";
    Ok(Some((name, number.map_err(|_| anyhow::anyhow!("argument {text:?} of {name}: {limit}"))?)))
}

/// Calls an RPC and prints what it returns.
fn call_rpc(process: &Process, provider: &Provider, name: &str, argument: u64) -> anyhow::Result<()> {
    let before = instructions(provider)?;
    let answer = process.call_by_name(name, argument)?;
    let spent = match (before, instructions(provider)?) {
        (Some(before), Some(after)) => format!("; {} instructions (emulated)", after - before),
        _ => String::new(),
    };
    out!("{name}({argument}) = {answer} ({answer:#x}){spent}")?;
    Ok(())
}

/// Instructions that all threads of the emulated cards have executed; none of real ones.
fn instructions(provider: &Provider) -> anyhow::Result<Option<u64>> {
    if provider.kind() != CardKind::Emulated {
        return Ok(None);
    }
    let state = State::new(&with_world(|world| world.snapshot())?);
    let processes = state.cards.iter().flat_map(|card| &card.processes);
    Ok(Some(processes.flat_map(|process| &process.threads).map(|thread| thread.instructions).sum()))
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
    let observation = observe::start(&args.observe, args.provider)?;
    let outcome = provision(args, &provider, &file, body);
    let seen = observe::finish(observation, args.observe.stats, &file.elf, false);
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
    let card = if provider.kind() == CardKind::Emulated { "emulated card" } else { "card" };
    out!("{} on {card} {name}, ABI {ABI_VERSION}", file.name)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_calls_are_decimal_or_hexadecimal() {
        let call = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            call(&words).map(|call| call.map(|(_, argument)| argument)).map_err(|error| error.to_string())
        };
        assert_eq!((call(&[]), call(&["f"]), call(&["f", "1000"])), (Ok(None), Ok(Some(0)), Ok(Some(1000))));
        assert_eq!(call(&["f", "0xffffffffffffffff"]), Ok(Some(u64::MAX)));
        for wrong in ["-1", "0x", "1.5", "18446744073709551616", "0x10000000000000000"] {
            assert!(call(&["f", wrong]).unwrap_err().contains("whole number from 0"), "{wrong}");
        }
    }
}
