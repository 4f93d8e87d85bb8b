//! Open MPI and MPICH among the hosts: one benchmark in C, compiled with what is found, and started over namespaces in
//! place of ssh.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child::{self, ChildError};
use super::network::{INTERFACE, Network};
use super::sample::Task;
use super::{CompareError, System};

/// The benchmark.
const SOURCE: &str = include_str!("mpi_bench.c");
/// Its collectives by the C interface.
const DIRECT: &str = include_str!("mpi_direct.c");
/// Longest time of a compiler, or of a program that prints its version.
const LIMIT: Duration = Duration::from_secs(60);

/// An MPI library that is installed, and the benchmark compiled for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mpi {
    system: System,
    starter: PathBuf,
    program: PathBuf,
    /// How Flexcast carries its collectives, if so.
    carried: Option<Carried>,
    /// What it calls itself.
    pub version: String,
}

/// An installed library that carries the collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Carried {
    /// By the object that every rank loads before the MPI library.
    Preloaded(PathBuf),
    /// By the program's own calls, of the library installed there.
    Direct(PathBuf),
}

/// How to get it.
#[must_use]
pub fn hint(system: System, folder: &Path) -> String {
    match system {
        System::Mpich => {
            let venv = folder.join("mpich");
            format!("python3 -m venv {0} && {0}/bin/pip install mpich", venv.display())
        }
        _ => "apt-get install openmpi-bin libopenmpi-dev".to_owned(),
    }
}

/// How the system has Flexcast carry the collectives of programs on Open MPI, by what is installed in `flexcast/` of
/// the folder.
fn carried(system: System, folder: &Path) -> Result<Option<Carried>, String> {
    let prefix = folder.join("flexcast");
    let prefix = std::path::absolute(&prefix).unwrap_or(prefix);
    let (file, make, carried): (_, _, fn(PathBuf) -> Carried) = match system {
        System::MpiFlexcast => {
            let make =
                format!(" && make -C adapters/mpi MPICC=mpicc.openmpi FLEXCAST={0} OUT={0}/lib", prefix.display());
            ("lib/libflexcast-mpi-openmpi.so", make, Carried::Preloaded)
        }
        System::MpiDirect => ("lib/libflexcast.so", String::new(), Carried::Direct),
        _ => return Ok(None),
    };
    let object = prefix.join(file);
    if !object.is_file() {
        let prefix = prefix.display();
        return Err(format!("{} is not there; cargo xtask install --prefix {prefix}{make}", object.display()));
    }
    let found = if system == System::MpiFlexcast { object } else { prefix };
    Ok(Some(carried(found)))
}

/// Finds a library and compiles the benchmark into `work`; `folder` may hold MPICH in `mpich/bin`.
///
/// # Errors
/// In words, that it was not found or cannot compile.
pub fn find(system: System, folder: &Path, work: &Path) -> Result<Mpi, String> {
    let mut tried = None;
    let carried = carried(system, folder)?;
    let system = if carried.is_some() { System::OpenMpi } else { system };
    for (compiler, starter) in candidates(system, folder) {
        let mut ask = Command::new(&starter);
        ask.arg("--version");
        match child::output(ask, LIMIT) {
            Ok(said) if family(&said) == Some(system) => {
                let direct = carried.as_ref().and_then(|carried| match carried {
                    Carried::Direct(prefix) => Some(prefix.as_path()),
                    Carried::Preloaded(_) => None,
                });
                let name = if direct.is_some() { "direct" } else { system.name() };
                let program = work.join(format!("{name}-bench"));
                compile(&compiler, work, &program, direct)?;
                return Ok(Mpi { system, starter, program, carried, version: version(system, &said) });
            }
            Ok(_) => {}
            Err(error) => tried = Some(error.to_string()),
        }
    }
    let found = tried.map_or_else(|| "not found".to_owned(), |error| format!("not usable: {error}"));
    Err(format!("{found}; {}", hint(system, folder)))
}

