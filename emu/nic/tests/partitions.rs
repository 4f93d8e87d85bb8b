//! Partition keys: what reaches a queue pair, and what its table allows.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

/// Sends one message from node 0 to node 1 with the given keys; gives whether it arrived, and the sender's syndrome.
fn exchange(transport: Transport, sender: u16, receiver: u16) -> (usize, u8, u64) {
    let mut world = World::new();
    world.nics[0].set_pkey(1, sender).unwrap();
    world.nics[1].set_pkey(1, receiver).unwrap();
    let modify = QpModify { pkey_index: Some(1), ..QpModify::default() };
    let (mut a, mut b) = world.pair(&Setup { modify, ..Setup::new(transport) });
    let (addr, lkey) = world.buffer(1, b.qp.pd, Space::Host, 256);
    world.receive(&mut b.qp, &[(addr, 256, lkey)]);
    let wqe = Wqe::new(SEND).inline(b"partition");
    world.post(&mut a.qp, &if transport == Transport::Ud { wqe.to(Av::to(1, b.qp.qpn)) } else { wqe });
    world.run();
    let syndrome = world.poll_all(&mut a.scq)[0].syndrome;
    (world.poll_all(&mut b.rcq).len(), syndrome, world.nics[1].counters().pkey_drops)
}

#[test]
fn queue_pairs_of_one_partition_meet() {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        for (sender, receiver) in [(0x8005, 0x8005), (0x0005, 0x8005), (0x8005, 0x0005)] {
            assert_eq!(exchange(transport, sender, receiver), (1, 0, 0), "{transport} {sender:#x} {receiver:#x}");
        }
    }
}

#[test]
fn others_are_dropped_in_silence() {
    for (sender, receiver) in [(0x8005, 0x8006), (0x0005, 0x0005)] {
        for transport in [Transport::Uc, Transport::Ud] {
            let outcome = exchange(transport, sender, receiver);
            assert_eq!(outcome, (0, 0, 1), "{transport}: the sender does not know");
        }
        let (received, syndrome, drops) = exchange(Transport::Rc, sender, receiver);
        assert_eq!((received, syndrome), (0, syndrome::RETRY_EXCEEDED), "a reliable sender receives nothing");
        assert_eq!(drops, 8, "once, and seven retries");
    }
}

#[test]
fn the_table_has_rules() {
    let mut nic = World::new().nics.into_iter().next().unwrap();
    assert_eq!(nic.pkeys(), [DEFAULT_PKEY]);
    assert_eq!(nic.set_pkey(1, 0x8000), Err(NicError::PkeyInvalid { pkey: 0x8000 }));
    assert_eq!(nic.set_pkey(2, 0x8001), Err(NicError::PkeyIndex { index: 2, entries: 1, limit: 128 }));
    for index in 1..128 {
        nic.set_pkey(index, 0x8000 | index as u16).unwrap();
    }
    assert_eq!(nic.set_pkey(128, 0x8001), Err(NicError::PkeyIndex { index: 128, entries: 128, limit: 128 }));

    let mut world = World::new();
    let end = world.end(0, &Setup::new(Transport::Ud));
    let beyond =
        QpModify { next_state: Some(QpState::Init), qkey: Some(1), pkey_index: Some(1), ..QpModify::default() };
    assert_eq!(
        world.modify(0, end.qp.qpn, &beyond),
        Err(NicError::AttributeRange { qpn: end.qp.qpn, attribute: "pkey_index", value: 1, max: 0 })
    );
}

#[test]
fn a_changed_key_counts_from_the_next_packet_on() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Uc));
    let (addr, lkey) = world.buffer(1, b.qp.pd, Space::Host, 256);
    for _ in 0..2 {
        world.receive(&mut b.qp, &[(addr, 256, lkey)]);
    }
    for arrives in [true, false] {
        world.post(&mut a.qp, &Wqe::new(SEND).inline(b"x"));
        world.run();
        assert_eq!(world.poll_all(&mut b.rcq).len(), usize::from(arrives));
        world.nics[0].set_pkey(0, 0x8123).unwrap();
    }
}
