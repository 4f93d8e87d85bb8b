use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use flexcast_image::Image;
use flexcast_image::verify::{Policy, Report, verify};

use crate::toolchain::Toolchain;
use crate::{build, status, workspace};

/// Build images and check them.
#[derive(clap::Args)]
pub(crate) struct Verify {
    /// Images to verify [default: all of device/images].
    images: Vec<String>,
    /// Verify this file instead of building an image.
    #[arg(long, value_name = "ELF", conflicts_with = "images")]
    file: Option<PathBuf>,
    /// What to build for and to hold the image against: a file of toolchains/.
    #[arg(long, default_value = "emu")]
    toolchain: String,
}

impl Verify {
    pub(crate) fn run(&self) -> Result<()> {
        let toolchain = Toolchain::load(&self.toolchain)?;
        let files = match &self.file {
            Some(file) => vec![file.clone()],
            None => build::build(&toolchain, &workspace::select_images(&self.images)?)?,
        };
        verify_files(&toolchain, &files)
    }
}

/// Verifies images, prints every report and fails at the end if any check failed.
pub(crate) fn verify_files(toolchain: &Toolchain, files: &[PathBuf]) -> Result<()> {
    let mut bad = Vec::new();
    for file in files {
        status::say("Verifying", file.display());
        let report = report(toolchain, file)?;
        print!("{report}");
        let (passed, failed, unknown) = report.counts();
        println!("{:>12} {}: {passed} checks passed, {failed} failed, {unknown} unknown", "", file.display());
        if !report.passed() {
            bad.push(file.display().to_string());
        }
    }
    if !bad.is_empty() {
        bail!("{} of {} images fail: {}", bad.len(), files.len(), bad.join(", "));
    }
    Ok(())
}

fn report(toolchain: &Toolchain, file: &std::path::Path) -> Result<Report> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let image = Image::parse(&bytes).with_context(|| file.display().to_string())?;
    let policy = Policy {
        isa: toolchain.isa()?,
        abi: Some((flexcast_abi::ABI_VERSION, flexcast_abi::ABI_HASH)),
        stack_bytes: toolchain.stack_bytes,
        private_prefixes: workspace::private_prefixes(),
    };
    Ok(verify(&image, &policy))
}
