//! The routing header that a datagram's receive begins with.

use crate::packet::{Network, Packet};

/// Bytes that a datagram's routing header takes in front of its payload.
pub(crate) const GRH_BYTES: usize = 40;

/// Whether a packet's routing header is IPv4; IPv6 otherwise.
pub(crate) fn is_ipv4(packet: &Packet) -> bool {
    packet.source.gid.ipv4().is_some() && packet.destination.gid.ipv4().is_some()
}

/// The 40 bytes in front of a datagram: an IPv6 header, or 20 bytes of nothing and an IPv4 header.
pub(crate) fn routing_header(packet: &Packet) -> [u8; GRH_BYTES] {
    const UDP: u8 = 17;
    const ETHERNET_BYTES: u64 = 18;
    const IPV6_BYTES: u64 = 40;
    let mut header = [0; GRH_BYTES];
    let ip_bytes = packet.frame_bytes() - ETHERNET_BYTES;
    if let (Some(source), Some(destination)) = (packet.source.gid.ipv4(), packet.destination.gid.ipv4()) {
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
        header[6] = UDP;
        header[7] = packet.network.hop_limit;
        header[8..24].copy_from_slice(&packet.source.gid.0);
        header[24..40].copy_from_slice(&packet.destination.gid.0);
    }
    header
}
