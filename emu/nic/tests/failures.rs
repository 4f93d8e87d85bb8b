//! Receivers that are not ready, malformed WQEs, doorbells beyond the ring, flushes, and changes of state.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

fn syndromes(cqes: &[Cqe]) -> Vec<(u8, u16)> {
    cqes.iter().map(|cqe| (cqe.syndrome, cqe.counter)).collect()
}

#[test]
fn unreliable_sends_without_a_receive_are_dropped_and_counted() {
    for transport in [Transport::Uc, Transport::Ud] {
        let mut world = World::new();
        let (mut a, mut b) = world.pair(&Setup::new(transport));
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 4096);
        let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 3000);
        let wqe = Wqe::new(SEND).data(source, 3000, lkey);
        let wqe = if transport == Transport::Ud { wqe.to(Av::to(1, b.qp.qpn)) } else { wqe };
        world.post(&mut a.qp, &wqe);
        world.run();
        assert_eq!(world.poll_all(&mut a.scq)[0].opcode, cqe_opcode::REQUESTER, "{transport}: no NAK");
        assert_eq!(world.poll_all(&mut b.rcq), []);
        assert_eq!(world.nics[1].counters().rnr_drops, 1, "{transport}: one message, not one per packet");
        world.receive(&mut b.qp, &[(target, 4096, key)]);
        world.post(&mut a.qp, &wqe);
        world.run();
        assert_eq!(world.poll_all(&mut b.rcq).len(), 1, "{transport}: the next one arrives");
        assert_eq!(world.nics[1].counters().tx_packets, 0);
    }
}

#[test]
fn an_unreliable_write_with_immediate_stores_even_without_a_receive() {
    let mut world = World::new();
    let (mut a, b) = world.pair(&Setup::new(Transport::Uc));
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 3000);
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 3000);
    world.mem[0].set(Space::Host, source, &pattern(3000, 4));
    world.post(&mut a.qp, &Wqe::new(RDMA_WRITE_IMM).data(source, 3000, lkey).remote(target, key));
    world.run();
    assert!(world.mem[1].get(Space::Host, target, 3000) == pattern(3000, 4));
    let mut b = b;
    assert_eq!(world.poll_all(&mut b.rcq), []);
    assert_eq!(world.nics[1].counters().rnr_drops, 1);
}

#[test]
fn a_strict_reliable_sender_fails_without_a_receive() {
    for opcode in [SEND, RDMA_WRITE_IMM] {
        let mut world = World::new();
        let (mut a, b) = world.pair(&Setup::new(Transport::Rc));
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
        world.put(&mut a.qp, &Wqe::new(opcode).remote_if(opcode, target, key).inline(&[7; 8]).unsignalled());
        world.put(&mut a.qp, &Wqe::new(NOP).unsignalled());
        world.put(&mut a.qp, &Wqe::new(NOP));
        world.ring(&a.qp);
        world.run();
        let expected = [(syndrome::RNR_RETRY_EXCEEDED, 0), (syndrome::FLUSHED, 1), (syndrome::FLUSHED, 2)];
        assert_eq!(syndromes(&world.poll_all(&mut a.scq)), expected, "{opcode:#x}");
        assert_eq!(world.nics[1].counters().rnr_naks, 1);
        assert_eq!(world.state(&a.qp), QpState::Err);
        assert_eq!(world.state(&b.qp), QpState::Rts, "the receiver did nothing wrong");
        assert_eq!(world.mem[1].get(Space::Host, target, 8), [0; 8], "nothing is stored before the receive is found");
    }
}

trait RemoteIf {
    fn remote_if(self, opcode: u8, addr: u64, rkey: u32) -> Self;
}
impl RemoteIf for Wqe {
    fn remote_if(self, opcode: u8, addr: u64, rkey: u32) -> Self {
        if opcode == RDMA_WRITE_IMM { self.remote(addr, rkey) } else { self }
    }
}

