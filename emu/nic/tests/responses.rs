//! Responder under bursts of requests: which packets it answers, how many messages they count, and what is refused.

use std::cell::RefCell;
use std::rc::Rc;

use crate::{common, outside};
use common::*;
use emu_nic::*;
use outside::{FIRST_PSN, MTU, PEER_QPN, add, to_card};

struct Fixture {
    world: World,
    end: End,
    address: u64,
    rkey: u32,
    sent: Rc<RefCell<Vec<Packet>>>,
}

/// A card that is asked by a peer that sends whatever it likes.
fn fixture(max_dest_rd_atomic: u8) -> Fixture {
    let mut world = World::new();
    let mut end = world.end(0, &Setup::new(Transport::Rc));
    let modify = QpModify {
        path_mtu: Some(Mtu::B256),
        rq_psn: Some(FIRST_PSN),
        max_dest_rd_atomic: Some(max_dest_rd_atomic),
        access: Some(Access::all()),
        dest_qpn: Some(PEER_QPN),
        rgid: Some(GIDS[1]),
        dmac: Some(MACS[1]),
        sq_psn: Some(FIRST_PSN),
        ..QpModify::default()
    };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        world.modify(0, end.qp.qpn, &QpModify { next_state: Some(state), ..modify }).expect("transition");
    }
    let (address, rkey) = world.buffer(0, end.qp.pd, Space::Host, 16 * MTU);
    world.mem[0].set(Space::Host, address, &pattern(16 * MTU, 3));
    world.receive(&mut end.qp, &[(address + 8 * MTU as u64, MTU as u32, rkey)]);
    let sent = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&sent);
    world.censor = Some(Box::new(move |_, packet| {
        sink.borrow_mut().push(packet.clone());
        true
    }));
    Fixture { world, end, address, rkey, sent }
}

impl Fixture {
    fn read(&self, psn: u32, len: usize) -> Packet {
        let extension = Extension::Remote { address: self.address, rkey: self.rkey, len: len as u32 };
        Packet { ack_request: true, extension, ..to_card(self.end.qp.qpn, Operation::ReadRequest, psn) }
    }

    fn send(&self, psn: u32) -> Packet {
        Packet { ack_request: true, ..to_card(self.end.qp.qpn, Operation::Send, psn) }
    }

    fn fetch_add(&self, psn: u32) -> Packet {
        let (address, rkey) = (self.address + 8, self.rkey);
        let extension = Extension::Atomic { address, rkey, swap_or_add: 1, compare: 0 };
        Packet { ack_request: true, extension, ..to_card(self.end.qp.qpn, Operation::FetchAdd, psn) }
    }

    /// What comes back of requests that arrive at once: opcode, PSN from the first on, and number of messages.
    fn answers(&mut self, requests: &[Packet]) -> Vec<(u8, u32, u32)> {
        for request in requests.iter().cloned() {
            self.world.act(0, |nic, mem, now, fx| nic.handle_packet(now, request, mem, fx));
        }
        self.world.run();
        // The last of it has reached the peer.
        self.world.run_until(self.world.now_ps + 1_000_000);
        let sent = self.sent.take();
        sent.iter()
            .map(|packet| (packet.opcode(), packet.psn.wrapping_sub(FIRST_PSN) & 0xFF_FFFF, packet.message_number))
            .collect()
    }
}

const READ_FIRST: u8 = 13;
const READ_MIDDLE: u8 = 14;
const READ_LAST: u8 = 15;
const READ_ONLY: u8 = 16;
const ACKNOWLEDGE: u8 = 17;
const ATOMIC_ACKNOWLEDGE: u8 = 18;

#[test]
fn an_answer_counts_the_messages_up_to_its_own_psn() {
    let mut fixture = fixture(16);
    let psn = |ahead| add(FIRST_PSN, ahead);
    let requests = [
        fixture.read(psn(0), 300),
        fixture.read(psn(2), 100),
        fixture.send(psn(3)),
        fixture.fetch_add(psn(4)),
        fixture.read(psn(5), 8),
    ];
    let expected = [
        (READ_FIRST, 0, 1),
        (READ_LAST, 1, 1),
        (READ_ONLY, 2, 2),
        (ACKNOWLEDGE, 3, 3),
        (ATOMIC_ACKNOWLEDGE, 4, 4),
        (READ_ONLY, 5, 5),
    ];
    assert_eq!(fixture.answers(&requests), expected);
    // An atomic that waits for nothing counts itself, too.
    let alone = [fixture.fetch_add(psn(6))];
    assert_eq!(fixture.answers(&alone), [(ATOMIC_ACKNOWLEDGE, 6, 6)]);
    // Repetitions are answered like the first time.
    assert_eq!(fixture.answers(&[requests[3].clone()]), [(ATOMIC_ACKNOWLEDGE, 4, 4)]);
    assert_eq!(fixture.answers(&[requests[1].clone()]), [(READ_ONLY, 2, 2)]);
    assert_eq!(fixture.answers(&[requests[2].clone()]), [(ACKNOWLEDGE, 3, 3)], "not the Reads behind it");
}

