//! Description of a simulation: the options of `flexcast sim`, and a run of an experiment.
//!
//! [`SimSpec`] is parsed from a command line or made from an experiment's table. The command that repeats a run is
//! printed from the same fields ([`SimSpec::command`]), and the run is made of them ([`SimSpec::resolve`]).

mod staged;

use std::time::Duration;

use emu_config::{ConfigError, Machine};
use flexcast::{Config, Control, DatapathKind, MAX_EAGER_BYTES, MAX_SUBGROUPS, ThreadPlacement, Transport};
use flexcast_proto::MAX_RANKS;
use flexcast_proto::service::MAX_PROCESSES_PER_HOST;
use serde::Serialize;

use super::SimError;
use super::algorithm::{Algorithm, AlgorithmName, DEFAULT_RADIX, DEFAULT_SEGMENT_BYTES, DEFAULT_SEGMENTS, Parameters};
use super::params::{Operation, SimParams};
use super::side::Side;
use super::skew::PostSkew;
use super::sparse::{SparseArgs, SparseSim};
use crate::machine_args::NetworkArgs;
use crate::options::{self, by_name, one_of, whole, whole_bytes};
use crate::service::{CopiesName, Load, ServiceError, ServiceOp, ServiceParams, Shape};

pub use staged::{BetweenName, DeliveryName, ReaderName, StagedArgs};

/// What is to be simulated.
#[derive(Clone, Debug, PartialEq, Serialize, clap::Args)]
pub struct SimSpec {
    /// Number of ranks, 1 to 1024.
    #[arg(long, value_parser = whole::<u32>(1, MAX_RANKS), default_value_t = Self::default().ranks, value_name = "P")]
    pub ranks: u32,
    /// Ranks that share a card.
    #[arg(long, value_parser = whole::<u32>(1, MAX_RANKS), default_value_t = Self::default().ranks_per_card, value_name = "N")]
    pub ranks_per_card: u32,
    /// What they do.
    #[arg(long, value_enum, default_value_t = Self::default().op)]
    pub op: Operation,
    /// Bytes that each rank contributes, made up from the seed; with allgatherv their mean, with alltoall those for
    /// each rank. Reductions take them for 32-bit integers.
    #[arg(long, value_parser = whole_bytes::<u64>(0, u64::MAX), default_value_t = Self::default().bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Root of a broadcast.
    #[arg(long, value_parser = whole::<u32>(0, MAX_RANKS - 1), default_value_t = Self::default().root, value_name = "RANK")]
    pub root: u32,
    /// Operations before those that are counted.
    #[arg(long, value_parser = whole::<u32>(0, u32::MAX), default_value_t = Self::default().warm_up, value_name = "N")]
    pub warm_up: u32,
    /// Operations that are counted, one after another.
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), default_value_t = Self::default().iterations, value_name = "N")]
    pub iterations: u32,
    /// As many again, whose hosts compute as long as one takes, without a call, before they poll: how much goes on
    /// meanwhile. With --control service always.
    #[arg(long)]
    pub overlap: bool,
    /// Seed of everything left to chance: bytes, skew, losses, faults, weak memory [default: the machine file's, or 1].
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX))]
    pub seed: Option<u64>,
    /// Skew between the posts.
    #[command(flatten)]
    #[serde(flatten)]
    pub skew: PostSkew,
    /// What else there is on the cards, and where the bytes are.
    #[command(flatten)]
    #[serde(flatten)]
    pub side: Side,
    /// How the bytes travel.
    #[command(flatten)]
    #[serde(flatten)]
    pub algorithm: AlgorithmArgs,
    /// The communicator.
    #[command(flatten)]
    #[serde(flatten)]
    pub communicator: CommunicatorArgs,
    /// Collectives of service processes that go through memory of the cards.
    #[command(flatten)]
    #[serde(flatten)]
    pub staged: StagedArgs,
    /// A sparse AllReduce.
    #[command(flatten)]
    #[serde(flatten)]
    pub sparse: SparseArgs,
    /// The emulated machine.
    #[command(flatten)]
    #[serde(flatten)]
    pub machine: NetworkArgs,
}

