//! Parameters of communicators.

use std::ffi::c_char;
use std::time::Duration;

use flexcast_rust::bootstrap::Secret;
use flexcast_rust::{
    Aggregation, Config, Control, Selection, ServiceDelivery, ServiceOptions, ThreadOptions, ThreadPlacement, Transport,
};

use crate::fault::{Fault, call};
use crate::memory::{give, sized, text};
use crate::settings;
use crate::status::flexcast_status::{self, *};

/// All threads of a core of the DPA before the next one.
pub const FLEXCAST_PLACEMENT_COMPACT: u32 = 0;
/// One thread of each core in turn.
pub const FLEXCAST_PLACEMENT_SPREAD: u32 = 1;

/// The ranks' processors add what a sparse AllReduce sends over RDMA cards.
pub const FLEXCAST_AGGREGATION_HOST: u32 = 0;
/// The DPAs of the ranks' cards add integers of 32 and 64 bits, in blocks of a multiple of 128 bytes, floats if
/// `sparse_fixed_point` says so, and processors all else. For that image `sparse` runs there: `sparse_firmware_path` in
/// flexcast_card_options.
pub const FLEXCAST_AGGREGATION_DPA: u32 = 1;

/// For `lookahead_chunks`: as many chunks as hide most of the activation of the next root.
pub const FLEXCAST_LOOKAHEAD_AUTOMATIC: u32 = u32::MAX;

/// Multicast datagrams, staged in DPA memory and copied to the user's buffer by the card.
pub const FLEXCAST_TRANSPORT_UD: u32 = 0;
/// RDMA Writes to each rank, straight into the user's buffer.
pub const FLEXCAST_TRANSPORT_UC_UNICAST: u32 = 1;

/// The protocol runs on the host: flexcast_test(), flexcast_wait() and flexcast_progress() move it on.
pub const FLEXCAST_CONTROL_HOST: u32 = 0;
/// The protocol runs on the card, by a DPA thread of its own: from posting to completion the host has nothing to do,
/// unless something is lost. Not with FLEXCAST_TRANSPORT_UC_UNICAST.
pub const FLEXCAST_CONTROL_DEVICE: u32 = 1;
/// Service processes on the card's Arm cores carry out Alltoall, Alltoallv, Allgather, Allgatherv, and Broadcast where
/// they have staging memory. `service_endpoints` and what follows it say where they are and how they are used. Where a
/// rank has none, all ranks go by FLEXCAST_CONTROL_HOST: flexcast_comm_control() tells. Over RDMA cards alone; with the
/// datapath "dpa" Broadcast, Allgather and Allgatherv are the DPA's.
pub const FLEXCAST_CONTROL_SERVICE: u32 = 2;

/// For `service_delivery`: what the variable FLEXCAST_SERVICE_DELIVERY (auto, flat, hierarchical or direct) says, or
/// else as FLEXCAST_DELIVERY_AUTO.
pub const FLEXCAST_DELIVERY_DEFAULT: u32 = 0;
/// Broadcasts through staging memory where the service processes have some, Allgathers from host memory to host memory
/// by alias keys; from the thresholds of FLEXCAST_SERVICE_THRESHOLDS on as FLEXCAST_DELIVERY_HIERARCHICAL.
pub const FLEXCAST_DELIVERY_AUTO: u32 = 1;
/// Both through staging memory.
pub const FLEXCAST_DELIVERY_FLAT: u32 = 2;
/// Both through staging memory to a segment that the ranks of a host share, from which each copies.
pub const FLEXCAST_DELIVERY_HIERARCHICAL: u32 = 3;
/// Both from host memory to host memory by alias keys.
pub const FLEXCAST_DELIVERY_DIRECT: u32 = 4;
/// For `service_bound_keys`: none.
pub const FLEXCAST_BOUND_KEYS_NONE: u32 = u32::MAX;

/// For each operation what the library expects to be fastest: multicast, the messages of the barrier, or writes over
/// reliable connections.
pub const FLEXCAST_ALGORITHM_AUTOMATIC: u32 = 0;
/// Multicast; what is short enough rides on the messages of the barrier.
pub const FLEXCAST_ALGORITHM_MULTICAST: u32 = 1;
/// Allgathers around a ring of reliable connections, in segments.
pub const FLEXCAST_ALGORITHM_RING: u32 = 2;
/// Allgathers by writes to each rank directly.
pub const FLEXCAST_ALGORITHM_LINEAR: u32 = 3;
/// Allgathers by recursive doubling over reliable connections.
pub const FLEXCAST_ALGORITHM_RECURSIVE_DOUBLING: u32 = 4;
/// Allgathers by the algorithm of Bruck et al. over reliable connections.
pub const FLEXCAST_ALGORITHM_BRUCK: u32 = 5;

