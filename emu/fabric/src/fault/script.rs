//! Fault scripts: which fault happens on which link, and when.

use serde::{Deserialize, Serialize};

use super::line::Window;
use super::{FaultError, MAX_DELAY_PS, MAX_TIME_PS};
use crate::topology::{Cable, Node, Topology};

/// A way in which a link goes wrong. Each direction of each link draws for each fault from a random stream of its own,
/// which the script's seed, the link and the position among that link's faults decide.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Frames vanish.
    Drop {
        /// How many of a million.
        ppm: u32,
    },
    /// Runs of frames vanish.
    Burst {
        /// How many of a million frames begin a run.
        ppm: u32,
        /// Length of a run in frames, at least 1.
        frames: u32,
    },
    /// Frames arrive twice, the second time as soon as the first copy is complete.
    Duplicate {
        /// How many of a million.
        ppm: u32,
    },
    /// Frames are held back.
    Reorder {
        /// How many of a million.
        ppm: u32,
        /// For how many times their own length on the wire, at least 1: on a busy link, so many frames of the same size
        /// overtake.
        behind: u32,
    },
    /// Frames take longer, but stay in order.
    Delay {
        /// By so many picoseconds, at most [`MAX_DELAY_PS`].
        extra_ps: u64,
        /// And at random by less than or as much as this, at most [`MAX_DELAY_PS`].
        #[serde(default)]
        jitter_ps: u64,
    },
    /// Frames arrive with wrong contents; see [`NetworkFrame::corrupt`](crate::NetworkFrame::corrupt).
    Corrupt {
        /// How many of a million.
        ppm: u32,
    },
    /// Bits flip, and a frame with a wrong bit is lost for its check sequence.
    BitErrors {
        /// Probability that a bit is wrong, 0 to 1.
        rate: f64,
    },
    /// Certain frames of one priority vanish, by their numbers on this link since the fault began.
    Frames {
        /// The priority, 0 to 7.
        priority: u8,
        /// Frames of it that get through before, from 0.
        #[serde(default)]
        first: u64,
        /// Frames that vanish then, at least 1.
        count: u64,
    },
    /// Nothing is sent until the end of the fault; nothing is lost.
    Pause,
    /// What is sent, or on its way out of a port, is lost. Routes stay as they are.
    Down,
    /// Ends every `down` of the place that lasts at this time.
    Up,
}

/// Which way along a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both.
    #[default]
    Both,
    /// From the end named first in the link's description to the other.
    Forward,
    /// The other way.
    Backward,
}

/// One entry of a script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultEvent {
    /// When it begins, in picoseconds of virtual time. Default 0.
    #[serde(default)]
    pub at_ps: u64,
    /// When it ends: the first picosecond without it. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ps: Option<u64>,
    /// Name of a link, or `*` for every link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Name of a host or switch, in place of a link: all its links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Which way. Default both.
    #[serde(default)]
    pub direction: Direction,
    /// What goes wrong.
    pub fault: Fault,
}

impl FaultEvent {
    /// A fault of every link, from the beginning and for ever.
    #[must_use]
    pub fn everywhere(fault: Fault) -> Self {
        Self::on("*", fault)
    }

    /// A fault of one link, from the beginning and for ever.
    #[must_use]
    pub fn on(link: &str, fault: Fault) -> Self {
        let link = Some(link.to_owned());
        Self { at_ps: 0, until_ps: None, link, node: None, direction: Direction::Both, fault }
    }

    /// A fault of each host's link in the direction of the host, from the beginning and for ever: what happens to
    /// frames by chance then happens once on their way, whatever the topology.
    #[must_use]
    pub fn towards_hosts(topology: &Topology, fault: Fault) -> Vec<Self> {
        let towards = |cable: &Cable| {
            let is_host = |node: Node| matches!(node, Node::Host(_));
            let direction = match (is_host(cable.a.node), is_host(cable.b.node)) {
                (true, true) => Direction::Both,
                (false, true) => Direction::Forward,
                (true, false) => Direction::Backward,
                (false, false) => return None,
            };
            Some(Self { direction, ..Self::on(&cable.name, fault) })
        };
        topology.cables().iter().filter_map(towards).collect()
    }

    /// A fault of a host's link in the direction from the host, from the beginning and for ever: of a multicast frame
    /// it happens before any switch copies it, so that all its receivers have the same of it. `None` for a host that is
    /// not there, or is joined with a host.
    #[must_use]
    pub fn from_host(topology: &Topology, host: usize, fault: Fault) -> Option<Self> {
        let cable = topology.cables().iter().find(|cable| [cable.a.node, cable.b.node].contains(&Node::Host(host)))?;
        let direction = match (cable.a.node, cable.b.node) {
            (Node::Host(_), Node::Host(_)) => return None,
            (Node::Host(_), _) => Direction::Forward,
            _ => Direction::Backward,
        };
        Some(Self { direction, ..Self::on(&cable.name, fault) })
    }

    /// The same within a time.
    #[must_use]
    pub fn during(self, at_ps: u64, until_ps: u64) -> Self {
        Self { at_ps, until_ps: Some(until_ps), ..self }
    }
}

