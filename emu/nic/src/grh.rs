//! The routing header that a datagram's receive begins with.

use crate::address::RoceVersion;
use crate::packet::{Network, Packet};

/// The next header of a global route header in front of a base transport header.
pub(crate) const GRH_TRANSPORT: u8 = 0x1B;
/// Bytes that a datagram's routing header takes in front of its payload.
pub(crate) const GRH_BYTES: usize = 40;

/// Kinds of routing headers, as CQEs number them (Linux `mlx5_ib`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoutingHeader {
    /// The global route header of InfiniBand: RoCE version 1.
    Global = 0,
    V6 = 1,
    V4 = 2,
}

/// Which one a packet has.
pub(crate) fn kind(packet: &Packet) -> RoutingHeader {
    let is_ipv4 = packet.source.gid.ipv4().is_some() && packet.destination.gid.ipv4().is_some();
    match packet.network.version {
        RoceVersion::V1 => RoutingHeader::Global,
        RoceVersion::V2 if is_ipv4 => RoutingHeader::V4,
        RoceVersion::V2 => RoutingHeader::V6,
    }
}

/// The 40 bytes in front of a datagram: a global route header or an IPv6 header, which are laid out alike, or 20 bytes
/// of nothing and an IPv4 header.
pub(crate) fn routing_header(packet: &Packet) -> [u8; GRH_BYTES] {
    const UDP: u8 = 17;
    const ETHERNET_BYTES: u64 = 18;
    const IPV6_BYTES: u64 = 40;
    let mut header = [0; GRH_BYTES];
    let ip_bytes = packet.frame_bytes() - ETHERNET_BYTES;
    let is_ip = packet.network.version == RoceVersion::V2;
    if let (true, Some(source), Some(destination)) = (is_ip, packet.source.gid.ipv4(), packet.destination.gid.ipv4()) {
        let ip = &mut header[20..];
        ip[0] = 0x45;
        ip[1] = packet.network.traffic_class;
        ip[2..4].copy_from_slice(&(ip_bytes as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&packet.network.identification.to_be_bytes());
        ip[6] = u8::from(packet.network.dont_fragment) << 6;
        ip[8] = packet.network.hop_limit;
        ip[9] = UDP;
        ip[12..16].copy_from_slice(&source);
        ip[16..20].copy_from_slice(&destination);
        let sum: u32 = ip.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let folded = (sum & 0xFFFF) + (sum >> 16);
        let checksum = !((folded & 0xFFFF) + (folded >> 16)) as u16;
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let Network { traffic_class, flow_label, .. } = packet.network;
        let word = 6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0xF_FFFF;
        header[0..4].copy_from_slice(&word.to_be_bytes());
        header[4..6].copy_from_slice(&((ip_bytes.saturating_sub(IPV6_BYTES)) as u16).to_be_bytes());
        header[6] = if is_ip { UDP } else { GRH_TRANSPORT };
        header[7] = packet.network.hop_limit;
        header[8..24].copy_from_slice(&packet.source.gid.0);
        header[24..40].copy_from_slice(&packet.destination.gid.0);
    }
    header
}