/// For `progress_cpu`: any.
pub const FLEXCAST_CPU_ANY: u32 = u32::MAX;

/// Parameters of a communicator; alike on all ranks. To be initialised by flexcast_config_default().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct flexcast_config {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// Bytes of one chunk: a multiple of 64, at most the path's MTU; with FLEXCAST_TRANSPORT_UC_UNICAST at most
    /// 2^30.
    pub chunk_bytes: u32,
    /// Multicast groups that carry the data side by side.
    pub subgroups: u32,
    /// DPA threads that receive, 1 to `subgroups`.
    pub receive_threads: u32,
    /// DPA threads that send, 1 to `subgroups`.
    pub send_threads: u32,
    /// Order in which DPA threads are taken: FLEXCAST_PLACEMENT_COMPACT or FLEXCAST_PLACEMENT_SPREAD.
    pub placement: u32,
    /// Staging slots of each subgroup: a power of two.
    pub slots: u32,
    /// Completions that a receive worker consumes per doorbell: a power of two, at most half of `slots`.
    pub receive_batch: u32,
    /// Sends per doorbell: a power of two.
    pub send_batch: u32,
    /// Entries of each send ring: a power of two, at least two batches.
    pub send_depth: u32,
    /// Completions after which an activation of a worker ends by itself.
    pub budget: u32,
    /// Bits of the immediate for the sequence number; 0: as few as `max_receive_bytes` needs.
    pub psn_bits: u32,
    /// Ranks that multicast at the same time; 0: as few as keep the links busy.
    pub chains: u32,
    /// Chunks before the end of its block at which a root activates the next one; FLEXCAST_LOOKAHEAD_AUTOMATIC: as many
    /// as hide most of it.
    pub lookahead_chunks: u32,
    /// Control messages that are lost are sent again after 4.096 us times 2 to this power.
    pub retry_exponent: u32,
    /// Traffic class of data packets, and of control messages and fetches; bits 7 to 5 are the priority.
    pub data_class: u32,
    /// See `data_class`.
    pub control_class: u32,
    /// Most bytes that a rank can receive in one operation.
    pub max_receive_bytes: u64,
    /// Line rate of the slowest card in Gbit/s, from which the cutoff follows; 0: what the own card's port tells.
    pub link_gbit_per_s: u64,
    /// First estimate of what a barrier takes, in nanoseconds.
    pub barrier_ns: u64,
    /// The same of the activation of a root.
    pub activation_ns: u64,
    /// Added to what an operation should take, before what is missing is fetched from the neighbour, in nanoseconds; 0,
    /// the default, for this and the next two: what suits the card, which is longer for emulated ones.
    pub cutoff_slack_ns: u64,
    /// How long a rank waits for others to begin an operation, in nanoseconds; see `cutoff_slack_ns`.
    pub barrier_timeout_ns: u64,
    /// How long an operation that all ranks have begun may stand still, in nanoseconds, beyond three times what it
    /// should take; see `cutoff_slack_ns`. It counts from the last data that came or went.
    pub recovery_timeout_ns: u64,
    /// Longest life of a packet in the fabric, in nanoseconds.
    pub packet_lifetime_ns: u64,
    /// Last-level cache of the DPA, which rings, bitmaps and contexts should fit in, in bytes.
    pub cache_bytes: u64,
    /// What carries the data: FLEXCAST_TRANSPORT_UD or FLEXCAST_TRANSPORT_UC_UNICAST.
    pub transport: u32,
    /// Where barrier, activation, recovery and final handshake run: FLEXCAST_CONTROL_HOST or FLEXCAST_CONTROL_DEVICE;
    /// or FLEXCAST_CONTROL_SERVICE. The default is what the variable FLEXCAST_CONTROL (host, device or service) says,
    /// or else FLEXCAST_CONTROL_HOST.
    pub control: u32,
    /// What carries the data of an Allgather, one of FLEXCAST_ALGORITHM_*. With FLEXCAST_CONTROL_DEVICE it is
    /// multicast.
    pub algorithm: u32,
    /// Whether (1 or 0) the host's reliable connections restart where a lost negative acknowledgement would make them
    /// wait for their timeout.
    pub restarts: u32,
    /// Whether (1 or 0) reductions combine contributions in the order of ranks whatever their length, so that
    /// floating-point results are those of one core that goes through all contributions in turn.
    pub reproducible: u32,
    /// For FLEXCAST_CONTROL_SERVICE: `host:port` of the first service process of the rank's host, whose others have the
    /// next ports; or each one's, with commas between them. NULL: what the variable FLEXCAST_SERVICE says. Texts must
    /// stay until flexcast_comm_create() has returned.
    pub service_endpoints: *const c_char,
    /// The file with the secret of the service processes. NULL: what FLEXCAST_SERVICE_SECRET says.
    pub service_secret: *const c_char,
    /// Longest that connecting to them takes, and so long again until all take part, in nanoseconds; 0: 5 s.
    pub service_connect_ns: u64,
    /// Longest that an operation stands still once it is posted to them, others' arrival included, in nanoseconds;
    /// 0: 60 s.
    pub service_operation_ns: u64,
    /// Service processes of a host, 1 to 64, if one endpoint is given; 0: what FLEXCAST_SERVICE_PROCESSES says, or
    /// else 4.
    pub service_processes: u32,
    /// How Broadcast and Allgather go, one of FLEXCAST_DELIVERY_*.
    pub service_delivery: u32,
    /// Buffers that they may use at a time between operations, 1 to 1000; 0: 256.
    pub service_buffers: u32,
    /// Keys that a rank binds to its buffers, 1 to 4096, so that these cost the Arm cores no control operation; 0: what
    /// FLEXCAST_SERVICE_KEYS says, or else 16; FLEXCAST_BOUND_KEYS_NONE: none.
    pub service_bound_keys: u32,
    /// Whether (1 or 0) a thread of the library moves operations on; it sleeps while none is under way. 0: the program
    /// does, by tests, waits and flexcast_progress().
    pub progress_thread: u32,
    /// Processor that the thread stays on, by its number in the system; FLEXCAST_CPU_ANY: the system chooses.
    pub progress_cpu: u32,
    /// Processes flexcast-aggregator that sum up what a sparse AllReduce sends, as `host:port` with commas between
    /// them, in one order on all ranks. With the datapaths "dpa" and "verbs" they need a card, too. NULL: what the
    /// variable FLEXCAST_SPARSE_AGGREGATORS says, or else none: every rank sums up a part. See `service_endpoints` for
    /// how long it must stay.
    pub sparse_aggregators: *const c_char,
    /// What adds up what a sparse AllReduce sends over RDMA cards, one of FLEXCAST_AGGREGATION_*.
    /// flexcast_config_default() sets what the variable FLEXCAST_SPARSE_AGGREGATION (host or dpa) says.
    pub sparse_aggregation: u32,
    /// Greatest magnitude of a contribution, with FLEXCAST_AGGREGATION_DPA: sums of FLEXCAST_FLOAT are added by the
    /// DPAs, too, as fixed-point numbers, and `sum_error` in flexcast_report tells by how much a sum may be off. -0.0
    /// becomes 0.0; a number that is greater, infinite or not a number fails the operation on all ranks. 0: processors
    /// add them. flexcast_config_default() sets what the variable FLEXCAST_SPARSE_FIXED_POINT says.
    pub sparse_fixed_point: f32,
}

