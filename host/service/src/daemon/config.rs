//! The configuration file of the daemon: TOML, every key known, every number within its bounds.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flexcast_daemon::log::LEVELS;
use flexcast_proto::service::wire::Secret;
use flexcast_proto::service::{Limits, MAX_PROCESSES_PER_HOST, Multicast, Staging};
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use crate::agent::AgentLimits;
use crate::net::processes::Pace;
use crate::net::server::ServerSettings;
use crate::secret::SecretError;

/// A configuration that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no TOML, or has a key that there is not, or a value of another kind.
    #[error("{}, line {line}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where in it, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A value that cannot be.
    #[error("{}, line {line}: `{key}` is {value}, but must be {limit}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Where in it, from 1.
        line: usize,
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        limit: String,
    },
    /// The file with the secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// A number of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Its key, with its table.
    pub key: &'static str,
    /// Its value where the file does not say it.
    pub default: u64,
    /// Least value.
    pub least: u64,
    /// Greatest value.
    pub most: u64,
    /// Whether SIGHUP changes it.
    pub reloads: bool,
}

macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident, $raw:ident, $table:literal: $($(#[$key_doc:meta])* $key:ident = $default:literal, $least:literal..=$most:expr, $reloads:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
        pub struct $name { $($(#[$key_doc])* pub $key: u64,)* }

        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct $raw { $($key: Option<Spanned<i64>>,)* }

        impl $name {
            /// Keys, defaults and bounds.
            pub const NUMBERS: &'static [Number] = &[$(Number {
                key: concat!($table, ".", stringify!($key)), default: $default, least: $least, most: $most, reloads: $reloads,
            },)*];

            /// Its values in the order of [`Self::NUMBERS`].
            #[must_use]
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$key,)*]
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $raw {
            fn checked(&self, text: &Text<'_>) -> Result<$name, ConfigError> {
                let mut numbers = $name::NUMBERS.iter();
                Ok($name { $($key: text.number(numbers.next(), self.$key.as_ref())?,)* })
            }
        }
    };
}

numbers! {
    /// Bounds of time.
    Times, RawTimes, "times":
    /// Longest time between two heartbeats of a connection; four times as much without any is a death.
    heartbeat_ms = 1_000, 10..=600_000, true;
    /// Longest time that a greeting takes.
    greeting_ms = 2_000, 10..=60_000, true;
    /// Longest time until another service process is connected, after which a group that names it is refused.
    connect_ms = 5_000, 10..=600_000, true;
    /// Longest time that collectives have to end when the daemon stops.
    stop_timeout_ms = 30_000, 0..=3_600_000, true;
    /// How long a process polls for work without a pause after it has had some.
    busy_poll_ms = 1_000, 0..=3_600_000, false;
}

numbers! {
    /// Bounds of each service process.
    Bounds, RawBounds, "limits":
    /// Groups.
    groups = 64, 1..=65_536, false;
    /// Collectives of a group under way.
    collectives = 8, 1..=1_024, false;
    /// Reads under way, of all groups.
    active_reads = 4, 1..=65_536, false;
    /// Announcements that wait.
    announcements = 1_048_576, 1..=1_073_741_824, false;
    /// Connections of ranks and of other processes.
    peers = 1_152, 1..=65_536, false;
    /// Memory keys of each program.
    keys = 1_024, 1..=1_048_576, true;
    /// Keys that each program may bind to its memory, in addition; 0: none are taken.
    bound_keys = 64, 0..=4_096, true;
    /// Queue pairs for transfers.
    queue_pairs = 8_192, 1..=1_048_576, false;
    /// Connections to other processes that this one has set up, and as many that others have.
    connections = 128, 1..=65_536, false;
    /// Greetings under way.
    greetings = 64, 1..=4_096, true;
    /// Blocks of late ranks on the list that the processes of the card share.
    list_blocks = 1_048_576, 1..=1_073_741_824, false;
    /// Bytes of the card's memory for staged collectives of each service process, 8 MiB of them for each group; 0: none
    /// are carried out.
    staging_bytes = 268_435_456, 0..=1_099_511_627_776, false;
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    device: Spanned<String>,
    libraries: Option<PathBuf>,
    listen: Spanned<String>,
    port: Option<Spanned<i64>>,
    processes: Option<Spanned<i64>>,
    secret: PathBuf,
    status_socket: Option<PathBuf>,
    lock_directory: Option<PathBuf>,
    metrics: Option<Spanned<String>>,
    log: Option<Spanned<String>>,
    multicast: Option<Spanned<String>>,
    #[serde(default)]
    times: RawTimes,
    #[serde(default)]
    limits: RawBounds,
}

