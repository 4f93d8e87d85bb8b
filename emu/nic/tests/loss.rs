//! Lost packets: RC repairs, UC drops messages, and both do the same every time.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const MESSAGE: usize = 9_000;
const MESSAGES: usize = 40;

/// Sends a mix of messages over a lossy link; gives when it ended and what arrived when.
fn lossy(loss_ppm: u32, seed: u64) -> (u64, Vec<Arrival>, Counters) {
    let mut world = World::with(loss_ppm, seed, |_| {});
    let modify = QpModify {
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        min_rnr_timer: Some(1),
        timeout: Some(4),
        max_rd_atomic: Some(2),
        ..QpModify::default()
    };
    let setup = Setup { log_sq: 7, log_rq: 6, modify, ..Setup::new(Transport::Rc) };
    let (mut a, mut b) = world.pair(&setup);
    let total = MESSAGE * MESSAGES;
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, total);
    let (brought, brought_key) = world.buffer(0, a.qp.pd, Space::Host, total);
    let (target, key) = world.buffer(1, b.qp.pd, DPA, total);
    let (origin, origin_key) = world.buffer(1, b.qp.pd, Space::Host, total);
    let (out, back) = (pattern(total, 3), pattern(total, 200));
    world.mem[0].set(Space::Host, source, &out);
    world.mem[1].set(Space::Host, origin, &back);
    let mut expected = Vec::new();
    for i in 0..MESSAGES {
        let offset = (i * MESSAGE) as u64;
        let mut wqe = Wqe::new([SEND, RDMA_WRITE, RDMA_READ, RDMA_WRITE_IMM, SEND_IMM][i % 5])
            .immediate((i as u32).to_be_bytes())
            .data(source + offset, MESSAGE, lkey);
        match wqe.opcode {
            RDMA_WRITE | RDMA_WRITE_IMM => wqe = wqe.remote(target + offset, key),
            RDMA_READ => {
                wqe.data = vec![(brought + offset, MESSAGE as u32, brought_key)];
                wqe = wqe.remote(origin + offset, origin_key);
            }
            _ => {}
        }
        if matches!(wqe.opcode, SEND | SEND_IMM | RDMA_WRITE_IMM) {
            // Receives of a Write with immediate hold nothing.
            let segment = (target + offset, MESSAGE as u32, key);
            world.receive(&mut b.qp, if wqe.opcode == RDMA_WRITE_IMM { &[] } else { std::slice::from_ref(&segment) });
            expected.push(wqe.opcode);
        }
        world.put(&mut a.qp, &wqe);
    }
    world.ring(&a.qp);
    world.run();
    let case = format!("{loss_ppm} ppm, seed {seed}");
    let sent = world.poll_all(&mut a.scq);
    assert_eq!(sent.len(), MESSAGES, "{case}");
    assert!(sent.iter().all(|cqe| cqe.syndrome == 0), "{case}: {sent:?}");
    let order: Vec<u16> = sent.iter().map(|cqe| cqe.counter).collect();
    assert!(order.is_sorted(), "{case}: completions are in order");
    let received = world.poll_all(&mut b.rcq);
    let opcodes: Vec<u8> = received.iter().map(|cqe| cqe.opcode).collect();
    let expected: Vec<u8> = expected
        .iter()
        .map(|&op| match op {
            SEND => 2,
            SEND_IMM => 3,
            _ => 1,
        })
        .collect();
    assert_eq!(opcodes, expected, "{case}: each message completes once, in order");
    for i in 0..MESSAGES {
        let (offset, range) = ((i * MESSAGE) as u64, i * MESSAGE..(i + 1) * MESSAGE);
        if i % 5 == 2 {
            assert!(world.mem[0].get(Space::Host, brought + offset, MESSAGE) == back[range], "{case}: read {i}");
        } else {
            assert!(world.mem[1].get(DPA, target + offset, MESSAGE) == out[range], "{case}: message {i}");
        }
    }
    assert_eq!(world.async_events, [], "{case}");
    let last_ps = world.arrivals.last().map_or(0, |arrival| arrival.0);
    (last_ps, world.arrivals, *world.nics[0].counters())
}

