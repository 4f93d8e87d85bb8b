//! From a packet to its frame.

use etherparse::{
    EtherType, Ethernet2Header, IpDscp, IpEcn, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, UdpHeader,
};

use super::error::EncodeError;
use super::opcode::{self, Header};
use super::{BTH_BYTES, ICRC_BYTES, MAX_24, MAX_PAYLOAD_BYTES, MIN_FRAME_BYTES, ROCE_V1, UDP_BYTES, UDP_PORT};
use crate::address::{Gid, RoceVersion};
use crate::grh::GRH_TRANSPORT;
use crate::icrc::icrc;
use crate::packet::{Acknowledgement, Extension, Packet};
use crate::transport::Transport;

/// Appends the packet's frame to `out`: from the Ethernet destination to the invariant check sequence, then zeros up to
/// [`MIN_FRAME_BYTES`]. It is as long as [`Packet::frame_bytes`] says, less the four bytes of the frame check sequence.
/// With [`Packet::damage`] one bit of payload or check sequence is wrong.
///
/// The Ethernet addresses are the packet's, except that to a group of destination `00:00:00:00:00:00` the group's own
/// address is used (see [`group_mac`]).
///
/// # Errors
/// The packet is none that the architecture has. `out` is then as it was.
pub fn encode(packet: &Packet, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if packet.transport == Transport::Ethernet {
        frame(packet, out);
        return Ok(());
    }
    let transport = transport_headers(packet)?;
    let pad = pad_count(packet);
    let version = packet.network.version;
    let udp_bytes = if version == RoceVersion::V2 { UDP_BYTES } else { 0 };
    let bytes = udp_bytes + transport.len() + packet.payload.len() + pad + ICRC_BYTES;
    let layer = network_layer(packet)?;
    if !matches!(layer, NetworkLayer::V4 { .. }) {
        limit("flow label", packet.network.flow_label.into(), Ipv6FlowLabel::MAX_U32.into())?;
    }
    // Nothing can go wrong any more.
    let start = out.len();
    network_headers(packet, layer, bytes, out);
    if version == RoceVersion::V2 {
        let udp = UdpHeader {
            source_port: packet.network.udp_source_port,
            destination_port: UDP_PORT,
            length: bytes as u16,
            checksum: 0,
        };
        out.extend_from_slice(&udp.to_bytes());
    }
    out.extend_from_slice(&transport);
    out.extend_from_slice(&packet.payload);
    out.resize(out.len() + pad, 0);
    // The datagram begins after the Ethernet header and has all its headers, so there is a check sequence.
    let check = icrc(version, &out[start + Ethernet2Header::LEN..]).unwrap_or_default();
    out.extend_from_slice(&check.to_le_bytes());
    if let Some(damage) = packet.damage {
        let behind_headers = packet.payload.len() + pad + ICRC_BYTES;
        flip_bit(damage, out, behind_headers);
    }
    if out.len() - start < MIN_FRAME_BYTES {
        out.resize(start + MIN_FRAME_BYTES, 0);
    }
    Ok(())
}

/// An Ethernet frame as it is, padded; one bit is wrong if it was damaged.
fn frame(packet: &Packet, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&packet.payload);
    if let Some(damage) = packet.damage {
        flip_bit(damage, out, packet.payload.len());
    }
    if out.len() - start < MIN_FRAME_BYTES {
        out.resize(start + MIN_FRAME_BYTES, 0);
    }
}

/// The Ethernet address of a group: `01:00:5e` and 23 bits of an IPv4 group (RFC 1112), `33:33` and 32 bits of an IPv6
/// group (RFC 2464); `None` if the identifier names no group.
#[must_use]
pub fn group_mac(group: Gid) -> Option<[u8; 6]> {
    if !group.is_multicast() {
        return None;
    }
    Some(match group.ipv4() {
        Some([_, b, c, d]) => [0x01, 0x00, 0x5E, b & 0x7F, c, d],
        None => [0x33, 0x33, group.0[12], group.0[13], group.0[14], group.0[15]],
    })
}

