//! Addresses of packets: Ethernet and GID.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A 128-bit global identifier: an IPv6 address, or an IPv4 address mapped into one (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The RoCEv2 identifier of an IPv4 address.
    #[must_use]
    pub const fn from_ipv4(address: [u8; 4]) -> Self {
        let [a, b, c, d] = address;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d])
    }

    /// The IPv4 address, if this identifier is an IPv4-mapped one.
    #[must_use]
    pub fn ipv4(self) -> Option<[u8; 4]> {
        let (prefix, address) = self.0.split_at(12);
        if prefix == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF] { address.try_into().ok() } else { None }
    }

    /// Whether this names a group: `ff00::/8`, or an IPv4-mapped `224.0.0.0/4`.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xFF || self.ipv4().is_some_and(|address| address[0] & 0xF0 == 0xE0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

/// One end of a packet's way: Ethernet address and global identifier. A group is an address like any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Global identifier.
    pub gid: Gid,
}

impl Address {
    /// Whether this names a group of ports instead of one.
    #[must_use]
    pub fn is_multicast(&self) -> bool {
        self.mac[0] & 1 == 1 || self.gid.is_multicast()
    }
}

/// The queue pair number that a packet to a group carries.
pub const MULTICAST_QPN: u32 = 0xFF_FFFF;
