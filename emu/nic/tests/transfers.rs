//! Every opcode on every transport, byte by byte.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const SIZES: [usize; 7] = [0, 1, 63, 1023, 1024, 1025, 10_000];
const IMMEDIATE: [u8; 4] = [0xDE, 0xAD, 0x00, 0x07];

fn one(transport: Transport, opcode: u8, space: Space, len: usize, loopback: bool) {
    let case = format!("{transport} opcode {opcode:#x} {space:?} {len} bytes, loopback {loopback}");
    let mut world = World::new();
    let setup = Setup { space, ..Setup::new(transport) };
    let target = usize::from(!loopback);
    let (mut a, mut b) = if loopback {
        let (a, b) = (world.end(0, &setup), world.end(0, &setup));
        world.connect(&a.qp, (0, b.qp.qpn), &setup.modify);
        world.connect(&b.qp, (0, a.qp.qpn), &setup.modify);
        (a, b)
    } else {
        world.pair(&setup)
    };
    let (source, lkey) = world.buffer(0, a.qp.pd, space, len);
    let (destination, rkey) = world.buffer(target, b.qp.pd, space, len);
    let (receive, receive_key) = world.buffer(target, b.qp.pd, space, len + 40);
    let data = pattern(len, 5);
    // For a read, data flows the other way.
    let (from, to) =
        if opcode == RDMA_READ { ((target, destination), (0, source)) } else { ((0, source), (target, destination)) };
    world.mem[from.0].set(space, from.1, &data);
    world.receive(&mut b.qp, &[(receive, len as u32 + 40, receive_key)]);

    let mut wqe = Wqe::new(opcode).immediate(IMMEDIATE).data(source, len, lkey);
    if matches!(opcode, RDMA_WRITE | RDMA_WRITE_IMM | RDMA_READ) {
        wqe = wqe.remote(destination, rkey);
    }
    if transport == Transport::Ud {
        wqe = wqe.to(Av::to(target, b.qp.qpn));
    }
    world.post(&mut a.qp, &wqe);
    world.run();

    let sent = world.poll_all(&mut a.scq);
    assert_eq!(sent.len(), 1, "{case}");
    assert_eq!((sent[0].opcode, sent[0].send_opcode, sent[0].counter), (cqe_opcode::REQUESTER, opcode, 0), "{case}");
    assert_eq!((sent[0].qpn, sent[0].user_index, sent[0].byte_count), (a.qp.qpn, 0xABC, len as u32), "{case}");

    let received = world.poll_all(&mut b.rcq);
    let grh = if transport == Transport::Ud { 40 } else { 0 };
    match opcode {
        SEND | SEND_IMM => {
            let got = world.mem[target].get(space, receive + grh as u64, len);
            assert!(got == data, "{case}: bytes differ");
        }
        _ => {
            let got = world.mem[to.0].get(space, to.1, len);
            assert!(got == data, "{case}: bytes differ");
        }
    }
    let expected = match opcode {
        SEND => Some((cqe_opcode::RESPONDER_SEND, [0; 4])),
        SEND_IMM => Some((cqe_opcode::RESPONDER_SEND_IMMEDIATE, IMMEDIATE)),
        RDMA_WRITE_IMM => Some((cqe_opcode::RESPONDER_WRITE_IMMEDIATE, IMMEDIATE)),
        _ => None,
    };
    match expected {
        None => assert_eq!(received, [], "{case}"),
        Some((opcode, immediate)) => {
            assert_eq!(received.len(), 1, "{case}");
            let cqe = &received[0];
            assert_eq!((cqe.opcode, cqe.immediate, cqe.counter), (opcode, immediate, 0), "{case}");
            assert_eq!((cqe.qpn, cqe.byte_count), (b.qp.qpn, (len + grh) as u32), "{case}");
            assert_eq!((cqe.source_qpn, cqe.grh), (a.qp.qpn, u8::from(grh > 0)), "{case}");
        }
    }
    let counters = world.nics[0].counters();
    assert_eq!(counters.loopback_packets > 0, loopback, "{case}");
    assert_eq!(counters.tx_packets == 0, loopback, "{case}");
    assert_eq!(world.async_events, [], "{case}");
}