/// Base port: that of the first process.
pub const PORT: Number = Number { key: "port", default: 4870, least: 1, most: 65_535, reloads: false };
/// Service processes of the card.
pub const PROCESSES: Number =
    Number { key: "processes", default: 4, least: 1, most: MAX_PROCESSES_PER_HOST as u64, reloads: false };
/// Where the status is asked for.
pub const STATUS_SOCKET: &str = "/run/flexcast/service.sock";
/// Where the lock of a card is.
pub const LOCK_DIRECTORY: &str = "/run/flexcast";
/// Values of `multicast`.
pub const MULTICAST: [&str; 2] = ["off", "auto"];

/// The configuration of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// RDMA device of the card's Arm function.
    pub device: String,
    /// Folder of the libraries of the card; none: those that are installed.
    pub libraries: Option<PathBuf>,
    /// Address by which ranks, other processes and groups reach the service processes.
    pub listen: IpAddr,
    /// Port of the first process; the others have the next ones.
    pub port: u16,
    /// Service processes.
    pub processes: u32,
    /// File of the secret.
    pub secret: PathBuf,
    /// Unix socket of the status.
    pub status_socket: PathBuf,
    /// Folder of the lock.
    pub lock_directory: PathBuf,
    /// Where metrics are served; none: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Level of the log.
    pub log: String,
    /// Whether groups multicast staged segments if all of their processes can.
    pub multicast: bool,
    /// Bounds of time.
    pub times: Times,
    /// Bounds of each process.
    pub limits: Bounds,
}

/// The text of a file, to say where in it something is.
struct Text<'t> {
    path: &'t Path,
    text: &'t str,
}

