//! Parameters of communicators.

use std::time::Duration;

use flexcast_rust::{Config, Control, Selection, ServiceOptions, ThreadPlacement, Transport};

use crate::fault::{Fault, call};
use crate::memory::{give, sized};
use crate::status::flexcast_status::{self, *};

/// All threads of a core of the DPA before the next one.
pub const FLEXCAST_PLACEMENT_COMPACT: u32 = 0;
/// One thread of each core in turn.
pub const FLEXCAST_PLACEMENT_SPREAD: u32 = 1;

/// For `lookahead_chunks`: as many chunks as hide most of the activation of the next root.
pub const FLEXCAST_LOOKAHEAD_AUTOMATIC: u32 = u32::MAX;

/// Multicast datagrams, staged in DPA memory and copied to the user's buffer by the card.
pub const FLEXCAST_TRANSPORT_UD: u32 = 0;
/// Multicast RDMA Writes straight into the user's buffer: hypothetical, no card does this.
pub const FLEXCAST_TRANSPORT_UC_MULTICAST: u32 = 1;
/// RDMA Writes to each rank, straight into the user's buffer.
pub const FLEXCAST_TRANSPORT_UC_UNICAST: u32 = 2;

/// The protocol runs on the host: flexcast_test(), flexcast_wait() and flexcast_progress() move it on.
pub const FLEXCAST_CONTROL_HOST: u32 = 0;
/// The protocol runs on the card, by a DPA thread of its own: from posting to completion the host has nothing to do, unless something is
/// lost. Not with FLEXCAST_TRANSPORT_UC_UNICAST.
pub const FLEXCAST_CONTROL_DEVICE: u32 = 1;
/// Service processes on the card's Arm cores carry out Alltoall, Alltoallv, Allgather, Allgatherv, and Broadcast where they have staging memory. The variables
/// FLEXCAST_SERVICE (host:port), FLEXCAST_SERVICE_SECRET (a file), FLEXCAST_SERVICE_PROCESSES and FLEXCAST_SERVICE_DELIVERY (auto, flat, hierarchical or direct) say where they are
/// and how; FLEXCAST_ERROR_VARIABLE if one cannot be. Where a rank has none, all ranks go by FLEXCAST_CONTROL_HOST. With the datapath "verbs" alone.
pub const FLEXCAST_CONTROL_SERVICE: u32 = 2;

/// For each operation what the library expects to be fastest: multicast, the messages of the barrier, or writes over reliable connections.
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

/// Parameters of a communicator; alike on all ranks. To be initialised by flexcast_config_default().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct flexcast_config {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// Bytes of one chunk: a multiple of 64, at most the path's MTU; with the UC transports at most 2^30.
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
    /// Chunks before the end of its block at which a root activates the next one; FLEXCAST_LEAD_AUTOMATIC: as many as hide most of it.
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
    /// Added to what an operation should take, before what is missing is fetched from the neighbour, in nanoseconds; 0, the default, for this and the
    /// next two: what suits the card, which is longer for emulated ones.
    pub cutoff_slack_ns: u64,
    /// How long a rank waits for others to begin an operation, in nanoseconds; see `cutoff_slack_ns`.
    pub barrier_timeout_ns: u64,
    /// Time after the cutoff in which recovery must end, in nanoseconds, beyond three times the cutoff itself; see `cutoff_slack_ns`.
    pub recovery_timeout_ns: u64,
    /// Longest life of a packet in the fabric, in nanoseconds.
    pub packet_lifetime_ns: u64,
    /// Last-level cache of the DPA, which rings, bitmaps and contexts should fit in, in bytes.
    pub cache_bytes: u64,
    /// What carries the data: FLEXCAST_TRANSPORT_UD, FLEXCAST_TRANSPORT_UC_MULTICAST or FLEXCAST_TRANSPORT_UC_UNICAST.
    pub transport: u32,
    /// Where barrier, activation, recovery and final handshake run: FLEXCAST_CONTROL_HOST or FLEXCAST_CONTROL_DEVICE; or FLEXCAST_CONTROL_SERVICE.
    pub control: u32,
    /// What carries the data of an Allgather, one of FLEXCAST_ALGORITHM_*. With FLEXCAST_CONTROL_DEVICE it is multicast.
    pub algorithm: u32,
    /// Whether (1 or 0) the host's reliable connections restart where a lost negative acknowledgement would make them wait for their timeout.
    pub restarts: u32,
    /// Whether (1 or 0) reductions combine contributions in the order of ranks whatever their length, so that floating-point results are those of one
    /// core that goes through all contributions in turn.
    pub reproducible: u32,
}

/// Nanoseconds of a time; one beyond 584 years is as good as for ever.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl flexcast_config {
    fn default() -> Self {
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
            transport: match config.transport {
                Transport::Ud => FLEXCAST_TRANSPORT_UD,
                Transport::UcMulticast => FLEXCAST_TRANSPORT_UC_MULTICAST,
                Transport::UcUnicast => FLEXCAST_TRANSPORT_UC_UNICAST,
            },
            control: match config.control {
                Control::Host => FLEXCAST_CONTROL_HOST,
                Control::Device => FLEXCAST_CONTROL_DEVICE,
                Control::Service => FLEXCAST_CONTROL_SERVICE,
            },
            algorithm: config.algorithm as u32,
        }
    }

    /// What it says, and the rest as `default` has it.
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
                FLEXCAST_TRANSPORT_UC_MULTICAST => Transport::UcMulticast,
                FLEXCAST_TRANSPORT_UC_UNICAST => Transport::UcUnicast,
                other => {
                    let text = format!("transport is {other}: must be 0 (UD), 1 (UC multicast) or 2 (UC unicast)");
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
            .service(match self.control {
                FLEXCAST_CONTROL_SERVICE => ServiceOptions::from_env()?,
                _ => default.service.clone(),
            })
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
/// Null, or a structure that is as long as it says.
pub(crate) unsafe fn read(config: *const flexcast_config, default: &Config) -> Result<Config, Fault> {
    // SAFETY: by this function's contract; all fields are numbers.
    unsafe { sized(config, flexcast_config::default(), "config") }?.convert(default)
}

/// The defaults. `size` is sizeof(flexcast_config).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_config_default(config: *mut flexcast_config, size: usize) -> flexcast_status {
    call(|| {
        let value = flexcast_config { size, ..flexcast_config::default() };
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
        for (number, transport) in [
            (FLEXCAST_TRANSPORT_UD, Transport::Ud),
            (FLEXCAST_TRANSPORT_UC_MULTICAST, Transport::UcMulticast),
            (FLEXCAST_TRANSPORT_UC_UNICAST, Transport::UcUnicast),
        ] {
            let config = flexcast_config { transport: number, ..flexcast_config::default() };
            assert_eq!(config.convert(&Config::default()).unwrap().transport, transport);
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
    fn values_beyond_their_fields_are_named() {
        let told = |config: flexcast_config, words: &str| {
            let fault = config.convert(&Config::default()).unwrap_err();
            assert!(fault.status == FLEXCAST_ERROR_CONFIG && fault.text.contains(words), "{}", fault.text);
        };
        told(flexcast_config { transport: 3, ..flexcast_config::default() }, "transport is 3");
        told(flexcast_config { control: 3, ..flexcast_config::default() }, "control is 3");
        told(flexcast_config { placement: 2, ..flexcast_config::default() }, "placement is 2");
        told(flexcast_config { retry_exponent: 32, ..flexcast_config::default() }, "0 to 31");
        told(flexcast_config { data_class: 256, ..flexcast_config::default() }, "data_class is 256");
    }
}
