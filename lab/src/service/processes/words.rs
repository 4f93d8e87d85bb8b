//! Orders of the demonstration to its ranks and their answers: one JSON document a line, on a rank's standard input and
//! output.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::super::world::ServiceOp;

/// A rank's place, and with whom it works.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Start {
    /// Folder of the emulator's libraries, or none.
    pub(super) libraries: Option<PathBuf>,
    /// Device of the host's function of the card.
    pub(super) device: String,
    /// File of the secret.
    pub(super) secret: PathBuf,
    /// Number of the group.
    pub(super) group: u32,
    /// This rank.
    pub(super) rank: u32,
    /// Hosts.
    pub(super) hosts: u32,
    /// Ranks on each.
    pub(super) ranks_per_host: u32,
    /// Service processes of each daemon.
    pub(super) processes_per_host: u32,
    /// Where all service processes listen, host by host.
    pub(super) processes: Vec<SocketAddr>,
    /// Bytes of a block.
    pub(super) bytes: u64,
    /// Longest that a wait of this rank takes, in milliseconds.
    pub(super) bound_ms: u64,
}

/// What a rank is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Connect to the service process, share memory and join the group.
    Start(Box<Start>),
    /// Process numbers of all ranks: whose memory to copy from.
    Peers(Vec<u32>),
    /// Call collectives.
    Post {
        /// Which.
        ops: Vec<ServiceOp>,
        /// Makes the bytes differ.
        turn: u32,
    },
    /// Compute until all that was called has its flag, and check every byte.
    Compute,
    /// Wait until all that was called has ended, well or not.
    Watch,
    /// Leave the group.
    Leave,
}

/// What a rank answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It has joined the group.
    Joined {
        /// From the first connection to the service process to the end of the greeting, in microseconds.
        connect_us: u64,
        /// From then until the group can be used, in microseconds.
        join_us: u64,
    },
    /// It is done.
    Done,
    /// Collectives that have ended well.
    Computed(Vec<Computed>),
    /// How collectives have ended.
    Ended(Vec<Ending>),
    /// It cannot go on.
    Failed(String),
}

/// A collective of a rank that has computed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Computed {
    /// Which.
    pub(super) op: ServiceOp,
    /// Whether every byte is right.
    pub(super) is_right: bool,
    /// From before the call until the rank has seen the flag, in microseconds.
    pub(super) flag_us: u64,
    /// Of that, what the rank has computed, in microseconds.
    pub(super) computed_us: u64,
    /// Calls of the library between the call and the flag, other than polls of the flag in memory.
    pub(super) calls: u64,
}

/// What was reported to a rank of a collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ending {
    /// The collective.
    pub(super) op: ServiceOp,
    /// What kind of end.
    pub(super) kind: Kind,
    /// The rank that is named.
    pub(super) rank: Option<u32>,
    /// The service process that is named.
    pub(super) process: Option<u32>,
    /// The words.
    pub(super) text: String,
    /// How the session had ended by then.
    pub(super) session: Option<String>,
    /// When the rank has seen it, by the monotonic clock of the computer, in nanoseconds.
    pub(super) seen_ns: u64,
}

/// How a collective has ended for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Well.
    Well,
    /// Somebody has died.
    Died,
    /// Somebody's memory could not be reached, or calls differ.
    Failed,
    /// The service process has refused the call.
    Refused,
    /// The connection to the service process is gone.
    Gone,
    /// The card's library has failed.
    Card,
    /// Something else is wrong.
    Other,
    /// It was not reported within the bound.
    Nothing,
}

/// The monotonic clock, which all processes of a computer share, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
