//! Parameters of a flow-level simulation, and those of published testbeds.

use flexcast_proto::service::Limits;
use serde::{Deserialize, Serialize};

crate::options::named!(Placement, Preset);

/// The network, the hosts' links to it, and their memory. Rates are of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkParams {
    /// Time of a message without data from card to card, in picoseconds.
    pub latency_ps: u64,
    /// Time of a message between a host and the Arm cores of its card, or between two ranks of a host.
    pub local_ps: u64,
    /// Rate of a card's port, in bytes per second.
    pub port_bytes_per_s: u64,
    /// Rate of the PCIe link between a host's memory and its card, in each direction.
    pub host_bytes_per_s: u64,
    /// Rate of the memory of the Arm cores, for what the card writes to it and reads from it together.
    pub arm_bytes_per_s: u64,
    /// Rate at which one processor of a host copies.
    pub copy_bytes_per_s: u64,
    /// Rate at which all processors of a host copy together.
    pub copies_bytes_per_s: u64,
}

/// What processors take for their work, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessorParams {
    /// A service process takes a message or a completion.
    pub process_message_ps: u64,
    /// It sends a message, or posts a transfer.
    pub process_post_ps: u64,
    /// A rank takes a message or a completion, within a call of the library.
    pub rank_message_ps: u64,
    /// It sends a message, or posts a transfer.
    pub rank_post_ps: u64,
    /// Bytes up to which a message of a host's own collective carries its data (eager).
    pub eager_bytes: u64,
}

/// All of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FlowParams {
    /// Network.
    pub network: NetworkParams,
    /// Processors.
    pub processors: ProcessorParams,
    /// Hosts, with a card each.
    pub hosts: u32,
    /// Ranks on each.
    pub ranks_per_host: u32,
    /// Service processes of each card.
    pub processes_per_host: u32,
    /// Where ranks are.
    pub placement: Placement,
    /// Reads that a service process may have under way.
    pub active_reads: u32,
    /// Staged segments go by multicast, the next process's once so many bytes of those before it are still to come;
    /// none: by messages and Reads.
    pub multicast_ahead_bytes: Option<u64>,
}

/// Where ranks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Ranks 0, 1, 2 and so on are on one host.
    #[default]
    Contiguous,
    /// They are on hosts in turn.
    Strided,
}

impl FlowParams {
    /// All ranks.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// The host of a rank.
    #[must_use]
    pub const fn host_of(&self, rank: u32) -> u32 {
        match self.placement {
            Placement::Contiguous => rank / self.ranks_per_host,
            Placement::Strided => rank % self.hosts,
        }
    }

    /// Bounds of service processes: as many groups as there are ranks, and calls as far ahead as programs here go.
    pub(super) const fn limits(&self) -> Limits {
        Limits { active_reads: self.active_reads, groups: 4096, collectives: 16, announcements: 1 << 40 }
    }
}

/// Published testbeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Graham et al.: 32 hosts of 32 cores, BlueField-3, NDR200 (200 Gbit/s), hosts behind PCIe 3 (128 Gbit/s).
    Graham,
    /// 32 hosts of 32 cores, BlueField-2 as a host of its own next to ConnectX-6, 100 Gbit/s.
    Staged,
}

/// Memory of a host with two processors of 16 cores at 2.6 GHz and four channels of DDR4-2400 each: 153.6 GB/s. A copy
/// reads, reads for ownership and writes.
const HOST_COPIES_BYTES_PER_S: u64 = 51_200_000_000;
/// What one core of those copies: a common figure of this generation, not a published one of the testbed.
const CORE_COPY_BYTES_PER_S: u64 = 6_000_000_000;

impl Preset {
    /// Its parameters. Latencies and rates of the network are published; times of processors are chosen: nobody has
    /// published any.
    #[must_use]
    pub const fn params(self) -> FlowParams {
        let processors = ProcessorParams {
            process_message_ps: 400_000,
            process_post_ps: 200_000,
            rank_message_ps: 300_000,
            rank_post_ps: 150_000,
            eager_bytes: 8192,
        };
        let (network, active_reads, processes_per_host) = match self {
            Self::Graham => {
                let network = NetworkParams {
                    latency_ps: 1_160_000,
                    local_ps: 800_000,
                    port_bytes_per_s: 24_750_000_000,
                    host_bytes_per_s: 13_920_000_000,
                    // Two channels of DDR5-5600.
                    arm_bytes_per_s: 80_000_000_000,
                    copy_bytes_per_s: CORE_COPY_BYTES_PER_S,
                    copies_bytes_per_s: HOST_COPIES_BYTES_PER_S,
                };
                (network, 4, 4)
            }
            Self::Staged => {
                let network = NetworkParams {
                    latency_ps: 1_300_000,
                    local_ps: 1_000_000,
                    port_bytes_per_s: 12_100_000_000,
                    host_bytes_per_s: 12_100_000_000,
                    // One channel of DDR4-3200, of which half is payload that is written and read again.
                    arm_bytes_per_s: 25_600_000_000,
                    copy_bytes_per_s: CORE_COPY_BYTES_PER_S,
                    copies_bytes_per_s: HOST_COPIES_BYTES_PER_S,
                };
                (network, 16, 1)
            }
        };
        FlowParams {
            network,
            processors,
            hosts: 32,
            ranks_per_host: 32,
            processes_per_host,
            placement: Placement::Contiguous,
            active_reads,
            multicast_ahead_bytes: None,
        }
    }
}
