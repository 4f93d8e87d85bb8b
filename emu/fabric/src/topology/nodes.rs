//! Nodes of a topology, and the cables between them.

use crate::link::LinkConfig;

/// One end of a link, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A host; it has one port.
    Host(usize),
    /// A switch.
    Switch(usize),
}

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The node.
    pub node: Node,
    /// Its port, from 0.
    pub port: u32,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Ports it has.
    pub ports: u32,
    /// Height in the tree if it was given; else the number of links to the nearest host.
    pub level: Option<u32>,
}

/// A cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cable {
    /// Its name: the one given, or `a-b` of its ends with `#2`, `#3`, ... for further cables between the same ends.
    pub name: String,
    /// One end.
    pub a: End,
    /// The other.
    pub b: End,
    /// Rate and latency, the same both ways.
    pub config: LinkConfig,
}

/// Number of a port among all ports: hosts first, then the switches' ports in order.
pub(crate) fn port_id(bases: &[u32], end: End) -> u32 {
    match end.node {
        Node::Host(host) => host as u32,
        Node::Switch(switch) => bases[switch] + end.port,
    }
}
