use std::process::Command;

use anyhow::Result;

use crate::toolchain::Toolchain;
use crate::workspace::RELEASE;
use crate::{build, process, verify, workspace};

/// Build and verify one image, load it and call its bring-up RPC.
#[derive(clap::Args)]
pub(crate) struct Deploy {
    /// Name of the image: a folder of device/images.
    image: String,
    /// What to build for: a file of toolchains/. With `emu` the card is an emulated one, with the others one of this
    /// computer, which needs DOCA.
    #[arg(long, alias = "target", default_value = "emu")]
    toolchain: String,
    /// Name of the card [default: the first].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Cargo profile of the command-line tool that loads it.
    #[arg(long, default_value = RELEASE)]
    profile: String,
    /// Print the commands that build the image, and run none.
    #[arg(long)]
    dry_run: bool,
}

impl Deploy {
    pub(crate) fn run(&self) -> Result<()> {
        let toolchain = Toolchain::load(&self.toolchain)?;
        let provider = if toolchain.vendor.is_some() { "system" } else { "emu" };
        if self.dry_run {
            return build::dry_run(&toolchain, &workspace::select_images(std::slice::from_ref(&self.image))?);
        }
        let files = verify::build_and_verify(&toolchain, std::slice::from_ref(&self.image))?;
        let mut command = Command::new(workspace::cli_of(&self.profile)?);
        command.arg("deploy").args(files).args(["--provider", provider]);
        if let Some(device) = &self.device {
            command.args(["--device", device]);
        }
        process::run(&mut command)
    }
}
