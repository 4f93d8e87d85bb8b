use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::toolchain::Toolchain;
use crate::{build, process, status, workspace};

/// Build firmware and command-line tool, send data through two emulated cards, and gather it among eight.
#[derive(clap::Args)]
pub(crate) struct Demo {
    /// File to send [default: 8 MiB, made up from seed 1].
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

impl Demo {
    pub(crate) fn run(&self) -> Result<()> {
        // The one image that the command-line tool's demo loads.
        let (toolchain, images) = (Toolchain::load("emu")?, ["allgather".to_owned()]);
        // At the same time: each builds in a folder of its own, and leaves processors idle by itself where one crate
        // waits for another.
        let (built, tool) = std::thread::scope(|scope| {
            let building = scope.spawn(|| build::build(&toolchain, &images));
            status::say("Building", "the command-line tool");
            let tool = workspace::quick_cli();
            (building.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), tool)
        });
        built?;
        let mut command = Command::new(tool?);
        command.arg("demo").arg("--images").arg(workspace::image_dir("emu"));
        if let Some(file) = &self.file {
            command.arg("--file").arg(file);
        }
        if self.json {
            command.arg("--json");
        }
        process::run(&mut command)
    }
}
