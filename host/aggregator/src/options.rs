//! Options of the command line, and the configuration file, which has the same ones.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::server::Settings;
use clap::{Args, Parser, Subcommand};
use flexcast_daemon::log::LEVELS;
use flexcast_proto::sparse::{DEFAULT_BLOCK_BYTES, MAX_BLOCKS_PER_MESSAGE};
use serde::Deserialize;

use crate::AggregatorError;

/// Where it listens unless it is configured otherwise: of this computer alone.
pub const LISTEN: &str = "127.0.0.1:4890";

const ABOUT: &str = "\
Sums up sparse AllReduce (Flexcast) for groups whose ranks do not do it themselves. One daemon serves several jobs at \
    once; a job may use several.

Start it on a computer that all ranks reach, and name it to each of them:

    flexcast-aggregator --listen 10.0.0.5:4890
    FLEXCAST_SPARSE_AGGREGATORS=10.0.0.5:4890 mpirun -n 4 flexcast perf --op sparse-allreduce

Ranks connect by TCP, by their first sparse AllReduce. With --device, those that have RDMA cards send blocks to this \
    one by queue pairs:

    flexcast-aggregator --listen 10.0.0.5:4890 --device mlx5_0
    FLEXCAST_SPARSE_AGGREGATORS=10.0.0.5:4890 mpirun -n 4 flexcast perf --datapath verbs --op sparse-allreduce

Give the daemon and all ranks the same secret, by FLEXCAST_SECRET_FILE (a file that only its owner may read) or \
    FLEXCAST_SECRET, on a network that others use, too: only ranks that have it are served then, and what goes over \
    their TCP connections cannot be changed unnoticed. Without one, whoever reaches the port can open jobs of its own, \
    within the bounds below, and whoever reads along can take a rank's place. Nothing is encrypted.";

/// Sums up sparse AllReduce for groups whose ranks do not do it themselves.
#[derive(Debug, Parser)]
#[command(name = "flexcast-aggregator", version, args_conflicts_with_subcommands = true, long_about = ABOUT)]
pub struct Options {
    /// What to do; none: serve.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to serve.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What else it does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print what a daemon that runs is doing.
    Status(StatusArgs),
    /// Print how many workers keep all sums in a cache, or in the daemon's memory.
    Budget(BudgetArgs),
}

/// How to serve.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeArgs {
    /// TOML file with the options below as keys (listen = "10.0.0.5:4890", memory = "1G", status_socket =
    /// "/run/aggregator"); what the command line says comes first.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Address and port on which workers connect [default: 127.0.0.1:4890].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// RDMA device, such as mlx5_0, to which ranks with RDMA cards send blocks. Others send them by TCP as without
    /// [default: none].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Folder with the libraries of RDMA cards, such as the emulator's [default: those of the system].
    #[arg(long, value_name = "FOLDER", requires = "device")]
    pub libraries: Option<PathBuf>,
    /// Threads that sum up. Each job has one of them, or several if its ranks name the aggregator several times
    /// [default: as many as processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Memory for the sums of all jobs, such as 64M or 1G; a job that does not fit is refused. With the size of the
    /// last-level cache all sums stay in it [default: 256M].
    #[arg(long, visible_alias = "cache-bytes", value_name = "BYTES")]
    pub memory: Option<Bytes>,
    /// Jobs at a time [default: 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub jobs: Option<u32>,
    /// Connected workers at a time, of all jobs [default: 4096].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1048576))]
    pub connections: Option<u32>,
    /// Longest that an operation may stand still, in seconds; the workers' own bound (barrier_timeout) is best shorter
    /// [default: 60].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub timeout: Option<u32>,
    /// Unix socket on which the status is asked for, by `flexcast-aggregator status` [default: none].
    #[arg(long, value_name = "PATH")]
    pub status_socket: Option<PathBuf>,
    /// Address and port of metrics over HTTP, for Prometheus [default: none].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Level of the log on stderr: error, warn, info, debug or trace [default: info].
    #[arg(long, value_name = "LEVEL", value_parser = LEVELS)]
    pub log: Option<String>,
}

/// Of which daemon the status is asked.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The daemon's --status-socket.
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    pub json: bool,
}

/// What is to fit.
#[derive(Debug, Args)]
pub struct BudgetArgs {
    /// Workers of a job.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub workers: u32,
    /// Cache, or memory, such as 6M.
    #[arg(long, visible_alias = "cache-bytes", default_value = "32M", value_name = "BYTES")]
    pub memory: Bytes,
    /// Bytes of a block.
    #[arg(long, default_value_t = DEFAULT_BLOCK_BYTES, value_name = "BYTES")]
    pub block_bytes: u32,
    /// Most blocks of a message.
    #[arg(long, default_value_t = MAX_BLOCKS_PER_MESSAGE, value_name = "N")]
    pub blocks_per_message: u32,
    /// Shards that are summed up at the same time, of all jobs: up to 3 for each job and aggregator.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub shards: u32,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    pub json: bool,
}

