//! Memory keys, protection domains, Q_Keys: each violation and where it shows.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const LEN: usize = 3000;

fn fixture(transport: Transport) -> Fixture {
    let mut fixture = Fixture::new(&Setup::new(transport), LEN);
    let Fixture { world, source, target, .. } = &mut fixture;
    world.mem[0].set(Space::Host, source.0, &pattern(LEN, 1));
    world.mem[1].set(Space::Host, target.0, &pattern(LEN, 77));
    fixture
}

/// Ways to spoil a key: name, the spoilt key, and its vendor syndrome.
fn spoilt(
    world: &mut World,
    node: usize,
    pd: u32,
    (addr, key): (u64, u32),
    needed: Access,
) -> Vec<(&'static str, u32, u8)> {
    let other_pd = world.nics[node].alloc_pd().unwrap();
    let stale = world.key(node, pd, Space::Host, addr, LEN as u64, Access::all());
    world.nics[node].destroy_mkey(stale).unwrap();
    let reused = world.key(node, pd, Space::Host, addr, LEN as u64, Access::all());
    assert_eq!((reused >> 8, reused == stale), (stale >> 8, false), "an index comes back with another tag");
    let mut keys = vec![
        ("stale", stale, vendor::KEY_UNKNOWN),
        ("unknown", key.wrapping_add(1), vendor::KEY_UNKNOWN),
        ("protection domain", world.key(node, other_pd, Space::Host, addr, LEN as u64, Access::all()), vendor::KEY_PD),
        ("end", world.key(node, pd, Space::Host, addr, LEN as u64 - 1, Access::all()), vendor::KEY_RANGE),
        ("start", world.key(node, pd, Space::Host, addr + 1, LEN as u64, Access::all()), vendor::KEY_RANGE),
        ("no memory", world.key(node, pd, Space::Dpa(99), addr, LEN as u64, Access::all()), vendor::NO_MEMORY),
    ];
    if !needed.is_empty() {
        let rights = Access::all().difference(needed);
        keys.push(("rights", world.key(node, pd, Space::Host, addr, LEN as u64, rights), vendor::KEY_RIGHTS));
    }
    keys
}

fn count(transport: Transport, needed: Access) -> usize {
    let Fixture { mut world, b, target, .. } = fixture(transport);
    spoilt(&mut world, 1, b.qp.pd, target, needed).len()
}

#[test]
fn local_reads_are_checked() {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        for i in 0..count(transport, Access::empty()) {
            let Fixture { mut world, mut a, b, source, .. } = fixture(transport);
            let (name, lkey, vendor) = spoilt(&mut world, 0, a.qp.pd, source, Access::empty())[i];
            let mut wqe = Wqe::new(SEND).data(source.0, LEN, lkey).unsignalled();
            if transport == Transport::Ud {
                wqe = wqe.to(Av::to(1, b.qp.qpn));
            }
            world.post(&mut a.qp, &wqe);
            world.run();
            let cqes = world.poll_all(&mut a.scq);
            assert_eq!(cqes.len(), 1, "{transport} {name}: an error completes an unsignalled WQE");
            let cqe = &cqes[0];
            assert_eq!(
                (cqe.opcode, cqe.syndrome, cqe.vendor, cqe.send_opcode),
                (cqe_opcode::REQUESTER_ERROR, syndrome::LOCAL_PROTECTION, vendor, SEND),
                "{transport} {name}"
            );
            assert_eq!(world.state(&a.qp), QpState::Err);
            assert_eq!(world.arrivals, [], "{transport} {name}: nothing was sent");
        }
    }
}

#[test]
fn receives_are_checked() {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        for i in 0..count(transport, Access::LOCAL_WRITE) {
            let Fixture { mut world, mut a, mut b, source, target } = fixture(transport);
            let (name, lkey, vendor) = spoilt(&mut world, 1, b.qp.pd, target, Access::LOCAL_WRITE)[i];
            world.receive(&mut b.qp, &[(target.0, LEN as u32, lkey)]);
            let mut wqe =
                Wqe::new(SEND).data(source.0, if transport == Transport::Ud { LEN - 40 } else { LEN }, source.1);
            if transport == Transport::Ud {
                wqe = wqe.to(Av::to(1, b.qp.qpn));
            }
            world.post(&mut a.qp, &wqe);
            world.run();
            let cqes = world.poll_all(&mut b.rcq);
            assert_eq!(cqes.len(), 1, "{transport} {name}");
            assert_eq!(
                (cqes[0].opcode, cqes[0].syndrome, cqes[0].vendor),
                (cqe_opcode::RESPONDER_ERROR, syndrome::LOCAL_PROTECTION, vendor),
                "{transport} {name}"
            );
            assert_eq!(world.state(&b.qp), QpState::Err);
            let sender = &world.poll_all(&mut a.scq)[0];
            let expected = if transport == Transport::Rc { syndrome::REMOTE_OPERATION } else { 0 };
            assert_eq!(sender.syndrome, expected, "{transport} {name}: only a reliable sender learns of it");
        }
    }
}

