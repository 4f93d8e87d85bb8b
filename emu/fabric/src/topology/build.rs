//! From names to a checked topology.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Cable, End, MAX_HOSTS, MAX_PORTS, MAX_SWITCHES, Names, Node, Switch, Topology, TopologyError, check_link,
    check_switching,
};
use crate::config::SwitchConfig;
use crate::link::LinkConfig;
use crate::routes::Routes;

/// Collects hosts, switches and links by name, in any order; [`TopologyBuilder::build`] checks them.
#[derive(Clone, Debug)]
pub struct TopologyBuilder {
    name: String,
    hosts: Vec<String>,
    switches: Vec<Switch>,
    links: Vec<NamedLink>,
    switching: SwitchConfig,
}

#[derive(Clone, Debug)]
struct NamedLink {
    name: Option<String>,
    a: String,
    b: String,
    config: LinkConfig,
}

impl TopologyBuilder {
    /// An empty one.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            hosts: Vec::new(),
            switches: Vec::new(),
            links: Vec::new(),
            switching: SwitchConfig::default(),
        }
    }

    /// How the switches behave.
    pub fn switching(&mut self, switching: SwitchConfig) -> &mut Self {
        self.switching = switching;
        self
    }

    /// Adds a host; its number is the number of hosts before it.
    pub fn host(&mut self, name: impl Into<String>) -> &mut Self {
        self.hosts.push(name.into());
        self
    }

    /// Adds a switch.
    pub fn switch(&mut self, name: impl Into<String>, ports: u32) -> &mut Self {
        self.switch_at(name, ports, None)
    }

    /// Adds a switch with a given height; see [`Switch::level`].
    pub fn switch_at(&mut self, name: impl Into<String>, ports: u32, level: Option<u32>) -> &mut Self {
        self.switches.push(Switch { name: name.into(), ports, level });
        self
    }

    /// Adds a link. An end is the name of a node, or `name:port` for a certain port; else it is the lowest free port.
    pub fn link(&mut self, a: impl Into<String>, b: impl Into<String>, config: LinkConfig) -> &mut Self {
        self.named_link(None, a, b, config)
    }

    /// Adds a link with a name of its own.
    pub fn named_link(
        &mut self,
        name: Option<String>,
        a: impl Into<String>,
        b: impl Into<String>,
        config: LinkConfig,
    ) -> &mut Self {
        self.links.push(NamedLink { name, a: a.into(), b: b.into(), config });
        self
    }

    /// Checks everything and computes the routes.
    ///
    /// # Errors
    /// Whatever is wrong, with the names it is wrong with.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        if self.hosts.is_empty() {
            return Err(TopologyError::NoHosts);
        }
        TopologyError::check("the number of hosts", self.hosts.len() as u64, 1, MAX_HOSTS as u64)?;
        TopologyError::check("the number of switches", self.switches.len() as u64, 0, MAX_SWITCHES as u64)?;
        check_switching(&self.switching)?;
        let names = self.names()?;
        let cables = self.cables(&names)?;
        self.all_connected(&cables)?;

        let mut bases = Vec::with_capacity(self.switches.len());
        let mut next = self.hosts.len() as u32;
        for switch in &self.switches {
            bases.push(next);
            next += switch.ports;
        }
        let routes = Routes::new(&self.hosts, &self.switches, &cables, &bases)?;
        Ok(Topology {
            name: self.name.clone(),
            hosts: self.hosts.clone(),
            switches: self.switches.clone(),
            cables,
            switching: self.switching,
            bases,
            routes,
        })
    }

    fn names(&self) -> Result<Names, TopologyError> {
        let mut names = Names::new();
        let hosts = self.hosts.iter().enumerate().map(|(index, name)| (name, Node::Host(index)));
        let switches = self.switches.iter().enumerate().map(|(index, switch)| (&switch.name, Node::Switch(index)));
        for (name, node) in hosts.chain(switches) {
            check_name(name)?;
            if names.insert(name.clone(), node).is_some() {
                return Err(TopologyError::DuplicateName { name: name.clone() });
            }
        }
        for switch in &self.switches {
            TopologyError::check("the number of ports of a switch", switch.ports.into(), 1, MAX_PORTS.into())?;
        }
        Ok(names)
    }

    /// Ports that were given are taken first, so that a link without one never takes them.
    fn cables(&self, names: &Names) -> Result<Vec<Cable>, TopologyError> {
        let mut link_names = BTreeSet::new();
        let mut pairs: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let mut wanted = Vec::with_capacity(self.links.len());
        for link in &self.links {
            let (a, b) = (split(&link.a), split(&link.b));
            let name = match &link.name {
                Some(name) => {
                    check_name(name)?;
                    name.clone()
                }
                None => {
                    let count = pairs.entry((a.0, b.0)).or_default();
                    *count += 1;
                    if *count == 1 { format!("{}-{}", a.0, b.0) } else { format!("{}-{}#{count}", a.0, b.0) }
                }
            };
            check_link(&link.config)?;
            let [node_a, node_b] = [a, b].map(|(node, _)| {
                let unknown = || TopologyError::UnknownNode { link: name.clone(), node: node.to_owned() };
                names.get(node).copied().ok_or_else(unknown)
            });
            let (node_a, node_b) = (node_a?, node_b?);
            if node_a == node_b {
                return Err(TopologyError::SelfLink { link: name, node: a.0.to_owned() });
            }
            if !link_names.insert(name.clone()) {
                return Err(TopologyError::DuplicateName { name });
            }
            wanted.push((name, [(node_a, a.1), (node_b, b.1)], link.config));
        }

        let mut ports = Ports { builder: self, used: BTreeMap::new(), lowest: BTreeMap::new() };
        for (name, ends, _) in &wanted {
            for (node, port) in ends {
                if let Some(port) = port {
                    ports.take(*node, port, name)?;
                }
            }
        }
        let mut cables = Vec::with_capacity(wanted.len());
        for (name, [a, b], config) in wanted {
            let a = ports.end(a, &name)?;
            let b = ports.end(b, &name)?;
            cables.push(Cable { name, a, b, config });
        }
        Ok(cables)
    }

    fn all_connected(&self, cables: &[Cable]) -> Result<(), TopologyError> {
        let mut connected = vec![false; self.hosts.len()];
        for end in cables.iter().flat_map(|cable| [cable.a, cable.b]) {
            if let Node::Host(host) = end.node {
                connected[host] = true;
            }
        }
        match connected.iter().position(|connected| !connected) {
            Some(host) => Err(TopologyError::HostDisconnected { host: self.hosts[host].clone() }),
            None => Ok(()),
        }
    }
}