/// All that goes wrong in a run.
///
/// ```toml
/// seed = 7
///
/// [[fault]]
/// link = "*"
/// fault = { drop = { ppm = 1000 } }
///
/// [[fault]]
/// link = "h3-leaf0"
/// direction = "backward"
/// at_ps = 1_000_000
/// until_ps = 2_000_000
/// fault = "pause"
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultScript {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// The faults, in any order.
    #[serde(rename = "fault")]
    pub faults: Vec<FaultEvent>,
}

impl FaultScript {
    /// The text of a script file.
    ///
    /// # Errors
    /// Not TOML, or keys and values that are not known. Names are checked against a topology later.
    pub fn from_toml(text: &str) -> Result<Self, FaultError> {
        toml::from_str(text).map_err(|error| FaultError::Syntax { message: error.to_string() })
    }

    /// Checks every name and number against a topology.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, topology: &Topology) -> Result<(), FaultError> {
        self.windows(topology).map(|_| ())
    }

    /// The faults of each direction of each cable: direction `d` of cable `c` at 2c + d.
    pub(super) fn windows(&self, topology: &Topology) -> Result<Vec<Vec<Window>>, FaultError> {
        let mut windows: Vec<Vec<Window>> = vec![Vec::new(); 2 * topology.cables().len()];
        let mut order: Vec<(usize, &FaultEvent)> = self.faults.iter().enumerate().collect();
        order.sort_by_key(|(_, event)| event.at_ps);
        for (index, event) in order {
            check_numbers(index, event)?;
            let until_ps = event.until_ps.unwrap_or(u64::MAX);
            if until_ps <= event.at_ps {
                return Err(FaultError::Empty { index, at_ps: event.at_ps, until_ps });
            }
            let mut ended = false;
            for line in places(index, event, topology)? {
                if matches!(event.fault, Fault::Up) {
                    for window in &mut windows[line] {
                        ended |= window.end_down(event.at_ps);
                    }
                } else {
                    windows[line].push(Window { from_ps: event.at_ps, until_ps, fault: event.fault });
                }
            }
            if matches!(event.fault, Fault::Up) && !ended {
                let name = event.link.clone().or_else(|| event.node.clone()).unwrap_or_default();
                return Err(FaultError::NotDown { index, name, at_ps: event.at_ps });
            }
        }
        Ok(windows)
    }
}

/// The lines an entry names.
fn places(index: usize, event: &FaultEvent, topology: &Topology) -> Result<Vec<usize>, FaultError> {
    let is_at = |end: Node, name: &str| topology.node_name(end) == name;
    let (name, is_node) = match (&event.link, &event.node) {
        (Some(link), None) => (link, false),
        (None, Some(node)) => (node, true),
        _ => return Err(FaultError::Place { index }),
    };
    let matches = |cable: &Cable| match is_node {
        true => is_at(cable.a.node, name) || is_at(cable.b.node, name),
        false => name == "*" || cable.name == *name,
    };
    let cables = topology.cables().iter().enumerate();
    let cables: Vec<usize> = cables.filter(|(_, cable)| matches(cable)).map(|(at, _)| at).collect();
    if cables.is_empty() {
        let example = match is_node {
            true => topology.hosts().first().cloned(),
            false => topology.cables().first().map(|cable| cable.name.clone()),
        };
        let (name, topology) = (name.to_owned(), topology.name().to_owned());
        return Err(FaultError::Unknown { index, name, topology, example: example.unwrap_or_default() });
    }
    let directions = match event.direction {
        Direction::Both => 0..2,
        Direction::Forward => 0..1,
        Direction::Backward => 1..2,
    };
    Ok(cables.into_iter().flat_map(|cable| directions.clone().map(move |direction| 2 * cable + direction)).collect())
}

fn check_numbers(index: usize, event: &FaultEvent) -> Result<(), FaultError> {
    let check = |what, value: u64, least, most| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(FaultError::OutOfRange { index, what, value: value.to_string(), least, most })
    };
    check("at_ps", event.at_ps, 0, MAX_TIME_PS)?;
    if let Some(until_ps) = event.until_ps {
        check("until_ps", until_ps, 0, MAX_TIME_PS)?;
    }
    match event.fault {
        Fault::Drop { ppm } | Fault::Duplicate { ppm } | Fault::Corrupt { ppm } => {
            check("ppm", ppm.into(), 0, 1_000_000)
        }
        Fault::Burst { ppm, frames } => {
            check("ppm", ppm.into(), 0, 1_000_000)?;
            check("frames", frames.into(), 1, u32::MAX.into())
        }
        Fault::Reorder { ppm, behind } => {
            check("ppm", ppm.into(), 0, 1_000_000)?;
            check("behind", behind.into(), 1, 1_000_000)
        }
        Fault::Delay { extra_ps, jitter_ps } => {
            check("extra_ps", extra_ps, 0, MAX_DELAY_PS)?;
            check("jitter_ps", jitter_ps, 0, MAX_DELAY_PS)
        }
        Fault::BitErrors { rate } if !(0.0..=1.0).contains(&rate) => {
            Err(FaultError::OutOfRange { index, what: "rate", value: rate.to_string(), least: 0, most: 1 })
        }
        Fault::Pause if event.until_ps.is_none() => Err(FaultError::EndlessPause { index }),
        Fault::Frames { priority, count, .. } => {
            check("priority", priority.into(), 0, 7)?;
            check("count", count, 1, u64::MAX)
        }
        Fault::BitErrors { .. } | Fault::Pause | Fault::Down | Fault::Up => Ok(()),
    }
}
