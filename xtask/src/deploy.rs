use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::toolchain::Toolchain;
use crate::workspace::RELEASE;
use crate::{process, verify, workspace};

/// Build and verify one image, load it and call its bring-up RPC.
#[derive(clap::Args)]
pub(crate) struct Deploy {
    /// Name of the image: a folder of device/images.
    image: String,
    /// Where to.
    #[arg(long, value_enum, default_value = "emu")]
    target: Target,
    /// Name of the card [default: the first].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Cargo profile of the command-line tool that loads it.
    #[arg(long, default_value = RELEASE)]
    profile: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// An emulated card.
    Emu,
    /// A BlueField-3 of this machine; needs DOCA.
    Bf3,
}

impl Deploy {
    pub(crate) fn run(&self) -> Result<()> {
        let (toolchain, provider) = match self.target {
            Target::Emu => ("emu", "emu"),
            Target::Bf3 => ("bf3", "system"),
        };
        let toolchain = Toolchain::load(toolchain)?;
        let files = verify::build_and_verify(&toolchain, std::slice::from_ref(&self.image))?;
        let mut command = Command::new(workspace::cli_of(&self.profile)?);
        command.arg("deploy").args(files).args(["--provider", provider]);
        if let Some(device) = &self.device {
            command.args(["--device", device]);
        }
        process::run(&mut command)
    }
}
