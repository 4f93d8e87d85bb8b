//! Messages of a connection with a service process: greeting, heartbeat, end.

use core::net::Ipv6Addr;

use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::fields::{Fixed, within};
use crate::session::greeting::SIDE_NONCE_BYTES;

/// Bytes of a nonce, and of a tag.
pub use crate::session::TAG_BYTES;

/// Where a service process listens: an address and a port of the network or of the connection manager. An IPv4 address
/// is a mapped one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address.
    pub address: Ipv6Addr,
    /// The port; of a service process never 0.
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawEndpoint {
    address: [u8; 16],
    port: U16,
}

impl RawEndpoint {
    pub(super) const NONE: Self = Self { address: [0; 16], port: U16::ZERO };

    pub(super) fn new(endpoint: Endpoint) -> Result<Self, FormatError> {
        within("port", endpoint.port.into(), 1, u16::MAX.into())?;
        Ok(Self { address: endpoint.address.octets(), port: endpoint.port.into() })
    }

    pub(super) const fn endpoint(self) -> Endpoint {
        Endpoint { address: Ipv6Addr::from_octets(self.address), port: self.port.get() }
    }
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A program with ranks of groups.
    Rank,
    /// Another service process.
    Process {
        /// Where it listens. Groups name their processes by that.
        listens: Endpoint,
    },
}

/// First message of whoever connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Who connects.
    pub role: Role,
    /// Number that the sender has drawn when it started: a restarted one is another.
    pub epoch: u64,
    /// Fresh random bytes, of the operating system.
    pub nonce: [u8; TAG_BYTES],
}

/// Answer of the service process to a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Challenge {
    /// Fresh random bytes, of the operating system.
    pub nonce: [u8; TAG_BYTES],
    /// Shows that the sender knows the secret.
    pub tag: [u8; TAG_BYTES],
}

/// Answer to a [`Challenge`], and to such an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Proof {
    /// Shows that the sender knows the secret.
    pub tag: [u8; TAG_BYTES],
}

/// The service process takes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Welcome {
    /// Number that the service process has drawn when it started.
    pub epoch: u64,
    /// Longest time between two heartbeats of each side, in milliseconds, at least 1.
    pub heartbeat_ms: u32,
    /// Groups that there is room for, at least 1.
    pub groups: u32,
    /// Collectives of one group that may be under way at once, at least 1.
    pub collectives: u32,
}

/// The service process refuses the connection, and ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Rejection {
    /// The proof is wrong.
    #[error("the service process has another secret: give both the same")]
    Secret,
    /// There is no room.
    #[error("the service process has {limit} connections already: end one, or raise its limit")]
    Connections {
        /// Its limit.
        limit: u32,
    },
    /// It ends.
    #[error("the service process is about to stop: start it again, or take another one")]
    Stopping,
    /// A message that came has no meaning.
    #[error("the service process could not read a message: run the same release of daemons and programs")]
    Format,
    /// Both sides have begun to set a connection up, and the service process's own is kept ([`Connections::crossed`]).
    ///
    /// [`Connections::crossed`]: crate::service::Connections::crossed
    #[error("the service process sets up a connection itself: wait for it")]
    Crossing,
    /// As many others are about to connect as may be at a time.
    #[error("{limit} others are about to connect to the service process: try again, or raise its limit of greetings")]
    Crowded {
        /// Its limit.
        limit: u32,
    },
}

/// Sign of life. A side that says nothing for several times [`Welcome::heartbeat_ms`] counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    /// Counted up by the sender, from 1.
    pub number: u64,
    /// The last number that came from the other side; 0 before the first. It shows that the way there works as well.
    pub seen: u64,
}

