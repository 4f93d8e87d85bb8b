//! Arguments of `flexcast sim`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use flexcast::{Config, Control, MAX_SUBGROUPS, ThreadPlacement, Transport};
use flexcast_lab::options::whole;
use flexcast_lab::sim::SimError;
use flexcast_lab::sim::algorithm::{
    Algorithm, AlgorithmName, DEFAULT_RADIX, DEFAULT_SEGMENT_BYTES, DEFAULT_SEGMENTS, Parameters,
};
use flexcast_lab::sim::params::{Operation, SimParams};
use flexcast_lab::sim::skew::MAX_SKEW_US;
use flexcast_proto::MAX_RANKS;

use crate::args::NetworkArgs;

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// Number of ranks, 1 to 1024.
    #[arg(long, value_parser = whole::<u32>(1, MAX_RANKS), default_value_t = 8, value_name = "P")]
    pub(crate) ranks: u32,
    /// Ranks that share a card.
    #[arg(long, value_parser = whole::<u32>(1, MAX_RANKS), default_value_t = 1, value_name = "N")]
    pub(crate) ranks_per_card: u32,
    /// What they do.
    #[arg(long, value_enum, default_value = "allgather")]
    pub(crate) op: Operation,
    /// Bytes that each rank contributes, made up from the seed; with allgatherv their mean, with alltoall those for each rank. Reductions
    /// take them for 32-bit integers.
    #[arg(long, value_parser = whole::<u64>(0, "what memory has room for"), default_value_t = 1 << 20, value_name = "N", conflicts_with = "file")]
    pub(crate) bytes: u64,
    /// Gather this file instead, cut evenly over the ranks, or broadcast it.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Root of a broadcast.
    #[arg(long, value_parser = whole::<u32>(0, MAX_RANKS - 1), default_value_t = 0, value_name = "RANK")]
    pub(crate) root: u32,
    /// Operations before those that are counted.
    #[arg(long, value_parser = whole::<u32>(0, u32::MAX), default_value_t = 1, value_name = "N")]
    pub(crate) warm_up: u32,
    /// Operations that are counted, one after another.
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), default_value_t = 1, value_name = "N")]
    pub(crate) iterations: u32,
    /// Seed of everything left to chance: bytes, skew, losses, faults, weak memory.
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), default_value_t = 1)]
    pub(crate) seed: u64,
    /// Ranks post each operation at times of their own, drawn from 0 to so many microseconds; 0: all at once. A rank's time runs from its
    /// own post to its release (rank_time of --json), the operation's from the first post to the last release (virtual_time_us).
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = whole_us, allow_negative_numbers = true)]
    pub(crate) skew_us: u64,
    /// Device image.
    #[arg(long, value_name = "ELF", default_value = "target/device/emu/allgather.elf")]
    pub(crate) image: PathBuf,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) algorithm: AlgorithmArgs,
    #[command(flatten)]
    pub(crate) communicator: CommunicatorArgs,
    #[command(flatten)]
    pub(crate) machine: NetworkArgs,
}

fn whole_us(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("no whole number of microseconds: give 0 to {MAX_SKEW_US}"))
}

/// How the bytes travel.
#[derive(Debug, Args)]
#[command(next_help_heading = "Algorithm")]
pub(crate) struct AlgorithmArgs {
    /// How: by multicast, or over reliable connections of the hosts by an algorithm to compare with [default: multicast; of operations that
    /// have none pairwise (alltoall) and ring].
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) algorithm: Option<AlgorithmName>,
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), value_name = "N", help = format!("Segments of each contribution (pipelined-ring, tree) [default: {DEFAULT_SEGMENTS}]"))]
    pub(crate) segments: Option<u32>,
    #[arg(long, value_parser = whole::<u32>(2, u32::MAX), value_name = "K", help = format!("Children of the root at a level of the tree, and one (k-nomial) [default: {DEFAULT_RADIX}]"))]
    pub(crate) radix: Option<u32>,
    #[arg(long, value_parser = whole::<u64>(1, u64::MAX), value_name = "BYTES", help = format!("Bytes that a tree or chain passes on at a time [default: {DEFAULT_SEGMENT_BYTES}]"))]
    pub(crate) segment: Option<u64>,
}

