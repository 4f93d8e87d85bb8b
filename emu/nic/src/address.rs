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

    /// The link-local IPv6 address of an Ethernet address (RFC 4291, appendix A), which a port has by itself.
    #[must_use]
    pub const fn link_local(mac: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = mac;
        Self([0xFE, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
    }

    /// The Ethernet address in a link-local address, if it was made from one.
    #[must_use]
    pub fn link_local_mac(self) -> Option<[u8; 6]> {
        let [.., a, b, c, _, _, d, e, f] = self.0;
        let mac = [a ^ 2, b, c, d, e, f];
        Some(mac).filter(|mac| Self::link_local(*mac) == self)
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

/// How packets of an identifier are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RoceVersion {
    /// A global route header with an EtherType of its own, within a subnet (InfiniBand specification, annex A16).
    V1,
    /// UDP over IPv4 or IPv6 (annex A17).
    #[default]
    V2,
}

/// An entry of a port's table of identifiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GidEntry {
    /// The identifier.
    pub gid: Gid,
    /// How packets from it are packed.
    pub version: RoceVersion,
}

impl From<Gid> for GidEntry {
    /// With the usual version 2.
    fn from(gid: Gid) -> Self {
        Self { gid, version: RoceVersion::V2 }
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

/// The queue pair of a port's general services (InfiniBand specification, volume 1, 13.5.1): connection managers talk
/// through it.
pub const GSI_QPN: u32 = 1;

/// The queue pair number that a packet to a group carries.
pub const MULTICAST_QPN: u32 = 0xFF_FFFF;
