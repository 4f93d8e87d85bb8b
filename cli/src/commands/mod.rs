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

use emu_provider::Emulated;
use flexcast_cli::note;
use flexcast_lab::images::ImageError;
use flexcast_lab::memory;
use flexcast_lab::tput::run::{ImageFile, Tick};
use flexio::Provider;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{Command, EmuCommand, ProviderName};
use crate::images_args;

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

/// The image that an option names, by its file or by its name.
fn read_image(asked: &Path) -> Result<ImageFile, ImageError> {
    images_args::usual().read_named(asked)
}

fn read_source(path: &Path) -> anyhow::Result<Vec<u8>> {
    Ok(memory::read_file("file to send", path, SOURCE_COPIES)?)
}

/// A capture under way: the packets of emulated cards, and the file that they go to.
struct Capture<'a> {
    cards: &'a Emulated,
    path: &'a Path,
}

impl<'a> Capture<'a> {
    /// Begins to write the packets of these cards.
    ///
    /// # Errors
    /// The file cannot be written.
    fn start(cards: &'a Emulated, path: &'a Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("capture `{}` cannot be written", path.display()))?;
        cards.start_capture(file)?;
        Ok(Self { cards, path })
    }

    /// Ends it, and says how many packets there are.
    ///
    /// # Errors
    /// The file cannot be written.
    fn finish(self) -> anyhow::Result<()> {
        note!("{} packets in {}", self.cards.finish_capture()?, self.path.display());
        Ok(())
    }
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
