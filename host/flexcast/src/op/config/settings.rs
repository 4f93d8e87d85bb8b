//! Parameters by name and text, as environment variables, configuration files and command lines have them.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use super::{Config, Control, ThreadOptions, ps};
use crate::error::{Error, Result};
use crate::op::aggregation::Aggregation;
use crate::op::selection::Selection;
use crate::op::service_options::NAMES;
use crate::op::stream::Transport;
use crate::op::units::ThreadPlacement;

/// A parameter of a communicator that can be set by its name and a text: one of [`Setting::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    name: &'static str,
    variable: Option<&'static str>,
    takes: Takes,
    datapaths: &'static [&'static str],
}

/// What a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Word(&'static [&'static str]),
    Whole(u64, u64),
    Real,
    Text,
}

/// A value of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SettingValue<'t> {
    /// One of [`Setting::words`], by its position there.
    Word(usize),
    /// A whole number within the range of the setting.
    Whole(u64),
    /// 0, or a number from [`f32::MIN_POSITIVE`] to [`f32::MAX`].
    Real(f32),
    /// A text, not empty.
    Text(&'t str),
}

const PLACEMENTS: [(&str, ThreadPlacement); 2] =
    [("compact", ThreadPlacement::Compact), ("spread", ThreadPlacement::Spread)];
const TRANSPORTS: [Transport; 2] = [Transport::Ud, Transport::UcUnicast];
const CONTROLS: [Control; 3] = [Control::Host, Control::Device, Control::Service];
/// By the names that they have in C.
const ALGORITHMS: [(&str, Selection); 6] = [
    ("automatic", Selection::Automatic),
    ("multicast", Selection::Multicast),
    ("ring", Selection::Ring),
    ("linear", Selection::Linear),
    ("recursive-doubling", Selection::RecursiveDoubling),
    ("bruck", Selection::Bruck),
];
const SWITCH: Takes = Takes::Word(&["0", "1"]);
/// Numbers whose limits follow from other parameters.
const ANY: Takes = Takes::Whole(0, u32::MAX as u64);
const LARGE: Takes = Takes::Whole(0, u64::MAX);
const BYTE: Takes = Takes::Whole(0, 255);

const DPA: &[&str] = &["dpa"];
const RDMA: &[&str] = &["dpa", "verbs"];

/// A parameter as a number.
type Number = fn(&Config) -> u64;

/// Parameters that not all datapaths use. Those of service processes have an effect with endpoints alone.
const OF_SOME_DATAPATHS: [(&str, Number); 15] = [
    ("receive_threads", |config| config.receive_threads.into()),
    ("send_threads", |config| config.send_threads.into()),
    ("placement", |config| config.placement as u64),
    ("slots", |config| config.slots.into()),
    ("receive_batch", |config| config.receive_batch.into()),
    ("send_batch", |config| config.send_batch.into()),
    ("send_depth", |config| config.send_depth.into()),
    ("budget", |config| config.budget.into()),
    ("retry_exponent", |config| config.retry_exponent.into()),
    ("data_class", |config| config.data_class.into()),
    ("control_class", |config| config.control_class.into()),
    ("packet_lifetime_ns", |config| ps(config.packet_lifetime) / 1000),
    ("cache_bytes", |config| config.cache_bytes),
    ("restarts", |config| config.restarts.into()),
    ("service.endpoints", |config| config.service.endpoints.len() as u64),
];

const fn setting(name: &'static str, variable: &'static str, takes: Takes) -> Setting {
    Setting { name, variable: Some(variable), takes, datapaths: &[] }
}

/// A setting of service processes: [`ServiceOptions::from_env`](crate::ServiceOptions::from_env) reads the variables.
const fn service(name: &'static str, takes: Takes) -> Setting {
    Setting { name, variable: None, takes, datapaths: RDMA }
}

/// Variables of the settings of service processes.
const SERVICE_VARIABLES: [(&str, &str); 5] = [
    ("service.endpoints", "FLEXCAST_SERVICE"),
    ("service.secret", "FLEXCAST_SERVICE_SECRET"),
    ("service.processes", "FLEXCAST_SERVICE_PROCESSES"),
    ("service.delivery", "FLEXCAST_SERVICE_DELIVERY"),
    ("service.bound_keys", "FLEXCAST_SERVICE_KEYS"),
];

