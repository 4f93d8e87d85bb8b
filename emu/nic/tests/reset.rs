//! RESET ends a life of a queue pair: found by the fuzz target `api`.

use crate::common;
use common::*;
use emu_nic::*;

/// A queue pair of a connected pair goes to RESET and comes up again.
fn again(world: &mut World, end: &mut End, peer: u32) {
    let reset = QpModify { next_state: Some(QpState::Reset), ..QpModify::default() };
    world.modify(end.qp.node, end.qp.qpn, &reset).expect("any state may be left so");
    (end.qp.sq_pi, end.qp.rq_pi) = (0, 0);
    let (record, space) = (end.qp.dbr, end.qp.space);
    world.mem[end.qp.node].set(space, record, &[0; 8]);
    world.connect(&end.qp, (1 - end.qp.node, peer), &QpModify::default());
}

#[test]
fn a_doorbell_from_before_posts_nothing() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Rc));
    let (source, key) = world.buffer(0, a.qp.pd, Space::Host, 64);
    let (target, rkey) = world.buffer(1, b.qp.pd, Space::Host, 64);
    world.receive(&mut b.qp, &[(target, 64, rkey)]);
    world.post(&mut a.qp, &Wqe::new(wqe_opcode::SEND).data(source, 64, key));
    again(&mut world, &mut a, b.qp.qpn);
    world.run();
    assert_eq!((world.poll_all(&mut a.scq).len(), world.poll_all(&mut b.rcq).len()), (0, 0));
    assert_eq!(world.nics[0].counters().ignored_doorbells, 1);
    // The next life begins where the ring does.
    world.post(&mut a.qp, &Wqe::new(wqe_opcode::SEND).data(source, 64, key));
    world.run();
    assert_eq!((world.poll_all(&mut a.scq).len(), world.poll_all(&mut b.rcq).len()), (1, 1));
}

#[test]
fn a_completion_on_its_way_is_lost() {
    let mut world = World::new();
    let (mut a, b) = world.pair(&Setup::new(Transport::Uc));
    let (source, key) = world.buffer(0, a.qp.pd, Space::Host, 64);
    world.post(&mut a.qp, &Wqe::new(wqe_opcode::SEND).data(source, 64, key));
    // The packet is out, the completion is not in its ring yet.
    while world.arrivals.is_empty() && world.nics[0].counters().tx_packets == 0 {
        assert!(world.step());
    }
    assert_eq!(world.nics[0].counters().cqes, 0);
    again(&mut world, &mut a, b.qp.qpn);
    world.run();
    assert_eq!(world.poll_all(&mut a.scq), []);
    assert_eq!(world.nics[0].counters().cqes, 0);
}
