//! Ethernet frames that are no RoCE packets: what the card reads in their headers, and what it fills in.
//!
//! The card steers by the fields of mlx5's `fte_match_set_lyr_2_4` (Linux `mlx5_ifc.h`; programs fill it in as the
//! match of `mlx5dv_dr_matcher_create`), reports checksums and VLAN in the CQE, and computes checksums of what is sent.

use std::sync::Arc;

use etherparse::{EtherType, IpNumber, LaxNetSlice, LaxSlicedPacket, LinkSlice, TransportSlice, VlanSlice};

use crate::address::{Address, Gid};
use crate::mix::mix;
use crate::packet::{DEFAULT_PKEY, Extension, Network, Operation, Packet};
use crate::transport::Transport;
use crate::wire::{ROCE_V1, UDP_PORT};

/// Longest frame without its check sequence: the largest MTU that mlx5 network devices take, Ethernet header and two
/// VLAN tags.
pub const MAX_FRAME_BYTES: usize = 9978 + 14 + 8;
/// Shortest frame that a program may hand to the card: an Ethernet header. The card pads what is shorter than Ethernet
/// allows.
pub(crate) const HEADER_BYTES: usize = 14;
/// Bytes of the fields that steering compares.
pub const MATCH_BYTES: usize = 64;

/// Bytes of both addresses.
pub(crate) const ADDRESSES_BYTES: usize = 12;
const VLAN_BYTES: usize = 4;

/// The fields of a frame in the layout of `fte_match_set_lyr_2_4`; absent ones are 0.
pub type MatchFields = [u8; MATCH_BYTES];

/// What the card has found in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) fields: MatchFields,
    /// The outer VLAN tag: priority, drop eligibility and number.
    pub(crate) vlan: Option<u16>,
    pub(crate) layer_3: Option<Layer3>,
    pub(crate) layer_4: Option<Layer4>,
}

/// The network header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer3 {
    pub(crate) is_ipv4: bool,
    /// The header's checksum is right; IPv6 has none.
    pub(crate) is_right: bool,
    /// Offset of the header.
    pub(crate) at: usize,
    traffic_class: u8,
}

/// The transport header of a frame, in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer4 {
    pub(crate) is_tcp: bool,
    /// The checksum is right, or absent, as it may be with UDP over IPv4.
    pub(crate) is_right: bool,
    /// Offset of the header.
    at: usize,
    /// Bytes from there to the end of the datagram.
    len: usize,
    pub(crate) ports: [u16; 2],
    pub(crate) payload_bytes: usize,
}

/// Sum of 16-bit words in one's complement arithmetic (RFC 1071).
fn sum(bytes: &[u8], seed: u64) -> u16 {
    let words = bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0)));
    let mut sum = words.fold(seed, |sum, word| sum + word);
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// The sum of the pseudo header (RFC 768, RFC 8200) that checksums of TCP and UDP begin with.
fn pseudo(fields: &MatchFields, len: usize) -> u64 {
    u64::from(sum(&fields[0x20..0x40], u64::from(fields[0x10]) + len as u64))
}

/// What a checksum covers from the network header on, as the CQE reports it (`check_sum`, Linux `CHECKSUM_COMPLETE`).
pub(crate) fn complete_sum(frame: &[u8], parsed: &Parsed) -> u16 {
    parsed.layer_3.map_or(0, |layer| sum(frame.get(layer.at..).unwrap_or_default(), 0))
}

/// Reads the headers of a frame. Whatever is cut short or unknown is absent.
pub(crate) fn parse(frame: &[u8]) -> Parsed {
    let mut parsed = Parsed { fields: [0; MATCH_BYTES], vlan: None, layer_3: None, layer_4: None };
    let Ok(packet) = LaxSlicedPacket::from_ethernet(frame) else { return parsed };
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { return parsed };
    let fields = &mut parsed.fields;
    fields[..6].copy_from_slice(&ethernet.source());
    fields[8..14].copy_from_slice(&ethernet.destination());
    let mut ether_type = ethernet.ether_type();
    let outer = match packet.vlan() {
        Some(VlanSlice::SingleVlan(tag)) => Some((tag.clone(), tag.ether_type())),
        Some(VlanSlice::DoubleVlan(tags)) => Some((tags.outer, tags.inner.ether_type())),
        None => None,
    };
    if let Some((tag, inner_type)) = outer {
        let word = u16::from_be_bytes([tag.slice()[0], tag.slice()[1]]);
        fields[14..16].copy_from_slice(&word.to_be_bytes());
        // Customer tags have EtherType 0x8100, those of a provider 0x88A8.
        fields[0x12] |= if ether_type == EtherType::PROVIDER_BRIDGING { 0x40 } else { 0x80 };
        (parsed.vlan, ether_type) = (Some(word), inner_type);
    }
    parsed.fields[6..8].copy_from_slice(&ether_type.0.to_be_bytes());
    network(frame, &packet, &mut parsed);
    transport(frame, &packet, &mut parsed);
    parsed
}

