//! Counters of the connections of a service process.

use serde::{Deserialize, Serialize};

/// Why a connection was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The other side does not know the secret.
    Secret,
    /// It speaks another version of the messages.
    Version,
    /// What it has sent is no message, or none that is due.
    Format,
    /// It has not finished its greeting in time.
    Deadline,
    /// There are as many connections as the limit of peers says.
    Connections,
    /// It had to give way, as too many others were about to connect.
    Crowded,
    /// The daemon is about to stop.
    Stopping,
    /// The own set-up to the same process has precedence.
    Crossing,
    /// It has gone before its greeting was over.
    Closed,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Secret,
        Self::Version,
        Self::Format,
        Self::Deadline,
        Self::Connections,
        Self::Crowded,
        Self::Stopping,
        Self::Crossing,
        Self::Closed,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Version => "version",
            Self::Format => "format",
            Self::Deadline => "deadline",
            Self::Connections => "connections",
            Self::Crowded => "crowded",
            Self::Stopping => "stopping",
            Self::Crossing => "crossing",
            Self::Closed => "closed",
        }
    }
}

/// What the connections of a service process have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetCounts {
    /// Connections that others have set up.
    pub taken: u64,
    /// Connections to other service processes that this one has set up.
    pub set_up: u64,
    /// Set-ups of this process that have failed.
    pub set_ups_failed: u64,
    /// Connections of others that were refused, by [`Reason`] in the order of [`Reason::ALL`].
    pub refused: [u64; 9],
    /// Heartbeats that have not come in time.
    pub heartbeats_missed: u64,
    /// Connections that have ended without a goodbye.
    pub deaths: u64,
    /// Connections that have ended with one.
    pub goodbyes: u64,
}

impl NetCounts {
    /// Connections that were refused for a reason.
    #[must_use]
    pub const fn refused_for(&self, reason: Reason) -> u64 {
        self.refused[reason as usize]
    }

    pub(crate) const fn refuse(&mut self, reason: Reason) {
        self.refused[reason as usize] += 1;
    }
}
