//! Options of the command line that describe an emulated machine: a machine file, and what stands above it.

use std::path::PathBuf;

use emu_config::{ConfigError, DrivenFrom, Machine, Memory, Priorities};
use serde::Serialize;

use crate::options::one_of;

/// What joins the emulated cards, what goes wrong, and how memory behaves; real ones have none of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, clap::Args)]
#[command(next_help_heading = "Emulated machine")]
pub struct NetworkArgs {
    /// Machine file (TOML): cards, links or a network with faults, memory model, timing model. Options next to it stand
    /// above it.
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Packets lost on their way to a card, in percent (steps of 0.0001) [default: 0].
    #[arg(long, value_name = "PERCENT")]
    pub loss: Option<f64>,
    /// What joins the cards: back-to-back, switch-N, fat-tree-188, fat-tree-1024, or a description file [default: two
    /// cards: a cable; ranks: one switch].
    #[arg(long, value_name = "NAME|FILE")]
    pub topology: Option<String>,
    /// Fault script: links that drop, corrupt, double, reorder, delay, pause, or go down.
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
    /// When stores are seen by others [default: strong].
    #[arg(long, value_parser = one_of(memories()))]
    pub memory: Option<Memory>,
    /// Detect races for memory between firmware, card and host; a run with any fails and lists them on stderr.
    #[arg(long)]
    pub detect_races: bool,
    /// What emulated times are made of: uncalibrated-1, m2, or a file of a timing model's numbers [default:
    /// uncalibrated-1].
    #[arg(long, value_name = "NAME|FILE")]
    pub model: Option<String>,
    /// A number of the timing model that is to be different, such as loads.l3_cycles=115.
    #[arg(long, value_name = "GROUP.NAME=VALUE")]
    pub set: Vec<String>,
    /// Where the process runs that drives the cards: on their servers, or on their Arm cores (DPU mode), whose memory
    /// windows then reach [default: host].
    #[arg(long, value_parser = one_of(places()))]
    pub driven_from: Option<DrivenFrom>,
    /// Queues of the ports for the priorities of traffic classes [default: as the topology says, which says strict by
    /// default].
    #[arg(long, value_parser = one_of(queues()))]
    pub queues: Option<Priorities>,
}

fn memories() -> Vec<(&'static str, &'static str, Memory)> {
    let about = |memory| match memory {
        Memory::Strong => "At once and in order",
        Memory::Weak => {
            "As late and as much out of order as fences allow, by seed: firmware that lacks a fence fails for some seed"
        }
    };
    Memory::ALL.map(|memory| (memory.name(), about(memory), memory)).to_vec()
}

fn places() -> Vec<(&'static str, &'static str, DrivenFrom)> {
    let about = |place| match place {
        DrivenFrom::Host => "On the server that the card is plugged into: windows reach host memory",
        DrivenFrom::Arm => "On the card's own Arm cores (DPU mode): windows reach their memory",
    };
    DrivenFrom::ALL.map(|place| (place.name(), about(place), place)).to_vec()
}

fn queues() -> Vec<(&'static str, &'static str, Priorities)> {
    let about = |queues| match queues {
        Priorities::Shared => "One queue for all",
        Priorities::Strict => "One for each priority; the highest goes first",
        Priorities::Weighted => "One for each priority; each has its share by the weights of the topology",
    };
    Priorities::ALL.map(|queues| (queues.name(), about(queues), queues)).to_vec()
}

/// Percent to parts per million.
fn ppm(percent: f64) -> Result<u32, ConfigError> {
    let fits = (0.0..=100.0).contains(&percent);
    if fits { Ok((percent * 1e4).round() as u32) } else { Err(ConfigError::Loss { percent }) }
}

impl NetworkArgs {
    /// What the machine is asked to be: its file's machine, or the default one, with these options above it. `seed`:
    /// the run's, if one is given; else the file's, else 1.
    ///
    /// # Errors
    /// The file cannot be read, or is none; a loss that cannot be.
    pub fn machine(&self, seed: Option<u64>) -> Result<Machine, ConfigError> {
        let mut machine = self.machine.as_deref().map(Machine::read).transpose()?.unwrap_or_default();
        machine.seed = seed.or(machine.seed).or(Some(1));
        if let Some(percent) = self.loss {
            machine.loss_ppm = Some(ppm(percent)?);
            machine.link.drop_ppm = None;
        }
        if let Some(topology) = &self.topology {
            // In place of the file's link, or of its topology and where its cards are there.
            machine.link = Default::default();
            let network = machine.network_mut();
            network.topology = Some(topology.clone());
            network.hosts.clear();
        }
        if let Some(faults) = &self.faults {
            machine.network_mut().faults = Some(faults.clone());
        }
        if let Some(queues) = self.queues {
            machine.network_mut().priorities = Some(queues);
        }
        machine.memory.model = self.memory.unwrap_or(machine.memory.model);
        machine.detect_races |= self.detect_races;
        machine.driven_from = self.driven_from.unwrap_or(machine.driven_from);
        if let Some(model) = &self.model {
            machine.timing = emu_config::Timing::of(model);
        }
        machine.timing.set.extend(self.set.iter().cloned());
        Ok(machine)
    }
}