/// How the bytes travel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, clap::Args)]
#[command(next_help_heading = "Algorithm")]
pub struct AlgorithmArgs {
    /// How: by multicast (and eagerly: see --eager), as the library chooses (auto), or over reliable connections of the
    /// hosts by an algorithm to compare with [default: multicast; of operations that have none pairwise (alltoall) and
    /// ring].
    #[arg(long, value_enum, value_name = "NAME")]
    pub algorithm: Option<AlgorithmName>,
    /// Segments of each contribution.
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), value_name = "N", help = format!("Segments of each \
        contribution (pipelined-ring, tree) [default: {DEFAULT_SEGMENTS}]"))]
    pub segments: Option<u32>,
    /// Radix of the tree.
    #[arg(long, value_parser = whole::<u32>(2, u32::MAX), value_name = "K", help = format!("Children of the root at a \
        level of the tree, and one (k-nomial) [default: {DEFAULT_RADIX}]"))]
    pub radix: Option<u32>,
    /// Bytes passed on at a time.
    #[arg(long, value_parser = whole_bytes::<u64>(1, u64::MAX), value_name = "BYTES", help = format!("Bytes that a \
        tree or chain passes on at a time [default: {DEFAULT_SEGMENT_BYTES}]"))]
    pub segment: Option<u64>,
}

/// Transports of the data, for options: name, what it is, value.
#[must_use]
pub fn transports() -> Vec<(&'static str, &'static str, Transport)> {
    let about = |transport| match transport {
        Transport::Ud => "Multicast datagrams, staged and copied by the card",
        Transport::UcMulticast => {
            "Multicast RDMA Writes, straight into the user's buffer: no card does this, emulated ones are configured to"
        }
        Transport::UcUnicast => "RDMA Writes to each rank, straight into the user's buffer",
    };
    Transport::ALL.map(|transport| (transport.name(), about(transport), transport)).to_vec()
}

/// Where the protocol runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ControlName {
    /// On the host.
    Host,
    /// On a DPA thread of the card.
    Device,
}

impl From<ControlName> for Control {
    fn from(name: ControlName) -> Self {
        match name {
            ControlName::Host => Self::Host,
            ControlName::Device => Self::Device,
        }
    }
}

/// Where the protocol of a simulation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SimControlName {
    /// On the host.
    Host,
    /// On a DPA thread of the card.
    Device,
    /// In service processes on the card's Arm cores (--op alltoallv, allgatherv, broadcast, allgather).
    Service,
}

/// What moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DatapathName {
    /// Threads of the cards' DPAs.
    Dpa,
    /// The hosts' processors, which poll the cards' queues; no firmware.
    Verbs,
}

impl From<DatapathName> for DatapathKind {
    fn from(name: DatapathName) -> Self {
        match name {
            DatapathName::Dpa => Self::Dpa,
            DatapathName::Verbs => Self::Verbs,
        }
    }
}

