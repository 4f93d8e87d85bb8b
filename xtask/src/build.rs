use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};
use flexcast_image::Image;

use crate::toolchain::Toolchain;
use crate::{manifest, new_file, process, status, vendor, workspace};

/// Build device images.
#[derive(clap::Args)]
pub(crate) struct Build {
    /// Images to build [default: all of device/images].
    images: Vec<String>,
    /// What to build for: a file of toolchains/.
    #[arg(long, default_value = "emu")]
    toolchain: String,
    /// Print the commands instead of running them.
    #[arg(long)]
    dry_run: bool,
}

impl Build {
    pub(crate) fn run(&self) -> Result<()> {
        let toolchain = Toolchain::load(&self.toolchain)?;
        let images = workspace::select_images(&self.images)?;
        if self.dry_run {
            return dry_run(&toolchain, &images);
        }
        let files = build(&toolchain, &images)?;
        manifest::require(&toolchain, &images, &files)
    }
}

/// Longest line of a command that is printed, where a single word is not longer.
const COLUMNS: usize = 120;

/// Prints the commands, and what would come of them.
pub(crate) fn dry_run(toolchain: &Toolchain, images: &[String]) -> Result<()> {
    let mut products = Vec::new();
    if toolchain.vendor.is_some() {
        status::print(format_args!(
            "mkdir -p {}",
            process::quote(&workspace::image_dir(&toolchain.name).to_string_lossy())
        ))?;
    }
    for image in images {
        let commands = match &toolchain.vendor {
            Some(vendor) => vendor::plan(toolchain, vendor, image)?,
            None => vec![("compile and link".to_owned(), cargo_build(toolchain, image)?)],
        };
        for (what, command) in commands {
            status::print(format_args!("# {image}: {what}\n{}", process::lines(&command, COLUMNS)))?;
        }
        let files = vendor::Products::of(toolchain, image);
        products.push((files.elf, "the image"));
        if toolchain.vendor.is_some() {
            products.push((files.object, "our own code, before the vendor's is linked to it"));
            products.push((files.map, "which file each byte comes from, for `verify`"));
            products.push((files.fatbin, "the image for hosts that load from a fat binary"));
        }
    }
    status::print(format_args!("# nothing was run; this would come out, for {}:", toolchain.description))?;
    for (file, what) in products {
        status::print(format_args!("#   {}: {what}", file.strip_prefix(workspace::root()).unwrap_or(&file).display()))?;
    }
    if let Some(vendor) = &toolchain.vendor {
        let missing = vendor::missing(vendor);
        let tools = if missing.is_empty() { "all are there".to_owned() } else { missing.join("\n#   ") };
        status::print(format_args!(
            "# the vendor's tools and files ({}, {}):\n#   {tools}",
            vendor.doca.variable, vendor.flexio.variable
        ))?;
    }
    Ok(())
}

/// Builds images and returns where they are.
pub(crate) fn build(toolchain: &Toolchain, images: &[String]) -> Result<Vec<PathBuf>> {
    if let Some(vendor) = &toolchain.vendor {
        vendor::require(vendor)?;
        share_host_products(toolchain)?;
    }
    ensure_target(&toolchain.rust.target)?;
    images.iter().map(|image| build_one(toolchain, image)).collect()
}

fn build_one(toolchain: &Toolchain, image: &str) -> Result<PathBuf> {
    status::say("Building", format_args!("image {image} for {}", toolchain.description));
    let elf = workspace::image_dir(&toolchain.name).join(format!("{image}.elf"));
    std::fs::create_dir_all(workspace::image_dir(&toolchain.name))?;
    match &toolchain.vendor {
        Some(vendor) => {
            for (_, mut command) in vendor::plan(toolchain, vendor, image)? {
                process::run(&mut command)?;
            }
        }
        None => {
            process::run(&mut cargo_build(toolchain, image)?)?;
            let built = workspace::device_target().join(&toolchain.rust.target).join("release").join(image);
            copy(&built, &elf)?;
        }
    }
    check_attributes(toolchain, &elf)?;
    Ok(elf)
}

/// Macros and build scripts run on the host, whoever links the image: what cargo has compiled of them for the emulated
/// card serves here, too. The link only saves time: where it cannot be made, or another process has just made it, cargo
/// goes on without.
fn share_host_products(toolchain: &Toolchain) -> Result<()> {
    let ours = workspace::vendor_target(&toolchain.name);
    // Also where the link is there: cargo makes no folder behind one that leads nowhere.
    std::fs::create_dir_all(workspace::device_target().join("release"))?;
    std::fs::create_dir_all(&ours)?;
    let _ = std::os::unix::fs::symlink("../release", ours.join("release"));
    Ok(())
}

