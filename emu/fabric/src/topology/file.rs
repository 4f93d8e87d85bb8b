//! The description file.
//!
//! ```toml
//! name = "two-racks"
//!
//! [links]                     # what links have unless they say otherwise; these are the defaults
//! gbit_per_s = 200
//! latency_ps = 300000
//!
//! [switching]                 # optional, as is each key
//! forwarding = "cut-through"  # or "store-and-forward"
//! flow_control = "lossless"   # or "tail-drop"
//! routing = "ecmp"            # or "adaptive"
//! priorities = "strict"       # or "shared" or "weighted"
//! weights = [1, 1, 1, 1, 1, 1, 1, 1]  # weighted: shares of priorities 0 to 7
//!
//! [[switch]]
//! name = "rack0"
//! ports = 32
//!
//! [[switch]]
//! name = "rack1"
//! ports = 32
//!
//! [[switch]]
//! name = "top"
//! ports = 8
//! level = 2                   # optional: height in the tree
//!
//! [[host]]                    # a0 to a7, each with a link to rack0
//! name = "a"
//! count = 8
//! to = "rack0"
//!
//! [[host]]
//! name = "storage"
//!
//! [[link]]
//! a = "storage"
//! b = "rack1:31"              # optional: a certain port
//! gbit_per_s = 100
//!
//! [[link]]
//! a = "rack0"
//! b = "top"
//! count = 4                   # four parallel cables
//!
//! [[link]]
//! name = "long"
//! a = "rack1"
//! b = "top"
//! ```
//!
//! Instead of hosts, switches and links: `preset = "fat-tree-188"`, or a table
//! `[fat_tree]` with `levels`, `radix`, `hosts` and, if wanted, `oversubscription` and `leaves`.

use serde::{Deserialize, Serialize};

use super::{End, FatTree, MAX_HOSTS, MAX_PORTS, Topology, TopologyBuilder, TopologyError, link_config};
use crate::config::SwitchConfig;
use crate::link::LinkConfig;

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fat_tree: Option<FatTree>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<LinkDefaults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    switching: Option<SwitchConfig>,
    host: Vec<HostEntry>,
    switch: Vec<SwitchEntry>,
    link: Vec<LinkEntry>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LinkDefaults {
    gbit_per_s: u64,
    latency_ps: u64,
}

impl Default for LinkDefaults {
    fn default() -> Self {
        let LinkConfig { rate, latency_ps } = LinkConfig::default();
        Self { gbit_per_s: rate.gbit_per_s(), latency_ps }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchEntry {
    name: String,
    ports: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    level: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    a: String,
    b: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gbit_per_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    latency_ps: Option<u64>,
}

pub(super) fn parse(text: &str) -> Result<Topology, TopologyError> {
    let file: File = toml::from_str(text).map_err(|error| TopologyError::Syntax { message: error.to_string() })?;
    let by_hand = !(file.host.is_empty() && file.switch.is_empty() && file.link.is_empty());
    if u8::from(file.preset.is_some()) + u8::from(file.fat_tree.is_some()) + u8::from(by_hand) > 1 {
        return Err(TopologyError::SeveralShapes);
    }
    let defaults = file.links.unwrap_or_default();
    let links = link_config("links", defaults.gbit_per_s, defaults.latency_ps)?;
    let mut topology = if let Some(preset) = &file.preset {
        let preset = Topology::named(preset)?;
        if file.links.is_some() { preset.with_links(links)? } else { preset }
    } else if let Some(tree) = &file.fat_tree {
        tree.build("fat-tree", links)?
    } else {
        written_out(&file, defaults)?
    };
    if let Some(name) = file.name {
        topology.name = name;
    }
    match file.switching {
        Some(switching) => topology.with_switching(switching),
        None => Ok(topology),
    }
}

fn written_out(file: &File, defaults: LinkDefaults) -> Result<Topology, TopologyError> {
    let mut builder = TopologyBuilder::new("unnamed");
    for switch in &file.switch {
        builder.switch_at(&switch.name, switch.ports, switch.level);
    }
    // Links that the file lists come first, so that hosts take the ports that are left.
    for link in &file.link {
        let count = link.count.unwrap_or(1);
        TopologyError::check("the count of a link", count, 1, MAX_PORTS.into())?;
        let label = link.name.clone().unwrap_or_else(|| format!("{}-{}", link.a, link.b));
        let rate = link.gbit_per_s.unwrap_or(defaults.gbit_per_s);
        let config = link_config(&label, rate, link.latency_ps.unwrap_or(defaults.latency_ps))?;
        for copy in 1..=count {
            let name = link.name.as_ref().map(|name| if copy == 1 { name.clone() } else { format!("{name}#{copy}") });
            builder.named_link(name, &link.a, &link.b, config);
        }
    }
    for host in &file.host {
        let names: Vec<String> = match host.count {
            None => vec![host.name.clone()],
            Some(count) => {
                TopologyError::check("the count of a host", count, 1, MAX_HOSTS as u64)?;
                (0..count).map(|index| format!("{}{index}", host.name)).collect()
            }
        };
        for name in names {
            if let Some(to) = &host.to {
                let config = link_config(&name, defaults.gbit_per_s, defaults.latency_ps)?;
                builder.link(&name, to, config);
            }
            builder.host(name);
        }
    }
    builder.build()
}

pub(super) fn print(topology: &Topology) -> String {
    let end = |end: End| format!("{}:{}", topology.node_name(end.node), end.port);
    let file = File {
        name: Some(topology.name.clone()),
        switching: Some(topology.switching),
        host: topology.hosts.iter().map(|name| HostEntry { name: name.clone(), count: None, to: None }).collect(),
        switch: topology
            .switches
            .iter()
            .map(|switch| SwitchEntry { name: switch.name.clone(), ports: switch.ports, level: switch.level })
            .collect(),
        link: topology
            .cables
            .iter()
            .map(|cable| LinkEntry {
                name: Some(cable.name.clone()),
                a: end(cable.a),
                b: end(cable.b),
                count: None,
                gbit_per_s: Some(cable.config.rate.gbit_per_s()),
                latency_ps: Some(cable.config.latency_ps),
            })
            .collect(),
        ..File::default()
    };
    // Strings, numbers below 2^63 and tables: nothing that TOML lacks.
    toml::to_string(&file).unwrap_or_default()
}
