//! `cargo xtask mpi-check`: the MPI adapter under the MPIs of this computer.

mod hosts;
mod job;
mod overlap;
mod report;
mod runs;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::toolchain::Toolchain;
use crate::{build, emu_libs, install, process, status, workspace};
use runs::{Extent, Network, Program, Totals};

/// Build the MPI adapter and run its test, and the Intel MPI Benchmarks, under each MPI that is installed.
#[derive(clap::Args)]
pub(crate) struct MpiCheck {
    /// Only these; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    mpi: Vec<Kind>,
    /// Processes of a job.
    #[arg(long, value_delimiter = ',', default_value = "2,4", value_parser = clap::value_parser!(u16).range(2..=8))]
    ranks: Vec<u16>,
    /// What carries the data: `shm` (ranks share memory), `udp` (they do not, over loopback), or another value of
    /// FLEXCAST_DATAPATH, over this computer's card.
    #[arg(long, value_delimiter = ',', default_value = "shm,udp")]
    datapath: Vec<String>,
    /// Virtual environment with the package `mpich`; else what FLEXCAST_MPICH says.
    #[arg(long, value_name = "DIR")]
    mpich: Option<PathBuf>,
    /// Virtual environment with the package `impi-rt`, Intel MPI and the Intel MPI Benchmarks; else what FLEXCAST_IMB
    /// says.
    #[arg(long, value_name = "DIR")]
    imb: Option<PathBuf>,
    /// Leave out the small jobs over emulated cards.
    #[arg(long)]
    no_cards: bool,
    /// All lengths, up to 4 MiB a block.
    #[arg(long)]
    full: bool,
    /// Measure overlap by the Intel MPI Benchmarks, and nothing else, between two network namespaces; as root.
    #[arg(long, conflicts_with_all = ["mpi", "ranks", "datapath", "mpich", "no_cards", "full"])]
    overlap: bool,
    /// What the link between them carries each way.
    #[arg(long, default_value = "1gbit", requires = "overlap", value_parser = rate)]
    rate: String,
    /// Cargo profile of the library [default: dev; with --overlap: release].
    #[arg(long)]
    profile: Option<String>,
}

/// A rate as `tc` reads it.
fn rate(text: &str) -> Result<String, String> {
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text[..text.len() - digits.len()].parse().unwrap_or(0_u64);
    match digits {
        "kbit" | "mbit" | "gbit" if number > 0 => Ok(text.to_owned()),
        _ => Err("must be a whole number with kbit, mbit or gbit, such as 1gbit".to_owned()),
    }
}

/// What carries the data between emulated cards, and among how many ranks.
const CARDS: ([&str; 2], [u16; 2]) = (["verbs", "dpa"], [2, 4]);
/// Ranks of a small job that has more of them than most computers have processors for.
const MANY: u16 = 8;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Open MPI.
    Openmpi,
    /// MPICH.
    Mpich,
    /// MPICH 4.0 of Debian 12: types at absolute addresses, which it does not pack. It does not survive all of the test
    /// by itself.
    #[value(name = "mpich-4.0")]
    Mpich40,
    /// MPICH by the standard ABI of MPI 5.
    Abi,
    /// Intel MPI, of MPICH's ABI.
    Impi,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Openmpi, Self::Mpich, Self::Mpich40, Self::Abi, Self::Impi];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Openmpi => "openmpi",
            Self::Mpich => "mpich",
            Self::Mpich40 => "mpich-4.0",
            Self::Abi => "abi",
            Self::Impi => "impi",
        }
    }

    /// The name of the binary interface, as in the object's.
    pub(crate) const fn abi(self) -> &'static str {
        match self {
            Self::Impi | Self::Mpich40 => "mpich",
            other => other.name(),
        }
    }

    const fn hint(self) -> &'static str {
        match self {
            Self::Openmpi => "Debian: apt-get install openmpi-bin libopenmpi-dev",
            Self::Mpich40 => "Debian 12: apt-get install mpich libmpich-dev",
            Self::Mpich | Self::Abi => "python3 -m venv DIR && DIR/bin/pip install mpich, and --mpich DIR",
            Self::Impi => "python3 -m venv DIR && DIR/bin/pip install impi-rt impi-devel, and --imb DIR",
        }
    }
}

