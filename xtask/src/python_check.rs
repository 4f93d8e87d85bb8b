use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::toolchain::Toolchain;
use crate::{build, header, install, process, status, workspace};

/// Build the Python package with its library, install it into an environment of its own and run its tests from there.
#[derive(clap::Args)]
pub(crate) struct PythonCheck {
    /// Test the backend of torch.distributed, too: takes the torch of an environment that has one, or installs one
    /// (some GB).
    #[arg(long)]
    torch: bool,
    /// Only build the wheel, and print its path.
    #[arg(long)]
    wheel: bool,
    /// Python that the environment is made of; one that has torch, or numpy, is not asked to install it.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Cargo profile of the library.
    #[arg(long, default_value = workspace::TESTS_PROFILE)]
    profile: String,
}

/// The package, below the root of the repository.
const PACKAGE: &str = "adapters/torch";
/// Name under which the package searches for the library in its own folder.
const LIBRARY: &str = "libflexcast.so";
/// What of the package goes into the wheel.
const SOURCES: [&str; 4] = ["README.md", "pyproject.toml", "setup.py", "flexcast"];
/// Tests that need no torch; what uses it skips where there is none.
const TESTS: [&str; 3] = ["test_interface", "test_collectives", "test_c10d"];
/// Tests of the backend.
const TORCH_TESTS: [&str; 2] = ["test_torch", "test_hooks"];

impl PythonCheck {
    pub(crate) fn run(&self) -> Result<()> {
        let folder = workspace::root().join("target/python");
        if process::find(&self.python.to_string_lossy()).is_none() && !process::is_program(&self.python) {
            bail!("no program {}: install it (Debian: `apt-get install python3 python3-venv`)", self.python.display());
        }
        let prefix = folder.join("install");
        install::install(&prefix, &self.profile, &Toolchain::load("emu")?)?;
        let venv = self.environment(&folder)?;
        let wheel = build_wheel(&venv, &folder, &prefix.join("lib").join(LIBRARY))?;
        status::say("Built", wheel.display());
        if self.wheel {
            return status::print(wheel.display());
        }
        status::say("Installing", wheel.file_name().unwrap_or_default().to_string_lossy());
        let replace = ["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"];
        process::run(Command::new(&venv).args(replace).arg(&wheel))?;
        self.needs(&venv, "numpy")?;
        let mut names = TESTS.to_vec();
        if self.torch {
            self.needs(&venv, "torch")?;
            names.extend(TORCH_TESTS);
        }
        // From a folder where the sources of the package are not: what is tested is what was installed.
        let mut tests = Command::new(&venv);
        tests.arg(workspace::root().join(PACKAGE).join("tests")).args(names).current_dir(&folder);
        tests.env("FLEXCAST_HEADER", workspace::root().join(header::PATH));
        tests.env_remove("PYTHONPATH").env_remove("FLEXCAST_LIBRARY");
        process::run(&mut tests)
    }

    /// An environment of its own, made anew, with the packages that the given Python has: its Python.
    fn environment(&self, folder: &Path) -> Result<PathBuf> {
        let venv = folder.join("venv");
        status::say("Making", venv.display());
        process::run(Command::new(&self.python).args(["-m", "venv", "--clear"]).arg(&venv))
            .context("making an environment (Debian: `apt-get install python3-venv`)")?;
        let python = venv.join("bin/python");
        let own = "import site; print(site.getsitepackages()[0])";
        let [given, new] =
            [&self.python, &python].map(|python| process::capture(Command::new(python).args(["-c", own])));
        // After the environment's own packages, and not if they are those of the system, where anything may be.
        let (given, new) = (given?, new?);
        if self.python != Path::new("python3") {
            let file = Path::new(new.trim()).join("given.pth");
            std::fs::write(&file, given).with_context(|| format!("writing {}", file.display()))?;
        }
        Ok(python)
    }

    /// Installs a package that the environment has not.
    fn needs(&self, venv: &Path, package: &str) -> Result<()> {
        let there = Command::new(venv).args(["-c", &format!("import {package}")]).output();
        if there.is_ok_and(|output| output.status.success()) {
            return Ok(());
        }
        status::say("Installing", format_args!("{package} from PyPI"));
        process::run(Command::new(venv).args(["-m", "pip", "install", "--quiet", package])).with_context(|| {
            format!("{package} is not installed: `pip install {package}`, or name a Python that has it with --python")
        })
    }
}

/// Builds the wheel of the package with the library inside.
fn build_wheel(venv: &Path, folder: &Path, library: &Path) -> Result<PathBuf> {
    let [sources, wheels] = ["package", "wheels"].map(|name| folder.join(name));
    for old in [&sources, &wheels] {
        if old.exists() {
            std::fs::remove_dir_all(old).with_context(|| format!("removing {}", old.display()))?;
        }
        std::fs::create_dir_all(old).with_context(|| format!("creating {}", old.display()))?;
    }
    let package = workspace::root().join(PACKAGE);
    for name in SOURCES {
        copy(&package.join(name), &sources.join(name))?;
    }
    build::copy(library, &sources.join("flexcast").join(LIBRARY))?;
    let options = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"];
    process::run(Command::new(venv).args(options).arg(&wheels).arg(&sources))
        .context("building the wheel needs setuptools 70.1 or later, which pip gets from PyPI")?;
    let mut built = std::fs::read_dir(&wheels)?.flatten().map(|entry| entry.path());
    built.next().with_context(|| format!("pip built no wheel in {}", wheels.display()))
}

/// Copies a file, or a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return build::copy(from, to);
    }
    std::fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        // What Python has compiled is of another folder.
        if entry.file_name() != "__pycache__" {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