#[test]
fn rc_delivers_everything_once_and_in_order_over_a_lossy_link() {
    let mut go_backs = 0;
    for seed in 0..60 {
        let (.., counters) = lossy(20_000, seed);
        go_backs += counters.rc_go_backs;
    }
    assert!(go_backs > 60, "2 % loss must be felt: {go_backs} times back");
}

#[test]
fn rc_on_a_clean_link_never_goes_back() {
    let (_, _, counters) = lossy(0, 0);
    assert_eq!((counters.rc_go_backs, counters.rc_timeouts), (0, 0));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    assert_eq!(lossy(20_000, 5), lossy(20_000, 5));
    assert_ne!(lossy(20_000, 5).1, lossy(20_000, 6).1);
}

#[test]
fn every_single_lost_packet_is_repaired() {
    // Whichever packet of the exchange is lost, in either direction, the result is the same.
    for lost in 0.. {
        let mut world = World::new();
        let modify = QpModify { timeout: Some(4), ..QpModify::default() };
        let (mut a, mut b) = world.pair(&Setup { modify, ..Setup::new(Transport::Rc) });
        let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 3000);
        let (brought, brought_key) = world.buffer(0, a.qp.pd, Space::Host, 3000);
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 3000);
        world.mem[0].set(Space::Host, source, &pattern(3000, 1));
        world.receive(&mut b.qp, &[(target, 3000, key)]);
        world.put(&mut a.qp, &Wqe::new(SEND).data(source, 3000, lkey));
        world.put(&mut a.qp, &Wqe::new(RDMA_READ).data(brought, 3000, brought_key).remote(target, key));
        world.put(&mut a.qp, &Wqe::new(RDMA_WRITE).data(source, 2000, lkey).remote(target, key));
        world.ring(&a.qp);
        let mut count = 0;
        world.censor = Some(Box::new(move |_, _| {
            count += 1;
            count == lost + 1
        }));
        world.run();
        let cqes = world.poll_all(&mut a.scq);
        assert_eq!(cqes.iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0; 3], "packet {lost}");
        assert_eq!(world.poll_all(&mut b.rcq).len(), 1, "packet {lost}");
        assert!(world.mem[0].get(Space::Host, brought, 3000) == pattern(3000, 1), "packet {lost}");
        // 3 packets of the Send, a request, 3 responses, 2 packets of the Write, 2 acknowledgements.
        if lost >= 11 {
            assert_eq!(world.nics[0].counters().rc_go_backs, 0, "nothing was left to lose");
            break;
        }
        // The first acknowledgement may be lost without harm: the first response stands for it.
        assert!(world.arrivals.len() >= 10, "packet {lost}");
    }
}

#[test]
fn rc_gives_up_when_nothing_is_received() {
    for retry_cnt in [0, 3] {
        let mut world = World::with(1_000_000, 0, |_| {});
        let modify = QpModify { retry_cnt: Some(retry_cnt), timeout: Some(5), ..QpModify::default() };
        let (mut a, _b) = world.pair(&Setup { modify, ..Setup::new(Transport::Rc) });
        world.put(&mut a.qp, &Wqe::new(SEND).inline(&[1]).unsignalled());
        world.put(&mut a.qp, &Wqe::new(NOP));
        world.ring(&a.qp);
        world.run();
        let cqes = world.poll_all(&mut a.scq);
        let syndromes: Vec<u8> = cqes.iter().map(|cqe| cqe.syndrome).collect();
        assert_eq!(syndromes, [syndrome::RETRY_EXCEEDED, syndrome::FLUSHED]);
        let counters = world.nics[0].counters();
        assert_eq!(counters.tx_packets, u64::from(retry_cnt) + 1);
        assert_eq!(counters.rc_timeouts, u64::from(retry_cnt) + 1);
        let timeout_ps = 4_096_000 << 5;
        assert!(world.now_ps >= (u64::from(retry_cnt) + 1) * timeout_ps);
    }
}

