use std::process::Command;

use anyhow::Result;

use crate::toolchain::Toolchain;
use crate::{build, process, status, workspace};

/// Measure instructions per completion and the speed of the emulator, from one hart to 1024 cards.
#[derive(clap::Args)]
pub(crate) struct Bench {
    /// Leave out the speed of the hart interpreter.
    #[arg(long)]
    no_hart: bool,
    /// Leave out the comparison of a card with a timing model and one without.
    #[arg(long)]
    no_timing: bool,
    /// Leave out the speed of the fabric.
    #[arg(long)]
    no_fabric: bool,
    /// Leave out the sums of the host.
    #[arg(long)]
    no_sums: bool,
    /// Leave out the collectives among 8 to 1024 ranks.
    #[arg(long)]
    no_collectives: bool,
}

impl Bench {
    pub(crate) fn run(&self) -> Result<()> {
        build::build(&Toolchain::load("emu")?, &workspace::images()?)?;
        if !self.no_hart {
            status::say("Measuring", "the hart interpreter and ckb-vm (measured: wall time of this machine)");
            process::run(workspace::cargo().args(["bench", "--package", "emu-hart", "--bench", "speed"]))?;
        }
        if !self.no_timing {
            status::say("Measuring", "a card's threads by the timing model (measured: processor time of this machine)");
            process::run(workspace::cargo().args(["bench", "--package", "emu-machine", "--bench", "timed"]))?;
        }
        if !self.no_fabric {
            status::say("Measuring", "switches and trees (measured: wall time of this machine)");
            process::run(workspace::cargo().args(["bench", "--package", "emu-fabric", "--bench", "switch"]))?;
        }
        if !self.no_sums {
            status::say("Measuring", "sums on the host (measured: wall time of this machine)");
            process::run(workspace::cargo().args(["bench", "--package", "flexcast-reduce", "--bench", "reduce"]))?;
        }
        status::say("Measuring", "the firmware on the emulated card");
        let mut command = Command::new(workspace::cli()?);
        command.arg("bench").arg("--images").arg(workspace::image_dir("emu"));
        if self.no_collectives {
            command.arg("--no-collectives");
        }
        process::run(&mut command)
    }
}