/// Compilers and starters, the likeliest first.
fn candidates(system: System, folder: &Path) -> Vec<(PathBuf, PathBuf)> {
    let own = folder.join("mpich/bin");
    let own = (system == System::Mpich && child::is_program(&own.join("mpicc")))
        .then(|| (own.join("mpicc"), own.join("mpiexec")));
    let names: &[(&str, &str)] = match system {
        System::Mpich => &[("mpicc.mpich", "mpiexec.hydra"), ("mpicc.mpich", "mpiexec.mpich"), ("mpicc", "mpiexec")],
        _ => &[("mpicc.openmpi", "mpirun.openmpi"), ("mpicc", "mpirun")],
    };
    let found = names.iter().filter_map(|(compiler, starter)| Some((child::find(compiler)?, child::find(starter)?)));
    own.into_iter().chain(found).collect()
}

/// Whose starter has said so of its version.
fn family(said: &str) -> Option<System> {
    match () {
        () if said.contains("Open MPI") || said.contains("OpenRTE") => Some(System::OpenMpi),
        () if said.contains("HYDRA") => Some(System::Mpich),
        () => None,
    }
}

fn version(system: System, said: &str) -> String {
    let number = match system {
        System::Mpich => said.lines().find_map(|line| line.trim().strip_prefix("Version:")),
        _ => said.lines().next().and_then(|line| line.rsplit(' ').next()),
    };
    let name = if system == System::Mpich { "MPICH" } else { "Open MPI" };
    format!("{name} {}", number.unwrap_or("of unknown version").trim())
}

/// Compiles the benchmark; with the library installed in `direct`, if given, for its collectives.
fn compile(compiler: &Path, work: &Path, program: &Path, direct: Option<&Path>) -> Result<(), String> {
    let write = |name: &str, text: &str| {
        let path = work.join(name);
        std::fs::write(&path, text).map(|()| path.clone()).map_err(|error| format!("{}: {error}", path.display()))
    };
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(program).arg(write("mpi_bench.c", SOURCE)?);
    if let Some(prefix) = direct {
        let (include, lib) = (prefix.join("include"), prefix.join("lib"));
        command.arg(write("mpi_direct.c", DIRECT)?).arg("-I").arg(include).arg("-L").arg(&lib).arg("-lflexcast");
        let mut path = std::ffi::OsString::from("-Wl,-rpath,");
        path.push(lib);
        command.arg(path);
    }
    let failed = |error: ChildError| {
        format!("{} cannot compile the benchmark: {error}; see whether its headers are installed", compiler.display())
    };
    child::output(command, LIMIT).map(drop).map_err(failed)
}

/// The process that starts all ranks.
///
/// # Errors
/// [`CompareError::File`].
pub fn command(mpi: &Mpi, network: &Network, task: &Task, work: &Path) -> Result<Command, CompareError> {
    let file = |name: &str, text: &str, mode: u32| {
        let path = work.join(name);
        let permissions = std::fs::Permissions::from_mode(mode);
        let written = std::fs::write(&path, text).and_then(|()| std::fs::set_permissions(&path, permissions));
        written.map(|()| path.clone()).map_err(|source| CompareError::File { path, source })
    };
    let agent = file("agent.sh", &agent(network, work), 0o755)?;
    for host in 0..network.hosts() {
        let path = temporary(work, host);
        std::fs::create_dir_all(&path).map_err(|source| CompareError::File { path, source })?;
    }
    let (ranks, each) = (network.ranks().to_string(), network.ranks_per_host());
    let mut command = network.on(0, &mpi.starter);
    command.env("TMPDIR", temporary(work, 0));
    if mpi.system == System::Mpich {
        let hosts = file("hosts.mpich", &hosts(network, &format!(":{each}")), 0o644)?;
        command.arg("-f").arg(hosts).args(["-launcher", "ssh", "-launcher-exec"]).arg(agent);
        command.args(["-iface", INTERFACE, "-n", &ranks]);
        // Ranks are of one computer, which the network between them must not be replaced for.
        command.envs([("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", INTERFACE), ("MPIR_CVAR_NOLOCAL", "1")]);
        command.envs([("FI_PROVIDER", "tcp"), ("FI_TCP_IFACE", INTERFACE)]);
    } else {
        let hosts = file("hosts.openmpi", &hosts(network, &format!(" slots={each}")), 0o644)?;
        command.arg("--hostfile").arg(hosts).args(["-np", &ranks, "--map-by", "slot", "--bind-to", "none"]);
        let parameters = [
            ("plm", "rsh"),
            ("pml", "ob1"),
            ("btl", "tcp,self"),
            ("btl_tcp_if_include", INTERFACE),
            ("oob_tcp_if_include", INTERFACE),
            // More ranks than cores: those who wait let others run.
            ("mpi_yield_when_idle", "1"),
        ];
        command.args(["--mca", "plm_rsh_agent"]).arg(agent);
        command.args(parameters.iter().flat_map(|(name, value)| ["--mca", name, value]));
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    }
    if let Some(carried) = &mpi.carried {
        // Settings of whoever compares.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FLEXCAST_")) {
            command.arg("-x").arg(name);
        }
        let variables = [("FLEXCAST_DATAPATH", "udp".as_ref()), ("FLEXCAST_INTERFACE", INTERFACE.as_ref())];
        let preload = match carried {
            Carried::Preloaded(object) => Some(("LD_PRELOAD", object.as_os_str())),
            Carried::Direct(_) => None,
        };
        for (name, value) in preload.into_iter().chain(variables) {
            let mut setting = std::ffi::OsString::from(format!("{name}="));
            setting.push(value);
            // To the ranks alone: the starter is no MPI program.
            command.arg("-x").arg(setting);
        }
    }
    command.arg(&mpi.program).args(task.words(INTERFACE));
    Ok(command)
}

