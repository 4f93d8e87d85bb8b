use std::process::Command;

use anyhow::Result;

use crate::toolchain::Toolchain;
use crate::{build, manifest, process, workspace};

/// Build one image and run it on an emulated card.
#[derive(clap::Args)]
pub(crate) struct Run {
    /// Name of the image: a folder of device/images.
    image: String,
}

impl Run {
    pub(crate) fn run(&self) -> Result<()> {
        let images = workspace::select_images(std::slice::from_ref(&self.image))?;
        let toolchain = Toolchain::load("emu")?;
        let files = build::build(&toolchain, &images)?;
        manifest::require(&toolchain, &images, &files)?;
        process::run(Command::new(workspace::quick_cli()?).arg("run").args(files))
    }
}