/// An MPI of this computer.
pub(crate) struct Mpi {
    pub(crate) kind: Kind,
    compiler: PathBuf,
    pub(crate) launcher: PathBuf,
    /// Folder of the virtual environment, if it is in one.
    pub(crate) home: Option<PathBuf>,
    /// Where object and test are.
    pub(crate) out: PathBuf,
}

impl Mpi {
    fn find(kind: Kind, options: &MpiCheck) -> Option<Self> {
        let home = match kind {
            Kind::Openmpi | Kind::Mpich40 => None,
            Kind::Mpich | Kind::Abi => Some(folder(options.mpich.as_ref(), "FLEXCAST_MPICH")?),
            Kind::Impi => Some(folder(options.imb.as_ref(), "FLEXCAST_IMB")?),
        };
        let tool = |names: &[&str]| match &home {
            Some(home) => names.iter().map(|name| home.join("bin").join(name)).find(|file| process::is_program(file)),
            None => names.iter().find_map(|name| process::find(name)),
        };
        let (compiler, launcher) = match kind {
            Kind::Openmpi => (tool(&["mpicc.openmpi"])?, tool(&["mpirun.openmpi"])?),
            Kind::Mpich40 => (tool(&["mpicc.mpich"])?, tool(&["mpiexec.mpich"])?),
            Kind::Mpich => (tool(&["mpicc"])?, tool(&["mpiexec"])?),
            Kind::Abi => (tool(&["mpicc_abi"])?, tool(&["mpiexec"])?),
            Kind::Impi => (tool(&["mpicc"])?, tool(&["mpiexec.hydra"])?),
        };
        let out = workspace::target_dir().ok()?.join("mpi").join(kind.name());
        Some(Self { kind, compiler, launcher, home, out })
    }

    /// What programs of this MPI, its compiler included, need in the environment.
    pub(crate) fn environment(&self, command: &mut Command) {
        if let (Kind::Impi, Some(home)) = (self.kind, &self.home) {
            command.env("I_MPI_ROOT", home).env("LD_LIBRARY_PATH", home.join("lib")).env("I_MPI_FABRICS", "shm");
        }
        if self.kind == Kind::Openmpi {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
    }

    pub(crate) fn object(&self) -> PathBuf {
        self.out.join(format!("libflexcast-mpi-{}.so", self.kind.abi()))
    }

    pub(crate) fn test(&self) -> PathBuf {
        self.out.join(format!("check-{}", self.kind.abi()))
    }

    /// A program that loads the shared object behind it into a scope of its own, as Python loads extensions.
    pub(crate) fn local(&self) -> [PathBuf; 2] {
        [self.out.join("local"), self.out.join(format!("check-{}.so", self.kind.abi()))]
    }

    fn build(&self, prefix: &Path) -> Result<()> {
        status::say("Building", format_args!("{} and its test", self.object().display()));
        let mut make = Command::new("make");
        make.arg("--silent").arg("-C").arg(workspace::root().join("adapters/mpi"));
        make.arg(format!("MPICC={}", self.compiler.display()));
        make.arg(format!("FLEXCAST={}", prefix.display())).arg(format!("OUT={}", self.out.display()));
        self.environment(&mut make);
        process::run(&mut make)
    }
}

impl MpiCheck {
    pub(crate) fn run(&self) -> Result<()> {
        if self.overlap {
            return self.measure();
        }
        let profile = self.profile.as_deref().unwrap_or("dev");
        let wanted = if self.mpi.is_empty() { &Kind::ALL[..] } else { &self.mpi };
        let mut found = Vec::new();
        for kind in wanted {
            match Mpi::find(*kind, self) {
                Some(mpi) => found.push(mpi),
                None => status::warn(format_args!("skipped: {}, which is not installed; {}", kind.name(), kind.hint())),
            }
        }
        if found.is_empty() {
            bail!("none of the MPIs asked for is installed");
        }
        let prefix = library(profile)?;
        let cards = if self.no_cards { Vec::new() } else { cards(profile)? };
        let mut totals = Totals::default();
        for mpi in &found {
            mpi.build(&prefix)?;
            self.check(mpi, &cards, &mut totals)?;
        }
        for mpi in &found {
            let other = found.iter().find(|other| other.kind.abi() != mpi.kind.abi());
            if let Some(other) = other {
                runs::wrong_object(mpi, other, &mut totals)?;
            }
        }
        status::print(totals)
    }