#[test]
fn a_doubled_request_takes_no_answer_away() {
    let mut fixture = fixture(16);
    let psn = |ahead| add(FIRST_PSN, ahead);
    // So long that the repetition comes in the middle of the answer.
    let (read, send, behind) = (fixture.read(psn(0), 8 * MTU), fixture.send(psn(8)), fixture.read(psn(9), 100));
    let answers = fixture.answers(&[read.clone(), send, behind, read]);
    let ends: Vec<_> = answers.into_iter().filter(|answer| !matches!(answer.0, READ_FIRST | READ_MIDDLE)).collect();
    assert_eq!(ends, [(READ_LAST, 7, 1), (ACKNOWLEDGE, 8, 2), (READ_ONLY, 9, 3)]);
}

#[test]
fn more_outstanding_reads_than_agreed_are_refused() {
    for limit in [1, 2, 16] {
        let count = u32::from(limit);
        for atomic in [false, true] {
            let mut fixture = fixture(limit);
            let mut requests: Vec<Packet> = (0..count).map(|ahead| fixture.read(add(FIRST_PSN, ahead), 8)).collect();
            // As many are answered; when they are, as many again.
            assert_eq!(fixture.answers(&requests).len(), requests.len());
            for request in &mut requests {
                request.psn = add(request.psn, count);
            }
            let psn = add(FIRST_PSN, 2 * count);
            requests.push(if atomic { fixture.fetch_add(psn) } else { fixture.read(psn, 8) });
            for request in requests {
                fixture.world.act(0, |nic, mem, now, fx| nic.handle_packet(now, request, mem, fx));
            }
            fixture.world.run();
            let sent = fixture.sent.take();
            let answers = sent.iter().filter(|packet| packet.opcode() == READ_ONLY).count();
            assert_eq!(answers, usize::from(limit), "what was agreed is answered");
            let refusal = sent.last().expect("an answer");
            assert_eq!(refusal.extension, Extension::Acknowledge(Acknowledgement::InvalidRequest));
            assert_eq!((refusal.psn, refusal.message_number), (psn, 2 * count));
            let event = AsyncEvent::QpFatal { qpn: fixture.end.qp.qpn, cause: FailureCause::InvalidRequest };
            assert_eq!(fixture.world.async_events, [(0, event)]);
            assert_eq!(fixture.world.state(&fixture.end.qp), QpState::Err);
        }
    }
}

/// A peer that is repeated by the network at the wrong moment has not asked for more than agreed.
#[test]
fn repetitions_are_not_counted_as_outstanding() {
    let mut fixture = fixture(1);
    let first = fixture.read(FIRST_PSN, 300);
    assert_eq!(fixture.answers(std::slice::from_ref(&first)).len(), 2);
    let second = fixture.read(add(FIRST_PSN, 2), 8);
    let answers = fixture.answers(&[first, second]);
    assert_eq!(answers.last(), Some(&(READ_ONLY, 2, 2)), "{answers:?}");
    assert_eq!(fixture.world.state(&fixture.end.qp), QpState::Rts);
}

#[test]
fn a_repetition_reaches_no_further_than_the_read_did() {
    let mut fixture = fixture(16);
    let psn = |ahead| add(FIRST_PSN, ahead);
    let requests = [fixture.read(psn(0), 600), fixture.send(psn(3))];
    assert_eq!(fixture.answers(&requests).len(), 4);
    let tail = fixture.read(psn(1), 344);
    assert_eq!(fixture.answers(&[tail]), [(READ_FIRST, 1, 1), (READ_LAST, 2, 1)], "the tail");
    for (name, longer) in [("beyond its end", fixture.read(psn(1), 600)), ("where a Send was", fixture.read(psn(3), 8))]
    {
        assert_eq!(fixture.answers(&[longer]), [], "{name}");
    }
}
