//! A machine written down, in TOML.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use emu_fabric::{FaultError, FaultScript, Priorities, SwitchConfig, Topology, TopologyError};
use emu_machine::{
    Config, DrivenFrom, LinkConfig, MAX_CARDS, MachineError, MemoryModel, NetworkConfig, Shared, Wiring, World,
};
use serde::{Deserialize, Serialize};

use crate::bridge::Bridge;
use crate::joint::{BridgeTable, MOST_TIMEOUT_MS};
use crate::keeper;

/// A machine file. Every key may be left out; unknown ones are errors.
///
/// ```toml
/// cards = 1
/// first_card = 1              # from 0; its Ethernet address and GID follow from the number
/// capture = "card-1.pcapng"   # what crosses the card's link
/// uc_multicast = false        # true: a hypothetical card whose UC queue pairs take part in multicast
/// driven_from = "host"        # or "arm": the program runs on the card's Arm cores, and windows reach their memory
/// detect_races = false        # true: tells races of cards, firmware and program for memory on stderr when they are found
///
/// [link]
/// gbit_per_s = 200
/// latency_ps = 500000
/// drop_ppm = 0
/// seed = 1
///
/// [network]                   # instead of [link]: switches, and what goes wrong in them
/// topology = "switch-8"       # back-to-back, switch-N, fat-tree-188, fat-tree-1024, or a description file
/// faults = "bad-day.toml"     # a fault script
/// priorities = "strict"       # or "shared" or "weighted": queues of the ports [default: as the topology says]
///
/// [memory]
/// model = "strong"            # or "weak", with a seed
///
/// [bridge]
/// listen = "127.0.0.1:7472"   # UDP
/// peer_timeout_ms = 10000     # how long a machine that is not run may hold up this one
/// peer = "127.0.0.1:7471"     # or, with more machines than two:
/// # peers = [
/// #   { address = "127.0.0.1:7471", first_card = 0 },
/// #   { address = "127.0.0.1:7473", first_card = 2, cards = 4 },
/// # ]
/// ```
///
/// With `[bridge]` and `[network]` the last host of the network is where the machine is joined to the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineFile {
    /// Number of cards. Default 1 with a bridge, one for each host of a network (but for the last, with a bridge), else 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cards: Option<usize>,
    /// Number of the first card, from 0: [`Config::first_card`]. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_card: Option<usize>,
    /// Whether to look for races for memory: [`Config::detect_races`]. Default no.
    pub detect_races: bool,
    /// Whether UC queue pairs take part in multicast, which no card offers: [`Config::uc_multicast`]. Default no.
    pub uc_multicast: bool,
    /// Where the programs run that drive the cards: [`Config::driven_from`]. Default the host.
    #[serde(skip_serializing_if = "DrivenFromKey::is_default")]
    pub driven_from: DrivenFromKey,
    /// A pcapng file for the packets on the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<PathBuf>,
    /// The link of the cards.
    #[serde(skip_serializing_if = "LinkTable::is_default")]
    pub link: LinkTable,
    /// The network of the cards, in place of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkTable>,
    /// When stores are seen by others.
    #[serde(skip_serializing_if = "MemoryTable::is_default")]
    pub memory: MemoryTable,
    /// What the outer end of the link is joined to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeTable>,
}

/// `driven_from`: see [`DrivenFrom`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrivenFromKey {
    /// The server that the card is plugged into.
    #[default]
    Host,
    /// The card's own Arm cores.
    Arm,
}

impl DrivenFromKey {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl From<DrivenFromKey> for DrivenFrom {
    fn from(key: DrivenFromKey) -> Self {
        match key {
            DrivenFromKey::Host => Self::Host,
            DrivenFromKey::Arm => Self::Arm,
        }
    }
}

/// `[link]`: see [`emu_machine::LinkConfig`], whose defaults hold for what is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkTable {
    /// Rate in Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_per_s: Option<u64>,
    /// Delay in picoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ps: Option<u64>,
    /// Frames lost per million.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_ppm: Option<u32>,
    /// Seed of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl LinkTable {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `[network]`: see [`NetworkConfig`]. Card `i` is at host `i`. Relative paths start at the working directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkTable {
    /// Name of a topology, or the path of a description file (`*.toml`).
    pub topology: String,
    /// A fault script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<PathBuf>,
    /// Queues of the ports. Default: as the topology says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priorities: Option<Priorities>,
}