/// Nanoseconds of a time; one beyond 584 years is as good as for ever.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The number that a control has in C.
pub(crate) const fn number_of(control: Control) -> u32 {
    match control {
        Control::Host => FLEXCAST_CONTROL_HOST,
        Control::Device => FLEXCAST_CONTROL_DEVICE,
        Control::Service => FLEXCAST_CONTROL_SERVICE,
    }
}

impl flexcast_config {
    pub(crate) fn default() -> Self {
        let config = Config::default();
        Self {
            size: size_of::<Self>(),
            chunk_bytes: config.chunk_bytes,
            subgroups: config.subgroups,
            receive_threads: config.receive_threads,
            send_threads: config.send_threads,
            placement: match config.placement {
                ThreadPlacement::Compact => FLEXCAST_PLACEMENT_COMPACT,
                ThreadPlacement::Spread => FLEXCAST_PLACEMENT_SPREAD,
            },
            slots: config.slots,
            receive_batch: config.receive_batch,
            send_batch: config.send_batch,
            send_depth: config.send_depth,
            budget: config.budget,
            psn_bits: config.psn_bits.unwrap_or(0),
            chains: config.chains,
            lookahead_chunks: config.lookahead_chunks.unwrap_or(FLEXCAST_LOOKAHEAD_AUTOMATIC),
            retry_exponent: config.retry_exponent.into(),
            restarts: config.restarts.into(),
            reproducible: config.reproducible.into(),
            data_class: config.data_class.into(),
            control_class: config.control_class.into(),
            max_receive_bytes: config.max_receive_bytes,
            link_gbit_per_s: config.link_gbit_per_s,
            barrier_ns: ns(config.overheads.barrier),
            activation_ns: ns(config.overheads.activation),
            cutoff_slack_ns: 0,
            barrier_timeout_ns: 0,
            recovery_timeout_ns: 0,
            packet_lifetime_ns: ns(config.packet_lifetime),
            cache_bytes: config.cache_bytes,
            transport: config.transport as u32,
            control: number_of(config.control),
            algorithm: config.algorithm as u32,
            service_endpoints: std::ptr::null(),
            service_secret: std::ptr::null(),
            service_connect_ns: 0,
            service_operation_ns: 0,
            service_processes: 0,
            service_delivery: FLEXCAST_DELIVERY_DEFAULT,
            service_buffers: 0,
            service_bound_keys: 0,
            progress_thread: config.progress_thread.is_some().into(),
            progress_cpu: config.progress_thread.and_then(|thread| thread.cpu).unwrap_or(FLEXCAST_CPU_ANY),
            sparse_aggregators: std::ptr::null(),
            sparse_aggregation: config.sparse_aggregation as u32,
            sparse_fixed_point: config.sparse_fixed_point.unwrap_or(0.0),
        }
    }

