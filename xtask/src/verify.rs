use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use flexcast_image::Image;
use flexcast_image::callgraph::Foreign;
use flexcast_image::verify::{Check, Outcome, Policy, Report, Vendor, verify};

use crate::link_map::LinkMap;
use crate::manifest::Manifest;
use crate::toolchain::Toolchain;
use crate::vendor::Products;
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
        match &self.file {
            Some(file) => verify_files(&toolchain, &[(None, file.clone())]),
            None => build_and_verify(&toolchain, &self.images).map(drop),
        }
    }
}

/// Builds images (all, where none is named), verifies them and returns their files.
pub(crate) fn build_and_verify(toolchain: &Toolchain, images: &[String]) -> Result<Vec<PathBuf>> {
    let images = workspace::select_images(images)?;
    let files = build::build(toolchain, &images)?;
    let named: Vec<_> = images.into_iter().map(Some).zip(files.iter().cloned()).collect();
    verify_files(toolchain, &named)?;
    Ok(files)
}

/// Verifies files, those with an image's name against its image.toml too; prints every report and fails at the end if
/// any check failed.
fn verify_files(toolchain: &Toolchain, files: &[(Option<String>, PathBuf)]) -> Result<()> {
    let mut bad = Vec::new();
    for (name, file) in files {
        status::say("Verifying", file.display());
        let report = report(toolchain, name.as_deref(), file)?;
        status::print(report.to_string().trim_end_matches('\n'))?;
        let (passed, failed, unknown) = report.counts();
        status::print(format_args!(
            "{:>12} {}: {passed} checks passed, {failed} failed, {unknown} unknown",
            "",
            file.display()
        ))?;
        if !report.passed() {
            bad.push(file.display().to_string());
        }
    }
    if !bad.is_empty() {
        bail!("{} of {} images fail: {}", bad.len(), files.len(), bad.join(", "));
    }
    Ok(())
}

fn report(toolchain: &Toolchain, name: Option<&str>, file: &Path) -> Result<Report> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let image = Image::parse(&bytes).with_context(|| file.display().to_string())?;
    let manifest = name.map(|name| Manifest::load(&workspace::root().join("device"), name)).transpose()?;
    let (vendor, linked) = vendors_part(toolchain, file, &image);
    let policy = Policy {
        isa: toolchain.isa()?,
        abi: Some((flexcast_abi::ABI_VERSION, flexcast_abi::ABI_HASH)),
        stack_bytes: toolchain.stack_bytes,
        private_prefixes: workspace::private_prefixes(),
        sections: toolchain.sections.clone(),
        declared_stacks: manifest.as_ref().map(Manifest::declared_stacks).transpose()?.unwrap_or_default(),
        vendor,
    };
    let mut report = verify(&image, &policy);
    report.checks.extend(linked);
    if let (Some(name), Some(manifest)) = (name, manifest) {
        report.checks.push(manifest.check(name, toolchain, &image));
    }
    Ok(report)
}

/// What of the image in `file` is its vendor's, by the link map next to it, and how that was found; nothing where no
/// vendor links.
pub(crate) fn vendors_part(toolchain: &Toolchain, file: &Path, image: &Image) -> (Vendor, Option<Check>) {
    let Some(vendor) = &toolchain.vendor else { return (Vendor::default(), None) };
    let mut part = Vendor { extensions: vendor.extensions.clone(), ..Vendor::default() };
    let Products { object, map, .. } = Products::next_to(file);
    let own = object.file_name().unwrap_or_default().to_string_lossy();
    let outcome = if map.exists() {
        match LinkMap::read(&map).and_then(|map| map.others(image, &own)) {
            Ok(others) => {
                part.code = Foreign { code: others.code, stack_bytes: vendor.stack_bytes };
                part.sections = others.sections;
                part.files = others.files.into_iter().collect();
                Outcome::Passed(format!(
                    "the vendor's: {}; {} B of stack a call",
                    part.files.join(", "),
                    vendor.stack_bytes
                ))
            }
            Err(error) => Outcome::Failed(vec![format!("{error:#}")]),
        }
    } else {
        Outcome::Unknown(vec![format!("{} is not there: all code was taken for our own", map.display())])
    };
    (part, Some(Check { name: "link map", outcome }))
}
