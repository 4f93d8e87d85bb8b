//! `flexcast dpacc`: the vendor's compiler driver for the emulated card.
//!
//! It compiles the DPA's side of a program with a RISC-V compiler, finds the entries that the source marks, and makes
//! the stubs that calls need on both sides. Image, stubs and application object (`struct flexio_app *`) go into one
//! archive, which the host's side links, as that of the vendor's driver.

mod entries;
mod objects;
mod options;
mod sdk;
mod stubs;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use flexcast_cli::{note, out};

use crate::commands::device_library;
use options::DeviceVersion;
pub(crate) use options::Options;

/// RISC-V compilers, the first of which that is there compiles: name, and what it needs besides [`TARGET`].
const COMPILERS: [(&str, &[&str]); 2] =
    [("riscv64-unknown-elf-gcc", &[]), ("clang", &["--target=riscv64-unknown-elf", "-fuse-ld=lld", "-mno-relax"])];
/// Names the compiler instead.
const COMPILER_VARIABLE: &str = "FLEXCAST_DEVICE_CC";
/// The emulated DPA's instruction set and code model.
const TARGET: [&str; 5] =
    ["-march=rv64imac_zicsr_zifencei_zbb_zbs", "-mabi=lp64", "-mcmodel=medany", "-ffreestanding", "-nostdlib"];
const DEFAULTS: [&str; 3] = ["-std=gnu11", "-O2", "-g"];
/// Compilers differ in what they warn of: with this option a program that the vendor's compiles would not build.
const WARNINGS_ARE_ERRORS: &str = "-Werror";
/// Name of an application without `--app-name`, as the vendor's driver has it.
const DEFAULT_APPLICATION: &str = "__dpa_a_out";
/// The device library of DOCA DPA, which is compiled with programs that include its headers.
const DOCA: &str = include_str!("../../../device/rt-emu/doca/doca_dpa_dev.c");

const HELP: &str = "\
Builds the DPA's side of a program for the emulated card, with the command line of the vendor's dpacc

Usage: flexcast dpacc SOURCE.c|OBJECT.o... -o ARCHIVE.a --app-name NAME [OPTIONS]
       flexcast dpacc -c SOURCE.c... [-o OBJECT.o] [OPTIONS]
       flexcast dpacc --sdk DIR [--dev-ver VERSION]

Options (with one dash or two; a value behind = or as the next argument):
  -o ARCHIVE.a              What the host's side links: image, stubs, and `struct flexio_app *NAME`
  -c                        Compiles only: each source to an object, NAME.dpa.o in this folder or that of -o
  --app-name NAME           Name of the application [default: __dpa_a_out]
  --devicecc-options LIST   Options of the RISC-V compiler, separated by commas
  --device-libs LIST        -L and -l of the DPA's side
  --hostcc CC               Compiler of the host's stubs [default: cc]
  --hostcc-options LIST     Its options
  -I DIR, -D NAME, -O2, ... Are the RISC-V compiler's, too
  --keepflexio              Leaves the image (NAME.elf) and the stubs in the folder of the archive
  --emu-libs DIR            The emulator's libraries [default: where `flexcast emu exec` finds them]
  --sdk DIR                 Writes a folder laid out as the vendor's SDKs of FlexIO and DOCA are: headers of both sides,
                            libraries, pkg-config files, and a program dpacc that calls this one (in bin and tools)
  --dev-ver VERSION         FlexIO's version for programs that name none by FLEXIO_DEV_VER_USED, such as 24.7 for
                            programs of DOCA 2.8 [default: 25.1]; with --sdk the one that its dpacc takes
  --version, --help

-flto, -mcpu=..., --dpa-proc-attr=... and -ldpa are taken and have no meaning here. The RISC-V compiler is
riscv64-unknown-elf-gcc or clang 17 or later (Debian: gcc-riscv64-unknown-elf, clang lld), or the one that
FLEXCAST_DEVICE_CC names. The host's side is compiled against the SDK's headers and started by
`flexcast emu exec PROGRAM`.
";

