//! Configuration of a communicator, checked before anything is created.

mod settings;
#[cfg(test)]
mod tests;

use std::time::Duration;

use flexcast_proto::cutoff::transfer_ps;
use flexcast_proto::{ImmediateLayout, chains_for};

use crate::bootstrap::{Secret, SecretError};
use crate::error::{Error, Result};
use crate::op::aggregation::Aggregation;
use crate::op::chain_mapping::ChainMapping;
use crate::op::selection::Selection;
use crate::op::service_options::ServiceOptions;
use crate::op::stream::Transport;
use crate::op::tuning::Tuning;
use crate::op::units::ThreadPlacement;

pub use settings::{Setting, SettingError, SettingValue};

/// Bytes in front of the payload of a datagram in its staging slot.
pub(crate) const GRH_BYTES: u32 = 40;
/// Deepest receive ring of a queue pair.
pub const MAX_SLOTS: u32 = 8192;
/// Most subgroups: a multicast group each.
pub const MAX_SUBGROUPS: u32 = 64;
/// Most bytes of [`Config::eager_bytes`].
pub const MAX_EAGER_BYTES: u32 = 64 << 10;
/// Longest chunk of a zero-copy transport: half of what a message can carry (InfiniBand specification, volume 1, 9.2:
/// 2^31 bytes).
pub const MAX_CHUNK_BYTES: u32 = 1 << 30;

/// What of an activation is hidden unless something else is asked for. Emulated ones take 13 to 20 us (recorded under
/// model M.1, with a longer gap), from the completion of what one root has sent, over two hosts and a connection, to
/// the first chunk of the next.
const LOOKAHEAD_PS: u64 = 16_000_000;

/// Where the protocol of a communicator runs: barrier, activation, recovery, final handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// On the host: [`Communicator::progress`](crate::Communicator::progress) moves it on.
    #[default]
    Host,
    /// On the card, by a DPA thread of its own: from posting to completion the host has nothing to do, unless something
    /// is lost. Then [`Communicator::progress`](crate::Communicator::progress) watches the deadlines and closes the
    /// receive contexts; what is missing the card reads.
    Device,
    /// On the card's Arm cores, by the service processes of `flexcast-service` ([`Config::service`]): Alltoall,
    /// Alltoallv, Allgather, Allgatherv, and Broadcast where they have staging memory. From post to flag
    /// ([`Communicator::is_flagged`](crate::Communicator::is_flagged)) the host has nothing to do. Everything else, and
    /// all of it where a rank has no service process, is by the host
    /// (see [`Communicator::control`](crate::Communicator::control)). With [`Endpoint::open`](crate::Endpoint::open)
    /// Broadcast, Allgather and Allgatherv are the DPA's. Over RDMA cards alone, and in builds with the cargo feature
    /// `service`.
    Service,
}

impl Control {
    /// Its name in variables and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
            Self::Service => "service",
        }
    }
}

impl std::fmt::Display for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What an operation takes beyond its data, as a first estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overheads {
    /// The barrier. Default 20 us.
    pub barrier: Duration,
    /// One activation in a chain. Default 100 us.
    pub activation: Duration,
    /// Steps of the schedule, each of which begins with an activation. Default 1.
    pub steps: u32,
    /// Noise of the network and the workers: what is missing is fetched from the neighbour so long after it should have
    /// come. Default 500 us, with emulated cards more: see [`Config::for_endpoint`]. A time shorter than a DPA thread
    /// or a link takes for what it reports together (up to 64 completions, or two chunks), or than a DPA thread is
    /// silent between two activations (30 us), is prolonged to that; with 0 whatever is still to come is fetched at
    /// once. Where a `budget` ends activations in the midst of an operation, a slack below 30 us may fetch chunks that
    /// are only late.
    pub cutoff_slack: Duration,
}

impl Default for Overheads {
    fn default() -> Self {
        Self {
            barrier: Duration::from_micros(20),
            activation: Duration::from_micros(100),
            steps: 1,
            cutoff_slack: Duration::from_micros(500),
        }
    }
}

impl Overheads {
    pub(crate) fn in_ps(self) -> flexcast_proto::Overheads {
        flexcast_proto::Overheads {
            barrier_ps: ps(self.barrier),
            activation_ps: ps(self.activation),
            steps: self.steps,
            cutoff_slack_ps: ps(self.cutoff_slack),
        }
    }
}

