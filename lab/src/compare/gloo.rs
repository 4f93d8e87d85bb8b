//! Backends of torch.distributed among the hosts, gloo and Flexcast's: one benchmark in Python, on the torch that is
//! installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::bound::variables;
use super::child;
use super::network::{INTERFACE, Network};
use super::sample::Task;
use super::{CompareError, System};

/// The benchmark.
const SOURCE: &str = include_str!("gloo_bench.py");
/// Longest time of an import of torch.
const LIMIT: Duration = Duration::from_secs(120);

/// A Python that has torch with a backend, and the benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gloo {
    /// Whose backend.
    pub system: System,
    python: PathBuf,
    program: PathBuf,
    /// What torch calls itself.
    pub version: String,
}

/// Finds a Python with torch, and with the package `flexcast` for its backend: that of `gloo/bin` in `folder`, or
/// python3 of the search path.
///
/// # Errors
/// In words, that there is none.
pub fn find(system: System, folder: &Path, work: &Path) -> Result<Gloo, String> {
    let own = folder.join("gloo");
    let hint = format!("python3 -m venv {0} && {0}/bin/pip install torch numpy (some GB)", own.display());
    let own = Some(own.join("bin/python3")).filter(|python| child::is_program(python));
    let python = own.or_else(|| child::find("python3")).ok_or_else(|| format!("no python3 was found; {hint}"))?;
    let mut ask = Command::new(&python);
    ask.args(["-c", "import torch, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)"]);
    let said = child::output(ask, LIMIT)
        .map_err(|error| format!("{} has no torch with gloo ({error}); {hint}", python.display()))?;
    if system == System::TorchFlexcast {
        let mut ask = Command::new(&python);
        ask.args(["-c", "import flexcast.torch"]);
        child::output(ask, LIMIT).map_err(|error| {
            format!(
                "{} has no package flexcast ({error}); cargo xtask python-check --wheel prints one to install",
                python.display()
            )
        })?;
    }
    let program = work.join("gloo_bench.py");
    std::fs::write(&program, SOURCE)
        .map_err(|source| CompareError::File { path: program.clone(), source }.to_string())?;
    let backend = if system == System::TorchFlexcast { "Flexcast below" } else { "gloo of" };
    Ok(Gloo { system, python, program, version: format!("{backend} torch {}", said.trim()) })
}

/// The processes of all ranks.
#[must_use]
pub fn commands(gloo: &Gloo, network: &Network, task: &Task, port: u16) -> Vec<Command> {
    let of_rank = |rank| {
        let mut command = network.on(rank, &gloo.python);
        command.arg(&gloo.program).args(task.words(INTERFACE)).envs(variables(network, rank, port));
        command.env("GLOO_SOCKET_IFNAME", INTERFACE);
        if gloo.system == System::TorchFlexcast {
            command.envs([("BACKEND", "flexcast"), ("FLEXCAST_DATAPATH", "udp"), ("FLEXCAST_INTERFACE", INTERFACE)]);
        }
        command
    };
    (0..network.ranks()).map(of_rank).collect()
}