/// Sends three messages of three packets over UC, losing the packets with these numbers.
fn uc_without(opcode: u8, lost: &'static [u32]) -> (Vec<u32>, Vec<Cqe>, World, u64) {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Uc));
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 9000);
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 9000);
    world.mem[0].set(Space::Host, source, &pattern(9000, 1));
    let mut number = 0;
    world.censor = Some(Box::new(move |_, _| {
        number += 1;
        lost.contains(&(number - 1))
    }));
    for i in 0..3 {
        world.receive(&mut b.qp, &[(target + i * 3000, 3000, key)]);
        let wqe = Wqe::new(opcode).data(source + i * 3000, 3000, lkey).immediate((i as u32).to_be_bytes());
        let wqe = if opcode == RDMA_WRITE_IMM { wqe.remote(target + i * 3000, key) } else { wqe };
        world.put(&mut a.qp, &wqe);
    }
    world.ring(&a.qp);
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 3, "the sender never knows");
    assert_eq!(world.nics[1].counters().tx_packets, 0, "no NAK");
    let cqes = world.poll_all(&mut b.rcq);
    let arrived = cqes.iter().map(|cqe| u32::from_be_bytes(cqe.immediate)).collect();
    (arrived, cqes, world, target)
}

#[test]
fn a_uc_gap_drops_its_message_only() {
    for opcode in [SEND_IMM, RDMA_WRITE_IMM] {
        let cases: [(&'static [u32], &[u32]); 7] = [
            (&[], &[0, 1, 2]),
            (&[3], &[0, 2]),
            (&[4], &[0, 2]),
            (&[5], &[0, 2]),
            (&[2, 3], &[2]),
            (&[0, 8], &[1]),
            (&[3, 4, 5], &[0, 2]),
        ];
        for (lost, expected) in cases {
            let (arrived, cqes, mut world, target) = uc_without(opcode, lost);
            assert_eq!(arrived, expected, "{opcode:#x} without {lost:?}");
            assert!(cqes.iter().all(|cqe| cqe.byte_count == 3000));
            // Receives are consumed in order by the messages that arrive.
            let counters: Vec<u16> = cqes.iter().map(|cqe| cqe.counter).collect();
            assert_eq!(counters, (0..expected.len() as u16).collect::<Vec<_>>());
            if opcode == SEND_IMM {
                for (slot, message) in expected.iter().enumerate() {
                    let got = world.mem[1].get(Space::Host, target + slot as u64 * 3000, 3000);
                    let start = *message as usize * 3000;
                    assert!(got == pattern(9000, 1)[start..start + 3000], "without {lost:?}: message {message}");
                }
            }
        }
    }
}

#[test]
fn a_uc_write_with_a_gap_leaves_its_first_part() {
    let (_, _, mut world, target) = uc_without(RDMA_WRITE_IMM, &[4]);
    let sent = pattern(9000, 1);
    assert!(world.mem[1].get(Space::Host, target + 3000, 1024) == sent[3000..4024], "stored before the gap");
    assert_eq!(world.mem[1].get(Space::Host, target + 4024, 1976), [0; 1976], "nothing after it");
    assert_eq!(world.nics[1].counters().uc_gap_drops, 1);
}

/// A pair whose first lost packets only NAKs can repair: nothing ever times out.
fn without_timeouts(path_mtu: Mtu) -> (World, End, End) {
    let mut world = World::new();
    let modify = QpModify { timeout: Some(0), path_mtu: Some(path_mtu), ..QpModify::default() };
    let (a, b) = world.pair(&Setup { modify, ..Setup::new(Transport::Rc) });
    (world, a, b)
}

/// Loses packets of node `from` by their number among that node's packets.
fn lose(world: &mut World, from: usize, lost: &'static [u32]) {
    let mut number = 0;
    world.censor = Some(Box::new(move |node, _| {
        if node != from {
            return false;
        }
        number += 1;
        lost.contains(&(number - 1))
    }));
}

fn count(world: &World, node: usize, opcodes: std::ops::RangeInclusive<u8>) -> usize {
    world.arrivals.iter().filter(|(_, to, opcode, _)| *to == node && opcodes.contains(opcode)).count()
}

#[test]
fn every_gap_has_its_own_nak() {
    let (mut world, mut a, mut b) = without_timeouts(Mtu::B1024);
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 40_000);
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 40_000);
    world.mem[0].set(Space::Host, source, &pattern(40_000, 1));
    world.receive(&mut b.qp, &[(target, 40_000, key)]);
    // The second is lost of those sent again after the first.
    lose(&mut world, 0, &[3, 60]);
    world.post(&mut a.qp, &Wqe::new(SEND).data(source, 40_000, lkey));
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 1);
    assert!(world.mem[1].get(Space::Host, target, 40_000) == pattern(40_000, 1));
    assert_eq!(world.nics[1].counters().rc_out_of_sequence, 2);
    assert_eq!(world.nics[0].counters().rc_go_backs, 2);
}

