//! One file per command.

mod bench;
mod calibrate;
mod collectives;
mod demo;
mod deploy;
mod devices;
mod emu_exec;
mod emu_run;
mod look;
mod plan;
mod reference;
mod report;
mod report_progress;
mod scaling;
mod sim;
mod soak;
mod tput;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use flexcast_cli::note;
use flexcast_lab::memory::{self, MemoryError};
use flexcast_lab::tput::run::{ImageFile, Tick};
use flexio::Provider;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{Command, EmuCommand, ProviderName};

pub(crate) use calibrate::CalibrateArgs;
pub(crate) use emu_exec::bridge;

/// Executes a command.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Devices(args) => devices::run(&args),
        Command::Tput(args) => tput::run(&args),
        Command::Reference(args) => reference::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Deploy(args) => deploy::deploy(&args),
        Command::Run(args) => deploy::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Trace(args) => look::trace(args),
        Command::Ps(args) => look::ps(&args),
        Command::Stats(args) => look::stats(&args),
        Command::Emu(EmuCommand::Run(args)) => emu_run::run(&args),
        Command::Emu(EmuCommand::Exec(args)) => emu_exec::run(&args),
    }
}

/// Copies of an image that are in memory: its file, what is read of it, and what the emulated card has of it.
const IMAGE_COPIES: u64 = 3;
/// Copies of what is sent: the file, the buffers of both ranks, and a copy to compare.
const SOURCE_COPIES: u64 = 4;

/// A provider; the emulator with these losses on its link.
fn open_provider(name: ProviderName, loss_ppm: u32, seed: u64) -> anyhow::Result<Provider> {
    match name {
        ProviderName::Emu => Ok(emu_provider::emulated(emu_provider::lossy(loss_ppm, seed))?),
        ProviderName::System => {
            anyhow::ensure!(
                loss_ppm == 0,
                "--loss is a property of the emulated link: leave it out with --provider system"
            );
            Ok(Provider::system()?)
        }
    }
}

fn read_image(path: &Path) -> anyhow::Result<ImageFile> {
    let elf = match memory::read_file("image", path, IMAGE_COPIES) {
        Err(MemoryError::File { source, .. }) => Err(source).with_context(|| {
            format!("image `{}` cannot be read; build the images with `cargo xtask build`", path.display())
        })?,
        read => read?,
    };
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(ImageFile { name, elf })
}

fn read_source(path: &Path) -> anyhow::Result<Vec<u8>> {
    Ok(memory::read_file("file to send", path, SOURCE_COPIES)?)
}

/// Begins to write the emulated cards' packets to a file; gives its path back.
fn start_capture(path: &Path) -> anyhow::Result<&Path> {
    let file = File::create(path).with_context(|| format!("capture `{}` cannot be written", path.display()))?;
    emu_provider::start_capture(file)?;
    Ok(path)
}

/// Ends it, and says how many packets there are.
fn finish_capture(path: &Path) -> anyhow::Result<()> {
    note!("{} packets in {}", emu_provider::finish_capture()?, path.display());
    Ok(())
}

/// A progress bar on stderr; invisible where that is not a terminal.
fn progress_bar(unit: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(&bar_template(unit)) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

fn bar_template(unit: &str) -> String {
    format!("{{prefix:>12.bold}} [{{bar:40}}] {{pos}}/{{len}} {unit} {{msg}}")
}

/// Shows a tick of a run.
fn show(bar: &ProgressBar, tick: Tick) {
    bar.set_length(tick.repetitions.into());
    bar.set_position(tick.ended.into());
}