#[test]
fn a_patient_reliable_sender_waits_for_a_receive() {
    for (rnr_retry, posted_after_us) in [(3, 25), (7, 500)] {
        let mut world = World::new();
        let modify = QpModify { rnr_retry: Some(rnr_retry), min_rnr_timer: Some(1), ..QpModify::default() };
        let (mut a, mut b) = world.pair(&Setup { modify, ..Setup::new(Transport::Rc) });
        let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 5000);
        world.mem[0].set(Space::Host, source, &pattern(5000, 4));
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 5000);
        world.put(&mut a.qp, &Wqe::new(SEND).data(source, 5000, lkey));
        world.put(&mut a.qp, &Wqe::new(SEND).data(source, 50, lkey));
        world.ring(&a.qp);
        world.run_until(posted_after_us * 1_000_000);
        world.receive(&mut b.qp, &[(target, 5000, key)]);
        world.receive(&mut b.qp, &[(target, 5000, key)]);
        world.run();
        let lens: Vec<u32> = world.poll_all(&mut b.rcq).iter().map(|cqe| cqe.byte_count).collect();
        assert_eq!(lens, [5000, 50]);
        assert!(world.mem[1].get(Space::Host, target, 5000) == pattern(5000, 4));
        assert_eq!(syndromes(&world.poll_all(&mut a.scq)), [(0, 0), (0, 1)]);
        assert!(world.nics[1].counters().rnr_naks >= 2);
    }
}

#[test]
fn impatience_is_counted() {
    let mut world = World::new();
    let modify = QpModify { rnr_retry: Some(3), min_rnr_timer: Some(1), ..QpModify::default() };
    let (mut a, _b) = world.pair(&Setup { modify, ..Setup::new(Transport::Rc) });
    world.post(&mut a.qp, &Wqe::new(SEND).inline(&[1]));
    world.run();
    assert_eq!(syndromes(&world.poll_all(&mut a.scq)), [(syndrome::RNR_RETRY_EXCEEDED, 0)]);
    assert_eq!(world.nics[1].counters().rnr_naks, 4, "the first try and three more");
    assert!(world.now_ps >= 30_000_000, "each waits ten microseconds");
}

#[test]
fn a_message_longer_than_the_receive() {
    for (transport, sender) in
        [(Transport::Rc, syndrome::REMOTE_INVALID_REQUEST), (Transport::Uc, 0), (Transport::Ud, 0)]
    {
        let mut world = World::new();
        let (mut a, mut b) = world.pair(&Setup::new(transport));
        let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 3000);
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 4000);
        let room = if transport == Transport::Ud { 3039 } else { 2999 };
        world.receive(&mut b.qp, &[(target, room, key)]);
        world.receive(&mut b.qp, &[(target, 4000, key)]);
        let wqe = Wqe::new(SEND).data(source, 3000, lkey);
        let wqe = if transport == Transport::Ud { wqe.to(Av::to(1, b.qp.qpn)) } else { wqe };
        world.post(&mut a.qp, &wqe);
        world.run();
        let received = world.poll_all(&mut b.rcq);
        assert_eq!(syndromes(&received), [(syndrome::LOCAL_LENGTH, 0), (syndrome::FLUSHED, 1)], "{transport}");
        assert_eq!(world.poll_all(&mut a.scq)[0].syndrome, sender, "{transport}");
        assert_eq!(world.mem[1].get(Space::Host, target + 2999, 1), [0], "{transport}");
    }
}

