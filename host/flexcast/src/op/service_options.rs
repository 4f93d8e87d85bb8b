//! Options of service processes, and which control carries operations.

use std::path::PathBuf;
use std::time::Duration;

use flexcast_proto::service::{DEFAULT_BOUND_KEYS, Thresholds};

use crate::error::{Error, Result};
use crate::op::config::Control;
use crate::op::variable::variable;

/// Most service processes on a host: as many as a group may have.
const MOST_PROCESSES: u32 = flexcast_proto::service::MAX_PROCESSES_PER_HOST;

/// Most keys that a rank binds: as many as a daemon takes of a program at most.
const MOST_KEYS: u32 = 4096;

/// Bytes of a segment that ranks of a host share.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 40;

/// How Broadcast and Allgather go with service processes. Where these have no staging memory Broadcasts go by the host,
/// Allgathers by alias keys. Allgatherv always goes by alias keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServiceDelivery {
    /// Hierarchical from [`ServiceOptions::hierarchical_ranks`] ranks on a host and
    /// [`ServiceOptions::hierarchical_bytes`] bytes on; else Broadcasts flat, Allgathers direct.
    #[default]
    Auto,
    /// Both through staging memory, to each rank's own buffer.
    Flat,
    /// Both through staging memory, to a segment that the ranks of a host share. Each rank copies from there in wait or
    /// progress, so these need calls. What the segment has no room for ([`ServiceOptions::segment_bytes`]) goes as with
    /// [`ServiceDelivery::Auto`] among few ranks; so does everything where ranks of a host cannot share memory.
    Hierarchical,
    /// Both from host memory to host memory by alias keys.
    Direct,
}

/// What `FLEXCAST_SERVICE_DELIVERY` may be.
const DELIVERIES: &str = "auto, flat, hierarchical or direct";
/// What `FLEXCAST_SERVICE_THRESHOLDS` may be.
const THRESHOLDS: &str = "ranks on a host from 1 on, or these and bytes with a comma between them";
/// Deliveries by their names; what ranks send one another is the index in this list.
pub(crate) const NAMES: [(ServiceDelivery, &str); 4] = [
    (ServiceDelivery::Auto, "auto"),
    (ServiceDelivery::Flat, "flat"),
    (ServiceDelivery::Hierarchical, "hierarchical"),
    (ServiceDelivery::Direct, "direct"),
];

impl std::str::FromStr for ServiceDelivery {
    type Err = Error;

    /// The delivery of a name as in `FLEXCAST_SERVICE_DELIVERY`.
    fn from_str(name: &str) -> Result<Self> {
        let unknown =
            || Error::Variable { name: "FLEXCAST_SERVICE_DELIVERY", value: name.to_owned(), limit: DELIVERIES.into() };
        NAMES.iter().find(|(_, known)| *known == name).map(|(delivery, _)| *delivery).ok_or_else(unknown)
    }
}

/// Ranks on a host, and bytes, of their text.
fn thresholds(text: &str) -> Option<(u32, u64)> {
    let (ranks, bytes) = text.split_once(',').unwrap_or((text, "0"));
    let ranks: u32 = ranks.trim().parse().ok()?;
    Some((ranks, bytes.trim().parse().ok()?)).filter(|_| ranks > 0)
}