/// Transports of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// Multicast datagrams, staged and copied by the card.
    Ud,
    /// Multicast RDMA Writes, straight into the user's buffer: no card does this, the emulated ones are told to.
    Uc,
    /// RDMA Writes to each rank, straight into the user's buffer.
    UcUnicast,
}

impl From<TransportName> for Transport {
    fn from(name: TransportName) -> Self {
        match name {
            TransportName::Ud => Self::Ud,
            TransportName::Uc => Self::UcMulticast,
            TransportName::UcUnicast => Self::UcUnicast,
        }
    }
}

/// Where the protocol runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ControlName {
    Host,
    Device,
}

/// Parameters of the communicator.
#[derive(Debug, Args)]
#[command(next_help_heading = "Communicator (multicast)")]
pub(crate) struct CommunicatorArgs {
    /// What carries the data.
    #[arg(long, value_enum, default_value = "ud", value_name = "NAME")]
    pub(crate) transport: TransportName,
    /// Multicast groups that carry the data side by side.
    #[arg(long, value_parser = whole::<u32>(1, MAX_SUBGROUPS), default_value_t = 4, value_name = "S")]
    pub(crate) subgroups: u32,
    /// DPA threads that receive [default: one per subgroup].
    #[arg(long, value_parser = whole::<u32>(1, MAX_SUBGROUPS), value_name = "W")]
    pub(crate) threads: Option<u32>,
    /// DPA threads that send.
    #[arg(long, value_parser = whole::<u32>(1, MAX_SUBGROUPS), default_value_t = 1, value_name = "N")]
    pub(crate) send_threads: u32,
    /// Where barrier, activation, recovery and handshake run: on the host, or on a DPA thread of the card.
    #[arg(long, value_enum, default_value = "host")]
    pub(crate) control: ControlName,
    /// Take one thread of each core in turn, not all threads of a core.
    #[arg(long)]
    pub(crate) spread: bool,
    /// Roots that multicast at the same time; 0: as few as keep the links busy.
    #[arg(long, value_parser = whole::<u32>(0, MAX_RANKS), default_value_t = 0, value_name = "M")]
    pub(crate) chains: u32,
    /// Chunks before the end of its block at which a root activates the next one [default: as many as hide most of the activation]
    #[arg(long, value_parser = whole::<u32>(0, u32::MAX), value_name = "CHUNKS")]
    pub(crate) lead: Option<u32>,
    /// Chunks per doorbell of a send worker.
    #[arg(long, value_parser = whole::<u32>(2, u32::MAX), default_value_t = 32, value_name = "N")]
    pub(crate) send_batch: u32,
    /// Rate at which a root multicasts, in Gbit/s [default: the link's].
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), value_name = "GBIT/S")]
    pub(crate) pacing: Option<u32>,
    /// Time that the cutoff leaves beyond the data's own, the barrier and activations, in microseconds [default: 500].
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "US")]
    pub(crate) margin: Option<u64>,
    /// Bytes per chunk; at most 4096 with ud, whatever you like with uc and uc-unicast.
    #[arg(long, value_parser = whole::<u32>(64, 1_u64 << 30), default_value_t = 4096, value_name = "BYTES")]
    pub(crate) chunk: u32,
    /// Receives (ud: with a staging slot each) per subgroup, a power of two [default: as many as stage 4 MiB in all, 2 MiB beyond 512 ranks].
    #[arg(long, value_parser = whole::<u32>(16, 8192), value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Chunks per doorbell of a receive worker [default: 64, or half of the slots].
    #[arg(long, value_parser = whole::<u32>(2, 4096), value_name = "N")]
    pub(crate) batch: Option<u32>,
}