/// Parameters of the communicator.
#[derive(Clone, Debug, PartialEq, Serialize, clap::Args)]
#[command(next_help_heading = "Communicator (multicast)")]
pub struct CommunicatorArgs {
    /// What moves the data: threads of the DPA, or the hosts' processors, whose work takes no virtual time unless
    /// --chunk-ns says so.
    #[arg(long, value_enum, default_value_t = Self::default().datapath, value_name = "NAME")]
    pub datapath: DatapathName,
    /// Virtual time that a chunk takes the processor which receives it, in nanoseconds (--datapath verbs) [default: 0].
    #[arg(long, value_parser = whole::<u64>(0, 1_000_000), value_name = "NS")]
    pub chunk_ns: Option<u64>,
    /// What carries the data.
    #[arg(long, value_parser = one_of(transports()), default_value_t = Self::default().transport, value_name = "NAME")]
    #[serde(serialize_with = "by_name")]
    pub transport: Transport,
    /// Multicast groups that carry the data side by side (--datapath verbs: one, with the slots of all).
    #[arg(long, value_parser = whole::<u32>(1, MAX_SUBGROUPS), default_value_t = Self::default().subgroups, value_name = "S")]
    pub subgroups: u32,
    /// DPA threads that receive [default: one per subgroup].
    #[arg(long, value_parser = whole::<u32>(1, MAX_SUBGROUPS), value_name = "W")]
    pub threads: Option<u32>,
    /// DPA threads that send [default: two, or one if there is one subgroup].
    #[arg(long, value_parser = whole::<u32>(1, MAX_SUBGROUPS), value_name = "N")]
    pub send_threads: Option<u32>,
    /// Where barrier, activation, recovery and handshake run: on the host, on a DPA thread of the card, or in service
    /// processes on its Arm cores.
    #[arg(long, value_enum, default_value_t = Self::default().control)]
    pub control: SimControlName,
    /// Service processes of each card (--control service) [default: 1].
    #[arg(long, value_parser = whole::<u32>(1, MAX_PROCESSES_PER_HOST), value_name = "N")]
    pub service_processes: Option<u32>,
    /// Who copies blocks from one rank of a host to the others (--control service --op allgatherv) [default: host].
    #[arg(long, value_enum, value_name = "NAME")]
    pub local_copies: Option<CopiesName>,
    /// Take one thread of each core in turn, not all threads of a core.
    #[arg(long)]
    pub spread: bool,
    /// Roots that multicast at the same time; 0: as few as keep the links busy.
    #[arg(long, value_parser = whole::<u32>(0, MAX_RANKS), default_value_t = Self::default().chains, value_name = "M")]
    pub chains: u32,
    /// Chunks before the end of its block at which a root activates the next one [default: as many as hide most of the
    /// activation]
    #[arg(long, value_parser = whole::<u32>(0, u32::MAX), value_name = "CHUNKS")]
    pub lookahead: Option<u32>,
    /// Chunks per doorbell of a send worker.
    #[arg(long, value_parser = whole::<u32>(2, u32::MAX), default_value_t = Self::default().send_batch, value_name = "N")]
    pub send_batch: u32,
    /// Line rate of the slowest card, where they differ, in Gbit/s [default: the own card's].
    #[arg(long, value_parser = whole::<u64>(1, u64::MAX), value_name = "GBIT/S")]
    pub link_gbit: Option<u64>,
    /// Rate at which a root multicasts, in Gbit/s [default: the link's].
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), value_name = "GBIT/S")]
    pub pacing: Option<u32>,
    /// Operations of up to so many bytes, all blocks together (broadcast, allgatherv: half as many), ride on the
    /// messages of the barrier (--control host) [default: 16384]
    #[arg(long, value_parser = whole_bytes::<u32>(0, MAX_EAGER_BYTES), value_name = "BYTES")]
    pub eager: Option<u32>,
    /// How long multicast may stand still before what is missing counts as lost, until the gaps between chunks are
    /// known, in microseconds [default: 500].
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "US")]
    pub cutoff_slack: Option<u64>,
    /// Bytes per chunk; at most 4096 with ud, whatever you like with uc and uc-unicast.
    #[arg(long, value_parser = whole_bytes::<u32>(64, 1 << 30), default_value_t = Self::default().chunk, value_name = "BYTES")]
    pub chunk: u32,
    /// Receives (ud: with a staging slot each) per subgroup, a power of two [default: as many as stage 4 MiB in all, 2
    /// MiB beyond 512 ranks].
    #[arg(long, value_parser = whole::<u32>(16, 8192), value_name = "N")]
    pub slots: Option<u32>,
    /// Chunks per doorbell of a receive worker [default: 16, or half of the slots].
    #[arg(long, value_parser = whole::<u32>(2, 4096), value_name = "N")]
    pub batch: Option<u32>,
}

impl Default for SimSpec {
    fn default() -> Self {
        let SimParams { ranks, ranks_per_card, operation, bytes, root, warm_up, iterations, skew, side, .. } =
            SimParams::default();
        Self {
            ranks,
            ranks_per_card,
            op: operation,
            bytes,
            root,
            warm_up,
            iterations,
            overlap: false,
            seed: None,
            skew,
            side,
            algorithm: AlgorithmArgs::default(),
            communicator: CommunicatorArgs::default(),
            staged: StagedArgs::default(),
            sparse: SparseArgs::default(),
            machine: NetworkArgs::default(),
        }
    }
}

impl Default for CommunicatorArgs {
    fn default() -> Self {
        let Config { transport, subgroups, chains, send_batch, chunk_bytes, .. } = Config::default();
        Self {
            datapath: DatapathName::Dpa,
            chunk_ns: None,
            transport,
            subgroups,
            threads: None,
            send_threads: None,
            control: SimControlName::Host,
            service_processes: None,
            local_copies: None,
            spread: false,
            chains,
            lookahead: None,
            link_gbit: None,
            send_batch,
            pacing: None,
            eager: None,
            cutoff_slack: None,
            chunk: chunk_bytes,
            slots: None,
            batch: None,
        }
    }
}

impl SimSpec {
    /// The machine that it runs on; its seed is the run's.
    ///
    /// # Errors
    /// The machine file cannot be read, or is none.
    pub fn machine(&self) -> Result<Machine, ConfigError> {
        self.machine.machine(self.seed)
    }

