//! The fm_ce_se byte (completion modes, fences, solicited) and WQEs that wrap at the end of their ring.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const ON_ERROR: u8 = 0 << 2;
const ON_FIRST_ERROR: u8 = 1 << 2;
const ALWAYS: u8 = 2 << 2;
const WITH_EVENT: u8 = 3 << 2;
const SMALL_FENCE: u8 = 1 << 5;
const FENCE: u8 = 2 << 5;
const STRONG: u8 = 3 << 5;
const BOTH: u8 = 4 << 5;

fn fixture(setup: &Setup) -> Fixture {
    Fixture::new(setup, 16_384)
}

impl Fixture {
    fn wqe(&self, opcode: u8, len: usize) -> Wqe {
        Wqe::new(opcode).data(self.source.0, len, self.source.1).remote(self.target.0, self.target.1)
    }

    fn post_all(&mut self, wqes: &[Wqe]) {
        for wqe in wqes {
            self.world.put(&mut self.a.qp, wqe);
        }
        self.world.ring(&self.a.qp);
        self.world.run();
    }
}

#[test]
fn completion_modes_decide_about_good_completions() {
    for (mode, completes) in [(ON_ERROR, false), (ON_FIRST_ERROR, false), (ALWAYS, true), (WITH_EVENT, true)] {
        for transport in [Transport::Rc, Transport::Uc] {
            let mut fixture = fixture(&Setup::new(transport));
            let wqe = fixture.wqe(RDMA_WRITE, 64).flags(mode);
            fixture.post_all(&[wqe]);
            assert_eq!(
                fixture.world.poll_all(&mut fixture.a.scq).len(),
                usize::from(completes),
                "{transport} {mode:#x}"
            );
            let events = fixture.world.cq_events.iter().filter(|(_, _, event)| event.cqn == fixture.a.scq.cqn).count();
            assert_eq!(events, usize::from(mode == WITH_EVENT), "{transport} {mode:#x}: the queue is not armed");
        }
    }
}

#[test]
fn completion_modes_decide_about_flushed_ones() {
    let mut fixture = fixture(&Setup::new(Transport::Rc));
    let bad = fixture.wqe(RDMA_WRITE, 64).remote(0, 0).flags(ON_ERROR);
    let modes = [ON_ERROR, ON_FIRST_ERROR, ALWAYS, ON_FIRST_ERROR, WITH_EVENT];
    let mut wqes = vec![bad];
    wqes.extend(modes.map(|mode| fixture.wqe(RDMA_WRITE, 64).flags(mode)));
    fixture.post_all(&wqes);
    let cqes = fixture.world.poll_all(&mut fixture.a.scq);
    let found: Vec<_> = cqes.iter().map(|cqe| (cqe.counter, cqe.syndrome)).collect();
    let flushed = syndrome::FLUSHED;
    assert_eq!(found, [(0, syndrome::REMOTE_ACCESS), (1, flushed), (3, flushed), (5, flushed)], "mode 1 keeps silent");

    // With mode 1 throughout, the first error is reported, and no other.
    let mut fixture = self::fixture(&Setup::new(Transport::Rc));
    let mut wqes = vec![fixture.wqe(RDMA_WRITE, 64).remote(0, 0).flags(ON_FIRST_ERROR)];
    wqes.extend((0..3).map(|_| fixture.wqe(RDMA_WRITE, 64).flags(ON_FIRST_ERROR)));
    fixture.post_all(&wqes);
    let cqes = fixture.world.poll_all(&mut fixture.a.scq);
    assert_eq!((cqes.len(), cqes[0].syndrome), (1, syndrome::REMOTE_ACCESS));
}

/// PSN order of requests that arrive at node 1, and whether `late` was sent before the answer to the first request.
fn overtakes(first: u8, fence: u8) -> bool {
    let mut fixture = fixture(&Setup::new(Transport::Rc));
    let answered = |opcode: u8| matches!(opcode, 13..=18);
    let first = match first {
        ATOMIC_FA => fixture.wqe(first, 8).operands(1, 0),
        _ => fixture.wqe(first, 64),
    };
    let second = fixture.wqe(RDMA_WRITE, 32).flags(ALWAYS | fence);
    fixture.post_all(&[first, second]);
    assert_eq!(fixture.world.poll_all(&mut fixture.a.scq).len(), 2);
    let order: Vec<u8> = fixture.world.arrivals.iter().map(|arrival| arrival.2).collect();
    let write = order.iter().rposition(|opcode| *opcode == 10).expect("the second request");
    !order[..write].iter().any(|opcode| answered(*opcode))
}

#[test]
fn fences_wait_for_what_they_name() {
    for first in [RDMA_READ, ATOMIC_FA] {
        assert!(overtakes(first, 0), "{first:#x}: without a fence");
        for fence in [SMALL_FENCE, FENCE, STRONG, BOTH] {
            assert!(!overtakes(first, fence), "{first:#x}: fence {fence:#x}");
        }
    }
    for fence in [0, SMALL_FENCE, FENCE, BOTH] {
        assert!(overtakes(RDMA_WRITE, fence), "a write is no operation whose data comes back: fence {fence:#x}");
    }
    assert!(!overtakes(RDMA_WRITE, STRONG), "strong ordering waits for all");
}

