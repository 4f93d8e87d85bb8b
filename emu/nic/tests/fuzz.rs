//! Whatever lies in the rings, the card keeps its feet.

use crate::common;
use common::*;
use emu_nic::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random send ring and receive ring, random doorbells: no panic, and what was posted completes at most once.
    #[test]
    fn random_rings(
        transport in prop_oneof![Just(Transport::Rc), Just(Transport::Uc), Just(Transport::Ud)],
        blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 64), 8),
        opcodes in proptest::collection::vec(0_usize..14, 8),
        sizes in proptest::collection::vec(0_u8..12, 8),
        receives in proptest::collection::vec(any::<u8>(), 512),
        producer in any::<u16>(),
        posted in 0_u32..12,
        near in any::<bool>(),
    ) {
        let mut world = World::new();
        let setup = Setup { log_sq: 3, log_rq: 3, ..Setup::new(transport) };
        let (a, b) = world.pair(&setup);
        let (buffer, key) = world.buffer(0, a.qp.pd, Space::Host, 256);
        let umr = world.nics[0].create_umr_mkey(a.qp.pd, 4).unwrap();
        for (i, mut block) in blocks.into_iter().enumerate() {
            // Mostly plausible headers, so that the parser is reached in depth.
            block[3] = [
                0x00, 0x08, 0x09, 0x0A, 0x0B, 0x10, 0x0A, 0x01, 0x11, 0x12, 0x1B, 0x25, 0x14, block[3],
            ][opcodes[i]];
            block[0] = 0;
            block[4..7].copy_from_slice(&a.qp.qpn.to_be_bytes()[1..]);
            block[7] = sizes[i];
            if near && matches!(block[3], 0x1B | 0x25) {
                block[12..16].copy_from_slice(&umr.to_be_bytes());
                // Plausible flags, list length and mask.
                block[16] &= 0xB0;
                let octowords = block[21] & 7;
                block[20..24].copy_from_slice(&[0, octowords, 0, 0]);
                block[24..32].copy_from_slice(&(1_u64 | 1 << 6 | 0xF << 18 | 1 << 29).to_be_bytes());
            } else if near {
                block[16..32].copy_from_slice(&data_segment(buffer, 100, key));
            }
            world.mem[0].set(Space::Host, a.qp.sq + i as u64 * 64, &block);
        }
        world.mem[1].set(Space::Host, b.qp.rq, &receives);
        world.mem[1].set(Space::Host, b.qp.dbr, &posted.to_be_bytes());
        let producer = if near { producer % 9 } else { producer };
        world.act(0, |nic, _, now, fx| nic.ring_sq(now, a.qp.qpn, producer, fx));
        world.run();
        let (mut a, mut b) = (a, b);
        prop_assert!(world.poll_all(&mut a.scq).len() <= 8);
        prop_assert!(world.poll_all(&mut b.rcq).len() <= 8);
    }

    /// Random packets in any order at any queue pair.
    #[test]
    fn random_packets(
        transport in prop_oneof![Just(Transport::Rc), Just(Transport::Uc), Just(Transport::Ud)],
        packets in proptest::collection::vec(
            (0_u8..8, any::<bool>(), any::<bool>(), any::<bool>(), 0_u8..9, 0_u32..4, 0_usize..1200, 0_u64..4000, any::<u32>()),
            1..40,
        ),
    ) {
        let mut world = World::new();
        let (mut a, mut b) = world.pair(&Setup::new(transport));
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 4000);
        let group = Address { mac: [0x33, 0x33, 0, 0, 0, 1], gid: Gid([0xFF; 16]) };
        // Only datagram queue pairs may.
        let member = world.nics[1].attach_multicast(b.qp.qpn, group.gid).is_ok();
        prop_assert_eq!(member, transport == Transport::Ud);
        for _ in 0..4 {
            world.receive(&mut b.qp, &[(target, 2000, key)]);
        }
        // Something outstanding, so that answers mean something.
        let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 4000);
        let peer = Av::to(0, a.qp.qpn);
        let wqe = Wqe::new(wqe_opcode::SEND).data(source, 100, lkey);
        world.post(&mut a.qp, &if transport == Transport::Ud { wqe.to(peer) } else { wqe });
        let mut psn = 0xFF_FFF0;
        for (kind, first, last, flag, extension, step, len, offset, word) in packets {
            let operation = [
                Operation::Send, Operation::Write, Operation::ReadRequest, Operation::ReadResponse, Operation::Acknowledge,
                Operation::AtomicAcknowledge, Operation::CompareSwap, Operation::FetchAdd,
            ][usize::from(kind)];
            psn = (psn + step) & 0xFF_FFFF;
            let extension = match extension {
                0 => Extension::None,
                1 => Extension::Datagram { qkey: 0x1111, source_qpn: word & 0xFF_FFFF },
                2 => Extension::Remote { address: target + offset, rkey: key, len: word & 0xFFF },
                3 => Extension::Acknowledge(Acknowledgement::Positive),
                4 => Extension::Acknowledge(Acknowledgement::SequenceError),
                5 => Extension::Atomic { address: target + offset, rkey: key, swap_or_add: 1, compare: offset },
                6 => Extension::AtomicAcknowledge { original: offset },
                7 => Extension::Remote { address: offset, rkey: word, len: word },
                _ => Extension::Acknowledge(Acknowledgement::ReceiverNotReady { timer: word as u8 & 31 }),
            };
            for (node, qpn) in [(1, b.qp.qpn), (0, a.qp.qpn), (1, MULTICAST_QPN)] {
                let own = Address { mac: MACS[node], gid: GIDS[node] };
                let packet = Packet {
                    source: Address { mac: MACS[1 - node], gid: GIDS[1 - node] },
                    destination: if qpn == MULTICAST_QPN { group } else { own },
                    network: Network::default(),
                    pkey: if word % 16 == 0 { word as u16 } else { DEFAULT_PKEY },
                    transport,
                    operation,
                    first,
                    last,
                    solicited: flag,
                    ack_request: flag,
                    destination_qpn: qpn,
                    psn,
                    immediate: (flag && last).then_some([1; 4]),
                    invalidate: (!flag && last && word % 3 == 0).then_some(word),
                    message_number: 0,
                    extension,
                    payload: vec![7; len].into(),
                    damage: None,
                };
                world.act(node, |nic, mem, now, fx| nic.handle_packet(now, packet, mem, fx));
            }
            for _ in 0..5 {
                world.step();
            }
        }
        world.run();
        prop_assert!(world.poll_all(&mut b.rcq).len() <= 4, "no receive completes twice");
        prop_assert!(world.poll_all(&mut a.scq).len() <= 1, "no send completes twice");
    }
}