/// The queue pair of one side of a connection. Both sides send theirs after the greeting; control messages then go from
/// one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Address of the port in the network of the queue pair, its GID.
    pub gid: [u8; 16],
    /// Ethernet address of the port.
    pub mac: [u8; 6],
    /// Number of the queue pair, 24 bits; 0 and 1 are those of management, which nobody can have.
    pub queue_pair: u32,
    /// Fresh random bytes, of the operating system: with those of the other side the key of the greetings that the
    /// queue pairs begin with.
    pub nonce: [u8; SIDE_NONCE_BYTES],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawLink {
    gid: [u8; 16],
    mac: [u8; 6],
    reserved: [u8; 2],
    queue_pair: U32,
    nonce: [u8; SIDE_NONCE_BYTES],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawHello {
    role: u8,
    reserved: [u8; 5],
    listens: RawEndpoint,
    epoch: U64,
    nonce: [u8; TAG_BYTES],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawWelcome {
    epoch: U64,
    heartbeat_ms: U32,
    groups: U32,
    collectives: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawRejection {
    code: u8,
    reserved: [u8; 3],
    limit: U32,
}

const _: () = assert!(size_of::<RawHello>() == 64 && size_of::<Challenge>() == 64 && size_of::<RawWelcome>() == 24);

const RANK: u8 = 1;
const PROCESS: u8 = 2;

impl Hello {
    pub(super) fn put(&self, to: &mut Fixed) -> Result<(), FormatError> {
        let (role, listens) = match self.role {
            Role::Rank => (RANK, RawEndpoint::NONE),
            Role::Process { listens } => (PROCESS, RawEndpoint::new(listens)?),
        };
        to.put(&RawHello { role, reserved: [0; 5], listens, epoch: self.epoch.into(), nonce: self.nonce });
        Ok(())
    }

    pub(super) const fn get(raw: RawHello) -> Result<Self, FormatError> {
        let RawHello { role, listens, epoch, nonce, .. } = raw;
        let role = match role {
            RANK => Role::Rank,
            PROCESS => Role::Process { listens: listens.endpoint() },
            found => return Err(FormatError::Code { field: "role", found, last: PROCESS }),
        };
        Ok(Self { role, epoch: epoch.get(), nonce })
    }
}

impl Welcome {
    pub(super) fn put(&self, to: &mut Fixed) -> Result<(), FormatError> {
        let Self { epoch, heartbeat_ms, groups, collectives } = *self;
        for (field, found) in [("heartbeat_ms", heartbeat_ms), ("groups", groups), ("collectives", collectives)] {
            within(field, found.into(), 1, u32::MAX.into())?;
        }
        to.put(&RawWelcome {
            epoch: epoch.into(),
            heartbeat_ms: heartbeat_ms.into(),
            groups: groups.into(),
            collectives: collectives.into(),
            reserved: U32::ZERO,
        });
        Ok(())
    }

    pub(super) const fn get(raw: RawWelcome) -> Self {
        let RawWelcome { epoch, heartbeat_ms, groups, collectives, .. } = raw;
        Self {
            epoch: epoch.get(),
            heartbeat_ms: heartbeat_ms.get(),
            groups: groups.get(),
            collectives: collectives.get(),
        }
    }
}

impl Link {
    pub(super) fn put(&self, to: &mut Fixed) -> Result<(), FormatError> {
        let Self { gid, mac, queue_pair, nonce } = *self;
        within("queue pair", queue_pair.into(), 2, 0xFF_FFFF)?;
        to.put(&RawLink { gid, mac, reserved: [0; 2], queue_pair: queue_pair.into(), nonce });
        Ok(())
    }

    pub(super) const fn get(raw: RawLink) -> Self {
        Self { gid: raw.gid, mac: raw.mac, queue_pair: raw.queue_pair.get(), nonce: raw.nonce }
    }
}

impl Rejection {
    const LAST: u8 = 6;

    pub(super) fn put(self, to: &mut Fixed) {
        let (code, limit) = match self {
            Self::Secret => (1, 0),
            Self::Connections { limit } => (2, limit),
            Self::Stopping => (3, 0),
            Self::Format => (4, 0),
            Self::Crossing => (5, 0),
            Self::Crowded { limit } => (Self::LAST, limit),
        };
        to.put(&RawRejection { code, reserved: [0; 3], limit: limit.into() });
    }

    pub(super) const fn get(raw: RawRejection) -> Result<Self, FormatError> {
        Ok(match raw.code {
            1 => Self::Secret,
            2 => Self::Connections { limit: raw.limit.get() },
            3 => Self::Stopping,
            4 => Self::Format,
            5 => Self::Crossing,
            Self::LAST => Self::Crowded { limit: raw.limit.get() },
            found => return Err(FormatError::Code { field: "rejection", found, last: Self::LAST }),
        })
    }
}
