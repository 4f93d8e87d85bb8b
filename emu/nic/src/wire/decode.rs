//! From a frame to its packet.

use std::sync::Arc;

use etherparse::{EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6Header, UdpHeader};

use super::error::DecodeError;
use super::opcode::{self, Header, Tail};
use super::{
    BTH_BYTES, ETHERNET_BYTES, ICRC_BYTES, MAX_24, MAX_PAYLOAD_BYTES, MIN_FRAME_BYTES, ROCE_V1, UDP_BYTES, UDP_PORT,
};
use crate::address::{Address, Gid, RoceVersion};
use crate::ethernet::{MAX_FRAME_BYTES, is_roce};
use crate::grh::GRH_TRANSPORT;
use crate::icrc::icrc;
use crate::packet::{Acknowledgement, Extension, Network, Packet};
use crate::transport::Transport;

/// The packet in a frame that begins with the Ethernet destination and has no frame check sequence.
///
/// # Errors
/// It is no untagged RoCE packet in one piece, it was corrupted, or it is of a kind that the card does not have.
/// Fields that a [`Packet`] does not hold are not read.
pub fn decode(frame: &[u8]) -> Result<Packet, DecodeError> {
    let (ethernet, rest) = Ethernet2Header::from_slice(frame).map_err(|_| DecodeError::Truncated {
        header: "Ethernet header",
        bytes: frame.len(),
        needed: ETHERNET_BYTES,
    })?;
    let (ip, datagram) = match ethernet.ether_type {
        EtherType::IPV4 => ipv4(rest)?,
        EtherType::IPV6 => ipv6(rest, RoceVersion::V2)?,
        EtherType(ROCE_V1) => ipv6(rest, RoceVersion::V1)?,
        EtherType(value) => return Err(DecodeError::EtherType { value }),
    };
    // What follows the datagram can only be what fills a short frame.
    let frame_bytes = ETHERNET_BYTES + datagram.len();
    between("the frame", frame.len(), frame_bytes, frame_bytes.max(MIN_FRAME_BYTES))?;
    let segment = &datagram[ip.header_bytes..];
    let mut network = ip.network;
    let version = network.version;
    if version == RoceVersion::V2 {
        network.udp_source_port = udp_source_port(segment)?;
    }
    let udp_bytes = if version == RoceVersion::V2 { UDP_BYTES } else { 0 };
    between("the packet", segment.len(), udp_bytes + BTH_BYTES + ICRC_BYTES, usize::MAX)?;

    let (covered, check) = datagram.split_at(datagram.len() - ICRC_BYTES);
    let mut transport = Reader { rest: &covered[ip.header_bytes + udp_bytes..] };
    let value = u32::from_le_bytes([check[0], check[1], check[2], check[3]]);
    let expected = icrc(version, covered).unwrap_or(!value);
    if value != expected {
        return Err(DecodeError::Icrc { value, expected });
    }
    let source = Address { mac: ethernet.source, gid: ip.source };
    let destination = Address { mac: ethernet.destination, gid: ip.destination };
    transport.packet(source, destination, network)
}

/// The source port of RoCEv2's UDP, whose header has to be right.
fn udp_source_port(segment: &[u8]) -> Result<u16, DecodeError> {
    let (udp, _) = UdpHeader::from_slice(segment).map_err(|_| DecodeError::Truncated {
        header: "UDP header",
        bytes: segment.len(),
        needed: UDP_BYTES,
    })?;
    expect("UDP destination port", udp.destination_port.into(), UDP_PORT.into())?;
    let least = UDP_BYTES + BTH_BYTES + ICRC_BYTES;
    between("UDP length", udp.length.into(), least.max(segment.len()), segment.len().max(least))?;
    Ok(udp.source_port)
}

/// The packet in a frame, as [`decode`] finds it, or the frame itself if it is no RoCE.
///
/// # Errors
/// It is RoCE that cannot be decoded, or has no Ethernet header, or is too long.
pub fn decode_any(frame: &[u8]) -> Result<Packet, DecodeError> {
    if is_roce(frame) {
        return decode(frame);
    }
    let (min, max) = (ETHERNET_BYTES, MAX_FRAME_BYTES);
    let short = DecodeError::Length { field: "the frame", value: frame.len(), min, max };
    Packet::ethernet(Arc::from(frame)).ok_or(short)
}

