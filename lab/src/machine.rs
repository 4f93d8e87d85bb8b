//! The emulated machine of a run: what joins its two cards, what goes wrong, how memory behaves, and what it has seen.

use std::fmt;
use std::path::{Path, PathBuf};

use emu_machine::fabric::{
    Fault, FaultError, FaultEvent, FaultScript, LinkConfig as Link, Priorities, Rate, SwitchConfig, Topology,
    TopologyError,
};
use emu_machine::{Config, LinkConfig, MachineError, MemoryModel, NetworkConfig, Race, Wiring, with_world};
use serde::Serialize;

pub use crate::driven_from::DrivenFrom;
use crate::timing::{TimingParams, TimingParamsError};

/// When stores are seen by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// At once and in order.
    #[default]
    Strong,
    /// As late and as much out of order as fences allow, by seed: firmware that lacks a fence fails for some seed.
    Weak,
}

/// Whether traffic classes have queues of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Queues {
    /// One queue for all.
    Shared,
    /// One for each priority; the highest goes first.
    Strict,
    /// One for each priority; each has its share by the weights of the topology.
    Weighted,
}

impl From<Queues> for Priorities {
    fn from(queues: Queues) -> Self {
        match queues {
            Queues::Shared => Self::Shared,
            Queues::Strict => Self::Strict,
            Queues::Weighted => Self::Weighted,
        }
    }
}

/// What a machine of two cards is asked to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineParams {
    /// Name of a topology, or a description file; `None` for a cable.
    pub topology: Option<String>,
    /// Hosts of the topology, by number or name, at which the receiving and the sending card are. Empty: the first two.
    pub cards: Vec<String>,
    /// A fault script.
    pub faults: Option<PathBuf>,
    /// Frames lost on their way to each card, parts per million.
    pub loss_ppm: u32,
    /// Seed of losses and of weak memory, and of a fault script that has none (or 0).
    pub seed: u64,
    /// Memory model.
    pub memory: Memory,
    /// Whether to look for races for memory.
    pub detect_races: bool,
    /// Queues of ports; `None`: as the topology says.
    pub queues: Option<Queues>,
    /// Where the process runs that drives the cards.
    pub driven_from: DrivenFrom,
    /// What times are made of.
    pub timing: TimingParams,
}

/// A machine that cannot be made as asked.
#[derive(Debug, thiserror::Error)]
pub enum MachineParamsError {
    /// A file cannot be read.
    #[error("{what} `{}` cannot be read", path.display())]
    File {
        /// What it is.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The topology is none.
    #[error("--topology {given}: {source}")]
    Topology {
        /// What was given.
        given: String,
        /// Why not.
        source: TopologyError,
    },
    /// The fault script is none, or does not fit.
    #[error("--faults {}: {source}", path.display())]
    Faults {
        /// The script.
        path: PathBuf,
        /// Why not.
        source: FaultError,
    },
    /// Not two hosts.
    #[error("--cards names {count} hosts: name two, the receiving and the sending card's, such as --cards 0,5")]
    CardCount {
        /// How many were named.
        count: usize,
    },
    /// More cards than hosts.
    #[error("{count} cards, but {topology:?} has {hosts} hosts for them: choose a larger --topology, or fewer ranks")]
    Hosts {
        /// Name of the topology.
        topology: String,
        /// Its hosts, or those named.
        hosts: usize,
        /// Cards asked for.
        count: usize,
    },
    /// No such host.
    #[error(
        "--cards: the topology {topology:?} has no host {host:?}: give a number from 0 to {last}, or a name such as {example:?}"
    )]
    Host {
        /// What was given.
        host: String,
        /// Name of the topology.
        topology: String,
        /// The last host.
        last: usize,
        /// Name of the last host.
        example: String,
    },
    /// A cable has no other hosts.
    #[error("--cards chooses hosts of a topology: give --topology, too")]
    CardsWithoutTopology,
    /// No such timing model.
    #[error(transparent)]
    Timing(#[from] TimingParamsError),
    /// What the machine itself refuses.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// What a run was emulated with, and what the machine has seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineReport {
    /// Name of the topology; `cable` without one.
    pub topology: String,
    /// Hosts of the receiving and the sending card.
    pub cards: [String; 2],
    /// Entries of the fault script; losses asked for in percent are none.
    pub faults: usize,
    /// Seed of the faults, the losses and weak memory.
    pub seed: u64,
    /// Where the process ran that drove the cards.
    pub driven_from: DrivenFrom,
    /// Memory model.
    pub memory: Memory,
    /// Races found; `None` if nobody looked.
    pub races: Option<u64>,
    /// Frames that were lost on links, in switches and for want of a receiver.
    pub lost_frames: u64,
    /// Frames that faults doubled.
    pub duplicated_frames: u64,
    /// Frames that faults corrupted.
    pub corrupted_frames: u64,
    /// Most bytes that waited at one port.
    pub queue_high_water_bytes: u64,
}

