//! However an index reaches a card, the race detector takes it as the hand-over of entries and buffers.

use crate::support;
use emu_machine::nic::{Access, MkeyAttr, QpModify, QpState, Space, Transport};
use emu_machine::{Agent, Config, MemoryModel, Race, RaceKind, World};
use support::weak::*;
use support::wire::{Endpoint, SLOT, To, rest};
use support::*;

const RECEIVES: u64 = RING + 1024;
const RECORD: u64 = RING + 4160;
const SLOTS: u64 = RING + 8192;
const SLOT_BYTES: u64 = 256;
const QKEY: u32 = 0x1111;

fn two_cards(ping: &[u32]) -> (World, u32) {
    boot(&image(&[RET], ping), Config { cards: 2, memory: MemoryModel::Strong, ..config(1) })
}

/// Of the one race that is expected: the index of the entry that the card owns, and who changed its memory.
#[track_caller]
fn owned(races: &[Race]) -> (u16, &Agent) {
    let [race] = races else { panic!("{races:#?}") };
    assert_eq!(race.kind, RaceKind::OwnedByCard, "{race}");
    let Agent::Card { qpn: Some(_), entry: Some(entry) } = race.first.agent else { panic!("{race}") };
    (entry, &race.second.agent)
}

/// A datagram queue pair in memory of process 1, with four entries in its receive ring, none of them posted.
fn with_entries(world: &mut World, process: u32) -> u32 {
    let qpn = queue_pair(world, process);
    let modify = QpModify { qkey: Some(QKEY), ..QpModify::default() };
    world.nic_call(0, |nic, fx| nic.modify_qp(0, qpn, &modify, fx)).unwrap().unwrap();
    let nic = &mut world.card(0).unwrap().nic;
    let pd = nic.query_qp(qpn).unwrap().attr.pd;
    let heap =
        MkeyAttr { pd, space: Space::Dpa(process), start: RING, len: 16384, access: Access::LOCAL_WRITE, offset: 0 };
    let key = nic.create_mkey(heap).unwrap();
    let mut entries = Vec::new();
    for slot in 0..4 {
        entries.extend((SLOT_BYTES as u32).to_be_bytes());
        entries.extend(key.to_be_bytes());
        entries.extend((SLOTS + slot * SLOT_BYTES).to_be_bytes());
    }
    world.write_memory(0, process, RECEIVES, &entries).unwrap();
    qpn
}

fn post_by_copy(world: &mut World, process: u32, counter: u32) {
    world.write_memory(0, process, RECORD, &counter.to_be_bytes()).unwrap();
}

/// The host changes a slot's memory. Gives the races so far.
fn touch(world: &mut World, process: u32, slot: u64) -> Vec<Race> {
    world.write_memory(0, process, SLOTS + slot * SLOT_BYTES + 8, &[1]).unwrap();
    world.take_races()
}

#[test]
fn receives_posted_by_a_host_copy_belong_to_the_card() {
    let (mut world, process) = two_cards(&[RET]);
    with_entries(&mut world, process);
    assert_eq!(touch(&mut world, process, 0), vec![], "nothing is posted");
    post_by_copy(&mut world, process, 2);
    assert_eq!(owned(&touch(&mut world, process, 1)), (1, &Agent::Host));
    assert_eq!(touch(&mut world, process, 2), vec![], "not posted");
    world.write_memory(0, process, RECEIVES + 4, &[0; 4]).unwrap();
    assert_eq!(owned(&world.take_races()), (0, &Agent::Host));
}

/// The firmware posts one more than the host has, and uses again what has been received: no race, as the card is done
/// with that one.
#[test]
fn what_the_host_posted_and_the_card_completed_is_nobodys() {
    // Two stores: addresses and values at the argument.
    let program = [ld(A1, A0, 0), ld(A2, A0, 8), sd(A2, A1, 0), ld(A1, A0, 16), sd(A2, A1, 0), RET];
    let (mut world, process) = two_cards(&program);
    let qpn = with_entries(&mut world, process);
    post_by_copy(&mut world, process, 2);
    let mut peer = Endpoint::new(&mut world, 1, Transport::Ud);
    peer.connect(&mut world, 0, (0, qpn));
    peer.send(&mut world, 0, Some(To::Peer(0, qpn)), (0, 64));
    rest(&mut world);
    assert_eq!(world.card(0).unwrap().nic.query_qp(qpn).unwrap().rq_counter, 1, "one has been received");
    let mut firmware = |counter: u32, slot: u64| {
        let words = [RECORD, u64::from(counter.swap_bytes()), SLOTS + slot * SLOT_BYTES];
        world.write_memory(0, process, DATA, &words.map(u64::to_le_bytes).concat()).unwrap();
        ping(&mut world, process, DATA).unwrap();
        world.take_races()
    };
    assert_eq!(firmware(3, 0), vec![], "the first receive is complete");
    let races = firmware(3, 1);
    assert!(matches!(owned(&races), (1, Agent::Thread { .. })), "{races:?}");
    // A lap later, which the ring of 16 allows.
    let races = firmware(17, 2);
    assert!(matches!(owned(&races), (2, Agent::Thread { .. })), "{races:?}");
}

