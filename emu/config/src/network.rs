//! Link or network that joins the cards of a machine.

use std::path::{Path, PathBuf};

use emu_fabric::{Fault, FaultEvent, FaultScript, Priorities, Rate, SwitchConfig, Topology};
use emu_machine::{LinkConfig, MachineError, NetworkConfig};
use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// `[link]`: see [`LinkConfig`], whose defaults hold for what is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkTable {
    /// Rate in Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_per_s: Option<u64>,
    /// Delay in picoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ps: Option<u64>,
    /// Frames lost per million. Default the machine's `loss_ppm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_ppm: Option<u32>,
    /// Seed of the loss. Default the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl LinkTable {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The cable of a machine with this loss and seed.
    pub(crate) fn cable(&self, loss_ppm: Option<u32>, seed: Option<u64>) -> LinkConfig {
        let default = LinkConfig::default();
        LinkConfig {
            gbit_per_s: self.gbit_per_s.unwrap_or(default.gbit_per_s),
            latency_ps: self.latency_ps.unwrap_or(default.latency_ps),
            drop_ppm: self.drop_ppm.or(loss_ppm).unwrap_or(default.drop_ppm),
            seed: self.seed.or(seed).unwrap_or(default.seed),
        }
    }
}

/// `[network]`: see [`NetworkConfig`]. Relative paths start at the working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkTable {
    /// Name of a topology, or the path of a description file. Default the cable of `[link]`, to which faults and queues
    /// can happen then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// A fault script. One without a seed (or with 0) takes the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<PathBuf>,
    /// Queues of the ports for the priorities of traffic classes. Default: as the topology says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priorities: Option<Priorities>,
    /// Hosts of the topology, by number or name, at which the cards are. Default: card `i` at host `i`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

impl NetworkTable {
    /// A topology without faults, by name or as the path of a description file.
    #[must_use]
    pub fn of(topology: impl Into<String>) -> Self {
        Self { topology: Some(topology.into()), ..Self::default() }
    }

    /// The network of a machine with this link, loss and seed.
    pub(crate) fn config(
        &self,
        link: &LinkTable,
        loss_ppm: Option<u32>,
        seed: Option<u64>,
    ) -> Result<NetworkConfig, ConfigError> {
        let cable = link.cable(loss_ppm, seed);
        let given = |source| {
            let given = self.topology.clone().unwrap_or_else(|| "of [link]".to_owned());
            ConfigError::Topology { given, source }
        };
        let topology = match &self.topology {
            None if !self.hosts.is_empty() => return Err(ConfigError::HostsWithoutTopology(self.hosts.join(","))),
            Some(_) if !link.is_default() => return Err(ConfigError::LinkAndTopology),
            None => {
                let rate = Rate::from_gbps(cable.gbit_per_s).map_err(|error| MachineError::Link(error.to_string()))?;
                Topology::back_to_back(emu_fabric::LinkConfig { rate, latency_ps: cable.latency_ps })
            }
            Some(name) if name.contains('/') || name.ends_with(".toml") || Path::new(name).is_file() => {
                Topology::from_toml(&read("topology", Path::new(name))?)
            }
            Some(name) => Topology::named(name),
        };
        let mut topology = topology.map_err(given)?;
        if let Some(priorities) = self.priorities {
            let switching = SwitchConfig { priorities, ..topology.switching() };
            topology = topology.with_switching(switching).map_err(given)?;
        }
        let mut faults = self.script(&topology)?;
        if faults.seed == 0 {
            faults.seed = link.seed.or(seed).unwrap_or_default();
        }
        if cable.drop_ppm > 0 {
            faults.faults.extend(FaultEvent::towards_hosts(&topology, Fault::Drop { ppm: cable.drop_ppm }));
        }
        let hosts = self.hosts.iter().map(|name| host(&topology, name)).collect::<Result<Vec<_>, _>>()?;
        Ok(NetworkConfig { topology, faults, hosts })
    }

    fn script(&self, topology: &Topology) -> Result<FaultScript, ConfigError> {
        let Some(path) = &self.faults else { return Ok(FaultScript::default()) };
        let refused = |source| ConfigError::Faults { path: path.clone(), source };
        let faults = FaultScript::from_toml(&read("fault script", path)?).map_err(refused)?;
        faults.check(topology).map_err(refused)?;
        Ok(faults)
    }
}

fn read(what: &'static str, path: &Path) -> Result<String, ConfigError> {
    flexcast_files::text(path, flexcast_files::TABLE).map_err(|source| ConfigError::File {
        what,
        path: path.to_owned(),
        source,
    })
}

fn host(topology: &Topology, given: &str) -> Result<usize, ConfigError> {
    let hosts = topology.hosts();
    let by_name = hosts.iter().position(|name| name == given);
    by_name.or_else(|| given.parse().ok().filter(|number| *number < hosts.len())).ok_or_else(|| ConfigError::Host {
        host: given.to_owned(),
        topology: topology.name().to_owned(),
        last: hosts.len() - 1,
        example: hosts.last().cloned().unwrap_or_default(),
    })
}
