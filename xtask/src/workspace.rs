//! Folders of the workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail};

use crate::{process, reproducible};

/// Root of the repository: this crate lives one level below. The variable `FLEXCAST_ROOT` names another one; tests work
/// on copies with it.
pub(crate) fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os("FLEXCAST_ROOT") {
        Some(root) => root.into(),
        None => own_root().to_owned(),
    });
    &ROOT
}

/// Root of the tree that this program was compiled in. The command-line tool is built there even where `FLEXCAST_ROOT`
/// names a copy of what images are built from.
pub(crate) fn own_root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned());
    &ROOT
}

/// Variables that would replace the flags of toolchains/*.toml, silently dropping extensions and linker script.
const FLAG_VARIABLES: [&str; 4] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_TARGET_RISCV64IMAC_UNKNOWN_NONE_ELF_RUSTFLAGS",
];

/// Cargo, in the root of the repository.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Cargo for device/: nothing in the environment may change its flags, and its output has a directory of its own.
pub(crate) fn device_cargo() -> Command {
    let mut command = cargo();
    command.current_dir(root().join("device"));
    for variable in FLAG_VARIABLES {
        command.env_remove(variable);
    }
    command.env_remove("CARGO_BUILD_TARGET").env_remove("RUSTC_WORKSPACE_WRAPPER");
    // What an environment asks of the host's programs changes no firmware.
    std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PROFILE_")).for_each(
        |(name, _)| {
            command.env_remove(name);
        },
    );
    command.env("CARGO_TARGET_DIR", device_target());
    reproducible::wrap(&mut command);
    command
}

/// Where cargo puts the products of device/.
pub(crate) fn device_target() -> PathBuf {
    root().join("target/device/cargo")
}

/// The same for a toolchain whose vendor links.
pub(crate) fn vendor_target(toolchain: &str) -> PathBuf {
    device_target().join(toolchain)
}

/// Where finished images of a toolchain lie. The variable `FLEXCAST_IMAGE_FOLDER` names another folder to hold that of
/// each toolchain: tests link with stand-ins of the vendor's tools, and nobody is to load the outcome on a card.
pub(crate) fn image_dir(toolchain: &str) -> PathBuf {
    let folder = std::env::var_os("FLEXCAST_IMAGE_FOLDER").map(PathBuf::from);
    folder.unwrap_or_else(|| root().join("target/device")).join(toolchain)
}

/// Names of the images: folders of device/images.
pub(crate) fn images() -> Result<Vec<String>> {
    let dir = root().join("device/images");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.join("Cargo.toml").is_file() {
            names.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// The images asked for, or all; an unknown name lists the known ones.
pub(crate) fn select_images(wanted: &[String]) -> Result<Vec<String>> {
    let known = images()?;
    if let Some(name) = wanted.iter().find(|name| !known.contains(name)) {
        bail!("no image `{name}` in device/images; there are: {} (`cargo xtask new NAME` makes one)", known.join(", "));
    }
    Ok(if wanted.is_empty() { known } else { wanted.to_vec() })
}

/// `cargo build` of a target (`--lib`, `--bin NAME`, ...) of a package of the host workspace.
///
/// Cargo compiles a crate once more for every other set of features, and a package alone asks for fewer of them than
/// all packages do: built alone on the way to a test, the emulator would be compiled a second time. So with the profile
/// of the tests the target is built as `cargo test --workspace` builds it, and with it those of other packages that
/// fit.
pub(crate) fn cargo_build(profile: &str, package: &str, target: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["build", "--profile", profile]).args(target);
    match profile {
        TESTS_PROFILE => command.arg("--workspace"),
        _ => command.args(["--package", package]),
    };
    command
}

/// Cargo's name of the profile that tests are built with.
pub(crate) const TESTS_PROFILE: &str = "dev";

/// Cargo's name of the profile that users get.
pub(crate) const RELEASE: &str = "release";

/// Names the cargo profile of the command-line tool, in place of the one that users get.
pub(crate) const CLI_PROFILE: &str = "FLEXCAST_CLI_PROFILE";

/// Settings of cargo's for a program that runs for moments.
const QUICK: &str = "xtask/quick.toml";

/// Builds the command-line tool and returns its path.
pub(crate) fn cli() -> Result<PathBuf> {
    cli_of(&std::env::var(CLI_PROFILE).unwrap_or_else(|_| RELEASE.to_owned()))
}

/// The same for moments of work: built sooner, with the settings of [`QUICK`], on what `cargo xtask` itself was built
/// of.
pub(crate) fn quick_cli() -> Result<PathBuf> {
    match std::env::var(CLI_PROFILE) {
        Ok(profile) => cli_of(&profile),
        Err(_) => program("flexcast-cli", "flexcast", TESTS_PROFILE, Some(QUICK)),
    }
}

/// The same with another profile of cargo's.
pub(crate) fn cli_of(profile: &str) -> Result<PathBuf> {
    program("flexcast-cli", "flexcast", profile, None)
}

/// Builds a program of a package, and returns its path. `settings`: a file of them, relative to the root, above those
/// of the profile.
pub(crate) fn program(package: &str, name: &str, profile: &str, settings: Option<&str>) -> Result<PathBuf> {
    let mut command = cargo_build(profile, package, &["--bin", name]);
    command.current_dir(own_root());
    command.args(settings.iter().flat_map(|file| ["--config", *file]));
    if let Ok(own) = std::env::current_exe() {
        // Its build script needs this program to build the images that it holds.
        command.env("FLEXCAST_XTASK", own);
    }
    process::run(&mut command)?;
    let target = metadata(&own_root().join("Cargo.toml"))?.target_directory;
    let path = target.into_std_path_buf().join(profile_folder(profile)).join(name);
    if !path.is_file() {
        bail!("cargo built {package}, but {} is not there", path.display());
    }
    Ok(path)
}

/// Builds the C interface of the collective library, and returns the archive.
pub(crate) fn c_library(profile: &str) -> Result<PathBuf> {
    process::run(cargo_build(profile, "flexcast-capi", &["--lib"]).current_dir(own_root()))?;
    let target = metadata(&own_root().join("Cargo.toml"))?.target_directory.into_std_path_buf();
    Ok(target.join(profile_folder(profile)).join("libflexcast.a"))
}

/// Cargo's target directory of the host workspace, which the environment may move.
pub(crate) fn target_dir() -> Result<PathBuf> {
    Ok(metadata(&root().join("Cargo.toml"))?.target_directory.into_std_path_buf())
}

/// Packages of a workspace, without their dependencies' packages.
pub(crate) fn metadata(manifest: &Path) -> Result<cargo_metadata::Metadata> {
    cargo_metadata::MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .exec()
        .with_context(|| format!("cargo metadata of {}", manifest.display()))
}

/// What stands for [`root`] in an image.
pub(crate) const ROOT_NAME: &str = "flexcast";

/// Parts of paths that tell who built an image, and what stands for them instead; more specific ones later, as the
/// last match wins in rustc. The most specific one, [`root`], is given to rustc by `reproducible`.
pub(crate) fn path_names() -> Result<BTreeMap<usize, (PathBuf, &'static str)>> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".cargo")));
    let sysroot = process::capture(Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()))?;
    let names = [(home, "home"), (cargo_home, "cargo"), (Some(PathBuf::from(sysroot.trim())), "rust")];
    Ok(names.into_iter().filter_map(|(path, name)| Some((path?, name))).enumerate().collect())
}