impl SimArgs {
    /// What is asked for, checked. `file_bytes`: length of `--file`.
    pub(crate) fn params(&self, file_bytes: Option<u64>) -> Result<SimParams, SimError> {
        let Self { ranks, ranks_per_card, op: operation, bytes, root, warm_up, iterations, seed, skew_us, .. } = *self;
        let AlgorithmArgs { algorithm, segments, radix, segment: segment_bytes } = self.algorithm;
        if file_bytes.is_some()
            && !matches!(operation, Operation::Broadcast | Operation::Allgather | Operation::Allgatherv)
        {
            let reason = format!("{} takes none: give --bytes, or --op broadcast or allgather", operation.name());
            return Err(SimError::Parameter { what: "--file", reason });
        }
        let params = SimParams {
            ranks,
            ranks_per_card,
            operation,
            algorithm: Algorithm::new(operation, algorithm, Parameters { segments, radix, segment_bytes })?,
            bytes,
            total_bytes: None,
            root,
            warm_up,
            iterations,
            seed,
            skew_us,
            config: Config::default(),
            trouble: Vec::new(),
        };
        let params = match file_bytes {
            Some(bytes) => params.of_file(bytes),
            None => params,
        };
        // Before anything is computed from them.
        params.check()?;
        let config = self.communicator.config(params.ranks, params.receive_bytes());
        Ok(SimParams { config, ..params })
    }
}

impl CommunicatorArgs {
    fn config(&self, ranks: u32, receive_bytes: u64) -> Config {
        let Self { transport, subgroups, threads, send_threads, control, spread, chains, lead, .. } = *self;
        let Self { send_batch, chunk, slots, batch, margin, pacing, .. } = *self;
        let mut config = Config::default();
        if let Some(us) = margin {
            config.overheads.cutoff_slack = Duration::from_micros(us);
        }
        // All cards' slots are filled: those of 1024 cards leave room for their buffers in 8 GiB.
        let most = if ranks > 512 { 512 } else { 1024 };
        let slots = slots.unwrap_or(most / subgroups.clamp(1, 64).next_power_of_two());
        config
            .transport(transport.into())
            .subgroups(subgroups)
            .receive_threads(threads.unwrap_or(subgroups))
            .send_threads(send_threads)
            .control(match control {
                ControlName::Host => Control::Host,
                ControlName::Device => Control::Device,
            })
            .placement(if spread { ThreadPlacement::Spread } else { ThreadPlacement::Compact })
            .chains(chains)
            .pacing_gbit_per_s(pacing)
            .lead_chunks(lead)
            .send_batch(send_batch)
            .chunk_bytes(chunk)
            .slots(slots)
            .receive_batch(batch.unwrap_or(64.min(slots / 2)))
            .max_receive_bytes(receive_bytes.max(1))
    }
}

#[derive(Debug, Args)]
pub(crate) struct CampaignArgs {
    /// Number of cases.
    #[arg(long, value_parser = whole::<u64>(1, u64::MAX), default_value_t = 200, value_name = "N")]
    pub(crate) seeds: u64,
    /// Seed of the first case; the others follow [default: drawn anew for each run; 1 where the variable CI is set].
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "SEED")]
    pub(crate) first: Option<u64>,
    /// Threads, each with a machine of its own [default: one per core].
    #[arg(long, value_parser = whole::<u64>(1, u64::MAX), value_name = "N", default_value_t = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64))]
    pub(crate) jobs: u64,
    /// Go on after a case that came out wrong. Each such case is printed to stderr when it ends, and all of them at the end.
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Begin no further seed after so much wall time.
    #[arg(long, value_parser = whole::<u64>(1, u64::MAX), value_name = "SECONDS")]
    pub(crate) wall_limit: Option<u64>,
    /// Where stderr is no terminal, tell how far it is every so many seconds; 0 never.
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "SECONDS", default_value_t = 5)]
    pub(crate) progress: u64,
    /// Print what each case is before it runs.
    #[arg(long)]
    pub(crate) show: bool,
    /// Device image.
    #[arg(long, value_name = "ELF", default_value = "target/device/emu/allgather.elf")]
    pub(crate) image: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
