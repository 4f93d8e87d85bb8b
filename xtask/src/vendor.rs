//! Linking with an installed DOCA: which commands, in which order, and what is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::toolchain::{Toolchain, Vendor};
use crate::{process, workspace};

/// A command and what it is for.
pub(crate) type Step = (String, Command);

/// Rust's linker joins an object by this script, relative to the root: log strings do not take memory of the card.
const OBJECT_SCRIPT: &str = "linker/log-strings.ld";

/// The files that the commands leave behind for one image.
pub(crate) struct Products {
    /// Our own code, as the vendor's linker gets it.
    pub(crate) object: PathBuf,
    /// The image.
    pub(crate) elf: PathBuf,
    /// Which file each byte of the image comes from.
    pub(crate) map: PathBuf,
    /// The image in a fat binary.
    pub(crate) fatbin: PathBuf,
}

impl Products {
    pub(crate) fn of(toolchain: &Toolchain, image: &str) -> Self {
        Self::next_to(&workspace::image_dir(&toolchain.name).join(format!("{image}.elf")))
    }

    /// Those next to an image that was linked before.
    pub(crate) fn next_to(elf: &Path) -> Self {
        let named = |extension| elf.with_extension(extension);
        Self { object: named("o"), elf: elf.to_owned(), map: named("map"), fatbin: named("fatbin") }
    }
}

/// The commands that make `image`, in order.
pub(crate) fn plan(toolchain: &Toolchain, vendor: &Vendor, image: &str) -> Result<Vec<Step>> {
    let products = Products::of(toolchain, image);
    let object = workspace::vendor_target(&toolchain.name).join(&toolchain.rust.target).join("release").join(image);
    let doca = vendor.doca.path();

    let mut compile = workspace::device_cargo();
    // A folder of its own: an image for the emulated card has the same name, and cargo keeps one build of a crate for
    // all flags.
    compile.env("CARGO_TARGET_DIR", workspace::vendor_target(&toolchain.name));
    let mut flags = toolchain.rustflags()?;
    flags.push("-Clink-dead-code=yes".to_owned());
    compile.args(["rustc", "--release", "--package", image, "--bin", image, "--no-default-features"]);
    compile.args(["--target", &toolchain.rust.target, "--config", &toolchain.cargo_config(&flags)]);
    // One relocatable object: rustc's linker joins the crate with what it uses and leaves flexio_dev_* open. For the
    // program alone, as in `build::cargo_build`.
    compile.args(["--", "-Clink-arg=-r"]);
    compile.arg(format!("-Clink-arg=-T{}", workspace::root().join(OBJECT_SCRIPT).display()));

    // An older vendor linker may reject the newer extension names that rustc writes, and cannot read the bitcode that
    // Rust's own libraries bring along with their machine code. Unwind tables would be loaded, and nothing unwinds.
    let mut strip = objcopy()?;
    for section in [".riscv.attributes", ".llvmbc", ".llvmcmd", ".eh_frame"] {
        strip.arg(format!("--remove-section={section}"));
    }
    strip.arg(&object).arg(&products.object);

    let mut link = Command::new(doca.join(&vendor.clang));
    link.args(&vendor.link_flags).arg(format!("-mcpu={}", vendor.cpu));
    link.arg("-T").arg(first_existing(&doca, &vendor.scripts)).arg(&products.object);
    let flexio = vendor.flexio.path();
    for library in &vendor.libraries {
        link.arg(format!("-L{}", flexio.join(library).display()));
    }
    link.arg("-Wl,--whole-archive,--start-group");
    link.args(vendor.whole_archives.iter().map(|name| format!("-l{name}")));
    link.arg("-Wl,--end-group,--no-whole-archive");
    link.args(vendor.archives.iter().map(|name| format!("-l{name}")));
    // `verify` learns from the map which code is ours.
    link.arg(format!("-Wl,-Map={}", products.map.display())).arg("-o").arg(&products.elf);

    // Only for hosts that find the program by name in a fat binary; flexio_app_create takes the ELF itself.
    let mut pack = Command::new(doca.join(&vendor.fatbin));
    pack.arg("--create").arg(format!("--arch-member={},exec={}", vendor.cpu, products.elf.display()));
    pack.arg(&products.fatbin);

    Ok(vec![
        ("compile to one object of machine code".to_owned(), compile),
        ("drop what the card and its tools have no use for".to_owned(), strip),
        ("link with the vendor's library and script".to_owned(), link),
        ("pack for hosts that load from a fat binary".to_owned(), pack),
    ])
}

/// rustc's own objcopy; it reads RISC-V whatever the distribution's does.
fn objcopy() -> Result<Command> {
    let print = |what: &str| {
        process::capture(Command::new("rustc").args(["--print", what]).current_dir(workspace::root()))
            .map(|path| PathBuf::from(path.trim()))
    };
    let own = print("target-libdir")?.with_file_name("bin").join("rust-objcopy");
    if !own.is_file() {
        return Ok(Command::new("llvm-objcopy"));
    }
    let mut command = Command::new(own);
    command.env("LD_LIBRARY_PATH", print("sysroot")?.join("lib"));
    Ok(command)
}