/// A number of bytes, with K, M or G behind it for powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = |letter: char| match letter.to_ascii_uppercase() {
            'K' => Some(1 << 10),
            'M' => Some(1 << 20),
            'G' => Some(1_u64 << 30),
            _ => None,
        };
        let (digits, unit) = match text.chars().last().and_then(|last| Some((last, unit(last)?))) {
            Some((last, unit)) => (&text[..text.len() - last.len_utf8()], unit),
            None => (text, 1),
        };
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|bytes| *bytes > 0);
        bytes.map(Self).ok_or_else(|| "give a whole number of bytes above 0, such as 1048576, 64M or 1G".to_owned())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Number(u64),
            Text(String),
        }
        let text = match Given::deserialize(deserializer)? {
            Given::Number(number) => number.to_string(),
            Given::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl ServeArgs {
    /// With what the configuration file says, where the command line says nothing.
    ///
    /// # Errors
    /// The file cannot be read, or used.
    pub fn with_file(self) -> Result<Self, AggregatorError> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let unreadable = |source| AggregatorError::Unreadable { path: path.clone(), source };
        let text = flexcast_files::text(&path, flexcast_files::CONFIGURATION).map_err(unreadable)?;
        self.with_text(&path, &text)
    }

    fn with_text(self, path: &Path, text: &str) -> Result<Self, AggregatorError> {
        let refused = |reason: String| AggregatorError::Config { path: path.to_owned(), reason };
        let file: Self = toml::from_str(text).map_err(|error| refused(error.to_string()))?;
        for (key, value, most) in [
            ("threads", file.threads, 1024),
            ("jobs", file.jobs, 65_536),
            ("connections", file.connections, 1 << 20),
            ("timeout", file.timeout, 86_400),
        ] {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return Err(refused(format!("`{key}` is {value}, but must be 1 to {most}")));
            }
        }
        if let Some(level) = file.log.as_ref().filter(|level| !LEVELS.contains(&level.as_str())) {
            return Err(refused(format!("`log` is {level:?}, but must be one of {}", LEVELS.join(", "))));
        }
        Ok(Self {
            config: None,
            listen: self.listen.or(file.listen),
            device: self.device.or(file.device),
            libraries: self.libraries.or(file.libraries),
            threads: self.threads.or(file.threads),
            memory: self.memory.or(file.memory),
            jobs: self.jobs.or(file.jobs),
            connections: self.connections.or(file.connections),
            timeout: self.timeout.or(file.timeout),
            status_socket: self.status_socket.or(file.status_socket),
            metrics: self.metrics.or(file.metrics),
            log: self.log.or(file.log),
        })
    }

    /// Bounds of the server, without a secret.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let default = Settings::default();
        let processors = || std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Settings {
            threads: self.threads.unwrap_or_else(processors),
            memory_bytes: self.memory.map_or(default.memory_bytes, |bytes| bytes.0),
            jobs: self.jobs.unwrap_or(default.jobs),
            connections: self.connections.unwrap_or(default.connections),
            timeout: self.timeout.map_or(default.timeout, |seconds| Duration::from_secs(seconds.into())),
            greeting: default.greeting,
            secret: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Options::command().debug_assert();
    }

    #[test]
    fn bytes_have_units() {
        let read = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0).ok();
        assert_eq!([read("4096"), read("64K"), read("3m"), read("1G")], [4096, 64 << 10, 3 << 20, 1 << 30].map(Some));
        for text in ["", "K", "0", "-1", "1.5M", "1T", "99999999999G", "1é"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_command_line_comes_before_the_file() {
        let args = ServeArgs { jobs: Some(3), ..ServeArgs::default() };
        let text = "listen = \"10.0.0.5:1\"\njobs = 9\nmemory = \"1M\"\ntimeout = 5\n";
        let read = args.with_text(Path::new("a.toml"), text).unwrap();
        let settings = read.settings();
        assert_eq!((settings.jobs, settings.memory_bytes, settings.timeout), (3, 1 << 20, Duration::from_secs(5)));
        assert_eq!(read.listen, "10.0.0.5:1".parse().ok());
        let refused = |text: &str| ServeArgs::default().with_text(Path::new("a.toml"), text).unwrap_err().to_string();
        assert!(refused("colour = 1").contains("colour") && refused("jobs = 0").contains("`jobs` is 0"));
        assert!(refused("memory = \"much\"").contains("64M") && refused("log = \"loud\"").contains("warn"));
        assert!(refused("listen = 5").contains("a.toml"));
    }
}