#[test]
fn a_message_resumes_at_the_packet_that_was_lost() {
    let (mut world, mut a, mut b) = without_timeouts(Mtu::B1024);
    let (source, lkey) = world.buffer(0, a.qp.pd, Space::Host, 5000);
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 5000);
    world.receive(&mut b.qp, &[(target, 5000, key)]);
    lose(&mut world, 0, &[3]);
    world.post(&mut a.qp, &Wqe::new(SEND).data(source, 5000, lkey));
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 1);
    assert_eq!(world.nics[1].counters().rc_duplicates, 0, "what had arrived is not sent again");
}

#[test]
fn a_read_resumes_where_it_broke_off() {
    let (mut world, mut a, b) = without_timeouts(Mtu::B4096);
    let len = 64 * 4096;
    let (brought, lkey) = world.buffer(0, a.qp.pd, Space::Host, len);
    let (origin, rkey) = world.buffer(1, b.qp.pd, DPA, len);
    world.mem[1].set(DPA, origin, &pattern(len, 1));
    lose(&mut world, 1, &[10]);
    world.post(&mut a.qp, &Wqe::new(RDMA_READ).data(brought, len, lkey).remote(origin, rkey));
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 1);
    assert!(world.mem[0].get(Space::Host, brought, len) == pattern(len, 1));
    assert_eq!(count(&world, 1, 12..=12), 2, "two requests");
    let responses = count(&world, 0, 13..=16);
    // Without giving up the first answer, 63 and 54.
    assert!((63..110).contains(&responses), "{responses} responses: the rest of the first answer is given up");
}

#[test]
fn an_acknowledgement_does_not_overtake_read_responses() {
    let (mut world, mut a, b) = without_timeouts(Mtu::B4096);
    let len = 64 * 4096;
    let (brought, lkey) = world.buffer(0, a.qp.pd, Space::Host, len);
    let (origin, rkey) = world.buffer(1, b.qp.pd, DPA, len);
    world.put(&mut a.qp, &Wqe::new(RDMA_READ).data(brought, len, lkey).remote(origin, rkey));
    world.put(&mut a.qp, &Wqe::new(RDMA_WRITE).data(brought, 64, lkey).remote(origin, rkey));
    world.ring(&a.qp);
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 2);
    assert_eq!(world.nics[0].counters().rc_go_backs, 0, "nothing was lost, so nothing may be taken for lost");
    assert_eq!(world.arrivals.last().map(|arrival| arrival.2), Some(17));
}