#[test]
fn every_opcode_on_every_transport() {
    let combinations: [(Transport, &[u8]); 3] = [
        (Transport::Rc, &[SEND, SEND_IMM, RDMA_WRITE, RDMA_WRITE_IMM, RDMA_READ]),
        (Transport::Uc, &[SEND, SEND_IMM, RDMA_WRITE, RDMA_WRITE_IMM]),
        (Transport::Ud, &[SEND, SEND_IMM]),
    ];
    for (transport, opcodes) in combinations {
        for &opcode in opcodes {
            for space in [Space::Host, DPA] {
                for len in SIZES {
                    // A datagram is one packet.
                    if transport != Transport::Ud || len <= 4096 {
                        one(transport, opcode, space, len, false);
                        one(transport, opcode, space, len, true);
                    }
                }
            }
        }
    }
}

#[test]
fn gather_and_scatter_lists_are_concatenated() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Rc));
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 4000);
    let (target, target_key) = world.buffer(1, b.qp.pd, DPA, 4000);
    let data = pattern(4000, 1);
    world.mem[0].set(Space::Host, source, &data);
    world.receive(
        &mut b.qp,
        &[(target + 1000, 500, target_key), (target, 1000, target_key), (target + 2000, 2000, target_key)],
    );
    let wqe = Wqe::new(SEND).data(source + 3000, 1000, lkey).data(source, 1, lkey).data(source + 1, 1400, lkey);
    world.post(&mut a.qp, &wqe);
    world.run();
    assert_eq!(world.poll_all(&mut b.rcq)[0].byte_count, 2401);
    let sent: Vec<u8> = [&data[3000..4000], &data[..1401]].concat();
    let got = [(target + 1000, 500), (target, 1000), (target + 2000, 901)]
        .map(|(addr, len)| world.mem[1].get(DPA, addr, len))
        .concat();
    assert!(got == sent);
    let behind = world.mem[1].get(DPA, target + 2901, 99);
    assert_eq!(behind, [0; 99], "nothing is written past the message");
}

#[test]
fn inline_data_of_every_length_crosses_block_ends() {
    for len in [0, 1, 12, 13, 28, 44, 45, 100, 200] {
        let mut world = World::new();
        let (mut a, mut b) = world.pair(&Setup::new(Transport::Uc));
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 256);
        world.receive(&mut b.qp, &[(target, 256, key)]);
        let data = pattern(len, 9);
        world.post(&mut a.qp, &Wqe::new(SEND).inline(&data));
        world.run();
        assert_eq!(world.poll_all(&mut b.rcq)[0].byte_count, len as u32);
        assert!(world.mem[1].get(Space::Host, target, len) == data, "{len} inline bytes");
    }
}

#[test]
fn a_wqe_wraps_at_the_end_of_its_ring() {
    let mut world = World::new();
    // Four blocks; a datagram WQE with immediate takes two, a NOP one.
    let setup = Setup { log_sq: 2, ..Setup::new(Transport::Ud) };
    let (mut a, mut b) = world.pair(&setup);
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 64);
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 4096);
    world.post(&mut a.qp, &Wqe::new(NOP));
    world.run();
    for round in 0..9_u8 {
        let data = pattern(64, round);
        world.mem[0].set(Space::Host, source, &data);
        world.receive(&mut b.qp, &[(target, 200, key)]);
        let wqe = Wqe::new(SEND_IMM).to(Av::to(1, b.qp.qpn)).data(source, 64, lkey).immediate([round; 4]);
        world.post(&mut a.qp, &wqe);
        world.run();
        let cqe = world.poll(&mut b.rcq).expect("the datagram arrives");
        assert_eq!((cqe.immediate, cqe.counter), ([round; 4], u16::from(round)));
        assert!(world.mem[1].get(Space::Host, target + 40, 64) == data, "round {round}");
    }
    let indices: Vec<u16> = world.poll_all(&mut a.scq).iter().map(|cqe| cqe.counter).collect();
    assert_eq!(indices, [0, 1, 3, 5, 7, 9, 11, 13, 15, 17]);
}

#[test]
fn the_requester_cqe_gives_back_the_index_field() {
    let mut world = World::new();
    let (mut a, _) = world.pair(&Setup::new(Transport::Uc));
    world.post(&mut a.qp, &Wqe { index: Some(0xBEEF), ..Wqe::new(NOP) });
    world.run();
    assert_eq!(world.poll_all(&mut a.scq)[0].counter, 0xBEEF);
}