/// One host a line, each with the number of its ranks.
fn hosts(network: &Network, slots: &str) -> String {
    (0..network.hosts()).map(|host| format!("{}{slots}\n", network.address(host))).collect()
}

/// Folder of a host's temporary files: daemons of Open MPI believe to be alone on their host, and would share one.
fn temporary(work: &Path, host: u32) -> PathBuf {
    work.join(format!("tmp-{host}"))
}

/// A program in the place of ssh: options, an address, a command. The last number of the address less one is the host.
fn agent(network: &Network, work: &Path) -> String {
    let (hosts, folder) = (network.host_prefix(), work.join("tmp-"));
    format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$((${{1##*.}} - 1))\nshift\n\
         TMPDIR='{}'$host\nexport TMPDIR\nexec ip netns exec {hosts}$host sh -c \"$*\"\n",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_known_from_their_starters() {
        let open = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n";
        let hydra = "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date: x\n";
        assert_eq!([family(open), family(hydra), family("srun 1")], [Some(System::OpenMpi), Some(System::Mpich), None]);
        assert_eq!(version(System::OpenMpi, open), "Open MPI 4.1.4");
        assert_eq!(version(System::Mpich, hydra), "MPICH 5.0.2");
        assert_eq!(version(System::Mpich, ""), "MPICH of unknown version");
    }

    #[test]
    fn what_is_not_installed_is_said_with_how_to_get_it() {
        let folder = Path::new("out");
        assert_eq!(hint(System::Mpich, folder), "python3 -m venv out/mpich && out/mpich/bin/pip install mpich");
        assert!(hint(System::OpenMpi, folder).contains("libopenmpi-dev"));
    }

    /// Where a compiler of MPI is installed.
    #[test]
    fn the_benchmark_compiles_without_a_warning() {
        let Some(compiler) = child::find("mpicc") else {
            crate::harness::skipped("no mpicc is installed (Debian: libopenmpi-dev)");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("mpi_bench.c");
        std::fs::write(&source, SOURCE).unwrap();
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
        command.arg(folder.path().join("bench")).arg(&source);
        assert_eq!(child::output(command, LIMIT), Ok(String::new()));
    }

    /// The same of its collectives by the C interface, as far as a header shows.
    #[test]
    fn the_collectives_by_the_c_interface_compile_without_a_warning() {
        let Some(compiler) = child::find("mpicc") else {
            crate::harness::skipped("no mpicc is installed (Debian: libopenmpi-dev)");
            return;
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        command.arg(root.join("../host/capi/include")).arg(root.join("src/compare/mpi_direct.c"));
        assert_eq!(child::output(command, LIMIT), Ok(String::new()));
    }
}