impl Text<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
    }

    fn wrong<T>(
        &self,
        key: &'static str,
        at: &Spanned<T>,
        value: impl ToString,
        limit: impl Into<String>,
    ) -> ConfigError {
        let (path, line) = (self.path.to_owned(), self.line(at.span().start));
        ConfigError::Value { path, line, key, value: value.to_string(), limit: limit.into() }
    }

    fn number(&self, number: Option<&Number>, found: Option<&Spanned<i64>>) -> Result<u64, ConfigError> {
        let Some(number) = number else { return Ok(0) };
        let Some(found) = found else { return Ok(number.default) };
        let value = u64::try_from(*found.get_ref()).ok().filter(|value| (number.least..=number.most).contains(value));
        let limit = || format!("{} to {}", number.least, number.most);
        value.ok_or_else(|| self.wrong(number.key, found, found.get_ref(), limit()))
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or used.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
        let text = flexcast_files::text(path, flexcast_files::CONFIGURATION).map_err(unreadable)?;
        Self::parse(path, &text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let at = Text { path, text };
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| at.line(span.start));
            // What is there names the key.
            let there = text.lines().nth(line - 1).map(str::trim).filter(|there| !there.is_empty());
            let there = there.map_or_else(String::new, |there| format!(" in `{there}`"));
            ConfigError::Syntax { path: path.to_owned(), line, reason: format!("{}{there}", error.message()) }
        })?;
        if raw.device.get_ref().is_empty() {
            return Err(at.wrong("device", &raw.device, "empty", "the name of an RDMA device, such as mlx5_0"));
        }
        let address = "an IPv4 or IPv6 address of this computer, by which ranks and other hosts reach it";
        let listen = raw.listen.get_ref().parse().ok().filter(|ip: &IpAddr| !ip.is_unspecified());
        let listen = listen.ok_or_else(|| at.wrong("listen", &raw.listen, raw.listen.get_ref(), address))?;
        let processes = at.number(Some(&PROCESSES), raw.processes.as_ref())?;
        let port = at.number(Some(&PORT), raw.port.as_ref())?;
        let most = 65_536 - processes;
        if let Some(found) = raw.port.as_ref().filter(|_| port > most) {
            let limit = format!("at most {most}, as the {processes} processes have ports one after the other");
            return Err(at.wrong("port", found, port, limit));
        }
        let metrics = match &raw.metrics {
            Some(found) => {
                let parsed = found.get_ref().parse();
                Some(parsed.map_err(|_| {
                    at.wrong("metrics", found, found.get_ref(), "an address and a port, such as 127.0.0.1:9431")
                })?)
            }
            None => None,
        };
        let log = match &raw.log {
            Some(found) if !LEVELS.contains(&&**found.get_ref()) => {
                return Err(at.wrong("log", found, found.get_ref(), format!("one of {}", LEVELS.join(", "))));
            }
            Some(found) => found.get_ref().clone(),
            None => "info".to_owned(),
        };
        let multicast = match &raw.multicast {
            Some(found) if !MULTICAST.contains(&&**found.get_ref()) => {
                let limit = format!("one of {}", MULTICAST.join(", "));
                return Err(at.wrong("multicast", found, found.get_ref(), limit));
            }
            found => found.as_ref().is_some_and(|found| found.get_ref() == MULTICAST[1]),
        };
        Ok(Self {
            device: raw.device.get_ref().clone(),
            libraries: raw.libraries,
            listen,
            port: port as u16,
            processes: processes as u32,
            secret: raw.secret,
            status_socket: raw.status_socket.unwrap_or_else(|| STATUS_SOCKET.into()),
            lock_directory: raw.lock_directory.unwrap_or_else(|| LOCK_DIRECTORY.into()),
            metrics,
            log,
            multicast,
            times: raw.times.checked(&at)?,
            limits: raw.limits.checked(&at)?,
        })
    }

    /// What it gives to service processes. `epoch`: drawn when the daemon has started.
    #[must_use]
    pub fn settings(&self, secret: Secret, epoch: u64) -> ServerSettings {
        let Bounds {
            groups,
            collectives,
            active_reads,
            announcements,
            peers,
            keys,
            bound_keys,
            queue_pairs,
            connections,
            greetings,
            staging_bytes,
            ..
        } = self.limits;
        // All are bounded by less.
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let machine = Limits {
            active_reads: small(active_reads),
            groups: small(groups),
            collectives: small(collectives),
            announcements,
        };
        ServerSettings {
            limits: AgentLimits {
                machine,
                peers: small(peers),
                keys: small(keys),
                bound_keys: small(bound_keys),
                lanes: small(queue_pairs),
                staging: (staging_bytes > 0)
                    .then(|| Staging { multicast: self.multicast.then(Multicast::default), ..Staging::default() }),
                staging_bytes,
                ..AgentLimits::default()
            },
            connections: small(connections),
            secret,
            greeting: Duration::from_millis(self.times.greeting_ms),
            greetings: small(greetings),
            connect: Duration::from_millis(self.times.connect_ms),
            heartbeat: Duration::from_millis(self.times.heartbeat_ms),
            epoch,
        }
    }

    /// How its processes run.
    #[must_use]
    pub const fn pace(&self) -> Pace {
        Pace { busy: Duration::from_millis(self.times.busy_poll_ms), list: self.limits.list_blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "device = \"mlx5_0\"\nlisten = \"127.0.0.1\"\nsecret = \"/etc/flexcast/secret\"\n";

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("service.toml"), text)
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = parse(LEAST).expect("it is enough");
        assert_eq!((config.port, config.processes, config.metrics), (4870, 4, None));
        assert_eq!((config.times, config.limits), (Times::default(), Bounds::default()));
        let settings = config.settings(Secret::new([0; 32]), 1);
        let staged =
            AgentLimits { staging: Some(Staging::default()), staging_bytes: 256 << 20, ..AgentLimits::default() };
        assert_eq!(settings.limits, staged, "but for staging the same as without a file");
        let (all, made) = (ServerSettings::new(Secret::new([0; 32]), 1), settings);
        assert_eq!((all.connections, all.greeting, all.greetings), (made.connections, made.greeting, made.greetings));
        assert_eq!((all.connect, all.heartbeat, config.pace()), (made.connect, made.heartbeat, Pace::default()));
    }

    #[test]
    fn errors_name_file_line_key_value_and_limit() {
        for (more, expected) in [
            ("porta = 1", "service.toml, line 4: unknown field `porta`"),
            ("port = \"x\"", "service.toml, line 4: invalid type: string \"x\""),
            ("port = 0", "service.toml, line 4: `port` is 0, but must be 1 to 65535"),
            ("port = 65534", "`port` is 65534, but must be at most 65532"),
            ("processes = 65", "`processes` is 65, but must be 1 to 64"),
            ("log = \"loud\"", "`log` is loud, but must be one of error, warn, info, debug, trace"),
            ("multicast = \"on\"", "`multicast` is on, but must be one of off, auto"),
            ("metrics = \"here\"", "`metrics` is here, but must be an address and a port"),
            (
                "\n[times]\nheartbeat_ms = -5",
                "service.toml, line 6: `times.heartbeat_ms` is -5, but must be 10 to 600000",
            ),
            ("[limits]\ngroups = 0", "service.toml, line 5: `limits.groups` is 0, but must be 1 to 65536"),
            ("[limits]\ngroup = 1", "service.toml, line 5: unknown field `group`"),
            ("= 3", "service.toml, line 4: "),
        ] {
            let error = parse(&format!("{LEAST}{more}\n")).expect_err(more).to_string();
            assert!(error.contains(expected), "{more}: {error}");
        }
        let error = parse("device = \"a\"\nlisten = \"0.0.0.0\"\nsecret = \"b\"").expect_err("all").to_string();
        assert!(error.contains("line 2: `listen` is 0.0.0.0, but must be an IPv4 or IPv6 address"), "{error}");
        let error = parse("listen = \"127.0.0.1\"\nsecret = \"b\"").expect_err("no device").to_string();
        assert!(error.contains("missing field `device`"), "{error}");
    }

    /// All keys, with their defaults and bounds, are in the table of docs/service.md.
    #[test]
    fn every_key_is_documented() {
        let document = include_str!("../../../../docs/service.md");
        let numbers = [PORT, PROCESSES].into_iter().chain(Times::NUMBERS.iter().chain(Bounds::NUMBERS).copied());
        for Number { key, default, least, most, reloads } in numbers {
            let reloads = if reloads { "yes" } else { "no" };
            let row = format!("| `{key}` | {default} | {least} to {most} | {reloads} |");
            assert!(document.contains(&row), "docs/service.md has no row {row}");
        }
        for key in [
            "device",
            "libraries",
            "listen",
            "secret",
            "status_socket",
            "lock_directory",
            "metrics",
            "log",
            "multicast",
        ] {
            assert!(document.contains(&format!("| `{key}` | ")), "docs/service.md has no row of `{key}`");
        }
        for text in [STATUS_SOCKET, LOCK_DIRECTORY] {
            assert!(document.contains(text), "{text}");
        }
    }
}
