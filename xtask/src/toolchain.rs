//! toolchains/*.toml: what differs between targets, as data.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use flexcast_image::Image;
use flexcast_isa::Isa;
use serde::Deserialize;

use crate::workspace;

/// One target, as its file describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Toolchain {
    /// Name of the file without `.toml`.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) description: String,
    /// What the processor executes.
    isa: String,
    /// Extensions that the attribute section of every image must name.
    pub(crate) required: Vec<String>,
    pub(crate) stack_bytes: u64,
    pub(crate) code_cache_bytes: u64,
    /// Names of the sections that may be loaded.
    pub(crate) sections: Vec<String>,
    pub(crate) rust: Rust,
    #[serde(default, rename = "region")]
    pub(crate) regions: Vec<Region>,
    /// Present where the vendor's tools link.
    pub(crate) vendor: Option<Vendor>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rust {
    pub(crate) target: String,
    pub(crate) flags: Vec<String>,
    /// Linker script of rustc's own linker, relative to the root.
    pub(crate) script: Option<PathBuf>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Region {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) size_bytes: u64,
}

impl Region {
    /// Memory that the segments of `image` take of this region.
    pub(crate) fn used_bytes(&self, image: &Image) -> u64 {
        let end = self.start + self.size_bytes;
        image.segments().iter().filter(|s| self.start <= s.vaddr && s.vaddr < end).map(|s| s.mem_size).sum()
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vendor {
    pub(crate) cpu: String,
    /// Extensions that the vendor's code may use and ours may not.
    pub(crate) extensions: Vec<String>,
    /// Stack that a call into the vendor's code is taken to need, in bytes.
    pub(crate) stack_bytes: u64,
    pub(crate) doca: Location,
    pub(crate) flexio: Location,
    pub(crate) clang: PathBuf,
    pub(crate) fatbin: PathBuf,
    pub(crate) scripts: Vec<PathBuf>,
    pub(crate) libraries: Vec<PathBuf>,
    pub(crate) link_flags: Vec<String>,
    pub(crate) whole_archives: Vec<String>,
    pub(crate) archives: Vec<String>,
}

/// An installation: named by an environment variable, or at its usual place.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Location {
    pub(crate) variable: String,
    pub(crate) default: PathBuf,
}

impl Location {
    pub(crate) fn path(&self) -> PathBuf {
        std::env::var_os(&self.variable).map_or_else(|| self.default.clone(), PathBuf::from)
    }
}

impl Toolchain {
    pub(crate) fn load(name: &str) -> Result<Self> {
        let path = workspace::root().join("toolchains").join(format!("{name}.toml"));
        let known = Self::names()?;
        if !known.iter().any(|known| known == name) {
            bail!("no toolchain `{name}`; there are: {} (toolchains/*.toml)", known.join(", "));
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut toolchain: Self = toml::from_str(&text).with_context(|| format!("{}", path.display()))?;
        name.clone_into(&mut toolchain.name);
        Ok(toolchain)
    }

    /// Names of all toolchains, sorted.
    pub(crate) fn names() -> Result<Vec<String>> {
        let dir = workspace::root().join("toolchains");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
        names.sort();
        Ok(names)
    }

    pub(crate) fn isa(&self) -> Result<Isa> {
        Isa::parse(&self.isa).map_err(|error| anyhow!("isa of toolchains/{}.toml: {error}", self.name))
    }

    /// The flags by which rustc compiles for this target, except for those of linking.
    pub(crate) fn rustflags(&self) -> Result<Vec<String>> {
        let mut flags = self.rust.flags.clone();
        for (path, name) in workspace::path_names()?.values() {
            flags.push(format!("--remap-path-prefix={}={name}", path.display()));
        }
        Ok(flags)
    }

    /// The `--config` argument by which cargo passes `flags` to rustc for this target only.
    pub(crate) fn cargo_config(&self, flags: &[String]) -> String {
        let list: Vec<String> = flags.iter().map(|flag| toml::Value::String(flag.clone()).to_string()).collect();
        format!("target.{}.rustflags=[{}]", self.rust.target, list.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_understood() {
        let names = Toolchain::names().expect("toolchains");
        assert_eq!(names, ["bf3", "cx7", "cx8", "emu"]);
        for name in &names {
            let toolchain = Toolchain::load(name).expect(name);
            let isa = toolchain.isa().expect("isa");
            assert!(toolchain.required.iter().all(|extension| isa.runs(extension)), "{name}");
            assert_eq!(toolchain.vendor.is_none(), name == "emu");
            assert_eq!(toolchain.rust.script.is_some(), name == "emu");
            if let Some(vendor) = &toolchain.vendor {
                assert!(!vendor.extensions.is_empty(), "{name}");
                assert!(vendor.stack_bytes < toolchain.stack_bytes, "{name}: nothing is left for our own code");
            }
            for extension in &toolchain.required {
                assert!(toolchain.rust.flags[0].contains(&format!("+{extension}")), "{name}: +{extension}");
            }
        }
    }

    #[test]
    fn only_connectx_8_has_zba() {
        for name in ["bf3", "cx7", "emu"] {
            let toolchain = Toolchain::load(name).expect(name);
            assert!(!toolchain.isa().expect("isa").runs("zba"), "{name}");
        }
        assert!(Toolchain::load("cx8").expect("cx8").isa().expect("isa").runs("zba"));
    }

    #[test]
    fn all_have_the_drafts_of_their_processors_and_none_asks_rustc_for_them() {
        for name in Toolchain::names().expect("toolchains") {
            let toolchain = Toolchain::load(&name).expect("a toolchain");
            for draft in ["zbp", "zbr"] {
                assert!(toolchain.isa().expect("isa").runs(draft), "{name}");
                assert!(!toolchain.rust.flags.concat().contains(draft), "{name}");
            }
        }
    }

    #[test]
    fn an_unknown_toolchain_lists_the_known_ones() {
        let error = Toolchain::load("bf4").expect_err("unknown").to_string();
        assert_eq!(error, "no toolchain `bf4`; there are: bf3, cx7, cx8, emu (toolchains/*.toml)");
    }

    #[test]
    fn flags_reach_cargo_quoted() {
        let toolchain = Toolchain::load("emu").expect("emu");
        let config = toolchain.cargo_config(&["-Ca".to_owned(), "a \"b\"".to_owned()]);
        assert!(config.starts_with("target.riscv64imac-unknown-none-elf.rustflags=[\"-Ca\","), "{config}");
        let parsed: toml::Table = toml::from_str(&config).expect("valid TOML");
        assert!(parsed.to_string().contains("rustflags"));
    }
}
