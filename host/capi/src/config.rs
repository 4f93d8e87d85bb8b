//! Parameters of communicators: those that most programs set, and all others by name.

use std::ffi::c_char;
use std::time::Duration;

use flexcast_rust::{Config, Control, Endpoint, Selection, ServiceOptions, Setting, ThreadOptions, Transport};

use crate::fault::{Fault, call};
use crate::memory::{give, sized};
use crate::settings;
use crate::status::flexcast_status::{self, *};

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
/// they have staging memory. The settings `service.endpoints`, `service.secret` and so on say where they are and how
/// they are used. Where a rank has none, all ranks go by FLEXCAST_CONTROL_HOST: flexcast_comm_control() says so. Over
/// RDMA cards alone; with the datapath "dpa" Broadcast, Allgather and Allgatherv are the DPA's.
pub const FLEXCAST_CONTROL_SERVICE: u32 = 2;

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

/// Bytes for settings by name in flexcast_config.
pub const FLEXCAST_SETTINGS_BYTES: usize = 4096;

/// Parameters of a communicator; alike on all ranks. To be initialised by flexcast_config_default(), or zeroed and
/// given its size. Parameters that are no fields here are set by flexcast_config_set(). It may be copied, and needs no
/// freeing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flexcast_config {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// What carries the data of an operation, one of FLEXCAST_ALGORITHM_*. With FLEXCAST_CONTROL_DEVICE it is
    /// multicast.
    pub algorithm: u32,
    /// Where barrier, activation, recovery and final handshake run, one of FLEXCAST_CONTROL_*.
    pub control: u32,
    /// What carries the data: FLEXCAST_TRANSPORT_UD or FLEXCAST_TRANSPORT_UC_UNICAST.
    pub transport: u32,
    /// Whether (1 or 0) reductions combine contributions in the order of ranks whatever their length, so that
    /// floating-point results are those of one core that goes through all contributions in turn.
    pub reproducible: u32,
    /// Whether (1 or 0) a thread of the library moves operations on; it sleeps while none is under way. 0: the program
    /// does, by tests, waits and flexcast_progress().
    pub progress_thread: u32,
    /// Processor that the thread stays on, by its number in the system; FLEXCAST_CPU_ANY: the system chooses.
    pub progress_cpu: u32,
    /// Traffic class of data packets, and of control messages and fetches; bits 7 to 5 are the priority. Of RDMA cards.
    pub data_class: u32,
    /// See `data_class`.
    pub control_class: u32,
    /// Most bytes that a rank can receive in one operation; 0: what the library chooses, 64 MiB.
    pub max_receive_bytes: u64,
    /// How long a rank waits for others to begin an operation, in nanoseconds; 0, for this and the next one: what suits
    /// the card, which is longer for emulated ones.
    pub barrier_timeout_ns: u64,
    /// How long an operation that all ranks have begun may stand still, in nanoseconds, beyond three times what it
    /// should take. It counts from the last data that came or went.
    pub recovery_timeout_ns: u64,
    /// What flexcast_config_set() has kept. Not to be written by programs.
    pub settings: [c_char; FLEXCAST_SETTINGS_BYTES],
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
    /// What a configuration of the library says in its fields; 0 where it says the same as `default`.
    fn of(config: &Config, default: &Config) -> Self {
        let unless = |value: u64, default: u64| if value == default { 0 } else { value };
        Self {
            size: size_of::<Self>(),
            algorithm: config.algorithm as u32,
            control: number_of(config.control),
            transport: config.transport as u32,
            reproducible: config.reproducible.into(),
            progress_thread: config.progress_thread.is_some().into(),
            progress_cpu: config.progress_thread.and_then(|thread| thread.cpu).unwrap_or(FLEXCAST_CPU_ANY),
            data_class: config.data_class.into(),
            control_class: config.control_class.into(),
            max_receive_bytes: unless(config.max_receive_bytes, default.max_receive_bytes),
            barrier_timeout_ns: unless(ns(config.barrier_timeout), ns(default.barrier_timeout)),
            recovery_timeout_ns: unless(ns(config.recovery_timeout), ns(default.recovery_timeout)),
            settings: [0; FLEXCAST_SETTINGS_BYTES],
        }
    }

    pub(crate) fn default() -> Self {
        Self::of(&Config::default(), &Config::default())
    }

    /// The defaults, with what the environment asks for.
    fn from_env() -> Result<Self, Fault> {
        Ok(Self::of(&Config::default().with_environment()?, &Config::default()))
    }

    /// What its fields say over what `config` says.
    fn over(&self, config: Config) -> Result<Config, Fault> {
        let refused = |text: String| Fault::new(FLEXCAST_ERROR_CONFIG, text);
        let byte = |what: &str, value: u32| {
            u8::try_from(value).map_err(|_| refused(format!("{what} is {value}: must be 0 to 255")))
        };
        let switch = |what: &str, value: u32| match value {
            0 | 1 => Ok(value == 1),
            _ => Err(refused(format!("{what} is {value}: must be 0 or 1"))),
        };
        let or = |ns: u64, default: Duration| if ns == 0 { default } else { Duration::from_nanos(ns) };
        let (barrier, recovery) = (config.barrier_timeout, config.recovery_timeout);
        let most = if self.max_receive_bytes == 0 { config.max_receive_bytes } else { self.max_receive_bytes };
        Ok(config
            .transport(match self.transport {
                FLEXCAST_TRANSPORT_UD => Transport::Ud,
                FLEXCAST_TRANSPORT_UC_UNICAST => Transport::UcUnicast,
                other => return Err(refused(format!("transport is {other}: must be 0 (UD) or 1 (UC unicast)"))),
            })
            .control(match self.control {
                FLEXCAST_CONTROL_HOST => Control::Host,
                FLEXCAST_CONTROL_DEVICE => Control::Device,
                FLEXCAST_CONTROL_SERVICE => Control::Service,
                other => {
                    return Err(refused(format!("control is {other}: must be 0 (host), 1 (device) or 2 (service)")));
                }
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
                    return Err(refused(text));
                }
            })
            .reproducible(switch("reproducible", self.reproducible)?)
            .progress_thread(switch("progress_thread", self.progress_thread)?.then(|| match self.progress_cpu {
                FLEXCAST_CPU_ANY => ThreadOptions::default(),
                cpu => ThreadOptions::on_cpu(cpu),
            }))
            .data_class(byte("data_class", self.data_class)?)
            .control_class(byte("control_class", self.control_class)?)
            .max_receive_bytes(most)
            .barrier_timeout(or(self.barrier_timeout_ns, barrier))
            .recovery_timeout(or(self.recovery_timeout_ns, recovery)))
    }

    /// All that it says, over what `config` says, for an endpoint with this datapath.
    fn complete(&self, config: Config, datapath: &'static str) -> Result<Config, Fault> {
        let mut config = self.over(config)?;
        if config.control == Control::Service {
            config.service = ServiceOptions::from_env()?;
        }
        let named = settings::named(&self.settings)?;
        // In the order in which they take effect.
        for setting in Setting::ALL {
            for (_, value) in named.iter().filter(|(name, _)| *name == setting.name()) {
                let refused = |error: flexcast_rust::SettingError| Fault::new(FLEXCAST_ERROR_CONFIG, error.to_string());
                setting.check_datapath(value, datapath).map_err(refused)?;
                config.set(setting.name(), value).map_err(refused)?;
            }
        }
        Ok(config)
    }
}

