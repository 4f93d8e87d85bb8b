//! Groups: membership, replication, loopback, and what each member checks for itself.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const GROUP: Gid = Gid([0xFF, 0x0E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
const GRH: usize = 40;

struct Member {
    end: End,
    buffer: (u64, u32),
}

/// A UD queue pair in RTS with `receives` receives posted.
fn member(world: &mut World, node: usize, receives: u32) -> Member {
    let mut end = world.end(node, &Setup::new(Transport::Ud));
    world.connect(&end.qp, (1 - node, 0), &QpModify::default());
    let buffer = world.buffer(node, end.qp.pd, Space::Host, 4096);
    for slot in 0..u64::from(receives) {
        world.receive(&mut end.qp, &[(buffer.0 + slot * 256, 256, buffer.1)]);
    }
    Member { end, buffer }
}

fn attach(world: &mut World, member: &Member, gid: Gid) {
    world.nics[member.end.qp.node].attach_multicast(member.end.qp.qpn, gid).unwrap();
}

fn send(world: &mut World, from: &mut Member, gid: Gid, text: &[u8]) {
    world.post(&mut from.end.qp, &Wqe::new(SEND_IMM).to(Av::group(gid)).immediate([1, 2, 3, 4]).inline(text));
    world.run();
}

#[test]
fn each_member_gets_a_copy_with_its_own_routing_header() {
    let mut world = World::new();
    let mut sender = member(&mut world, 0, 1);
    let mut receivers: Vec<Member> = (0..3).map(|_| member(&mut world, 1, 2)).collect();
    for receiver in &receivers[..2] {
        attach(&mut world, receiver, GROUP);
    }
    send(&mut world, &mut sender, GROUP, b"to all");
    for (i, receiver) in receivers.iter_mut().enumerate() {
        let cqes = world.poll_all(&mut receiver.end.rcq);
        assert_eq!(cqes.len(), usize::from(i < 2), "member {i}");
        let Some(cqe) = cqes.first() else { continue };
        assert_eq!((cqe.opcode, cqe.byte_count), (cqe_opcode::RESPONDER_SEND_IMMEDIATE, (GRH + 6) as u32));
        assert_eq!((cqe.qpn, cqe.source_qpn), (receiver.end.qp.qpn, sender.end.qp.qpn));
        assert_eq!((cqe.immediate, cqe.grh), ([1, 2, 3, 4], 1));
        let bytes = world.mem[1].get(Space::Host, receiver.buffer.0, GRH + 6);
        assert_eq!(bytes[0] >> 4, 6, "a group has an IPv6 header");
        assert_eq!((&bytes[8..24], &bytes[24..40]), (&GIDS[0].0[..], &GROUP.0[..]), "source and group");
        assert_eq!(&bytes[GRH..], b"to all");
    }
    assert_eq!(world.poll_all(&mut sender.end.scq).len(), 1);
    assert_eq!(world.poll_all(&mut sender.end.rcq), [], "the sender is no member");
    let (sent, received) = (*world.nics[0].counters(), *world.nics[1].counters());
    assert_eq!((sent.tx_packets, sent.loopback_packets), (1, 0));
    assert_eq!((received.rx_packets, received.multicast_copies, received.multicast_drops), (1, 2, 0));
}

#[test]
fn members_of_the_senders_card_get_theirs_unless_the_sender_blocks_it() {
    for block in [false, true] {
        let mut world = World::new();
        let mut sender = member(&mut world, 0, 1);
        let mut neighbour = member(&mut world, 0, 1);
        let mut far = member(&mut world, 1, 1);
        for joining in [&sender, &neighbour, &far] {
            attach(&mut world, joining, GROUP);
        }
        let modify = QpModify { block_multicast_loopback: Some(block), ..QpModify::default() };
        world.modify(0, sender.end.qp.qpn, &modify).unwrap();
        send(&mut world, &mut sender, GROUP, b"hello");
        let copies = usize::from(!block);
        assert_eq!(world.poll_all(&mut sender.end.rcq).len(), copies, "the sender itself, blocked: {block}");
        assert_eq!(world.poll_all(&mut neighbour.end.rcq).len(), copies, "its neighbour, blocked: {block}");
        assert_eq!(world.poll_all(&mut far.end.rcq).len(), 1, "the other card always");
        assert_eq!(world.poll_all(&mut sender.end.scq).len(), 1, "one send, one completion");
    }
}

#[test]
fn each_member_checks_key_and_receives_for_itself() {
    let mut world = World::new();
    let mut sender = member(&mut world, 0, 0);
    let mut good = member(&mut world, 1, 2);
    let mut dry = member(&mut world, 1, 0);
    let mut other_key = member(&mut world, 1, 2);
    for joining in [&good, &dry, &other_key] {
        attach(&mut world, joining, GROUP);
    }
    world.modify(1, other_key.end.qp.qpn, &QpModify { qkey: Some(0x2222), ..QpModify::default() }).unwrap();
    send(&mut world, &mut sender, GROUP, b"one");
    send(&mut world, &mut sender, GROUP, b"two");
    let mut received = |member: &mut Member| world.poll_all(&mut member.end.rcq).len();
    assert_eq!((received(&mut good), received(&mut dry), received(&mut other_key)), (2, 0, 0));
    let drops = |member: &Member| {
        let query = world.nics[1].query_qp(member.end.qp.qpn).unwrap();
        (query.rnr_drops, query.qkey_drops)
    };
    assert_eq!((drops(&good), drops(&dry), drops(&other_key)), ((0, 0), (2, 0), (0, 2)));
    let counters = world.nics[1].counters();
    assert_eq!((counters.rnr_drops, counters.qkey_drops), (2, 2));
}