/// Options of endpoints, which a communicator does not take: name, variable, and the datapath they belong to, if it is
/// one.
const ENDPOINT_OPTIONS: [(&str, &str, &str); 14] = [
    ("datapath", "FLEXCAST_DATAPATH", ""),
    ("libraries", "FLEXCAST_LIBRARIES", ""),
    ("memory_watch", "FLEXCAST_MEMORY_WATCH", ""),
    ("device", "FLEXCAST_DEVICE", ""),
    ("firmware", "FLEXCAST_FIRMWARE", "dpa"),
    ("sparse_firmware", "FLEXCAST_SPARSE_FIRMWARE", ""),
    ("interface", "FLEXCAST_INTERFACE", "udp"),
    ("group", "FLEXCAST_GROUP", "udp"),
    ("port", "FLEXCAST_PORT", "udp"),
    ("ttl", "FLEXCAST_TTL", "udp"),
    ("socket_buffer", "FLEXCAST_SOCKET_BUFFER", "udp"),
    ("shm", "FLEXCAST_SHM", "udp"),
    ("gso", "FLEXCAST_GSO", "udp"),
    ("tuning", "FLEXCAST_TUNING", "udp"),
];

/// Why a setting is refused that was given by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingError {
    /// There is none of this name.
    Unknown {
        /// The name.
        name: String,
        /// The value.
        value: String,
        /// The name that is most like it.
        nearest: &'static str,
    },
    /// It is an option of the endpoint.
    OfEndpoint {
        /// The name.
        name: String,
        /// The value.
        value: String,
        /// The variable that sets it.
        variable: &'static str,
        /// The datapath that has it; none if not one alone.
        datapath: Option<&'static str>,
    },
    /// The endpoint's datapath has no use for it.
    OfOtherDatapath {
        /// The name.
        name: &'static str,
        /// The value.
        value: String,
        /// The endpoint's datapath.
        datapath: &'static str,
        /// Those that use it.
        datapaths: &'static [&'static str],
    },
    /// It cannot have the value.
    Value {
        /// The name.
        name: &'static str,
        /// The value.
        value: String,
        /// What it may be.
        limit: Cow<'static, str>,
    },
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, value, nearest } => {
                write!(f, "there is no setting {name:?} (value {value:?}): the nearest name is {nearest:?}")
            }
            Self::OfEndpoint { name, value, variable, datapath } => {
                write!(f, "{name} (value {value:?}) is an option of the endpoint")?;
                if let Some(datapath) = datapath {
                    write!(f, " with the datapath {datapath}")?;
                }
                write!(f, ": give it when the endpoint is opened, or by the variable {variable}")
            }
            Self::OfOtherDatapath { name, value, datapath, datapaths } => {
                write!(f, "{name} is {value:?}: must be {}", unused(datapath, datapaths))
            }
            Self::Value { name, value, limit } => write!(f, "{name} is {value:?}: must be {limit}"),
        }
    }
}

impl std::error::Error for SettingError {}

/// What a setting must be that only these datapaths use.
fn unused(datapath: &str, datapaths: &[&str]) -> String {
    let names = datapaths.join(" or ");
    format!("left out with the datapath {datapath}; only endpoints with {names} use it")
}

/// Letters to insert, delete or replace to make one name the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, left) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for (at, right) in other.bytes().enumerate() {
            let next = (diagonal + usize::from(left != right)).min(row[at] + 1).min(row[at + 1] + 1);
            diagonal = std::mem::replace(&mut row[at + 1], next);
        }
    }
    row[other.len()]
}