#[test]
fn read_destinations_are_checked() {
    for i in 0..count(Transport::Rc, Access::LOCAL_WRITE) {
        let Fixture { mut world, mut a, source, target, .. } = fixture(Transport::Rc);
        let (name, lkey, vendor) = spoilt(&mut world, 0, a.qp.pd, source, Access::LOCAL_WRITE)[i];
        world.post(&mut a.qp, &Wqe::new(RDMA_READ).data(source.0, LEN, lkey).remote(target.0, target.1));
        world.run();
        let cqes = world.poll_all(&mut a.scq);
        assert_eq!((cqes[0].syndrome, cqes[0].vendor), (syndrome::LOCAL_PROTECTION, vendor), "{name}");
        assert!(world.mem[0].get(Space::Host, source.0, LEN) == pattern(LEN, 1), "{name}: memory is untouched");
    }
}

#[test]
fn remote_accesses_are_checked() {
    for (opcode, needed) in
        [(RDMA_WRITE, Access::REMOTE_WRITE), (RDMA_WRITE_IMM, Access::REMOTE_WRITE), (RDMA_READ, Access::REMOTE_READ)]
    {
        for i in 0..count(Transport::Rc, needed) {
            let Fixture { mut world, mut a, mut b, source, target } = fixture(Transport::Rc);
            let (name, rkey, _) = spoilt(&mut world, 1, b.qp.pd, target, needed)[i];
            world.receive(&mut b.qp, &[]);
            world.post(&mut a.qp, &Wqe::new(opcode).data(source.0, LEN, source.1).remote(target.0, rkey));
            world.run();
            let cqe = &world.poll_all(&mut a.scq)[0];
            let expected = if name == "no memory" { syndrome::REMOTE_OPERATION } else { syndrome::REMOTE_ACCESS };
            assert_eq!((cqe.opcode, cqe.syndrome), (cqe_opcode::REQUESTER_ERROR, expected), "{opcode:#x} {name}");
            assert_eq!((world.state(&a.qp), world.state(&b.qp)), (QpState::Err, QpState::Err));
            let fatal = AsyncEvent::QpFatal { qpn: b.qp.qpn, cause: FailureCause::RemoteAccess };
            assert_eq!(world.async_events, [(1, fatal)], "{opcode:#x} {name}");
            let flushed = world.poll_all(&mut b.rcq);
            assert_eq!((flushed.len(), flushed[0].syndrome), (1, syndrome::FLUSHED), "{opcode:#x} {name}");
            assert!(world.mem[1].get(Space::Host, target.0, LEN) == pattern(LEN, 77), "{name}: memory is untouched");
        }
    }
}

#[test]
fn an_unreliable_write_without_rights_vanishes() {
    for i in 0..count(Transport::Uc, Access::REMOTE_WRITE) {
        let Fixture { mut world, mut a, mut b, source, target } = fixture(Transport::Uc);
        let (name, rkey, _) = spoilt(&mut world, 1, b.qp.pd, target, Access::REMOTE_WRITE)[i];
        world.receive(&mut b.qp, &[]);
        world.post(&mut a.qp, &Wqe::new(RDMA_WRITE_IMM).data(source.0, LEN, source.1).remote(target.0, rkey));
        world.run();
        assert_eq!(world.poll_all(&mut a.scq)[0].opcode, cqe_opcode::REQUESTER, "{name}: the sender does not know");
        assert_eq!(world.poll_all(&mut b.rcq), [], "{name}");
        assert!(world.mem[1].get(Space::Host, target.0, LEN) == pattern(LEN, 77), "{name}");
        let counters = *world.nics[1].counters();
        assert_eq!((counters.access_drops, counters.uc_gap_drops), (1, 2), "{name}: the rest of the message goes too");
        assert_eq!(world.state(&b.qp), QpState::Rts, "{name}: the queue pair lives on");
        world.post(&mut a.qp, &Wqe::new(RDMA_WRITE_IMM).data(source.0, LEN, source.1).remote(target.0, target.1));
        world.run();
        assert_eq!(world.poll_all(&mut b.rcq).len(), 1, "{name}");
    }
}

#[test]
fn the_queue_pair_must_allow_what_the_key_allows() {
    for (opcode, missing) in [(RDMA_WRITE, Access::REMOTE_WRITE), (RDMA_READ, Access::REMOTE_READ)] {
        let Fixture { mut world, mut a, b, source, target } = fixture(Transport::Rc);
        let access = Some(Access::all().difference(missing));
        world.modify(1, b.qp.qpn, &QpModify { access, ..QpModify::default() }).unwrap();
        world.post(&mut a.qp, &Wqe::new(opcode).data(source.0, 8, source.1).remote(target.0, target.1));
        world.run();
        assert_eq!(world.poll_all(&mut a.scq)[0].syndrome, syndrome::REMOTE_ACCESS, "{opcode:#x}");
    }
}

