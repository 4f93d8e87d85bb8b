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
        srq: None,
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

/// A linked list whose entries follow one another as `order` says, and two senders connected to queue pairs of node 1
/// that take its receives.
struct List {
    srqn: u32,
    ring: u64,
    record: u64,
    senders: [End; 2],
    receivers: [Qp; 2],
    cq: Cq,
}

const STRIDE: u64 = 32;

fn list(world: &mut World, order: [u16; 4]) -> List {
    let modify = QpModify { rnr_retry: Some(0), min_rnr_timer: Some(1), ..QpModify::default() };
    let setup = Setup { modify, ..Setup::new(Transport::Rc) };
    let at = |addr| QueueMemory { space: setup.space, addr };
    let pd = world.nics[1].alloc_pd().expect("protection domain");
    let (ring, record) = (world.mem[1].alloc(setup.space, 4 * STRIDE as usize), world.mem[1].alloc(setup.space, 8));
    for (entry, next) in order.iter().zip(order.iter().skip(1)) {
        world.mem[1].set(setup.space, ring + u64::from(*entry) * STRIDE + 2, &next.to_be_bytes());
    }
    let attr = SrqAttr {
        pd,
        ring: at(ring),
        log_depth: 2,
        log_stride: 5,
        doorbell_record: at(record),
        order: ReceiveOrder::List,
    };
    let srqn = world.nics[1].create_srq(attr).expect("shared receive queue");
    let cq = world.cq(1, setup.space, 4);
    let scq = world.cq(1, setup.space, 4);
    let senders = [world.end(0, &setup), world.end(0, &setup)];
    let receivers = [0, 1].map(|number| {
        let plain = world.qp(1, pd, &scq, &cq, &setup);
        let attr = world.nics[1].query_qp(plain.qpn).expect("it is there").attr;
        world.nics[1].destroy_qp(plain.qpn).expect("it is there");
        assert!(world.nics[1].create_qp(QpAttr { srq: Some(srqn), ..attr }).is_err(), "it has a ring of its own");
        let attr = QpAttr { srq: Some(srqn), no_rq: true, ..attr };
        let qpn = world.nics[1].create_qp(attr).expect("queue pair");
        let receiver = Qp { qpn, pd, ..plain };
        world.connect(&senders[number].qp, (1, qpn), &setup.modify);
        world.connect(&receiver, (0, senders[number].qp.qpn), &setup.modify);
        receiver
    });
    List { srqn, ring, record, senders, receivers, cq }
}

impl List {
    fn post(&self, world: &mut World, entries: &[u16], posted: u16, (target, key): (u64, u32)) {
        let space = self.receivers[0].space;
        for entry in entries {
            let at = self.ring + u64::from(*entry) * STRIDE;
            let segment =
                [&64_u32.to_be_bytes()[..], &key.to_be_bytes(), &(target + u64::from(*entry) * 64).to_be_bytes()];
            world.mem[1].set(space, at + 16, &segment.concat());
        }
        world.mem[1].set(space, self.record, &u32::from(posted).to_be_bytes());
    }
}

#[test]
fn entries_of_a_list_are_taken_in_its_order_and_an_event_says_when_few_are_left() {
    let mut world = World::new();
    let order = [0, 2, 1, 3];
    let mut list = list(&mut world, order);
    let (source, lkey) = world.buffer(0, list.senders[0].qp.pd, Space::Host, 64);
    let (target, key) = world.buffer(1, list.receivers[0].pd, Space::Host, 256);
    world.mem[0].set(Space::Host, source, &pattern(64, 5));
    list.post(&mut world, &order[..3], 3, (target, key));
    let srqn = list.srqn;
    world.act(1, |nic, _, now_ps, fx| nic.arm_srq(now_ps, srqn, 2, fx).expect("it is there"));
    world.run();
    assert_eq!(world.async_events, []);
    for (number, entry) in [(0, 0), (0, 2), (0, 1)] {
        world.post(&mut list.senders[number].qp, &Wqe::new(SEND).data(source, 64, lkey));
        world.run();
        let received = world.poll_all(&mut list.cq);
        assert_eq!(
            received.iter().map(|cqe| (cqe.counter, cqe.qpn)).collect::<Vec<_>>(),
            [(entry, list.receivers[number].qpn)]
        );
        assert!(world.mem[1].get(Space::Host, target + u64::from(entry) * 64, 64) == pattern(64, 5));
    }
    let limit = (1, AsyncEvent::SrqLimit { srqn });
    assert_eq!(world.async_events, [limit], "once, although the third receive leaves fewer still");
    assert_eq!(world.nics[1].query_srq(srqn).expect("it is there").limit, 0);
    world.act(1, |nic, _, now_ps, fx| nic.arm_srq(now_ps, srqn, 1, fx).expect("it is there"));
    world.run();
    assert_eq!(world.async_events, [limit, limit], "fewer are left already");
    assert_eq!(world.nics[1].destroy_srq(srqn), Err(NicError::SrqInUse { srqn, users: 2 }));
}

#[test]
fn a_queue_pair_that_fails_keeps_the_receive_that_it_has_and_says_that_it_takes_no_more() {
    let mut world = World::new();
    let mut list = list(&mut world, [0, 1, 2, 3]);
    let (source, lkey) = world.buffer(0, list.senders[0].qp.pd, Space::Host, BYTES);
    let (target, key) = world.buffer(1, list.receivers[0].pd, Space::Host, 256);
    list.post(&mut world, &[0, 1, 2], 3, (target, key));
    // Too long for its receive: that completes in error.
    world.post(&mut list.senders[0].qp, &Wqe::new(SEND).data(source, BYTES, lkey));
    world.run();
    let failed = world.poll_all(&mut list.cq);
    assert_eq!(
        failed.iter().map(|cqe| (cqe.opcode, cqe.counter)).collect::<Vec<_>>(),
        [(cqe_opcode::RESPONDER_ERROR, 0)]
    );
    let qpn = list.receivers[0].qpn;
    assert_eq!(world.async_events, [(1, AsyncEvent::LastReceive { qpn })]);
    let (source, lkey) = world.buffer(0, list.senders[1].qp.pd, Space::Host, 64);
    world.post(&mut list.senders[1].qp, &Wqe::new(SEND).data(source, 64, lkey));
    world.run();
    assert_eq!(world.poll_all(&mut list.cq).iter().map(|cqe| cqe.counter).collect::<Vec<_>>(), [1]);
    // More than the ring holds: the queue has failed, and with it who needs a receive.
    world.mem[1].set(Space::Host, list.record, &200_u32.to_be_bytes());
    world.post(&mut list.senders[1].qp, &Wqe::new(SEND).data(source, 64, lkey));
    world.run();
    world.post(&mut list.senders[1].qp, &Wqe::new(SEND).data(source, 64, lkey));
    world.run();
    let srqn = list.srqn;
    let said = |event: &AsyncEvent| matches!(event, AsyncEvent::SrqError { srqn: of, .. } if *of == srqn);
    assert!(world.async_events.iter().any(|(_, event)| said(event)), "{:?}", world.async_events);
}