impl Setting {
    /// All settings, in the order in which they take effect.
    pub const ALL: &'static [Self] = &[
        setting("chunk_bytes", "FLEXCAST_CHUNK_BYTES", ANY),
        setting("subgroups", "FLEXCAST_SUBGROUPS", ANY),
        setting("receive_threads", "FLEXCAST_RECEIVE_THREADS", ANY).of(DPA),
        setting("send_threads", "FLEXCAST_SEND_THREADS", ANY).of(DPA),
        setting("placement", "FLEXCAST_PLACEMENT", Takes::Word(&[PLACEMENTS[0].0, PLACEMENTS[1].0])).of(RDMA),
        setting("slots", "FLEXCAST_SLOTS", ANY).of(RDMA),
        setting("receive_batch", "FLEXCAST_RECEIVE_BATCH", ANY).of(DPA),
        setting("send_batch", "FLEXCAST_SEND_BATCH", ANY).of(RDMA),
        setting("send_depth", "FLEXCAST_SEND_DEPTH", ANY).of(RDMA),
        setting("budget", "FLEXCAST_BUDGET", ANY).of(RDMA),
        setting("psn_bits", "FLEXCAST_PSN_BITS", ANY),
        setting("chains", "FLEXCAST_CHAINS", ANY),
        setting("lookahead_chunks", "FLEXCAST_LOOKAHEAD_CHUNKS", ANY),
        setting("retry_exponent", "FLEXCAST_RETRY_EXPONENT", Takes::Whole(0, 31)).of(RDMA),
        setting("data_class", "FLEXCAST_DATA_CLASS", BYTE).of(RDMA),
        setting("control_class", "FLEXCAST_CONTROL_CLASS", BYTE).of(RDMA),
        setting("max_receive_bytes", "FLEXCAST_MAX_RECEIVE_BYTES", LARGE),
        setting("link_gbit_per_s", "FLEXCAST_LINK_GBIT_PER_S", LARGE),
        setting("barrier_ns", "FLEXCAST_BARRIER_NS", LARGE),
        setting("activation_ns", "FLEXCAST_ACTIVATION_NS", LARGE),
        setting("cutoff_slack_ns", "FLEXCAST_CUTOFF_SLACK_NS", LARGE),
        setting("barrier_timeout_ns", "FLEXCAST_BARRIER_TIMEOUT_NS", LARGE),
        setting("recovery_timeout_ns", "FLEXCAST_RECOVERY_TIMEOUT_NS", LARGE),
        setting("packet_lifetime_ns", "FLEXCAST_PACKET_LIFETIME_NS", LARGE).of(RDMA),
        setting("cache_bytes", "FLEXCAST_CACHE_BYTES", LARGE).of(RDMA),
        setting("transport", "FLEXCAST_TRANSPORT", Takes::Word(&[TRANSPORTS[0].name(), TRANSPORTS[1].name()])),
        setting(
            "control",
            "FLEXCAST_CONTROL",
            Takes::Word(&[CONTROLS[0].name(), CONTROLS[1].name(), CONTROLS[2].name()]),
        ),
        setting(
            "algorithm",
            "FLEXCAST_ALGORITHM",
            Takes::Word(&[
                ALGORITHMS[0].0,
                ALGORITHMS[1].0,
                ALGORITHMS[2].0,
                ALGORITHMS[3].0,
                ALGORITHMS[4].0,
                ALGORITHMS[5].0,
            ]),
        ),
        setting("restarts", "FLEXCAST_RESTARTS", SWITCH).of(RDMA),
        setting("reproducible", "FLEXCAST_REPRODUCIBLE", SWITCH),
        service("service.endpoints", Takes::Text),
        service("service.secret", Takes::Text),
        service("service.connect_ns", LARGE),
        service("service.operation_ns", LARGE),
        service("service.processes", Takes::Whole(1, 64)),
        service("service.delivery", Takes::Word(&["auto", "flat", "hierarchical", "direct"])),
        service("service.buffers", Takes::Whole(1, 1000)),
        service("service.bound_keys", Takes::Whole(0, 4096)),
        setting("progress_thread", "FLEXCAST_PROGRESS_THREAD", SWITCH),
        setting("progress_cpu", "FLEXCAST_PROGRESS_CPU", ANY),
        setting("sparse.aggregators", "FLEXCAST_SPARSE_AGGREGATORS", Takes::Text),
        setting(
            "sparse.aggregation",
            "FLEXCAST_SPARSE_AGGREGATION",
            Takes::Word(&[Aggregation::ALL[0].name(), Aggregation::ALL[1].name()]),
        ),
        setting("sparse.fixed_point", "FLEXCAST_SPARSE_FIXED_POINT", Takes::Real),
    ];

    /// The setting of this name, or of this variable; none if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        let of_service = SERVICE_VARIABLES.iter().find(|(_, variable)| *variable == name).map(|(name, _)| *name);
        Self::ALL
            .iter()
            .find(|setting| setting.name == name || setting.variable == Some(name) || of_service == Some(setting.name))
    }

    /// The setting of this name or variable, with a value that it can have.
    ///
    /// # Errors
    /// There is none of this name, it is an option of endpoints, or it cannot have the value.
    pub fn find<'t>(
        name: &str,
        value: &'t str,
    ) -> std::result::Result<(&'static Self, SettingValue<'t>), SettingError> {
        let setting = Self::named(name).ok_or_else(|| Self::unknown(name, value))?;
        let refused = |limit| SettingError::Value { name: setting.name, value: value.to_owned(), limit };
        Ok((setting, setting.parse(value).map_err(refused)?))
    }

    fn unknown(name: &str, value: &str) -> SettingError {
        let plain = name.strip_prefix("FLEXCAST_").unwrap_or(name).to_ascii_lowercase();
        let (name, value) = (name.to_owned(), value.to_owned());
        if let Some((_, variable, datapath)) = ENDPOINT_OPTIONS.iter().find(|(option, ..)| *option == plain) {
            let datapath = Some(*datapath).filter(|datapath| !datapath.is_empty());
            return SettingError::OfEndpoint { name, value, variable, datapath };
        }
        // A name of any length has at most so much to compare.
        let plain: String = plain.chars().take(64).collect();
        let nearest = Self::ALL.iter().min_by_key(|setting| distance(&plain, setting.name));
        SettingError::Unknown { name, value, nearest: nearest.map_or("", |setting| setting.name) }
    }

    /// The datapaths that use it, by [`DatapathKind::name`](crate::DatapathKind::name); empty: all.
    #[must_use]
    pub const fn datapaths(&self) -> &'static [&'static str] {
        self.datapaths
    }

    /// Refuses a value that an endpoint of this datapath would not use.
    ///
    /// # Errors
    /// [`SettingError::OfOtherDatapath`].
    pub fn check_datapath(&self, value: &str, datapath: &'static str) -> std::result::Result<(), SettingError> {
        if self.datapaths.is_empty() || self.datapaths.contains(&datapath) {
            return Ok(());
        }
        let (name, value, datapaths) = (self.name, value.to_owned(), self.datapaths);
        Err(SettingError::OfOtherDatapath { name, value, datapath, datapaths })
    }

    /// The same setting, of some datapaths alone.
    const fn of(self, datapaths: &'static [&'static str]) -> Self {
        Self { datapaths, ..self }
    }

    /// Its name: that of the field of [`Config`], or with `service.` or `sparse.` before it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The environment variable that sets it; none for settings of service processes, which have variables of their own
    /// ([`ServiceOptions::from_env`](crate::ServiceOptions::from_env)).
    #[must_use]
    pub const fn variable(&self) -> Option<&'static str> {
        self.variable
    }

    /// The words that it takes; empty if it takes no words.
    #[must_use]
    pub const fn words(&self) -> &'static [&'static str] {
        match self.takes {
            Takes::Word(words) => words,
            _ => &[],
        }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// What the value may be.
    pub fn parse<'t>(&self, text: &'t str) -> Result<SettingValue<'t>, Cow<'static, str>> {
        match self.takes {
            Takes::Word(words) => {
                let at = words.iter().position(|word| *word == text);
                at.map(SettingValue::Word).ok_or_else(|| format!("one of {}", words.join(", ")).into())
            }
            Takes::Whole(least, most) => {
                let number = text.parse().ok().filter(|number| (least..=most).contains(number));
                let limit = || format!("a whole number from {least} to {most}").into();
                number.map(SettingValue::Whole).ok_or_else(limit)
            }
            Takes::Real => {
                let is_one = |number: &f32| *number == 0.0 || (number.is_normal() && *number > 0.0);
                let number = text.parse().ok().filter(is_one);
                let limit =
                    || format!("0, or a number from {:.1e} to {:.1e}, such as 1.5", f32::MIN_POSITIVE, f32::MAX);
                number.map(SettingValue::Real).ok_or_else(|| limit().into())
            }
            Takes::Text if text.is_empty() => Err("a text of a byte at least".into()),
            Takes::Text => Ok(SettingValue::Text(text)),
        }
    }

    /// Reads the variables that are set and not empty, in the order of [`Setting::ALL`], and calls `take` with each
    /// value.
    ///
    /// # Errors
    /// [`Error::Variable`]: one has a value that it cannot have.
    pub fn read_variables(
        read: impl Fn(&str) -> Option<OsString>,
        mut take: impl FnMut(&'static Self, SettingValue<'_>),
    ) -> Result<()> {
        for setting in Self::ALL {
            let Some(name) = setting.variable else { continue };
            let Some(value) = read(name).filter(|value| !value.is_empty()) else { continue };
            let value = value.to_string_lossy();
            match setting.parse(&value) {
                Ok(value) => take(setting, value),
                Err(limit) => return Err(Error::Variable { name, value: value.into_owned(), limit }),
            }
        }
        Ok(())
    }
}

