//! UMR keys, invalidation, alias keys, and keys that go while packets are under way.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

/// Rights in the key context: local write, remote read, remote write, atomic.
const ALL: u8 = 0x78;
const START: u64 = 0x10_0000;
const ERROR: u8 = cqe_opcode::REQUESTER_ERROR;

struct Fixture {
    world: World,
    a: End,
    b: End,
    source: (u64, u32),
    /// Two buffers of node 1.
    parts: [(u64, u32); 2],
}

fn fixture() -> Fixture {
    let mut world = World::new();
    let (a, b) = world.pair(&Setup::new(Transport::Rc));
    let source = world.buffer(0, a.qp.pd, Space::Host, 8192);
    world.mem[0].set(Space::Host, source.0, &pattern(8192, 3));
    let parts = [world.buffer(1, b.qp.pd, Space::Host, 4096), world.buffer(1, b.qp.pd, DPA, 4096)];
    Fixture { world, a, b, source, parts }
}

impl Fixture {
    /// A UMR key of node 1 over 1000 bytes of the first buffer and 3000 of the second.
    fn bound(&mut self, rights: u8) -> u32 {
        let key = self.world.nics[1].create_umr_mkey(self.b.qp.pd, 4).unwrap();
        let entries = [(1000, self.parts[0].1, self.parts[0].0), (3000, self.parts[1].1, self.parts[1].0)];
        self.world.post(&mut self.b.qp, &Wqe::new(UMR).key(key).bind(START, 4000, rights, &entries));
        self.world.run();
        let cqes = self.world.poll_all(&mut self.b.scq);
        assert_eq!((cqes.len(), cqes[0].opcode, cqes[0].send_opcode), (1, cqe_opcode::REQUESTER, UMR));
        key
    }

    fn run(&mut self, wqe: &Wqe) -> Vec<Cqe> {
        self.world.post(&mut self.a.qp, wqe);
        self.world.run();
        self.world.poll_all(&mut self.a.scq)
    }

    fn write(&self, addr: u64, len: usize, rkey: u32) -> Wqe {
        Wqe::new(RDMA_WRITE).data(self.source.0, len, self.source.1).remote(addr, rkey)
    }

    fn read(&self, addr: u64, len: usize, rkey: u32) -> Wqe {
        Wqe::new(RDMA_READ).data(self.source.0 + 4096, len, self.source.1).remote(addr, rkey)
    }
}

#[test]
fn accesses_through_a_umr_key_go_to_its_entries() {
    let mut fixture = fixture();
    let key = fixture.bound(ALL);
    let write = fixture.write(START + 10, 3500, key);
    assert_eq!(fixture.run(&write)[0].opcode, cqe_opcode::REQUESTER);
    let sent = pattern(8192, 3);
    let [host, dpa] = fixture.parts;
    assert!(fixture.world.mem[1].get(Space::Host, host.0 + 10, 990) == sent[..990]);
    assert_eq!(fixture.world.mem[1].get(Space::Host, host.0 + 1000, 8), [0; 8], "behind the first entry");
    assert!(fixture.world.mem[1].get(DPA, dpa.0, 2510) == sent[990..3500]);
    let read = fixture.read(START + 10, 3500, key);
    assert_eq!(fixture.run(&read)[0].opcode, cqe_opcode::REQUESTER);
    assert!(fixture.world.mem[0].get(Space::Host, fixture.source.0 + 4096, 3500) == sent[..3500], "and back");
    // An atomic whose bytes lie in both entries.
    let at = START + 1000 - 8;
    let atomic = Wqe::new(ATOMIC_FA).remote(at, key).operands(0, 0).data(fixture.source.0, 8, fixture.source.1);
    assert_eq!(fixture.run(&atomic)[0].opcode, cqe_opcode::REQUESTER);
    assert!(fixture.world.mem[0].get(Space::Host, fixture.source.0, 8) == sent[982..990]);
}