/// Offset of a part within the frame that it is a slice of.
fn offset(frame: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - frame.as_ptr().addr()
}

fn network(frame: &[u8], packet: &LaxSlicedPacket<'_>, parsed: &mut Parsed) {
    let fields = &mut parsed.fields;
    let mut put = |protocol: IpNumber, traffic_class: u8, hops: u8, version: u8, fragment: bool| {
        fields[0x10] = protocol.0;
        fields[0x11] = traffic_class;
        // Fragment flag, then the version.
        fields[0x12] |= u8::from(fragment) << 5 | version << 1;
        fields[0x1B] = hops;
    };
    match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let class = header.dcp().value() << 2 | header.ecn().value();
            put(header.protocol(), class, header.ttl(), 4, ip.is_payload_fragmented());
            fields[0x2C..0x30].copy_from_slice(&header.source());
            fields[0x3C..0x40].copy_from_slice(&header.destination());
            let is_right = sum(header.slice(), 0) == 0xFFFF;
            let at = offset(frame, header.slice());
            parsed.layer_3 = Some(Layer3 { is_ipv4: true, is_right, at, traffic_class: class });
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let (class, protocol) = (header.traffic_class(), ip.payload().ip_number);
            put(protocol, class, header.hop_limit(), 6, ip.is_payload_fragmented());
            fields[0x20..0x30].copy_from_slice(&header.source());
            fields[0x30..0x40].copy_from_slice(&header.destination());
            let at = offset(frame, header.slice());
            parsed.layer_3 = Some(Layer3 { is_ipv4: false, is_right: true, at, traffic_class: class });
        }
        _ => {}
    }
}

fn transport(frame: &[u8], packet: &LaxSlicedPacket<'_>, parsed: &mut Parsed) {
    let Some(payload) = packet.ip_payload().filter(|payload| !payload.fragmented && !payload.incomplete) else {
        return;
    };
    let (at, len) = (offset(frame, payload.payload), payload.payload.len());
    let fields = &mut parsed.fields;
    let mut put = |at: usize, ports: [u16; 2]| {
        fields[at..at + 2].copy_from_slice(&ports[0].to_be_bytes());
        fields[at + 2..at + 4].copy_from_slice(&ports[1].to_be_bytes());
        ports
    };
    let (is_tcp, ports, absent, payload_bytes) = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let ports = put(0x14, [tcp.source_port(), tcp.destination_port()]);
            let flags = u16::from_be_bytes([tcp.slice()[12], tcp.slice()[13]]) & 0x1FF;
            fields[0x12] |= (flags >> 8) as u8;
            fields[0x13] = flags as u8;
            (true, ports, false, tcp.payload().len())
        }
        Some(TransportSlice::Udp(udp)) => {
            let ports = put(0x1C, [udp.source_port(), udp.destination_port()]);
            (false, ports, udp.checksum() == 0, udp.payload().len())
        }
        _ => return,
    };
    let is_right = absent || sum(payload.payload, pseudo(fields, len)) == 0xFFFF;
    parsed.layer_4 = Some(Layer4 { is_tcp, is_right, at, len, ports, payload_bytes });
}

/// Which checksums the card computes in a frame that it sends: bits of the Ethernet segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offloads {
    /// IPv4 header.
    pub(crate) layer_3: bool,
    /// TCP or UDP.
    pub(crate) layer_4: bool,
    /// VLAN tag to insert: priority, drop eligibility and number.
    pub(crate) vlan: Option<u16>,
}

impl Offloads {
    /// Bytes that they add to a frame.
    pub(crate) fn added_bytes(self) -> usize {
        if self.vlan.is_some() { VLAN_BYTES } else { 0 }
    }

