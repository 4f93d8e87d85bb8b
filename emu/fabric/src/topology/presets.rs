//! Topologies with a name, and fat trees by their size.

use serde::{Deserialize, Serialize};

use super::{MAX_HOSTS, MAX_PORTS, Topology, TopologyBuilder, TopologyError, check_link};
use crate::link::{LinkConfig, Rate};

/// A fat tree, with hosts spread evenly over its leaf switches in order of their numbers: of L leaves and P hosts, host
/// i is at leaf ⌊i·L/P⌋.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FatTree {
    /// Levels of switches: 2 (leaves and spines) or 3 (leaves and aggregation switches in pods, and cores).
    pub levels: u32,
    /// Ports of every switch.
    pub radix: u32,
    /// Number of hosts.
    pub hosts: usize,
    /// Ports of a leaf that lead down for each that leads up. Default 1: as many up as down.
    #[serde(default = "one")]
    pub oversubscription: u32,
    /// Number of leaf switches. Default: as few as hold the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<u32>,
}

fn one() -> u32 {
    1
}

impl FatTree {
    /// The 188 nodes on 18 switches of 36 ports of the multicast Allgather evaluation (Khalilov et al.,
    /// *Network-Offloaded Bandwidth-Optimal Broadcast and Allgather for Distributed AI*): 12 leaves with 3 links to
    /// each of 6 spines. The publication gives the number of switches; 12 and 6 is the one full tree they make.
    pub const NODES_188: Self = Self { levels: 2, radix: 36, hosts: 188, oversubscription: 1, leaves: Some(12) };
    /// 1024 hosts on switches of 32 ports: 64 leaves in 4 pods.
    pub const NODES_1024: Self = Self { levels: 3, radix: 32, hosts: 1024, oversubscription: 1, leaves: None };

    /// Builds it with the same rate and latency on every link.
    ///
    /// # Errors
    /// A number that no tree has, named with its range.
    pub fn build(&self, name: &str, link: LinkConfig) -> Result<Topology, TopologyError> {
        self.builder(name, link)?.build()
    }

    pub(super) fn builder(&self, name: &str, link: LinkConfig) -> Result<TopologyBuilder, TopologyError> {
        let check = TopologyError::check;
        check_link(&link)?;
        check("the number of levels", self.levels.into(), 2, 3)?;
        check("the radix", self.radix.into(), 2, MAX_PORTS.into())?;
        check("the number of hosts", self.hosts as u64, 1, MAX_HOSTS as u64)?;
        check("the oversubscription", self.oversubscription.into(), 1, u64::from(self.radix) - 1)?;
        let up = self.radix / (self.oversubscription + 1);
        let down = self.radix - up;
        let hosts = self.hosts as u32;
        let least = hosts.div_ceil(down);
        let leaves = self.leaves.unwrap_or(least);
        let most = if self.levels == 2 { self.radix } else { self.radix / 2 * self.radix };
        check("the number of leaf switches", leaves.into(), least.into(), most.into())?;

        let mut tree = TopologyBuilder::new(name);
        for host in 0..hosts {
            tree.host(format!("h{host}"));
        }
        for leaf in 0..leaves {
            tree.switch(format!("leaf{leaf}"), self.radix);
        }
        for host in 0..hosts {
            tree.link(format!("h{host}"), format!("leaf{}", share(host, leaves, hosts)), link);
        }
        match self.levels {
            2 => self.spines(&mut tree, leaves, up, link)?,
            _ => self.pods(&mut tree, leaves, up, link)?,
        }
        Ok(tree)
    }

    /// As few spines as have ports for every leaf's links, each leaf's shared evenly among them.
    fn spines(&self, tree: &mut TopologyBuilder, leaves: u32, up: u32, link: LinkConfig) -> Result<(), TopologyError> {
        if leaves == 1 {
            return Ok(());
        }
        let spines = self.upper_switches(leaves, up)?;
        for spine in 0..spines {
            tree.switch(format!("spine{spine}"), self.radix);
        }
        for leaf in 0..leaves {
            for port in 0..up {
                tree.link(format!("leaf{leaf}"), format!("spine{}", port % spines), link);
            }
        }
        Ok(())
    }

    /// Pods of as many leaves as an aggregation switch has ports down, each leaf joined once with each aggregation
    /// switch of its pod; the aggregation switches of one number in all pods share a plane of cores.
    fn pods(&self, tree: &mut TopologyBuilder, leaves: u32, up: u32, link: LinkConfig) -> Result<(), TopologyError> {
        let pods = leaves.div_ceil(self.radix / 2);
        let agg_up = self.radix - self.radix / 2;
        for pod in 0..pods {
            for agg in 0..up {
                tree.switch(format!("agg{pod}.{agg}"), self.radix);
            }
        }
        for leaf in 0..leaves {
            let pod = share(leaf, pods, leaves);
            for agg in 0..up {
                tree.link(format!("leaf{leaf}"), format!("agg{pod}.{agg}"), link);
            }
        }
        if pods == 1 {
            return Ok(());
        }
        let cores = self.upper_switches(pods, agg_up)?;
        for plane in 0..up {
            for core in 0..cores {
                tree.switch(format!("core{plane}.{core}"), self.radix);
            }
            for pod in 0..pods {
                for port in 0..agg_up {
                    tree.link(format!("agg{pod}.{plane}"), format!("core{plane}.{}", port % cores), link);
                }
            }
        }
        Ok(())
    }

    /// Fewest switches that join `lower` switches with `up` links each.
    fn upper_switches(&self, lower: u32, up: u32) -> Result<u32, TopologyError> {
        let fits = |upper: &u32| u64::from(lower) * u64::from(up.div_ceil(*upper)) <= u64::from(self.radix);
        let refused = TopologyError::OutOfRange {
            what: "the number of switches below one spine or core",
            value: lower.into(),
            least: 1,
            most: self.radix.into(),
        };
        (1..=up).find(fits).ok_or(refused)
    }
}

/// Which of `groups` the item belongs to, when `items` are shared evenly in order.
fn share(item: u32, groups: u32, items: u32) -> u32 {
    (u64::from(item) * u64::from(groups) / u64::from(items)) as u32
}

pub(super) fn named(name: &str) -> Result<Topology, TopologyError> {
    let link = LinkConfig::default();
    let unknown = || TopologyError::UnknownPreset { name: name.to_owned(), limit: MAX_PORTS };
    match name {
        "back-to-back" => back_to_back(link),
        "fat-tree-188" => {
            // The rate of the published network; the latency is the default's assumption.
            FatTree::NODES_188.build(name, LinkConfig { rate: Rate::GBPS_56, ..link })
        }
        "fat-tree-1024" => FatTree::NODES_1024.build(name, link),
        _ => {
            let ports = name.strip_prefix("switch-").and_then(|ports| ports.parse().ok()).ok_or_else(unknown)?;
            one_switch(ports, link)
        }
    }
}

pub(super) fn back_to_back(link: LinkConfig) -> Result<Topology, TopologyError> {
    TopologyBuilder::new("back-to-back").host("h0").host("h1").link("h0", "h1", link).build()
}

pub(super) fn one_switch(hosts: usize, link: LinkConfig) -> Result<Topology, TopologyError> {
    TopologyError::check("the number of ports of a switch", hosts as u64, 1, MAX_PORTS.into())?;
    let mut builder = TopologyBuilder::new(&format!("switch-{hosts}"));
    builder.switch("switch", hosts as u32);
    for host in 0..hosts {
        builder.host(format!("h{host}")).link(format!("h{host}"), "switch", link);
    }
    builder.build()
}