/// What matters of the IP header.
struct Ip {
    header_bytes: usize,
    source: Gid,
    destination: Gid,
    network: Network,
}

fn expect(field: &'static str, value: u64, expected: u64) -> Result<(), DecodeError> {
    if value == expected { Ok(()) } else { Err(DecodeError::Field { field, value, expected }) }
}

fn between(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), DecodeError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(DecodeError::Length { field, value, min, max }) }
}

/// The IPv4 header and the datagram that its length says.
fn ipv4(bytes: &[u8]) -> Result<(Ip, &[u8]), DecodeError> {
    let needed = Ipv4Header::MIN_LEN;
    let short = DecodeError::Truncated { header: "IPv4 header", bytes: bytes.len(), needed };
    let Some(&first) = bytes.first() else { return Err(short) };
    // Version, and the header's length in words: options would be covered by nobody's check sequence.
    expect("IPv4 version and header length", first.into(), 0x45)?;
    let (header, _) = Ipv4Header::from_slice(bytes).map_err(|_| short)?;
    expect("IPv4 header checksum", header.header_checksum.into(), header.calc_header_checksum().into())?;
    expect("IPv4 fragment offset", header.fragment_offset.value().into(), 0)?;
    expect("IPv4 more-fragments flag", header.more_fragments.into(), 0)?;
    expect("IPv4 protocol", header.protocol.0.into(), IpNumber::UDP.0.into())?;
    let total = usize::from(header.total_len);
    between("IPv4 total length", total, needed + UDP_BYTES, bytes.len())?;
    let network = Network {
        traffic_class: header.dscp.value() << 2 | header.ecn.value(),
        hop_limit: header.time_to_live,
        identification: header.identification,
        dont_fragment: header.dont_fragment,
        ..Network::default()
    };
    let (source, destination) = (Gid::from_ipv4(header.source), Gid::from_ipv4(header.destination));
    Ok((Ip { header_bytes: needed, source, destination, network }, &bytes[..total]))
}

/// The same for IPv6, or a global route header, which is laid out alike. Extension headers are not RoCE's.
fn ipv6(bytes: &[u8], version: RoceVersion) -> Result<(Ip, &[u8]), DecodeError> {
    let needed = Ipv6Header::LEN;
    let short = DecodeError::Truncated { header: "IPv6 header", bytes: bytes.len(), needed };
    let Some(&first) = bytes.first() else { return Err(short) };
    expect("IPv6 version", u64::from(first >> 4), 6)?;
    let (header, _) = Ipv6Header::from_slice(bytes).map_err(|_| short)?;
    let (next, least) = match version {
        RoceVersion::V1 => (GRH_TRANSPORT, BTH_BYTES),
        RoceVersion::V2 => (IpNumber::UDP.0, UDP_BYTES),
    };
    expect("IPv6 next header", header.next_header.0.into(), next.into())?;
    let (source, destination) = (Gid(header.source), Gid(header.destination));
    if version == RoceVersion::V2 && destination.ipv4().is_some() {
        return Err(DecodeError::MappedDestination { destination });
    }
    let payload = usize::from(header.payload_length);
    between("IPv6 payload length", payload, least, bytes.len() - needed)?;
    let network = Network {
        version,
        traffic_class: header.traffic_class,
        hop_limit: header.hop_limit,
        flow_label: header.flow_label.value(),
        ..Network::default()
    };
    Ok((Ip { header_bytes: needed, source, destination, network }, &bytes[..needed + payload]))
}