/// A UDP source port from 0xC000 on for the packets between two queue pairs, so that switches spread connections over
/// their paths and keep each on one: the rule of the Linux RDMA core (`rdma_calc_flow_label`,
/// `rdma_flow_label_to_udp_sport`). Of each number the low 24 bits count.
#[must_use]
pub fn entropy_port(source_qpn: u32, destination_qpn: u32) -> u16 {
    let mut label = u64::from(source_qpn & MAX_24) * u64::from(destination_qpn & MAX_24);
    label ^= label >> 20;
    label ^= label >> 40;
    let (low, high) = (label & 0x3FFF, (label & 0xF_C000) >> 14);
    (low ^ high) as u16 | 0xC000
}

/// Flips one of the bits in the last `bytes` bytes; CRC-32 finds every single one.
fn flip_bit(damage: u64, out: &mut [u8], bytes: usize) {
    let bit = (damage % (8 * bytes as u64)) as usize;
    let first = out.len() - bytes;
    out[first + bit / 8] ^= 1 << (bit % 8);
}

fn pad_count(packet: &Packet) -> usize {
    packet.payload.len().next_multiple_of(4) - packet.payload.len()
}

fn limit(field: &'static str, value: u64, max: u64) -> Result<(), EncodeError> {
    if value > max { Err(EncodeError::FieldRange { field, value, max }) } else { Ok(()) }
}

/// What a packet goes over: RoCE version 1, or the IP of its destination.
#[derive(Clone, Copy)]
enum NetworkLayer {
    Global,
    V4 { source: [u8; 4], destination: [u8; 4] },
    V6,
}

fn network_layer(packet: &Packet) -> Result<NetworkLayer, EncodeError> {
    let (from, to) = (packet.source.gid, packet.destination.gid);
    match (packet.network.version, from.ipv4(), to.ipv4()) {
        (RoceVersion::V1, ..) => Ok(NetworkLayer::Global),
        (_, Some(source), Some(destination)) => Ok(NetworkLayer::V4 { source, destination }),
        (_, _, None) => Ok(NetworkLayer::V6),
        (_, None, Some(_)) => Err(EncodeError::MixedNetworks { from, to }),
    }
}

/// Ethernet header and network layer, with `bytes` behind them.
fn network_headers(packet: &Packet, layer: NetworkLayer, bytes: usize, out: &mut Vec<u8>) {
    let network = packet.network;
    let no_mac = packet.destination.mac == [0; 6];
    let ethernet = Ethernet2Header {
        source: packet.source.mac,
        destination: group_mac(packet.destination.gid).filter(|_| no_mac).unwrap_or(packet.destination.mac),
        ether_type: match layer {
            NetworkLayer::Global => EtherType(ROCE_V1),
            NetworkLayer::V4 { .. } => EtherType::IPV4,
            NetworkLayer::V6 => EtherType::IPV6,
        },
    };
    out.extend_from_slice(&ethernet.to_bytes());
    if let NetworkLayer::V4 { source, destination } = layer {
        let mut ip = Ipv4Header {
            dscp: IpDscp::try_new(network.traffic_class >> 2).unwrap_or_default(),
            ecn: IpEcn::try_new(network.traffic_class & 3).unwrap_or_default(),
            total_len: (Ipv4Header::MIN_LEN + bytes) as u16,
            identification: network.identification,
            dont_fragment: network.dont_fragment,
            time_to_live: network.hop_limit,
            protocol: IpNumber::UDP,
            source,
            destination,
            ..Ipv4Header::default()
        };
        ip.header_checksum = ip.calc_header_checksum();
        out.extend_from_slice(&ip.to_bytes());
    } else {
        // A global route header is laid out as that of IPv6.
        let is_global = matches!(layer, NetworkLayer::Global);
        let ip = Ipv6Header {
            traffic_class: network.traffic_class,
            flow_label: Ipv6FlowLabel::try_new(network.flow_label).unwrap_or_default(),
            payload_length: bytes as u16,
            next_header: if is_global { IpNumber(GRH_TRANSPORT) } else { IpNumber::UDP },
            hop_limit: network.hop_limit,
            source: packet.source.gid.0,
            destination: packet.destination.gid.0,
        };
        out.extend_from_slice(&ip.to_bytes());
    }
}