/// The values are from users' logs of cards, with literals: the constants must not follow a mistake.
#[test]
fn error_completions_have_the_vendor_syndromes_that_cards_show() {
    let of = |cqes: &[Cqe]| cqes.iter().map(|cqe| (cqe.syndrome, cqe.vendor)).collect::<Vec<_>>();
    let modify = QpModify { retry_cnt: Some(0), timeout: Some(5), ..QpModify::default() };
    let setup = || Setup { modify, ..Setup::new(Transport::Rc) };
    let mut lossy = World::with(1_000_000, 0, |_| {});
    let (mut a, _b) = lossy.pair(&setup());
    lossy.put(&mut a.qp, &Wqe::new(SEND).inline(&[1]));
    lossy.put(&mut a.qp, &Wqe::new(NOP));
    lossy.ring(&a.qp);
    lossy.run();
    assert_eq!(of(&lossy.poll_all(&mut a.scq)), [(0x15, 0x81), (0x05, 0xF9)], "no answer; flushed");

    let sends = |room: Option<(u32, bool)>| {
        let mut world = World::new();
        let (mut a, mut b) = world.pair(&setup());
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
        if let Some((bytes, is_allowed)) = room {
            world.receive(&mut b.qp, &[(target, bytes, if is_allowed { key } else { key + 1 })]);
        }
        world.post(&mut a.qp, &Wqe::new(SEND).inline(&[7; 8]));
        world.run();
        (of(&world.poll_all(&mut a.scq)), of(&world.poll_all(&mut b.rcq)))
    };
    assert_eq!(sends(None), (vec![(0x16, 0x87)], vec![]), "no receive");
    assert_eq!(sends(Some((7, true))), (vec![(0x12, 0x8A)], vec![(0x01, 0x8E)]), "longer than the receive");
    let (sender, receiver) = sends(Some((64, false)));
    assert_eq!((sender, receiver[0].0), (vec![(0x14, 0x89)], 0x04), "a receive without a key");
    assert_ne!(receiver[0].1, 0, "a value of the emulator's own: nobody has published the card's");

    let mut world = World::new();
    let (mut a, b) = world.pair(&setup());
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
    world.post(&mut a.qp, &Wqe::new(RDMA_WRITE).inline(&[7; 8]).remote(target, key + 1));
    world.run();
    assert_eq!(of(&world.poll_all(&mut a.scq)), [(0x13, 0x88)], "the peer does not allow the access");
}

#[test]
fn a_short_receive_list_ends_where_it_says() {
    let mut world = World::new();
    // Four segments of room, one used, and the old contents of the ring behind the terminator.
    let (mut a, mut b) = world.pair(&Setup { log_rq: 0, ..Setup::new(Transport::Uc) });
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 400);
    let quarter = |i: u64| (target + i * 100, 100, key);
    for (segments, fits) in [(vec![quarter(0), quarter(1), quarter(2), quarter(3)], true), (vec![quarter(0)], false)] {
        world.receive(&mut b.qp, &segments);
        world.post(&mut a.qp, &Wqe::new(SEND).inline(&[1; 150]));
        world.run();
        let cqe = world.poll(&mut b.rcq).unwrap();
        assert_eq!(cqe.syndrome == 0, fits, "{} segments", segments.len());
    }
}

