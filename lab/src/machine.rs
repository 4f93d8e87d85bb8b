//! Report of an emulated machine of two cards: what joined them, what went wrong, how memory behaved, and what it has
//! seen.

use std::fmt;

use emu_config::{DrivenFrom, Machine, Memory};
use emu_machine::fabric::{Fault, FaultEvent};
use emu_machine::{MachineError, Race, Wiring, with_world};
use serde::Serialize;

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
    /// Races found; `None` if races were not detected.
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

/// What the calling thread's machine was and has seen, and the races it has found, which it forgets.
///
/// # Errors
/// There is no machine.
pub fn report(machine: &Machine) -> Result<(MachineReport, Vec<Race>), MachineError> {
    with_world(|world| {
        let races = world.config().detect_races.then(|| world.race_count());
        let (mut name, mut cards) = ("cable".to_owned(), ["0", "1"].map(str::to_owned));
        let (mut faults, mut seed) = (0, machine.seed.unwrap_or_default());
        if let Wiring::Network(network) = &world.config().wiring {
            let host = |card: usize| {
                let host = network.hosts.get(card).copied().unwrap_or(card);
                network.topology.hosts().get(host).cloned().unwrap_or_default()
            };
            (name, cards) = (network.topology.name().to_owned(), [host(0), host(1)]);
            let losses = match machine.losses_ppm() {
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
            driven_from: world.config().driven_from,
            memory: world.config().memory.into(),
            races,
            lost_frames: ports.drops.total(),
            duplicated_frames: ports.duplicated_frames,
            corrupted_frames: ports.corrupted_frames,
            queue_high_water_bytes: ports.queue_high_water_bytes,
        };
        (report, world.take_races())
    })
}