impl Config {
    /// Takes what the variables of all settings say; of service processes nothing.
    pub(super) fn take_variables(&mut self, read: impl Fn(&str) -> Option<OsString>) -> Result<()> {
        Setting::read_variables(read, |setting, value| self.take(setting, value))
    }

    /// Takes a setting by its name, such as `chunk_bytes` or `service.endpoints`, or by its variable.
    ///
    /// # Errors
    /// There is no such setting, or it cannot have the value.
    pub fn set(&mut self, name: &str, value: &str) -> std::result::Result<(), SettingError> {
        let (setting, value) = Setting::find(name, value)?;
        self.take(setting, value);
        Ok(())
    }

    /// Refuses settings that `datapath` does not use, the endpoint's by
    /// [`DatapathKind::name`](crate::DatapathKind::name), if they are neither those of `defaults`, which are the
    /// endpoint's, nor those of [`Config::default`].
    ///
    /// # Errors
    /// [`Error::Config`] names the setting and the datapaths that use it.
    pub(crate) fn check_datapath(&self, defaults: &Self, datapath: &str) -> Result<()> {
        // Threads go with subgroups.
        let unchanged = [defaults.clone(), Self::default(), Self::default().with_subgroups(self.subgroups)];
        for (what, number) in OF_SOME_DATAPATHS {
            let value = number(self);
            let datapaths = Setting::named(what).map_or(&[][..], Setting::datapaths);
            if !datapaths.contains(&datapath) && unchanged.iter().all(|config| number(config) != value) {
                return Err(Error::Config { what, value, limit: unused(datapath, datapaths) });
            }
        }
        Ok(())
    }