#[test]
fn packets_for_groups_nobody_joined_are_dropped_and_counted() {
    let mut world = World::new();
    let mut sender = member(&mut world, 0, 1);
    let mut receiver = member(&mut world, 1, 1);
    send(&mut world, &mut sender, GROUP, b"nobody");
    attach(&mut world, &receiver, GROUP);
    world.nics[1].detach_multicast(receiver.end.qp.qpn, GROUP).unwrap();
    send(&mut world, &mut sender, GROUP, b"nobody any more");
    assert_eq!(world.nics[1].counters().multicast_drops, 2);
    assert_eq!(world.poll_all(&mut receiver.end.rcq), []);
    assert_eq!(world.poll_all(&mut sender.end.scq).len(), 2, "the sender does not learn of it");
}

#[test]
fn only_the_multicast_queue_pair_number_reaches_a_group() {
    let mut world = World::new();
    let mut sender = member(&mut world, 0, 0);
    let mut receiver = member(&mut world, 1, 2);
    attach(&mut world, &receiver, GROUP);
    let by_number = Av { qpn: receiver.end.qp.qpn, ..Av::group(GROUP) };
    world.post(&mut sender.end.qp, &Wqe::new(SEND).to(by_number).inline(b"x"));
    world.run();
    let unicast = Av { qpn: MULTICAST_QPN, ..Av::to(1, 0) };
    world.post(&mut sender.end.qp, &Wqe::new(SEND).to(unicast).inline(b"x"));
    world.run();
    assert_eq!(world.poll_all(&mut receiver.end.rcq), []);
    assert_eq!(world.nics[1].counters().qp_drops, 2);
}

#[test]
fn groups_of_ipv4_form_have_an_ipv4_header() {
    let mut world = World::new();
    let group = Gid::from_ipv4([239, 1, 2, 3]);
    let mut sender = member(&mut world, 0, 0);
    let receiver = member(&mut world, 1, 1);
    attach(&mut world, &receiver, group);
    let av = Av { traffic_class: 0x20, hop_limit: 3, ..Av::group(group) };
    world.post(&mut sender.end.qp, &Wqe::new(SEND).to(av).inline(b"v4"));
    world.run();
    let bytes = world.mem[1].get(Space::Host, receiver.buffer.0, GRH);
    assert_eq!(bytes[..20], [0; 20]);
    assert_eq!((bytes[20], bytes[21], bytes[28]), (0x45, 0x20, 3), "version, traffic class, hop limit");
    assert_eq!(bytes[36..40], [239, 1, 2, 3]);
}

#[test]
fn membership_has_rules() {
    let mut world = World::new();
    let datagram = member(&mut world, 0, 0);
    let connected = world.end(0, &Setup::new(Transport::Uc));
    let qpn = datagram.end.qp.qpn;
    let nic = &mut world.nics[0];
    assert_eq!(nic.attach_multicast(0x77, GROUP), Err(NicError::UnknownQp { qpn: 0x77 }));
    let transport = Transport::Uc;
    assert_eq!(
        nic.attach_multicast(connected.qp.qpn, GROUP),
        Err(NicError::NotADatagramQp { qpn: connected.qp.qpn, transport })
    );
    assert_eq!(nic.attach_multicast(qpn, GIDS[1]), Err(NicError::NotAGroup { gid: GIDS[1] }));
    assert_eq!(nic.detach_multicast(qpn, GROUP), Err(NicError::NotAttached { qpn, gid: GROUP }));
    nic.attach_multicast(qpn, GROUP).unwrap();
    nic.attach_multicast(qpn, GROUP).unwrap();
    let second = Gid::from_ipv4([224, 0, 0, 9]);
    nic.attach_multicast(qpn, second).unwrap();
    assert_eq!(nic.joined_groups().collect::<Vec<_>>(), [second, GROUP]);
    assert_eq!(nic.destroy_qp(qpn), Err(NicError::QpAttached { qpn, groups: 2 }));
    nic.detach_multicast(qpn, GROUP).unwrap();
    nic.detach_multicast(qpn, second).unwrap();
    assert_eq!(nic.joined_groups().count(), 0);
    nic.destroy_qp(qpn).unwrap();
}

#[test]
fn a_member_that_fails_does_not_disturb_the_others() {
    let mut world = World::new();
    let mut sender = member(&mut world, 0, 0);
    let mut short = member(&mut world, 1, 0);
    let mut good = member(&mut world, 1, 2);
    world.receive(&mut short.end.qp, &[(short.buffer.0, 41, short.buffer.1)]);
    for joining in [&short, &good] {
        attach(&mut world, joining, GROUP);
    }
    send(&mut world, &mut sender, GROUP, b"too long for one");
    send(&mut world, &mut sender, GROUP, b"next");
    let failed = world.poll_all(&mut short.end.rcq);
    assert_eq!((failed.len(), failed[0].syndrome), (1, syndrome::LOCAL_LENGTH));
    assert_eq!(world.poll_all(&mut good.end.rcq).len(), 2);
    assert_eq!(world.nics[1].counters().qp_drops, 1, "the second copy found a failed queue pair");
}
