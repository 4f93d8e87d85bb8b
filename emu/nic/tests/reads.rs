//! Reads against peers that are no cards of ours, with every single fault on the line: any packet is lost, comes twice,
//! or changes places with any other. In both roles the bytes are right in the end, everything is executed once, and no
//! answer says more than is so.

use crate::{common, outside};
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;
use outside::requester::{Kind, Requester};
use outside::responder::Responder;
use outside::*;

/// The last packet of a Read of so many is not full.
fn read_bytes(packets: usize) -> usize {
    packets * MTU - 56
}

/// What comes behind the Read; two packets of it where it may have several.
const BEHIND: [Option<Kind>; 5] = [None, Some(Kind::Send), Some(Kind::Write), Some(Kind::FetchAdd), Some(Kind::Read)];
const OTHER_BYTES: usize = MTU + 100;
/// Offsets in the responder's memory.
const READ_FROM: u64 = 0;
const OTHER_AT: u64 = 8 * MTU as u64;
const COUNTER: u64 = 12 * MTU as u64;

/// A Send before it or not, the Read, and what comes behind it: kind, bytes, offset at the responder.
fn requests(send_before: bool, packets: usize, behind: Option<Kind>) -> Vec<(Kind, usize, u64)> {
    let mut requests = Vec::new();
    if send_before {
        requests.push((Kind::Send, OTHER_BYTES, 0));
    }
    requests.push((Kind::Read, read_bytes(packets), READ_FROM));
    requests.extend(behind.map(|kind| match kind {
        Kind::FetchAdd => (kind, 8, COUNTER),
        Kind::Send => (kind, OTHER_BYTES, 0),
        Kind::Write | Kind::Read => (kind, OTHER_BYTES, OTHER_AT),
    }));
    requests
}

fn card() -> (World, End) {
    let mut world = World::new();
    let end = world.end(0, &Setup::new(Transport::Rc));
    let modify = QpModify {
        access: Some(Access::all()),
        path_mtu: Some(Mtu::B256),
        dest_qpn: Some(PEER_QPN),
        rq_psn: Some(FIRST_PSN),
        sq_psn: Some(FIRST_PSN),
        rgid: Some(GIDS[1]),
        dmac: Some(MACS[1]),
        max_rd_atomic: Some(4),
        max_dest_rd_atomic: Some(4),
        timeout: Some(4),
        ..QpModify::default()
    };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        world.modify(0, end.qp.qpn, &QpModify { next_state: Some(state), ..modify }).expect("transition");
    }
    (world, end)
}

/// The card asks a scripted responder.
fn ask(requests: &[(Kind, usize, u64)], acknowledges_reads: bool, fault: Fault) -> Vec<Sent> {
    let (mut world, mut end) = card();
    let (here, lkey) = world.buffer(0, end.qp.pd, Space::Host, 16 * MTU);
    world.mem[0].set(Space::Host, here, &pattern(OTHER_BYTES, 90));
    let into = |number: usize| here + (4 + 4 * number as u64) * MTU as u64;
    for (number, &(kind, len, remote)) in requests.iter().enumerate() {
        let wqe = match kind {
            Kind::Send => Wqe::new(SEND).data(here, len, lkey),
            Kind::Write => Wqe::new(RDMA_WRITE).data(here, len, lkey).remote(remote, 1),
            Kind::Read => Wqe::new(RDMA_READ).data(into(number), len, lkey).remote(remote, 1),
            Kind::FetchAdd => Wqe::new(ATOMIC_FA).data(into(number), 8, lkey).remote(remote, 1).operands(1, 0),
        };
        world.put(&mut end.qp, &wqe);
    }
    world.ring(&end.qp);
    let mut peer = Responder::new(end.qp.qpn);
    peer.acknowledges_reads = acknowledges_reads;
    let before = peer.memory.clone();
    let log = run(&mut world, &mut peer, fault);
    let case = format!("{requests:?}, {fault:?}, Reads are acknowledged: {acknowledges_reads}");
    assert!(world.nics[0].counters().rc_timeouts == 0 || !fault.loses_nothing(), "{case}: nothing was lost");
    let cqes = world.poll_all(&mut end.scq);
    assert_eq!(cqes.iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), vec![0; requests.len()], "{case}");
    for (number, &(kind, len, remote)) in requests.iter().enumerate() {
        let brought = world.mem[0].get(Space::Host, into(number), len);
        let from = remote as usize;
        match kind {
            Kind::Read => assert!(brought == before[from..from + len], "{case}: the bytes of the Read"),
            Kind::FetchAdd => assert!(brought == before[from..from + 8], "{case}: the old value"),
            Kind::Write => assert!(peer.memory[from..from + len] == pattern(len, 90), "{case}: what was written"),
            Kind::Send => {}
        }
    }
    let sends = requests.iter().filter(|request| request.0 == Kind::Send).count();
    assert_eq!(peer.received, vec![pattern(OTHER_BYTES, 90); sends], "{case}");
    log
}

