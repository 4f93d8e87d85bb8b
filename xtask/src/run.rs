use std::process::Command;

use anyhow::Result;

use crate::toolchain::Toolchain;
use crate::{process, verify, workspace};

/// Build and verify one image and run it on an emulated card.
#[derive(clap::Args)]
pub(crate) struct Run {
    /// Name of the image: a folder of device/images.
    image: String,
    /// Call this RPC of the image, with this number, and print what it returns and the instructions that it took.
    #[arg(long, num_args = 1..=2, value_names = ["RPC", "ARGUMENT"])]
    call: Vec<String>,
}

impl Run {
    pub(crate) fn run(&self) -> Result<()> {
        let files = verify::build_and_verify(&Toolchain::load("emu")?, std::slice::from_ref(&self.image))?;
        let mut command = Command::new(workspace::quick_cli()?);
        command.arg("run").args(files);
        if !self.call.is_empty() {
            command.arg("--call").args(&self.call);
        }
        process::run(&mut command)
    }
}
