//! The header in front of a received datagram against the header of its frame, byte by byte, for frames of peers that
//! fill it as they like.

use crate::common;
use common::*;
use emu_nic::wire::{decode, encode};
use emu_nic::*;

const ETHERNET_BYTES: usize = 14;
const GRH_BYTES: usize = 40;

/// The frame of a datagram to node 0, as a card of ours would send it.
fn frame(gids: [Gid; 2], qpn: u32, bytes: usize, network: Network) -> Vec<u8> {
    let packet = Packet {
        source: Address { mac: MACS[1], gid: gids[1] },
        destination: Address { mac: MACS[0], gid: gids[0] },
        network,
        pkey: DEFAULT_PKEY,
        transport: Transport::Ud,
        operation: Operation::Send,
        first: true,
        last: true,
        solicited: false,
        ack_request: false,
        destination_qpn: qpn,
        psn: 4,
        immediate: None,
        invalidate: None,
        message_number: 0,
        extension: Extension::Datagram { qkey: 0x1111, source_qpn: 6 },
        payload: pattern(bytes, 7).into(),
        damage: None,
    };
    let mut out = Vec::new();
    encode(&packet, &mut out).expect("a datagram");
    out
}

/// Another sender's identification and flags, with the checksums that go with them.
fn restamp(frame: &mut [u8], identification: u16, flags: u8) {
    let ip = &mut frame[ETHERNET_BYTES..];
    ip[4..6].copy_from_slice(&identification.to_be_bytes());
    ip[6] = flags;
    ip[10..12].fill(0);
    let sum: u32 = ip[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!((folded & 0xFFFF) + (folded >> 16)) as u16).to_be_bytes());
    let end = usize::from(u16::from_be_bytes([ip[2], ip[3]])) - 4;
    let check = icrc(RoceVersion::V2, &ip[..end]).expect("a datagram");
    ip[end..end + 4].copy_from_slice(&check.to_le_bytes());
}

/// What a datagram's receive begins with.
fn received(gids: [Gid; 2], make: impl Fn(u32) -> Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let mut world = World::with(0, 0, |config| config.gids = vec![gids[0].into()]);
    let mut end = world.end(0, &Setup::new(Transport::Ud));
    world.connect(&end.qp, (1, 6), &QpModify::default());
    let (target, key) = world.buffer(0, end.qp.pd, Space::Host, 4096);
    world.receive(&mut end.qp, &[(target, 4096, key)]);
    let frame = make(end.qp.qpn);
    let packet = decode(&frame).expect("a frame that a card takes");
    let mut again = Vec::new();
    encode(&packet, &mut again).expect("a datagram");
    assert_eq!(again, frame, "what was on the wire can be encoded again, to the bit");
    world.act(0, |nic, mem, now, fx| nic.handle_packet(now, packet, mem, fx));
    world.run();
    assert_eq!(world.poll_all(&mut end.rcq).len(), 1);
    (world.mem[0].get(Space::Host, target, GRH_BYTES), frame)
}

const NETWORKS: [(u8, u8); 4] = [(0, 64), (0xB2, 7), (0x03, 255), (0xFF, 1)];

#[test]
fn an_ipv4_header_in_memory_is_that_of_the_frame() {
    for bytes in [0, 1, 2, 3, 4, 61, 1024, 4000] {
        for (traffic_class, hop_limit) in NETWORKS {
            for (identification, flags) in [(0, 0x40), (0x1234, 0x40), (0xFFFF, 0), (1, 0), (0, 0)] {
                let network = Network { traffic_class, hop_limit, ..Network::default() };
                let (header, frame) = received(GIDS, |qpn| {
                    let mut frame = frame(GIDS, qpn, bytes, network);
                    restamp(&mut frame, identification, flags);
                    frame
                });
                let on_the_wire = &frame[ETHERNET_BYTES..][..20];
                assert_eq!((on_the_wire[1], on_the_wire[8]), (traffic_class, hop_limit));
                assert_eq!(u16::from_be_bytes([on_the_wire[4], on_the_wire[5]]), identification);
                assert_eq!(header[20..], *on_the_wire, "{bytes} bytes, {network:?}, {identification:#x}, {flags:#x}");
                assert_eq!(header[..20], [0; 20]);
            }
        }
    }
}

#[test]
fn an_ipv6_or_global_header_in_memory_is_that_of_the_frame() {
    let gid = |last| Gid([0x20, 1, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let gids = [gid(1), gid(2)];
    for bytes in [0, 1, 2, 3, 4, 61, 1024, 4000] {
        for (traffic_class, hop_limit) in NETWORKS {
            for (version, next_header) in [(RoceVersion::V2, 17), (RoceVersion::V1, 0x1B)] {
                let network = Network { version, traffic_class, hop_limit, flow_label: 0xF_1234, ..Network::default() };
                let (header, frame) = received(gids, |qpn| frame(gids, qpn, bytes, network));
                assert_eq!(header, frame[ETHERNET_BYTES..][..GRH_BYTES], "{bytes} bytes, {network:?}");
                assert_eq!(header[6], next_header);
            }
        }
    }
}