/// Which ports are used by which link.
struct Ports<'a> {
    builder: &'a TopologyBuilder,
    used: BTreeMap<(Node, u32), String>,
    /// Below it no port of the node is free.
    lowest: BTreeMap<Node, u32>,
}

impl Ports<'_> {
    fn of(&self, node: Node) -> (String, u32) {
        match node {
            Node::Host(host) => (self.builder.hosts[host].clone(), 1),
            Node::Switch(switch) => {
                let switch = &self.builder.switches[switch];
                (switch.name.clone(), switch.ports)
            }
        }
    }

    /// Takes the port that was given as text.
    fn take(&mut self, node: Node, port: &str, link: &str) -> Result<(), TopologyError> {
        let (name, ports) = self.of(node);
        let number: u64 = port
            .parse()
            .map_err(|_| TopologyError::UnknownNode { link: link.to_owned(), node: format!("{name}:{port}") })?;
        if number >= u64::from(ports) {
            return Err(TopologyError::NoSuchPort { link: link.to_owned(), node: name, port: number, ports });
        }
        let number = number as u32;
        match self.used.insert((node, number), link.to_owned()) {
            None => Ok(()),
            Some(first) => {
                Err(TopologyError::PortUsedTwice { node: name, port: number, first, second: link.to_owned() })
            }
        }
    }

    /// The port of an end: the one given, or the lowest free one.
    fn end(&mut self, (node, port): (Node, Option<&str>), link: &str) -> Result<End, TopologyError> {
        if let Some(port) = port.and_then(|port| port.parse().ok()) {
            return Ok(End { node, port });
        }
        let (name, ports) = self.of(node);
        let mut port = self.lowest.get(&node).copied().unwrap_or(0);
        while self.used.contains_key(&(node, port)) {
            port += 1;
        }
        if port >= ports {
            return Err(TopologyError::TooManyPorts { link: link.to_owned(), node: name, ports });
        }
        self.used.insert((node, port), link.to_owned());
        self.lowest.insert(node, port + 1);
        Ok(End { node, port })
    }
}

/// Node and port of an end.
fn split(end: &str) -> (&str, Option<&str>) {
    match end.split_once(':') {
        Some((node, port)) => (node, Some(port)),
        None => (end, None),
    }
}

fn check_name(name: &str) -> Result<(), TopologyError> {
    let bad = |c: char| c == ':' || c == '*' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > 64 || name.contains(bad) {
        return Err(TopologyError::BadName { name: name.to_owned() });
    }
    Ok(())
}