#[test]
fn malformed_wqes_complete_in_error_and_flush_the_rest() {
    type Spoil = fn(&mut Vec<u8>);
    let cases: [(&str, Transport, Spoil, u8, u8); 12] = [
        ("unknown opcode", Transport::Rc, |w| w[3] = 0x3F, syndrome::LOCAL_QP_OPERATION, vendor::OPCODE),
        ("masked atomic", Transport::Rc, |w| w[3] = 0x14, syndrome::LOCAL_QP_OPERATION, vendor::OPCODE),
        ("operation modifier", Transport::Rc, |w| w[0] = 1, syndrome::LOCAL_QP_OPERATION, vendor::OPCODE),
        ("read on UC", Transport::Uc, |w| w[3] = RDMA_READ, syndrome::LOCAL_QP_OPERATION, vendor::OPCODE),
        ("write on UD", Transport::Ud, |w| w[3] = RDMA_WRITE, syndrome::LOCAL_QP_OPERATION, vendor::OPCODE),
        ("no segments", Transport::Rc, |w| w[7] = 0, syndrome::LOCAL_QP_OPERATION, vendor::SIZE),
        ("past the producer", Transport::Rc, |w| w[7] = 63, syndrome::LOCAL_QP_OPERATION, vendor::SIZE),
        (
            "write without address",
            Transport::Uc,
            |w| {
                w[3] = RDMA_WRITE;
                w[7] = 1;
            },
            syndrome::LOCAL_QP_OPERATION,
            vendor::SIZE,
        ),
        ("inline past the end", Transport::Rc, |w| w[18] = 0x10, syndrome::LOCAL_QP_OPERATION, vendor::SIZE),
        (
            "inline read",
            Transport::Rc,
            |w| {
                w[3] = RDMA_READ;
                w[32] = 0x80;
                w[7] = 3;
            },
            syndrome::LOCAL_QP_OPERATION,
            vendor::SIZE,
        ),
        ("another queue pair", Transport::Rc, |w| w[6] ^= 1, syndrome::LOCAL_QP_OPERATION, vendor::QPN),
        ("compact address", Transport::Ud, |w| w[24] = 0, syndrome::LOCAL_QP_OPERATION, vendor::ADDRESS),
    ];
    for (name, transport, spoil, syndrome, vendor) in cases {
        let mut world = World::new();
        let (mut a, b) = world.pair(&Setup::new(transport));
        let wqe = Wqe::new(SEND).inline(&[0; 40]);
        let wqe = if transport == Transport::Ud { wqe.to(Av::to(1, b.qp.qpn)) } else { wqe };
        let mut bytes = wqe.bytes(&a.qp, 0);
        spoil(&mut bytes);
        let (sq, space) = (a.qp.sq, a.qp.space);
        world.put(&mut a.qp, &wqe.unsignalled());
        world.mem[0].set(space, sq, &bytes);
        world.put(&mut a.qp, &Wqe::new(NOP));
        world.ring(&a.qp);
        world.run();
        let cqes = world.poll_all(&mut a.scq);
        assert_eq!((cqes[0].syndrome, cqes[0].vendor, cqes[0].counter), (syndrome, vendor, 0), "{name}");
        assert!(cqes[1..].iter().all(|cqe| cqe.syndrome == emu_nic::syndrome::FLUSHED), "{name}");
        assert_eq!(world.state(&a.qp), QpState::Err, "{name}");
        assert_eq!(world.arrivals, [], "{name}");
    }
}

#[test]
fn a_datagram_longer_than_the_mtu_fails() {
    let mut world = World::with(0, 0, |config| config.port_mtu = Mtu::B1024);
    let (mut a, b) = world.pair(&Setup::new(Transport::Ud));
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 1025);
    world.post(&mut a.qp, &Wqe::new(SEND).to(Av::to(1, b.qp.qpn)).data(source, 1025, lkey));
    world.run();
    let cqe = &world.poll_all(&mut a.scq)[0];
    assert_eq!((cqe.syndrome, cqe.vendor), (syndrome::LOCAL_LENGTH, vendor::LENGTH));
}

#[test]
fn a_failure_waits_for_what_was_sent_before() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Rc));
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 4000);
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 3000);
    world.receive(&mut b.qp, &[(target, 4000, key)]);
    world.put(&mut a.qp, &Wqe::new(SEND).data(source, 3000, lkey));
    world.put(&mut a.qp, &Wqe::new(SEND).data(source, 3000, lkey + 1));
    world.put(&mut a.qp, &Wqe::new(NOP));
    world.ring(&a.qp);
    world.run();
    let expected = [(0, 0), (syndrome::LOCAL_PROTECTION, 1), (syndrome::FLUSHED, 2)];
    assert_eq!(syndromes(&world.poll_all(&mut a.scq)), expected);
    assert_eq!(world.poll_all(&mut b.rcq).len(), 1);
}