    /// The defaults, with what the environment asks for.
    fn from_env() -> Result<Self, Fault> {
        let mut config = Self::default();
        settings::take_variables(&mut config, |name| std::env::var_os(name))?;
        Ok(config)
    }

    /// What it says of service processes, over what the environment says.
    ///
    /// # Safety
    /// Both texts are null or C strings.
    unsafe fn service(&self) -> Result<ServiceOptions, Fault> {
        let mut options = ServiceOptions::from_env()?;
        // SAFETY: by this function's contract, both.
        let (endpoints, secret) = unsafe {
            (text(self.service_endpoints, "service_endpoints")?, text(self.service_secret, "service_secret")?)
        };
        if let Some(list) = endpoints {
            options.endpoints = list.split(',').map(|one| one.trim().to_owned()).collect();
        }
        if let Some(file) = secret {
            options.secret = file.into();
        }
        let or = |ns: u64, default: Duration| if ns == 0 { default } else { Duration::from_nanos(ns) };
        options.connect = or(self.service_connect_ns, options.connect);
        options.operation = or(self.service_operation_ns, options.operation);
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        options.processes = or(self.service_processes, options.processes);
        options.buffers = or(self.service_buffers, options.buffers);
        options.bound_keys = match self.service_bound_keys {
            FLEXCAST_BOUND_KEYS_NONE => 0,
            keys => or(keys, options.bound_keys),
        };
        options.delivery = match self.service_delivery {
            FLEXCAST_DELIVERY_DEFAULT => options.delivery,
            FLEXCAST_DELIVERY_AUTO => ServiceDelivery::Auto,
            FLEXCAST_DELIVERY_FLAT => ServiceDelivery::Flat,
            FLEXCAST_DELIVERY_HIERARCHICAL => ServiceDelivery::Hierarchical,
            FLEXCAST_DELIVERY_DIRECT => ServiceDelivery::Direct,
            other => {
                let text = format!(
                    "service_delivery is {other}: must be 0 (default), 1 (auto), 2 (flat), 3 (hierarchical) or 4 \
                     (direct)"
                );
                return Err(Fault::new(FLEXCAST_ERROR_CONFIG, text));
            }
        };
        Ok(options)
    }

