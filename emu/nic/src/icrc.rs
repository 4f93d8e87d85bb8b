//! The invariant check sequence of RoCE packets.
//!
//! Source: IBTA Architecture Specification volume 1, section 7.8.1, with the masks of annex A16 (RoCE) and of annex A17
//! (RoCEv2), section A17.3.3. The Linux software device (`rxe_icrc.c`) computes the same.

use crc32fast::Hasher;

use crate::address::RoceVersion;

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const BTH_BYTES: usize = 12;
/// In place of the local route header that RoCE does not have.
const ROUTE_BYTES: usize = 8;

/// The check sequence of what follows the Ethernet header, from the first byte of the IP or global route header to the
/// last pad byte before the check sequence itself. On the wire it stands with its least significant byte first
/// (`to_le_bytes`).
///
/// It is Ethernet's CRC-32 over eight bytes of ones and the datagram, in which the fields that change on the way are
/// replaced by ones: IPv4 type of service, time to live and header checksum; IPv6 traffic class, flow label and hop
/// limit, and the same of a global route header; the UDP checksum; and the byte before the destination queue pair,
/// which has the congestion bits.
///
/// `None` if it is neither IPv4 without options nor IPv6 nor, for version 1, a global route header, or too short for
/// the headers up to the base transport header.
#[must_use]
pub fn icrc(version: RoceVersion, datagram: &[u8]) -> Option<u32> {
    let udp_bytes = match version {
        RoceVersion::V1 => 0,
        RoceVersion::V2 => UDP_BYTES,
    };
    let (network_bytes, masked): (usize, &[usize]) = match datagram.first()? {
        // The two checksum bytes of IPv4 are 10 and 11.
        0x45 if version == RoceVersion::V2 => (IPV4_BYTES, &[1, 8, 10, 11]),
        // The version is not masked, the four bits after it are: see below.
        first if first >> 4 == 6 => (IPV6_BYTES, &[1, 2, 3, 7]),
        _ => return None,
    };
    let header_bytes = network_bytes + udp_bytes + BTH_BYTES;
    let (header, rest) = datagram.split_at_checked(header_bytes)?;
    let mut pseudo = [0xFF; ROUTE_BYTES + IPV6_BYTES + UDP_BYTES + BTH_BYTES];
    let pseudo = &mut pseudo[..ROUTE_BYTES + header_bytes];
    let copy = &mut pseudo[ROUTE_BYTES..];
    copy.copy_from_slice(header);
    for &at in masked {
        copy[at] = 0xFF;
    }
    if network_bytes == IPV6_BYTES {
        copy[0] |= 0x0F;
    }
    if version == RoceVersion::V2 {
        copy[network_bytes + 6..network_bytes + 8].fill(0xFF);
    }
    copy[network_bytes + udp_bytes + 4] = 0xFF;
    let mut hasher = Hasher::new();
    hasher.update(pseudo);
    hasher.update(rest);
    Some(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_ip_nor_long_enough() {
        assert_eq!(icrc(RoceVersion::V2, &[]), None);
        assert_eq!(icrc(RoceVersion::V2, &[0x46; 60]), None, "IPv4 with options");
        assert_eq!(icrc(RoceVersion::V2, &[0x45; 39]), None);
        assert!(icrc(RoceVersion::V2, &[0x45; 40]).is_some());
        assert_eq!(icrc(RoceVersion::V2, &[0x60; 59]), None);
        assert!(icrc(RoceVersion::V2, &[0x60; 60]).is_some());
        assert_eq!(icrc(RoceVersion::V2, &[0x75; 60]), None);
        assert_eq!(icrc(RoceVersion::V1, &[0x45; 60]), None);
        assert_eq!(icrc(RoceVersion::V1, &[0x60; 51]), None);
        assert!(icrc(RoceVersion::V1, &[0x60; 52]).is_some());
    }
}