#[test]
fn a_doorbell_beyond_the_ring_fails_the_queue_pair() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup { log_sq: 3, ..Setup::new(Transport::Uc) });
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
    world.receive(&mut b.qp, &[(target, 64, key)]);
    for _ in 0..8 {
        world.put(&mut a.qp, &Wqe::new(NOP));
    }
    world.ring(&a.qp);
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 8, "a full ring is fine");
    let qpn = a.qp.qpn;
    world.act(0, |nic, _, now, fx| nic.ring_sq(now, qpn, 17, fx));
    world.run();
    let cause = FailureCause::BadDoorbell { is_send: true, producer_index: 17, consumer_index: 8, depth: 8 };
    assert_eq!(world.async_events, [(0, AsyncEvent::QpFatal { qpn, cause })]);
    assert_eq!(world.state(&a.qp), QpState::Err);
    assert_eq!(world.nics[0].counters().bad_doorbells, 1);
}

#[test]
fn a_receive_counter_beyond_the_ring_fails_the_queue_pair() {
    let mut world = World::new();
    let (mut a, b) = world.pair(&Setup { log_rq: 2, ..Setup::new(Transport::Uc) });
    world.mem[1].set(Space::Host, b.qp.dbr, &5_u32.to_be_bytes());
    world.post(&mut a.qp, &Wqe::new(SEND).inline(&[1]));
    world.run();
    let cause = FailureCause::BadDoorbell { is_send: false, producer_index: 5, consumer_index: 0, depth: 4 };
    assert_eq!(world.async_events, [(1, AsyncEvent::QpFatal { qpn: b.qp.qpn, cause })]);
}

#[test]
fn producer_indices_wrap_at_sixteen_bits() {
    let mut world = World::new();
    let setup = Setup { log_sq: 15, log_cq: 15, space: DPA, ..Setup::new(Transport::Uc) };
    let (mut a, _b) = world.pair(&setup);
    for _ in 0..5 {
        for _ in 0..1 << 14 {
            world.put(&mut a.qp, &Wqe::new(NOP));
        }
        world.ring(&a.qp);
        world.run();
        assert_eq!(world.poll_all(&mut a.scq).len(), 1 << 14);
    }
    assert_eq!(a.qp.sq_pi, 1 << 14);
    assert_eq!(world.async_events, []);
}

#[test]
fn stale_doorbells_and_doorbells_before_rts_do_nothing() {
    let mut world = World::new();
    let setup = Setup::new(Transport::Uc);
    let mut a = world.end(0, &setup);
    world.post(&mut a.qp, &Wqe::new(NOP));
    world.run();
    assert_eq!(world.nics[0].counters().ignored_doorbells, 1);
    world.connect(&a.qp, (1, 9), &setup.modify);
    world.post(&mut a.qp, &Wqe::new(NOP));
    let qpn = a.qp.qpn;
    world.act(0, |nic, _, now, fx| nic.ring_sq(now, qpn, 1, fx));
    world.act(0, |nic, _, now, fx| nic.ring_sq(now, qpn, 2, fx));
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 2);
    assert_eq!(world.async_events, []);
}

#[test]
fn the_error_state_flushes_both_queues() {
    let mut world = World::new();
    let (mut a, _b) = world.pair(&Setup::new(Transport::Ud));
    for _ in 0..3 {
        world.receive(&mut a.qp, &[]);
    }
    world.modify(0, a.qp.qpn, &QpModify { next_state: Some(QpState::Err), ..QpModify::default() }).unwrap();
    world.run();
    let received = world.poll_all(&mut a.rcq);
    assert_eq!(syndromes(&received), [(syndrome::FLUSHED, 0), (syndrome::FLUSHED, 1), (syndrome::FLUSHED, 2)]);
    assert!(received.iter().all(|cqe| cqe.opcode == cqe_opcode::RESPONDER_ERROR));
    // What is posted in the error state is flushed too, a two-block WQE as one.
    world.put(&mut a.qp, &Wqe::new(SEND).to(Av::to(1, 3)).data(0, 8, 0).unsignalled());
    world.put(&mut a.qp, &Wqe::new(NOP).unsignalled());
    world.ring(&a.qp);
    world.run();
    let sent = world.poll_all(&mut a.scq);
    assert_eq!(syndromes(&sent), [(syndrome::FLUSHED, 0), (syndrome::FLUSHED, 2)]);
    assert!(sent.iter().all(|cqe| cqe.opcode == cqe_opcode::REQUESTER_ERROR && cqe.qpn == a.qp.qpn));
}

