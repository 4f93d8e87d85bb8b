//! image.toml in the folder of each image: what readers may rely on, compared with the ELF.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use flexcast_image::verify::{Check, DeclaredStack, Outcome};
use flexcast_image::{EntryKind, Image};
use serde::Deserialize;

use crate::toolchain::Toolchain;
use crate::workspace;

/// What device/images/NAME/image.toml says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    name: String,
    #[serde(rename = "description")]
    _description: String,
    event_handlers: Vec<String>,
    rpcs: Vec<String>,
    budget: Budget,
    /// Bounds of stacks that `verify` cannot derive, by entry.
    #[serde(default)]
    stack: BTreeMap<String, Stack>,
    /// Limits that the tests of the image hold against its own counters.
    #[serde(default, rename = "instructions_per_cqe")]
    _instructions_per_cqe: BTreeMap<String, u32>,
}

/// What a call of an entry takes at most.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stack {
    bytes: u64,
    reason: String,
}

/// Upper bounds in bytes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    text_bytes: u64,
    data_bytes: u64,
}

impl Manifest {
    /// Reads the manifest of `image` below `device`.
    pub(crate) fn load(device: &Path, image: &str) -> Result<Self> {
        let path = device.join("images").join(image).join("image.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// What the image may take of the region `code` or `data`.
    pub(crate) fn budget_bytes(&self, region: &str) -> Option<u64> {
        match region {
            "code" => Some(self.budget.text_bytes),
            "data" => Some(self.budget.data_bytes),
            _ => None,
        }
    }

    /// The stack bounds that somebody answers for.
    ///
    /// # Errors
    /// One comes without a reason.
    pub(crate) fn declared_stacks(&self) -> Result<BTreeMap<String, DeclaredStack>> {
        let mut declared = BTreeMap::new();
        for (entry, stack) in &self.stack {
            if stack.reason.trim().is_empty() {
                bail!("[stack.{entry}] of image `{}` has no reason; say why a call takes no more", self.name);
            }
            declared.insert(entry.clone(), DeclaredStack { bytes: stack.bytes, reason: stack.reason.clone() });
        }
        Ok(declared)
    }

    /// Name, entries and budgets against the ELF, as a check of `cargo xtask verify`.
    pub(crate) fn check(&self, name: &str, toolchain: &Toolchain, image: &Image) -> Check {
        let mut findings = Vec::new();
        if self.name != name {
            findings.push(format!("image.toml is for `{}`, its folder is `{name}`", self.name));
        }
        for (kind, listed) in [(EntryKind::EventHandler, &self.event_handlers), (EntryKind::Rpc, &self.rpcs)] {
            for entry in image.entries().iter().filter(|entry| entry.kind == kind && !listed.contains(&entry.name)) {
                findings.push(format!("`{}` is {kind} of the image and is not in image.toml", entry.name));
            }
            for entry in listed.iter().filter(|name| image.entry_of_kind(name, kind).is_err()) {
                findings.push(format!("`{entry}` is {kind} in image.toml and is not in the image"));
            }
        }
        let mut used = Vec::new();
        for region in &toolchain.regions {
            let bytes = region.used_bytes(image);
            if let Some(budget) = self.budget_bytes(&region.name) {
                if bytes > budget {
                    findings.push(format!("{} takes {bytes} bytes, its budget is {budget}", region.name));
                }
                used.push(format!("{} {bytes} of {budget} B", region.name));
            }
        }
        let outcome = if findings.is_empty() { Outcome::Passed(used.join(", ")) } else { Outcome::Failed(findings) };
        Check { name: "image.toml", outcome }
    }
}

/// Refuses images that are not what their image.toml says, in the words of `cargo xtask verify`.
pub(crate) fn require(toolchain: &Toolchain, images: &[String], files: &[PathBuf]) -> Result<()> {
    let mut wrong = Vec::new();
    for (name, file) in images.iter().zip(files) {
        let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let image = Image::parse(&bytes).with_context(|| file.display().to_string())?;
        let manifest = Manifest::load(&workspace::root().join("device"), name)?;
        if let Outcome::Failed(findings) = manifest.check(name, toolchain, &image).outcome {
            wrong.extend(findings.into_iter().map(|finding| format!("device/images/{name}/image.toml: {finding}")));
        }
    }
    if !wrong.is_empty() {
        bail!(
            "{}\n  bring image.toml and image together; `cargo xtask verify` says what else it checks",
            wrong.join("\n  ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_has_a_manifest_and_so_has_the_template() {
        let device = workspace::root().join("device");
        for image in workspace::images().expect("images") {
            let manifest = Manifest::load(&device, &image).expect("manifest");
            assert_eq!(manifest.name, image);
            assert!(manifest.rpcs.contains(&"bring_up".to_owned()), "{image} can be deployed");
        }
        let template = std::fs::read_to_string(device.join("template/image.toml")).expect("template");
        let manifest: Manifest = toml::from_str(&template).expect("valid");
        assert_eq!((manifest.name.as_str(), manifest.budget_bytes("heap")), ("{{name}}", None));
    }

    #[test]
    fn a_declared_stack_needs_a_reason() {
        let template = std::fs::read_to_string(workspace::root().join("device/template/image.toml")).expect("template");
        let with = |reason: &str| -> Manifest {
            toml::from_str(&format!("{template}\n[stack.run]\nbytes = 4096\nreason = \"{reason}\"\n")).expect("valid")
        };
        let declared = with("three rounds at most").declared_stacks().expect("complete");
        assert_eq!((declared["run"].bytes, declared["run"].reason.as_str()), (4096, "three rounds at most"));
        let error = with(" ").declared_stacks().expect_err("no reason").to_string();
        assert!(error.contains("[stack.run]") && error.contains("say why"), "{error}");
    }
}