/// Prefixes that must not be in an image.
pub(crate) fn private_prefixes() -> Vec<String> {
    let mut prefixes = vec!["/home/".to_owned(), "/root/".to_owned(), "/Users/".to_owned()];
    prefixes.push(root().to_string_lossy().into_owned());
    prefixes.extend(std::env::var("HOME").ok().filter(|home| home.len() > 1));
    prefixes
}

/// Folder of target/ in which cargo puts what it builds with a profile.
pub(crate) fn profile_folder(profile: &str) -> &str {
    // Cargo's built-in profiles share two folders.
    match profile {
        "dev" | "test" => "debug",
        "bench" => RELEASE,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use super::{QUICK, metadata, own_root, process};

    /// Packages that a selection of the workspace is built of, each with its features.
    fn built_of(selection: &[&str]) -> BTreeSet<String> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--locked", "--prefix", "none", "--no-dedupe", "--format", "{p} {f}"]);
        let told = process::capture(cargo.args(selection).current_dir(own_root())).expect("cargo tree");
        told.lines().filter(|line| line.contains(" v")).map(str::to_owned).collect()
    }

    /// What differs is compiled twice on the way from `cargo xtask demo` to `cargo xtask test`, and what stands on it,
    /// beyond what xtask/quick.toml names: the comment in xtask/Cargo.toml says how to mend it.
    #[test]
    fn nothing_is_compiled_for_two_sets_of_features() {
        let itself = built_of(&["--package", "xtask", "--edges", "normal,build"]);
        let demo = built_of(&["--workspace", "--edges", "normal,build"]);
        let tests = built_of(&["--workspace", "--edges", "normal,build,dev"]);
        assert!(itself.len() > 50 && demo.len() > itself.len());
        assert_eq!(itself.difference(&demo).collect::<Vec<_>>(), [""; 0], "`cargo xtask` has these alone");
        assert_eq!(demo.difference(&tests).collect::<Vec<_>>(), [""; 0], "`cargo xtask demo` has these alone");
    }

    /// cargo only warns of a package that is not there.
    #[test]
    fn the_quick_settings_are_of_packages_that_there_are() {
        let text = std::fs::read_to_string(own_root().join(QUICK)).expect("the file");
        let settings: toml::Table = text.parse().expect("TOML");
        let known = metadata(&own_root().join("Cargo.toml")).expect("the workspace").packages;
        let named = settings["profile"]["dev"]["package"].as_table().expect("settings of packages");
        for name in named.keys() {
            assert!(known.iter().any(|package| package.name == name.as_str()), "{QUICK}: no package {name}");
        }
    }
}
