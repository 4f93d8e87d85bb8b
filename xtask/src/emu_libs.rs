use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::toolchain::Toolchain;
use crate::workspace::RELEASE;
use crate::{build, process, status, workspace};

/// Build the emulator's C libraries into target/emu-libs: libflexio.so and its other names for host programs,
/// libflexio_dev.a for device programs.
#[derive(clap::Args)]
pub(crate) struct BuildEmuLibs {
    /// Cargo profile; others than `release` have a folder of their own below target/emu-libs.
    #[arg(long, default_value = RELEASE)]
    profile: String,
}

/// The one library. All C ABIs are in it because they share one emulated machine.
const LIBRARY: &str = "libflexio.so";

/// Names under which programs link or load the other ABIs: links to [`LIBRARY`], so that the dynamic loader, which
/// knows a library by its inode, loads it once. It searches for the symbol versions of each in the one file.
const OTHER_NAMES: [&str; 15] = [
    "libflexio.so.2",
    "libibverbs.so",
    "libibverbs.so.1",
    "libmlx5.so",
    "libmlx5.so.1",
    "librdmacm.so",
    "librdmacm.so.1",
    "libdoca_common.so",
    "libdoca_common.so.2",
    "libdoca_argp.so",
    "libdoca_argp.so.2",
    "libdoca_dpa.so",
    "libdoca_dpa.so.2",
    "libdoca_rdma.so",
    "libdoca_rdma.so.2",
];

/// What Rust's standard library needs of the system.
pub(crate) const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];

impl BuildEmuLibs {
    pub(crate) fn run(&self) -> Result<()> {
        let folder = build(&self.profile)?;
        status::print(format_args!("{}", folder.display()))?;
        Ok(())
    }
}

/// Builds the libraries for host and device programs and returns their folder.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    build_host(profile)?;
    build_device(profile)
}

/// The folder of a profile of cargo's, which is made where it is missing.
fn folder(profile: &str) -> Result<PathBuf> {
    let mut folder = workspace::root().join("target/emu-libs");
    if profile != RELEASE {
        folder.push(profile);
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

/// Builds the libraries for host programs and returns the folder that `-L` and `LD_LIBRARY_PATH` take. `profile` is
/// cargo's.
pub(crate) fn build_host(profile: &str) -> Result<PathBuf> {
    let compiler = compiler(LIBRARY, process::find)?;
    let folder = folder(profile)?;

    // An archive, and the linking done here: as a `cdylib` rustc would decide what is exported, and it does not know of
    // the function that is written in C.
    let package = "emu-libs";
    status::say("Building", format_args!("{LIBRARY} from {package}"));
    process::run(&mut workspace::cargo_build(profile, package, &["--lib"]))?;
    let archive = workspace::target_dir()?.join(workspace::profile_folder(profile)).join("libemu_libs.a");
    let exports = workspace::root().join("emu/libflexio/link.map");
    link(&compiler, &archive, &folder.join(LIBRARY), LIBRARY, &exports)?;
    for name in OTHER_NAMES {
        name_too(&folder.join(name), LIBRARY)?;
    }
    Ok(folder)
}

/// Gives a file of the same folder another name.
pub(crate) fn name_too(name: &Path, file: &str) -> Result<()> {
    replace(name, |new| std::os::unix::fs::symlink(file, new).with_context(|| format!("linking {}", new.display())))
}

/// Builds device/rt-emu as the static library that device programs in C link, and returns its folder.
pub(crate) fn build_device(profile: &str) -> Result<PathBuf> {
    let folder = folder(profile)?;
    status::say("Building", "libflexio_dev.a from rt-emu");
    let toolchain = Toolchain::load("emu")?;
    build::ensure_target(&toolchain.rust.target)?;
    let mut cargo = workspace::device_cargo();
    cargo.args(["rustc", "--release", "--package", "rt-emu", "--features", "archive", "--crate-type", "staticlib"]);
    cargo.args(["--target", &toolchain.rust.target, "--config", &toolchain.cargo_config(&toolchain.rustflags()?)]);
    process::run(&mut cargo)?;
    let built = workspace::device_target().join(&toolchain.rust.target).join("release/librt_emu.a");
    build::copy(&built, &folder.join("libflexio_dev.a"))?;
    Ok(folder)
}

/// The C compiler that links `library`.
pub(crate) fn compiler(library: &str, find: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    match ["gcc", "cc"].into_iter().find_map(find) {
        Some(compiler) => Ok(compiler),
        None => bail!(
            "neither gcc nor cc is on the search path: {library} is linked by one of them; \
             install a C compiler (Debian: `apt-get install gcc`)"
        ),
    }
}

/// Links a shared library of all that is in an archive. It exports what the version script `exports` lists.
pub(crate) fn link(compiler: &Path, archive: &Path, library: &Path, soname: &str, exports: &Path) -> Result<()> {
    replace(library, |new| {
        let mut command = Command::new(compiler);
        command.args(["-shared", "-o"]).arg(new);
        command.arg(format!("-Wl,--soname,{soname}"));
        command.arg(format!("-Wl,--version-script,{}", exports.display()));
        // Everything, then what no export needs taken out again; nothing may be missing.
        command.args(["-Wl,--whole-archive"]).arg(archive).args(["-Wl,--no-whole-archive", "-Wl,--gc-sections"]);
        // Its own calls stay inside, whatever else the program has loaded under the same names. Never unloaded: a
        // thread may keep a bridged machine going.
        process::run(command.args(["-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-Bsymbolic"]).args(SYSTEM_LIBRARIES))
    })
}

/// Puts what [`build()`] has made into another folder.
pub(crate) fn copy(built: &Path, folder: &Path) -> Result<()> {
    for name in [LIBRARY, "libflexio_dev.a"] {
        replace(&folder.join(name), |new| {
            std::fs::copy(built.join(name), new).map(drop).with_context(|| format!("copying {name}"))
        })?;
    }
    OTHER_NAMES.iter().try_for_each(|name| name_too(&folder.join(name), LIBRARY))
}

/// Puts a finished file in place at once: programs that have the old one loaded keep it.
pub(crate) fn replace(path: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(new);
    make(&new)?;
    std::fs::rename(&new, path).with_context(|| format!("renaming {} to {}", new.display(), path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_compiler_the_error_says_what_to_install() {
        let error = compiler(LIBRARY, |_| None).expect_err("no compiler").to_string();
        assert!(error.contains("gcc") && error.contains("apt-get install"), "{error}");
        let only_cc = |name: &str| (name == "cc").then(|| PathBuf::from("/usr/bin/cc"));
        assert_eq!(compiler(LIBRARY, only_cc).expect("cc does as well"), Path::new("/usr/bin/cc"));
    }

    #[test]
    fn a_file_is_replaced_at_once_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lib.so");
        std::fs::write(&path, "old").expect("written");
        replace(&path, |_| bail!("the linker failed")).expect_err("nothing was made");
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), "old");
        replace(&path, |new| Ok(std::fs::write(new, "new")?)).expect("made");
        assert_eq!(std::fs::read_to_string(&path).expect("replaced"), "new");
        assert_eq!(std::fs::read_dir(&folder).expect("listed").count(), 1);
    }
}
