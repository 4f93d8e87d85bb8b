//! Queue pairs that take receives from one ring.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const BYTES: usize = 3000;

/// Two senders of node 0, each connected to a queue pair of node 1; those share the ring and the completion queue of
/// the first. Gives the senders, the first receiver and the second.
fn shared(world: &mut World) -> (End, End, End, Qp) {
    let modify = QpModify { rnr_retry: Some(7), min_rnr_timer: Some(1), ..QpModify::default() };
    let setup = Setup { modify, log_rq: 2, ..Setup::new(Transport::Rc) };
    let (one, receiver) = world.pair(&setup);
    let two = world.end(0, &setup);
    let at = |addr| QueueMemory { space: setup.space, addr };
    let sq = world.mem[1].alloc(setup.space, 64 << setup.log_sq);
    let attr = QpAttr {
        transport: Transport::Rc,
        pd: receiver.qp.pd,
        send_cq: receiver.scq.cqn,
        recv_cq: receiver.rcq.cqn,
        rq: at(receiver.qp.rq),
        log_rq_depth: setup.log_rq,
        log_rq_stride: setup.log_stride,
        sq: at(sq),
        log_sq_depth: setup.log_sq,
        no_sq: false,
        no_rq: false,
        doorbell_record: at(receiver.qp.dbr),
        user_index: 7,
        uar: 1,
    };
    let qpn = world.nics[1].create_qp(attr).expect("queue pair");
    let other = Qp { qpn, sq, ..receiver.qp };
    world.nics[1].share_receives(receiver.qp.qpn, qpn).expect("both are there");
    world.connect(&two.qp, (1, qpn), &setup.modify);
    world.connect(&other, (0, two.qp.qpn), &setup.modify);
    (one, two, receiver, other)
}

#[test]
fn messages_at_once_go_to_a_receive_each() {
    let mut world = World::new();
    let (mut one, mut two, mut receiver, other) = shared(&mut world);
    let (source, lkey) = world.buffer(0, one.qp.pd, Space::Host, BYTES);
    let (source_two, lkey_two) = world.buffer(0, two.qp.pd, Space::Host, BYTES);
    world.mem[0].set(Space::Host, source, &pattern(BYTES, 1));
    world.mem[0].set(Space::Host, source_two, &pattern(BYTES, 2));
    let (target, rkey) = world.buffer(1, receiver.qp.pd, Space::Host, 4 * BYTES);
    for at in 0..3 {
        world.receive(&mut receiver.qp, &[(target + at * BYTES as u64, BYTES as u32, rkey)]);
    }
    // Packets of both are on the wire by turns; the third receive is taken by a Write.
    world.post(&mut one.qp, &Wqe::new(SEND).data(source, BYTES, lkey));
    world.post(&mut two.qp, &Wqe::new(SEND).data(source_two, BYTES, lkey_two));
    world.run();
    let write = Wqe::new(RDMA_WRITE_IMM).immediate([0, 0, 0, 9]).data(source, 8, lkey).remote(target, rkey);
    world.post(&mut one.qp, &write.remote(target + 2 * BYTES as u64, rkey));
    world.run();
    let received = world.poll_all(&mut receiver.rcq);
    let mut counters: Vec<u16> = received.iter().map(|cqe| cqe.counter).collect();
    counters.sort_unstable();
    assert_eq!(counters, [0, 1, 2], "each receive once");
    for cqe in &received[..2] {
        let from = if cqe.qpn == other.qpn { 2 } else { 1 };
        let at = target + u64::from(cqe.counter) * BYTES as u64;
        assert!(world.mem[1].get(Space::Host, at, BYTES) == pattern(BYTES, from), "the message of sender {from}");
    }
    assert_ne!(received[0].qpn, received[1].qpn);
    assert_eq!((received[2].opcode, received[2].counter), (cqe_opcode::RESPONDER_WRITE_IMMEDIATE, 2));
}

#[test]
fn who_comes_second_waits_for_the_next_receive_and_errors_leave_the_others_theirs() {
    let mut world = World::new();
    let (mut one, mut two, mut receiver, other) = shared(&mut world);
    let (source, lkey) = world.buffer(0, one.qp.pd, Space::Host, 8);
    let (source_two, lkey_two) = world.buffer(0, two.qp.pd, Space::Host, 8);
    let (target, rkey) = world.buffer(1, receiver.qp.pd, Space::Host, 64);
    world.receive(&mut receiver.qp, &[(target, 8, rkey)]);
    world.post(&mut one.qp, &Wqe::new(SEND).data(source, 8, lkey));
    world.post(&mut two.qp, &Wqe::new(SEND).data(source_two, 8, lkey_two));
    world.run_until(100_000_000);
    assert_eq!(world.poll_all(&mut receiver.rcq).len(), 1, "one receive is one message");
    world.receive(&mut receiver.qp, &[(target + 8, 8, rkey)]);
    world.run();
    assert_eq!(world.poll_all(&mut receiver.rcq).iter().map(|cqe| cqe.counter).collect::<Vec<_>>(), [1]);
    // A queue pair that fails takes no receive with it.
    world.receive(&mut receiver.qp, &[(target + 16, 8, rkey)]);
    world.modify(1, other.qpn, &QpModify { next_state: Some(QpState::Err), ..QpModify::default() }).expect("ERR");
    world.run();
    assert_eq!(world.poll_all(&mut receiver.rcq), []);
    world.post(&mut one.qp, &Wqe::new(SEND).data(source, 8, lkey));
    world.run();
    let received = world.poll_all(&mut receiver.rcq);
    assert_eq!(received.iter().map(|cqe| (cqe.counter, cqe.qpn)).collect::<Vec<_>>(), [(2, receiver.qp.qpn)]);
    assert!(world.nics[1].share_receives(receiver.qp.qpn, 0xFF_FFFF).is_err());
}
