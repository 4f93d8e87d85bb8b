//! Parameters of a simulated sparse AllReduce, and those of its publication's testbed.

use flexcast_proto::sparse::Parameters;
use serde::{Deserialize, Serialize};

use super::pattern::PatternName;

crate::options::named!(ArraysIn, Host, Layout);

/// The network. Each node has one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkParams {
    /// Rate of a port in each direction, in bytes per second, headers included.
    pub port_bytes_per_s: u64,
    /// From the first byte that leaves a port to the first byte at the other one, and from the last byte to whoever
    /// polls for it.
    pub latency_ps: u64,
    /// From an aggregator to a worker of the same node.
    pub local_ps: u64,
    /// Payload of a packet, at most.
    pub mtu: u32,
    /// Bytes of a packet in addition to its payload.
    pub packet_overhead_bytes: u32,
}

/// Memory, cache and processors of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeParams {
    /// Memory's theoretical rate: the bound.
    pub memory_bytes_per_s: u64,
    /// Its sustained rate: what the model serves.
    pub sustained_bytes_per_s: u64,
    /// Last-level cache.
    pub cache_bytes: u64,
    /// Rate at which one core reads an array, or writes one.
    pub core_stream_bytes_per_s: u64,
    /// Rate at which one core adds a message in the cache to a sum in the cache.
    pub core_add_bytes_per_s: u64,
    /// Rate at which one core adds arrays in memory, as a ring does.
    pub core_add_memory_bytes_per_s: u64,
    /// A core takes a completion.
    pub message_ps: u64,
    /// It posts a message.
    pub post_ps: u64,
}

/// An accelerator of a worker's node, with which its card shares a PCIe switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceParams {
    /// Theoretical rate of its memory: the bound.
    pub memory_bytes_per_s: u64,
    /// Its sustained rate: what kernels are served.
    pub sustained_bytes_per_s: u64,
    /// Payload over PCIe in each direction.
    pub pcie_bytes_per_s: u64,
    /// From the call of a kernel or a copy until a core knows that it has ended, in addition to the time of what it
    /// moves.
    pub launch_ps: u64,
}

/// Where arrays are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ArraysIn {
    /// In host memory.
    #[default]
    Host,
    /// In memory of a device. Cards reach it over PCIe (GPUDirect). Before anything is sent, one kernel searches for
    /// blocks that are not zero and copies them to registered device memory; sums come there, and one copy puts them
    /// into the array. Rings add by the device.
    Device,
    /// In memory of a device that cards do not reach. An engine with aggregators copies the array to host memory, works
    /// there, and copies it back; a ring adds by the device, and its segments pass through buffers in host memory.
    Staged,
}

/// Nodes and what is between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Network.
    pub network: NetworkParams,
    /// Workers, and aggregators on processors of servers.
    pub host: NodeParams,
    /// Aggregators on Arm cores of a card, which is a node of its own.
    pub arm: NodeParams,
    /// The accelerator of each worker.
    pub device: Option<DeviceParams>,
}

/// What an aggregator runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AggregatorKind {
    /// A server.
    Cpu,
    /// Arm cores of a card.
    Arm,
}

/// Aggregators of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// As many servers as workers, none of them a worker's host.
    Cpu,
    /// A server fewer, and the Arm cores of a card.
    Mixed,
    /// One server.
    OneCpu,
    /// The Arm cores of one card.
    OneArm,
    /// On the node of each worker.
    Colocated,
}

impl Layout {
    /// The aggregators for so many workers.
    #[must_use]
    pub fn aggregators(self, workers: u32) -> Vec<AggregatorKind> {
        let all = vec![AggregatorKind::Cpu; workers as usize];
        match self {
            Self::Cpu | Self::Colocated => all,
            Self::Mixed => {
                let mut mixed = all;
                mixed.pop();
                mixed.push(AggregatorKind::Arm);
                mixed
            }
            Self::OneCpu => vec![AggregatorKind::Cpu],
            Self::OneArm => vec![AggregatorKind::Arm],
        }
    }
}

/// Servers of the publication by their theoretical memory rates (Gu, Fei, Canini, Tables 1 and 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Host {
    /// 76.8 GB/s.
    #[default]
    Haswell,
    /// 64.0 GB/s.
    Skylake,
    /// The hosts of V100 cards, 42.7 GB/s.
    V100,
    /// The hosts of A100 cards, 204.8 GB/s.
    A100,
}

/// Of the BlueField-2's memory, 83.6 of 102.4 Gbit/s were measured (STREAM). No other sustained rate was published:
/// this share is taken for all.
const fn sustained(memory_bytes_per_s: u64) -> u64 {
    memory_bytes_per_s / 1024 * 836
}

impl Host {
    /// Its accelerator. Rates of device memories are those of NVIDIA's data sheets (V100: 900 GB/s; A100 with 40 GB:
    /// 1555 GB/s), of which the same share is sustained as of host memory. PCIe is that of a card of 100 Gbit/s, 16
    /// lanes of the third generation: 15.75 GB/s, of which 256 of 280 bytes are payload. The time of a launch is
    /// chosen.
    #[must_use]
    pub const fn device(self) -> Option<DeviceParams> {
        let memory_bytes_per_s = match self {
            Self::Haswell | Self::Skylake => return None,
            Self::V100 => 900_000_000_000,
            Self::A100 => 1_555_000_000_000,
        };
        Some(DeviceParams {
            memory_bytes_per_s,
            sustained_bytes_per_s: sustained(memory_bytes_per_s),
            pcie_bytes_per_s: 14_400_000_000,
            launch_ps: 10_000_000,
        })
    }

