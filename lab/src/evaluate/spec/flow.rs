//! Sweeps of runs at flow level ([`crate::flow`]).

use flexcast_proto::service::{Delivery, LocalCopies};
use serde::{Deserialize, Serialize};

use crate::flow::{By, Kind, Placement, Preset, Variant};

crate::options::named!(Carrier, Application);

/// Who carries a collective out, by the names of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// Service processes, from host memory to host memory; ranks copy blocks of an Allgatherv inside their host, as
    /// published.
    Service,
    /// The same, with copies inside a host by its card.
    ServiceCard,
    /// Service processes through memory of their cards, to the buffer of each rank.
    Flat,
    /// The same, by multicast between the cards.
    FlatMulticast,
    /// Through memory of their cards to a segment of each host.
    Hierarchical,
    /// The same, by multicast between the cards.
    HierarchicalMulticast,
    /// Service processes, from the memory of who has it into the buffer of each rank.
    Direct,
    /// Hosts, one step at a time.
    Hosts,
    /// Hosts, all steps at once: what non-blocking calls do.
    HostsAtOnce,
}

impl Carrier {
    /// Among so many ranks.
    #[must_use]
    pub const fn by(self, ranks: u32) -> By {
        match self {
            Self::Service => By::Service(LocalCopies::Host),
            Self::ServiceCard => By::Service(LocalCopies::Card),
            Self::Flat | Self::FlatMulticast => By::Staged(Delivery::Flat),
            Self::Hierarchical | Self::HierarchicalMulticast => By::Staged(Delivery::Hierarchical),
            Self::Direct => By::Staged(Delivery::Direct),
            Self::Hosts => By::Hosts { window: 1 },
            Self::HostsAtOnce => By::Hosts { window: ranks },
        }
    }

    /// Whether segments go between the cards by multicast.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        matches!(self, Self::FlatMulticast | Self::HierarchicalMulticast)
    }
}

/// Applications of the publications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// P3DFFT++.
    P3dfft,
    /// Octopus.
    Octopus,
}

fn all_of<T: Default>() -> Vec<T> {
    vec![T::default()]
}

fn no_skew() -> Vec<String> {
    vec!["none".to_owned()]
}

const fn one() -> u32 {
    1
}

/// Every combination of some parameters of a collective at flow level.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowSweep {
    /// The machine.
    pub preset: Preset,
    /// The collective.
    pub operation: Kind,
    /// Who carries it out.
    pub by: Vec<Carrier>,
    /// Hosts.
    pub hosts: Vec<u32>,
    /// Ranks on each.
    pub ranks_per_host: Vec<u32>,
    /// Service processes of each card; the publication's number if there is none.
    #[serde(default = "all_of")]
    pub service_processes: Vec<u32>,
    /// Where ranks are.
    #[serde(default = "all_of")]
    pub placement: Vec<Placement>,
    /// Bytes of a block.
    pub bytes: Vec<u64>,
    /// Skews, as `flexcast flow --skew` takes them.
    #[serde(default = "no_skew")]
    pub skew: Vec<String>,
    /// Calls that are counted.
    #[serde(default = "one")]
    pub iterations: u32,
    /// Whether overlap is measured.
    #[serde(default)]
    pub overlap: bool,
}

/// Every combination of some parameters of an application at flow level.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationSweep {
    /// The machine.
    pub preset: Preset,
    /// Which one.
    pub application: Application,
    /// How its collectives are carried out.
    pub variants: Vec<Variant>,
    /// Hosts.
    pub hosts: Vec<u32>,
    /// Ranks on each.
    pub ranks_per_host: Vec<u32>,
    /// Repetitions or time steps, instead of the published ones.
    pub steps: Option<u32>,
}
