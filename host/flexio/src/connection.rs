//! Parameters of a connection between two queue pairs.

use crate::device::{Gid, Mac};
use crate::error::Result;
use crate::path::{Path, Retry};

/// The peer of a connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteQp {
    /// Queue pair number.
    pub qpn: u32,
    /// Address of its port.
    pub gid: Gid,
    /// Ethernet address of its port.
    pub mac: Mac,
    /// Number of its first packet, 24 bits.
    pub first_psn: u32,
}

/// What [`QueuePair::connect`](crate::QueuePair::connect) and [`DpaQueuePair::connect`](crate::DpaQueuePair::connect)
/// connect to, and how.
///
/// ```
/// use flexio::{Connection, Path, RemoteQp, Retry};
///
/// fn to(remote: RemoteQp) -> Connection {
///     let retry = Retry { timeout_exponent: 18, count: 7 };
///     Connection::to(remote).first_psn(0x1234).path(Path::of_class(96)).retry(retry)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Connection {
    pub(crate) remote: RemoteQp,
    pub(crate) first_psn: u32,
    pub(crate) path: Path,
    pub(crate) retry: Retry,
}

impl Connection {
    /// To `remote`, by the default path and with the default timeout. The own packets are numbered from 0.
    pub fn to(remote: RemoteQp) -> Self {
        Self { remote, first_psn: 0, path: Path::default(), retry: Retry::default() }
    }

    /// Number of the first packet of the own queue pair, 24 bits. Default 0.
    pub const fn first_psn(self, first_psn: u32) -> Self {
        Self { first_psn, ..self }
    }

    /// Path of the packets. Default: [`Path::default`].
    pub const fn path(self, path: Path) -> Self {
        Self { path, ..self }
    }

    /// Timeout with the peer, for transport RC; other transports ignore it. Default: [`Retry::default`].
    pub const fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.path.check()?;
        self.retry.check()
    }
}