/// A time of the user's for the protocol, which counts picoseconds; one beyond 213 days is as good as for ever.
pub(crate) fn ps(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX)
}

/// How a progress thread runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadOptions {
    /// The processor it stays on, by its number in the system; `None`: the system chooses.
    pub cpu: Option<u32>,
}

impl ThreadOptions {
    /// A thread that stays on this processor.
    #[must_use]
    pub const fn on_cpu(cpu: u32) -> Self {
        Self { cpu: Some(cpu) }
    }
}

/// Parameters of a communicator. All ranks must give the same ones; those that matter on the wire are compared when
/// ranks connect.
///
/// Begin with [`Config::for_endpoint`], and change what should be different:
///
/// ```no_run
/// # fn f(endpoint: &flexcast::Endpoint) -> flexcast::Config {
/// flexcast::Config::for_endpoint(endpoint).with_subgroups(8).max_receive_bytes(1 << 30)
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// What carries the data. Default [`Transport::Ud`].
    pub transport: Transport,
    /// Bytes of one chunk: a multiple of 64, at most the path's MTU, or [`MAX_CHUNK_BYTES`] with a zero-copy transport,
    /// which sends a chunk as one message of as many packets as it takes: one completion each, and all of it is fetched
    /// if one packet is lost. Default 4096.
    pub chunk_bytes: u32,
    /// Multicast groups that carry the data side by side, 1 to [`MAX_SUBGROUPS`]. Default 4. A process that receives
    /// itself over an RDMA card ([`Endpoint::verbs`](crate::Endpoint::verbs)) has one; over an Ethernet interface
    /// [`UdpOptions::subgroups`](crate::UdpOptions::subgroups) counts.
    pub subgroups: u32,
    /// DPA threads that receive, 1 to `subgroups` (UC unicast: times other ranks). Default: one per subgroup.
    pub receive_threads: u32,
    /// DPA threads that send, 1 to `subgroups` (UC unicast: times other ranks). Default 2: one fills about two thirds
    /// of a link of 200 Gbit/s (emulated, M.2).
    pub send_threads: u32,
    /// Where the protocol runs. Default: on the host.
    pub control: Control,
    /// Where the service processes are ([`Control::Service`]); may differ from rank to rank. Default none.
    pub service: ServiceOptions,
    /// Order in which DPA threads are taken. Default compact.
    pub placement: ThreadPlacement,
    /// Receives of each subgroup (UC unicast: and rank), each with a staging slot (UD); a power of two from 16 to
    /// [`MAX_SLOTS`]. Default 256, with which four subgroups stage the published 4 MiB. A process that receives itself
    /// over an RDMA card ([`Endpoint::verbs`](crate::Endpoint::verbs)) has those of all subgroups, at most
    /// [`MAX_SLOTS`], in host memory.
    pub slots: u32,
    /// Completions that a receive worker consumes per doorbell: a power of two, at most half of `slots`. Default 16:
    /// the copies of a batch begin together (UD), so a longer one costs time at the end of an operation, a shorter one
    /// instructions. However long it is, the host learns of every 64 completions.
    pub receive_batch: u32,
    /// Sends per doorbell and completion: a power of two from 2 to 128. Default 16: the link begins when the first
    /// batch is posted.
    pub send_batch: u32,
    /// Entries of each send ring in sends; a power of two, at least two batches. Default 256.
    pub send_depth: u32,
    /// Completions after which an activation of a worker ends by itself. Default 4096.
    pub budget: u32,
    /// Most bytes that a rank can receive in one operation. Default 64 MiB.
    pub max_receive_bytes: u64,
    /// Operations of up to so many bytes, all blocks together (Broadcast and Allgatherv: half as many), take no part of
    /// the card's datapath: their data rides on the barrier. Takes 12 times as many bytes of host memory for each peer
    /// of the barrier; with [`Control::Device`], where it goes with the messages, twice as many in all. 0 to
    /// [`MAX_EAGER_BYTES`]. Default 16 KiB.
    pub eager_bytes: u32,
    /// What carries the data of an Allgather ([`Control::Host`]; with the protocol on the card it is multicast alone,
    /// since the host is to have nothing to do). What is chosen for each operation is in its [`Report`](crate::Report).
    /// Connections are made for what may be chosen: four queue pairs to each other rank up to
    /// [`MAX_LINEAR_RANKS`](crate::MAX_LINEAR_RANKS) ranks, to log2 of as many beyond. Collectives between pairs of
    /// ranks ([`Allreduce`](crate::Allreduce) and the like) take an algorithm that is
    /// named where it carries them, and make connections of their own when the first of them is called
    /// ([`Footprint::pair_queue_pairs`](crate::Footprint::pair_queue_pairs)). Default automatic.
    pub algorithm: Selection,
    /// Which algorithms are taken over an Ethernet interface, before what the endpoint and the library say; that of
    /// rank 0 counts for all. Default none.
    pub tuning: Option<Tuning>,
    /// Whether reductions combine contributions in the order of ranks, 0 first, whatever their length: their results
    /// are, bit for bit, those of one core that goes through all contributions in turn. Only sums and products of
    /// floating-point numbers depend on the order. Without it the order is still the same each time for one length and
    /// one number of ranks. Default false. [`Config::sparse_fixed_point`] has sums of its own, which no order changes.
    pub reproducible: bool,
    /// Processes `flexcast-aggregator` that sum up what sparse AllReduce sends, as `host:port`, in one order on all
    /// ranks. With an RDMA card theirs need one, too. One that is named twice serves with two of its threads. Default
    /// none: every rank sums up a part.
    pub aggregators: Vec<String>,
    /// Secret that this rank shares with the aggregators, the same one on all ranks: each side proves to the other that
    /// it has it, and frames on their TCP connections have tags. [`Config::with_environment`] takes the one that ranks
    /// meet with, of `FLEXCAST_SECRET_FILE` or `FLEXCAST_SECRET`. Default none.
    pub aggregator_secret: Option<Secret>,
    /// What adds up what sparse AllReduce sends over RDMA cards. Default the ranks' processors.
    pub sparse_aggregation: Aggregation,
    /// Greatest magnitude of a contribution, for sums of `f32` that the DPAs add as fixed-point numbers
    /// ([`Aggregation::Dpa`]). A sum of n contributions is off by at most n · 2^-(e+1), where e is as large as 32 bits
    /// allow (27 for 4 ranks and a bound of 1), and by the rounding to `f32`; -0.0 becomes 0.0.
    /// [`Decision::fixed_point`](crate::Decision::fixed_point) has the error. An operation fails on all ranks if a
    /// number is greater, infinite or not a number. Default `None`: processors add `f32`.
    pub sparse_fixed_point: Option<f32>,
    /// Bits of the immediate for the sequence number; `None`: as few as `max_receive_bytes` needs.
    pub psn_bits: Option<u32>,
    /// Ranks that multicast at the same time; 0: as few as keep the links busy, given `link_gbit_per_s` and the
    /// activation time in `overheads`. Default 0.
    pub chains: u32,
    /// Which rank is in which chain. Default contiguous.
    pub chain_mapping: ChainMapping,
    /// Chunks before the end of its block at which a root activates the next one; `None`: as many as a root sends in 16
    /// us if the roots that multicast at the same time share a link, or at the rate of `pacing_gbit_per_s`. That is a
    /// little less than an activation takes, so that the next root begins when this one ends and hardly before. Where a
    /// root sends more slowly than its link could, more roots than chains multicast for a moment; with 0 never. Default
    /// `None`.
    pub lookahead_chunks: Option<u32>,
    /// Line rate of the own card in Gbit/s; 0: what its port reports. The lowest of all ranks counts: cutoff, number of
    /// chains and choice of algorithm follow from it. Default 0.
    pub link_gbit_per_s: u64,
    /// First estimate of what an operation takes beyond its data.
    pub overheads: Overheads,
    /// How long a rank waits for others to begin an operation. Default 10 s.
    pub barrier_timeout: Duration,
    /// How long an operation may stand still once the barrier is passed, beyond three times the cutoff. It counts from
    /// the last progress, data that comes or goes, and not from the beginning: an operation may take as long as memory,
    /// processors and network need. Default 100 ms.
    pub recovery_timeout: Duration,
    /// Control messages that are lost are sent again after 4.096 us x 2 to this power, up to seven times; then the
    /// connection breaks and the operation fails. Default 11: 8.4 ms.
    pub retry_exponent: u8,
    /// Whether the host's reliable connections restart where a lost negative acknowledgement would make them wait for
    /// that time. Default true. No card has run it yet: one that does not go on with a peer that begins again would
    /// break the connection.
    pub restarts: bool,
    /// Longest life of a packet in the fabric: collective ids are not used again sooner. Default 10 ms.
    pub packet_lifetime: Duration,
    /// Last-level cache of the DPA, which rings, bitmaps and contexts should fit in, in bytes. Default 1.5 MB, as
    /// published.
    pub cache_bytes: u64,
    /// Rate in Gbit/s at which a root multicasts, divided among the queue pairs of the subgroups: each has the highest
    /// static rate of an address that is no higher than its share ([`UdAddress::paced`](flexio::UdAddress::paced)). For
    /// a fabric that drops what it cannot buffer: the rate of the links over the number of chains, or less. Over
    /// Ethernet (`udp`) the root's processor keeps the rate, to whole Gbit/s, and lowers it further while receivers
    /// have no room. `None`: as fast as the link. Default `None`.
    pub pacing_gbit_per_s: Option<u32>,
    /// Traffic class of data packets; bits 7 to 5 are the priority. Default 0.
    pub data_class: u8,
    /// Traffic class of control messages and fetches. Default 0x60: priority 3, so that activations overtake the data
    /// of a turn. For that cards and switches must map the DSCP to priorities, give each its own queue, and lose
    /// nothing of either (on BlueField-3 and Spectrum: `mlnx_qos --trust dscp`, strict or weighted transmission
    /// selection, priority flow control).
    pub control_class: u8,
    /// A thread that makes progress by itself. It sleeps while no operation is under way. Default `None`: progress is
    /// the caller's.
    pub progress_thread: Option<ThreadOptions>,
}

