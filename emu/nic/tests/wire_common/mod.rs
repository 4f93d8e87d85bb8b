//! Packets of every kind, for the tests of the wire format.

#![allow(unreachable_pub, reason = "a module of a test program")]

use std::sync::Arc;

use emu_nic::*;
use proptest::prelude::*;

pub const SOURCE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
pub const DESTINATION_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

/// What an opcode means in a packet: first, last, immediate, invalidate.
type Row = (Transport, Operation, bool, bool, bool, bool, u8);

/// Every opcode there is for RC, UC and UD, written down once more, from the specification.
pub const OPCODES: [Row; 37] = {
    use Operation::*;
    use Transport::*;
    [
        (Rc, Send, true, false, false, false, 0x00),
        (Rc, Send, false, false, false, false, 0x01),
        (Rc, Send, false, true, false, false, 0x02),
        (Rc, Send, false, true, true, false, 0x03),
        (Rc, Send, true, true, false, false, 0x04),
        (Rc, Send, true, true, true, false, 0x05),
        (Rc, Write, true, false, false, false, 0x06),
        (Rc, Write, false, false, false, false, 0x07),
        (Rc, Write, false, true, false, false, 0x08),
        (Rc, Write, false, true, true, false, 0x09),
        (Rc, Write, true, true, false, false, 0x0A),
        (Rc, Write, true, true, true, false, 0x0B),
        (Rc, ReadRequest, true, true, false, false, 0x0C),
        (Rc, ReadResponse, true, false, false, false, 0x0D),
        (Rc, ReadResponse, false, false, false, false, 0x0E),
        (Rc, ReadResponse, false, true, false, false, 0x0F),
        (Rc, ReadResponse, true, true, false, false, 0x10),
        (Rc, Acknowledge, true, true, false, false, 0x11),
        (Rc, AtomicAcknowledge, true, true, false, false, 0x12),
        (Rc, CompareSwap, true, true, false, false, 0x13),
        (Rc, FetchAdd, true, true, false, false, 0x14),
        (Rc, Send, false, true, false, true, 0x16),
        (Rc, Send, true, true, false, true, 0x17),
        (Uc, Send, true, false, false, false, 0x20),
        (Uc, Send, false, false, false, false, 0x21),
        (Uc, Send, false, true, false, false, 0x22),
        (Uc, Send, false, true, true, false, 0x23),
        (Uc, Send, true, true, false, false, 0x24),
        (Uc, Send, true, true, true, false, 0x25),
        (Uc, Write, true, false, false, false, 0x26),
        (Uc, Write, false, false, false, false, 0x27),
        (Uc, Write, false, true, false, false, 0x28),
        (Uc, Write, false, true, true, false, 0x29),
        (Uc, Write, true, true, false, false, 0x2A),
        (Uc, Write, true, true, true, false, 0x2B),
        (Ud, Send, true, true, false, false, 0x64),
        (Ud, Send, true, true, true, false, 0x65),
    ]
};

pub fn v4(last: u8) -> Gid {
    Gid::from_ipv4([192, 0, 2, last])
}

pub fn v6(last: u8) -> Gid {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0x20, 0x01, 0x0D, 0xB8]);
    gid[15] = last;
    Gid(gid)
}

/// Whether the opcode carries payload.
pub fn has_payload(operation: Operation) -> bool {
    matches!(operation, Operation::Send | Operation::Write | Operation::ReadResponse)
}

/// Numbers that fill a packet's fields.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub d: u32,
    pub e: u32,
    pub acknowledgement: Acknowledgement,
}