/// The base transport header and the extended ones, once every field has been found to fit.
fn transport_headers(packet: &Packet) -> Result<Vec<u8>, EncodeError> {
    let Some((opcode, kind)) = opcode::of(packet) else {
        return Err(EncodeError::NoOpcode {
            transport: packet.transport,
            operation: packet.operation,
            first: packet.first,
            last: packet.last,
            immediate: packet.immediate.is_some(),
            invalidate: packet.invalidate.is_some(),
        });
    };
    limit("destination queue pair", packet.destination_qpn.into(), MAX_24.into())?;
    limit("PSN", packet.psn.into(), MAX_24.into())?;
    limit("message number", packet.message_number.into(), MAX_24.into())?;
    limit("payload length", packet.payload.len() as u64, MAX_PAYLOAD_BYTES as u64)?;
    if !kind.payload && !packet.payload.is_empty() {
        return Err(EncodeError::Payload { opcode, bytes: packet.payload.len() });
    }
    let acknowledges = matches!(kind.header, Header::Acknowledge | Header::AtomicAcknowledge);
    if !acknowledges && packet.message_number != 0 {
        return Err(EncodeError::MessageNumber { opcode, value: packet.message_number });
    }

    let mut out = Vec::with_capacity(BTH_BYTES + 32);
    out.push(opcode);
    // Solicited event, migration request, pad count, transport header version 0.
    out.push(u8::from(packet.solicited) << 7 | 1 << 6 | (pad_count(packet) as u8) << 4);
    out.extend_from_slice(&packet.pkey.to_be_bytes());
    out.extend_from_slice(&packet.destination_qpn.to_be_bytes());
    out.extend_from_slice(&(u32::from(packet.ack_request) << 31 | packet.psn).to_be_bytes());
    extension(packet, opcode, kind.header, &mut out)?;
    if let Some(immediate) = packet.immediate {
        out.extend_from_slice(&immediate);
    }
    if let Some(rkey) = packet.invalidate {
        out.extend_from_slice(&rkey.to_be_bytes());
    }
    Ok(out)
}

fn extension(packet: &Packet, opcode: u8, header: Header, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let needs = match (packet.transport, header) {
        (Transport::Ud, _) => "a datagram header",
        (_, Header::None) => "none",
        (_, Header::Remote) => "a remote memory header",
        (_, Header::Acknowledge) => "an acknowledgement header",
        (_, Header::Atomic) => "an atomic header",
        (_, Header::AtomicAcknowledge) => "an atomic acknowledgement header",
    };
    let acknowledge = |syndrome: u8| (u32::from(syndrome) << 24 | packet.message_number).to_be_bytes();
    match (packet.transport, header, packet.extension) {
        (Transport::Rc | Transport::Uc, Header::None, Extension::None) => {}
        (Transport::Ud, Header::None, Extension::Datagram { qkey, source_qpn }) => {
            limit("source queue pair", source_qpn.into(), MAX_24.into())?;
            out.extend_from_slice(&qkey.to_be_bytes());
            out.extend_from_slice(&source_qpn.to_be_bytes());
        }
        (_, Header::Remote, Extension::Remote { address, rkey, len }) => {
            out.extend_from_slice(&address.to_be_bytes());
            out.extend_from_slice(&rkey.to_be_bytes());
            out.extend_from_slice(&len.to_be_bytes());
        }
        (_, Header::Acknowledge, Extension::Acknowledge(acknowledgement)) => {
            if let Acknowledgement::ReceiverNotReady { timer } = acknowledgement {
                limit("RNR timer", timer.into(), 0x1F)?;
            }
            out.extend_from_slice(&acknowledge(acknowledgement.syndrome()));
        }
        (_, Header::Atomic, Extension::Atomic { address, rkey, swap_or_add, compare }) => {
            out.extend_from_slice(&address.to_be_bytes());
            out.extend_from_slice(&rkey.to_be_bytes());
            out.extend_from_slice(&swap_or_add.to_be_bytes());
            out.extend_from_slice(&compare.to_be_bytes());
        }
        (_, Header::AtomicAcknowledge, Extension::AtomicAcknowledge { original }) => {
            out.extend_from_slice(&acknowledge(Acknowledgement::Positive.syndrome()));
            out.extend_from_slice(&original.to_be_bytes());
        }
        (_, _, extension) => return Err(EncodeError::WrongExtension { opcode, extension, needs }),
    }
    Ok(())
}