#[test]
fn a_umr_key_serves_as_lkey_too() {
    let mut fixture = fixture();
    let key = fixture.bound(ALL);
    fixture.world.mem[1].set(Space::Host, fixture.parts[0].0, &pattern(1000, 1));
    fixture.world.mem[1].set(DPA, fixture.parts[1].0, &pattern(3000, 2));
    let (target, rkey) = fixture.world.buffer(0, fixture.a.qp.pd, Space::Host, 4000);
    fixture.world.post(&mut fixture.b.qp, &Wqe::new(RDMA_WRITE).data(START, 4000, key).remote(target, rkey));
    fixture.world.run();
    let got = fixture.world.mem[0].get(Space::Host, target, 4000);
    assert!(got[..1000] == pattern(1000, 1) && got[1000..] == pattern(3000, 2));
    assert_eq!(
        fixture.world.nics[1].check_access(key, fixture.b.qp.pd, START, 8, Access::empty()).map_err(|_| ()),
        Err(())
    );
    assert_eq!(fixture.world.nics[1].query_umr_mkey(key).map(<[KlmEntry]>::len), Some(2));
}

#[test]
fn violations_of_a_umr_key_are_refused() {
    type Change = fn(&mut Fixture, u32) -> Wqe;
    let cases: [(&str, u8, Change); 6] = [
        ("before the range", ALL, |b, key| b.write(START - 1, 8, key)),
        ("past the range", ALL, |b, key| b.write(START + 3993, 8, key)),
        ("right", 0x18, |b, key| b.write(START, 8, key)),
        ("tag", ALL, |b, key| b.write(START, 8, key ^ 1)),
        ("an entry's key is gone", ALL, |b, key| {
            b.world.nics[1].destroy_mkey(b.parts[1].1).unwrap();
            b.write(START + 990, 20, key)
        }),
        ("destroyed", ALL, |b, key| {
            b.world.nics[1].destroy_mkey(key).unwrap();
            b.write(START, 8, key)
        }),
    ];
    for (name, rights, change) in cases {
        let mut fixture = fixture();
        let key = fixture.bound(rights);
        let wqe = change(&mut fixture, key);
        let cqes = fixture.run(&wqe);
        assert_eq!((cqes[0].opcode, cqes[0].syndrome), (ERROR, syndrome::REMOTE_ACCESS), "{name}");
    }
    let mut free = fixture();
    let key = free.world.nics[1].create_umr_mkey(free.b.qp.pd, 4).unwrap();
    let wqe = free.write(START, 8, key);
    assert_eq!(free.run(&wqe)[0].syndrome, syndrome::REMOTE_ACCESS, "never bound");
}

