//! Descriptions that describe nothing.

/// Wrong description of a topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Not TOML, or keys and values that are not known.
    #[error("the topology cannot be read: {message}")]
    Syntax {
        /// Where and why.
        message: String,
    },
    /// No preset has this name.
    #[error(
        "no topology is called {name:?}: take back-to-back, switch-N (N hosts, 1 to {limit}), fat-tree-188, \
         fat-tree-1024, or a description file"
    )]
    UnknownPreset {
        /// The name.
        name: String,
        /// Ports of a switch at most.
        limit: u32,
    },
    /// More than one of the three ways to describe it.
    #[error("a topology is a preset, a fat_tree, or hosts, switches and links, not several of them: remove the others")]
    SeveralShapes,
    /// Nothing to join.
    #[error("the topology has no hosts: add at least one [[host]]")]
    NoHosts,
    /// A name that cannot be distinguished from a port.
    #[error("{name:?} is no name for a node or link: use 1 to 64 characters without ':', '*' or white space")]
    BadName {
        /// The name.
        name: String,
    },
    /// Two nodes or two links of one name.
    #[error("the name {name:?} is given twice: names of nodes and of links are unique")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A link to nowhere.
    #[error("link {link:?} ends at {node:?}, which is neither a host nor a switch: add it or correct the name")]
    UnknownNode {
        /// The link.
        link: String,
        /// Its end.
        node: String,
    },
    /// A link from a node to itself.
    #[error("link {link:?} joins {node:?} with itself: join it with another node")]
    SelfLink {
        /// The link.
        link: String,
        /// The node.
        node: String,
    },
    /// Two links in one port.
    #[error("port {port} of {node:?} is used by link {first:?} and by link {second:?}: give one of them another port")]
    PortUsedTwice {
        /// The node.
        node: String,
        /// Its port.
        port: u32,
        /// One link.
        first: String,
        /// The other.
        second: String,
    },
    /// A port beyond the last.
    #[error("link {link:?} uses port {port} of {node:?}, which has {ports} ports, numbered from 0")]
    NoSuchPort {
        /// The link.
        link: String,
        /// The node.
        node: String,
        /// The port.
        port: u64,
        /// Ports it has.
        ports: u32,
    },
    /// More links than ports.
    #[error(
        "link {link:?} needs a port of {node:?}, whose {ports} ports are all used: raise its ports or remove a link"
    )]
    TooManyPorts {
        /// The link.
        link: String,
        /// The node.
        node: String,
        /// Ports it has.
        ports: u32,
    },
    /// A link of 0 Gbit/s.
    #[error("link {link:?} has a rate of 0 Gbit/s: give at least 1")]
    ZeroRate {
        /// The link.
        link: String,
    },
    /// A host without a link.
    #[error("host {host:?} has no link: join it with a switch or a host")]
    HostDisconnected {
        /// The host.
        host: String,
    },
    /// Two hosts that cannot reach each other.
    #[error(
        "no way leads from host {from:?} up and then down to host {to:?}: join their switches, or give the switches \
         levels (a frame never goes up again after it went down, for else lossless queues could wait in a circle)"
    )]
    NoRoute {
        /// One host.
        from: String,
        /// The other.
        to: String,
    },
    /// A number beyond what is supported.
    #[error("{what} is {value}: give {least} to {most}")]
    OutOfRange {
        /// What it is.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
}

impl TopologyError {
    /// Checks a number against its range.
    pub(crate) fn check(what: &'static str, value: u64, least: u64, most: u64) -> Result<(), Self> {
        if (least..=most).contains(&value) { Ok(()) } else { Err(Self::OutOfRange { what, value, least, most }) }
    }
}
