//! Fetch-and-add, compare-and-swap: values, repetition, violations.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

struct Fixture {
    world: World,
    a: End,
    b: End,
    /// Where old values go.
    result: (u64, u32),
    /// The counter.
    target: (u64, u32),
}

fn fixture_with(setup: &Setup, loss_ppm: u32) -> Fixture {
    let mut world = World::with(loss_ppm, 7, |_| {});
    let (a, b) = world.pair(setup);
    let result = world.buffer(0, a.qp.pd, Space::Host, 4096);
    let target = world.buffer(1, b.qp.pd, Space::Host, 64);
    Fixture { world, a, b, result, target }
}

fn fixture() -> Fixture {
    fixture_with(&Setup::new(Transport::Rc), 0)
}

impl Fixture {
    fn value(&mut self) -> u64 {
        u64::from_le_bytes(self.world.mem[1].get(Space::Host, self.target.0, 8).try_into().unwrap())
    }

    fn old(&mut self, slot: u64) -> u64 {
        u64::from_le_bytes(self.world.mem[0].get(Space::Host, self.result.0 + slot * 8, 8).try_into().unwrap())
    }

    fn wqe(&self, opcode: u8, slot: u64, swap_or_add: u64, compare: u64) -> Wqe {
        Wqe::new(opcode).remote(self.target.0, self.target.1).operands(swap_or_add, compare).data(
            self.result.0 + slot * 8,
            8,
            self.result.1,
        )
    }
}

#[test]
fn old_values_come_back_and_new_ones_are_stored() {
    let mut fixture = fixture();
    fixture.world.mem[1].set(Space::Host, fixture.target.0, &100_u64.to_le_bytes());
    for (slot, opcode, operand, compare) in
        [(0, ATOMIC_FA, 5, 0xDEAD), (1, ATOMIC_CS, 7, 104), (2, ATOMIC_CS, 7, 105), (3, ATOMIC_FA, u64::MAX, 0)]
    {
        let wqe = fixture.wqe(opcode, slot, operand, compare);
        fixture.world.post(&mut fixture.a.qp, &wqe);
    }
    fixture.world.run();
    let old: Vec<u64> = (0..4).map(|slot| fixture.old(slot)).collect();
    assert_eq!(old, [100, 105, 105, 7], "a failed comparison stores nothing; addition wraps");
    assert_eq!(fixture.value(), 6);
    let cqes = fixture.world.poll_all(&mut fixture.a.scq);
    let found: Vec<_> = cqes.iter().map(|cqe| (cqe.opcode, cqe.send_opcode, cqe.byte_count)).collect();
    let ok = cqe_opcode::REQUESTER;
    assert_eq!(found, [(ok, ATOMIC_FA, 8), (ok, ATOMIC_CS, 8), (ok, ATOMIC_CS, 8), (ok, ATOMIC_FA, 8)]);
    assert_eq!(fixture.world.poll_all(&mut fixture.b.rcq), [], "the responder's software sees nothing");
    let opcodes: Vec<u8> = fixture.world.arrivals.iter().map(|arrival| arrival.2).collect();
    assert_eq!(opcodes.iter().filter(|opcode| **opcode == 18).count(), 4, "{opcodes:?}");
    assert!(opcodes.contains(&19) && opcodes.contains(&20), "{opcodes:?}");
}

#[test]
fn the_old_value_is_scattered_over_several_segments() {
    let mut fixture = fixture();
    fixture.world.mem[1].set(Space::Host, fixture.target.0, &0x0807_0605_0403_0201_u64.to_le_bytes());
    let (addr, lkey) = fixture.result;
    let wqe = Wqe::new(ATOMIC_FA).remote(fixture.target.0, fixture.target.1).operands(0, 0);
    fixture.world.post(&mut fixture.a.qp, &wqe.data(addr, 3, lkey).data(addr + 100, 5, lkey));
    fixture.world.run();
    assert_eq!(fixture.world.mem[0].get(Space::Host, addr, 4), [1, 2, 3, 0]);
    assert_eq!(fixture.world.mem[0].get(Space::Host, addr + 100, 6), [4, 5, 6, 7, 8, 0]);
}

