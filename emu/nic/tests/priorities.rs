//! Queue pairs of different traffic class at one port: who waits for whom.

use crate::common;
use common::*;
use emu_fabric::{PRIORITIES, Priorities};
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const LEN: usize = 256 << 10;
/// Class of priority 3.
const CONTROL: u8 = 0x60;

struct Fixture {
    world: World,
    data: End,
    control: End,
    bulk: Wqe,
    short: Wqe,
}

fn class(world: &mut World, end: &End, traffic_class: u8) {
    world.modify(0, end.qp.qpn, &QpModify { traffic_class: Some(traffic_class), ..QpModify::default() }).unwrap();
}

/// A queue pair for long Writes and one for short ones, from card 0 to card 1.
fn fixture(control_class: u8, priorities: Priorities, weights: [u32; PRIORITIES]) -> Fixture {
    let mut world = World::new();
    world.act(0, |nic, _, _, _| nic.set_priorities(priorities, weights));
    let (data, peer) = world.pair(&Setup::new(Transport::Uc));
    let (control, other) = world.pair(&Setup::new(Transport::Uc));
    class(&mut world, &control, control_class);
    let write = |world: &mut World, end: &End, peer: &End, len: usize| {
        let source = world.buffer(0, end.qp.pd, Space::Host, len);
        let target = world.buffer(1, peer.qp.pd, Space::Host, len);
        Wqe::new(RDMA_WRITE).data(source.0, len, source.1).remote(target.0, target.1)
    };
    let bulk = write(&mut world, &data, &peer, LEN);
    let short = write(&mut world, &control, &other, 32);
    Fixture { world, data, control, bulk, short }
}

/// How long a short Write takes that is posted in the middle of a long one.
fn short_takes_ps(control_class: u8, priorities: Priorities) -> u64 {
    let Fixture { mut world, mut data, mut control, bulk, short } = fixture(control_class, priorities, [1; PRIORITIES]);
    world.post(&mut data.qp, &bulk);
    world.run_until(8_000_000);
    let begun = world.now_ps;
    world.post(&mut control.qp, &short);
    while world.poll(&mut control.scq).is_none() {
        assert!(world.step(), "the short Write completes");
    }
    assert!(world.poll(&mut data.scq).is_none(), "before the long one");
    let took = world.now_ps - begun;
    world.run();
    assert_eq!(world.poll_all(&mut data.scq).len(), 1, "and that one completes, too");
    took
}

#[test]
fn a_higher_class_waits_for_no_packet_that_is_prepared() {
    let timing = NicTiming::default();
    let same = short_takes_ps(0, Priorities::Strict);
    let higher = short_takes_ps(CONTROL, Priorities::Strict);
    // Doorbell, the fetch of the entry, its payload behind one packet's on PCIe, and the completion.
    let alone_ps = timing.doorbell_visible_ps + 2 * timing.pcie_latency_ps + timing.completion_latency_ps;
    assert!(higher < alone_ps + 1_000_000, "{higher} ps");
    assert!(same > higher + 400_000, "{same} ps behind what is prepared, {higher} ps before it");
    assert_eq!(short_takes_ps(CONTROL, Priorities::Shared), same, "one queue: classes do not matter");
}

#[test]
fn a_queue_pair_keeps_its_order_and_its_bytes_whatever_passes_it() {
    let Fixture { mut world, mut data, mut control, bulk, short } =
        fixture(CONTROL, Priorities::Strict, [1; PRIORITIES]);
    let bytes = pattern(LEN, 7);
    let (source, target) = (bulk.data[0].0, bulk.remote.unwrap().0);
    world.mem[0].set(Space::Host, source, &bytes);
    world.post(&mut data.qp, &bulk);
    for turn in 0..20 {
        world.run_until(4_000_000 + turn * 700_000);
        world.post(&mut control.qp, &short);
    }
    world.run();
    // UC drops a message in which a packet is out of order.
    assert_eq!(world.mem[1].get(Space::Host, target, LEN), bytes);
    assert_eq!((world.poll_all(&mut data.scq).len(), world.poll_all(&mut control.scq).len()), (1, 20));
}

/// When the long Write of each queue pair has left, both being as long.
fn two_long_writes(priorities: Priorities, weights: [u32; PRIORITIES]) -> [u64; 2] {
    let Fixture { mut world, mut data, mut control, bulk, .. } = fixture(CONTROL, priorities, weights);
    let (source, target) = (bulk.data[0], bulk.remote.unwrap());
    let pd = control.qp.pd;
    let own = world.key(0, pd, Space::Host, source.0, LEN as u64, Access::all());
    let bulk_too = Wqe::new(RDMA_WRITE).data(source.0, LEN, own).remote(target.0, target.1);
    world.post(&mut data.qp, &bulk);
    world.post(&mut control.qp, &bulk_too);
    let mut ends = [0; 2];
    while ends.contains(&0) {
        assert!(world.step(), "both end");
        for (at, cq) in [&mut data.scq, &mut control.scq].into_iter().enumerate() {
            if world.poll(cq).is_some() {
                ends[at] = world.now_ps;
            }
        }
    }
    ends
}

#[test]
fn a_higher_class_that_fills_the_port_goes_first_and_the_lower_one_ends_no_later() {
    let [low, high] = two_long_writes(Priorities::Strict, [1; PRIORITIES]);
    assert!(high * 10 < low * 7, "{high} ps, then {low} ps");
    let [a, b] = two_long_writes(Priorities::Shared, [1; PRIORITIES]);
    let (longest, difference) = (a.max(b), a.abs_diff(b));
    assert!(difference * 20 < longest, "turn by turn: {a} and {b} ps");
    assert!(low.abs_diff(longest) * 50 < longest, "the port is never idle: {low} and {longest} ps");
}

#[test]
fn a_datagram_with_a_static_rate_is_followed_by_a_gap() {
    const COUNT: u64 = 40;
    let run = |static_rate: u8| {
        let mut world = World::new();
        let (mut a, mut b) = world.pair(&Setup::new(Transport::Ud));
        let source = world.buffer(0, a.qp.pd, Space::Host, 4096);
        let target = world.buffer(1, b.qp.pd, Space::Host, 8192);
        let wqe = Wqe::new(SEND).to(Av { static_rate, ..Av::to(1, b.qp.qpn) }).data(source.0, 4096, source.1);
        // The rings are short: receives and sends as they become free.
        for _ in 0..COUNT / 8 {
            for _ in 0..8 {
                world.receive(&mut b.qp, &[(target.0, 8192, target.1)]);
                world.put(&mut a.qp, &wqe);
            }
            world.ring(&a.qp);
            world.run();
            assert_eq!((world.poll_all(&mut a.scq).len(), world.poll_all(&mut b.rcq).len()), (8, 8));
        }
        let arrivals: Vec<u64> = world.arrivals.iter().map(|arrival| arrival.0).collect();
        arrivals
            .chunks(8)
            .flat_map(|burst| burst.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    // 25 Gbit/s: 320 ps a byte, of more than 4096 of them.
    let (paced, free) = (run(15), run(0));
    assert!(paced.iter().all(|gap| (4096 * 320..4300 * 320).contains(gap)), "{paced:?}");
    assert!(free.iter().all(|gap| *gap < 4300 * 40 * 2), "{free:?}");
}