    /// What it says, and the rest as `default` has it; nothing of service processes.
    fn convert(&self, default: &Config) -> Result<Config, Fault> {
        let byte = |what: &str, value: u32, most: u8| {
            u8::try_from(value)
                .ok()
                .filter(|value| *value <= most)
                .ok_or_else(|| Fault::new(FLEXCAST_ERROR_CONFIG, format!("{what} is {value}: must be 0 to {most}")))
        };
        let or = |ns: u64, default: Duration| if ns == 0 { default } else { Duration::from_nanos(ns) };
        let overheads = flexcast_rust::Overheads {
            barrier: Duration::from_nanos(self.barrier_ns),
            activation: Duration::from_nanos(self.activation_ns),
            cutoff_slack: or(self.cutoff_slack_ns, default.overheads.cutoff_slack),
            ..default.overheads
        };
        // Parameters that the header does not have keep their defaults.
        #[allow(clippy::needless_update)]
        Ok(default
            .clone()
            .transport(match self.transport {
                FLEXCAST_TRANSPORT_UD => Transport::Ud,
                FLEXCAST_TRANSPORT_UC_UNICAST => Transport::UcUnicast,
                other => {
                    let text = format!("transport is {other}: must be 0 (UD) or 1 (UC unicast)");
                    return Err(Fault::new(FLEXCAST_ERROR_CONFIG, text));
                }
            })
            .control(match self.control {
                FLEXCAST_CONTROL_HOST => Control::Host,
                FLEXCAST_CONTROL_DEVICE => Control::Device,
                FLEXCAST_CONTROL_SERVICE => Control::Service,
                other => {
                    let text = format!("control is {other}: must be 0 (host), 1 (device) or 2 (service)");
                    return Err(Fault::new(FLEXCAST_ERROR_CONFIG, text));
                }
            })
            .sparse_aggregation(match self.sparse_aggregation {
                FLEXCAST_AGGREGATION_HOST => Aggregation::Host,
                FLEXCAST_AGGREGATION_DPA => Aggregation::Dpa,
                other => {
                    let text = format!("sparse_aggregation is {other}: must be 0 (host) or 1 (DPA)");
                    return Err(Fault::new(FLEXCAST_ERROR_CONFIG, text));
                }
            })
            .sparse_fixed_point((self.sparse_fixed_point != 0.0).then_some(self.sparse_fixed_point))
            .algorithm(match self.algorithm {
                FLEXCAST_ALGORITHM_AUTOMATIC => Selection::Automatic,
                FLEXCAST_ALGORITHM_MULTICAST => Selection::Multicast,
                FLEXCAST_ALGORITHM_RING => Selection::Ring,
                FLEXCAST_ALGORITHM_LINEAR => Selection::Linear,
                FLEXCAST_ALGORITHM_RECURSIVE_DOUBLING => Selection::RecursiveDoubling,
                FLEXCAST_ALGORITHM_BRUCK => Selection::Bruck,
                other => {
                    let text = format!("algorithm is {other}: must be one of FLEXCAST_ALGORITHM_*, 0 (automatic) to 5");
                    return Err(Fault::new(FLEXCAST_ERROR_CONFIG, text));
                }
            })
            .chunk_bytes(self.chunk_bytes)
            .subgroups(self.subgroups)
            .receive_threads(self.receive_threads)
            .send_threads(self.send_threads)
            .placement(match self.placement {
                FLEXCAST_PLACEMENT_COMPACT => ThreadPlacement::Compact,
                FLEXCAST_PLACEMENT_SPREAD => ThreadPlacement::Spread,
                other => {
                    let text = format!("placement is {other}: must be 0 (compact) or 1 (spread)");
                    return Err(Fault::new(FLEXCAST_ERROR_CONFIG, text));
                }
            })
            .slots(self.slots)
            .receive_batch(self.receive_batch)
            .send_batch(self.send_batch)
            .send_depth(self.send_depth)
            .budget(self.budget)
            .psn_bits((self.psn_bits != 0).then_some(self.psn_bits))
            .chains(self.chains)
            .lookahead_chunks((self.lookahead_chunks != FLEXCAST_LOOKAHEAD_AUTOMATIC).then_some(self.lookahead_chunks))
            // The card has five bits for it.
            .retry_exponent(byte("retry_exponent", self.retry_exponent, 31)?)
            .restarts(self.restarts != 0)
            .reproducible(self.reproducible != 0)
            .progress_thread((self.progress_thread != 0).then(|| match self.progress_cpu {
                FLEXCAST_CPU_ANY => ThreadOptions::default(),
                cpu => ThreadOptions::on_cpu(cpu),
            }))
            .data_class(byte("data_class", self.data_class, u8::MAX)?)
            .control_class(byte("control_class", self.control_class, u8::MAX)?)
            .max_receive_bytes(self.max_receive_bytes)
            .link_gbit_per_s(self.link_gbit_per_s)
            .overheads(overheads)
            .barrier_timeout(or(self.barrier_timeout_ns, default.barrier_timeout))
            .recovery_timeout(or(self.recovery_timeout_ns, default.recovery_timeout))
            .packet_lifetime(Duration::from_nanos(self.packet_lifetime_ns))
            .cache_bytes(self.cache_bytes))
    }
}