#[test]
fn a_repeated_request_is_answered_but_not_executed_again() {
    for opcode in [ATOMIC_FA, ATOMIC_CS] {
        let mut fixture = fixture();
        let mut lost = 0;
        // The first two answers are lost.
        fixture.world.censor = Some(Box::new(move |node, packet| {
            let hit = node == 1 && packet.operation == Operation::AtomicAcknowledge && lost < 2;
            lost += u32::from(hit);
            hit
        }));
        let wqe = fixture.wqe(opcode, 0, 1, 0);
        fixture.world.post(&mut fixture.a.qp, &wqe);
        fixture.world.run();
        assert_eq!((fixture.value(), fixture.old(0)), (1, 0), "{opcode:#x}: once, with the old value of that time");
        assert_eq!(fixture.world.poll_all(&mut fixture.a.scq).len(), 1);
        let counters = *fixture.world.nics[1].counters();
        assert_eq!((counters.atomics, counters.rc_duplicates), (1, 2), "{opcode:#x}");
    }
}

#[test]
fn sums_are_exact_on_a_lossy_link() {
    let setup = Setup { log_sq: 8, log_cq: 8, ..Setup::new(Transport::Rc) };
    let mut fixture = fixture_with(&setup, 150_000);
    const COUNT: u64 = 60;
    for slot in 0..COUNT {
        let wqe = fixture.wqe(ATOMIC_FA, slot, 1, 0);
        fixture.world.put(&mut fixture.a.qp, &wqe);
    }
    fixture.world.ring(&fixture.a.qp);
    fixture.world.run();
    assert_eq!(fixture.world.poll_all(&mut fixture.a.scq).len() as u64, COUNT);
    assert_eq!(fixture.value(), COUNT);
    let old: Vec<u64> = (0..COUNT).map(|slot| fixture.old(slot)).collect();
    assert_eq!(old, (0..COUNT).collect::<Vec<_>>(), "each sees its predecessor's value");
    assert!(fixture.world.nics[1].counters().rc_duplicates > 0, "the link lost answers");
}

#[test]
fn a_read_behind_atomics_and_atomics_behind_a_read_stay_in_order() {
    let mut fixture = fixture();
    let (addr, lkey) = fixture.result;
    let read =
        |slot: u64| Wqe::new(RDMA_READ).remote(fixture.target.0, fixture.target.1).data(addr + slot * 8, 8, lkey);
    let wqes = [read(0), fixture.wqe(ATOMIC_FA, 1, 3, 0), read(2), fixture.wqe(ATOMIC_FA, 3, 4, 0), read(4)];
    for wqe in &wqes {
        fixture.world.put(&mut fixture.a.qp, wqe);
    }
    fixture.world.ring(&fixture.a.qp);
    fixture.world.run();
    assert_eq!(fixture.world.poll_all(&mut fixture.a.scq).len(), 5);
    let seen: Vec<u64> = (0..5).map(|slot| fixture.old(slot)).collect();
    assert_eq!(seen, [0, 0, 3, 3, 7], "a read sees the atomics before it, and none behind it");
}

