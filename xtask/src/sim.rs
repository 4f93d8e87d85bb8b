use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Result, bail};

use crate::toolchain::Toolchain;
use crate::{build, process, status, workspace};

/// Run collectives drawn from seeds: each must end with every byte right, or in a typed error on every live rank.
#[derive(clap::Args)]
pub(crate) struct Sim {
    /// Number of cases.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub(crate) seeds: u64,
    /// Seed of the first case; the others follow [default: drawn anew for each run; 1 where the variable CI is set].
    #[arg(long, value_name = "SEED")]
    pub(crate) first: Option<u64>,
    /// Go on after a case that came out wrong, and report all such.
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Begin no further seed after so much wall time.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wall_limit: Option<u64>,
    /// Print what each case is before it runs.
    #[arg(long)]
    pub(crate) show: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Sim {
    pub(crate) fn run(&self) -> Result<()> {
        build::build(&Toolchain::load("emu")?, &workspace::images()?)?;
        status::say("Simulating", "ranks with the real firmware, from seeds");
        let mut command = Command::new(workspace::cli()?);
        command.args(["soak", "--within", "cargo xtask sim", "--seeds", &self.seeds.to_string()]);
        if let Some(first) = self.first {
            command.args(["--first", &first.to_string()]);
        }
        command.arg("--image").arg(workspace::image_dir("emu").join("allgather.elf"));
        if let Some(seconds) = self.wall_limit {
            command.args(["--wall-limit", &seconds.to_string()]);
        }
        let given = [(self.keep_going, "--keep-going"), (self.show, "--show"), (self.json, "--json")];
        for (given, option) in given {
            if given {
                command.arg(option);
            }
        }
        // In the place of this program, so that a signal reaches the one that has the tally.
        let error = command.exec();
        bail!("{error}: {}", process::line(&command))
    }
}
