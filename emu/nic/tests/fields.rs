//! Fields of completions that no transfer depends on, byte by byte.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::SEND;
use emu_nic::{Gid, QpModify, Space, Transport};

/// The first entry of a completion queue.
fn first(world: &mut World, cq: &Cq) -> Vec<u8> {
    world.mem[cq.node].get(cq.space, cq.ring, 64)
}

/// Byte 0x18 of the completion of one receive; over IPv6 if asked for.
fn routing_byte(transport: Transport, v6: bool) -> u8 {
    let own = |mac: [u8; 6]| Gid([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mac[5]]);
    let group = Gid([0xFF, 0x0E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    let mut world = World::with(0, 0, |config| {
        if v6 {
            config.gids = vec![own(config.mac).into()];
        }
    });
    let (mut a, mut b) = world.pair(&Setup::new(transport));
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 256);
    world.receive(&mut b.qp, &[(target, 256, key)]);
    let mut wqe = Wqe::new(SEND).inline(b"hello");
    match (transport, v6) {
        (Transport::Ud, false) => wqe = wqe.to(Av::to(1, b.qp.qpn)),
        (Transport::Ud, true) => {
            let qpn = b.qp.qpn;
            world.act(1, |nic, _, _, _| nic.attach_multicast(qpn, group).expect("it joins"));
            wqe = wqe.to(Av::group(group));
        }
        (_, true) => {
            for qp in [&a.qp, &b.qp] {
                let path = QpModify { rgid: Some(own(MACS[1 - qp.node])), ..Default::default() };
                world.modify(qp.node, qp.qpn, &path).expect("a path");
            }
        }
        (_, false) => {}
    }
    world.post(&mut a.qp, &wqe);
    world.run();
    first(&mut world, &b.rcq)[0x18]
}

#[test]
fn receives_give_the_kind_of_their_routing_header() {
    for (v6, kind) in [(false, 2), (true, 1)] {
        assert_eq!(routing_byte(Transport::Ud, v6), 1 << 4 | kind);
        assert_eq!(routing_byte(Transport::Uc, v6), kind);
        assert_eq!(routing_byte(Transport::Rc, v6), kind);
    }
}

#[test]
fn fields_of_other_links_and_offloads_are_zero() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Rc));
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 256);
    world.receive(&mut b.qp, &[(target, 256, key)]);
    world.post(&mut a.qp, &Wqe::new(SEND).inline(b"hello"));
    world.run();
    for cq in [&a.scq, &b.rcq] {
        let cqe = first(&mut world, cq);
        for (range, name) in [
            (0x00..0x18, "wqe_id, hash, ml_path, checksum, slid"),
            (0x1C..0x20, "hds_ip_ext, l4_hdr_type, vlan_info"),
            (0x28..0x2C, "app"),
            (0x3E..0x3F, "signature"),
        ] {
            assert!(cqe[range].iter().all(|&byte| byte == 0), "{name}");
        }
        assert_eq!(cqe[0x3F] & 0xC, 0, "format");
        let nanoseconds = u64::from_be_bytes(cqe[0x30..0x38].try_into().expect("eight bytes"));
        assert!(nanoseconds > 0 && nanoseconds <= world.now_ps / 1000, "timestamp");
    }
}