/// Where the service processes of a rank's host are, and how they are used ([`Control::Service`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceOptions {
    /// `host:port` of the first service process of this rank's host, whose others have the next ports; or one of each,
    /// in their order. All ranks of a host give the same. Default none: then all ranks use the host's control.
    pub endpoints: Vec<String>,
    /// Service processes of a host, 1 to 64, if one endpoint is given; the least that any rank gives counts. Default 4,
    /// as the daemon has.
    pub processes: u32,
    /// The file with the secret of the service processes.
    pub secret: PathBuf,
    /// Longest that connecting takes, and so long again until all processes take part. Default 5 s.
    pub connect: Duration,
    /// Longest that an operation stands still, others' arrival included, once it is posted to the process: it counts
    /// from the last message of the process. Default 60 s.
    pub operation: Duration,
    /// How Broadcast and Allgather go. This and the four that follow are the same on all ranks: if they differ all
    /// ranks use the host's control, and say so.
    pub delivery: ServiceDelivery,
    /// Control of the datapath that carries out what the service processes do not: host, or device on a card whose DPA
    /// moves the data. With device Broadcast and Allgather(v) go without the host, too, and reductions and barriers are
    /// refused. Default host.
    pub datapath_control: Control,
    /// With [`ServiceDelivery::Auto`] hierarchical from so many ranks on any host on, at least 1. Default 4.
    pub hierarchical_ranks: u32,
    /// With [`ServiceDelivery::Auto`] hierarchical from so many bytes of a message or a block on. Default 0.
    pub hierarchical_bytes: u64,
    /// Bytes of the segment that the ranks of a host share, 4096 to 2^40, where deliveries may be hierarchical. Default
    /// 8 MiB.
    pub segment_bytes: u64,
    /// Buffers that the process may use at a time between operations, 1 to 1000; others are leased for each operation
    /// anew. Default 256.
    pub buffers: u32,
    /// Keys that a rank binds to its buffers, 0 to 4096: so many buffers at a time cost the process no control
    /// operation of its card. 0, or a card or a process that has none: each buffer costs some. Default 16.
    pub bound_keys: u32,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        let thresholds = Thresholds::default();
        Self {
            endpoints: Vec::new(),
            processes: 4,
            secret: PathBuf::new(),
            connect: Duration::from_secs(5),
            operation: Duration::from_secs(60),
            delivery: ServiceDelivery::Auto,
            datapath_control: Control::Host,
            hierarchical_ranks: thresholds.ranks_per_host,
            hierarchical_bytes: thresholds.bytes,
            segment_bytes: 8 << 20,
            buffers: 256,
            bound_keys: DEFAULT_BOUND_KEYS.into(),
        }
    }
}

impl ServiceOptions {
    /// The defaults with these endpoints and this file of the secret.
    #[must_use]
    pub fn new(endpoints: Vec<String>, secret: impl Into<PathBuf>) -> Self {
        Self { endpoints, secret: secret.into(), ..Self::default() }
    }

    /// What the variables `FLEXCAST_SERVICE` (`host:port`, or several with commas between them),
    /// `FLEXCAST_SERVICE_SECRET` (a file), `FLEXCAST_SERVICE_PROCESSES` (1 to 64), `FLEXCAST_SERVICE_DELIVERY` (auto,
    /// flat, hierarchical or direct), `FLEXCAST_SERVICE_THRESHOLDS` (ranks on a host, or ranks,bytes),
    /// `FLEXCAST_SERVICE_DATAPATH` (host or device) and `FLEXCAST_SERVICE_KEYS` (0 to 4096) say; else the defaults.
    ///
    /// # Errors
    /// [`Error::Variable`]: one has a value that it cannot have.
    pub fn from_env() -> Result<Self> {
        let default = Self::default();
        let endpoints: Option<String> = variable("FLEXCAST_SERVICE", "host:port")?;
        let delivery = variable("FLEXCAST_SERVICE_DELIVERY", DELIVERIES)?.unwrap_or_default();
        let given: Option<String> = variable("FLEXCAST_SERVICE_THRESHOLDS", THRESHOLDS)?;
        let (hierarchical_ranks, hierarchical_bytes) = match given {
            None => (default.hierarchical_ranks, default.hierarchical_bytes),
            Some(value) => thresholds(&value).ok_or(Error::Variable {
                name: "FLEXCAST_SERVICE_THRESHOLDS",
                value,
                limit: THRESHOLDS.into(),
            })?,
        };
        let datapath_control = match variable::<String>("FLEXCAST_SERVICE_DATAPATH", "host or device")?.as_deref() {
            None | Some("host") => Control::Host,
            Some("device") => Control::Device,
            Some(value) => {
                let (name, value) = ("FLEXCAST_SERVICE_DATAPATH", value.to_owned());
                return Err(Error::Variable { name, value, limit: "host or device".into() });
            }
        };
        Ok(Self {
            endpoints: endpoints
                .map_or_else(Vec::new, |list| list.split(',').map(|one| one.trim().to_owned()).collect()),
            processes: variable("FLEXCAST_SERVICE_PROCESSES", "a number from 1 to 64")?.unwrap_or(default.processes),
            secret: variable("FLEXCAST_SERVICE_SECRET", "the name of a file")?.unwrap_or_default(),
            delivery,
            datapath_control,
            bound_keys: variable("FLEXCAST_SERVICE_KEYS", "a number from 0 to 4096")?.unwrap_or(default.bound_keys),
            hierarchical_ranks,
            hierarchical_bytes,
            ..default
        })
    }