#[test]
fn solicited_reaches_the_receiver_in_the_last_packet_only() {
    for (flags, solicited) in [(ALWAYS, false), (ALWAYS | 2, true)] {
        for opcode in [SEND, SEND_IMM, RDMA_WRITE_IMM] {
            let mut fixture = fixture(&Setup::new(Transport::Rc));
            let (addr, lkey) = fixture.target;
            fixture.world.receive(&mut fixture.b.qp, &[(addr, 8192, lkey)]);
            let (cqn, mut armed) = (fixture.b.rcq.cqn, 0);
            fixture.world.act(1, |nic, _, now, fx| nic.arm_cq_solicited(now, cqn, 0, fx));
            let mut wqe = fixture.wqe(opcode, 3000).flags(flags);
            if opcode != RDMA_WRITE_IMM {
                wqe.remote = None;
            }
            fixture.post_all(&[wqe]);
            armed += fixture.world.cq_events.iter().filter(|(_, _, event)| event.cqn == cqn).count();
            assert_eq!(fixture.world.poll_all(&mut fixture.b.rcq)[0].solicited, solicited, "{opcode:#x}");
            assert_eq!(armed, usize::from(solicited), "{opcode:#x}");
        }
    }
}

/// A WQE of each opcode that is longer than one block, so that it can wrap.
fn long_wqes(fixture: &mut Fixture) -> Vec<(&'static str, Wqe)> {
    let key = fixture.world.nics[0].create_umr_mkey(fixture.a.qp.pd, 8).unwrap();
    let (addr, lkey) = fixture.source;
    let gather = |mut wqe: Wqe| {
        for slot in 0..4 {
            wqe = wqe.data(addr + slot * 100, 100, lkey);
        }
        wqe
    };
    let remote = |opcode| gather(Wqe::new(opcode).remote(fixture.target.0, fixture.target.1));
    let atomic = |opcode| {
        let mut wqe = Wqe::new(opcode).remote(fixture.target.0, fixture.target.1).operands(1, 0);
        for slot in 0..4 {
            wqe = wqe.data(addr + slot * 2, 2, lkey);
        }
        wqe
    };
    vec![
        ("send", gather(Wqe::new(SEND))),
        ("send with immediate", gather(Wqe::new(SEND_IMM))),
        ("inline send", Wqe::new(SEND).inline(&pattern(150, 9))),
        ("write", remote(RDMA_WRITE)),
        ("write with immediate", remote(RDMA_WRITE_IMM)),
        ("read", remote(RDMA_READ)),
        ("compare and swap", atomic(ATOMIC_CS)),
        ("fetch and add", atomic(ATOMIC_FA)),
        ("binding", Wqe::new(UMR).key(key).bind(addr, 64, 0x78, &[(16, lkey, addr); 5])),
        ("invalidation", Wqe::new(LOCAL_INVAL).key(key)),
        ("nothing", Wqe::new(NOP)),
    ]
}

#[test]
fn every_opcode_may_wrap_at_the_end_of_the_ring() {
    let setup = Setup { log_sq: 3, log_rq: 6, ..Setup::new(Transport::Rc) };
    let count = long_wqes(&mut fixture(&setup)).len();
    for which in 0..count {
        for start in 0..8 {
            let mut fixture = fixture(&setup);
            let (addr, lkey) = fixture.target;
            for _ in 0..2 {
                fixture.world.receive(&mut fixture.b.qp, &[(addr, 8192, lkey)]);
            }
            for _ in 0..start {
                fixture.post_all(&[Wqe::new(NOP).unsignalled()]);
            }
            let mut wqes = long_wqes(&mut fixture);
            if wqes[which].1.opcode == LOCAL_INVAL {
                // There must be something to invalidate.
                let bind = wqes[which - 1].1.clone();
                fixture.post_all(&[bind.unsignalled()]);
            }
            let (name, wqe) = wqes.swap_remove(which);
            fixture.post_all(&[wqe]);
            let cqes = fixture.world.poll_all(&mut fixture.a.scq);
            assert_eq!(cqes.len(), 1, "{name} at block {start}");
            assert_eq!(cqes[0].opcode, cqe_opcode::REQUESTER, "{name} at block {start}: {:?}", cqes[0]);
            if name == "inline send" {
                assert!(fixture.world.mem[1].get(Space::Host, addr, 150) == pattern(150, 9), "at block {start}");
            }
        }
    }
}

#[test]
fn datagrams_wrap_too() {
    let setup = Setup { log_sq: 2, ..Setup::new(Transport::Ud) };
    for start in 0..4 {
        let mut fixture = fixture(&setup);
        let (addr, lkey) = fixture.target;
        fixture.world.receive(&mut fixture.b.qp, &[(addr, 8192, lkey)]);
        for _ in 0..start {
            fixture.post_all(&[Wqe::new(NOP).unsignalled()]);
        }
        let av = Av { traffic_class: 0x48, hop_limit: 9, ..Av::to(1, fixture.b.qp.qpn) };
        fixture.post_all(&[Wqe::new(SEND).to(av).inline(&pattern(70, 5))]);
        assert_eq!(fixture.world.poll_all(&mut fixture.b.rcq)[0].byte_count, 110, "at block {start}");
        let header = fixture.world.mem[1].get(Space::Host, addr, 40);
        assert_eq!((header[20], header[21], header[28]), (0x45, 0x48, 9), "version, traffic class, hop limit");
        assert!(fixture.world.mem[1].get(Space::Host, addr + 40, 70) == pattern(70, 5));
    }
}