/// The configuration of a caller, or `default` for null and for what it leaves open.
///
/// # Safety
/// Null, or a structure that is as long as it says, whose texts are null or C strings.
pub(crate) unsafe fn read(config: *const flexcast_config, default: &Config) -> Result<Config, Fault> {
    // SAFETY: by this function's contract; all fields are numbers and pointers.
    let given = unsafe { sized(config, flexcast_config::from_env()?, "config") }?;
    // SAFETY: by this function's contract.
    let aggregators = match unsafe { text(given.sparse_aggregators, "sparse_aggregators") }? {
        Some(names) => Config::aggregators_of(names),
        None => Config::default().with_environment()?.aggregators,
    };
    let secret = Secret::from_env().map_err(|error| Fault::new(FLEXCAST_ERROR_ARGUMENT, error.to_string()))?;
    let converted = given.convert(default)?.aggregators(aggregators).aggregator_secret(secret);
    match given.control {
        // SAFETY: by this function's contract.
        FLEXCAST_CONTROL_SERVICE => Ok(converted.service(unsafe { given.service() }?)),
        _ => Ok(converted),
    }
}

/// The defaults, with what variables of the environment say: FLEXCAST_CHUNK_BYTES for `chunk_bytes`,
/// FLEXCAST_PROGRESS_THREAD for `progress_thread` and so on, with values as flexcast_config_set() takes them. `size` is
/// sizeof(flexcast_config). FLEXCAST_ERROR_VARIABLE if a variable has a value that it cannot have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_config_default(config: *mut flexcast_config, size: usize) -> flexcast_status {
    call(|| {
        let value = flexcast_config { size, ..flexcast_config::from_env()? };
        // SAFETY: the caller gives as many bytes as it says.
        unsafe { give(config, size, value, "config") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_library_s() {
        assert_eq!(flexcast_config::default().convert(&Config::default()).unwrap(), Config::default());
        let longer = Config::default().barrier_timeout(Duration::from_secs(60));
        assert_eq!(flexcast_config::default().convert(&longer).unwrap(), longer, "left open: as the card has it");
        let config = flexcast_config { barrier_timeout_ns: 5, ..flexcast_config::default() };
        assert_eq!(config.convert(&longer).unwrap().barrier_timeout, Duration::from_nanos(5));
        // SAFETY: null stands for the defaults.
        assert_eq!(unsafe { read(std::ptr::null(), &longer) }.unwrap(), longer);
    }

    #[test]
    fn aggregators_are_those_of_the_field() {
        let text = c"10.0.0.5:4890, b:1";
        let config = flexcast_config { sparse_aggregators: text.as_ptr(), ..flexcast_config::default() };
        // SAFETY: a whole structure with a C string.
        let read = unsafe { read(&raw const config, &Config::default()) }.unwrap();
        assert_eq!(read.aggregators, ["10.0.0.5:4890", "b:1"]);
    }

    #[test]
    fn every_aggregation_has_its_number() {
        for (number, aggregation) in
            [(FLEXCAST_AGGREGATION_HOST, Aggregation::Host), (FLEXCAST_AGGREGATION_DPA, Aggregation::Dpa)]
        {
            let config = flexcast_config { sparse_aggregation: number, ..flexcast_config::default() };
            assert_eq!(config.convert(&Config::default()).unwrap().sparse_aggregation, aggregation);
        }
        let config = flexcast_config { sparse_aggregation: 2, ..flexcast_config::default() };
        assert!(config.convert(&Config::default()).unwrap_err().text.contains("sparse_aggregation is 2"));
    }

    #[test]
    fn a_bound_of_fixed_point_numbers_is_that_of_the_field() {
        // What cannot be is refused with the communicator.
        for (number, bound) in [(0.0, None), (-0.0, None), (2.5, Some(2.5)), (-1.0, Some(-1.0))] {
            let config = flexcast_config { sparse_fixed_point: number, ..flexcast_config::default() };
            assert_eq!(config.convert(&Config::default()).unwrap().sparse_fixed_point, bound);
        }
    }

    #[test]
    fn every_algorithm_has_its_number() {
        for (number, selection) in (0..).zip(Selection::ALL) {
            let config = flexcast_config { algorithm: number, ..flexcast_config::default() };
            assert_eq!(config.convert(&Config::default()).unwrap().algorithm, selection);
        }
        let config = flexcast_config { algorithm: 6, ..flexcast_config::default() };
        assert!(config.convert(&Config::default()).is_err());
    }

    #[test]
    fn every_transport_has_its_number() {
        for (number, transport) in
            [(FLEXCAST_TRANSPORT_UD, Transport::Ud), (FLEXCAST_TRANSPORT_UC_UNICAST, Transport::UcUnicast)]
        {
            let config = flexcast_config { transport: number, ..flexcast_config::default() };
            assert_eq!(config.convert(&Config::default()).unwrap().transport, transport);
            assert_eq!(transport as u32, number);
        }
    }

    #[test]
    fn every_control_has_its_number() {
        for (number, control) in [
            (FLEXCAST_CONTROL_HOST, Control::Host),
            (FLEXCAST_CONTROL_DEVICE, Control::Device),
            (FLEXCAST_CONTROL_SERVICE, Control::Service),
        ] {
            let config = flexcast_config { control: number, ..flexcast_config::default() };
            assert_eq!(config.convert(&Config::default()).unwrap().control, control);
        }
    }

    #[test]
    fn service_processes_are_those_of_the_fields() {
        let config = flexcast_config {
            control: FLEXCAST_CONTROL_SERVICE,
            service_endpoints: c"10.0.0.1:4870, 10.0.0.1:4999".as_ptr(),
            service_secret: c"secret".as_ptr(),
            service_connect_ns: 7,
            service_operation_ns: 8,
            service_processes: 9,
            service_delivery: FLEXCAST_DELIVERY_FLAT,
            service_buffers: 10,
            service_bound_keys: 11,
            ..flexcast_config::default()
        };
        // SAFETY: a whole structure with C strings.
        let options = unsafe { read(&raw const config, &Config::default()) }.unwrap().service;
        assert_eq!(options.endpoints, ["10.0.0.1:4870", "10.0.0.1:4999"]);
        assert_eq!((options.secret.to_str(), options.processes, options.buffers), (Some("secret"), 9, 10));
        assert_eq!((options.connect, options.operation), (Duration::from_nanos(7), Duration::from_nanos(8)));
        assert_eq!((options.delivery, options.bound_keys), (ServiceDelivery::Flat, 11));
        let none = flexcast_config { service_bound_keys: FLEXCAST_BOUND_KEYS_NONE, ..config };
        // SAFETY: as above.
        assert_eq!(unsafe { none.service() }.unwrap().bound_keys, 0);
        let open = flexcast_config { control: FLEXCAST_CONTROL_SERVICE, ..flexcast_config::default() };
        // SAFETY: as above, without strings.
        assert_eq!(unsafe { open.service() }.unwrap(), ServiceOptions::default());
        let other = flexcast_config { service_delivery: 5, ..open };
        // SAFETY: as above.
        assert!(unsafe { other.service() }.unwrap_err().text.contains("service_delivery is 5"));
        let wrong = [0xFFu8 as c_char, 0];
        let wrong = flexcast_config { service_secret: wrong.as_ptr(), ..open };
        // SAFETY: a C string, which is no UTF-8.
        assert!(unsafe { wrong.service() }.unwrap_err().text.contains("service_secret"));
    }

    #[test]
    fn values_beyond_their_fields_are_named() {
        let told = |config: flexcast_config, words: &str| {
            let fault = config.convert(&Config::default()).unwrap_err();
            assert!(fault.status == FLEXCAST_ERROR_CONFIG && fault.text.contains(words), "{}", fault.text);
        };
        told(
            flexcast_config { transport: 2, ..flexcast_config::default() },
            "transport is 2: must be 0 (UD) or 1 (UC unicast)",
        );
        told(flexcast_config { control: 3, ..flexcast_config::default() }, "control is 3");
        told(flexcast_config { placement: 2, ..flexcast_config::default() }, "placement is 2");
        told(flexcast_config { retry_exponent: 32, ..flexcast_config::default() }, "0 to 31");
        told(flexcast_config { data_class: 256, ..flexcast_config::default() }, "data_class is 256");
    }
}