#[test]
fn a_reset_queue_pair_starts_afresh() {
    let mut world = World::new();
    let setup = Setup::new(Transport::Rc);
    let (mut a, mut b) = world.pair(&setup);
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
    for round in 0..3 {
        world.receive(&mut b.qp, &[(target, 64, key)]);
        world.post(&mut a.qp, &Wqe::new(SEND).inline(&[round; 4]));
        world.run();
        let cqe = world.poll(&mut b.rcq).expect("message");
        assert_eq!((cqe.opcode, cqe.counter), (cqe_opcode::RESPONDER_SEND, 0), "round {round}");
        assert_eq!(world.poll(&mut a.scq).expect("completion").syndrome, 0);
        for end in [&mut a, &mut b] {
            let reset = QpModify { next_state: Some(QpState::Reset), ..QpModify::default() };
            world.modify(end.qp.node, end.qp.qpn, &reset).unwrap();
            assert_eq!(world.state(&end.qp), QpState::Reset);
            (end.qp.sq_pi, end.qp.rq_pi) = (0, 0);
            world.mem[end.qp.node].set(Space::Host, end.qp.dbr, &[0; 8]);
        }
        world.connect(&a.qp, (1, b.qp.qpn), &setup.modify);
        world.connect(&b.qp, (0, a.qp.qpn), &setup.modify);
    }
}

#[test]
fn transitions_follow_the_order_and_need_their_attributes() {
    use QpState::{Err as Failed, Init, Reset, Rtr, Rts};
    let mut world = World::new();
    for transport in [Transport::Rc, Transport::Ud] {
        let end = world.end(0, &Setup::new(transport));
        let qpn = end.qp.qpn;
        let full = QpModify {
            access: Some(Access::empty()),
            qkey: Some(1),
            path_mtu: Some(Mtu::B256),
            dest_qpn: Some(1),
            rq_psn: Some(0),
            sq_psn: Some(0),
            rgid: Some(GIDS[1]),
            ..QpModify::default()
        };
        let to = |state| QpModify { next_state: Some(state), ..full };
        for state in [Rtr, Rts] {
            let error = NicError::Transition { qpn, from: Reset, to: state };
            assert_eq!(world.modify(0, qpn, &to(state)), Err(error));
        }
        let missing = |to, attribute| Err(NicError::MissingAttribute { qpn, transport, to, attribute });
        let bare = |state| QpModify { next_state: Some(state), ..QpModify::default() };
        let first = if transport == Transport::Ud { "qkey" } else { "access" };
        assert_eq!(world.modify(0, qpn, &bare(Init)), missing(Init, first));
        assert_eq!(world.state(&end.qp), Reset, "a refused change changes nothing");
        let initial = QpModify { access: full.access, qkey: full.qkey, ..bare(Init) };
        world.modify(0, qpn, &initial).unwrap();
        if transport == Transport::Rc {
            assert_eq!(world.modify(0, qpn, &bare(Rtr)), missing(Rtr, "path_mtu"));
            let no_gid = QpModify { rgid: None, ..to(Rtr) };
            assert_eq!(world.modify(0, qpn, &no_gid), missing(Rtr, "rgid"));
            world.modify(0, qpn, &QpModify { sq_psn: None, ..to(Rtr) }).unwrap();
        } else {
            world.modify(0, qpn, &bare(Rtr)).unwrap();
        }
        assert_eq!(world.modify(0, qpn, &bare(Rts)), missing(Rts, "sq_psn"));
        assert_eq!(world.modify(0, qpn, &to(Init)), Err(NicError::Transition { qpn, from: Rtr, to: Init }));
        world.modify(0, qpn, &to(Rts)).unwrap();
        let error = world.modify(0, qpn, &to(Rtr)).unwrap_err();
        assert!(error.to_string().contains("from RTS to RTR"), "{error}");
        let too_many = QpModify { retry_cnt: Some(8), ..QpModify::default() };
        let range = NicError::AttributeRange { qpn, attribute: "retry_cnt", value: 8, max: 7 };
        assert_eq!(world.modify(0, qpn, &too_many), Err(range));
        let pd = QpModify { pd: Some(77), ..QpModify::default() };
        assert!(matches!(world.modify(0, qpn, &pd), Err(NicError::PdChange { pd: 77, .. })));
        world.modify(0, qpn, &bare(Failed)).unwrap();
        assert_eq!(world.modify(0, qpn, &to(Init)), Err(NicError::Transition { qpn, from: Failed, to: Init }));
        world.modify(0, qpn, &bare(Reset)).unwrap();
        assert_eq!(world.modify(0, qpn, &bare(Init)), missing(Init, first), "RESET forgets the attributes");
    }
}