#[test]
fn receives_posted_by_a_peers_write_belong_to_the_card() {
    let (mut world, process) = two_cards(&[RET]);
    with_entries(&mut world, process);
    let (here, mut there) = support::wire::pair(&mut world, Transport::Rc);
    let nic = &mut world.card(0).unwrap().nic;
    let pd = nic.query_qp(here.qpn).unwrap().attr.pd;
    let all = MkeyAttr { pd, space: Space::Dpa(process), start: RING, len: 16384, access: Access::all(), offset: 0 };
    let key = nic.create_mkey(all).unwrap();
    there.source(&world, 0, &3_u32.to_be_bytes());
    there.write(&mut world, (RECORD, key), None, (0, 4));
    rest(&mut world);
    assert_eq!(there.sent(&world).len(), 1);
    assert_eq!(owned(&touch(&mut world, process, 2)), (2, &Agent::Host));
    assert_eq!(touch(&mut world, process, 3), vec![], "not posted");
}

/// A key that is taken back while a peer still writes with it: the write arrives at a queue pair that answers, and the
/// host may have given the memory to somebody else. One whose queue pair is gone as well reaches nothing.
#[test]
fn writes_with_a_key_that_is_taken_back_are_reported_unless_their_queue_pair_is_gone() {
    for gone in [false, true] {
        let (mut world, process) = two_cards(&[RET]);
        let (here, mut there) = support::wire::pair(&mut world, Transport::Rc);
        let nic = &mut world.card(0).unwrap().nic;
        let pd = nic.query_qp(here.qpn).unwrap().attr.pd;
        let slots =
            MkeyAttr { pd, space: Space::Dpa(process), start: SLOTS, len: 4096, access: Access::all(), offset: 0 };
        let key = nic.create_mkey(slots).unwrap();
        there.write(&mut world, (SLOTS, key), None, (0, 64));
        rest(&mut world);
        assert_eq!(world.take_races(), vec![], "the key is valid");
        there.write(&mut world, (SLOTS, key), None, (0, 64));
        let nic = &mut world.card(0).unwrap().nic;
        nic.destroy_mkey(key).unwrap();
        if gone {
            nic.destroy_qp(here.qpn).unwrap();
        }
        rest(&mut world);
        let kinds: Vec<_> = world.take_races().iter().map(|race| race.kind).collect();
        assert_eq!(kinds, if gone { vec![] } else { vec![RaceKind::RevokedKey] });
    }
}

/// A queue pair that begins anew has nothing posted, even if nothing happened in between.
#[test]
fn a_reset_gives_everything_back() {
    let (mut world, process) = two_cards(&[RET]);
    let qpn = with_entries(&mut world, process);
    post_by_copy(&mut world, process, 4);
    for state in [QpState::Reset, QpState::Init] {
        let modify = QpModify { next_state: Some(state), qkey: Some(QKEY), ..QpModify::default() };
        world.nic_call(0, |nic, fx| nic.modify_qp(0, qpn, &modify, fx)).unwrap().unwrap();
    }
    post_by_copy(&mut world, process, 0);
    assert_eq!(touch(&mut world, process, 0), vec![]);
    post_by_copy(&mut world, process, 1);
    assert_eq!(owned(&touch(&mut world, process, 0)), (0, &Agent::Host));
}

/// A program stores to a doorbell record in its own memory; a thread stores to a posted buffer through its window.
#[test]
fn stores_through_a_window_into_posted_host_memory_are_reported() {
    for memory in [MemoryModel::Strong, MemoryModel::weak(1)] {
        let program = code(&[&open_window(), &[sd(A1, A0, 0), fence(O | W, O | W), RET]]);
        let config = Config { cards: 2, memory, ..config(1) };
        let (mut world, process) = boot(&image(&[RET], &program), config);
        let (mut here, mut there) = support::wire::pair(&mut world, Transport::Uc);
        here.receive(&world, 2);
        there.source(&world, 0, &[7; 64]);
        there.send(&mut world, 0, None, (0, 64));
        rest(&mut world);
        assert_eq!((here.arrived(&world).len(), world.take_races()), (1, vec![]));
        let nic = &mut world.card(0).unwrap().nic;
        let pd = nic.alloc_pd().unwrap();
        let attr = MkeyAttr {
            pd,
            space: Space::Host,
            start: here.buffer,
            len: 4 * SLOT,
            access: Access::LOCAL_WRITE,
            offset: 0,
        };
        let key = nic.create_mkey(attr).unwrap();
        let window = world.create_window(0, process, pd).unwrap();
        let mut through_window = |slot: u64| {
            let words = [u64::from(window), u64::from(key), here.buffer + slot * SLOT];
            world.write_memory(0, process, DATA, &words.map(u64::to_le_bytes).concat()).unwrap();
            ping(&mut world, process, 0).unwrap();
            while world.step() {}
            world.take_races()
        };
        assert_eq!(through_window(0), vec![], "{memory:?}: the first receive is complete");
        assert_eq!(through_window(2), vec![], "{memory:?}: not posted");
        let races = through_window(1);
        assert!(matches!(owned(&races), (1, Agent::Thread { .. })), "{memory:?}: {races:?}");
    }
}