#[test]
fn unsignalled_wqes_complete_silently() {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        let mut world = World::new();
        let (mut a, mut b) = world.pair(&Setup::new(transport));
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 256);
        for i in 0..6 {
            world.receive(&mut b.qp, &[(target, 256, key)]);
            let mut wqe = Wqe::new(SEND).inline(&[i; 20]);
            if transport == Transport::Ud {
                wqe = wqe.to(Av::to(1, b.qp.qpn));
            }
            if i != 3 {
                wqe = wqe.unsignalled();
            }
            world.put(&mut a.qp, &wqe);
        }
        world.ring(&a.qp);
        world.run();
        assert_eq!(world.poll_all(&mut a.scq).len(), 1, "{transport}");
        assert_eq!(world.poll_all(&mut b.rcq).len(), 6, "{transport}");
    }
}

#[test]
fn a_datagram_has_its_routing_header_in_front() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Ud));
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 256);
    world.receive(&mut b.qp, &[(target, 256, key)]);
    world.post(&mut a.qp, &Wqe::new(SEND_IMM).to(Av::to(1, b.qp.qpn)).inline(b"hello"));
    world.run();
    assert_eq!(world.poll_all(&mut b.rcq)[0].byte_count, 45);
    let bytes = world.mem[1].get(Space::Host, target, 45);
    assert_eq!(bytes[..20], [0; 20]);
    assert_eq!((bytes[20], bytes[29]), (0x45, 17), "IPv4 without options, UDP");
    assert_eq!(bytes[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    // IP 20, UDP 8, BTH 12, DETH 8, immediate 4, payload 8 (padded), ICRC 4.
    assert_eq!(u16::from_be_bytes([bytes[22], bytes[23]]), 64);
    let sum: u32 = bytes[20..40].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF, "the checksum holds");
    assert_eq!(&bytes[40..], b"hello");
}

#[test]
fn packets_have_the_published_length_on_the_wire() {
    use emu_fabric::Link;
    let mut world = World::new();
    for (transport, opcode, on_wire) in [(Transport::Uc, RDMA_WRITE_IMM, 4198), (Transport::Ud, SEND_IMM, 4190)] {
        let before = Link::<Packet>::counters(&world.link, 0).tx_bytes;
        let setup =
            Setup { modify: QpModify { path_mtu: Some(Mtu::B4096), ..QpModify::default() }, ..Setup::new(transport) };
        let (mut a, mut b) = world.pair(&setup);
        let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 4096);
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 5000);
        world.receive(&mut b.qp, &[(target, 5000, key)]);
        let mut wqe = Wqe::new(opcode).data(source, 4096, lkey);
        wqe = if transport == Transport::Ud { wqe.to(Av::to(1, b.qp.qpn)) } else { wqe.remote(target, key) };
        world.post(&mut a.qp, &wqe);
        world.run();
        assert_eq!(world.poll_all(&mut b.rcq).len(), 1);
        assert_eq!(Link::<Packet>::counters(&world.link, 0).tx_bytes - before, on_wire, "{transport}");
    }
}

#[test]
fn a_fence_waits_for_reads_and_reads_respect_their_depth() {
    let mut world = World::new();
    let setup =
        Setup { modify: QpModify { max_rd_atomic: Some(1), ..QpModify::default() }, ..Setup::new(Transport::Rc) };
    let (mut a, b) = world.pair(&setup);
    let (local, lkey) = world.buffer(0, a.qp.pd, Space::Host, 8192);
    let (remote, rkey) = world.buffer(1, b.qp.pd, Space::Host, 8192);
    world.mem[1].set(Space::Host, remote, &pattern(8192, 1));
    // Read 4096 bytes twice, then write what the reads brought back behind them.
    world.put(&mut a.qp, &Wqe::new(RDMA_READ).data(local, 2048, lkey).remote(remote, rkey));
    world.put(&mut a.qp, &Wqe::new(RDMA_READ).data(local + 2048, 2048, lkey).remote(remote + 2048, rkey));
    let mut write = Wqe::new(RDMA_WRITE).data(local, 4096, lkey).remote(remote + 4096, rkey);
    write.flags |= 4 << 5;
    world.put(&mut a.qp, &write);
    world.ring(&a.qp);
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 3);
    assert!(world.mem[1].get(Space::Host, remote + 4096, 4096) == pattern(8192, 1)[..4096]);
    let requests = world.arrivals.iter().filter(|(_, node, opcode, _)| (*node, *opcode) == (1, 12)).count();
    assert_eq!(requests, 2);
    let second_request = world.arrivals.iter().rposition(|(_, _, opcode, _)| *opcode == 12).expect("request");
    let responses_before = world.arrivals[..second_request].iter().filter(|(_, node, ..)| *node == 0).count();
    assert_eq!(responses_before, 2, "the second request waits for both packets of the first answer");
}