#[test]
fn malformed_umrs_fail_the_queue_pair() {
    let other_pd = |b: &mut Fixture| {
        let pd = b.world.nics[0].alloc_pd().unwrap();
        b.world.nics[0].create_umr_mkey(pd, 4).unwrap()
    };
    let own = |b: &mut Fixture| b.world.nics[0].create_umr_mkey(b.a.qp.pd, 4).unwrap();
    type Make<'a> = &'a dyn Fn(&mut Fixture) -> Wqe;
    let umr = |key: u32, len: u64, entries: &[(u32, u32, u64)]| Wqe::new(UMR).key(key).bind(START, len, ALL, entries);
    let entry = (64, 0x200, 0x1000);
    let cases: [(&str, Make<'_>, u8); 10] = [
        ("longer than its list", &|b| umr(own(b), 65, &[entry]), vendor::LENGTH),
        ("no bytes", &|b| umr(own(b), 0, &[entry]), vendor::LENGTH),
        ("too many entries", &|b| umr(own(b), 64, &[entry; 5]), vendor::LENGTH),
        ("unknown key", &|_| umr(0xFFFF_FF00, 64, &[entry]), vendor::KEY_UNKNOWN),
        ("ordinary key", &|b| umr(b.source.1, 64, &[entry]), vendor::KEY_RIGHTS),
        ("protection domain", &|b| umr(other_pd(b), 64, &[entry]), vendor::KEY_PD),
        (
            "list elsewhere",
            &|b| {
                let mut wqe = umr(own(b), 64, &[entry]);
                wqe.extra[0] &= 0x7F;
                wqe
            },
            vendor::UMR,
        ),
        (
            "unknown mask",
            &|b| {
                let mut wqe = umr(own(b), 64, &[entry]);
                wqe.extra[8] = 1;
                wqe
            },
            vendor::UMR,
        ),
        (
            "list cut off",
            &|b| {
                let mut wqe = umr(own(b), 64, &[entry]);
                wqe.extra[5] = 8;
                wqe
            },
            vendor::SIZE,
        ),
        ("invalidating a free key", &|b| Wqe::new(LOCAL_INVAL).key(own(b)), vendor::KEY_FREE),
    ];
    for (name, make, vendor) in cases {
        let mut fixture = fixture();
        let wqe = make(&mut fixture);
        let cqes = fixture.run(&wqe);
        let found = (cqes[0].opcode, cqes[0].syndrome, cqes[0].vendor);
        assert_eq!(found, (ERROR, syndrome::LOCAL_QP_OPERATION, vendor), "{name}");
        assert_eq!(fixture.world.state(&fixture.a.qp), QpState::Err, "{name}");
    }
}

#[test]
fn keys_behind_keys_end_somewhere() {
    let mut fixture = fixture();
    let mut inner = fixture.parts[0];
    for depth in 1..=6 {
        let key = fixture.world.nics[1].create_umr_mkey(fixture.b.qp.pd, 1).unwrap();
        let umr = Wqe::new(UMR).key(key).bind(START, 64, ALL, &[(64, inner.1, inner.0)]);
        fixture.world.post(&mut fixture.b.qp, &umr);
        fixture.world.run();
        inner = (START, key);
        let access = fixture.world.nics[1].check_access(key, fixture.b.qp.pd, START, 8, Access::empty());
        let deep = access == Err(KeyFault::Depth { key: fixture.parts[0].1 });
        assert_eq!(deep, depth == 5, "depth {depth}: {access:?}");
    }
    // A key that lies behind itself.
    let itself = Wqe::new(UMR).key(inner.1).bind(START, 64, ALL, &[(64, inner.1, START)]);
    fixture.world.post(&mut fixture.b.qp, &itself);
    fixture.world.run();
    let write = fixture.write(START, 8, inner.1);
    assert_eq!(fixture.run(&write)[0].syndrome, syndrome::REMOTE_ACCESS);
}

#[test]
fn invalidation_frees_a_key_and_binding_takes_it_again() {
    let mut fixture = fixture();
    let key = fixture.bound(ALL);
    fixture.world.post(&mut fixture.b.qp, &Wqe::new(LOCAL_INVAL).key(key));
    fixture.world.run();
    assert_eq!(fixture.world.poll_all(&mut fixture.b.scq)[0].send_opcode, LOCAL_INVAL);
    assert_eq!(fixture.world.nics[1].query_umr_mkey(key), None);
    let entries = [(64, fixture.parts[0].1, fixture.parts[0].0)];
    fixture.world.post(&mut fixture.b.qp, &Wqe::new(UMR).key(key).bind(START, 64, ALL, &entries));
    fixture.world.run();
    let write = fixture.write(START, 64, key);
    assert_eq!(fixture.run(&write)[0].opcode, cqe_opcode::REQUESTER);
    let write = fixture.write(START, 65, key);
    assert_eq!(fixture.run(&write)[0].syndrome, syndrome::REMOTE_ACCESS, "the new range");
}

#[test]
fn a_send_may_invalidate_a_key_of_its_receiver() {
    let mut fixture = fixture();
    let key = fixture.bound(ALL);
    let (addr, lkey) = fixture.parts[0];
    for _ in 0..2 {
        fixture.world.receive(&mut fixture.b.qp, &[(addr + 2048, 2048, lkey)]);
    }
    let send = |b: &Fixture, key| Wqe::new(SEND_INVAL).key(key).data(b.source.0, 1500, b.source.1);
    let wqe = send(&fixture, key);
    assert_eq!(fixture.run(&wqe)[0].opcode, cqe_opcode::REQUESTER);
    let cqes = fixture.world.poll_all(&mut fixture.b.rcq);
    assert_eq!((cqes[0].opcode, cqes[0].byte_count), (cqe_opcode::RESPONDER_SEND_INVALIDATE, 1500));
    assert_eq!(cqes[0].immediate, key.to_be_bytes(), "the completion names the key");
    assert_eq!(fixture.world.nics[1].query_umr_mkey(key), None);
    assert_eq!(fixture.world.arrivals.iter().filter(|arrival| arrival.2 == 0x16).count(), 1, "in the last packet");
    // An ordinary key cannot be invalidated from afar.
    let wqe = send(&fixture, lkey);
    assert_eq!(fixture.run(&wqe)[0].syndrome, syndrome::REMOTE_ACCESS);
    assert_eq!(fixture.world.state(&fixture.b.qp), QpState::Err);
    assert!(fixture.world.nics[1].query_mkey(lkey).is_some());
}

#[test]
fn going_back_does_not_invalidate_twice() {
    let mut fixture = fixture();
    let key = fixture.world.nics[0].create_umr_mkey(fixture.a.qp.pd, 1).unwrap();
    let mut lost = false;
    fixture.world.censor = Some(Box::new(move |node, packet| {
        let hit = node == 0 && packet.operation == Operation::Write && !lost;
        lost |= hit;
        hit
    }));
    let entries = [(64, fixture.source.1, fixture.source.0)];
    let (addr, rkey) = fixture.parts[0];
    let wqes = [
        fixture.write(addr, 64, rkey),
        Wqe::new(UMR).key(key).bind(START, 64, ALL, &entries),
        Wqe::new(LOCAL_INVAL).key(key),
        fixture.write(addr, 64, rkey),
    ];
    for wqe in &wqes {
        fixture.world.put(&mut fixture.a.qp, wqe);
    }
    fixture.world.ring(&fixture.a.qp);
    fixture.world.run();
    let cqes = fixture.world.poll_all(&mut fixture.a.scq);
    let found: Vec<_> = cqes.iter().map(|cqe| (cqe.opcode, cqe.send_opcode)).collect();
    assert_eq!(found, [(0, RDMA_WRITE), (0, UMR), (0, LOCAL_INVAL), (0, RDMA_WRITE)]);
    assert!(fixture.world.nics[0].counters().rc_go_backs > 0, "there was something to go back for");
}

const TOKEN: Token = [7; 32];

/// A key of another virtual HCA of node 1, and an alias of it for the queue pair.
fn alias(fixture: &mut Fixture) -> (u16, u32, u32) {
    let nic = &mut fixture.world.nics[1];
    let vhca = nic.create_vhca().unwrap();
    let pd = nic.alloc_pd_on(vhca).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let attr = MkeyAttr { pd, space: Space::Host, start: fixture.parts[0].0, len: 4096, access: rights, offset: 0 };
    let target = nic.create_mkey(attr).unwrap();
    nic.share_mkey(target, TOKEN).unwrap();
    let attr = AliasAttr { pd: fixture.b.qp.pd, target_vhca: vhca, target, token: TOKEN };
    (vhca, target, nic.create_alias_mkey(attr).unwrap())
}

#[test]
fn an_alias_reaches_what_its_target_reaches() {
    let mut fixture = fixture();
    let (_, target, alias) = alias(&mut fixture);
    let (addr, _) = fixture.parts[0];
    let write = fixture.write(addr, 2000, alias);
    assert_eq!(fixture.run(&write)[0].opcode, cqe_opcode::REQUESTER);
    assert!(fixture.world.mem[1].get(Space::Host, addr, 2000) == pattern(8192, 3)[..2000]);
    let access = fixture.world.nics[1].check_access(alias, fixture.b.qp.pd, addr, 8, Access::empty());
    assert_eq!(access, Ok(Space::Host), "a window may use it");
    let write = fixture.write(addr, 8, target);
    assert_eq!(fixture.run(&write)[0].syndrome, syndrome::REMOTE_ACCESS, "the target itself is of another domain");
}

#[test]
fn an_alias_dies_with_its_permission() {
    type Kill = fn(&mut Nic, u32);
    let kills: [(&str, Kill); 3] = [
        ("revoked", |nic, target| nic.revoke_mkey(target).unwrap()),
        ("destroyed", |nic, target| nic.destroy_mkey(target).unwrap()),
        ("shared anew", |nic, target| nic.share_mkey(target, [8; 32]).unwrap()),
    ];
    for (name, kill) in kills {
        let mut fixture = fixture();
        let (_, target, alias) = alias(&mut fixture);
        kill(&mut fixture.world.nics[1], target);
        let before = fixture.world.mem[1].get(Space::Host, fixture.parts[0].0, 64);
        let write = fixture.write(fixture.parts[0].0, 64, alias);
        assert_eq!(fixture.run(&write)[0].syndrome, syndrome::REMOTE_ACCESS, "{name}");
        assert_eq!(fixture.world.mem[1].get(Space::Host, fixture.parts[0].0, 64), before, "{name}: no data");
    }
    let mut fixture = fixture();
    let (_, _, alias) = alias(&mut fixture);
    let read = fixture.read(fixture.parts[0].0, 64, alias);
    assert_eq!(fixture.run(&read)[0].syndrome, syndrome::REMOTE_ACCESS, "the target's rights");
}

#[test]
fn making_an_alias_needs_all_its_steps() {
    let mut fixture = fixture();
    let (vhca, target, alias) = alias(&mut fixture);
    let pd = fixture.b.qp.pd;
    let good = AliasAttr { pd, target_vhca: vhca, target, token: TOKEN };
    let elsewhere = fixture.world.nics[0].vhca_id();
    let own = fixture.world.nics[1].vhca_id();
    let ordinary = fixture.parts[0].1;
    let nic = &mut fixture.world.nics[1];
    let mut refused = |change: AliasAttr| nic.create_alias_mkey(change).unwrap_err();
    let not_shared = NicError::NotShared { key: target, vhca };
    assert_eq!(refused(AliasAttr { token: [0; 32], ..good }), not_shared, "wrong token");
    assert_eq!(refused(AliasAttr { pd: 999, ..good }), NicError::UnknownPd { pd: 999 });
    assert_eq!(refused(AliasAttr { target_vhca: elsewhere, ..good }), NicError::UnknownVhca { vhca: elsewhere });
    assert_eq!(refused(AliasAttr { target_vhca: own, ..good }), NicError::AliasOfOwn { key: target, vhca: own });
    assert_eq!(
        refused(AliasAttr { target: ordinary, ..good }),
        NicError::UnknownMkey { key: ordinary },
        "of another HCA"
    );
    nic.revoke_mkey(target).unwrap();
    assert_eq!(nic.create_alias_mkey(good), Err(not_shared), "not marked");
    assert_eq!(nic.share_mkey(alias, TOKEN), Err(NicError::AliasOfAlias { key: alias }));
}

/// A key that gets the number and the token of one that is gone does not bring aliases to life.
#[test]
fn an_alias_does_not_outlive_its_key() {
    let mut world = World::new();
    let nic = &mut world.nics[0];
    let (host, vhca) = (nic.vhca_id(), nic.create_vhca().unwrap());
    let (own, other) = (nic.alloc_pd().unwrap(), nic.alloc_pd_on(vhca).unwrap());
    let attr = MkeyAttr { pd: own, space: Space::Host, start: 0x1000, len: 64, access: Access::all(), offset: 0 };
    let target = nic.create_mkey(attr).unwrap();
    nic.share_mkey(target, TOKEN).unwrap();
    let alias = nic.create_alias_mkey(AliasAttr { pd: other, target_vhca: host, target, token: TOKEN }).unwrap();
    let reach = |nic: &Nic| nic.check_access(alias, other, 0x1000, 8, Access::REMOTE_READ);
    assert_eq!(reach(nic), Ok(Space::Host));
    nic.destroy_mkey(target).unwrap();
    // Free slots are used in turn, and each key there has the next tag.
    while nic.create_mkey(attr).map(|key| key == target) != Ok(true) {
        let last = nic.mkey_of_index(target >> 8).unwrap();
        nic.destroy_mkey(last).unwrap();
    }
    nic.share_mkey(target, TOKEN).unwrap();
    assert_eq!(reach(nic), Err(KeyFault::Revoked { key: alias, target }));
}

#[test]
fn queues_and_addresses_are_of_one_function() {
    let mut world = World::new();
    let setup = Setup::new(Transport::Rc);
    let (scq, rcq) = (world.cq(0, Space::Host, 4), world.cq(0, Space::Host, 4));
    let nic = &mut world.nics[0];
    let own = PortAddresses {
        mac: [2, 0, 0, 9, 0, 1],
        gids: vec![Gid::from_ipv4([198, 19, 0, 1]).into(), Gid([3; 16]).into()],
    };
    let vhca = nic.create_function(own.clone()).unwrap();
    let host = nic.vhca_id();
    assert_eq!(nic.port_addresses(vhca), Ok(&own));
    assert_eq!(nic.port_addresses(host).unwrap().mac, nic.config().mac);
    let plain = nic.create_vhca().unwrap();
    assert_eq!(nic.port_addresses(plain), nic.port_addresses(host), "without addresses of its own");
    assert_eq!(nic.port_addresses(plain + 1), Err(NicError::UnknownVhca { vhca: plain + 1 }));
    let pd = nic.alloc_pd_on(vhca).unwrap();
    assert_eq!((nic.vhca_of_pd(pd), nic.vhca_of_pd(pd + 1)), (Ok(vhca), Err(NicError::UnknownPd { pd: pd + 1 })));
    let queue = *nic.query_cq(scq.cqn).unwrap();
    assert_eq!(nic.create_cq_on(plain + 1, queue), Err(NicError::UnknownVhca { vhca: plain + 1 }));
    let memory = QueueMemory { space: Space::Host, addr: queue.ring.addr };
    let attr = QpAttr {
        transport: setup.transport,
        pd,
        send_cq: scq.cqn,
        recv_cq: rcq.cqn,
        rq: memory,
        log_rq_depth: 0,
        log_rq_stride: 4,
        sq: memory,
        log_sq_depth: 0,
        no_sq: false,
        no_rq: false,
        srq: None,
        doorbell_record: memory,
        user_index: 0,
        uar: 1,
    };
    let refused = NicError::CqOfOther { cqn: scq.cqn, vhca: host, pd, pd_vhca: vhca };
    assert_eq!(nic.create_qp(attr), Err(refused));
    let cqn = nic.create_cq_on(vhca, queue).unwrap();
    let qpn = nic.create_qp(QpAttr { send_cq: cqn, recv_cq: cqn, ..attr }).unwrap();
    // Each function has a table of identifiers of its own.
    let modify = |gid: u8| QpModify {
        access: Some(Access::all()),
        path_mtu: Some(Mtu::B1024),
        dest_qpn: Some(1),
        rq_psn: Some(0),
        rgid: Some(own.gids[0].gid),
        dmac: Some(own.mac),
        sgid_index: Some(gid),
        ..QpModify::default()
    };
    let state = |next, gid| QpModify { next_state: Some(next), ..modify(gid) };
    let mut fx = Effects::default();
    nic.modify_qp(0, qpn, &state(QpState::Init, 0), &mut fx).unwrap();
    assert!(nic.modify_qp(0, qpn, &state(QpState::Rtr, 2), &mut fx).is_err());
    nic.modify_qp(0, qpn, &state(QpState::Rtr, 1), &mut fx).unwrap();
    // Keys are named by their index within a function.
    let key = nic.create_umr_mkey(pd, 1).unwrap();
    assert_eq!((nic.mkey_of_index_on(vhca, key >> 8), nic.mkey_of_index_on(host, key >> 8)), (Some(key), None));
}

#[test]
fn an_alias_of_a_umr_key_follows_its_binding() {
    let mut fixture = fixture();
    let vhca = fixture.world.nics[0].create_vhca().unwrap();
    // Node 0 has two functions: queue pair `a` is the host's, the alias is for a protection domain of the other.
    let umr = fixture.world.nics[0].create_umr_mkey(fixture.a.qp.pd, 1).unwrap();
    fixture.world.nics[0].share_mkey(umr, TOKEN).unwrap();
    let pd = fixture.world.nics[0].alloc_pd_on(vhca).unwrap();
    let target_vhca = fixture.world.nics[0].vhca_id();
    let alias =
        fixture.world.nics[0].create_alias_mkey(AliasAttr { pd, target_vhca, target: umr, token: TOKEN }).unwrap();
    let check = |b: &Fixture, addr: u64| b.world.nics[0].check_access(alias, pd, addr, 8, Access::REMOTE_READ);
    assert_eq!(check(&fixture, START), Err(KeyFault::Free { key: umr }));
    let (addr, lkey) = fixture.source;
    let wqe = Wqe::new(UMR).key(umr).bind(addr, 64, ALL, &[(64, lkey, addr)]);
    fixture.run(&wqe);
    assert_eq!(check(&fixture, addr), Ok(Space::Host));
    let wqe = Wqe::new(UMR).key(umr).bind(addr + 64, 64, ALL, &[(64, lkey, addr + 64)]);
    fixture.run(&wqe);
    assert!(matches!(check(&fixture, addr), Err(KeyFault::Range { .. })));
    assert_eq!(check(&fixture, addr + 64), Ok(Space::Host), "without another command");
}

#[test]
fn keys_that_go_while_packets_are_under_way_end_in_errors() {
    // What is sent, on which node a key goes, and the syndrome.
    for (opcode, node, expected) in [
        (RDMA_WRITE, 1, syndrome::REMOTE_ACCESS),
        (RDMA_READ, 1, syndrome::REMOTE_ACCESS),
        (SEND, 1, syndrome::REMOTE_OPERATION),
        (RDMA_WRITE, 0, syndrome::LOCAL_PROTECTION),
        (RDMA_READ, 0, syndrome::LOCAL_PROTECTION),
        (SEND, 0, syndrome::LOCAL_PROTECTION),
    ] {
        let mut seen = std::collections::BTreeSet::new();
        for steps in 0..80 {
            let mut fixture = fixture();
            // Long enough that the card has not prepared all of it while the first packet is on its way.
            let (addr, rkey) = fixture.world.buffer(1, fixture.b.qp.pd, Space::Host, 65_536);
            let source = fixture.world.buffer(0, fixture.a.qp.pd, Space::Host, 65_536);
            fixture.world.receive(&mut fixture.b.qp, &[(addr, 65_536, rkey)]);
            let wqe = Wqe::new(opcode).data(source.0, 65_536, source.1);
            let wqe = if opcode == SEND { wqe } else { wqe.remote(addr, rkey) };
            fixture.world.post(&mut fixture.a.qp, &wqe);
            for _ in 0..steps {
                fixture.world.step();
            }
            fixture.world.nics[node].destroy_mkey(if node == 1 { rkey } else { source.1 }).unwrap();
            fixture.world.run();
            let cqes = fixture.world.poll_all(&mut fixture.a.scq);
            assert_eq!(cqes.len(), 1, "{opcode:#x} after {steps} steps: exactly one completion");
            seen.insert(cqes[0].syndrome);
        }
        assert!(seen.contains(&expected), "{opcode:#x} on node {node}: {seen:#x?}");
        seen.remove(&expected);
        seen.remove(&0);
        assert!(seen.is_empty(), "{opcode:#x} on node {node}: {seen:#x?}");
    }
}

#[test]
fn a_key_may_begin_elsewhere_than_its_memory_and_become_another() {
    let mut world = World::new();
    let (mut a, b) = world.pair(&Setup::new(Transport::Rc));
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 64);
    world.mem[0].set(Space::Host, source, &pattern(64, 3));
    let memory = world.mem[1].alloc(Space::Host, 128);
    let attr = MkeyAttr { pd: b.qp.pd, space: Space::Host, start: 0, len: 64, access: Access::all(), offset: memory };
    let key = world.nics[1].create_mkey(attr).expect("memory key");
    let write = |at: u64| Wqe::new(RDMA_WRITE).remote(at, key).data(source, 32, lkey);
    world.post(&mut a.qp, &write(32));
    world.run();
    assert!(world.mem[1].get(Space::Host, memory + 32, 32) == pattern(64, 3)[..32]);
    // The other half, by its own addresses.
    let attr = MkeyAttr { start: memory + 64, offset: 0, ..attr };
    world.nics[1].change_mkey(key, attr).expect("it is there");
    world.post(&mut a.qp, &write(memory + 64));
    world.run();
    assert!(world.mem[1].get(Space::Host, memory + 64, 32) == pattern(64, 3)[..32]);
    let unknown = world.nics[1].change_mkey(key ^ 1, attr);
    assert_eq!(unknown, Err(NicError::UnknownMkey { key: key ^ 1 }));
    assert_eq!(world.nics[1].change_mkey(key, MkeyAttr { pd: 99, ..attr }), Err(NicError::UnknownPd { pd: 99 }));
    assert!(world.nics[1].change_mkey(key, MkeyAttr { len: 0, ..attr }).is_err());
    world.post(&mut a.qp, &write(0));
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).last().expect("an error").syndrome, syndrome::REMOTE_ACCESS);
}