/// The bytes between the UDP header and the invariant check sequence.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self, header: &'static str) -> Result<[u8; N], DecodeError> {
        let short = DecodeError::Truncated { header, bytes: self.rest.len(), needed: N };
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(short)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn packet(&mut self, source: Address, destination: Address, network: Network) -> Result<Packet, DecodeError> {
        let [opcode, flags, pkey @ .., q0, q1, q2, q3, p0, p1, p2, p3] =
            self.take::<BTH_BYTES>("base transport header")?;
        let pkey = u16::from_be_bytes(pkey);
        let ack_and_psn = u32::from_be_bytes([p0, p1, p2, p3]);
        let (transport, kind) = opcode::meaning(opcode).ok_or(DecodeError::Opcode { opcode })?;
        expect("transport header version", u64::from(flags & 0x0F), 0)?;

        let mut message_number = 0;
        let mut extension = self.datagram(transport)?;
        match kind.header {
            Header::None => {}
            Header::Remote => {
                let header = self.take::<16>("RDMA extended header")?;
                let (address, [rkey, len]) = (be64(&header, 0), [be32(&header, 8), be32(&header, 12)]);
                extension = Extension::Remote { address, rkey, len };
            }
            Header::Acknowledge => {
                let (syndrome, number) = self.acknowledgement()?;
                message_number = number;
                let acknowledgement = Acknowledgement::from_syndrome(syndrome);
                extension = Extension::Acknowledge(acknowledgement.ok_or(DecodeError::Syndrome { opcode, syndrome })?);
            }
            Header::Atomic => {
                let header = self.take::<28>("atomic extended header")?;
                extension = Extension::Atomic {
                    address: be64(&header, 0),
                    rkey: be32(&header, 8),
                    swap_or_add: be64(&header, 12),
                    compare: be64(&header, 20),
                };
            }
            Header::AtomicAcknowledge => {
                let (syndrome, number) = self.acknowledgement()?;
                message_number = number;
                if Acknowledgement::from_syndrome(syndrome) != Some(Acknowledgement::Positive) {
                    return Err(DecodeError::Syndrome { opcode, syndrome });
                }
                let original = u64::from_be_bytes(self.take("atomic acknowledgement header")?);
                extension = Extension::AtomicAcknowledge { original };
            }
        }
        let (mut immediate, mut invalidate) = (None, None);
        match kind.tail {
            Tail::None => {}
            Tail::Immediate => immediate = Some(self.take("immediate")?),
            Tail::Invalidate => invalidate = Some(u32::from_be_bytes(self.take("invalidate extended header")?)),
        }
        Ok(Packet {
            source,
            destination,
            network,
            pkey,
            transport,
            operation: kind.operation,
            first: kind.first,
            last: kind.last,
            solicited: flags & 0x80 != 0,
            ack_request: ack_and_psn >> 31 != 0,
            destination_qpn: u32::from_be_bytes([q0, q1, q2, q3]) & MAX_24,
            psn: ack_and_psn & MAX_24,
            immediate,
            invalidate,
            message_number,
            extension,
            payload: self.payload(opcode, kind.payload, usize::from(flags >> 4 & 3))?,
            damage: None,
        })
    }

    fn datagram(&mut self, transport: Transport) -> Result<Extension, DecodeError> {
        if transport != Transport::Ud {
            return Ok(Extension::None);
        }
        let header = self.take::<8>("datagram extended header")?;
        Ok(Extension::Datagram { qkey: be32(&header, 0), source_qpn: be32(&header, 4) & MAX_24 })
    }

    /// Syndrome and message number.
    fn acknowledgement(&mut self) -> Result<(u8, u32), DecodeError> {
        let word = u32::from_be_bytes(self.take("acknowledgement extended header")?);
        Ok(((word >> 24) as u8, word & MAX_24))
    }

    fn payload(&self, opcode: u8, allowed: bool, pad: usize) -> Result<Arc<[u8]>, DecodeError> {
        let bytes = self.rest.len();
        if !allowed && bytes > 0 {
            return Err(DecodeError::Payload { opcode, bytes });
        }
        expect("payload and padding modulo 4", bytes as u64 % 4, 0)?;
        let payload = bytes.checked_sub(pad).ok_or(DecodeError::PadCount { pad, bytes })?;
        between("payload", payload, 0, MAX_PAYLOAD_BYTES)?;
        Ok(Arc::from(&self.rest[..payload]))
    }
}

/// Four big-endian bytes of a header at a constant offset within it.
fn be32<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    header[at..at + 4].iter().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// The same, eight bytes.
fn be64<const N: usize>(header: &[u8; N], at: usize) -> u64 {
    u64::from(be32(header, at)) << 32 | u64::from(be32(header, at + 4))
}