    /// The same with so many processes on a host.
    #[must_use]
    pub fn processes(mut self, processes: u32) -> Self {
        self.processes = processes;
        self
    }

    /// The same with this delivery.
    #[must_use]
    pub fn delivery(mut self, delivery: ServiceDelivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// The same with this control of the datapath that carries out the rest.
    #[must_use]
    pub fn datapath_control(mut self, control: Control) -> Self {
        self.datapath_control = control;
        self
    }

    /// The same with these thresholds of hierarchical delivery: ranks on a host, and bytes.
    #[must_use]
    pub fn thresholds(mut self, ranks: u32, bytes: u64) -> Self {
        (self.hierarchical_ranks, self.hierarchical_bytes) = (ranks, bytes);
        self
    }

    /// The same with so many bytes of the segment that the ranks of a host share.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// The same with this bound for connecting.
    #[must_use]
    pub fn connect(mut self, connect: Duration) -> Self {
        self.connect = connect;
        self
    }

    /// The same with this bound for operations.
    #[must_use]
    pub fn operation(mut self, operation: Duration) -> Self {
        self.operation = operation;
        self
    }

    /// The same with so many buffers between operations.
    #[must_use]
    pub fn buffers(mut self, buffers: u32) -> Self {
        self.buffers = buffers;
        self
    }

    /// The same with so many keys to bind.
    #[must_use]
    pub fn bound_keys(mut self, keys: u32) -> Self {
        self.bound_keys = keys;
        self
    }

    /// Refuses numbers outside their range, and service processes in a build without them.
    pub(crate) fn check(&self) -> Result<()> {
        if cfg!(not(feature = "service")) {
            let limit = "host or device, as this build of flexcast has no service processes: build it with the cargo \
                         feature `service`";
            return Err(Error::Config { what: "control", value: Control::Service as u64, limit: limit.to_owned() });
        }
        let range = |what, value: u32, most: u32| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::Config { what, value: value.into(), limit: format!("1 to {most}") })
        };
        range("service processes", self.processes, MOST_PROCESSES)?;
        range("service buffers", self.buffers, 1000)?;
        if self.datapath_control == Control::Service {
            let (value, limit) =
                (self.datapath_control as u64, "host or device (FLEXCAST_SERVICE_DATAPATH)".to_owned());
            return Err(Error::Config { what: "control of the datapath with service processes", value, limit });
        }
        if self.bound_keys > MOST_KEYS {
            let limit = format!("0 to {MOST_KEYS}");
            return Err(Error::Config { what: "service keys to bind", value: self.bound_keys.into(), limit });
        }
        range("ranks on a host for hierarchical delivery", self.hierarchical_ranks, u32::MAX)?;
        if !SEGMENT_BYTES.contains(&self.segment_bytes) {
            let limit = format!("{} to {}", SEGMENT_BYTES.start(), SEGMENT_BYTES.end());
            return Err(Error::Config { what: "bytes of a service segment", value: self.segment_bytes, limit });
        }
        let given = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        if given > 1 { range("service endpoints", given, MOST_PROCESSES) } else { Ok(()) }
    }
}

/// Which control carries a communicator's operations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlReport {
    /// The one in use, alike on all ranks.
    pub control: Control,
    /// Why it is not the one of the configuration, if so: which rank has no service process, and why not.
    pub reason: Option<String>,
}

impl ControlReport {
    pub(crate) const fn of(control: Control) -> Self {
        Self { control, reason: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "service"))]
    #[test]
    fn a_build_without_service_processes_refuses_them_and_names_the_feature() {
        let text = ServiceOptions::default().check().unwrap_err().to_string();
        assert!(text.contains("control is service") && text.contains("feature `service`"), "{text}");
    }

    #[test]
    fn thresholds_are_ranks_and_bytes() {
        assert_eq!((thresholds("16"), thresholds("4, 65536")), (Some((16, 0)), Some((4, 65536))));
        for wrong in ["", "0", "x", "4,", "4,-1", "1,2,3"] {
            assert_eq!(thresholds(wrong), None, "{wrong}");
        }
    }
}
