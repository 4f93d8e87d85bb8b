use std::process::Command;

use anyhow::{Result, bail};

use crate::toolchain::Toolchain;
use crate::{build, fuzz, miri, process, status, vendor, workspace};

/// Say what of the needed tools is installed.
#[derive(clap::Args)]
pub(crate) struct Doctor {}

impl Doctor {
    pub(crate) fn run(&self) -> Result<()> {
        let mut missing = 0;
        let mut line = |needed: &str, name: &str, found: Option<String>, hint: &str| -> Result<()> {
            let (mark, detail) = match &found {
                Some(found) => ("ok", found.as_str()),
                None => ("missing", hint),
            };
            status::print(format_args!("{mark:>8}  {name:<28} {detail}"))?;
            if found.is_none() && needed == REQUIRED {
                missing += 1;
            }
            Ok(())
        };
        status::print(format_args!("to build, run and test (no card needed)"))?;
        line(REQUIRED, "rustc", version("rustc"), "install rustup: https://rustup.rs")?;
        line(REQUIRED, "cargo fmt, clippy", both_components(), "rustup component add rustfmt clippy")?;
        let target = &Toolchain::load("emu")?.rust.target;
        let installed = build::has_target(target)?.then(|| "installed".to_owned());
        line(REQUIRED, target, installed, &format!("rustup target add {target} (`cargo xtask build` does it)"))?;
        let gcc = process::find("gcc").map(|path| path.display().to_string());
        line(REQUIRED, "gcc", gcc, "apt-get install gcc libc6-dev: the test of the C interface compiles with it")?;
        status::print(format_args!("\nfor some tests, which say so when they skip"))?;
        for (program, package, use_) in REFERENCES {
            let found = process::find(program).map(|path| path.display().to_string());
            line(OPTIONAL, program, found, &format!("apt-get install {package}: {use_}"))?;
        }
        let compiler = fuzz::compiler().map(|path| path.display().to_string());
        line(OPTIONAL, "C++ compiler", compiler, "apt-get install g++: fuzzing beyond the committed inputs")?;
        status::print(format_args!("\nfor `cargo xtask miri` and `cargo xtask deny`, which say so when they skip"))?;
        let absent = miri::absent()?;
        let found = absent.is_none().then(|| "installed".to_owned());
        line(OPTIONAL, "Miri", found, &absent.unwrap_or_default())?;
        let deny = process::find("cargo-deny").map(|path| path.display().to_string());
        line(OPTIONAL, "cargo-deny", deny, "cargo install --locked cargo-deny")?;
        status::print(format_args!("\nfor `cargo xtask compare`, which says what it leaves out"))?;
        for (program, package, use_) in COMPARED {
            let found = process::find(program).map(|path| path.display().to_string());
            line(OPTIONAL, program, found, &format!("apt-get install {package}: {use_}"))?;
        }
        status::print(format_args!("\nfor `cargo xtask python-check`"))?;
        let python = process::find("python3").map(|path| path.display().to_string());
        line(
            OPTIONAL,
            "python3",
            python,
            "apt-get install python3 python3-venv: the Python package is tested with it",
        )?;
        status::print(format_args!("\nfor `cargo xtask bindgen` only"))?;
        let clang = process::find("clang").or_else(libclang).map(|path| path.display().to_string());
        line(OPTIONAL, "libclang", clang, "apt-get install libclang-dev")?;
        status::print(format_args!("\nfor a card (all of it from DOCA)"))?;
        for name in Toolchain::names()? {
            let Some(vendor) = Toolchain::load(&name)?.vendor else { continue };
            let absent = vendor::missing(&vendor);
            let found = absent.is_empty().then(|| vendor.doca.path().display().to_string());
            line(OPTIONAL, &format!("toolchain {name}"), found, &absent.join("\n          "))?;
        }
        if missing > 0 {
            bail!("{missing} required tools are missing");
        }
        Ok(())
    }
}

/// External programs that tests compare with: name, Debian package, what for.
pub(crate) const REFERENCES: &[(&str, &str, &str)] = &[
    ("qemu-riscv64", "qemu-user", "instruction semantics are compared with it"),
    ("qemu-system-riscv64", "qemu-system-misc", "runs of the datapath are compared with it"),
    ("tshark", "tshark, with python3-scapy for check sequences", "captures of packets are dissected with it"),
    ("gdb-multiarch", "gdb-multiarch", "core dumps and the debugger of the emulated card are read with it"),
    ("clang", "clang lld llvm", "images for a card are linked by it and its kin in place of the vendor's tools"),
    ("ld.lld", "lld", "the same"),
    ("llvm-mc", "llvm", "encodings of draft bit manipulation are compared with its own"),
    ("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf", "device programs in C are compiled with it"),
    ("chromium", "chromium", "the page of the evaluation is opened with it"),
    ("ibv_rc_pingpong", "ibverbs-utils", "it and its kin run unmodified between two emulated cards"),
    ("ib_send_bw", "perftest", "the same"),
    ("sshd", "openssh-server openssh-client", "images are deployed to it by `cargo xtask deploy --to`"),
];

/// Programs of the comparison with other libraries: name, Debian package, what for. docs/compare.md has MPICH and gloo.
const COMPARED: &[(&str, &str, &str)] = &[
    ("ip", "iproute2", "makes the hosts"),
    ("mpicc", "openmpi-bin libopenmpi-dev", "one of the libraries"),
    ("nft", "nftables", "drops packets for --loss"),
    ("ethtool", "ethtool", "switches offloads off for --gso off"),
];

const REQUIRED: &str = "required";
const OPTIONAL: &str = "optional";

fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").current_dir(workspace::root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn both_components() -> Option<String> {
    Some(format!("{}, {}", version("rustfmt")?, version("cargo-clippy")?))
}

/// libclang without the clang program: Debian keeps it in versioned folders.
fn libclang() -> Option<std::path::PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    let mut found: Vec<_> = folders
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("llvm-")))
        .map(|path| path.join("lib/libclang.so"))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found.pop()
}
