//! Hypothetical multicast of UC queue pairs: keys of the group, sequences per sender, and off unless asked for.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

const GROUP: Gid = Gid([0xFF, 0x0E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
const KEY: u32 = 0x00C0_FFEE;
const MTU: usize = 1024;
const BYTES: usize = 16 * 1024;

struct Member {
    end: End,
    buffer: (u64, u32),
}

fn allowed() -> World {
    let mut world = World::new();
    world.nics.iter_mut().for_each(Nic::allow_uc_multicast);
    world
}

/// A UC queue pair that is connected to the group, with receives and a buffer.
fn uc(world: &mut World, node: usize, extra: &QpModify) -> Member {
    let mut end = world.end(node, &Setup::new(Transport::Uc));
    let to_group = QpModify {
        next_state: Some(QpState::Rtr),
        access: Some(Access::all()),
        path_mtu: Some(Mtu::B1024),
        dest_qpn: Some(MULTICAST_QPN),
        rq_psn: Some(0),
        sq_psn: Some(0xFF_FFFE),
        rgid: Some(GROUP),
        dmac: Some([0x33, 0x33, 0, 0, 0, 8]),
        ..*extra
    };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let qpn = end.qp.qpn;
        world.modify(node, qpn, &QpModify { next_state: Some(state), ..to_group }).expect("transition");
    }
    let buffer = world.buffer(node, end.qp.pd, Space::Host, BYTES);
    for _ in 0..8 {
        world.receive(&mut end.qp, &[]);
    }
    Member { end, buffer }
}

/// A member with the group key, which begins 64 bytes into its buffer.
fn member(world: &mut World, node: usize) -> Member {
    let member = uc(world, node, &QpModify::default());
    let entry = GroupKey { key: KEY, local_key: member.buffer.1, base: member.buffer.0 + 64 };
    let nic = &mut world.nics[node];
    nic.attach_multicast(member.end.qp.qpn, GROUP).unwrap();
    nic.map_group_key(member.end.qp.qpn, entry).unwrap();
    member
}

fn text(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + seed) as u8).collect()
}

fn write(world: &mut World, from: &mut Member, offset: u64, key: u32, text: &[u8], immediate: u8) {
    let node = from.end.qp.node;
    world.mem[node].set(Space::Host, from.buffer.0, text);
    let wqe = Wqe::new(RDMA_WRITE_IMM).remote(offset, key).immediate([0, 0, 0, immediate]);
    world.post(&mut from.end.qp, &wqe.data(from.buffer.0, text.len(), from.buffer.1));
}

fn bytes(world: &mut World, member: &Member, offset: u64, len: usize) -> Vec<u8> {
    world.mem[member.end.qp.node].get(Space::Host, member.buffer.0 + 64 + offset, len)
}

#[test]
fn a_write_goes_to_the_same_place_at_every_member() {
    let mut world = allowed();
    let mut sender = uc(&mut world, 0, &QpModify::default());
    let mut members = [member(&mut world, 1), member(&mut world, 1), member(&mut world, 0)];
    let long = text(5 * MTU + 100, 3);
    write(&mut world, &mut sender, 128, KEY, &long, 9);
    world.run();
    for member in &mut members {
        let cqes = world.poll_all(&mut member.end.rcq);
        assert_eq!(cqes.len(), 1, "one completion for six packets");
        assert_eq!((cqes[0].opcode, cqes[0].immediate), (cqe_opcode::RESPONDER_WRITE_IMMEDIATE, [0, 0, 0, 9]));
        assert_eq!(cqes[0].byte_count as usize, long.len());
        assert!(bytes(&mut world, member, 128, long.len()) == long);
    }
    assert_eq!(world.poll_all(&mut sender.end.scq).len(), 1);
    assert_eq!(world.poll_all(&mut sender.end.rcq), [], "the sender is no member");
    assert_eq!(world.nics[0].counters().tx_packets, 6, "each packet leaves once");
}

#[test]
fn loopback_can_be_blocked() {
    let mut world = allowed();
    let blocks = QpModify { block_multicast_loopback: Some(true), ..QpModify::default() };
    let mut sender = uc(&mut world, 0, &blocks);
    let mut near = member(&mut world, 0);
    let mut far = member(&mut world, 1);
    write(&mut world, &mut sender, 0, KEY, &text(100, 1), 1);
    world.run();
    assert_eq!((world.poll_all(&mut near.end.rcq).len(), world.poll_all(&mut far.end.rcq).len()), (0, 1));
}

/// Messages of two senders, packet by packet in turn: each has its own sequence.
#[test]
fn senders_have_sequences_of_their_own() {
    let mut world = allowed();
    let mut senders =
        [0, 1].map(|port| uc(&mut world, 0, &QpModify { udp_sport: Some(0xC000 + port), ..QpModify::default() }));
    let mut receiver = member(&mut world, 1);
    let texts = [text(4 * MTU, 1), text(4 * MTU, 2)];
    for (index, sender) in senders.iter_mut().enumerate() {
        write(&mut world, sender, 6000 * index as u64, KEY, &texts[index], index as u8);
    }
    world.run();
    let orders: Vec<usize> = world.arrivals.iter().map(|&(.., psn)| psn as usize).collect();
    assert!(orders.windows(2).any(|pair| pair[0] == pair[1]), "they alternate: {orders:?}");
    assert_eq!(world.poll_all(&mut receiver.end.rcq).len(), 2);
    for (index, text) in texts.iter().enumerate() {
        assert!(bytes(&mut world, &receiver, 6000 * index as u64, text.len()) == *text, "sender {index}");
    }
    assert_eq!(world.nics[1].counters().uc_gap_drops, 0);
}