/// A function for every parameter, which gives the configuration with another value of it.
macro_rules! setters {
    ($($name:ident: $type:ty,)*) => {
        impl Config {
            $(
                #[doc = concat!("The same with this [`", stringify!($name), "`](Config#structfield.", stringify!($name), ").")]
                #[must_use]
                pub fn $name(mut self, $name: $type) -> Self {
                    self.$name = $name;
                    self
                }
            )*
        }
    };
}

setters! {
    transport: Transport,
    chunk_bytes: u32,
    subgroups: u32,
    receive_threads: u32,
    send_threads: u32,
    control: Control,
    service: ServiceOptions,
    placement: ThreadPlacement,
    slots: u32,
    receive_batch: u32,
    send_batch: u32,
    send_depth: u32,
    budget: u32,
    max_receive_bytes: u64,
    eager_bytes: u32,
    algorithm: Selection,
    tuning: Option<Tuning>,
    reproducible: bool,
    aggregators: Vec<String>,
    aggregator_secret: Option<Secret>,
    sparse_aggregation: Aggregation,
    sparse_fixed_point: Option<f32>,
    psn_bits: Option<u32>,
    chains: u32,
    chain_mapping: ChainMapping,
    lookahead_chunks: Option<u32>,
    link_gbit_per_s: u64,
    overheads: Overheads,
    barrier_timeout: Duration,
    recovery_timeout: Duration,
    retry_exponent: u8,
    restarts: bool,
    packet_lifetime: Duration,
    cache_bytes: u64,
    pacing_gbit_per_s: Option<u32>,
    data_class: u8,
    control_class: u8,
    progress_thread: Option<ThreadOptions>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            transport: Transport::Ud,
            chunk_bytes: 4096,
            subgroups: 4,
            receive_threads: 4,
            send_threads: 2,
            control: Control::Host,
            service: ServiceOptions::default(),
            placement: ThreadPlacement::Compact,
            slots: 256,
            receive_batch: 16,
            send_batch: 16,
            send_depth: 256,
            budget: 4096,
            max_receive_bytes: 64 << 20,
            eager_bytes: 16 << 10,
            algorithm: Selection::Automatic,
            tuning: None,
            reproducible: false,
            aggregators: Vec::new(),
            aggregator_secret: None,
            sparse_aggregation: Aggregation::Host,
            sparse_fixed_point: None,
            psn_bits: None,
            chains: 0,
            chain_mapping: ChainMapping::Contiguous,
            lookahead_chunks: None,
            link_gbit_per_s: 0,
            overheads: Overheads::default(),
            barrier_timeout: Duration::from_secs(10),
            recovery_timeout: Duration::from_millis(100),
            retry_exponent: 11,
            restarts: true,
            packet_lifetime: Duration::from_millis(10),
            cache_bytes: 1_500_000,
            pacing_gbit_per_s: None,
            data_class: 0,
            control_class: 0x60,
            progress_thread: None,
        }
    }
}