    /// Parameters of the run, checked, and its machine. `file_bytes`: length of the file that is gathered or broadcast
    /// in place of made-up bytes.
    ///
    /// # Errors
    /// [`SimError`] for the first thing that cannot be.
    pub fn resolve(&self, file_bytes: Option<u64>) -> Result<(SimParams, Machine), SimError> {
        let Self {
            ranks, ranks_per_card, op: operation, bytes, root, warm_up, iterations, overlap, skew, side, ..
        } = *self;
        let AlgorithmArgs { algorithm, segments, radix, segment: segment_bytes } = self.algorithm;
        if file_bytes.is_some()
            && !matches!(operation, Operation::Broadcast | Operation::Allgather | Operation::Allgatherv)
        {
            let reason = format!("{} takes none: give --bytes, or --op broadcast or allgather", operation.name());
            return Err(SimError::Parameter { what: "--file", reason });
        }
        let CommunicatorArgs { service_processes, local_copies, .. } = self.communicator;
        let is_of_service = self.is_of_service() || service_processes.is_some() || local_copies.is_some();
        if is_of_service || self.staged != StagedArgs::default() {
            let reason = "service: of service processes `flexcast sim` alone makes a run, without a file".to_owned();
            return Err(SimError::Parameter { what: "--control", reason });
        }
        if operation == Operation::SparseAllreduce || self.sparse != SparseArgs::default() {
            let reason = "sparse AllReduces alone have workers, aggregators and patterns of zeros, and `flexcast sim` \
                alone runs them"
                .to_owned();
            return Err(SimError::Parameter { what: "--op sparse-allreduce", reason });
        }
        let mut machine = self.machine()?;
        let params = SimParams {
            ranks,
            ranks_per_card,
            operation,
            algorithm: Algorithm::new(operation, algorithm, Parameters { segments, radix, segment_bytes })?,
            bytes,
            root,
            warm_up,
            iterations,
            overlap,
            seed: machine.seed.unwrap_or_default(),
            skew,
            side,
            datapath: self.communicator.datapath.into(),
            chunk_time: Duration::from_nanos(self.communicator.chunk_ns.unwrap_or_default()),
            ..SimParams::default()
        };
        let params = match file_bytes {
            Some(bytes) => params.of_file(bytes),
            None => params,
        };
        // Before anything is computed from them.
        params.check()?;
        let config = self.communicator.config(params.ranks, params.most_receive_bytes());
        let params = SimParams { config, ..params };
        machine.uc_multicast |= params.needs_uc_multicast();
        Ok((params, machine))
    }

    /// Whether service processes carry the operation out: then [`SimSpec::service`] says what is simulated.
    #[must_use]
    pub fn is_of_service(&self) -> bool {
        self.communicator.control == SimControlName::Service
    }

    /// Whether it is a sparse AllReduce: then [`SimSpec::sparse`] says what is simulated.
    #[must_use]
    pub const fn is_sparse(&self) -> bool {
        matches!(self.op, Operation::SparseAllreduce)
    }

    /// Parameters of a sparse AllReduce, checked, and its machine.
    ///
    /// # Errors
    /// [`SimError`] for the first thing that cannot be.
    pub fn sparse(&self) -> Result<(SparseSim, Machine), SimError> {
        let Self { ranks, op, bytes, warm_up, iterations, seed, ref sparse, ref machine, .. } = *self;
        let datapath = self.communicator.datapath;
        let taken = SimSpec {
            ranks,
            op,
            bytes,
            warm_up,
            iterations,
            seed,
            communicator: CommunicatorArgs { datapath, ..CommunicatorArgs::default() },
            sparse: sparse.clone(),
            machine: machine.clone(),
            ..SimSpec::default()
        };
        if taken != *self {
            let known = taken.words();
            let given = self.words().into_iter().find(|word| word.starts_with("--") && !known.contains(word));
            let reason = format!("a sparse AllReduce has no {}: leave it out", given.unwrap_or_default());
            return Err(SimError::Parameter { what: "--op sparse-allreduce", reason });
        }
        let machine = self.machine()?;
        let seed = machine.seed.unwrap_or_default();
        let params = sparse.resolve(ranks, bytes, (warm_up, iterations), (datapath.into(), seed))?;
        Ok((params, machine))
    }