impl fmt::Display for MachineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [server, client] = &self.cards;
        write!(f, "{}: {client} to {server}; {} lost", self.topology, frames(self.lost_frames))?;
        for (count, what) in [(self.duplicated_frames, "doubled"), (self.corrupted_frames, "corrupted")] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if self.faults > 0 {
            write!(f, " ({} faults, seed {})", self.faults, self.seed)?;
        }
        if self.driven_from == DrivenFrom::Arm {
            f.write_str("; driven from the Arm cores")?;
        }
        if self.memory == Memory::Weak {
            write!(f, "; weak memory, seed {}", self.seed)?;
        }
        match self.races {
            None => Ok(()),
            Some(0) => f.write_str("; no races"),
            Some(races) => write!(f, "; {races} races"),
        }
    }
}

fn frames(count: u64) -> String {
    format!("{count} {}", if count == 1 { "frame" } else { "frames" })
}

fn read(what: &'static str, path: &Path) -> Result<String, MachineParamsError> {
    std::fs::read_to_string(path).map_err(|source| MachineParamsError::File { what, path: path.to_owned(), source })
}

/// The cable that the machine has by default, as a topology: faults want one.
fn cable() -> Result<Topology, TopologyError> {
    let LinkConfig { gbit_per_s, latency_ps, .. } = LinkConfig::default();
    let rate = Rate::from_gbps(gbit_per_s).unwrap_or(Rate::GBPS_200);
    Topology::back_to_back(Link { rate, latency_ps })
}

impl MachineParams {
    /// Whether it is the default machine with losses, seed and model aside.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let (seed, timing) = (self.seed, self.timing.clone());
        *self == Self { loss_ppm: self.loss_ppm, seed, timing, ..Self::default() }
    }

    /// The configuration of the machine.
    ///
    /// # Errors
    /// [`MachineParamsError`] for the first thing that cannot be.
    pub fn config(&self) -> Result<Config, MachineParamsError> {
        let config = self.unwired()?;
        Ok(Config { wiring: self.wiring()?, ..config })
    }

    /// The configuration of a machine of `count` cards in a network: one switch if no topology is given, at its first hosts if none are
    /// named.
    ///
    /// # Errors
    /// [`MachineParamsError`] for the first thing that cannot be.
    pub fn config_of(&self, count: usize) -> Result<Config, MachineParamsError> {
        let topology = self.topology.clone().unwrap_or_else(|| format!("switch-{}", count.max(2)));
        let own = Self { topology: Some(topology), ..self.clone() };
        let network = own.network()?;
        let hosts = network.topology.hosts().len();
        let room = if network.hosts.is_empty() { hosts } else { network.hosts.len() };
        if room < count {
            return Err(MachineParamsError::Hosts { topology: network.topology.name().to_owned(), hosts: room, count });
        }
        Ok(Config { cards: count, wiring: Wiring::Network(Box::new(network)), ..self.unwired()? })
    }

    /// All but what joins the cards.
    fn unwired(&self) -> Result<Config, MachineParamsError> {
        let memory = match self.memory {
            Memory::Strong => MemoryModel::Strong,
            Memory::Weak => MemoryModel::weak(self.seed),
        };
        let (driven_from, timing) = (self.driven_from.into(), self.timing.parameters()?);
        Ok(Config { driven_from, memory, timing, detect_races: self.detect_races, ..Config::default() })
    }

    fn wiring(&self) -> Result<Wiring, MachineParamsError> {
        if self.topology.is_none() && !self.cards.is_empty() {
            return Err(MachineParamsError::CardsWithoutTopology);
        }
        if self.topology.is_none() && self.faults.is_none() && self.queues.is_none() {
            return Ok(emu_provider::lossy(self.loss_ppm, self.seed).wiring);
        }
        let network = self.network()?;
        if !network.hosts.is_empty() && network.hosts.len() != 2 {
            return Err(MachineParamsError::CardCount { count: network.hosts.len() });
        }
        Ok(Wiring::Network(Box::new(network)))
    }

    fn network(&self) -> Result<NetworkConfig, MachineParamsError> {
        let given = |source| {
            let given = self.topology.clone().unwrap_or_default();
            MachineParamsError::Topology { given, source }
        };
        let topology = match &self.topology {
            None => cable().map_err(given)?,
            Some(name) if Path::new(name).is_file() || name.ends_with(".toml") => {
                Topology::from_toml(&read("topology", Path::new(name))?).map_err(given)?
            }
            Some(name) => Topology::named(name).map_err(given)?,
        };
        let topology = match self.queues {
            Some(queues) => {
                let switching = SwitchConfig { priorities: queues.into(), ..topology.switching() };
                topology.with_switching(switching).map_err(given)?
            }
            None => topology,
        };
        let mut faults = FaultScript::default();
        if let Some(path) = &self.faults {
            let refused = |source| MachineParamsError::Faults { path: path.clone(), source };
            faults = FaultScript::from_toml(&read("fault script", path)?).map_err(refused)?;
            faults.check(&topology).map_err(refused)?;
        }
        if faults.seed == 0 {
            faults.seed = self.seed;
        }
        if self.loss_ppm > 0 {
            faults.faults.extend(FaultEvent::towards_hosts(&topology, Fault::Drop { ppm: self.loss_ppm }));
        }
        let hosts = self.cards.iter().map(|card| host(&topology, card)).collect::<Result<Vec<_>, _>>()?;
        Ok(NetworkConfig { topology, faults, hosts })
    }
}