impl NetworkTable {
    fn config(&self) -> Result<NetworkConfig, FileError> {
        let read = |what, path: &Path| {
            std::fs::read_to_string(path).map_err(|source| FileError::Part { what, path: path.to_owned(), source })
        };
        let given = |source| FileError::Topology { given: self.topology.clone(), source };
        let topology = match Path::new(&self.topology) {
            path if path.extension().is_some_and(|end| end == "toml") => {
                Topology::from_toml(&read("topology", path)?).map_err(given)?
            }
            _ => Topology::named(&self.topology).map_err(given)?,
        };
        let switching = topology.switching();
        let priorities = self.priorities.unwrap_or(switching.priorities);
        let topology = topology.with_switching(SwitchConfig { priorities, ..switching }).map_err(given)?;
        let mut config = NetworkConfig::new(topology);
        if let Some(path) = &self.faults {
            let refused = |source| FileError::Faults { path: path.clone(), source };
            config.faults = FaultScript::from_toml(&read("fault script", path)?).map_err(refused)?;
            config.faults.check(&config.topology).map_err(refused)?;
        }
        Ok(config)
    }
}

/// `[memory]`: see [`MemoryModel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case", deny_unknown_fields)]
pub enum MemoryTable {
    /// At once and in order.
    #[default]
    Strong,
    /// As late as the firmware's fences allow.
    Weak {
        /// Seed of the choices.
        seed: u64,
    },
}