    /// Parameters of a run with service processes, checked, and its machine.
    ///
    /// # Errors
    /// [`ServiceError`] for the first thing that cannot be.
    pub fn service(&self) -> Result<(ServiceParams, Machine), ServiceError> {
        let Self { ranks, ranks_per_card, op, bytes, warm_up, iterations, .. } = *self;
        let only = |what, reason: String| Err(ServiceError::Option { what, reason });
        let op = match op {
            Operation::Alltoall => ServiceOp::Alltoallv,
            Operation::Allgatherv => ServiceOp::Allgatherv,
            Operation::Broadcast => ServiceOp::Broadcast,
            Operation::Allgather => ServiceOp::Allgather,
            other => {
                let name = other.name();
                let has = "service processes have alltoallv, allgatherv, broadcast and allgather";
                return only("--op", format!("is {name}: {has}"));
            }
        };
        let taken = SimSpec {
            communicator: CommunicatorArgs {
                control: SimControlName::Service,
                service_processes: self.communicator.service_processes,
                local_copies: self.communicator.local_copies.filter(|_| op == ServiceOp::Allgatherv),
                ..CommunicatorArgs::default()
            },
            skew: SimSpec::default().skew,
            side: SimSpec::default().side,
            algorithm: AlgorithmArgs::default(),
            root: if op == ServiceOp::Broadcast { self.root } else { SimSpec::default().root },
            staged: if op.is_staged() { self.staged.clone() } else { StagedArgs::default() },
            ..self.clone()
        };
        if taken != *self {
            let words = self.words();
            let known = taken.words();
            let given = words.into_iter().find(|word| word.starts_with("--") && !known.contains(word));
            let reason = format!("service takes no {} with {op}: leave it out", given.unwrap_or_default());
            return only("--control", reason);
        }
        if ranks_per_card == 0 || !ranks.is_multiple_of(ranks_per_card) {
            return Err(ServiceError::Ranks { ranks, ranks_per_card });
        }
        let shape = Shape {
            hosts: ranks / ranks_per_card,
            ranks_per_host: ranks_per_card,
            processes_per_host: self.communicator.service_processes.unwrap_or(1),
        };
        if self.root >= ranks {
            return only("--root", format!("is {}, of {ranks} ranks: give one from 0 to {}", self.root, ranks - 1));
        }
        let load = Load { bytes, varies: false };
        let staged = self.staged.plan(self.root);
        let local_copies = self.communicator.local_copies.unwrap_or_default();
        let turns = (warm_up, iterations);
        Ok((ServiceParams { op, shape, load, staged, local_copies, turns }, self.machine()?))
    }

    /// Options and values that say the same: those that are not as by default.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        options::words(self, &Self::default())
    }

    /// The command that runs it.
    #[must_use]
    pub fn command(&self) -> String {
        options::command("flexcast sim", self.words())
    }
}

impl CommunicatorArgs {
    fn config(&self, ranks: u32, receive_bytes: u64) -> Config {
        let Self { transport, subgroups, threads, send_threads, control, spread, chains, lookahead, .. } = *self;
        let Self { send_batch, chunk, slots, batch, eager, cutoff_slack, pacing, link_gbit, .. } = *self;
        let mut config = Config::default();
        if let Some(us) = cutoff_slack {
            config.overheads.cutoff_slack = Duration::from_micros(us);
        }
        config.eager_bytes = eager.unwrap_or(config.eager_bytes);
        // All cards' slots are filled: those of 1024 cards leave room for their buffers in 8 GiB.
        let most = if ranks > 512 { 512 } else { 1024 };
        let slots = slots.unwrap_or(most / subgroups.clamp(1, 64).next_power_of_two());
        let batch = batch.unwrap_or(config.receive_batch.min(slots / 2));
        let config = config.with_subgroups(subgroups);
        let (threads, send_threads) =
            (threads.unwrap_or(config.receive_threads), send_threads.unwrap_or(config.send_threads));
        config
            .transport(transport)
            .receive_threads(threads)
            .send_threads(send_threads)
            .control(if control == SimControlName::Device { Control::Device } else { Control::Host })
            .placement(if spread { ThreadPlacement::Spread } else { ThreadPlacement::Compact })
            .chains(chains)
            .link_gbit_per_s(link_gbit.unwrap_or_default())
            .pacing_gbit_per_s(pacing)
            .lookahead_chunks(lookahead)
            .send_batch(send_batch)
            .chunk_bytes(chunk)
            .slots(slots)
            .receive_batch(batch)
            .max_receive_bytes(receive_bytes.max(1))
    }
}

#[cfg(test)]
mod tests;
