//! Latencies of one operation, rates of many.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const LATENCY_PS: u64 = 300_000;

#[test]
fn one_send_takes_the_sum_of_its_parts() {
    let timing = NicTiming::default();
    for (space, pcie_reads) in [(DPA, 0), (Space::Host, 2)] {
        let mut world = World::new();
        let setup = Setup { space, ..Setup::new(Transport::Uc) };
        let (mut a, mut b) = world.pair(&setup);
        let (source, lkey) = world.buffer(0, a.qp.pd, space, 64);
        let (target, key) = world.buffer(1, b.qp.pd, space, 64);
        world.receive(&mut b.qp, &[(target, 64, key)]);
        world.post(&mut a.qp, &Wqe::new(SEND).data(source, 64, lkey));
        world.run();
        let wire_ps = (64 + 82) * 40;
        let pcie_payload_ps = if pcie_reads > 0 { (64 * 1000_u64).div_ceil(28) } else { 0 };
        let arrives_ps =
            timing.doorbell_visible_ps + pcie_reads * timing.pcie_latency_ps + pcie_payload_ps + wire_ps + LATENCY_PS;
        assert_eq!(world.arrivals[0].0, arrives_ps, "{space:?}");
        assert_eq!(world.now_ps, arrives_ps + timing.completion_latency_ps, "{space:?}");
        assert_eq!(world.poll_all(&mut b.rcq).len(), 1);
    }
}

#[test]
fn an_entry_that_comes_with_its_doorbell_is_not_fetched() {
    let timing = NicTiming::default();
    let wire_ps = (40 + 82) * 40;
    let at_once_ps = timing.doorbell_visible_ps + wire_ps + LATENCY_PS;
    let mut world = World::new();
    let setup = Setup { space: Space::Host, ..Setup::new(Transport::Uc) };
    let (mut a, mut b) = world.pair(&setup);
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
    (0..3).for_each(|_| world.receive(&mut b.qp, &[(target, 64, key)]));
    let entry = |byte| Wqe::new(SEND).inline(&[byte; 40]);
    // Only the last entry before the doorbell came with it.
    let mut starts_ps = vec![world.now_ps];
    world.post_pushed(&mut a.qp, &entry(1));
    world.run();
    starts_ps.push(world.now_ps);
    world.put(&mut a.qp, &entry(2));
    world.post_pushed(&mut a.qp, &entry(3));
    world.run();
    let took_ps = |arrival: usize, start: usize| world.arrivals[arrival].0 - starts_ps[start];
    assert_eq!(took_ps(0, 0), at_once_ps);
    assert_eq!(took_ps(1, 1), at_once_ps + timing.pcie_latency_ps);
    assert!(took_ps(2, 1) <= at_once_ps + timing.pcie_latency_ps + wire_ps);
    assert_eq!(world.poll_all(&mut b.rcq).len(), 3);
}

/// Time per message in the steady state, in picoseconds.
fn interval(transport: Transport, opcode: u8, space: Space, len: usize, loopback: bool) -> u64 {
    let mut world = World::new();
    let modify = QpModify { path_mtu: Some(Mtu::B4096), max_rd_atomic: Some(16), ..QpModify::default() };
    let setup = Setup { space, log_sq: 11, log_rq: 10, log_stride: 4, log_cq: 11, modify, ..Setup::new(transport) };
    let peer = usize::from(!loopback);
    let (mut a, mut b) = if loopback {
        let (a, b) = (world.end(0, &setup), world.end(0, &setup));
        world.connect(&a.qp, (0, b.qp.qpn), &setup.modify);
        world.connect(&b.qp, (0, a.qp.qpn), &setup.modify);
        (a, b)
    } else {
        world.pair(&setup)
    };
    let (source, lkey) = world.buffer(0, a.qp.pd, space, len);
    let (target, key) = world.buffer(peer, b.qp.pd, Space::Host, len + 40);
    const MESSAGES: u64 = 1000;
    for _ in 0..MESSAGES {
        world.receive(&mut b.qp, &[(target, len as u32 + 40, key)]);
        let wqe = Wqe::new(opcode).data(source, len, lkey);
        let wqe = match opcode {
            RDMA_WRITE | RDMA_READ => wqe.remote(target, key),
            _ if transport == Transport::Ud => wqe.to(Av::to(peer, b.qp.qpn)),
            _ => wqe,
        };
        world.put(&mut a.qp, &wqe);
    }
    world.ring(&a.qp);
    // The CQEs of the sender say when each message was through.
    let mut times = Vec::new();
    while world.step() {
        while let Some(cqe) = world.poll(&mut a.scq) {
            assert_eq!(cqe.syndrome, 0);
            times.push(world.now_ps);
        }
        world.poll_all(&mut b.rcq);
    }
    assert_eq!(times.len() as u64, MESSAGES);
    let (first, last) = (times[100], times[999]);
    (last - first) / 899
}

#[test]
fn large_messages_run_at_line_rate() {
    // 4 KiB on the wire: UC with 82 bytes of headers, UD with 90 (no immediate).
    for space in [DPA, Space::Host] {
        assert_eq!(interval(Transport::Uc, SEND, space, 4096, false), (4096 + 82) * 40, "{space:?}");
        assert_eq!(interval(Transport::Ud, SEND, space, 4096, false), (4096 + 90) * 40, "{space:?}");
        assert_eq!(interval(Transport::Rc, SEND, space, 4096, false), (4096 + 82) * 40, "{space:?}");
    }
    // The answer to a read carries an acknowledgement header.
    assert_eq!(interval(Transport::Rc, RDMA_READ, DPA, 4096, false), (4096 + 86) * 40);
}