/// The emulated machine of two cards.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Emulated machine")]
pub struct MachineArgs {
    /// What is the same for any number of cards.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Hosts of the topology where the receiving and the sending card are, by number or name [default: 0,1].
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub cards: Vec<String>,
    /// Write the packets of both cards to this pcapng file.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

impl MachineArgs {
    /// As [`NetworkArgs::machine`].
    ///
    /// # Errors
    /// As there.
    pub fn machine(&self, seed: Option<u64>) -> Result<Machine, ConfigError> {
        let mut machine = self.network.machine(seed)?;
        if !self.cards.is_empty() {
            machine.network_mut().hosts = self.cards.clone();
        }
        if let Some(pcap) = &self.pcap {
            machine.capture = Some(pcap.clone());
        }
        Ok(machine)
    }

    /// The first of the options that are given, and not as their default.
    #[must_use]
    pub fn given(&self) -> Option<&'static str> {
        let NetworkArgs { machine, loss, topology, faults, memory, detect_races, model, driven_from, queues, .. } =
            &self.network;
        let options = [
            (machine.is_some(), "--machine"),
            (loss.is_some_and(|loss| loss > 0.0), "--loss"),
            (topology.is_some(), "--topology"),
            (faults.is_some(), "--faults"),
            (memory.is_some_and(|memory| memory != Memory::Strong), "--memory"),
            (*detect_races, "--detect-races"),
            (queues.is_some(), "--queues"),
            (driven_from.is_some_and(|place| place != DrivenFrom::Host), "--driven-from"),
            (model.is_some(), "--model"),
            (!self.network.set.is_empty(), "--set"),
            (!self.cards.is_empty(), "--cards"),
            (self.pcap.is_some(), "--pcap"),
        ];
        options.iter().find(|(given, _)| *given).map(|(_, name)| *name)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};
    use emu_machine::{LinkConfig, MemoryModel, Wiring};

    use super::*;

    fn parse(line: &str) -> Result<MachineArgs, clap::Error> {
        let command = MachineArgs::augment_args(clap::Command::new("test").no_binary_name(true));
        MachineArgs::from_arg_matches(&command.try_get_matches_from(line.split_whitespace())?)
    }

    #[test]
    fn loss_is_percent_in_parts_per_million() {
        assert_eq!([0.0, 1.0, 0.0001, 100.0].map(|percent| ppm(percent).unwrap()), [0, 10_000, 1, 1_000_000]);
        for wrong in [101.0, -1.0, f64::NAN] {
            assert!(ppm(wrong).unwrap_err().to_string().contains("0 to 100"), "{wrong}");
        }
    }

    #[test]
    fn options_describe_the_same_machine_as_a_file() {
        let folder = tempfile::tempdir().unwrap();
        for (options, text) in [
            ("", "seed = 1"),
            ("--loss 2 --driven-from arm", "seed = 1\nloss_ppm = 20000\ndriven_from = \"arm\""),
            ("--memory weak --detect-races", "seed = 1\ndetect_races = true\n[memory]\nmodel = \"weak\""),
            (
                "--topology switch-4 --cards 3,h1",
                "seed = 1\n[network]\ntopology = \"switch-4\"\nhosts = [\"3\", \"h1\"]",
            ),
            ("--queues weighted", "seed = 1\n[network]\npriorities = \"weighted\""),
            ("--model m2 --set loads.l3_cycles=1", "seed = 1\n[timing]\nmodel = \"m2\"\nset = [\"loads.l3_cycles=1\"]"),
        ] {
            let file = folder.path().join("machine.toml");
            std::fs::write(&file, text).unwrap();
            let of_file = Machine::read(&file).unwrap();
            assert_eq!(parse(options).unwrap().machine(None).unwrap(), of_file, "{options}");
            let named = format!("--machine {}", file.display());
            assert_eq!(parse(&named).unwrap().machine(None).unwrap(), of_file, "{text}");
            of_file.config_of_pair().unwrap();
        }
    }

    #[test]
    fn options_stand_above_the_machine_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.toml");
        let text = "seed = 5\nfirst_card = 3\n[link]\ngbit_per_s = 100\ndrop_ppm = 7\n[memory]\nmodel = \"weak\"\n";
        std::fs::write(&file, text).unwrap();
        let machine = |options: &str, seed| {
            let args = parse(&format!("--machine {} {options}", file.display())).unwrap();
            args.machine(seed).unwrap().config_of_pair().unwrap()
        };
        let cable = LinkConfig { gbit_per_s: 100, drop_ppm: 7, seed: 5, ..LinkConfig::default() };
        let config = machine("", None);
        assert_eq!((&config.wiring, config.memory), (&Wiring::Cable(cable), MemoryModel::weak(5)));
        let config = machine("--loss 0 --memory strong", Some(6));
        assert_eq!(config.wiring, Wiring::Cable(LinkConfig { drop_ppm: 0, seed: 6, ..cable }));
        assert_eq!((config.memory, config.first_card), (MemoryModel::Strong, 3));
        let config = machine("--topology switch-4", None);
        assert!(matches!(config.wiring, Wiring::Network(network) if network.topology.name() == "switch-4"));
    }

    #[test]
    fn values_that_there_are_not_are_refused_with_those_there_are() {
        for (line, words) in [
            ("--memory odd", ["strong", "weak"]),
            ("--queues odd", ["shared", "weighted"]),
            ("--driven-from odd", ["host", "arm"]),
        ] {
            let text = parse(line).unwrap_err().to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }
}