impl MemoryTable {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("the machine file {} cannot be read: {source}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("the machine file{}: {source}", path.as_ref().map_or(String::new(), |path| format!(" {}", path.display())))]
    Parse {
        /// Its path, if it has one.
        path: Option<PathBuf>,
        /// Where and what.
        source: toml::de::Error,
    },
    /// A file that it names cannot be read.
    #[error("the machine file: the {what} {} cannot be read: {source}", path.display())]
    Part {
        /// What it is.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such topology.
    #[error("the machine file: network.topology is {given:?}: {source}")]
    Topology {
        /// What was given.
        given: String,
        /// Why not.
        source: TopologyError,
    },
    /// The fault script is none, or does not fit the topology.
    #[error("the machine file: the fault script {}: {source}", path.display())]
    Faults {
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: FaultError,
    },
    /// Two answers to one question.
    #[error(
        "the machine file: [link] and [network] exclude one another: the links of a network are in its description"
    )]
    LinkAndNetwork,
    /// The machine cannot be built so.
    #[error("the machine file: {0}")]
    Machine(#[from] MachineError),
    /// Not an address.
    #[error("the machine file: bridge.{key} is {value:?}, but must be HOST:PORT of this or another computer: {source}")]
    Address {
        /// `listen`, `peer` or `peers`.
        key: &'static str,
        /// What it is.
        value: String,
        /// What the system said.
        source: io::Error,
    },
    /// The peers do not fit together.
    #[error("the machine file: bridge: {0}")]
    Peers(String),
    /// A time that nobody waits.
    #[error("the machine file: bridge.peer_timeout_ms is {0}, but must be 1 to {MOST_TIMEOUT_MS} ms")]
    Timeout(u64),
    /// The bridge cannot be set up.
    #[error("the bridge cannot listen on {listen}: {source}; is it taken by another program?")]
    Bridge {
        /// The address.
        listen: String,
        /// What the system said.
        source: io::Error,
    },
    /// The capture cannot be written.
    #[error("the capture {} cannot be written: {source}", path.display())]
    Capture {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl MachineFile {
    /// A machine file's text.
    ///
    /// # Errors
    /// Unknown keys and wrong types; the message names the key and its line.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        toml::from_str(text).map_err(|source| FileError::Parse { path: None, source })
    }

    /// A machine file.
    ///
    /// # Errors
    /// As [`MachineFile::parse`], and what reading a file may fail with.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text = std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|source| FileError::Parse { path: Some(path.to_owned()), source })
    }

    fn config(&self) -> Result<Config, FileError> {
        let mut config = Config::default();
        config.cards = self.cards.unwrap_or(if self.bridge.is_some() { 1 } else { config.cards });
        config.first_card = self.first_card.unwrap_or(config.first_card);
        config.detect_races = self.detect_races;
        config.uc_multicast = self.uc_multicast;
        config.driven_from = self.driven_from.into();
        config.memory = match self.memory {
            MemoryTable::Strong => MemoryModel::Strong,
            MemoryTable::Weak { seed } => MemoryModel::weak(seed),
        };
        if let Some(table) = &self.network {
            if !self.link.is_default() {
                return Err(FileError::LinkAndNetwork);
            }
            let network = table.config()?;
            let hosts = network.topology.hosts().len();
            config.cards =
                self.cards.unwrap_or(hosts.saturating_sub(usize::from(self.bridge.is_some())).min(MAX_CARDS));
            config.wiring = Wiring::Network(Box::new(network));
            return Ok(config);
        }
        let mut link = LinkConfig::default();
        link.gbit_per_s = self.link.gbit_per_s.unwrap_or(link.gbit_per_s);
        link.latency_ps = self.link.latency_ps.unwrap_or(link.latency_ps);
        link.drop_ppm = self.link.drop_ppm.unwrap_or(link.drop_ppm);
        link.seed = self.link.seed.unwrap_or(link.seed);
        config.wiring = Wiring::Cable(link);
        Ok(config)
    }

    /// Builds the machine, and starts its bridge.
    ///
    /// # Errors
    /// Values that no machine has, addresses that cannot be used, a capture that cannot be written.
    pub fn make(&self) -> Result<Shared, FileError> {
        let mut world = World::new(self.config()?)?;
        let Some(table) = &self.bridge else {
            self.capture(&mut world)?;
            return Ok(Shared { world, driver: None });
        };
        world.open_outside()?;
        let flush = self.capture(&mut world)?;
        let first_card = world.config().first_card;
        let neighbours = table.neighbours(&(first_card..first_card + world.card_count()))?;
        if self.network.is_some() && table.peer.is_some() {
            return Err(FileError::Peers(
                "a network needs to know which cards are outside: list them in peers".to_owned(),
            ));
        }
        neighbours.iter().filter_map(|other| other.cards.clone()).flatten().for_each(|card| world.place_outside(card));
        let bridge = Bridge::new(table.wire(neighbours)?).flushing(flush);
        let failed = |source| FileError::Bridge { listen: table.listen.clone(), source };
        keeper::start(&bridge).map_err(failed)?;
        Ok(Shared { world, driver: Some(Box::new(bridge)) })
    }

    fn capture(&self, world: &mut World) -> Result<Option<Flush>, FileError> {
        let Some(path) = &self.capture else { return Ok(None) };
        let file = File::create(path).map_err(|source| FileError::Capture { path: path.clone(), source })?;
        let file = Arc::new(Mutex::new(BufWriter::new(file)));
        // Nobody ends the capture of a machine that lives as long as its process; without a bridge nobody flushes it either.
        let at_once = self.bridge.is_none();
        world.start_capture(Box::new(Capture { file: Arc::clone(&file), at_once }))?;
        Ok(Some(Flush(file)))
    }
}

/// The capture file as its writer has it.
struct Capture {
    file: Arc<Mutex<BufWriter<File>>>,
    at_once: bool,
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write(bytes)?;
        if self.at_once {
            file.flush()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// The capture file as the bridge has it.
#[derive(Debug)]
pub(crate) struct Flush(Arc<Mutex<BufWriter<File>>>);

impl Flush {
    /// Writes what has gathered; a failure shows with the next frame.
    pub(crate) fn now(&self) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_the_machine_is() {
        let text = "cards = 1\nfirst_card = 7\ndetect_races = true\n\
                    [link]\ngbit_per_s = 400\nlatency_ps = 1\ndrop_ppm = 2\nseed = 3\n[memory]\nmodel = \"weak\"\nseed = 4\n";
        let file = MachineFile::parse(text).unwrap();
        let config = file.config().unwrap();
        assert_eq!((config.cards, config.first_card, config.detect_races), (1, 7, true));
        let link = LinkConfig { gbit_per_s: 400, latency_ps: 1, drop_ppm: 2, seed: 3 };
        assert_eq!(config.wiring, Wiring::Cable(link));
        assert_eq!(config.memory, MemoryModel::weak(4));
        let gid = file.make().unwrap().world.card(0).unwrap().nic.config().gids[0];
        assert_eq!(gid, emu_machine::address(7).gid);
        assert_eq!(MachineFile::parse("").unwrap().config().unwrap(), Config::default());
        let on_arm = MachineFile::parse("driven_from = \"arm\"").unwrap();
        assert_eq!(on_arm.config().unwrap(), Config { driven_from: DrivenFrom::Arm, ..Config::default() });
        assert_eq!(MachineFile::parse(&toml::to_string(&on_arm).unwrap()).unwrap(), on_arm);
        assert_eq!(MachineFile::parse(&toml::to_string(&file).unwrap()).unwrap(), file);
    }

    #[test]
    fn a_network_brings_as_many_cards_as_it_has_hosts() {
        let file = MachineFile::parse("[network]\ntopology = \"switch-5\"").unwrap();
        let mut world = file.make().unwrap().world;
        assert_eq!(world.card_count(), 5);
        assert_eq!(world.network().map(|network| network.in_flight()), Some(0));
        let few = MachineFile { cards: Some(3), ..file.clone() };
        assert_eq!(few.make().unwrap().world.card_count(), 3);
        assert!(world.card(4).is_ok());
        assert_eq!(MachineFile::parse(&toml::to_string(&file).unwrap()).unwrap(), file);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("crads = 1", vec!["crads", "cards"]),
            ("[link]\nrate = 1", vec!["rate", "gbit_per_s"]),
            ("cards = \"two\"", vec!["cards", "two"]),
            ("driven_from = \"dpu\"", vec!["dpu", "host", "arm"]),
            ("[bridge]\npeer = \"127.0.0.1:0\"", vec!["listen"]),
            ("[memory]\nmodel = \"odd\"", vec!["odd", "strong", "weak"]),
            ("[network]\nfaults = \"x\"", vec!["topology"]),
        ] {
            let error = MachineFile::parse(text).unwrap_err().to_string();
            assert!(named.iter().all(|name| error.contains(name)), "{text:?}: {error}");
        }
        for (text, named) in [
            ("cards = 0", "0 cards"),
            ("first_card = 65534", "the last number of a card is 65534"),
            ("cards = 3", "3 cards"),
            ("[link]\ngbit_per_s = 0", "0 Gbit/s"),
            ("cards = 2\n[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:1\"", "2 cards"),
            ("[bridge]\nlisten = \"nonsense\"\npeer = \"127.0.0.1:1\"", "bridge.listen is \"nonsense\""),
            ("[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:99999\"", "bridge.peer is \"127.0.0.1:99999\""),
            ("[bridge]\nlisten = \"192.0.2.1:1\"\npeer = \"127.0.0.1:1\"", "cannot listen on 192.0.2.1:1"),
            ("capture = \"/no/such/folder/x.pcapng\"", "/no/such/folder/x.pcapng"),
            ("[network]\ntopology = \"ring-4\"", "\"ring-4\""),
            ("[network]\ntopology = \"/no/such/net.toml\"", "/no/such/net.toml cannot be read"),
            ("[network]\ntopology = \"switch-4\"\nfaults = \"/no/such/faults.toml\"", "/no/such/faults.toml"),
            ("[network]\ntopology = \"switch-4\"\n[link]\nseed = 1", "exclude one another"),
            ("cards = 5\n[network]\ntopology = \"switch-4\"", "card 4 is to be at host 4"),
            (
                "cards = 4\n[network]\ntopology = \"switch-4\"\n[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:1\"",
                "4 cards",
            ),
            (
                "[network]\ntopology = \"switch-4\"\n[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:1\"",
                "list them in peers",
            ),
            ("[bridge]\nlisten = \"127.0.0.1:0\"", "neither peer nor peers"),
        ] {
            let error = MachineFile::parse(text).unwrap().make().map(drop).unwrap_err().to_string();
            assert!(error.contains(named), "{text:?}: {error}");
        }
        assert!(MachineFile::read(Path::new("/no/such/file")).unwrap_err().to_string().contains("/no/such/file"));
    }
}