#[test]
fn objects_in_use_stay() {
    let mut world = World::new();
    let end = world.end(0, &Setup::new(Transport::Uc));
    let (qpn, pd) = (end.qp.qpn, end.qp.pd);
    let nic = &mut world.nics[0];
    assert_eq!(nic.destroy_cq(end.scq.cqn), Err(NicError::CqInUse { cqn: end.scq.cqn, users: 1 }));
    assert_eq!(nic.dealloc_pd(pd), Err(NicError::PdInUse { pd, users: 1 }));
    let attr = nic.query_qp(qpn).unwrap().attr;
    let bad = [
        nic.create_qp(QpAttr { log_sq_depth: 16, ..attr }).unwrap_err(),
        nic.create_qp(QpAttr { log_rq_stride: 3, ..attr }).unwrap_err(),
        nic.create_qp(QpAttr { send_cq: 1, ..attr }).unwrap_err(),
        nic.create_qp(QpAttr { sq: QueueMemory { addr: 32, ..attr.sq }, ..attr }).unwrap_err(),
    ];
    assert_eq!(bad[0].to_string(), "log_sq_depth is 16, but must be from 0 to 15");
    assert!(matches!(bad[1], NicError::LogSize { name: "log_rq_stride", .. }));
    assert_eq!(bad[2], NicError::UnknownCq { cqn: 1 });
    assert!(matches!(bad[3], NicError::Alignment { addr: 32, align: 64, .. }));
    nic.destroy_qp(qpn).unwrap();
    assert_eq!(nic.destroy_qp(qpn), Err(NicError::UnknownQp { qpn }));
    nic.destroy_cq(end.scq.cqn).unwrap();
    nic.dealloc_pd(pd).unwrap();
}