#[test]
fn small_messages_run_at_the_engine_rate() {
    assert_eq!(interval(Transport::Uc, SEND, DPA, 64, false), NicTiming::default().send_service_ps);
    assert_eq!(interval(Transport::Rc, RDMA_WRITE, DPA, 64, true), NicTiming::default().send_service_ps);
}

#[test]
fn loopback_copies_run_at_the_pcie_rate() {
    let interval_ps = interval(Transport::Rc, RDMA_WRITE, DPA, 4096, true);
    assert_eq!(interval_ps, (4096_u64 * 1000).div_ceil(28));
}

#[test]
fn a_loopback_write_takes_one_pcie_latency() {
    let timing = NicTiming::default();
    let mut world = World::new();
    let setup = Setup { space: DPA, ..Setup::new(Transport::Rc) };
    let (mut a, b) = (world.end(0, &setup), world.end(0, &setup));
    let modify = QpModify { force_loopback: Some(true), timeout: Some(0), ..setup.modify };
    // The destination is another port's: the flag alone turns the packet round.
    world.connect(&a.qp, (1, b.qp.qpn), &modify);
    world.connect(&b.qp, (1, a.qp.qpn), &modify);
    let (source, lkey) = world.buffer(0, a.qp.pd, DPA, 4096);
    let (target, key) = world.buffer(0, b.qp.pd, Space::Host, 4096);
    world.post(&mut a.qp, &Wqe::new(RDMA_WRITE).data(source, 1024, lkey).remote(target, key));
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 1);
    let payload_ps = (1024_u64 * 1000).div_ceil(28);
    let expected = timing.doorbell_visible_ps + payload_ps + timing.pcie_latency_ps + timing.completion_latency_ps;
    assert_eq!(world.now_ps, expected);
    assert_eq!(world.nics[0].counters().tx_packets, 0);
}

#[test]
fn queue_pairs_take_turns() {
    let mut world = World::new();
    let setup = Setup { space: DPA, log_sq: 6, ..Setup::new(Transport::Uc) };
    let (mut a, b) = world.pair(&setup);
    let (mut c, d) = world.pair(&setup);
    let (source, lkey) = world.buffer(0, a.qp.pd, DPA, 1 << 16);
    let (other, other_key) = world.buffer(0, c.qp.pd, DPA, 1 << 16);
    let (target, key) = world.buffer(1, b.qp.pd, DPA, 1 << 16);
    let (target_d, key_d) = world.buffer(1, d.qp.pd, DPA, 1 << 16);
    // A long message and, a little later, a short one of another queue pair.
    world.post(&mut a.qp, &Wqe::new(RDMA_WRITE).data(source, 1 << 16, lkey).remote(target, key));
    world.post(&mut c.qp, &Wqe::new(RDMA_WRITE).data(other, 2048, other_key).remote(target_d, key_d));
    let mut short_ps = 0;
    while world.step() {
        if world.poll(&mut c.scq).is_some() {
            short_ps = world.now_ps;
        }
    }
    assert!(world.poll(&mut a.scq).is_some());
    let long_ps = world.now_ps;
    assert!(short_ps > 0 && short_ps < long_ps / 2, "{short_ps} of {long_ps}");
}

#[test]
fn the_receive_engine_queues_and_its_buffer_is_bounded() {
    let change = |config: &mut NicConfig| {
        config.timing.receive_service_ps = 100_000;
        config.timing.receive_buffer_packets = 4;
    };
    let mut world = World::with(0, 0, change);
    let setup = Setup { space: DPA, log_sq: 6, log_rq: 6, ..Setup::new(Transport::Uc) };
    let (mut a, mut b) = world.pair(&setup);
    let (target, key) = world.buffer(1, b.qp.pd, DPA, 64);
    for _ in 0..40 {
        world.receive(&mut b.qp, &[(target, 64, key)]);
        world.put(&mut a.qp, &Wqe::new(SEND).inline(&[3; 8]));
    }
    world.ring(&a.qp);
    world.run();
    let counters = *world.nics[1].counters();
    assert!(counters.rx_buffer_drops > 20, "{counters:?}");
    assert_eq!(counters.rx_packets + counters.rx_buffer_drops, 40);
    assert_eq!(world.poll_all(&mut b.rcq).len() as u64, counters.rx_packets);
}

#[test]
fn a_slow_pcie_delays_receives_and_holds_up_the_engine() {
    // 1 GB/s: a quarter of a microsecond of line time becomes four.
    const MESSAGES: u64 = 20;
    for (buffer, arrive) in [(64, MESSAGES), (2, 0)] {
        let mut world = World::with(0, 0, |config| {
            config.timing.pcie_interval_ps = 28_000;
            config.timing.receive_buffer_packets = buffer;
        });
        let modify = QpModify { path_mtu: Some(Mtu::B4096), ..QpModify::default() };
        let setup = Setup { space: DPA, log_sq: 6, log_rq: 6, modify, ..Setup::new(Transport::Uc) };
        let (mut a, mut b) = world.pair(&setup);
        let (source, lkey) = world.buffer(0, a.qp.pd, DPA, 4096);
        let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 4096);
        for _ in 0..MESSAGES {
            world.receive(&mut b.qp, &[(target, 4096, key)]);
            world.put(&mut a.qp, &Wqe::new(SEND).data(source, 4096, lkey));
        }
        world.ring(&a.qp);
        world.run();
        let received = world.poll_all(&mut b.rcq).len() as u64;
        if arrive > 0 {
            assert_eq!(received, arrive);
            assert!(world.now_ps >= MESSAGES * 4096 * 1000, "the last CQE follows its payload: {}", world.now_ps);
        } else {
            assert!(received < MESSAGES, "the buffer fills behind PCIe");
            assert_eq!(received + world.nics[1].counters().rx_buffer_drops, MESSAGES);
        }
    }
}
