//! The port: when it is held, where damaged packets end, and by which source port packets leave.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const LEN: usize = 3000;

fn fixture(transport: Transport) -> (World, End, End, Wqe, (u64, u32)) {
    let mut world = World::new();
    let (a, b) = world.pair(&Setup::new(transport));
    let source = world.buffer(0, a.qp.pd, Space::Host, LEN);
    let target = world.buffer(1, b.qp.pd, Space::Host, LEN);
    let write = Wqe::new(RDMA_WRITE).data(source.0, LEN, source.1).remote(target.0, target.1);
    (world, a, b, write, target)
}

#[test]
fn a_held_port_begins_no_packet_and_loses_none() {
    let (mut world, mut a, mut b, write, target) = fixture(Transport::Rc);
    world.act(0, |nic, _, _, _| {
        nic.hold_port(u8::MAX);
        nic.hold_port(u8::MAX);
    });
    world.post(&mut a.qp, &write);
    world.run_until(20_000_000);
    assert_eq!(world.nics[0].counters().tx_packets, 0);
    assert_eq!(world.nics[0].counters().port_holds, 1, "held once");

    // What does not pass the engine still leaves: the peer's Write is acknowledged. Its own port is not held.
    let back = world.buffer(0, a.qp.pd, Space::Host, LEN);
    let peers = world.buffer(1, b.qp.pd, Space::Host, LEN);
    world.post(&mut b.qp, &Wqe::new(RDMA_WRITE).data(peers.0, LEN, peers.1).remote(back.0, back.1));
    world.run_until(40_000_000);
    assert_eq!(world.poll_all(&mut b.scq).len(), 1);
    assert!(world.poll_all(&mut a.scq).is_empty());

    let bytes = pattern(LEN, 3);
    let source = write.data[0].0;
    world.mem[0].set(Space::Host, source, &bytes);
    world.act(0, |nic, _, now, fx| nic.release_port(now, u8::MAX, fx));
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 1);
    assert_eq!(world.mem[1].get(Space::Host, target.0, LEN), bytes);
    let sent = world.nics[0].counters().tx_packets;
    world.act(0, |nic, _, now, fx| nic.release_port(now, u8::MAX, fx));
    world.run();
    assert_eq!(world.nics[0].counters().tx_packets, sent, "a release too many does nothing");
}

#[test]
fn a_port_held_in_the_middle_of_a_message_goes_on_where_it_was() {
    let (mut plain, mut a, _, write, _) = fixture(Transport::Uc);
    plain.post(&mut a.qp, &write);
    plain.run();
    let packets = plain.nics[0].counters().tx_packets;
    let (mut world, mut a, _, write, _) = fixture(Transport::Uc);
    world.post(&mut a.qp, &write);
    while world.nics[0].counters().tx_packets == 0 {
        assert!(world.step());
    }
    world.act(0, |nic, _, _, _| nic.hold_port(u8::MAX));
    let begun = world.nics[0].counters().tx_packets;
    world.run();
    assert_eq!(world.nics[0].counters().tx_packets, begun);
    assert!(begun < packets && world.poll_all(&mut a.scq).is_empty());
    world.act(0, |nic, _, now, fx| nic.release_port(now, u8::MAX, fx));
    world.run();
    assert_eq!(world.nics[0].counters().tx_packets, packets);
    assert_eq!(world.poll_all(&mut a.scq).len(), 1);
}

#[test]
fn the_loopback_path_is_not_the_port() {
    let mut world = World::new();
    let end = world.end(0, &Setup::new(Transport::Rc));
    let own = end.qp.qpn;
    world.connect(&end.qp, (0, own), &QpModify::default());
    let mut end = end;
    let buffer = world.buffer(0, end.qp.pd, Space::Host, 2 * LEN);
    let write = Wqe::new(RDMA_WRITE).data(buffer.0, LEN, buffer.1).remote(buffer.0 + LEN as u64, buffer.1);
    world.act(0, |nic, _, _, _| nic.hold_port(u8::MAX));
    world.post(&mut end.qp, &write);
    world.run();
    assert_eq!(world.poll_all(&mut end.scq).len(), 1);
}