    fn take(&mut self, setting: &Setting, value: SettingValue<'_>) {
        let list = |text: &str| text.split(',').map(|one| one.trim().to_owned()).collect();
        match (value, setting.name) {
            (SettingValue::Word(at), "service.delivery") => self.service.delivery = NAMES[at].0,
            (SettingValue::Word(at), name) => self.take_word(name, at),
            (SettingValue::Whole(number), name) => self.take_number(name, number),
            (SettingValue::Real(number), _) => self.sparse_fixed_point = Some(number).filter(|number| *number > 0.0),
            (SettingValue::Text(text), "service.endpoints") => self.service.endpoints = list(text),
            (SettingValue::Text(text), "service.secret") => self.service.secret = text.into(),
            (SettingValue::Text(text), _) => self.aggregators = Self::aggregators_of(text),
        }
    }

    fn take_word(&mut self, name: &str, at: usize) {
        match name {
            "placement" => self.placement = PLACEMENTS[at].1,
            "transport" => self.transport = TRANSPORTS[at],
            "control" => self.control = CONTROLS[at],
            "algorithm" => self.algorithm = ALGORITHMS[at].1,
            "sparse.aggregation" => self.sparse_aggregation = Aggregation::ALL[at],
            "restarts" => self.restarts = at != 0,
            "reproducible" => self.reproducible = at != 0,
            "progress_thread" => self.progress_thread = (at != 0).then(ThreadOptions::default),
            _ => unreachable!("a setting with words and a variable: {name}"),
        }
    }