fn cargo_build(toolchain: &Toolchain, image: &str) -> Result<Command> {
    let mut command = workspace::device_cargo();
    command.args(["rustc", "--release", "--package", image, "--bin", image, "--target", &toolchain.rust.target]);
    command.args(["--config", &toolchain.cargo_config(&toolchain.rustflags()?)]);
    // For the program alone. Among the flags of all crates it would have every crate built anew whenever an image is
    // built after something else for the same target (rt-emu's archive, device/virt), and the other way round: cargo
    // keeps one build of a crate for all flags.
    if let Some(script) = &toolchain.rust.script {
        command.args(["--".to_owned(), format!("-Clink-arg=-T{}", workspace::root().join(script).display())]);
        command.arg("-Clink-arg=--build-id=sha1");
    }
    Ok(command)
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let new = std::fs::read(from).with_context(|| format!("cargo built nothing at {}", from.display()))?;
    // An unchanged image keeps its time, so that nothing is rebuilt for it. A changed one is replaced as a whole: a
    // program that reads it at this moment sees the old or the new file.
    if std::fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    new_file::write(to, new).with_context(|| format!("writing {}", to.display()))
}

/// `RUSTFLAGS` and the like replace the flags of a configuration without a word; the image says what it was built
/// with.
fn check_attributes(toolchain: &Toolchain, elf: &Path) -> Result<()> {
    if toolchain.vendor.is_some() {
        // The vendor's linker writes the attributes of its own processor; `verify` compares them.
        return Ok(());
    }
    let bytes = std::fs::read(elf).with_context(|| format!("reading {}", elf.display()))?;
    let image = Image::parse(&bytes).with_context(|| format!("{}", elf.display()))?;
    let arch = image.arch().unwrap_or_default();
    let built: Vec<_> = flexcast_isa::names(arch).map_err(|error| anyhow!("{}: {error}", elf.display()))?.collect();
    if let Some(missing) = toolchain.required.iter().find(|extension| !built.contains(&extension.as_str())) {
        bail!(
            "{} was built without {missing} (its attributes say {arch}); is a RUSTFLAGS variable or a cargo \
             configuration above this folder in the way?",
            elf.display()
        );
    }
    Ok(())
}

/// Installs the standard library of the target, or says what to do.
pub(crate) fn ensure_target(target: &str) -> Result<()> {
    if has_target(target)? {
        return Ok(());
    }
    if process::find("rustup").is_none() {
        bail!(
            "rustc has no standard library for {target} and rustup is not installed: install the target with your \
             distribution's rustc package, or rustup from https://rustup.rs"
        );
    }
    status::say("Adding", format_args!("rust target {target}"));
    process::run(Command::new("rustup").args(["target", "add", target]).current_dir(workspace::root()))
        .with_context(|| format!("installing the target; run `rustup target add {target}` when online"))
}

pub(crate) fn has_target(target: &str) -> Result<bool> {
    let mut command = Command::new("rustc");
    command.args(["--print", "target-libdir", "--target", target]).current_dir(workspace::root());
    Ok(Path::new(process::capture(&mut command)?.trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_environment_reaches_the_flags() {
        let command = cargo_build(&Toolchain::load("emu").expect("emu"), "reference").expect("command");
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(removed.contains(&std::ffi::OsStr::new("RUSTFLAGS")), "{removed:?}");
        let line = process::line(&command);
        for part in ["+zbb,+zbs", "linker/emu.ld", "--remap-path-prefix=", "--package reference", "--release"] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn crates_have_the_same_flags_in_whatever_is_built_of_them() {
        let toolchain = Toolchain::load("emu").expect("emu");
        let command = cargo_build(&toolchain, "reference").expect("command");
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        let shared = toolchain.cargo_config(&toolchain.rustflags().expect("flags"));
        assert!(arguments.iter().any(|argument| *argument == shared), "{shared} among {arguments:?}");
        assert!(!shared.contains("link-arg"), "{shared}");
        let own = arguments.iter().position(|argument| argument == "--").expect("arguments of the program alone");
        let is_own = |argument: &str| argument.contains("linker/emu.ld") || argument.contains("--build-id");
        assert!(arguments[own + 1..].iter().all(|argument| is_own(argument)), "{arguments:?}");
    }

    #[test]
    fn flags_are_the_same_in_every_copy_of_the_tree() {
        let flags = Toolchain::load("emu").expect("emu").rustflags().expect("flags");
        let root = workspace::root().display().to_string();
        assert!(flags.iter().any(|flag| flag.starts_with("--remap-path-prefix=")), "{flags:?}");
        assert!(flags.iter().all(|flag| !flag.contains(&root)), "{flags:?}: `reproducible` names it");
    }

    #[test]
    fn copying_replaces_only_what_changed() {
        let dir = tempfile::tempdir().expect("directory");
        let (from, to) = (dir.path().join("from"), dir.path().join("to.elf"));
        std::fs::write(&from, "one").expect("write");
        copy(&from, &to).expect("new");
        let time = to.metadata().expect("there").modified().expect("time");
        copy(&from, &to).expect("same");
        assert_eq!(to.metadata().expect("there").modified().expect("time"), time);
        std::fs::write(&from, "two").expect("write");
        copy(&from, &to).expect("changed");
        assert_eq!(std::fs::read_to_string(&to).expect("there"), "two");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 2, "no part is left");
        assert!(copy(&dir.path().join("absent"), &to).is_err());
    }
}