fn first_existing(base: &Path, candidates: &[PathBuf]) -> PathBuf {
    let paths: Vec<PathBuf> = candidates.iter().map(|candidate| base.join(candidate)).collect();
    paths.iter().find(|path| path.exists()).or(paths.first()).cloned().unwrap_or_else(|| base.to_owned())
}

/// What of the vendor's tools is missing, one sentence per thing with the paths that were checked.
pub(crate) fn missing(vendor: &Vendor) -> Vec<String> {
    let (doca, flexio) = (vendor.doca.path(), vendor.flexio.path());
    let mut missing = Vec::new();
    for tool in [&vendor.clang, &vendor.fatbin] {
        let path = doca.join(tool);
        if !process::is_program(&path) {
            missing.push(format!("{}: not found at {}", name(tool), path.display()));
        }
    }
    let places: Vec<PathBuf> = vendor.scripts.iter().map(|script| doca.join(script)).collect();
    if !places.iter().any(|path| path.exists()) {
        missing.push(format!("dpa_linker.ld: not found at {}", list(&places)));
    }
    // Other archives may lie where the vendor's clang searches by itself.
    for archive in &vendor.whole_archives {
        let places: Vec<PathBuf> =
            vendor.libraries.iter().map(|dir| flexio.join(dir).join(format!("lib{archive}.a"))).collect();
        if !places.iter().any(|path| path.exists()) {
            missing.push(format!("lib{archive}.a: not found at {}", list(&places)));
        }
    }
    missing
}

/// Fails with a list where anything is missing.
pub(crate) fn require(vendor: &Vendor) -> Result<()> {
    let missing = missing(vendor);
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "DOCA is not (fully) installed:\n  {}\nset {} and {} where it lies elsewhere; `--dry-run` shows the commands; \
         `--toolchain emu` needs none of it",
        missing.join("\n  "),
        vendor.doca.variable,
        vendor.flexio.variable,
    );
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf3_without_doca() -> (Toolchain, Vendor) {
        let toolchain = Toolchain::load("bf3").expect("bf3");
        let mut vendor = toolchain.vendor.clone().expect("vendor");
        vendor.doca.variable = "FLEXCAST_TEST_NO_SUCH_VARIABLE".to_owned();
        vendor.doca.default = PathBuf::from("/nowhere/doca");
        vendor.flexio = vendor.doca.clone();
        (toolchain, vendor)
    }

    #[test]
    fn the_commands_come_in_order_and_without_bitcode() {
        let (toolchain, vendor) = bf3_without_doca();
        let plan = plan(&toolchain, &vendor, "reference").expect("plan");
        let lines: Vec<String> = plan.iter().map(|(_, command)| process::line(command)).collect();
        let [compile, strip, link, pack] = &lines[..] else { panic!("{lines:#?}") };
        assert!(compile.contains("-Clink-arg=-r") && compile.contains("--no-default-features"), "{compile}");
        assert!(!compile.contains("linker-plugin-lto"), "{compile}");
        assert!(compile.contains("linker/log-strings.ld") && compile.contains("target/device/cargo/bf3"), "{compile}");
        for section in [".riscv.attributes", ".llvmbc", ".llvmcmd", ".eh_frame"] {
            assert!(strip.contains(&format!("--remove-section={section}")), "{strip}");
        }
        let order = [
            "-fPIE",
            "-nostdlib",
            "-static",
            "-mcpu=nv-dpa-bf3",
            "-T",
            "reference.o",
            "--whole-archive",
            "-lflexio_dev",
            "-Map=",
        ];
        let positions: Vec<_> =
            order.iter().map(|part| link.find(part).unwrap_or_else(|| panic!("{part} in {link}"))).collect();
        assert!(positions.is_sorted(), "{link}");
        assert!(link.starts_with("/nowhere/doca/tools/dpa-clang "), "{link}");
        assert!(pack.starts_with("/nowhere/doca/tools/dpa-fatbin --create --arch-member=nv-dpa-bf3"), "{pack}");
    }

    #[test]
    fn what_is_missing_is_listed_with_the_places() {
        let (_, vendor) = bf3_without_doca();
        let text = require(&vendor).expect_err("no DOCA").to_string();
        for part in [
            "dpa-clang: not found at /nowhere/doca/tools/dpa-clang",
            "dpa-fatbin: not found at",
            "dpa_linker.ld: not found at /nowhere/doca/tools/dpa_llvm/ldscripts/dpa_linker.ld, /nowhere/doca/lib",
            "libflexio_dev.a: not found at /nowhere/doca/lib/bf3/libflexio_dev.a, /nowhere/doca/lib/libflexio_dev.a",
            "--dry-run",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn log_strings_lie_alike_on_the_card_and_on_the_emulated_one() {
        let section = |script: &str| {
            let text = std::fs::read_to_string(workspace::root().join("linker").join(script)).expect(script);
            let start = text.find("    .defmt 1 (INFO) :").expect("the section");
            let end = start + text[start..].find("\n    }\n").expect("its end");
            text[start..end].to_owned()
        };
        assert_eq!(section("log-strings.ld"), section("emu.ld"));
    }
}