/// The configuration of a caller for an endpoint, or the defaults for null and for what it leaves open.
///
/// # Safety
/// Null, or a structure that is as long as it says.
pub(crate) unsafe fn read(config: *const flexcast_config, endpoint: &Endpoint) -> Result<Config, Fault> {
    // SAFETY: by this function's contract; all fields are numbers.
    let given = unsafe { sized(config, flexcast_config::from_env()?, "config") }?;
    given.complete(Config::for_endpoint(endpoint).with_environment()?, endpoint.datapath().name())
}

/// The defaults, with what variables of the environment say: FLEXCAST_ALGORITHM for `algorithm`,
/// FLEXCAST_PROGRESS_THREAD for `progress_thread` and so on, with values as flexcast_config_set() takes them. `size` is
/// sizeof(flexcast_config). FLEXCAST_ERROR_VARIABLE if a variable has a value that it cannot have, be it of a field or
/// of another setting.
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

    fn over(config: flexcast_config) -> Result<Config, Fault> {
        config.over(Config::default())
    }

    #[test]
    fn the_defaults_are_the_library_s() {
        assert_eq!(over(flexcast_config::default()).unwrap(), Config::default());
        let longer = Config::default().barrier_timeout(Duration::from_secs(60));
        assert_eq!(
            flexcast_config::default().over(longer.clone()).unwrap(),
            longer,
            "left open: as the endpoint has it"
        );
        let config = flexcast_config { barrier_timeout_ns: 5, ..flexcast_config::default() };
        assert_eq!(config.over(longer).unwrap().barrier_timeout, Duration::from_nanos(5));
    }

    #[test]
    fn fields_are_those_of_a_configuration() {
        let config = Config::default()
            .algorithm(Selection::Bruck)
            .control(Control::Device)
            .transport(Transport::UcUnicast)
            .reproducible(true)
            .progress_thread(Some(ThreadOptions::on_cpu(3)))
            .data_class(7)
            .control_class(8)
            .max_receive_bytes(1 << 30)
            .barrier_timeout(Duration::from_nanos(9))
            .recovery_timeout(Duration::from_nanos(10));
        assert_eq!(over(flexcast_config::of(&config, &Config::default())).unwrap(), config);
    }

    #[test]
    fn settings_by_name_take_effect_over_fields_in_their_order() {
        let mut config = flexcast_config { control: FLEXCAST_CONTROL_SERVICE, ..flexcast_config::default() };
        for (name, value) in [("send_threads", "3"), ("subgroups", "8"), ("service.endpoints", "a:1, b:2")] {
            settings::keep(&mut config.settings, name, value).unwrap();
        }
        let made = config.complete(Config::default(), "dpa").unwrap();
        assert_eq!((made.subgroups, made.receive_threads, made.send_threads), (8, 8, 3));
        assert_eq!((made.control, &*made.service.endpoints), (Control::Service, &["a:1".into(), "b:2".into()][..]));
        let fault = config.complete(Config::default(), "udp").unwrap_err();
        let reason = "must be left out with the datapath udp; only endpoints with dpa use it";
        assert!(fault.status == FLEXCAST_ERROR_CONFIG && fault.text.contains(reason), "{}", fault.text);
        // What a program has written there.
        config.settings = [b'x' as c_char; FLEXCAST_SETTINGS_BYTES];
        let fault = config.complete(Config::default(), "dpa").unwrap_err();
        assert!(fault.text.contains("flexcast_config_default()"), "{}", fault.text);
    }

    #[test]
    fn every_algorithm_has_its_number() {
        for (number, selection) in (0..).zip(Selection::ALL) {
            let config = flexcast_config { algorithm: number, ..flexcast_config::default() };
            assert_eq!(over(config).unwrap().algorithm, selection);
        }
    }

    #[test]
    fn every_transport_and_control_has_its_number() {
        for (number, transport) in
            [(FLEXCAST_TRANSPORT_UD, Transport::Ud), (FLEXCAST_TRANSPORT_UC_UNICAST, Transport::UcUnicast)]
        {
            let config = flexcast_config { transport: number, ..flexcast_config::default() };
            assert_eq!(over(config).unwrap().transport, transport);
            assert_eq!(transport as u32, number);
        }
        for (number, control) in [
            (FLEXCAST_CONTROL_HOST, Control::Host),
            (FLEXCAST_CONTROL_DEVICE, Control::Device),
            (FLEXCAST_CONTROL_SERVICE, Control::Service),
        ] {
            let config = flexcast_config { control: number, ..flexcast_config::default() };
            assert_eq!(over(config).unwrap().control, control);
        }
    }

    #[test]
    fn values_beyond_their_fields_are_named() {
        let names = |config: flexcast_config, words: &str| {
            let fault = over(config).unwrap_err();
            assert!(fault.status == FLEXCAST_ERROR_CONFIG && fault.text.contains(words), "{}", fault.text);
        };
        let default = flexcast_config::default();
        names(flexcast_config { transport: 2, ..default }, "transport is 2: must be 0 (UD) or 1 (UC unicast)");
        names(flexcast_config { control: 3, ..default }, "control is 3");
        names(flexcast_config { algorithm: 6, ..default }, "algorithm is 6");
        names(flexcast_config { reproducible: 2, ..default }, "reproducible is 2: must be 0 or 1");
        names(flexcast_config { progress_thread: 9, ..default }, "progress_thread is 9");
        names(flexcast_config { data_class: 256, ..default }, "data_class is 256: must be 0 to 255");
    }
}