#[test]
fn packets_for_nobody_are_counted() {
    let mut world = World::new();
    let (mut a, b) = world.pair(&Setup::new(Transport::Ud));
    let send = |world: &mut World, a: &mut End, av| {
        world.post(&mut a.qp, &Wqe::new(SEND).to(av).inline(&[1]));
        world.run();
    };
    send(&mut world, &mut a, Av::to(1, b.qp.qpn + 1));
    assert_eq!(world.nics[1].counters().qp_drops, 1, "no such queue pair");
    world.modify(1, b.qp.qpn, &QpModify { next_state: Some(QpState::Reset), ..QpModify::default() }).unwrap();
    send(&mut world, &mut a, Av::to(1, b.qp.qpn));
    assert_eq!(world.nics[1].counters().qp_drops, 2, "a queue pair that does not receive");
    let mut wqe = Wqe::new(SEND).to(Av::to(1, b.qp.qpn)).inline(&[1]).bytes(&a.qp, a.qp.sq_pi);
    wqe[36..42].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    wqe[48 + 15] = 99;
    let at = a.qp.sq + u64::from(a.qp.sq_pi) * 64;
    world.mem[0].set(Space::Host, at, &wqe);
    a.qp.sq_pi += wqe.len().div_ceil(64) as u16;
    world.ring(&a.qp);
    world.run();
    assert_eq!(world.nics[1].counters().address_drops, 1, "another port's address");
}

#[test]
fn malformed_messages_of_a_peer_are_refused() {
    use std::sync::Arc;
    /// First, last, payload bytes.
    type Part = (bool, bool, usize);
    // Packets of a Write that no correct peer sends, and the bytes announced.
    let cases: [(&str, &[Part], u32); 5] = [
        ("shorter than announced", &[(true, true, 100)], 101),
        ("longer than announced", &[(true, true, 100)], 99),
        ("short packet in the middle", &[(true, false, 1000), (false, true, 1000)], 2000),
        ("packet longer than the MTU", &[(true, true, 1025)], 1025),
        ("continuation of nothing", &[(false, true, 100)], 100),
    ];
    for (name, packets, len) in cases {
        let mut world = World::new();
        let (_a, b) = world.pair(&Setup::new(Transport::Rc));
        let (target, rkey) = world.buffer(1, b.qp.pd, Space::Host, 4000);
        for (i, &(first, last, bytes)) in packets.iter().enumerate() {
            let packet = Packet {
                source: Address { mac: MACS[0], gid: GIDS[0] },
                destination: Address { mac: MACS[1], gid: GIDS[1] },
                network: Network::default(),
                pkey: DEFAULT_PKEY,
                transport: Transport::Rc,
                operation: Operation::Write,
                first,
                last,
                solicited: false,
                ack_request: last,
                destination_qpn: b.qp.qpn,
                psn: 0xFF_FFF0 + i as u32,
                immediate: None,
                invalidate: None,
                message_number: 0,
                extension: if first { Extension::Remote { address: target, rkey, len } } else { Extension::None },
                payload: Arc::from(vec![9; bytes]),
                damage: None,
            };
            world.act(1, |nic, mem, now, fx| nic.handle_packet(now, packet, mem, fx));
            world.run();
        }
        let event = AsyncEvent::QpFatal { qpn: b.qp.qpn, cause: FailureCause::InvalidRequest };
        assert_eq!(world.async_events, [(1, event)], "{name}");
        assert_eq!(world.state(&b.qp), QpState::Err, "{name}");
        assert_eq!(world.arrivals.last().map(|arrival| arrival.2), Some(17), "{name}: the peer is notified");
    }
}

#[test]
fn completions_of_one_queue_stay_in_order() {
    let mut world = World::new();
    let (mut a, b) = world.pair(&Setup::new(Transport::Ud));
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 4096);
    // The first waits for PCIe and the wire, the second turns round at once.
    world.put(&mut a.qp, &Wqe::new(SEND).to(Av::to(1, b.qp.qpn)).data(source, 4096, lkey));
    let own = Av { fl: true, ..Av::to(1, a.qp.qpn) };
    world.put(&mut a.qp, &Wqe::new(SEND).to(own).inline(&[1]));
    world.ring(&a.qp);
    world.run();
    let order: Vec<u16> = world.poll_all(&mut a.scq).iter().map(|cqe| cqe.counter).collect();
    assert_eq!(order, [0, 2]);
    assert_eq!(world.nics[0].counters().loopback_packets, 1);
}