#[test]
fn a_gap_drops_the_message_and_the_next_one_arrives() {
    let mut world = allowed();
    let mut sender = uc(&mut world, 0, &QpModify::default());
    let mut receiver = member(&mut world, 1);
    let mut count = 0;
    world.censor = Some(Box::new(move |_, _| {
        count += 1;
        count == 3
    }));
    write(&mut world, &mut sender, 0, KEY, &text(4 * MTU, 1), 1);
    world.run();
    assert_eq!(world.poll_all(&mut receiver.end.rcq), []);
    assert_eq!(world.nics[1].counters().uc_gap_drops, 1);
    write(&mut world, &mut sender, 0, KEY, &text(4 * MTU, 2), 2);
    world.run();
    let cqes = world.poll_all(&mut receiver.end.rcq);
    assert_eq!((cqes.len(), cqes[0].immediate[3]), (1, 2));
    assert!(bytes(&mut world, &receiver, 0, 4 * MTU) == text(4 * MTU, 2));
}

#[test]
fn a_key_that_is_not_in_the_table_writes_nothing() {
    let mut world = allowed();
    let mut sender = uc(&mut world, 0, &QpModify::default());
    let mut receiver = member(&mut world, 1);
    let qpn = receiver.end.qp.qpn;
    let writes = |world: &mut World, sender: &mut Member, offset: u64, key: u32| {
        let before = world.nics[1].counters().access_drops;
        write(world, sender, offset, key, &text(MTU, 5), 1);
        world.run();
        world.nics[1].counters().access_drops - before
    };
    assert_eq!(writes(&mut world, &mut sender, 0, KEY + 1), 1, "unknown");
    assert_eq!(writes(&mut world, &mut sender, 0, receiver.buffer.1), 1, "the member's own key is no group key");
    assert_eq!(writes(&mut world, &mut sender, (BYTES - 64 - MTU + 1) as u64, KEY), 1, "one byte too far");
    assert_eq!(writes(&mut world, &mut sender, u64::MAX, KEY), 1, "round the address space");
    assert_eq!(writes(&mut world, &mut sender, (BYTES - 64 - MTU) as u64, KEY), 0, "the last place");
    assert_eq!(world.poll_all(&mut receiver.end.rcq).len(), 1);
    world.nics[1].unmap_group_key(qpn, KEY).unwrap();
    assert_eq!(writes(&mut world, &mut sender, 0, KEY), 1, "taken back");
    assert_eq!(world.poll_all(&mut receiver.end.rcq), []);
    assert_eq!(bytes(&mut world, &receiver, 0, MTU), vec![0; MTU]);
}

/// Late packets of a message whose key was taken back write nothing, though its first ones did.
#[test]
fn taking_a_key_back_ends_a_message_that_has_begun() {
    let mut world = allowed();
    let mut sender = uc(&mut world, 0, &QpModify::default());
    let mut receiver = member(&mut world, 1);
    write(&mut world, &mut sender, 0, KEY, &text(8 * MTU, 5), 1);
    while world.arrivals.len() < 3 {
        assert!(world.step());
    }
    world.run_until(world.now_ps + 100_000);
    world.nics[1].unmap_group_key(receiver.end.qp.qpn, KEY).unwrap();
    let then = bytes(&mut world, &receiver, 0, 8 * MTU);
    assert!(then[..MTU] == text(8 * MTU, 5)[..MTU] && then[7 * MTU..] == vec![0; MTU], "begun, and not at its end");
    world.run();
    assert!(bytes(&mut world, &receiver, 0, 8 * MTU) == then, "nothing more");
    assert_eq!(world.poll_all(&mut receiver.end.rcq), []);
}

#[test]
fn it_is_off_unless_asked_for_and_has_rules() {
    let mut world = World::new();
    let plain = uc(&mut world, 0, &QpModify::default());
    let (qpn, transport) = (plain.end.qp.qpn, Transport::Uc);
    let entry = GroupKey { key: KEY, local_key: plain.buffer.1, base: plain.buffer.0 };
    assert_eq!(world.nics[0].attach_multicast(qpn, GROUP), Err(NicError::NotADatagramQp { qpn, transport }));
    assert_eq!(world.nics[0].map_group_key(qpn, entry), Err(NicError::NoGroupKeys { qpn, transport }));

    let datagram = world.end(0, &Setup::new(Transport::Ud)).qp.qpn;
    let nic = &mut world.nics[0];
    nic.allow_uc_multicast();
    let transport = Transport::Ud;
    assert_eq!(nic.map_group_key(datagram, entry), Err(NicError::NoGroupKeys { qpn: datagram, transport }));
    nic.map_group_key(qpn, entry).unwrap();
    assert_eq!(nic.map_group_key(qpn, entry), Err(NicError::GroupKeyTaken { qpn, key: KEY }));
    assert_eq!(nic.unmap_group_key(qpn, KEY + 1), Err(NicError::UnknownGroupKey { qpn, key: KEY + 1 }));
    nic.destroy_qp(qpn).unwrap();
    assert_eq!(
        nic.unmap_group_key(qpn, KEY),
        Err(NicError::UnknownGroupKey { qpn, key: KEY }),
        "gone with the queue pair"
    );
}

/// Sends have nowhere to go: which receive would each packet of several senders belong to?
#[test]
fn only_writes_are_taken() {
    let mut world = allowed();
    let mut sender = uc(&mut world, 0, &QpModify::default());
    let mut receiver = member(&mut world, 1);
    world.post(&mut sender.end.qp, &Wqe::new(SEND).inline(b"hello"));
    world.run();
    assert_eq!((world.poll_all(&mut receiver.end.rcq), world.nics[1].counters().qp_drops), (vec![], 1));
}