/// Figures that follow from a configuration and a number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Derived {
    pub(crate) layout: ImmediateLayout,
    pub(crate) bitmap_words: u32,
    /// Words of the second bitmap, one bit per rank.
    pub(crate) tail_words: u32,
    /// Bytes of a staging slot; 0 without staging.
    pub(crate) slot_bytes: u32,
    /// Streams that a rank receives, and as many that it sends.
    pub(crate) streams: u32,
}

/// Time for recovery, as a multiple of how far clocks may be from one another.
const SKEWS_OF_RECOVERY: u32 = 10;

impl Config {
    /// The defaults for cards whose clocks may be that far from one another.
    pub(crate) fn for_clock_skew(skew: Duration) -> Self {
        let Self { recovery_timeout, overheads, .. } = Self::default();
        let cutoff_slack = overheads.cutoff_slack.max(skew);
        Self {
            recovery_timeout: recovery_timeout.max(skew * SKEWS_OF_RECOVERY),
            overheads: Overheads { cutoff_slack, ..overheads },
            ..Self::default()
        }
    }

    /// The same with what environment variables say: those of [`Setting::ALL`], such as `FLEXCAST_CHUNK_BYTES`,
    /// `FLEXCAST_CONTROL` or `FLEXCAST_SPARSE_AGGREGATORS`, the secret of the ranks, and, for service processes, those
    /// of [`ServiceOptions::from_env`].
    ///
    /// # Errors
    /// [`Error::Variable`]: one has a value that it cannot have. [`Error::Argument`]: the secret cannot be used.
    pub fn with_environment(mut self) -> Result<Self> {
        self.take_variables(|name| std::env::var_os(name))?;
        // Nonsense is refused whether it is used or not.
        let service = ServiceOptions::from_env()?;
        let refused = |error: SecretError| Error::Argument { operation: "secret", reason: error.to_string() };
        if let Some(secret) = Secret::from_env().map_err(refused)? {
            self.aggregator_secret = Some(secret);
        }
        if self.control == Control::Service {
            self.service = service;
        }
        Ok(self)
    }

