//! Raw Ethernet: frames from a send queue to the receive queue that steering names, and what the CQE says of them.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 0xBB, 2, 0, 0, 0, 0, 0xAA, 0x88, 0xB5];
const ALL: FlowMatch = FlowMatch { mask: [0; MATCH_BYTES], value: [0; MATCH_BYTES] };

/// An Ethernet segment: checksums to compute, then a VLAN tag or nothing.
fn segment(wqe: Wqe, checksums: u8, vlan: Option<u16>) -> Wqe {
    let mut bytes = [0; 16];
    bytes[4] = checksums;
    if let Some(vlan) = vlan {
        bytes[12] = 0x80;
        bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
    }
    Wqe { extra: bytes.to_vec(), ..wqe }
}

const ROOM: usize = 9100;

fn fixture() -> Fixture {
    Fixture::new(&Setup::new(Transport::Ethernet), ROOM)
}

impl Fixture {
    fn steer(&mut self, matched: FlowMatch, action: FlowAction) -> u32 {
        let root = Nic::root_flow_table(FlowDirection::Receive);
        self.world.nics[1].create_flow(root, 0, matched, action).expect("a rule")
    }

    fn steer_all(&mut self) -> u32 {
        self.steer(ALL, FlowAction::Queue(self.b.qp.qpn))
    }

    fn post_receive(&mut self, room: u32) {
        self.world.receive(&mut self.b.qp, &[(self.target.0, room, self.target.1)]);
    }

    fn send(&mut self, frame: &[u8], checksums: u8, vlan: Option<u16>) {
        self.world.mem[0].set(Space::Host, self.source.0, frame);
        let wqe = Wqe::new(SEND).data(self.source.0, frame.len(), self.source.1);
        self.world.post(&mut self.a.qp, &segment(wqe, checksums, vlan));
        self.world.run();
    }

    fn received(&mut self, len: usize) -> Vec<u8> {
        self.world.mem[1].get(Space::Host, self.target.0, len)
    }
}

fn frame(len: usize) -> Vec<u8> {
    [&HEADER[..], &pattern(len - HEADER.len(), 7)].concat()
}

#[test]
fn a_frame_reaches_the_queue_that_steering_names() {
    let mut f = fixture();
    f.steer_all();
    for len in [14, 60, 64, 1514, 9018] {
        f.post_receive(ROOM as u32);
        let sent = frame(len);
        f.send(&sent, 0, None);
        let cqe = f.world.poll(&mut f.b.rcq).expect("it arrived");
        // The sender's card pads what is shorter than Ethernet allows.
        let arrived = len.max(wire::MIN_FRAME_BYTES);
        assert_eq!((cqe.opcode, cqe.byte_count as usize), (cqe_opcode::RESPONDER_SEND, arrived));
        assert_eq!(f.received(arrived), [sent, vec![0; arrived - len]].concat());
        assert_eq!(f.world.poll_all(&mut f.a.scq).len(), 1, "and is complete at the sender");
    }
    assert_eq!(f.world.nics[1].counters().steering_drops, 0);
}

#[test]
fn without_a_rule_and_without_a_receive_a_frame_is_dropped_and_counted() {
    let mut f = fixture();
    f.send(&frame(100), 0, None);
    assert_eq!(f.world.nics[1].counters().steering_drops, 1);
    let rule = f.steer_all();
    f.send(&frame(100), 0, None);
    assert_eq!(f.world.nics[1].counters().rnr_drops, 1, "no receive");
    assert_eq!(f.world.nics[1].destroy_qp(f.b.qp.qpn), Err(NicError::QpSteered { qpn: f.b.qp.qpn, flows: 1 }));
    f.world.nics[1].destroy_flow(rule).expect("it is there");
    f.steer(ALL, FlowAction::Drop);
    f.post_receive(200);
    f.send(&frame(100), 0, None);
    assert_eq!(f.world.nics[1].counters().steering_drops, 2);
    assert!(f.world.poll(&mut f.b.rcq).is_none());
}

#[test]
fn a_receive_that_is_too_short_fails_the_queue() {
    let mut f = fixture();
    f.steer_all();
    f.post_receive(99);
    f.send(&frame(100), 0, None);
    let cqe = f.world.poll(&mut f.b.rcq).expect("an error");
    assert_eq!((cqe.opcode, cqe.syndrome), (cqe_opcode::RESPONDER_ERROR, syndrome::LOCAL_LENGTH));
    assert_eq!(f.world.state(&f.b.qp), QpState::Err);
}

#[test]
fn rules_of_the_sender_drop_frames_or_let_them_go() {
    let mut f = fixture();
    f.steer_all();
    let root = Nic::root_flow_table(FlowDirection::Transmit);
    let own = f.world.nics[0].create_flow_table().expect("a table");
    f.world.nics[0].create_flow(root, 0, ALL, FlowAction::Table(own)).expect("a rule");
    // No rule there: it leaves.
    f.post_receive(200);
    f.send(&frame(100), 0, None);
    assert!(f.world.poll(&mut f.b.rcq).is_some());
    let rule = f.world.nics[0].create_flow(own, 0, ALL, FlowAction::Drop).expect("a rule");
    f.post_receive(200);
    f.send(&frame(100), 0, None);
    assert!(f.world.poll(&mut f.b.rcq).is_none());
    assert_eq!(f.world.poll_all(&mut f.a.scq).len(), 2, "it is complete all the same");
    f.world.nics[0].destroy_flow(rule).expect("it is there");
    f.world.nics[0].create_flow(own, 0, ALL, FlowAction::Port).expect("a rule");
    f.send(&frame(100), 0, None);
    assert!(f.world.poll(&mut f.b.rcq).is_some());
}