    fn measure(&self) -> Result<()> {
        let Some(mpi) = Mpi::find(Kind::Impi, self) else {
            status::warn(format_args!("skipped: overlap, because Intel MPI is not installed; {}", Kind::Impi.hint()));
            return Ok(());
        };
        mpi.build(&library(self.profile.as_deref().unwrap_or("release"))?)?;
        overlap::run(&mpi, &self.rate)
    }

    fn check(&self, mpi: &Mpi, cards: &[Network], totals: &mut Totals) -> Result<()> {
        let networks: Vec<Network> = self.datapath.iter().map(|name| Network::new(name)).collect();
        if mpi.kind == Kind::Mpich40 {
            return networks.iter().try_for_each(|network| runs::test(mpi, 2, Some(network), Extent::Bottom, totals));
        }
        for network in cards {
            for ranks in CARDS.1 {
                runs::test(mpi, ranks, Some(network), Extent::Small, totals)?;
            }
        }
        for network in &networks {
            runs::test(mpi, MANY, Some(network), Extent::Small, totals)?;
        }
        let extent = if self.full { Extent::Full } else { Extent::Quick };
        for ranks in &self.ranks {
            runs::test(mpi, *ranks, None, extent, totals)?;
            for network in &networks {
                runs::test(mpi, *ranks, Some(network), extent, totals)?;
            }
        }
        let Some(network) = networks.first() else { return Ok(()) };
        runs::local(mpi, network, totals)?;
        runs::python(mpi, network, totals)?;
        runs::mistakes(mpi, network, totals)?;
        if mpi.kind == Kind::Impi {
            for program in Program::ALL {
                runs::benchmark(mpi, program, self.ranks[0], network, totals)?;
            }
        }
        Ok(())
    }
}

/// A folder by option or variable, with its whole path: jobs start elsewhere.
fn folder(option: Option<&PathBuf>, variable: &str) -> Option<PathBuf> {
    let named = option.cloned().or_else(|| std::env::var_os(variable).map(PathBuf::from))?;
    std::path::absolute(named).ok()
}

/// Builds the emulator's libraries and the firmware: networks of emulated cards.
fn cards(profile: &str) -> Result<Vec<Network>> {
    let libraries = emu_libs::build_host(profile)?;
    build::build(&Toolchain::load("emu")?, &["allgather".to_owned()])?;
    let firmware = workspace::image_dir("emu").join("allgather.elf");
    Ok(CARDS.0.iter().map(|datapath| Network::of_cards(datapath, &libraries, &firmware)).collect())
}

/// Builds the library without the firmware, which MPI programs over a network interface do not need, and installs it
/// below a folder of its own.
fn library(profile: &str) -> Result<PathBuf> {
    let mut cargo = workspace::cargo();
    // Not with the features of the whole workspace: this command is separate from the tests.
    cargo.args(["build", "--profile", profile, "--lib", "--package", "flexcast-capi"]);
    status::say("Building", "libflexcast.so from flexcast-capi");
    process::run(&mut cargo)?;
    let target = workspace::target_dir()?;
    let prefix = target.join("mpi/prefix");
    install::library(&prefix, &target.join(workspace::profile_folder(profile)).join("libflexcast.a"))?;
    Ok(prefix)
}