fn host(topology: &Topology, given: &str) -> Result<usize, MachineParamsError> {
    let hosts = topology.hosts();
    let by_name = hosts.iter().position(|name| name == given);
    by_name.or_else(|| given.parse().ok().filter(|number| *number < hosts.len())).ok_or_else(|| {
        MachineParamsError::Host {
            host: given.to_owned(),
            topology: topology.name().to_owned(),
            last: hosts.len() - 1,
            example: hosts.last().cloned().unwrap_or_default(),
        }
    })
}

/// What the calling thread's machine was and has seen, and the races it has found, which it forgets.
///
/// # Errors
/// There is no machine.
pub fn report(params: &MachineParams) -> Result<(MachineReport, Vec<Race>), MachineError> {
    with_world(|world| {
        let races = world.config().detect_races.then(|| world.race_count());
        let (mut name, mut cards) = ("cable".to_owned(), ["0", "1"].map(str::to_owned));
        let (mut faults, mut seed) = (0, params.seed);
        if let Wiring::Network(network) = &world.config().wiring {
            let host = |card: usize| {
                let host = network.hosts.get(card).copied().unwrap_or(card);
                network.topology.hosts().get(host).cloned().unwrap_or_default()
            };
            (name, cards) = (network.topology.name().to_owned(), [host(0), host(1)]);
            let losses = match params.loss_ppm {
                0 => 0,
                ppm => FaultEvent::towards_hosts(&network.topology, Fault::Drop { ppm }).len(),
            };
            (faults, seed) = (network.faults.faults.len().saturating_sub(losses), network.faults.seed);
        }
        let ports = match world.network() {
            Some(network) => {
                let totals = network.totals();
                let mut all = totals.switches;
                all += totals.hosts;
                all
            }
            None => {
                let mut both = world.port_counters(0);
                both += world.port_counters(1);
                both
            }
        };
        let report = MachineReport {
            topology: name,
            cards,
            faults,
            seed,
            driven_from: world.config().driven_from.into(),
            memory: params.memory,
            races,
            lost_frames: ports.drops.total(),
            duplicated_frames: ports.duplicated_frames,
            corrupted_frames: ports.corrupted_frames,
            queue_high_water_bytes: ports.queue_high_water_bytes,
        };
        (report, world.take_races())
    })
}