    /// Fills in what the card adds to a frame: `frame` has room for the VLAN tag behind the addresses, and the rest of
    /// the frame behind that.
    pub(crate) fn apply(self, frame: &mut [u8]) {
        if let Some(tag) = self.vlan {
            let [a, b] = EtherType::VLAN_TAGGED_FRAME.0.to_be_bytes();
            let [c, d] = tag.to_be_bytes();
            frame[ADDRESSES_BYTES..ADDRESSES_BYTES + VLAN_BYTES].copy_from_slice(&[a, b, c, d]);
        }
        if !self.layer_3 && !self.layer_4 {
            return;
        }
        let Parsed { fields, layer_3, layer_4, .. } = parse(frame);
        if let Some(layer) = layer_3.filter(|layer| self.layer_3 && layer.is_ipv4) {
            let len = usize::from(frame[layer.at] & 0x0F) * 4;
            let header = &mut frame[layer.at..layer.at + len];
            header[10..12].fill(0);
            let check = !sum(header, 0);
            header[10..12].copy_from_slice(&check.to_be_bytes());
        }
        if let Some(layer) = layer_4.filter(|_| self.layer_4) {
            let segment = &mut frame[layer.at..layer.at + layer.len];
            let at = if layer.is_tcp { 16 } else { 6 };
            segment[at..at + 2].fill(0);
            let check = match !sum(segment, pseudo(&fields, layer.len)) {
                // UDP: 0 says that there is none.
                0 if !layer.is_tcp => 0xFFFF,
                check => check,
            };
            segment[at..at + 2].copy_from_slice(&check.to_be_bytes());
        }
    }
}

impl Packet {
    /// A frame that is no RoCE packet, from its destination address on, without check sequence; `None` if it is
    /// shorter than an Ethernet header, or longer than [`MAX_FRAME_BYTES`].
    #[must_use]
    pub fn ethernet(frame: Arc<[u8]>) -> Option<Self> {
        if !(HEADER_BYTES..=MAX_FRAME_BYTES).contains(&frame.len()) {
            return None;
        }
        let mac = |at: usize| frame[at..at + 6].try_into().unwrap_or_default();
        let [destination, source] = [0, 6].map(|at| Address { mac: mac(at), gid: Gid::default() });
        let traffic_class = parse(&frame).layer_3.map_or(0, |layer| layer.traffic_class);
        Some(Self {
            source,
            destination,
            network: Network { traffic_class, ..Network::default() },
            pkey: DEFAULT_PKEY,
            transport: Transport::Ethernet,
            operation: Operation::Send,
            first: true,
            last: true,
            solicited: false,
            ack_request: false,
            destination_qpn: 0,
            psn: 0,
            immediate: None,
            invalidate: None,
            message_number: 0,
            extension: Extension::None,
            payload: frame,
            damage: None,
        })
    }

    /// What frames have in common that must not overtake one another: addresses, and ports.
    pub(crate) fn ethernet_flow(&self) -> u64 {
        let fields = parse(&self.payload).fields;
        let words = fields.chunks_exact(8).map(|word| word.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        words.fold(0, |hash, word| mix(hash ^ word))
    }
}

/// Whether a frame is a RoCE packet: of version 1, or UDP to the port of version 2, in one piece.
#[must_use]
pub(crate) fn is_roce(frame: &[u8]) -> bool {
    if frame.get(12..14) == Some(&ROCE_V1.to_be_bytes()) {
        return true;
    }
    let parsed = parse(frame);
    parsed.vlan.is_none() && parsed.layer_4.is_some_and(|layer| !layer.is_tcp && layer.ports[1] == UDP_PORT)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::*;

    const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 2];

    const ROOM: usize = 200;