/// IPv4 and UDP, checksums left out.
fn datagram(payload: usize) -> Vec<u8> {
    let mut frame = frame(14 + 20 + 8 + payload);
    frame[12..14].copy_from_slice(&[8, 0]);
    let total = (28 + payload as u16).to_be_bytes();
    let ip = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    frame[14..34].copy_from_slice(&ip);
    let udp = (8 + payload as u16).to_be_bytes();
    frame[34..42].copy_from_slice(&[0x0F, 0xA0, 0, 53, udp[0], udp[1], 0xDE, 0xAD]);
    frame
}

#[test]
fn checksums_and_a_vlan_tag_are_added_and_reported() {
    let mut f = fixture();
    f.steer_all();
    let raw = |f: &mut Fixture| {
        let at = f.b.rcq.ring + u64::from(f.b.rcq.ci) * 64;
        f.world.mem[1].get(Space::Host, at, 64)
    };
    f.post_receive(ROOM as u32);
    let sent = datagram(31);
    f.send(&sent, 0, None);
    let cqe = raw(&mut f);
    assert_eq!((cqe[0x1C], cqe[0x1D]), (0b001, 0b10_10_00), "UDP over IPv4, both checksums wrong");
    f.world.poll(&mut f.b.rcq).expect("it arrived");

    f.post_receive(ROOM as u32);
    f.send(&sent, 0xC0, Some(0x6123));
    let cqe = raw(&mut f);
    assert_eq!((cqe[0x1C], cqe[0x1D]), (0b111, 0b10_10_01), "both right, with a tag");
    assert_eq!(cqe[0x1E..0x20], [0x61, 0x23]);
    let polled = f.world.poll(&mut f.b.rcq).expect("it arrived");
    assert_eq!(polled.byte_count as usize, sent.len() + 4);
    let arrived = f.received(sent.len() + 4);
    assert_eq!((&arrived[..12], &arrived[12..16]), (&sent[..12], &[0x81, 0, 0x61, 0x23][..]));
    assert_eq!(arrived[16..26], sent[12..22], "up to the checksum of the header");
}

/// The first bytes in the WQE, as drivers do, and the rest in memory.
#[test]
fn the_first_bytes_may_lie_in_the_segment() {
    let mut f = fixture();
    f.steer_all();
    let sent = frame(80);
    for inline in [1, 2, 18, 19, 40] {
        f.post_receive(200);
        f.world.mem[0].set(Space::Host, f.source.0, &sent[inline..]);
        let mut bytes = [0; 14].to_vec();
        bytes[12..14].copy_from_slice(&(inline as u16).to_be_bytes());
        bytes.extend(&sent[..inline]);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        let wqe = Wqe::new(SEND).data(f.source.0, sent.len() - inline, f.source.1);
        f.world.post(&mut f.a.qp, &Wqe { extra: bytes, ..wqe });
        f.world.run();
        assert!(f.world.poll(&mut f.b.rcq).is_some(), "{inline}");
        assert_eq!(f.received(80), sent, "{inline}");
    }
}

#[test]
fn what_is_no_frame_is_refused() {
    for (len, opcode) in [(13, SEND), (0, SEND), (100, SEND_IMM), (100, RDMA_WRITE)] {
        let mut f = fixture();
        let wqe = Wqe::new(opcode).data(f.source.0, len, f.source.1);
        f.world.post(&mut f.a.qp, &segment(wqe, 0, None));
        f.world.run();
        let cqe = f.world.poll(&mut f.a.scq).expect("an error");
        assert_eq!(cqe.opcode, cqe_opcode::REQUESTER_ERROR, "{len} {opcode:#x}");
        assert_eq!(f.world.nics[0].counters().tx_packets, 0);
    }
}

/// At line rate into a ring of 16: what is not received is counted, nothing else happens.
#[test]
fn a_short_ring_loses_frames_and_counts_them() {
    let mut f = fixture();
    f.steer_all();
    for _ in 0..16 {
        f.post_receive(ROOM as u32);
    }
    let sent = frame(64);
    f.world.mem[0].set(Space::Host, f.source.0, &sent);
    for _ in 0..10 {
        for _ in 0..8 {
            let wqe = Wqe::new(SEND).data(f.source.0, sent.len(), f.source.1).unsignalled();
            f.world.put(&mut f.a.qp, &segment(wqe, 0, None));
        }
        f.world.ring(&f.a.qp);
        f.world.run();
    }
    assert_eq!(f.world.poll_all(&mut f.b.rcq).len(), 16);
    assert_eq!(f.world.nics[1].counters().rnr_drops, 64);
    assert_eq!(f.world.state(&f.b.qp), QpState::Rts);
}

#[test]
fn frames_are_bytes_on_the_wire_and_back() {
    let packet = Packet::ethernet(frame(200).into()).expect("a frame");
    let mut bytes = Vec::new();
    wire::encode(&packet, &mut bytes).expect("it has a form");
    assert_eq!(bytes, frame(200));
    assert_eq!(wire::decode_any(&bytes), Ok(packet));
    assert!(wire::decode(&bytes).is_err(), "no RoCEv2");
    assert!(wire::decode_any(&bytes[..13]).is_err());
}
