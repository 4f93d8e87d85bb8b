//! Machine description and its conversion to a configuration.

use std::path::{Path, PathBuf};

use emu_machine::{Config, DrivenFrom, MAX_CARDS, Wiring};
use serde::{Deserialize, Serialize};

use crate::bridge::BridgeTable;
use crate::error::ConfigError;
use crate::job::JobTable;
use crate::memory::{Memory, MemoryTable};
use crate::network::{LinkTable, NetworkTable};
use crate::share::{AttachTable, MOST_CLIENTS, ShareTable};
use crate::station::{GeneratorTable, ReflectorTable, ReplayTable, TapTable};
use crate::timing::Timing;

/// Seed of weak memory where nobody gives one.
const DEFAULT_SEED: u64 = 1;
/// Largest heap of a process.
pub(crate) const MOST_HEAP_MIB: u64 = 8192;
/// Longest time after which a program is reported to be stuck, in milliseconds: below the watchdog of handlers.
pub(crate) const MOST_STUCK_MS: u64 = 100_000;
/// Longest time of a control operation, in picoseconds: a second.
pub(crate) const MOST_COMMAND_PS: u64 = 1_000_000_000_000;

/// A machine in the user's words. Every key may be left out; unknown ones are errors.
///
/// ```toml
/// cards = 1
/// first_card = 1              # from 0; its Ethernet address and GID follow from the number
/// capture = "card-1.pcapng"   # what crosses the card's link
/// uc_multicast = false        # true: a hypothetical card whose UC queue pairs take part in multicast
/// driven_from = "host"        # or "arm": the program runs on the card's Arm cores, and windows reach their memory
/// arm_functions = false       # true: each card has a second function, that of its Arm cores, which programs open as mlx5_N_arm
/// command_ps = 0              # virtual time of a control operation of verbs or DevX; not with [bridge]
/// heap_mib = 256              # DPA memory for the heap of a process
/// dpa_units = [0, 254]        # execution units that threads of the DPA may have, first and last: a partition
/// stuck_ms = 1000             # card time after which a handler without end, a missing receive, a queue that nobody arms are reported
/// detect_races = false        # true: reports races of cards, firmware and program for memory on stderr when found
/// seed = 1                    # of losses, of weak memory, and of a fault script that has none
/// loss_ppm = 0                # frames lost on their way to each card, per million, whatever joins the cards
///
/// [link]
/// gbit_per_s = 200
/// latency_ps = 500000
/// drop_ppm = 0
/// seed = 1
///
/// [network]                   # switches, and what goes wrong in them
/// topology = "switch-8"       # back-to-back, switch-N, fat-tree-188, fat-tree-1024, or a description file [default: the cable of [link]]
/// faults = "bad-day.toml"     # a fault script
/// priorities = "strict"       # or "shared" or "weighted": queues of the ports [default: as the topology says]
/// hosts = ["0", "h5"]         # where the cards are, by number or name [default: each at the host of its number]
///
/// [memory]
/// model = "strong"            # or "weak", with a seed
///
/// [timing]
/// model = "m2"                # or uncalibrated-1 [default], or a file of a timing model's numbers
/// set = ["loads.l3_cycles=115"] # numbers of the model that are different
///
/// [bridge]
/// listen = "127.0.0.1:7472"   # UDP
/// peer_timeout_ms = 8000      # how long a machine that is not run may hold up this one
/// peer = "127.0.0.1:7471"     # or, with more machines than two:
/// # peers = [
/// #   { address = "127.0.0.1:7471", first_card = 0 },
/// #   { address = "127.0.0.1:7473", first_card = 2, cards = 4 },
/// # ]
///
/// [generator]                 # at the free end of the one card's cable: UDP datagrams, and how many come back
/// frames = 1000
/// frame_bytes = 64            # header and check sequence included
/// in_flight = 1               # or gbit_per_s = 10.0
/// macs = ["02:00:00:00:ff:01", "01:02:03:04:05:06"] # [default: the second is the card's]
/// ips = ["192.0.2.1", "192.0.2.2"]
/// ports = [4000, 4001]
/// vlan = 7                    # [default: no tag]
/// start_us = 0                # after steering leads to a receive queue
/// patience_us = 1000          # how long an answer may take
/// report = "generator.json"
///
/// [reflector]                 # or each frame goes back, with both Ethernet addresses exchanged
/// delay_ns = 0
///
/// [replay]                    # or the frames of a capture
/// capture = "frames.pcapng"
///
/// [tap]                       # or a tap device of this computer
/// interface = "fc0"
///
/// [job]                       # in the place of first_card and [bridge]: each process of a job on this computer has a machine like this one
/// first_port = 7471           # UDP port of rank 0; those of the others follow
/// peer_timeout_ms = 8000
///
/// [share]                     # other processes of this computer may use the cards
/// socket = "card.sock"        # a socket of the file system, which is made
/// clients = 64                # how many may at once
///
/// [attach]                    # alone: this process has no cards and uses those of the process that shares them
/// socket = "card.sock"
/// timeout_ms = 10000          # how long to wait for that process
/// ```
///
/// With `[bridge]` and `[network]` the last host of the network is where the machine is joined to the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// Number of cards. Default 1 with a bridge, one for each host of a network (but for the last, with a bridge),
    /// else 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cards: Option<usize>,
    /// Number of the first card, from 0: [`Config::first_card`]. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_card: Option<usize>,
    /// Seed of losses and of weak memory, and of a fault script that has none (or 0). Default 1 of losses on a cable
    /// and weak memory, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Frames lost on their way to each card, parts per million, whatever joins the cards. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_ppm: Option<u32>,
    /// Whether to detect races for memory: [`Config::detect_races`]. Default no.
    pub detect_races: bool,
    /// Whether UC queue pairs take part in multicast, which no card offers: [`Config::uc_multicast`]. Default no.
    pub uc_multicast: bool,
    /// Whether each card has a second function for its Arm cores: [`Config::arm_functions`]. Default no.
    pub arm_functions: bool,
    /// Virtual time that a control operation takes, in picoseconds, at most a second: [`Config::command_ps`].
    /// Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_ps: Option<u64>,
    /// Bytes of a DPA process's heap, in MiB, 1 to 8192: [`Config::heap_bytes`]. What a card has is not published.
    /// Default 256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap_mib: Option<u64>,
    /// Execution units that threads of the DPA may have, first and last: [`Config::units`]. Default 0 to 254.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpa_units: Option<[u32; 2]>,
    /// Virtual time after which a program on the card is reported to be stuck, in milliseconds, 1 to 100,000:
    /// [`Config::stuck_ps`]. Default 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck_ms: Option<u64>,
    /// Where the programs run that drive the cards: [`Config::driven_from`]. Default the host.
    #[serde(skip_serializing_if = "is_host")]
    pub driven_from: DrivenFrom,
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
    /// What times are made of.
    #[serde(skip_serializing_if = "Timing::is_default")]
    pub timing: Timing,
    /// What the outer end of the link is joined to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeTable>,
    /// A packet generator at the free end of the cable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator: Option<GeneratorTable>,
    /// A reflector there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reflector: Option<ReflectorTable>,
    /// A capture that is played there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayTable>,
    /// A tap device there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tap: Option<TapTable>,
    /// Is the same for all processes of a job: [`Machine::placed`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobTable>,
    /// Lets other processes use the cards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareTable>,
    /// Uses the cards of another process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<AttachTable>,
}

