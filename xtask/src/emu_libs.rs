use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::{process, status, workspace};

/// Build the emulator's C libraries into target/emu-libs.
#[derive(clap::Args)]
pub(crate) struct BuildEmuLibs {}

/// Package, the shared library that cargo makes of it, and the name that C programs link.
const LIBRARIES: [(&str, &str, &str); 3] = [
    ("emu-libflexio", "libemu_libflexio.so", "libflexio.so"),
    ("emu-libibverbs", "libemu_libibverbs.so", "libibverbs.so"),
    ("emu-libdoca", "libemu_libdoca.so", "libdoca_common.so"),
];

impl BuildEmuLibs {
    pub(crate) fn run(&self) -> Result<()> {
        println!("{}", build("release")?.display());
        Ok(())
    }
}

/// Builds the libraries and returns the folder that `-L` and `LD_LIBRARY_PATH` take. `profile` is cargo's; "test" shares
/// its products with `cargo test`.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    let folder = workspace::root().join("target/emu-libs");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let built_in = workspace::target_dir()?.join(if profile == "release" { "release" } else { "debug" });
    for (package, built, name) in LIBRARIES {
        status::say("Building", format_args!("{name} from {package}"));
        process::run(workspace::cargo().args(["build", "--profile", profile, "--package", package]))?;
        let from = built_in.join(built);
        std::fs::copy(&from, folder.join(name)).with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(folder)
}
