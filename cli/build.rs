//! Device images within the program: a release build holds them, so that what `cargo install --locked --path cli`
//! installs works in any folder.
//!
//! They are built as `cargo xtask build` builds them, by the same code. Builds with cargo's profiles for tests hold
//! none, and build none: they find those of `target/device/emu`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

/// Images that commands load by name.
const IMAGES: [&str; 5] = ["allgather", "calibration", "pingpong", "reference", "sparse"];

/// What they are built from, and by, below the root of the repository.
const SOURCES: [&str; 16] = [
    "device/Cargo.toml",
    "device/Cargo.lock",
    "device/datapath",
    "device/dpa",
    "device/dpa-macros",
    "device/rt-emu",
    "device/images/allgather",
    "device/images/calibration",
    "device/images/pingpong",
    "device/images/reference",
    "device/images/sparse",
    "shared",
    "linker",
    "toolchains/emu.toml",
    "xtask/src",
    "rust-toolchain.toml",
];

/// The program `cargo xtask`, where it is what runs this build: it need not be built once more.
const XTASK: &str = "FLEXCAST_XTASK";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(variable("OUT_DIR"));
    let mut names: &[&str] = &[];
    if variable("PROFILE") == "release" {
        let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
        for source in SOURCES {
            println!("cargo::rerun-if-changed={}", root.join(source).display());
        }
        if let Err(why) = build(&root, &out) {
            for line in why.lines() {
                println!("cargo::error={line}");
            }
            return ExitCode::FAILURE;
        }
        names = &IMAGES;
    }
    let held = names.iter().map(|name| format!("    ({name:?}, include_bytes!(\"images/emu/{name}.elf\")),\n"));
    let text = format!("&[\n{}]\n", held.collect::<String>());
    if let Err(error) = std::fs::write(out.join("images.rs"), text) {
        println!("cargo::error={}: {error}", out.join("images.rs").display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Builds the images into `images/emu` of a folder, or says why not and what to do.
fn build(root: &Path, out: &Path) -> Result<(), String> {
    let mut command = match std::env::var_os(XTASK) {
        Some(xtask) => Command::new(xtask),
        None => {
            let mut cargo = Command::new(variable("CARGO"));
            cargo.args(["run", "--quiet", "--package", "xtask"]);
            // A folder of its own: the one of this build is locked until this script has ended.
            cargo.arg("--target-dir").arg(root.join("target/xtask")).arg("--");
            // It runs once, for moments: nothing is kept for a next build. What it builds has settings of its own.
            cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_INCREMENTAL", "0");
            cargo
        }
    };
    command.arg("build").args(IMAGES).current_dir(root).env("FLEXCAST_IMAGE_FOLDER", out.join("images"));
    for variable in ["FLEXCAST_ROOT", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR"] {
        command.env_remove(variable);
    }
    match command.output() {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        Ok(Output { status, stderr, .. }) => {
            let said = String::from_utf8_lossy(&stderr);
            Err(format!(
                "the device images cannot be built ({status}); `cargo xtask doctor` says what is missing\n{said}"
            ))
        }
        Err(error) => Err(format!("the device images cannot be built: {}: {error}", command.get_program().display())),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
