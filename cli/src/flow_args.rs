//! Arguments of `flexcast flow`.

use clap::{Args, ValueEnum};
use flexcast_lab::flow::{Bench, By, FlowParams, Kind, Placement, Preset};
use flexcast_lab::options::{whole, whole_bytes};
use flexcast_lab::service::CopiesName;
use flexcast_proto::MAX_RANKS;
use flexcast_proto::service::{Delivery, MAX_PROCESSES_PER_HOST, Multicast};

/// Who carries a collective out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByName {
    /// Service processes on the cards.
    Service,
    /// The hosts, in calls of their library.
    Hosts,
}

/// Where staged collectives write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeliveryName {
    /// Into the buffer of every rank.
    Flat,
    /// Into one segment of each host, from which its ranks copy as they wait.
    Hierarchical,
    /// From the memory of who has it into the buffer of every rank, not staged.
    Direct,
}

/// How staged data goes between service processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BetweenName {
    /// By messages and Reads of each other's memory; each writes to the ranks of all hosts.
    Messages,
    /// By multicast into the memory of all cards, each of which writes to its own ranks.
    Multicast,
}

#[derive(Debug, Args)]
pub(crate) struct FlowArgs {
    /// The machine: that of a publication.
    #[arg(long, value_enum, default_value = "graham")]
    pub(crate) preset: Preset,
    /// The collective.
    #[arg(long, value_enum, default_value = "alltoallv")]
    pub(crate) op: Kind,
    /// Who carries it out.
    #[arg(long, value_enum, default_value = "service")]
    pub(crate) by: ByName,
    /// Ranks; a multiple of those of a host.
    #[arg(long, value_parser = whole::<u32>(1, MAX_RANKS), value_name = "P", default_value_t = MAX_RANKS)]
    pub(crate) ranks: u32,
    /// Ranks on each host.
    #[arg(long, value_parser = whole::<u32>(1, MAX_RANKS), value_name = "N", default_value_t = 32)]
    pub(crate) ranks_per_host: u32,
    /// Service processes of each card [default: that of the publication].
    #[arg(long, value_parser = whole::<u32>(1, MAX_PROCESSES_PER_HOST), value_name = "N")]
    pub(crate) service_processes: Option<u32>,
    /// Reads that a service process may have under way [default: that of the publication].
    #[arg(long, value_parser = whole::<u32>(1, 1024), value_name = "N")]
    pub(crate) active_reads: Option<u32>,
    /// Whether ranks 0, 1, 2 are on one host, or on hosts in turn.
    #[arg(long, value_enum, default_value = "contiguous")]
    pub(crate) placement: Placement,
    /// Where broadcast and allgather by service processes write to.
    #[arg(long, value_enum, default_value = "flat")]
    pub(crate) delivery: DeliveryName,
    /// Who copies blocks of allgatherv by service processes from one rank of a host to the others.
    #[arg(long, value_enum, default_value = "host")]
    pub(crate) local_copies: CopiesName,
    /// How broadcast and allgather by service processes go between the cards.
    #[arg(long, value_enum, default_value = "messages")]
    pub(crate) between: BetweenName,
    /// The next service process of an allgather multicasts once so many bytes of those before it are still to come.
    #[arg(long, value_parser = whole_bytes::<u64>(0, 1_u64 << 40), value_name = "BYTES", default_value_t = Multicast::default().ahead_bytes)]
    pub(crate) ahead: u64,
    /// Bytes of each block.
    #[arg(long, value_parser = whole_bytes::<u64>(0, u32::MAX as u64), value_name = "BYTES", default_value_t = 32 << 10)]
    pub(crate) bytes: u64,
    /// Steps of the hosts' algorithm that may be under way at once: 1 as in blocking calls of MPI libraries.
    #[arg(long, value_parser = whole::<u32>(1, MAX_RANKS), value_name = "N", default_value_t = 1)]
    pub(crate) window: u32,
    /// How much later than the first each rank calls: none, uniform:US, exponential:US, stragglers:ONE_OF:US,
    /// trace:FILE, in microseconds.
    #[arg(long, default_value = "none")]
    pub(crate) skew: String,
    /// Seed of the skew.
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Calls that are not counted.
    #[arg(long, value_parser = whole::<u32>(0, 10_000), value_name = "N", default_value_t = 1)]
    pub(crate) warm_up: u32,
    /// Calls that are.
    #[arg(long, value_parser = whole::<u32>(1, 10_000), value_name = "N", default_value_t = 1)]
    pub(crate) iterations: u32,
    /// Measure overlap as well, by a second run in which all compute meanwhile.
    #[arg(long)]
    pub(crate) overlap: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl FlowArgs {
    /// Who carries the collective out.
    fn by(&self) -> anyhow::Result<By> {
        let delivery = match self.delivery {
            DeliveryName::Flat => Delivery::Flat,
            DeliveryName::Hierarchical => Delivery::Hierarchical,
            DeliveryName::Direct => Delivery::Direct,
        };
        Ok(match (self.by, self.op) {
            (ByName::Hosts, _) => By::Hosts { window: self.window },
            (ByName::Service, Kind::Broadcast | Kind::Allgather) => By::Staged(delivery),
            (ByName::Service, Kind::Allreduce) => {
                anyhow::bail!("--op allreduce: service processes do not reduce: give --by hosts")
            }
            (ByName::Service, Kind::Alltoallv | Kind::Allgatherv) => By::Service(self.local_copies.into()),
        })
    }

    /// The machine, and what is measured.
    pub(crate) fn asked(&self) -> anyhow::Result<(FlowParams, Bench)> {
        let Self { ranks, ranks_per_host, .. } = *self;
        anyhow::ensure!(
            ranks.is_multiple_of(ranks_per_host),
            "--ranks {ranks}: give a multiple of --ranks-per-host {ranks_per_host}"
        );
        let preset = self.preset.params();
        let params = FlowParams {
            hosts: ranks / ranks_per_host,
            ranks_per_host,
            // A process serves one rank at least.
            processes_per_host: self.service_processes.unwrap_or(preset.processes_per_host).min(ranks_per_host),
            active_reads: self.active_reads.unwrap_or(preset.active_reads),
            placement: self.placement,
            multicast_ahead_bytes: (self.between == BetweenName::Multicast).then_some(self.ahead),
            ..preset
        };
        let asked = Bench {
            kind: self.op,
            bytes: self.bytes,
            by: self.by()?,
            turns: (self.warm_up, self.iterations),
            skew: self.skew.parse()?,
            seed: self.seed,
            overlap: self.overlap,
        };
        Ok((params, asked))
    }
}