/// Runs the driver.
pub(crate) fn run(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let options = Options::parse(arguments)?;
    if options.help {
        out!("{}", HELP.trim_end())?;
    } else if options.version {
        out!("flexcast dpacc {}", env!("CARGO_PKG_VERSION"))?;
    } else if let Some(folder) = &options.sdk {
        sdk::write(folder, &device_library(options.libraries.as_deref())?, options.device_version)?;
        note!("the emulated SDK is in {}", folder.display());
    } else {
        build(&options)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A C identifier, as the application's name must be one.
fn is_identifier(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The RISC-V compiler with its own options.
fn compiler() -> anyhow::Result<(PathBuf, Vec<String>)> {
    let own = |options: &[&str]| options.iter().map(|option| (*option).to_owned()).collect();
    if let Some(named) = std::env::var_os(COMPILER_VARIABLE) {
        let is_clang = named.to_string_lossy().contains("clang");
        return Ok((named.into(), if is_clang { own(COMPILERS[1].1) } else { Vec::new() }));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = COMPILERS.iter().find_map(|(name, options)| {
        let program = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())?;
        Some((program, own(options)))
    });
    found.context("no RISC-V compiler: install one (Debian: gcc-riscv64-unknown-elf, or clang and lld)")
}

fn build(options: &Options) -> anyhow::Result<()> {
    let inputs = || options.sources.iter().chain(&options.objects);
    if inputs().next().is_none() {
        bail!("no source: give the C files of the DPA's side");
    }
    if let Some(output) = &options.output {
        let is_output =
            |input: &&PathBuf| input.canonicalize().is_ok_and(|one| output.canonicalize().is_ok_and(|o| o == one));
        if let Some(input) = inputs().find(is_output) {
            bail!("-o is {}, which is an input: name what is to be made of it", input.display());
        }
    }
    for ignored in &options.ignored {
        note!("{ignored} has no meaning for the emulated card");
    }
    if options.device_options.iter().any(|option| option.starts_with(WARNINGS_ARE_ERRORS)) {
        note!("{WARNINGS_ARE_ERRORS} has no effect: another compiler warns of other things than the vendor's");
    }
    let scratch = tempfile::tempdir().context("a folder for files on the way")?;
    sdk::write_headers(scratch.path())?;
    let (compiler, own) = compiler()?;
    let device = Device { compiler, own, options, scratch: scratch.path() };
    if options.compile_only { compile_only(&device) } else { program(&device) }
}

/// Makes an object of each source.
fn compile_only(device: &Device<'_>) -> anyhow::Result<()> {
    let options = device.options;
    if let Some(object) = options.objects.first() {
        bail!("{}: -c compiles sources, and this is an object: leave it to the call that links", object.display());
    }
    let named = match (&options.output, &*options.sources) {
        (None, _) => None,
        (Some(output), [_]) => Some(output),
        (Some(_), sources) => bail!("-o names one object, and -c has {} sources: leave -o out", sources.len()),
    };
    let mut made = std::collections::BTreeSet::new();
    for (number, source) in (0_u32..).zip(&options.sources) {
        let object = named.cloned().unwrap_or_else(|| {
            let mut name = source.file_stem().unwrap_or_default().to_owned();
            name.push(".dpa.o");
            name.into()
        });
        if !made.insert(object.clone()) {
            bail!("{} would be the object of two sources: compile each by a call with -o", object.display());
        }
        put(&device.object(number, source)?, &object)?;
    }
    Ok(())
}

/// Links a program, and makes the archive for the host's side.
fn program(device: &Device<'_>) -> anyhow::Result<()> {
    let Device { options, scratch, .. } = *device;
    let output = options.output.as_ref().context("-o is missing: name the archive, such as -o device.a")?;
    let name = options.app_name.as_deref().unwrap_or(DEFAULT_APPLICATION);
    if !is_identifier(name) {
        bail!("--app-name is {name:?}: it has to be a name of C, as the host declares `struct flexio_app *NAME`");
    }
    let libraries = device_library(options.libraries.as_deref())?;
    let image = scratch.join(format!("{name}.elf"));
    let entries = device.link(name, &libraries, &image)?;
    let stub = scratch.join(format!("{name}_stubs.c"));
    std::fs::write(&stub, stubs::host(name, &image, &entries))?;
    archive(options, &stub, output, scratch)?;
    if options.keep {
        let folder = output.parent().unwrap_or(Path::new(""));
        for kept in [&image, &stub] {
            put(kept, &folder.join(kept.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// Copies a file, into a folder that is made where it is missing.
fn put(from: &Path, to: &Path) -> anyhow::Result<()> {
    if let Some(folder) = to.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    std::fs::copy(from, to).with_context(|| format!("writing {}", to.display()))?;
    Ok(())
}

struct Device<'a> {
    compiler: PathBuf,
    own: Vec<String>,
    options: &'a Options,
    /// Headers, the linker script, and files on the way.
    scratch: &'a Path,
}

impl Device<'_> {
    /// The compiler with the program's options, but for those of another compiler, and those that make of a warning an
    /// error: another compiler warns of other things.
    fn command(&self) -> Command {
        let foreign = |option: &&String| {
            !option.starts_with(WARNINGS_ARE_ERRORS) && !option.starts_with("-mcpu") && !option.starts_with("-march")
        };
        // Types have the mark of entries too, which is an attribute of functions.
        let mut command = self.command_with(
            self.options.device_options.iter().filter(foreign).map(|option| &**option),
            &["-Wno-attributes"],
        );
        command.args(self.options.device_version.map(DeviceVersion::define));
        command
    }

    /// The compiler with these options.
    fn command_with<'b>(&self, options: impl Iterator<Item = &'b str>, more: &[&str]) -> Command {
        let mut command = Command::new(&self.compiler);
        command.args(&self.own).args(DEFAULTS).args(options).args(more).args(TARGET);
        for folder in ["libflexio-dev", ""] {
            command.arg("-isystem").arg(self.scratch.join("include").join(folder));
        }
        command
    }

    /// Makes the object of a source, with stubs of its entries and a record of them.
    fn object(&self, number: u32, source: &Path) -> anyhow::Result<PathBuf> {
        let source = std::path::absolute(source)?;
        let mut preprocess = self.command();
        preprocess.args(["-E", "-P"]).arg(format!("-D__dpa_rpc__={}", entries::RPC));
        let text = execute(preprocess.arg(format!("-D__dpa_global__={}", entries::GLOBAL)).arg(&source))?;
        let mut found = entries::find(&text).with_context(|| source.display().to_string())?;
        let unit = self.scratch.join(format!("unit{number}.c"));
        if let Some(probe) = stubs::sizes(&source, &found)? {
            self.measure(&probe, &unit, &mut found)?;
        }
        let mut code = stubs::device(&source, &found)?;
        code += &objects::record(&objects::Unit { uses_doca: text.contains("doca_dpa_dev_"), entries: found })?;
        std::fs::write(&unit, code)?;
        let object = unit.with_extension("o");
        execute(self.command().arg("-c").arg(&unit).arg("-o").arg(&object))?;
        Ok(object)
    }

    /// Links all objects; gives the entries.
    fn link(&self, app: &str, libraries: &Path, image: &Path) -> anyhow::Result<Vec<entries::Entry>> {
        let mut files = self.options.objects.clone();
        for (number, source) in (0..).zip(&self.options.sources) {
            files.push(self.object(number, source)?);
        }
        let mut units = Vec::new();
        for file in &files {
            units.extend(objects::units(file)?);
        }
        let uses_doca = units.iter().any(|unit| unit.uses_doca);
        let all: Vec<_> = units.into_iter().flat_map(|unit| unit.entries).collect();
        let mut names: Vec<&str> = all.iter().map(|entry| &*entry.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("{} is an entry of two sources: the host calls entries by name, so give each its own", twice[0]);
        }
        if names.contains(&app) {
            bail!("{app} is an entry and the application: give --app-name another name");
        }
        if all.is_empty() {
            bail!("no entry: no function of the sources is marked `__dpa_rpc__` or `__dpa_global__`");
        }
        if uses_doca {
            files.push(self.doca()?);
        }
        let mut link = self.command();
        link.args(&files).arg("-o").arg(image).arg("-T").arg(self.scratch.join("emu-c.ld"));
        link.args(self.options.device_libraries.iter().filter(|library| !is_vendor(library)));
        execute(link.arg("-L").arg(libraries).args(["-lflexio_dev", "-lgcc"]))?;
        Ok(all)
    }

    /// Has the compiler report the sizes of structures that entries take.
    fn measure(&self, probe: &str, file: &Path, entries: &mut [entries::Entry]) -> anyhow::Result<()> {
        std::fs::write(file, probe)?;
        let assembly = execute(self.command().args(["-w", "-S", "-o", "-"]).arg(file))?;
        let lines = assembly.lines().filter_map(|line| line.trim_start().strip_prefix(stubs::SIZE));
        let mut sizes = lines.map_while(|size| size.trim().parse().ok());
        for parameter in entries.iter_mut().flat_map(|entry| &mut entry.parameters) {
            if parameter.structure.is_some() {
                let bytes = sizes.next().with_context(|| format!("the size of `{}` is not known", parameter.ty))?;
                parameter.structure = Some(bytes);
            }
        }
        Ok(())
    }

    /// Compiles the device library of DOCA DPA, whatever generation of FlexIO's headers the program has.
    fn doca(&self) -> anyhow::Result<PathBuf> {
        let (source, object) = (self.scratch.join("doca_dpa_dev.c"), self.scratch.join("doca_dpa_dev.o"));
        std::fs::write(&source, DOCA)?;
        let mut compile = self.command_with(std::iter::empty(), &["-DFLEXIO_DEV_ALLOW_EXPERIMENTAL_API"]);
        execute(compile.arg("-c").arg(&source).arg("-o").arg(&object))?;
        Ok(object)
    }
}

/// Whether a library is the vendor's own, in whose place the emulator's is linked.
fn is_vendor(library: &str) -> bool {
    ["-lflexio_dev", "-lflexio-dev", "-ldpa", "-ldoca_dpa_dev"].iter().any(|own| library.starts_with(own))
}

/// Compiles the host's stubs into the archive.
fn archive(options: &Options, stub: &Path, output: &Path, scratch: &Path) -> anyhow::Result<()> {
    let object = scratch.join("stubs.o");
    let mut compiler = Command::new(options.host_compiler.as_deref().unwrap_or("cc"));
    compiler.args(&options.host_options).args(["-fPIC", "-c", "-I"]).arg(scratch.join("include"));
    execute(compiler.arg(stub).arg("-o").arg(&object))?;
    // `ar` adds to what is there.
    let fresh = scratch.join("archive.a");
    execute(Command::new("ar").arg("rcs").arg(&fresh).arg(&object))?;
    put(&fresh, output)
}

/// Runs a program; gives what it prints on stdout. What it says on stderr is the user's to read.
fn execute(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_owned();
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("{} cannot be started: is it installed?", program.display()))?;
    if !output.status.success() {
        bail!("{} ended with {}; see its messages above", program.display(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
