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
        println!("{}", build()?.display());
        Ok(())
    }
}

/// Builds the libraries and returns the folder that `-L` and `LD_LIBRARY_PATH` take.
pub(crate) fn build() -> Result<PathBuf> {
    let folder = workspace::root().join("target/emu-libs");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let target = workspace::target_dir()?;
    for (package, built, name) in LIBRARIES {
        status::say("Building", format_args!("{name} from {package}"));
        process::run(workspace::cargo().args(["build", "--release", "--package", package]))?;
        let from = target.join("release").join(built);
        std::fs::copy(&from, folder.join(name)).with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(folder)
}