/// A packet of this row with payload (which is left out where there can be none).
pub fn packet(row: Row, (source, destination): (Gid, Gid), numbers: Numbers, payload: &[u8]) -> Packet {
    let (transport, operation, first, last, immediate, invalidate, _) = row;
    let Numbers { a, b, c, d, e, acknowledgement } = numbers;
    let extension = match (transport, operation) {
        (Transport::Ud, _) => Extension::Datagram { qkey: e, source_qpn: d & 0xFF_FFFF },
        (_, Operation::Send) => Extension::None,
        (_, Operation::Write) if !first => Extension::None,
        (_, Operation::ReadResponse) if !first && !last => Extension::None,
        (_, Operation::Write | Operation::ReadRequest) => Extension::Remote { address: a, rkey: e, len: d },
        (_, Operation::ReadResponse | Operation::Acknowledge) => Extension::Acknowledge(acknowledgement),
        (_, Operation::CompareSwap | Operation::FetchAdd) => {
            Extension::Atomic { address: a, rkey: e, swap_or_add: b, compare: c }
        }
        (_, Operation::AtomicAcknowledge) => Extension::AtomicAcknowledge { original: b },
    };
    let acknowledges = matches!(extension, Extension::Acknowledge(_) | Extension::AtomicAcknowledge { .. });
    let over_ipv4 = destination.ipv4().is_some();
    let flow_label = if over_ipv4 { 0 } else { (c >> 16) as u32 & 0xF_FFFF };
    Packet {
        source: Address { mac: SOURCE_MAC, gid: source },
        destination: Address { mac: wire::group_mac(destination).unwrap_or(DESTINATION_MAC), gid: destination },
        network: Network {
            version: RoceVersion::V2,
            traffic_class: (c >> 8) as u8,
            hop_limit: c as u8,
            flow_label,
            identification: if over_ipv4 { (c >> 16) as u16 } else { 0 },
            dont_fragment: !over_ipv4 || c >> 63 != 0,
            udp_source_port: (c >> 40) as u16,
        },
        pkey: (d >> 3) as u16,
        transport,
        operation,
        first,
        last,
        solicited: a & 1 != 0,
        ack_request: b & 1 != 0,
        destination_qpn: (a >> 8) as u32 & 0xFF_FFFF,
        psn: (b >> 8) as u32 & 0xFF_FFFF,
        immediate: immediate.then(|| e.to_be_bytes()),
        invalidate: invalidate.then_some(e),
        message_number: if acknowledges { d & 0xFF_FFFF } else { 0 },
        extension,
        payload: if has_payload(operation) { Arc::from(payload) } else { Arc::default() },
        damage: None,
    }
}

pub fn any_numbers() -> impl Strategy<Value = Numbers> {
    let acknowledgement = prop_oneof![
        Just(Acknowledgement::Positive),
        (0_u8..32).prop_map(|timer| Acknowledgement::ReceiverNotReady { timer }),
        Just(Acknowledgement::SequenceError),
        Just(Acknowledgement::InvalidRequest),
        Just(Acknowledgement::RemoteAccess),
        Just(Acknowledgement::RemoteOperation),
    ];
    (any::<[u64; 3]>(), any::<[u32; 2]>(), acknowledgement).prop_map(|([a, b, c], [d, e], acknowledgement)| Numbers {
        a,
        b,
        c,
        d,
        e,
        acknowledgement,
    })
}

/// Identifiers of source and destination, groups among them.
pub fn any_gids() -> impl Strategy<Value = (Gid, Gid)> {
    let v4 = || any::<[u8; 4]>().prop_map(Gid::from_ipv4);
    let v6 = || any::<[u8; 16]>().prop_map(Gid);
    let group4 = (224_u8..240, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| Gid::from_ipv4([a, b, c, d]));
    let group6 = any::<[u8; 15]>().prop_map(|tail| {
        let mut gid = [0xFF; 16];
        gid[1..].copy_from_slice(&tail);
        Gid(gid)
    });
    // An IPv4-mapped source may send to an IPv6 group; it is then an IPv6 packet.
    let any6 = prop_oneof![v6(), v6(), v4()];
    prop_oneof![(v4(), v4()), (v4(), group4), (v6(), v6()), (any6, group6)]
}

/// The same packet behind a global route header, which has what an IPv6 header has, and no UDP.
pub fn in_version_1(packet: Packet) -> Packet {
    let Network { traffic_class, hop_limit, flow_label, .. } = packet.network;
    let network = Network { version: RoceVersion::V1, traffic_class, hop_limit, flow_label, ..Network::default() };
    Packet { network, ..packet }
}

pub fn any_packet(max_payload: usize) -> impl Strategy<Value = Packet> {
    let row = proptest::sample::select(OPCODES.to_vec());
    let payload = proptest::collection::vec(any::<u8>(), 0..=max_payload);
    (row, any_gids(), any_numbers(), payload, any::<bool>()).prop_map(|(row, gids, numbers, payload, is_version_1)| {
        let packet = packet(row, gids, numbers, &payload);
        if is_version_1 { in_version_1(packet) } else { packet }
    })
}

/// The frame of a packet that has one.
pub fn frame(packet: &Packet) -> Vec<u8> {
    let mut out = Vec::new();
    wire::encode(packet, &mut out).expect("a packet of the table can be written");
    out
}

/// Bytes from "00 11 22"; white space does not count.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(byte).collect()
}
