//! Hosts, switches and the links between them, as data.

mod build;
mod error;
mod file;
mod nodes;
mod presets;

use std::collections::BTreeMap;

pub use build::TopologyBuilder;
pub use error::TopologyError;
pub(crate) use nodes::port_id;
pub use nodes::{Cable, End, Node, Switch};
pub use presets::FatTree;

use crate::config::SwitchConfig;
use crate::link::{LinkConfig, LinkError, Rate};
use crate::routes::Routes;

/// Hosts at most.
pub const MAX_HOSTS: usize = 16_384;
/// Switches at most.
pub const MAX_SWITCHES: usize = 4_096;
/// Ports of one switch at most.
pub const MAX_PORTS: u32 = 4_096;
/// Longest latency of a link or a switch in picoseconds: 10 s.
pub const MAX_LATENCY_PS: u64 = 10_000_000_000_000;

/// A checked topology with its routes. Made by name, from a file, or by [`TopologyBuilder`].
#[derive(Clone, PartialEq)]
pub struct Topology {
    name: String,
    hosts: Vec<String>,
    switches: Vec<Switch>,
    cables: Vec<Cable>,
    switching: SwitchConfig,
    /// Number of each switch's first port among all ports; the hosts' come first.
    bases: Vec<u32>,
    routes: Routes,
}

/// Name and counts: all cables and routes of a large one would be tens of thousands of lines.
impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, hosts, switches, cables, switching, .. } = self;
        f.debug_struct("Topology")
            .field("name", name)
            .field("hosts", &hosts.len())
            .field("switches", &switches.len())
            .field("cables", &cables.len())
            .field("switching", switching)
            .finish_non_exhaustive()
    }
}

impl Topology {
    /// A topology by its name: `back-to-back`, `switch-N` with N hosts, `fat-tree-188`, `fat-tree-1024`.
    ///
    /// # Errors
    /// No topology has the name.
    pub fn named(name: &str) -> Result<Self, TopologyError> {
        presets::named(name)
    }

    /// Two hosts and a cable.
    ///
    /// # Errors
    /// A latency beyond [`MAX_LATENCY_PS`].
    pub fn back_to_back(link: LinkConfig) -> Result<Self, TopologyError> {
        presets::back_to_back(link)
    }

    /// One switch with as many ports as hosts.
    ///
    /// # Errors
    /// No host, or more than [`MAX_PORTS`], or a latency beyond [`MAX_LATENCY_PS`].
    pub fn one_switch(hosts: usize, link: LinkConfig) -> Result<Self, TopologyError> {
        presets::one_switch(hosts, link)
    }

    /// The text of a description file.
    ///
    /// # Errors
    /// Anything that is wrong with it, by name.
    pub fn from_toml(text: &str) -> Result<Self, TopologyError> {
        file::parse(text)
    }

    /// The description file of this topology, every link by itself.
    #[must_use]
    pub fn to_toml(&self) -> String {
        file::print(self)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Names of the hosts; the position is the host's number.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The switches.
    #[must_use]
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// The cables.
    #[must_use]
    pub fn cables(&self) -> &[Cable] {
        &self.cables
    }

    /// How the switches behave.
    #[must_use]
    pub fn switching(&self) -> SwitchConfig {
        self.switching
    }

    /// The same with switches that behave otherwise.
    ///
    /// # Errors
    /// A latency beyond [`MAX_LATENCY_PS`], or a buffer of no bytes.
    pub fn with_switching(mut self, switching: SwitchConfig) -> Result<Self, TopologyError> {
        check_switching(&switching)?;
        self.switching = switching;
        Ok(self)
    }

    /// The same with another rate and latency on every link.
    ///
    /// # Errors
    /// A latency beyond [`MAX_LATENCY_PS`].
    pub fn with_links(mut self, link: LinkConfig) -> Result<Self, TopologyError> {
        check_link(&link)?;
        for cable in &mut self.cables {
            cable.config = link;
        }
        Ok(self)
    }

    /// The same with another rate and latency on the link of one host.
    ///
    /// # Errors
    /// A latency beyond [`MAX_LATENCY_PS`].
    pub fn with_host_link(mut self, host: usize, link: LinkConfig) -> Result<Self, TopologyError> {
        check_link(&link)?;
        for cable in self.cables.iter_mut().filter(|cable| [cable.a.node, cable.b.node].contains(&Node::Host(host))) {
            cable.config = link;
        }
        Ok(self)
    }

    /// A host's link; `None` for a host that is not there.
    #[must_use]
    pub fn host_link(&self, host: usize) -> Option<LinkConfig> {
        let at = |end: End| end.node == Node::Host(host);
        self.cables.iter().find(|cable| at(cable.a) || at(cable.b)).map(|cable| cable.config)
    }

    /// The switch a host is joined with; `None` for a host joined with a host, or one that is not there.
    #[must_use]
    pub fn switch_of(&self, host: usize) -> Option<usize> {
        self.routes.attachment(host).map(|(switch, _)| switch)
    }

    /// Name of a node.
    pub(crate) fn node_name(&self, node: Node) -> &str {
        match node {
            Node::Host(host) => &self.hosts[host],
            Node::Switch(switch) => &self.switches[switch].name,
        }
    }

    /// Number of a port among all ports of the network.
    pub(crate) fn port_id(&self, end: End) -> u32 {
        port_id(&self.bases, end)
    }

    /// Ports of all nodes together.
    pub(crate) fn port_count(&self) -> usize {
        self.hosts.len() + self.switches.iter().map(|switch| switch.ports as usize).sum::<usize>()
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }
}

pub(crate) fn check_link(link: &LinkConfig) -> Result<(), TopologyError> {
    TopologyError::check("the latency of a link in picoseconds", link.latency_ps, 0, MAX_LATENCY_PS)
}

pub(crate) fn check_switching(switching: &SwitchConfig) -> Result<(), TopologyError> {
    TopologyError::check("the latency of a switch in picoseconds", switching.latency_ps, 0, MAX_LATENCY_PS)?;
    for weight in switching.weights {
        TopologyError::check("a weight of a priority", weight.into(), 1, 1000)?;
    }
    TopologyError::check("buffer_bytes", switching.buffer_bytes, 1, 1 << 40)
}

/// A link from the numbers of a file.
pub(crate) fn link_config(link: &str, gbit_per_s: u64, latency_ps: u64) -> Result<LinkConfig, TopologyError> {
    let rate = Rate::from_gbps(gbit_per_s).map_err(|error| match error {
        LinkError::ZeroRate | LinkError::NoPort { .. } => TopologyError::ZeroRate { link: link.to_owned() },
    })?;
    let config = LinkConfig { rate, latency_ps };
    check_link(&config)?;
    Ok(config)
}

/// Names to numbers, for error messages that name both users of a name.
pub(crate) type Names = BTreeMap<String, Node>;