    /// Aggregators of a list with commas.
    #[must_use]
    pub fn aggregators_of(names: &str) -> Vec<String> {
        names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// The same for a process that receives and sends itself: one subgroup with as many slots as all have together, and
    /// one thread each way.
    pub(crate) fn with_one_worker(self) -> Self {
        let slots = self.slots.saturating_mul(self.subgroups).next_power_of_two().min(MAX_SLOTS);
        Self { slots, ..self.with_subgroups(1) }
    }

    /// The same with `subgroups` subgroups, as many receive threads, and two send threads, or one if there are fewer
    /// than four subgroups: two send faster than so few receive.
    #[must_use]
    pub fn with_subgroups(self, subgroups: u32) -> Self {
        Self { subgroups, receive_threads: subgroups, send_threads: if subgroups < 4 { 1 } else { 2 }, ..self }
    }

    /// The same with the line rate that a card's port reports, if none is given.
    ///
    /// # Errors
    /// [`Error::Config`] if the card reports none, either.
    pub(crate) fn with_link_rate(self, port_gbit_per_s: u32) -> Result<Self> {
        let link_gbit_per_s = if self.link_gbit_per_s == 0 { port_gbit_per_s.into() } else { self.link_gbit_per_s };
        if link_gbit_per_s == 0 {
            let limit = "at least 1: the card's port does not report its rate".to_owned();
            return Err(Error::Config { what: "link_gbit_per_s", value: 0, limit });
        }
        Ok(Self { link_gbit_per_s, ..self })
    }

    /// How long nothing may come at first before multicast counts as stalled, in picoseconds: the slack, but no less
    /// than two chunks take on the link. Without any slack nothing is waited for.
    pub(crate) fn first_window_ps(&self) -> u64 {
        match ps(self.overheads.cutoff_slack) {
            0 => 0,
            slack_ps => slack_ps.max(transfer_ps(2 * u64::from(self.chunk_bytes), self.link_gbit_per_s)),
        }
    }

    /// Chunks before the end of its block at which one of `chains` roots activates the next one.
    pub(crate) fn lookahead(&self, chains: u32) -> u32 {
        self.lookahead_chunks.unwrap_or_else(|| {
            let share = self.link_gbit_per_s / u64::from(chains.max(1));
            let gbit_per_s = self.pacing_gbit_per_s.map_or(share, |pace| share.min(pace.into()));
            // One Gbit/s is a bit in 1000 ps.
            let bytes = gbit_per_s.saturating_mul(LOOKAHEAD_PS / 8000);
            u32::try_from(bytes / u64::from(self.chunk_bytes.max(1))).unwrap_or(u32::MAX)
        })
    }

    /// Chains of an operation to which `roots` ranks contribute `block_bytes` each, on average.
    pub(crate) fn chains_for(&self, roots: u32, block_bytes: u64) -> u32 {
        let roots = roots.max(1);
        // Blocks of fewer chunks than subgroups keep some workers idle, and the others must take all of a turn: as much
        // as their receives hold, and the next turn behind it.
        let chunks = block_bytes.div_ceil(u64::from(self.chunk_bytes.max(1)));
        let most = if chunks < u64::from(self.subgroups) { roots.min(self.slots / 2).max(1) } else { roots };
        match self.chains {
            // A root fills its own link with copies for all the others: only all together fill those of the receivers.
            0 if self.transport == Transport::UcUnicast => roots,
            0 => chains_for(block_bytes, self.link_gbit_per_s, ps(self.overheads.activation), roots, most),
            chains => chains.min(roots),
        }
    }

    /// Checks what a carrier without a card takes, or leaves alone.
    pub(crate) fn check_ranges(&self, ranks: u32) -> Result<()> {
        for (what, value, least, most) in [
            ("chunk_bytes", self.chunk_bytes, crate::op::tuning::LEAST_CHUNK_BYTES, MAX_CHUNK_BYTES),
            ("subgroups", self.subgroups, 1, MAX_SUBGROUPS),
            ("eager_bytes", self.eager_bytes, 0, MAX_EAGER_BYTES),
            ("chains", self.chains, 0, flexcast_proto::MAX_RANKS),
            ("psn_bits", self.psn_bits.unwrap_or(1), 1, 31),
        ] {
            if !(least..=most).contains(&value) {
                return Err(Error::Config { what, value: value.into(), limit: format!("{least} to {most}") });
            }
        }
        self.chain_mapping.check(ranks, self.chains)
    }

    /// Checks everything that does not need the card.
    pub(crate) fn derive(&self, ranks: u32, mtu_bytes: u32) -> Result<Derived> {
        let range = |what, value: u32, least: u32, most: u32| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::Config { what, value: u64::from(value), limit: format!("{least} to {most}") })
        };
        let power = |what, value: u32| {
            if value.is_power_of_two() {
                return Ok(());
            }
            let above = u64::from(value).next_power_of_two();
            let limit = format!("a power of two (nearest: {} or {above})", (above / 2).max(1));
            Err(Error::Config { what, value: u64::from(value), limit })
        };
        let longest = if self.transport.is_zero_copy() { MAX_CHUNK_BYTES } else { mtu_bytes };
        range("chunk_bytes", self.chunk_bytes, 64, longest)?;
        if !self.chunk_bytes.is_multiple_of(64) {
            let limit = "a multiple of 64: two writers in one cache line would overwrite one another".to_owned();
            return Err(Error::Config { what: "chunk_bytes", value: self.chunk_bytes.into(), limit });
        }
        range("subgroups", self.subgroups, 1, MAX_SUBGROUPS)?;
        let streams = self.transport.streams(self.subgroups, ranks)?;
        range("receive_threads", self.receive_threads, 1, streams)?;
        range("send_threads", self.send_threads, 1, streams)?;
        range("slots", self.slots, 16, MAX_SLOTS)?;
        power("slots", self.slots)?;
        range("receive_batch", self.receive_batch, 2, self.slots / 2)?;
        power("receive_batch", self.receive_batch)?;
        range("send_batch", self.send_batch, 2, 128)?;
        power("send_batch", self.send_batch)?;
        range("send_depth", self.send_depth, 2 * self.send_batch, 8192)?;
        power("send_depth", self.send_depth)?;
        range("budget", self.budget, 1, u32::MAX)?;
        range("eager_bytes", self.eager_bytes, 0, MAX_EAGER_BYTES)?;
        range("chains", self.chains, 0, flexcast_proto::MAX_RANKS)?;
        if self.control == Control::Device && self.transport == Transport::UcUnicast {
            // Where to write, a sender learns from each receiver before every operation, and the host asks for it.
            let limit = "host with UC unicast; on the card it takes UD".to_owned();
            return Err(Error::Config { what: "control", value: self.control as u64, limit });
        }
        self.chain_mapping.check(ranks, self.chains)?;
        if let Some(rate) = self.pacing_gbit_per_s.filter(|_| self.transport.is_zero_copy()) {
            let limit =
                "for datagrams, whose address carries the rate: leave it out with zero-copy transports".to_owned();
            return Err(Error::Config { what: "pacing_gbit_per_s", value: rate.into(), limit });
        }
        if let Some(rate) = self.pacing_gbit_per_s
            && self.pacing_mbit_per_s().is_none_or(|share| share < flexio::LEAST_STATIC_RATE_MBIT_PER_S)
        {
            let least = (flexio::LEAST_STATIC_RATE_MBIT_PER_S * self.subgroups).div_ceil(1000);
            let limit = format!("at least {least}: 2.5 Gbit/s for each of {} subgroups", self.subgroups);
            return Err(Error::Config { what: "pacing_gbit_per_s", value: rate.into(), limit });
        }
        // Each rank's share of a subgroup is rounded up to a chunk twice: once for its last one, once for the subgroup.
        let per_group = u64::from(self.chunk_bytes) * u64::from(self.subgroups);
        let chunks = self.max_receive_bytes.div_ceil(per_group) + 2 * u64::from(ranks);
        let needed = u64::BITS - (chunks - 1).leading_zeros();
        let bits = self.psn_bits.unwrap_or(needed.max(1));
        let layout = ImmediateLayout::new(bits).map_err(|_| Error::Config {
            what: "psn_bits",
            value: u64::from(bits),
            limit: format!(
                "1 to 31: {} bytes from {ranks} ranks in {} subgroups are {chunks} chunks; raise subgroups or \
                 chunk_bytes, or lower max_receive_bytes",
                self.max_receive_bytes, self.subgroups
            ),
        })?;
        let bits = chunks.min(1 << layout.psn_bits());
        let bitmap_words = u32::try_from(bits.div_ceil(64)).unwrap_or(u32::MAX);
        let slot_bytes = match self.transport {
            Transport::Ud => (self.chunk_bytes + GRH_BYTES).next_multiple_of(64),
            Transport::UcMulticast | Transport::UcUnicast => 0,
        };
        Ok(Derived { layout, bitmap_words, tail_words: ranks.div_ceil(64), slot_bytes, streams })
    }

    /// What each of a root's queue pairs may send, if there is a limit.
    pub(crate) fn pacing_mbit_per_s(&self) -> Option<u32> {
        self.pacing_gbit_per_s.map(|rate| rate.saturating_mul(1000) / self.subgroups.max(1))
    }

    /// The algorithms that the communicator may take.
    pub(crate) const fn selection(&self) -> Selection {
        match self.control {
            Control::Host | Control::Service => self.algorithm,
            Control::Device => Selection::Multicast,
        }
    }

    /// Whether control messages have a higher priority than data.
    #[must_use]
    pub const fn control_overtakes(&self) -> bool {
        self.control_class >> 5 > self.data_class >> 5
    }
}
