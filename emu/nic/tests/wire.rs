//! The wire format: what is written is read back, what is corrupted is noticed, what is malformed is refused with its
//! reason.

use std::sync::Arc;

use crate::wire_common;
use emu_nic::wire::{DecodeError, EncodeError};
use emu_nic::*;
use proptest::prelude::*;
use wire_common::*;

const ETHERNET_BYTES: usize = 14;

fn numbers() -> Numbers {
    Numbers {
        a: 0x0123_4567_89AB_CDEF,
        b: 0xFEDC_BA98_7654_3210,
        c: 0xC0DE_0000_0000_0040,
        d: 0x0012_3456,
        e: 0x8765_4321,
        acknowledgement: Acknowledgement::Positive,
    }
}

/// The check sequence bit by bit: the polynomial of IEEE 802.3, reflected, over a pseudo packet made by hand. Nothing
/// of it is shared with the card.
fn icrc_by_hand(version: RoceVersion, datagram: &[u8]) -> u32 {
    let mut pseudo = vec![0xFF; 8];
    pseudo.extend_from_slice(datagram);
    let ip = &mut pseudo[8..];
    let network = if ip[0] >> 4 == 4 && version == RoceVersion::V2 {
        ip[1] = 0xFF;
        ip[8] = 0xFF;
        ip[10] = 0xFF;
        ip[11] = 0xFF;
        20
    } else {
        ip[0] |= 0x0F;
        ip[1] = 0xFF;
        ip[2] = 0xFF;
        ip[3] = 0xFF;
        ip[7] = 0xFF;
        40
    };
    let transport = match version {
        RoceVersion::V1 => network,
        RoceVersion::V2 => {
            ip[network + 6] = 0xFF;
            ip[network + 7] = 0xFF;
            network + 8
        }
    };
    ip[transport + 4] = 0xFF;
    let mut crc = u32::MAX;
    for byte in pseudo {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

/// By the EtherType of a frame.
fn version(frame: &[u8]) -> RoceVersion {
    if frame[12..14] == [0x89, 0x15] { RoceVersion::V1 } else { RoceVersion::V2 }
}

/// The datagram of a frame without what fills it up and without its check sequence, and that check sequence.
fn datagram(frame: &[u8]) -> (&[u8], u32) {
    let ip = &frame[ETHERNET_BYTES..];
    let bytes = match ip[0] >> 4 {
        4 => usize::from(u16::from_be_bytes([ip[2], ip[3]])),
        _ => 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
    };
    let (covered, check) = ip[..bytes].split_at(bytes - 4);
    (covered, u32::from_le_bytes(check.try_into().unwrap()))
}

/// Where the base transport header begins in the datagram of a frame.
fn transport(frame: &[u8]) -> usize {
    match version(frame) {
        RoceVersion::V1 => 40,
        RoceVersion::V2 if frame[ETHERNET_BYTES] == 0x45 => 28,
        RoceVersion::V2 => 48,
    }
}

/// Puts the right IPv4 header checksum and check sequence into a frame that was tampered with.
fn fix(frame: &mut [u8]) {
    let ip = &mut frame[ETHERNET_BYTES..];
    if ip[0] == 0x45 {
        ip[10..12].fill(0);
        let sum: u32 = ip[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let folded = (sum & 0xFFFF) + (sum >> 16);
        ip[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
    let (covered, _) = datagram(frame);
    let (at, check) = (ETHERNET_BYTES + covered.len(), icrc_by_hand(version(frame), covered));
    frame[at..at + 4].copy_from_slice(&check.to_le_bytes());
}

#[test]
fn every_opcode_both_networks_both_versions_every_padding() {
    for row in OPCODES {
        for (gids, version) in [
            ((v4(1), v4(2)), RoceVersion::V2),
            ((v6(1), v6(2)), RoceVersion::V2),
            ((v4(1), Gid::from_ipv4([239, 200, 1, 2])), RoceVersion::V2),
            ((v4(1), v4(2)), RoceVersion::V1),
            ((v6(1), v6(2)), RoceVersion::V1),
        ] {
            for bytes in [0, 1, 2, 3, 4, 255, 4096] {
                let mut sent = packet(row, gids, numbers(), &vec![0xA5; bytes]);
                if version == RoceVersion::V1 {
                    sent = in_version_1(sent);
                }
                let frame = frame(&sent);
                assert_eq!(sent.frame_bytes(), frame.len() as u64 + 4, "{sent:?}");
                assert_eq!(wire::decode(&frame).as_ref(), Ok(&sent));
                assert_eq!(sent.opcode(), row.6, "{sent:?}");
                let (covered, check) = datagram(&frame);
                assert_eq!(covered[transport(&frame)], row.6, "the opcode");
                assert_eq!(check, icrc_by_hand(version, covered));
                assert_eq!(Some(check), icrc(version, covered));
            }
        }
    }
}

/// Frames of the outside: an unreliable send whose check sequence the Linux software device gives, and a congestion
/// notification captured on a ConnectX-4 Lx. Both from Scapy's test suite, test/contrib/roce.uts.
#[test]
fn public_frames_have_the_right_check_sequence() {
    let send = hex("248a07a8fa22 248a07a8fa22 0800
         4501 0040 0478 4000 4011 b4d5 c0a80007 c0a80007
         c000 12b7 002c aca2
         24 60 ffff 00 0000d3 00 cf1710
         4630818be28935d90e9a95505401be885e500000
         78f353f3");
    let read = wire::decode(&send).expect("a frame of another implementation");
    assert_eq!((read.transport, read.operation, read.first, read.last), (Transport::Uc, Operation::Send, true, true));
    assert_eq!((read.destination_qpn, read.psn, read.pkey), (211, 13_571_856, 0xFFFF));
    let network = Network { traffic_class: 1, identification: 0x478, udp_source_port: 49_152, ..Network::default() };
    assert_eq!(read.network, network);
    assert_eq!(&read.payload[..], &send[54..72], "two bytes of padding");
    // Ours differs in what a packet does not hold: the UDP checksum, which is 0.
    let mut ours = frame(&read);
    ours[40..42].copy_from_slice(&send[40..42]);
    assert_eq!(ours, send);

    let notification = hex("e41d2dab2bc2 7cfe90643b32 0800
         45c2 003c 718c 4000 4011 9161 0a001101 0a001201
         0000 12b7 0028 0000
         81 00 ffff 40 000118 00 000000
         00000000000000000000000000000000
         82fd002a");
    let (covered, check) = datagram(&notification);
    assert_eq!(icrc(RoceVersion::V2, covered), Some(check));
    assert_eq!(wire::decode(&notification), Err(DecodeError::Opcode { opcode: 0x81 }));
}

/// One packet with every byte accounted for, against the figures of the specification. The check sequence is the
/// bitwise one above, which the public frames vouch for.
#[test]
fn a_write_with_immediate_byte_by_byte() {
    let sent = Packet {
        source: Address { mac: SOURCE_MAC, gid: v4(1) },
        destination: Address { mac: DESTINATION_MAC, gid: v4(2) },
        network: Network { traffic_class: 0x6A, udp_source_port: 0xC123, ..Network::default() },
        pkey: 0x8005,
        transport: Transport::Rc,
        operation: Operation::Write,
        first: true,
        last: true,
        solicited: true,
        ack_request: true,
        destination_qpn: 0x12_3456,
        psn: 0xAB_CDEF,
        immediate: Some([0xDE, 0xAD, 0xBE, 0xEF]),
        invalidate: None,
        message_number: 0,
        extension: Extension::Remote { address: 0x0102_0304_0506_0708, rkey: 0x1122_3344, len: 5 },
        payload: Arc::from(*b"hello"),
        damage: None,
    };
    let mut expected = hex("020000000002 020000000001 0800
         45 6a 0048 0000 4000 40 11 b637 c0000201 c0000202
         c123 12b7 0034 0000
         0b f0 8005 00 123456 80 abcdef
         0102030405060708 11223344 00000005
         deadbeef
         68656c6c6f 000000");
    let check = icrc_by_hand(RoceVersion::V2, &expected[ETHERNET_BYTES..]);
    expected.extend_from_slice(&check.to_le_bytes());
    assert_eq!(frame(&sent), expected);
}

/// The same packet by version 1: a global route header instead of IP and UDP, with the length of what is behind it.
#[test]
fn a_packet_of_version_1_byte_by_byte() {
    let send = packet(OPCODES[4], (v6(1), v6(2)), numbers(), b"hello");
    let network = Network { version: RoceVersion::V1, traffic_class: 0x6A, flow_label: 0xB_CDEF, ..Network::default() };
    let sent = Packet { network, pkey: 0x8005, destination_qpn: 0x12_3456, psn: 0xAB_CDEF, ..send };
    let mut expected = hex("020000000002 020000000001 8915
         66abcdef 0018 1b 40 20010db8000000000000000000000001 20010db8000000000000000000000002");
    expected.extend(frame(&packet(OPCODES[4], (v4(1), v4(2)), numbers(), b"hello"))[42..54].iter());
    let at = expected.len() - 12;
    expected[at + 2..at + 4].copy_from_slice(&[0x80, 0x05]);
    expected[at + 5..at + 8].copy_from_slice(&[0x12, 0x34, 0x56]);
    expected[at + 9..at + 12].copy_from_slice(&[0xAB, 0xCD, 0xEF]);
    expected.extend_from_slice(b"hello\0\0\0");
    let check = icrc_by_hand(RoceVersion::V1, &expected[ETHERNET_BYTES..]);
    expected.extend_from_slice(&check.to_le_bytes());
    assert_eq!(frame(&sent), expected);
}

#[test]
fn short_frames_are_filled_up() {
    let empty_send = OPCODES[4];
    let sent = packet(empty_send, (v4(1), v4(2)), numbers(), &[]);
    let mut frame = frame(&sent);
    assert_eq!((frame.len(), &frame[58..]), (wire::MIN_FRAME_BYTES, &[0, 0][..]));
    assert_eq!(wire::decode(&frame), Ok(sent.clone()));
    assert_eq!(wire::decode(&frame[..58]), Ok(sent), "a capture before the card filled it up");
    frame.push(0);
    assert_eq!(
        wire::decode(&frame),
        Err(DecodeError::Length { field: "the frame", value: 61, min: 58, max: 60 }),
        "more than fills it up"
    );
}

#[test]
fn ethernet_addresses_of_groups() {
    let group4 = Gid::from_ipv4([239, 200, 1, 2]);
    assert_eq!(wire::group_mac(group4), Some([0x01, 0x00, 0x5E, 72, 1, 2]), "23 bits");
    let mut group6 = v6(0x42);
    group6.0[0] = 0xFF;
    group6.0[12] = 0x99;
    assert_eq!(wire::group_mac(group6), Some([0x33, 0x33, 0x99, 0, 0, 0x42]));
    assert_eq!(wire::group_mac(v4(1)), None);
    let mut sent = packet(OPCODES[35], (v4(1), group4), numbers(), b"x");
    sent.destination.mac = [0; 6];
    assert_eq!(frame(&sent)[..6], [0x01, 0x00, 0x5E, 72, 1, 2], "without an address of its own");
    sent.destination.mac = DESTINATION_MAC;
    assert_eq!(frame(&sent)[..6], DESTINATION_MAC, "what the sender says goes");
}

#[test]
fn entropy_ports_are_stable_and_spread() {
    assert_eq!(wire::entropy_port(0, 7), 0xC000);
    // 0x123456 * 0xabcdef = 0x0c3796_5ec14a; worked out by hand from the rule.
    let label = 0x12_3456_u64 * 0xAB_CDEF;
    let folded = label ^ label >> 20;
    let folded = (folded ^ folded >> 40) & 0xF_FFFF;
    assert_eq!(wire::entropy_port(0x12_3456, 0xAB_CDEF), 0xC000 | (folded & 0x3FFF ^ folded >> 14) as u16);
    assert_eq!(wire::entropy_port(3, 5), wire::entropy_port(5, 3), "both directions of a connection agree");
    let ports: std::collections::BTreeSet<u16> = (0..256).map(|n| wire::entropy_port(0x100 + n, 0x900 + n)).collect();
    assert!(ports.len() > 200, "only {} ports for 256 connections", ports.len());
}

#[test]
fn packets_that_are_none() {
    let encode = |packet: &Packet| {
        let mut out = vec![7];
        let error = wire::encode(packet, &mut out).expect_err("not a packet of the architecture");
        assert_eq!(out, [7], "nothing may be written");
        error
    };
    let good = |row: usize| packet(OPCODES[row], (v4(1), v4(2)), numbers(), b"abc");
    let send = good(4);

    let mixed = Packet { source: Address { gid: v6(1), ..send.source }, ..send.clone() };
    assert_eq!(encode(&mixed), EncodeError::MixedNetworks { from: v6(1), to: v4(2) });

    let range = |field, value, max| EncodeError::FieldRange { field, value, max };
    let wide = Packet { destination_qpn: 1 << 24, ..send.clone() };
    assert_eq!(encode(&wide), range("destination queue pair", 1 << 24, 0xFF_FFFF));
    assert_eq!(encode(&Packet { psn: 1 << 24, ..send.clone() }), range("PSN", 1 << 24, 0xFF_FFFF));
    let long = Packet { payload: Arc::from(vec![0; 4097]), ..send.clone() };
    assert_eq!(encode(&long), range("payload length", 4097, 4096));
    let wide = Packet { message_number: 1 << 24, ..good(17) };
    assert_eq!(encode(&wide), range("message number", 1 << 24, 0xFF_FFFF));
    let wide = Packet { extension: Extension::Datagram { qkey: 0, source_qpn: u32::MAX }, ..good(35) };
    assert_eq!(encode(&wide), range("source queue pair", u32::MAX.into(), 0xFF_FFFF));
    let late = Acknowledgement::ReceiverNotReady { timer: 32 };
    let wide = Packet { extension: Extension::Acknowledge(late), ..good(17) };
    assert_eq!(encode(&wide), range("RNR timer", 32, 31));
    let mut wide = packet(OPCODES[4], (v6(1), v6(2)), numbers(), b"");
    wide.network.flow_label = 1 << 20;
    assert_eq!(encode(&wide), range("flow label", 1 << 20, 0xF_FFFF));

    for (row, change) in
        [(4, (Some([0; 4]), Some(1))), (0, (Some([0; 4]), None)), (10, (None, Some(1))), (27, (None, Some(1)))]
    {
        let odd = Packet { immediate: change.0, invalidate: change.1, ..good(row) };
        assert!(matches!(encode(&odd), EncodeError::NoOpcode { .. }), "{odd:?}");
    }
    for (row, transport) in [(12, Transport::Uc), (18, Transport::Uc), (10, Transport::Ud)] {
        let odd = Packet { transport, ..good(row) };
        assert!(matches!(encode(&odd), EncodeError::NoOpcode { .. }), "{odd:?}");
    }
    let odd = Packet { last: false, ..good(17) };
    assert!(matches!(encode(&odd), EncodeError::NoOpcode { .. }), "an acknowledgement is one packet");

    for (row, (.., opcode)) in OPCODES.into_iter().enumerate() {
        let packet = good(row);
        for extension in [good(4), good(10), good(17), good(18), good(19), good(35)].map(|packet| packet.extension) {
            if std::mem::discriminant(&extension) != std::mem::discriminant(&packet.extension) {
                let odd = Packet { extension, ..packet.clone() };
                assert!(matches!(encode(&odd), EncodeError::WrongExtension { .. }), "{odd:?}");
            }
        }
        if !has_payload(packet.operation) {
            let odd = Packet { payload: Arc::from([1]), ..packet.clone() };
            assert_eq!(encode(&odd), EncodeError::Payload { opcode, bytes: 1 });
        }
        if packet.message_number == 0 {
            let odd = Packet { message_number: 1, ..packet };
            assert_eq!(encode(&odd), EncodeError::MessageNumber { opcode, value: 1 });
        }
    }
}

/// One malformed frame after the other: what was changed, and which error it gives.
#[test]
fn malformed_frames_are_reported_by_field_value_and_limit() {
    let ipv4 = |row: usize| frame(&packet(OPCODES[row], (v4(1), v4(2)), numbers(), b"abcde"));
    let ipv6 = |row: usize| frame(&packet(OPCODES[row], (v6(1), v6(2)), numbers(), b"abcde"));
    let refusal = |mut frame: Vec<u8>, at: usize, bytes: &[u8], fixed: bool| {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        if fixed {
            fix(&mut frame);
        }
        wire::decode(&frame).expect_err("malformed").to_string()
    };
    let send = ipv4(4);
    let cut = |frame: &[u8], bytes: usize| wire::decode(&frame[..bytes]).expect_err("too short").to_string();
    assert_eq!(cut(&send, 13), "the Ethernet header needs 14 bytes, but only 13 are left");
    assert_eq!(cut(&send, 33), "the IPv4 header needs 20 bytes, but only 19 are left");
    assert_eq!(cut(&ipv6(4), 53), "the IPv6 header needs 40 bytes, but only 39 are left");
    assert_eq!(cut(&send, 60), "IPv4 total length is 52 bytes, but must be from 28 to 46");
    assert_eq!(cut(&ipv6(4), 60), "IPv6 payload length is 32 bytes, but must be from 8 to 6");
    let vlan = refusal(send.clone(), 12, &[0x81, 0x00], false);
    assert_eq!(vlan, "the EtherType is 0x8100, but must be 0x0800 (IPv4) or 0x86dd (IPv6), untagged");
    let field = |at, bytes: &[u8]| refusal(send.clone(), at, bytes, true);
    assert_eq!(field(14, &[0x46]), "IPv4 version and header length is 0x46, but must be 0x45");
    assert_eq!(refusal(ipv6(4), 14, &[0x50], false), "IPv6 version is 0x5, but must be 0x6");
    assert_eq!(field(20, &[0x20]), "IPv4 more-fragments flag is 0x1, but must be 0x0");
    assert_eq!(field(20, &[0x40, 0x03]), "IPv4 fragment offset is 0x3, but must be 0x0");
    assert_eq!(field(23, &[6]), "IPv4 protocol is 0x6, but must be 0x11");
    assert_eq!(refusal(ipv6(4), 20, &[0], true), "IPv6 next header is 0x0, but must be 0x11");
    assert_eq!(
        refusal(ipv6(4), 38, &v4(9).0, true),
        "the destination ::ffff:192.0.2.9 of an IPv6 header is an IPv4 address: send it over IPv4"
    );
    assert_eq!(field(36, &[0x12, 0xB6]), "UDP destination port is 0x12b6, but must be 0x12b7");
    assert_eq!(field(38, &[0, 31]), "UDP length is 31 bytes, but must be from 32 to 32");
    let checksum = refusal(send.clone(), 24, &[0, 0], false);
    assert!(checksum.starts_with("IPv4 header checksum is 0x0, but must be 0x"), "{checksum}");
    let (_, check) = datagram(&send);
    let corrupt = refusal(send.clone(), 62, &(check ^ 1).to_le_bytes(), false);
    assert_eq!(
        corrupt,
        format!("the invariant check sequence is {:#010x}, but the packet's is {check:#010x}", check ^ 1)
    );
    for opcode in [0x15, 0x18, 0x2C, 0x36, 0x40, 0x63, 0x66, 0x81, 0xC0] {
        let refusal = field(42, &[opcode]);
        assert_eq!(refusal, format!("opcode {opcode:#04x} is not one of RC, UC or UD that the card knows"));
    }
    assert_eq!(field(43, &[0x41]), "transport header version is 0x1, but must be 0x0");
    let empty = frame(&packet(OPCODES[4], (v6(1), v6(2)), numbers(), b""));
    assert_eq!(
        refusal(empty, 63, &[0x70], true),
        "the pad count is 3, but only 0 bytes of payload and padding are there"
    );
    assert_eq!(field(42, &[0x11]), "opcode 0x11 carries no payload, but 4 bytes follow its headers");
    assert_eq!(field(42, &[0x0A]), "the RDMA extended header needs 16 bytes, but only 8 are left");
    assert_eq!(field(42, &[0x13]), "the atomic extended header needs 28 bytes, but only 8 are left");
    let acknowledgement = refusal(ipv4(17), 54, &[0x64], true);
    assert_eq!(acknowledgement, "syndrome 0x64 is reserved or not one that opcode 0x11 may carry");
    let atomic = refusal(ipv4(18), 54, &[0x60], true);
    assert_eq!(atomic, "syndrome 0x60 is reserved or not one that opcode 0x12 may carry");

    // Lengths that agree with one another and with no packet.
    let mut odd = send[..send.len() - 5].to_vec();
    odd[16..18].copy_from_slice(&51_u16.to_be_bytes());
    odd[38..40].copy_from_slice(&31_u16.to_be_bytes());
    odd.extend_from_slice(&[0; 4]);
    fix(&mut odd);
    let refusal = wire::decode(&odd).expect_err("7 bytes").to_string();
    assert_eq!(refusal, "payload and padding modulo 4 is 0x3, but must be 0x0");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back(sent in any_packet(4096), before in proptest::collection::vec(any::<u8>(), 0..9)) {
        let mut out = before.clone();
        wire::encode(&sent, &mut out).unwrap();
        prop_assert_eq!(&out[..before.len()], &before[..], "what was there stays");
        let frame = &out[before.len()..];
        prop_assert_eq!(frame.len() as u64 + 4, sent.frame_bytes());
        prop_assert_eq!(wire::decode(frame), Ok(sent.clone()));
        let (covered, check) = datagram(frame);
        prop_assert_eq!(check, icrc_by_hand(sent.network.version, covered));
        prop_assert_eq!(covered[transport(frame)], sent.opcode());
    }

    #[test]
    fn any_bytes_are_a_packet_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = wire::decode(&bytes);
        let _ = [RoceVersion::V1, RoceVersion::V2].map(|version| icrc(version, &bytes));
    }

    /// Nearly right frames, fixed so that they get past the checksums: what is accepted can be written again and is
    /// then read as the same packet.
    #[test]
    fn tampered_frames_are_a_packet_or_an_error(
        sent in any_packet(64),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        cut in 0_usize..80,
    ) {
        let mut bytes = frame(&sent);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = wire::decode(&bytes[..bytes.len().saturating_sub(cut)]);
        let ip = &bytes[ETHERNET_BYTES..];
        let declared = match ip[0] >> 4 {
            4 => usize::from(u16::from_be_bytes([ip[2], ip[3]])),
            _ => 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
        };
        // Enough for all headers of either version.
        if (60..=ip.len()).contains(&declared) {
            fix(&mut bytes);
        }
        if let Ok(read) = wire::decode(&bytes) {
            prop_assert_eq!(wire::decode(&frame(&read)), Ok(read));
        }
    }

    /// Every bit of one frame, one after the other.
    #[test]
    fn a_flipped_bit_is_noticed_where_the_check_sequence_covers_it(sent in any_packet(40)) {
        let good = frame(&sent);
        let (covered, check) = datagram(&good);
        let (version, transport) = (version(&good), transport(&good));
        let ipv4 = covered[0] == 0x45;
        for bit in 0..covered.len() * 8 {
            let (byte, shift) = (bit / 8, bit % 8);
            let mut flipped = covered.to_vec();
            flipped[byte] ^= 1 << shift;
            let is_udp_checksum = version == RoceVersion::V2 && [transport - 2, transport - 1].contains(&byte);
            let masked = is_udp_checksum
                || byte == transport + 4
                || if ipv4 { [1, 8, 10, 11].contains(&byte) } else { [1, 2, 3, 7].contains(&byte) || byte == 0 && shift < 4 };
            // The version decides what is masked; without one there is no check sequence at all.
            let same = icrc(version, &flipped) == Some(check);
            prop_assert_eq!(same, masked, "byte {} bit {}", byte, shift);
            let mut frame = good.clone();
            frame[ETHERNET_BYTES + byte] ^= 1 << shift;
            let read = wire::decode(&frame);
            if !masked {
                prop_assert!(read.is_err(), "byte {} bit {} went unnoticed", byte, shift);
            } else if ipv4 && byte < 20 {
                // IPv4 has a checksum of its own for them.
                prop_assert!(
                    matches!(read, Err(DecodeError::Field { field: "IPv4 header checksum", .. })),
                    "byte {}: {:?}", byte, read
                );
            } else {
                prop_assert!(read.is_ok(), "byte {}: {:?}", byte, read);
            }
        }
        let last = covered.len() + ETHERNET_BYTES;
        for bit in 0..32 {
            let mut frame = good.clone();
            frame[last + bit / 8] ^= 1 << (bit % 8);
            let noticed = matches!(wire::decode(&frame), Err(DecodeError::Icrc { .. }));
            prop_assert!(noticed);
        }
    }
}