#[test]
fn long_reads_and_atomics_survive_a_lossy_link() {
    let modify = QpModify { max_rd_atomic: Some(16), ..QpModify::default() };
    for seed in 0..6 {
        let setup = Setup { log_sq: 8, log_cq: 8, modify, ..Setup::new(Transport::Rc) };
        let mut world = World::with(30_000, seed, |_| {});
        let (mut a, b) = world.pair(&setup);
        let (into, lkey) = world.buffer(0, a.qp.pd, Space::Host, 1 << 20);
        let (from, rkey) = world.buffer(1, b.qp.pd, Space::Host, 1 << 16);
        world.mem[1].set(Space::Host, from, &pattern(1 << 16, 5));
        world.mem[1].set(Space::Host, from, &[0; 8]);
        const READ: usize = 20_000;
        for round in 0..12_u64 {
            let at = into + round * 40_000;
            world.put(&mut a.qp, &Wqe::new(RDMA_READ).remote(from + 8, rkey).data(at, READ, lkey));
            let atomic = Wqe::new(ATOMIC_FA).remote(from, rkey).operands(1, 0);
            world.put(&mut a.qp, &atomic.data(at + 30_000, 8, lkey));
        }
        world.ring(&a.qp);
        world.run();
        let cqes = world.poll_all(&mut a.scq);
        assert!(cqes.iter().all(|cqe| cqe.opcode == cqe_opcode::REQUESTER), "seed {seed}: {cqes:?}");
        assert_eq!(cqes.len(), 24, "seed {seed}");
        for round in 0..12_u64 {
            let at = into + round * 40_000;
            let read = world.mem[0].get(Space::Host, at, READ);
            assert!(read == pattern(1 << 16, 5)[8..8 + READ], "seed {seed}, round {round}");
            assert_eq!(world.mem[0].get(Space::Host, at + 30_000, 8), round.to_le_bytes(), "seed {seed}");
        }
        assert_eq!(world.nics[1].counters().atomics, 12, "seed {seed}: each once");
    }
}

#[test]
fn violations_end_in_their_syndromes() {
    type Spoil = fn(&mut Fixture) -> Wqe;
    let cases: [(&str, Spoil, u8); 8] = [
        (
            "misaligned",
            |b| Wqe { remote: Some((b.target.0 + 4, b.target.1)), ..b.wqe(ATOMIC_FA, 0, 1, 0) },
            syndrome::REMOTE_INVALID_REQUEST,
        ),
        (
            "unknown key",
            |b| Wqe { remote: Some((b.target.0, b.target.1 + 1)), ..b.wqe(ATOMIC_CS, 0, 1, 0) },
            syndrome::REMOTE_ACCESS,
        ),
        (
            "out of range",
            |b| Wqe { remote: Some((b.target.0 + 64, b.target.1)), ..b.wqe(ATOMIC_FA, 0, 1, 0) },
            syndrome::REMOTE_ACCESS,
        ),
        (
            "key without the right",
            |b| {
                let rights = Access::all().difference(Access::REMOTE_ATOMIC);
                let key = b.world.key(1, b.b.qp.pd, Space::Host, b.target.0, 64, rights);
                Wqe { remote: Some((b.target.0, key)), ..b.wqe(ATOMIC_FA, 0, 1, 0) }
            },
            syndrome::REMOTE_ACCESS,
        ),
        (
            "queue pair without the right",
            |b| {
                let access = Some(Access::REMOTE_READ | Access::REMOTE_WRITE);
                b.world.modify(1, b.b.qp.qpn, &QpModify { access, ..QpModify::default() }).unwrap();
                b.wqe(ATOMIC_FA, 0, 1, 0)
            },
            syndrome::REMOTE_ACCESS,
        ),
        (
            "no responder resources",
            |b| {
                let none = QpModify { max_dest_rd_atomic: Some(0), ..QpModify::default() };
                b.world.modify(1, b.b.qp.qpn, &none).unwrap();
                b.wqe(ATOMIC_FA, 0, 1, 0)
            },
            syndrome::REMOTE_INVALID_REQUEST,
        ),
        (
            "local buffer too short",
            |b| Wqe { data: vec![(b.result.0, 7, b.result.1)], ..b.wqe(ATOMIC_FA, 0, 1, 0) },
            syndrome::LOCAL_LENGTH,
        ),
        (
            "local buffer not writable",
            |b| {
                let key = b.world.key(0, b.a.qp.pd, Space::Host, b.result.0, 8, Access::empty());
                Wqe { data: vec![(b.result.0, 8, key)], ..b.wqe(ATOMIC_FA, 0, 1, 0) }
            },
            syndrome::LOCAL_PROTECTION,
        ),
    ];
    for (name, spoil, syndrome) in cases {
        let mut fixture = fixture();
        fixture.world.mem[1].set(Space::Host, fixture.target.0, &[9; 64]);
        let wqe = spoil(&mut fixture);
        fixture.world.post(&mut fixture.a.qp, &wqe);
        fixture.world.run();
        let cqes = fixture.world.poll_all(&mut fixture.a.scq);
        assert_eq!(cqes.len(), 1, "{name}");
        assert_eq!((cqes[0].opcode, cqes[0].syndrome), (cqe_opcode::REQUESTER_ERROR, syndrome), "{name}");
        assert_eq!(fixture.world.mem[1].get(Space::Host, fixture.target.0, 64), [9; 64], "{name}: memory is untouched");
        assert_eq!(fixture.world.nics[1].counters().atomics, 0, "{name}");
    }
}