    fn udp(payload: &[u8], vlan: Option<u16>) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2(SOURCE, DESTINATION);
        let mut frame = [0; ROOM];
        let ip = ([192, 0, 2, 1], [198, 51, 100, 7]);
        let len = match vlan {
            None => builder.ipv4(ip.0, ip.1, 33).udp(4000, 53).write_to_slice(&mut frame, payload),
            Some(vlan) => {
                let tag = builder.single_vlan(vlan.try_into().expect("a number"));
                tag.ipv4(ip.0, ip.1, 33).udp(4000, 53).write_to_slice(&mut frame, payload)
            }
        };
        frame[..len.expect("it fits")].to_vec()
    }

    fn tcp_v6(payload: &[u8]) -> Vec<u8> {
        let mut frame = [0; ROOM];
        let builder = PacketBuilder::ethernet2(SOURCE, DESTINATION).ipv6([1; 16], [2; 16], 9);
        let len = builder.tcp(443, 5000, 1, 100).syn().write_to_slice(&mut frame, payload);
        frame[..len.expect("it fits")].to_vec()
    }

    #[test]
    fn fields_lie_where_steering_compares_them() {
        let fields = parse(&udp(&[1, 2, 3], Some(7))).fields;
        assert_eq!(fields[..6], SOURCE);
        assert_eq!(fields[6..8], [8, 0]);
        assert_eq!(fields[8..14], DESTINATION);
        assert_eq!(fields[14..16], [0, 7]);
        assert_eq!(fields[0x10..0x14], [17, 0, 0x88, 0], "UDP, customer tag, IPv4");
        assert_eq!(fields[0x1B], 33);
        assert_eq!(fields[0x1C..0x20], [0x0F, 0xA0, 0, 53]);
        assert_eq!((&fields[0x2C..0x30], &fields[0x3C..0x40]), (&[192, 0, 2, 1][..], &[198, 51, 100, 7][..]));
        let fields = parse(&tcp_v6(&[])).fields;
        assert_eq!(fields[0x10..0x14], [6, 0, 0x0C, 2], "TCP, IPv6, SYN");
        assert_eq!(fields[0x14..0x18], [1, 0xBB, 0x13, 0x88]);
        assert_eq!((&fields[0x20..0x30], &fields[0x30..0x40]), (&[1; 16][..], &[2; 16][..]));
    }

    /// The builder's checksums are another implementation's.
    #[test]
    fn checksums_are_found_right_and_wrong_and_computed() {
        for frame in [udp(&[9; 33], None), udp(&[9; 33], Some(5)), tcp_v6(&[7; 10])] {
            let parsed = parse(&frame);
            let (layer_3, layer_4) = (parsed.layer_3.expect("IP"), parsed.layer_4.expect("ports"));
            assert!(layer_3.is_right && layer_4.is_right);
            let mut wrong = frame.clone();
            let check = layer_4.at + if layer_4.is_tcp { 16 } else { 6 };
            wrong[check..check + 2].copy_from_slice(&[0x12, 0x34]);
            if layer_3.is_ipv4 {
                wrong[layer_3.at + 10] ^= 1;
            }
            let found = parse(&wrong);
            assert!(!found.layer_4.expect("ports").is_right);
            assert_eq!(found.layer_3.expect("IP").is_right, !layer_3.is_ipv4);
            Offloads { layer_3: true, layer_4: true, vlan: None }.apply(&mut wrong);
            assert_eq!(wrong, frame);
        }
    }

    #[test]
    fn a_tag_is_inserted_behind_the_addresses() {
        let (plain, tagged) = (udp(&[5; 20], None), udp(&[5; 20], Some(0x123)));
        let mut frame = [&plain[..12], &[0; 4], &plain[12..]].concat();
        let offloads = Offloads { vlan: Some(0x123), ..Offloads::default() };
        assert_eq!(offloads.added_bytes(), 4);
        offloads.apply(&mut frame);
        assert_eq!(frame, tagged);
    }

    #[test]
    fn frames_are_distinguished_from_rdma() {
        assert!(!is_roce(&udp(&[0; 100], None)));
        assert!(Packet::ethernet(vec![0; 13].into()).is_none());
        assert!(Packet::ethernet(vec![0; MAX_FRAME_BYTES + 1].into()).is_none());
        let packet = Packet::ethernet(udp(&[], None).into()).expect("a frame");
        assert_eq!((packet.source.mac, packet.destination.mac), (SOURCE, DESTINATION));
        assert_eq!(packet.frame_bytes(), 64, "padded, with its check sequence");
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut frame in proptest::collection::vec(any::<u8>(), 18..200), kind in 0_usize..4) {
            let ether_type = [[8, 0], [0x86, 0xDD], [0x81, 0], [0x88, 0xA8]][kind];
            frame[12..14].copy_from_slice(&ether_type);
            let parsed = parse(&frame);
            complete_sum(&frame, &parsed);
            let _ = is_roce(&frame);
            Offloads { layer_3: true, layer_4: true, vlan: Some(1) }.apply(&mut frame);
        }
    }
}