/// A scripted requester asks the card.
fn be_asked(requests: &[(Kind, usize, u64)], ack_reads: bool, asks_for_tails: bool, fault: Fault) -> Vec<Sent> {
    let (mut world, mut end) = card();
    let (here, rkey) = world.buffer(0, end.qp.pd, Space::Host, 16 * MTU);
    let before = pattern(16 * MTU, 3);
    world.mem[0].set(Space::Host, here, &before);
    let (receives, lkey) = world.buffer(0, end.qp.pd, Space::Host, 4 * MTU);
    for slot in 0..2 {
        world.receive(&mut end.qp, &[(receives + slot * 2 * MTU as u64, 2 * MTU as u32, lkey)]);
    }
    let there: Vec<_> = requests.iter().map(|&(kind, len, at)| (kind, len, here + at)).collect();
    let mut peer = Requester::new(end.qp.qpn, rkey, &there);
    (peer.ack_reads, peer.asks_for_tails) = (ack_reads, asks_for_tails);
    let log = run(&mut world, &mut peer, fault);
    let case = format!("{requests:?}, {fault:?}, AckReq: {ack_reads}, tails: {asks_for_tails}");
    assert!(peer.done(), "{case}");
    assert!(peer.tries == 1 || !fault.loses_nothing(), "{case}: an answer was withheld");
    assert_eq!(world.state(&end.qp), QpState::Rts, "{case}");
    for (asked, &(kind, len, at)) in peer.requests.iter().zip(requests) {
        let from = at as usize;
        match kind {
            Kind::Read => assert!(asked.brought == before[from..from + len], "{case}: the bytes of the Read"),
            Kind::FetchAdd => {
                assert!(asked.brought == before[from..from + 8], "{case}: the old value");
                assert_eq!(world.nics[0].counters().atomics, 1, "{case}");
            }
            Kind::Write => {
                let written = world.mem[0].get(Space::Host, here + at, len);
                assert!(written == pattern(len, 90), "{case}: what was written");
            }
            Kind::Send => {}
        }
    }
    let sends = requests.iter().filter(|request| request.0 == Kind::Send).count();
    let cqes = world.poll_all(&mut end.rcq);
    assert_eq!(
        cqes.iter().map(|cqe| (cqe.opcode, cqe.byte_count as usize)).collect::<Vec<_>>(),
        vec![(cqe_opcode::RESPONDER_SEND, OTHER_BYTES); sends]
    );
    for slot in 0..sends as u64 {
        let received = world.mem[0].get(Space::Host, receives + slot * 2 * MTU as u64, OTHER_BYTES);
        assert!(received == pattern(OTHER_BYTES, 90), "{case}: what was sent");
    }
    log
}

fn cases() -> impl Iterator<Item = Vec<(Kind, usize, u64)>> {
    let shapes = [false, true].into_iter().flat_map(|before| (1..=4).map(move |packets| (before, packets)));
    shapes.flat_map(|(before, packets)| BEHIND.map(|behind| requests(before, packets, behind)))
}

#[test]
fn a_requester_gets_the_right_bytes_whatever_happens_to_any_packet() {
    let mut runs = 0;
    for requests in cases() {
        for acknowledges_reads in [false, true] {
            let clean = ask(&requests, acknowledges_reads, Fault::None);
            for fault in faults(&clean) {
                ask(&requests, acknowledges_reads, fault);
                runs += 1;
            }
        }
    }
    assert_eq!(runs, 2_980);
}

#[test]
fn a_responder_answers_once_and_rightly_whatever_happens_to_any_packet() {
    let mut runs = 0;
    for requests in cases() {
        for (ack_reads, tails) in [(false, false), (false, true), (true, false), (true, true)] {
            let clean = be_asked(&requests, ack_reads, tails, Fault::None);
            for fault in faults(&clean) {
                be_asked(&requests, ack_reads, tails, fault);
                runs += 1;
            }
        }
    }
    assert_eq!(runs, 5_256);
}
