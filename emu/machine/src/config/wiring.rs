//! Wiring of the cards: a cable, or a network of switches with its faults.

use emu_fabric::{FaultScript, LinkConfig as WireConfig, MAX_LATENCY_PS, Rate, Topology};

use crate::error::MachineError;

/// The wire between two cards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Line rate in Gbit/s (10^9). Default 200.
    pub gbit_per_s: u64,
    /// Propagation delay in picoseconds, at most 10^13 (10 s). Default 500 000 (a metre of cable and two ports).
    pub latency_ps: u64,
    /// Frames dropped per million, seeded. Default 0.
    pub drop_ppm: u32,
    /// Seed of the drop stream.
    pub seed: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig { gbit_per_s: 200, latency_ps: 500_000, drop_ppm: 0, seed: 1 }
    }
}

/// What joins the cards.
#[derive(Clone, Debug, PartialEq)]
pub enum Wiring {
    /// A cable between card 0 and card 1. A single card has no peer: what leaves its port is lost, as on an unplugged
    /// cable.
    Cable(LinkConfig),
    /// A network of switches.
    Network(Box<NetworkConfig>),
}

impl Default for Wiring {
    fn default() -> Self {
        Self::Cable(LinkConfig::default())
    }
}

/// A network of switches, and where the cards are.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Hosts, switches and links.
    pub topology: Topology,
    /// What goes wrong, where and when. Default nothing.
    pub faults: FaultScript,
    /// The host of the topology at which each card is, no two at one. Cards beyond the end of this list are at the host
    /// of their own index. Default empty.
    pub hosts: Vec<usize>,
}

impl NetworkConfig {
    /// A network without faults, card `i` at host `i`.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        Self { topology, faults: FaultScript::default(), hosts: Vec::new() }
    }

    pub(crate) fn host(&self, card: usize) -> usize {
        self.hosts.get(card).copied().unwrap_or(card)
    }
}

impl Wiring {
    /// A network without faults, card `i` at host `i`.
    #[must_use]
    pub fn network(topology: Topology) -> Self {
        Self::Network(Box::new(NetworkConfig::new(topology)))
    }

    /// Rate of a card's port.
    pub(crate) fn port_rate(&self, card: usize) -> Result<Rate, MachineError> {
        match self {
            Self::Cable(link) => Ok(wire(link)?.rate),
            Self::Network(network) => {
                let host = network.host(card);
                let link = network.topology.host_link(host);
                let (topology, hosts) = (network.topology.name().to_owned(), network.topology.hosts().len());
                Ok(link.ok_or(MachineError::NoHost { card, host, topology, hosts })?.rate)
            }
        }
    }

    /// The least latency of a link in picoseconds.
    pub(crate) fn least_latency_ps(&self) -> u64 {
        match self {
            Self::Cable(link) => link.latency_ps,
            Self::Network(network) => {
                network.topology.cables().iter().map(|cable| cable.config.latency_ps).min().unwrap_or(0)
            }
        }
    }
}

pub(crate) fn wire(link: &LinkConfig) -> Result<WireConfig, MachineError> {
    if link.latency_ps > MAX_LATENCY_PS {
        let text = format!("a latency of {} ps; at most {MAX_LATENCY_PS} are possible", link.latency_ps);
        return Err(MachineError::Link(text));
    }
    let rate = Rate::from_gbps(link.gbit_per_s).map_err(|error| MachineError::Link(error.to_string()))?;
    Ok(WireConfig { rate, latency_ps: link.latency_ps })
}