    fn take_number(&mut self, name: &str, number: u64) {
        // The ranges of those that are shorter end at their types' ends, or below.
        let short = u32::try_from(number).unwrap_or(u32::MAX);
        let byte = u8::try_from(number).unwrap_or(u8::MAX);
        let time = Duration::from_nanos(number);
        // As in C, no time is what suits the endpoint.
        let or = |default: Duration| if number == 0 { default } else { time };
        match name {
            "chunk_bytes" => self.chunk_bytes = short,
            "subgroups" => *self = std::mem::take(self).with_subgroups(short),
            "receive_threads" => self.receive_threads = short,
            "send_threads" => self.send_threads = short,
            "slots" => self.slots = short,
            "receive_batch" => self.receive_batch = short,
            "send_batch" => self.send_batch = short,
            "send_depth" => self.send_depth = short,
            "budget" => self.budget = short,
            "psn_bits" => self.psn_bits = Some(short).filter(|bits| *bits > 0),
            "chains" => self.chains = short,
            "lookahead_chunks" => self.lookahead_chunks = Some(short).filter(|chunks| *chunks < u32::MAX),
            "retry_exponent" => self.retry_exponent = byte,
            "data_class" => self.data_class = byte,
            "control_class" => self.control_class = byte,
            "max_receive_bytes" => self.max_receive_bytes = number,
            "link_gbit_per_s" => self.link_gbit_per_s = number,
            "barrier_ns" => self.overheads.barrier = time,
            "activation_ns" => self.overheads.activation = time,
            "cutoff_slack_ns" => self.overheads.cutoff_slack = or(self.overheads.cutoff_slack),
            "barrier_timeout_ns" => self.barrier_timeout = or(self.barrier_timeout),
            "recovery_timeout_ns" => self.recovery_timeout = or(self.recovery_timeout),
            "packet_lifetime_ns" => self.packet_lifetime = time,
            "cache_bytes" => self.cache_bytes = number,
            "service.connect_ns" => self.service.connect = or(self.service.connect),
            "service.operation_ns" => self.service.operation = or(self.service.operation),
            "service.processes" => self.service.processes = short,
            "service.buffers" => self.service.buffers = short,
            "service.bound_keys" => self.service.bound_keys = short,
            "progress_cpu" => {
                if let Some(thread) = &mut self.progress_thread {
                    thread.cpu = Some(short).filter(|cpu| *cpu < u32::MAX);
                }
            }
            _ => unreachable!("a setting with a number and a variable: {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::udp::UdpOptions;

    fn taken(variable: &str, text: &str) -> Result<Config> {
        let mut config = Config::default();
        config.take_variables(|name| (name == variable).then(|| text.into())).map(|()| config)
    }

    #[test]
    fn every_variable_changes_its_parameter_and_nonsense_is_refused_with_what_it_may_be() {
        for setting in Setting::ALL {
            assert_eq!(Setting::named(setting.name), Some(setting));
            let Some(variable) = setting.variable else { continue };
            assert_eq!(variable, format!("FLEXCAST_{}", setting.name.to_ascii_uppercase().replace('.', "_")));
            let text = match setting.takes {
                // The default is one or the other.
                Takes::Word(_) if setting.name == "restarts" => "0",
                Takes::Word(words) => words[words.len() - 1],
                Takes::Whole(..) => "7",
                Takes::Real => "1.5",
                Takes::Text => "a:1, b:2",
            };
            let config = taken(variable, text).unwrap();
            // By itself it says only where a thread stays that there is.
            assert_eq!(config == Config::default(), setting.name == "progress_cpu", "{variable}={text}");
            assert_eq!(taken(variable, "").unwrap(), Config::default(), "{variable}=");
            if setting.takes != Takes::Text {
                let error = taken(variable, "zzz").unwrap_err();
                assert!(matches!(error, Error::Variable { name, .. } if name == variable), "{error}");
                assert!(error.to_string().starts_with(&format!("{variable} is \"zzz\": must be ")), "{error}");
            }
        }
    }

    /// Whoever has set a variable does not know the name of the field.
    #[test]
    fn refused_parameters_are_named_with_their_variables_and_words() {
        for setting in Setting::ALL.iter().filter(|setting| !setting.name.contains('.')) {
            let Some(variable) = setting.variable else { continue };
            let refused = |value| Error::Config { what: setting.name, value, limit: "another".to_owned() }.to_string();
            let is_switch = setting.takes == SWITCH || setting.name == "placement";
            let words: &[&str] = if is_switch { &[] } else { setting.words() };
            for (value, word) in (0..).zip(words) {
                assert_eq!(refused(value), format!("{} is {word}: must be another ({variable})", setting.name));
            }
            assert_eq!(refused(99), format!("{} is 99: must be another ({variable})", setting.name));
        }
        let words = Setting::named("sparse.aggregation").map(Setting::words).unwrap();
        for (value, word) in (0..).zip(words) {
            assert_eq!(crate::error::shown("sparse.aggregation", value), *word);
        }
        // The words are in the order of the values.
        assert_eq!(CONTROLS.map(|control| control as u64), [0, 1, 2]);
        assert_eq!(TRANSPORTS.map(|transport| transport as u64), [0, 1]);
        assert_eq!(ALGORITHMS.map(|(_, algorithm)| algorithm as u64), [0, 1, 2, 3, 4, 5]);
        for (options, said) in [
            (UdpOptions::default().port(0), "port is 0: must be 1 to 65535, alike on all ranks (FLEXCAST_PORT)"),
            (UdpOptions::default().ttl(256), "ttl is 256: must be 1 to 255 (FLEXCAST_TTL)"),
            (UdpOptions::default().subgroups(0), "subgroups is 0: must be 1 to 16 (FLEXCAST_SUBGROUPS)"),
            (UdpOptions::default().socket_buffer_bytes(9), "must be 2048 to 1073741824 (FLEXCAST_SOCKET_BUFFER)"),
        ] {
            let text =
                crate::carrier::endpoint::Endpoint::udp(&options.interface("lo")).map(drop).unwrap_err().to_string();
            assert!(text.ends_with(said), "{text}");
        }
    }

    #[test]
    fn settings_by_name_are_those_of_the_variables() {
        let mut config = Config::default();
        for (name, value) in [("slots", "1024"), ("FLEXCAST_CHUNK_BYTES", "1024"), ("service.delivery", "flat")] {
            config.set(name, value).unwrap();
        }
        assert_eq!((config.slots, config.chunk_bytes), (1024, 1024));
        assert_eq!(config.service.delivery, crate::ServiceDelivery::Flat);
        for (name, value) in [
            ("service.endpoints", "a:1, b:2"),
            ("FLEXCAST_SERVICE_SECRET", "file"),
            ("service.connect_ns", "7"),
            ("service.operation_ns", "0"),
            ("service.processes", "9"),
            ("service.buffers", "10"),
            ("FLEXCAST_SERVICE_KEYS", "0"),
        ] {
            config.set(name, value).unwrap();
        }
        let service = &config.service;
        assert_eq!((&*service.endpoints, service.secret.to_str()), (&["a:1".into(), "b:2".into()][..], Some("file")));
        assert_eq!((service.connect, service.operation), (Duration::from_nanos(7), Duration::from_secs(60)));
        assert_eq!((service.processes, service.buffers, service.bound_keys), (9, 10, 0));
        // Each has a place.
        for setting in Setting::ALL {
            let value = match setting.takes {
                Takes::Word(words) => words[0],
                Takes::Whole(..) | Takes::Real => "1",
                Takes::Text => "x",
            };
            config.set(setting.name, value).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_the_next_step() {
        let refused = |name, value| Config::default().set(name, value).unwrap_err().to_string();
        assert_eq!(refused("slot", "8"), "there is no setting \"slot\" (value \"8\"): the nearest name is \"slots\"");
        assert!(refused("FLEXCAST_CONTROLS", "x").ends_with("the nearest name is \"control\""));
        assert!(refused("", "").contains("the nearest name is "));
        let long = "é".repeat(100_000);
        assert!(Config::default().set(&long, "x").is_err());
        assert_eq!(
            refused("ttl", "3"),
            "ttl (value \"3\") is an option of the endpoint with the datapath udp: give it when the endpoint is \
             opened, or by the variable FLEXCAST_TTL"
        );
        assert!(refused("FLEXCAST_DEVICE", "mlx5_0").contains("is an option of the endpoint: give it"));
        assert_eq!(refused("control", "card"), "control is \"card\": must be one of host, device, service");
        let slots = Setting::named("slots").unwrap();
        assert_eq!(slots.check_datapath("8", "verbs"), Ok(()));
        assert_eq!(
            slots.check_datapath("8", "udp").unwrap_err().to_string(),
            "slots is \"8\": must be left out with the datapath udp; only endpoints with dpa or verbs use it"
        );
        assert_eq!(Setting::named("chunk_bytes").unwrap().check_datapath("8", "udp"), Ok(()));
        // The same is refused in a configuration.
        let restricted = |setting: &&Setting| {
            !setting.datapaths.is_empty()
                && (!setting.name.starts_with("service.") || setting.name == "service.endpoints")
        };
        let names: Vec<_> = Setting::ALL.iter().filter(restricted).map(|setting| setting.name).collect();
        let missing: Vec<_> = names.iter().filter(|name| OF_SOME_DATAPATHS.iter().all(|(of, _)| of != *name)).collect();
        assert_eq!((missing, names.len()), (vec![], OF_SOME_DATAPATHS.len()));
        for name in names {
            let mut config = Config::default();
            let word = Setting::named(name).unwrap().words().last();
            config.set(name, if name == "restarts" { "0" } else { word.unwrap_or(&"7") }).unwrap();
            let refused = config.check_datapath(&Config::default(), "udp").unwrap_err().to_string();
            assert!(refused.starts_with(name) && refused.contains("with the datapath udp"), "{refused}");
            config.check_datapath(&config, "udp").unwrap();
            config.check_datapath(&Config::default(), "dpa").unwrap();
        }
    }

    #[test]
    fn values_are_those_of_the_variables() {
        assert_eq!(taken("FLEXCAST_CHUNK_BYTES", "1024").unwrap().chunk_bytes, 1024);
        assert_eq!(taken("FLEXCAST_BARRIER_TIMEOUT_NS", "5").unwrap().barrier_timeout, Duration::from_nanos(5));
        assert_eq!(taken("FLEXCAST_BARRIER_TIMEOUT_NS", "0").unwrap(), Config::default(), "what suits the endpoint");
        let fewer = taken("FLEXCAST_SUBGROUPS", "2").unwrap();
        assert_eq!((fewer.subgroups, fewer.receive_threads, fewer.send_threads), (2, 2, 1), "threads go with them");
        for name in ["uc", "uc-multicast"] {
            let error = taken("FLEXCAST_TRANSPORT", name).unwrap_err().to_string();
            assert_eq!(error, format!("FLEXCAST_TRANSPORT is {name:?}: must be one of ud, uc-unicast"));
        }
        for (variable, text) in
            [("FLEXCAST_RETRY_EXPONENT", "32"), ("FLEXCAST_DATA_CLASS", "256"), ("FLEXCAST_CHAINS", "4294967296")]
        {
            assert!(taken(variable, text).unwrap_err().to_string().contains("must be a whole number from 0 to "));
        }
        for (text, bound) in [("1", Some(1.0)), ("1e-6", Some(1e-6)), ("3e38", Some(3e38)), ("0", None)] {
            assert_eq!(taken("FLEXCAST_SPARSE_FIXED_POINT", text).unwrap().sparse_fixed_point, bound);
        }
        for text in ["-1", "inf", "NaN", "1e-40", "1e39", "1,5", "one"] {
            let error = taken("FLEXCAST_SPARSE_FIXED_POINT", text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{text:?}: must be 0, or a number from 1.2e-38 to 3.4e38, such as 1.5")),
                "{error}"
            );
        }
        let both = |name: &str| match name {
            "FLEXCAST_PROGRESS_THREAD" => Some("1".into()),
            "FLEXCAST_PROGRESS_CPU" => Some("3".into()),
            _ => None,
        };
        let mut config = Config::default();
        config.take_variables(both).unwrap();
        assert_eq!(config.progress_thread, Some(ThreadOptions::on_cpu(3)));
    }
}