#[test]
fn atomics_are_for_reliable_connections_and_eight_bytes() {
    for (transport, opcode) in [
        (Transport::Uc, ATOMIC_FA),
        (Transport::Ud, ATOMIC_CS),
        (Transport::Rc, 0x14_u8), // masked compare-and-swap
        (Transport::Rc, 0x15),    // masked fetch-and-add
    ] {
        let mut fixture = fixture_with(&Setup::new(transport), 0);
        let wqe = fixture.wqe(opcode, 0, 1, 0);
        fixture.world.post(&mut fixture.a.qp, &wqe);
        fixture.world.run();
        let cqe = &fixture.world.poll_all(&mut fixture.a.scq)[0];
        assert_eq!(
            (cqe.syndrome, cqe.vendor),
            (syndrome::LOCAL_QP_OPERATION, vendor::OPCODE),
            "{transport} {opcode:#x}"
        );
        assert_eq!(fixture.world.arrivals, []);
    }
}

#[test]
fn a_requester_without_depth_is_refused_and_depth_limits_what_is_out() {
    let none = QpModify { max_rd_atomic: Some(0), ..QpModify::default() };
    let mut refused = fixture_with(&Setup { modify: none, ..Setup::new(Transport::Rc) }, 0);
    let wqe = refused.wqe(ATOMIC_FA, 0, 1, 0);
    refused.world.post(&mut refused.a.qp, &wqe);
    refused.world.run();
    assert_eq!(refused.world.poll_all(&mut refused.a.scq)[0].vendor, vendor::READ_DEPTH);

    let one = QpModify { max_rd_atomic: Some(1), ..QpModify::default() };
    let mut fixture = fixture_with(&Setup { modify: one, ..Setup::new(Transport::Rc) }, 0);
    for slot in 0..3 {
        let wqe = fixture.wqe(ATOMIC_FA, slot, 1, 0);
        fixture.world.put(&mut fixture.a.qp, &wqe);
    }
    fixture.world.ring(&fixture.a.qp);
    fixture.world.run();
    let order: Vec<u8> = fixture.world.arrivals.iter().map(|arrival| arrival.2).collect();
    assert_eq!(order, [20, 18, 20, 18, 20, 18], "one request at a time");
}

#[test]
fn the_target_may_be_in_dpa_memory() {
    let mut fixture = fixture();
    let (addr, rkey) = fixture.world.buffer(1, fixture.b.qp.pd, DPA, 8);
    let wqe = Wqe { remote: Some((addr, rkey)), ..fixture.wqe(ATOMIC_FA, 0, 11, 0) };
    fixture.world.post(&mut fixture.a.qp, &wqe);
    fixture.world.run();
    assert_eq!(fixture.world.mem[1].get(DPA, addr, 8), 11_u64.to_le_bytes());
}