#[test]
fn damaged_packets_reach_nobody_and_are_counted_where_they_are_for() {
    let (mut world, mut a, mut b, write, target) = fixture(Transport::Rc);
    world.post(&mut a.qp, &write);
    world.run();
    assert_eq!(world.poll_all(&mut a.scq).len(), 1);
    // The next one that the peer would send.
    let mut damaged = Packet {
        source: world.nics[0].address(),
        destination: world.nics[1].address(),
        network: Network::default(),
        pkey: DEFAULT_PKEY,
        transport: Transport::Rc,
        operation: Operation::Send,
        first: true,
        last: true,
        solicited: false,
        ack_request: true,
        destination_qpn: b.qp.qpn,
        psn: 0xFF_FFF3,
        immediate: None,
        invalidate: None,
        message_number: 0,
        extension: Extension::None,
        payload: vec![1; 8].into(),
        damage: Some(9),
    };
    let segments = [(target.0, 64, target.1)];
    world.receive(&mut b.qp, &segments);
    let handle = |world: &mut World, packet: &Packet| {
        let packet = packet.clone();
        world.act(1, |nic, mem, now, fx| nic.handle_packet(now, packet, mem, fx));
        world.run();
    };
    handle(&mut world, &damaged);
    let counters = *world.nics[1].counters();
    assert_eq!((counters.icrc_drops, counters.rc_out_of_sequence), (1, 0));
    assert!(world.poll_all(&mut b.rcq).is_empty());
    damaged.damage = None;
    handle(&mut world, &damaged);
    assert_eq!(world.poll_all(&mut b.rcq).len(), 1, "the same packet, whole");
    damaged.damage = Some(9);
    damaged.destination.mac = [2; 6];
    damaged.destination.gid = Gid::from_ipv4([1, 2, 3, 4]);
    handle(&mut world, &damaged);
    assert_eq!((world.nics[1].counters().icrc_drops, world.nics[1].counters().address_drops), (1, 1));
}

#[test]
fn the_source_port_follows_from_the_queue_pairs_unless_it_is_given() {
    let mut world = World::new();
    let setup = Setup::new(Transport::Rc);
    let (a, b) = world.pair(&setup);
    let port = |world: &World, end: &End| world.nics[end.qp.node].query_qp(end.qp.qpn).unwrap().path.udp_sport;
    let expected = wire::entropy_port(a.qp.qpn, b.qp.qpn);
    assert_eq!((port(&world, &a), port(&world, &b)), (expected, expected), "both ways take the same");
    let given = QpModify { udp_sport: Some(0xC000), ..QpModify::default() };
    let c = world.end(0, &setup);
    world.connect(&c.qp, (1, b.qp.qpn), &given);
    assert_eq!(port(&world, &c), 0xC000);
    let ports: std::collections::BTreeSet<u16> = (0..20)
        .map(|_| {
            let (a, _) = world.pair(&setup);
            port(&world, &a)
        })
        .collect();
    assert!(ports.len() > 10 && ports.iter().all(|port| *port >= 0xC000), "{ports:?}");
}

#[test]
fn queue_pairs_are_listed_from_any_number_on() {
    let mut world = World::new();
    let ends: Vec<End> = (0..3).map(|_| world.end(0, &Setup::new(Transport::Ud))).collect();
    let numbers: Vec<u32> = ends.iter().map(|end| end.qp.qpn).collect();
    let nic = &mut world.nics[0];
    assert_eq!(nic.queue_pairs(0).collect::<Vec<_>>(), numbers);
    assert_eq!(nic.queue_pairs(numbers[0] + 1).collect::<Vec<_>>(), numbers[1..]);
    nic.destroy_qp(numbers[1]).unwrap();
    assert_eq!(nic.queue_pairs(0).collect::<Vec<_>>(), [numbers[0], numbers[2]]);
    assert_eq!(nic.queue_pairs(u32::MAX).count(), 0);
}