fn is_host(driven_from: &DrivenFrom) -> bool {
    *driven_from == DrivenFrom::Host
}

impl Machine {
    /// A machine file's text.
    ///
    /// # Errors
    /// Unknown keys and wrong types; the message names the key and its line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|source| ConfigError::Parse { path: None, source })
    }

    /// A machine file.
    ///
    /// # Errors
    /// As [`Machine::parse`], and what reading a file may fail with.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = flexcast_files::text(path, flexcast_files::CONFIGURATION)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|source| ConfigError::Parse { path: Some(path.to_owned()), source })
    }

    /// Whether it says nothing but whose cards are used.
    #[must_use]
    pub fn only_attaches(&self) -> bool {
        self.attach.is_some() && Self { attach: None, ..self.clone() } == Self::default()
    }

    /// The network's table, an empty one if there is none yet.
    pub fn network_mut(&mut self) -> &mut NetworkTable {
        self.network.get_or_insert_default()
    }

    /// Frames lost on their way to each card, parts per million; those of a fault script are none of them.
    #[must_use]
    pub fn losses_ppm(&self) -> u32 {
        self.link.drop_ppm.or(self.loss_ppm).unwrap_or_default()
    }

    /// Whether it is the default machine with losses, seed and model aside.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let known = Self { loss_ppm: None, seed: None, timing: Timing::default(), ..self.clone() };
        known == Self::default()
    }

    fn stations(&self) -> u32 {
        let stations = [self.generator.is_some(), self.reflector.is_some(), self.replay.is_some(), self.tap.is_some()];
        stations.map(u32::from).iter().sum()
    }

    /// Whether something is at the free end of the cable that is no other machine.
    #[must_use]
    pub fn has_station(&self) -> bool {
        self.stations() > 0
    }

    /// Whether virtual time follows the wall clock, whatever the program does.
    #[must_use]
    pub fn follows_the_clock(&self) -> bool {
        self.bridge.is_some() || self.share.is_some() || self.has_station()
    }

    /// The configuration of the machine.
    ///
    /// # Errors
    /// [`ConfigError`] for the first thing that cannot be.
    pub fn config(&self) -> Result<Config, ConfigError> {
        if self.losses_ppm() > 1_000_000 {
            return Err(ConfigError::Loss { percent: f64::from(self.losses_ppm()) / 1e4 });
        }
        if self.attach.is_some() {
            return Err(ConfigError::Attached);
        }
        if self.job.is_some() {
            return Err(ConfigError::NotPlaced);
        }
        if let Some(generator) = &self.generator {
            generator.check().map_err(ConfigError::Generator)?;
        }
        if let Some(reflector) = &self.reflector {
            reflector.check().map_err(ConfigError::Generator)?;
        }
        if let Some(tap) = &self.tap {
            tap.check().map_err(ConfigError::Tap)?;
        }
        if self.stations() + u32::from(self.bridge.is_some()) > 1 && self.has_station() {
            return Err(ConfigError::Ends);
        }
        if self.has_station() && self.network.is_some() {
            return Err(ConfigError::Generator("it is at the free end of a cable: leave [network] out".to_owned()));
        }
        let follows_the_clock = self.follows_the_clock();
        if let Some(command_ps @ 1..) = self.command_ps.filter(|_| follows_the_clock) {
            return Err(ConfigError::CommandTime { command_ps });
        }
        if let Some(mib) = self.heap_mib.filter(|mib| !(1..=MOST_HEAP_MIB).contains(mib)) {
            return Err(ConfigError::Heap { mib });
        }
        if let Some(command_ps) = self.command_ps.filter(|command_ps| *command_ps > MOST_COMMAND_PS) {
            return Err(ConfigError::CommandTooLong { command_ps });
        }
        if let Some(stuck_ms) = self.stuck_ms.filter(|stuck_ms| !(1..=MOST_STUCK_MS).contains(stuck_ms)) {
            return Err(ConfigError::Stuck { stuck_ms });
        }
        if let Some(share) = &self.share {
            if !(1..=MOST_CLIENTS).contains(&share.clients) {
                return Err(ConfigError::Clients { clients: share.clients });
            }
            if self.detect_races || self.memory.model != Memory::Strong {
                return Err(ConfigError::SharedWatched);
            }
        }
        let default = Config::default();
        let outside = usize::from(self.bridge.is_some() || self.has_station());
        let (cards, wiring) = match &self.network {
            None => {
                let cards = self.cards.unwrap_or(default.cards - outside);
                (cards, Wiring::Cable(self.link.cable(self.loss_ppm, self.seed)))
            }
            Some(table) => {
                let network = table.config(&self.link, self.loss_ppm, self.seed)?;
                let (hosts, named) = (network.topology.hosts().len(), network.hosts.len());
                let room = if named > 0 { named } else { hosts.saturating_sub(outside).min(MAX_CARDS) };
                let cards = self.cards.unwrap_or(room);
                if named > 0 && named != cards {
                    return Err(ConfigError::HostCount { hosts: named, cards });
                }
                if cards > hosts {
                    return Err(ConfigError::Hosts { topology: network.topology.name().to_owned(), hosts, cards });
                }
                (cards, Wiring::Network(Box::new(network)))
            }
        };
        Ok(Config {
            cards,
            first_card: self.first_card.unwrap_or(default.first_card),
            wiring,
            driven_from: self.driven_from,
            timing: self.timing.parameters()?,
            memory: self.memory.model(self.seed.unwrap_or(DEFAULT_SEED)),
            detect_races: self.detect_races,
            stuck_ps: self.stuck_ms.map_or(default.stuck_ps, |stuck_ms| stuck_ms * 1_000_000_000),
            uc_multicast: self.uc_multicast,
            arm_functions: self.arm_functions,
            command_ps: self.command_ps.unwrap_or(default.command_ps),
            units: self.dpa_units.map_or(default.units, |[first, last]| first..=last),
            heap_bytes: self.heap_mib.map_or(default.heap_bytes, |mib| mib << 20),
            ..default
        })
    }

    /// The configuration of a machine of two cards that runs by itself, unless the description says how many cards
    /// there are.
    ///
    /// # Errors
    /// [`ConfigError`] for the first thing that cannot be.
    pub fn config_of_pair(&self) -> Result<Config, ConfigError> {
        let cards = self.alone(2)?;
        Self { cards: Some(cards), ..self.clone() }.config()
    }

    /// The configuration of a machine that runs by itself and has `count` cards, or the more that the description says,
    /// in a network: one switch if no topology is given, at its first hosts if none are named.
    ///
    /// # Errors
    /// [`ConfigError`] for the first thing that cannot be.
    pub fn config_of(&self, count: usize) -> Result<Config, ConfigError> {
        let cards = self.alone(count)?;
        let mut machine = Self { cards: Some(cards), ..self.clone() };
        machine.network_mut().topology.get_or_insert_with(|| format!("switch-{}", cards.max(2)));
        machine.config()
    }

    /// How many cards there are, if `needed` are needed of a machine that runs by itself.
    fn alone(&self, needed: usize) -> Result<usize, ConfigError> {
        let alone = !self.follows_the_clock();
        match self.cards {
            _ if !alone => Err(ConfigError::Bridged),
            Some(cards) if cards < needed => Err(ConfigError::Cards { cards, needed }),
            cards => Ok(cards.unwrap_or(needed)),
        }
    }
}

#[cfg(test)]
mod tests;