#[test]
fn empty_accesses_need_no_key() {
    for opcode in [RDMA_WRITE, RDMA_READ] {
        let Fixture { mut world, mut a, .. } = fixture(Transport::Rc);
        world.post(&mut a.qp, &Wqe::new(opcode).remote(0, 0));
        world.run();
        assert_eq!(world.poll_all(&mut a.scq)[0].opcode, cqe_opcode::REQUESTER, "{opcode:#x}");
    }
}

#[test]
fn a_key_destroyed_between_packets_stops_the_message() {
    let Fixture { mut world, mut a, source, target, .. } = fixture(Transport::Rc);
    world.post(&mut a.qp, &Wqe::new(RDMA_WRITE).data(source.0, LEN, source.1).remote(target.0, target.1));
    while world.arrivals.is_empty() {
        assert!(world.step());
    }
    world.nics[1].destroy_mkey(target.1).unwrap();
    world.run();
    assert_eq!(world.poll_all(&mut a.scq)[0].syndrome, syndrome::REMOTE_ACCESS);
    assert!(world.mem[1].get(Space::Host, target.0, 1024) == pattern(LEN, 1)[..1024], "the first packet was stored");
    assert!(world.mem[1].get(Space::Host, target.0 + 1024, 8) == pattern(LEN, 77)[1024..1032], "the next was not");
}

fn send_datagram(world: &mut World, a: &mut End, b: &mut End, target: (u64, u32), qkey: u32) -> usize {
    world.receive(&mut b.qp, &[(target.0, LEN as u32, target.1)]);
    world.post(&mut a.qp, &Wqe::new(SEND).to(Av { qkey, ..Av::to(1, b.qp.qpn) }).inline(b"datagram"));
    world.run();
    world.poll_all(&mut b.rcq).len()
}

#[test]
fn datagrams_need_the_right_qkey() {
    let Fixture { mut world, mut a, mut b, target, .. } = fixture(Transport::Ud);
    assert_eq!(send_datagram(&mut world, &mut a, &mut b, target, 0x1111), 1);
    assert_eq!(send_datagram(&mut world, &mut a, &mut b, target, 0x1112), 0);
    assert_eq!(world.nics[1].counters().qkey_drops, 1);
    // A privileged key stands for the sender's own, which is the right one.
    assert_eq!(send_datagram(&mut world, &mut a, &mut b, target, 0x8000_0000), 1);
    let privileged = QpModify { qkey: Some(0x8765_4321), ..QpModify::default() };
    world.modify(1, b.qp.qpn, &privileged).unwrap();
    assert_eq!(
        send_datagram(&mut world, &mut a, &mut b, target, 0x8765_4321),
        0,
        "an unprivileged sender cannot name it"
    );
    world.modify(0, a.qp.qpn, &privileged).unwrap();
    assert_eq!(send_datagram(&mut world, &mut a, &mut b, target, 0x8000_0000), 1);
}

#[test]
fn keys_and_domains_have_lives() {
    let mut nic = World::new().nics.into_iter().next().unwrap();
    let pd = nic.alloc_pd().unwrap();
    let attr = MkeyAttr { pd, space: Space::Host, start: 0x1000, len: 0x1000, access: Access::REMOTE_READ, offset: 0 };
    assert_eq!(nic.create_mkey(MkeyAttr { pd: 99, ..attr }), Err(NicError::UnknownPd { pd: 99 }));
    assert_eq!(nic.create_mkey(MkeyAttr { len: 0, ..attr }), Err(NicError::MkeyRange { start: 0x1000, len: 0 }));
    let wraps = MkeyAttr { start: u64::MAX - 0xFFF, len: 0x1001, ..attr };
    assert_eq!(nic.create_mkey(wraps), Err(NicError::MkeyRange { start: wraps.start, len: wraps.len }));
    let to_the_end = nic.create_mkey(MkeyAttr { len: 0x1000, ..wraps }).unwrap();
    assert_eq!(nic.check_access(to_the_end, pd, u64::MAX, 1, Access::empty()), Ok(Space::Host));
    assert!(nic.check_access(to_the_end, pd, u64::MAX, 2, Access::empty()).is_err());

    let key = nic.create_mkey(attr).unwrap();
    assert_eq!(nic.dealloc_pd(pd), Err(NicError::PdInUse { pd, users: 2 }));
    assert_eq!(nic.query_mkey(key), Some(&attr));
    nic.destroy_mkey(key).unwrap();
    assert_eq!(nic.destroy_mkey(key), Err(NicError::UnknownMkey { key }));
    nic.destroy_mkey(to_the_end).unwrap();
    nic.dealloc_pd(pd).unwrap();
    assert_eq!(nic.dealloc_pd(pd), Err(NicError::UnknownPd { pd }));
    // The key that ends a receive list can never be a real one.
    let pd = nic.alloc_pd().unwrap();
    for _ in 0..1000 {
        let key = nic.create_mkey(MkeyAttr { pd, ..attr }).unwrap();
        assert_ne!(key, 0x100);
        nic.destroy_mkey(key).unwrap();
    }
}