    /// The testbed with such servers. Rates of ports and memories, and the cache of the card, are published. Latency,
    /// MTU, caches of servers and what cores take are chosen: nobody has published them.
    #[must_use]
    pub const fn machine(self) -> Machine {
        let memory_bytes_per_s = match self {
            Self::Haswell => 76_800_000_000,
            Self::Skylake => 64_000_000_000,
            Self::V100 => 42_700_000_000,
            Self::A100 => 204_800_000_000,
        };
        let host = NodeParams {
            memory_bytes_per_s,
            sustained_bytes_per_s: sustained(memory_bytes_per_s),
            cache_bytes: 20 << 20,
            core_stream_bytes_per_s: 10_000_000_000,
            core_add_bytes_per_s: 12_000_000_000,
            // As the cores of the other testbeds copy: both read twice and write once.
            core_add_memory_bytes_per_s: 6_000_000_000,
            message_ps: 200_000,
            post_ps: 100_000,
        };
        let arm_memory = 12_800_000_000;
        let arm = NodeParams {
            memory_bytes_per_s: arm_memory,
            sustained_bytes_per_s: sustained(arm_memory),
            cache_bytes: 6 << 20,
            core_stream_bytes_per_s: 4_000_000_000,
            core_add_bytes_per_s: 5_000_000_000,
            core_add_memory_bytes_per_s: 2_500_000_000,
            message_ps: 400_000,
            post_ps: 200_000,
        };
        let network = NetworkParams {
            port_bytes_per_s: 12_500_000_000,
            latency_ps: 1_300_000,
            local_ps: 500_000,
            mtu: 4096,
            // Preamble 8, Ethernet 14 + 4, IPv4 20, UDP 8, transport header 12, its checksum 4, gap 12.
            packet_overhead_bytes: 82,
        };
        Machine { network, host, arm, device: self.device() }
    }
}

/// A sparse AllReduce.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SparseParams {
    /// Nodes.
    pub machine: Machine,
    /// Workers.
    pub workers: u32,
    /// Aggregators.
    pub aggregators: Vec<AggregatorKind>,
    /// Aggregators on servers are those of the workers, in turn.
    pub colocated: bool,
    /// Bytes of the array.
    pub bytes: u64,
    /// Where it is.
    pub arrays: ArraysIn,
    /// Bytes of a block, b.
    pub block_bytes: u32,
    /// Blocks of a message, d.
    pub blocks_per_message: u32,
    /// Threads of each aggregator, and of each worker.
    pub threads: u32,
    /// Coroutines of each thread of an aggregator.
    pub coroutines: u32,
    /// Whether cards write into the last-level cache, and read from it.
    pub dca: bool,
    /// Part of the blocks that is zero at a worker.
    pub sparsity: f64,
    /// Which.
    pub pattern: PatternName,
    /// Seed of the pattern.
    pub seed: u64,
}

impl SparseParams {
    /// Of this layout, otherwise as the publication: blocks of 1 KiB, 16 in a message, dense.
    #[must_use]
    pub fn new(host: Host, workers: u32, layout: Layout, bytes: u64) -> Self {
        Self {
            machine: host.machine(),
            workers,
            aggregators: layout.aggregators(workers),
            colocated: layout == Layout::Colocated,
            bytes,
            arrays: ArraysIn::Host,
            block_bytes: flexcast_proto::sparse::DEFAULT_BLOCK_BYTES,
            blocks_per_message: flexcast_proto::sparse::DEFAULT_BLOCKS_PER_MESSAGE,
            threads: 8,
            coroutines: 4,
            dca: true,
            sparsity: 0.0,
            pattern: PatternName::Identical,
            seed: 1,
        }
    }

    /// Nodes: the workers' first.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeParams> {
        let own = |kind: &&AggregatorKind| !(self.colocated && **kind == AggregatorKind::Cpu);
        let more = self.aggregators.iter().filter(own).map(|kind| self.node_params(*kind));
        (0..self.workers).map(|_| self.machine.host).chain(more).collect()
    }

    const fn node_params(&self, kind: AggregatorKind) -> NodeParams {
        match kind {
            AggregatorKind::Cpu => self.machine.host,
            AggregatorKind::Arm => self.machine.arm,
        }
    }

    /// Bytes of the first aggregator's spots over its cache. Those of aggregators on one node share it; this is of
    /// separate aggregators.
    #[must_use]
    pub fn spots_over_cache(&self) -> Option<f64> {
        let parameters = Parameters::new(self.workers, self.block_bytes, self.blocks_per_message, 4).ok()?;
        let cache_bytes = self.node_params(*self.aggregators.first()?).cache_bytes;
        let instances = f64::from(self.threads * self.coroutines);
        Some(parameters.aggregator_bytes() as f64 * instances / cache_bytes as f64)
    }

    /// The node of each aggregator.
    #[must_use]
    pub fn places(&self) -> Vec<u32> {
        let (mut own, mut turn) = (self.workers, 0);
        let place = |kind: &AggregatorKind| {
            if self.colocated && *kind == AggregatorKind::Cpu {
                turn += 1;
                (turn - 1) % self.workers.max(1)
            } else {
                own += 1;
                own - 1
            }
        };
        self.aggregators.iter().map(place).collect()
    }
}
