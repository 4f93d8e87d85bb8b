//! Effects of link faults on queue pairs.

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::support;
use emu_machine::fabric::{Direction, Fault, FaultEvent, FaultScript, Topology};
use emu_machine::nic::{Counters, Transport};
use emu_machine::time::PS_PER_US;
use emu_machine::{Config, MachineError, NetworkConfig, Wiring, World};
use support::wire::{Endpoint, pair, pattern, read, rest};

fn config(faults: Vec<FaultEvent>, seed: u64) -> Config {
    let topology = Topology::named("switch-2").expect("a preset");
    let network = NetworkConfig { faults: FaultScript { seed, faults }, ..NetworkConfig::new(topology) };
    Config { wiring: Wiring::Network(Box::new(network)), ..Config::default() }
}

fn faulty(faults: Vec<FaultEvent>) -> World {
    World::new(config(faults, 5)).expect("a valid configuration")
}

fn counters(world: &mut World, card: usize) -> Counters {
    *world.card(card).expect("a card").nic.counters()
}

/// 200 Writes of 3000 bytes (3 packets each) with immediates: what arrived, by immediate.
fn writes(world: &mut World, a: &mut Endpoint, b: &mut Endpoint) -> Vec<u32> {
    b.receive(world, 200);
    a.source(world, 0, &pattern(600_000, 1));
    for message in 0..200_u32 {
        let at = u64::from(message) * 3000;
        a.write(world, (b.target().0 + at, b.target().1), Some(message), (at, 3000));
    }
    rest(world);
    assert!(a.sent(world).iter().all(|done| done.opcode == 0), "every send completes well");
    b.arrived(world).iter().map(|done| done.immediate).collect()
}

/// The bytes of the messages with these immediates are there.
#[track_caller]
fn complete(world: &World, b: &Endpoint, immediates: &[u32]) {
    let expected = pattern(600_000, 1);
    for &message in immediates {
        let at = message as usize * 3000;
        assert!(read(world, b.buffer + at as u64, 3000) == expected[at..at + 3000], "message {message}");
    }
}

fn all() -> Vec<u32> {
    (0..200).collect()
}

/// Reliable connections deliver everything once and in order, whatever the links do.
#[track_caller]
fn rc_delivers(faults: Vec<FaultEvent>) -> World {
    let mut world = faulty(faults.clone());
    let (mut a, mut b) = pair(&mut world, Transport::Rc);
    assert_eq!(writes(&mut world, &mut a, &mut b), all());
    complete(&world, &b, &all());
    let mut again = faulty(faults);
    let (mut a, mut b) = pair(&mut again, Transport::Rc);
    writes(&mut again, &mut a, &mut b);
    assert_eq!(again.trace_hash(), world.trace_hash(), "the same again");
    world
}

#[test]
fn corrupt_packets_are_dropped_by_their_check_sequence_and_counted() {
    let faults = vec![FaultEvent::everywhere(Fault::Corrupt { ppm: 20_000 })];
    let mut world = rc_delivers(faults.clone());
    let dropped = counters(&mut world, 0).icrc_drops + counters(&mut world, 1).icrc_drops;
    // Corrupted on the way to the switch, or behind it.
    let totals = world.network().expect("a network").totals();
    let corrupted = totals.hosts.corrupted_frames + totals.switches.corrupted_frames;
    assert!(dropped > 5 && dropped <= corrupted && corrupted <= dropped + 2, "{dropped} of {corrupted}");

    let mut world = faulty(faults);
    let (mut a, mut b) = pair(&mut world, Transport::Uc);
    let arrived = writes(&mut world, &mut a, &mut b);
    assert!(arrived.len() < 200 && arrived.is_sorted(), "{arrived:?}");
    assert!(counters(&mut world, 1).icrc_drops > 0);
    complete(&world, &b, &arrived);
}

#[test]
fn lost_frames_and_bit_errors_are_sent_again() {
    for fault in [Fault::Drop { ppm: 20_000 }, Fault::Burst { ppm: 3_000, frames: 4 }, Fault::BitErrors { rate: 2e-6 }]
    {
        let mut world = rc_delivers(vec![FaultEvent::everywhere(fault)]);
        assert!(counters(&mut world, 0).rc_go_backs > 0, "{fault:?}");
        let drops = world.network().expect("a network").totals();
        let counted = drops.hosts.lost_frames + drops.switches.lost_frames;
        let by_cause = match fault {
            Fault::Drop { .. } => drops.hosts.drops.random + drops.switches.drops.random,
            Fault::Burst { .. } => drops.hosts.drops.burst + drops.switches.drops.burst,
            _ => drops.hosts.drops.bit_error + drops.switches.drops.bit_error,
        };
        assert!(counted > 0 && counted == by_cause, "{fault:?}: {counted} lost, {by_cause} for it");
    }
}

#[test]
fn a_link_that_was_down_is_used_again() {
    let (down, up) = (3 * PS_PER_US, 400 * PS_PER_US);
    let down_at = FaultEvent { at_ps: down, ..FaultEvent::on("h1-switch", Fault::Down) };
    let up_at = FaultEvent { at_ps: up, ..FaultEvent::on("h1-switch", Fault::Up) };
    let mut world = rc_delivers(vec![down_at.clone(), up_at]);
    assert!(world.now_ps() > up, "nothing could end before the link came up");
    assert!(counters(&mut world, 0).rc_timeouts > 1);
    let lost =
        world.network().expect("a network").switch_counters(0).drops.link_down + world.port_counters(1).drops.link_down;
    assert!(lost > 0);

    // A link that stays down: the connection gives up, by an error completion, in bounded time.
    let mut world = faulty(vec![down_at]);
    let (mut a, mut b) = pair(&mut world, Transport::Rc);
    b.receive(&world, 1);
    rest(&mut world);
    while world.now_ps() < down {
        a.send(&mut world, 0, None, (0, 100));
        b.receive(&world, 1);
        rest(&mut world);
    }
    let done = a.sent(&world);
    assert_eq!(done.last().map(|done| done.opcode), Some(13), "{done:?}");
    assert!(world.now_ps() < 2_000 * PS_PER_US, "eight times 67 us");
}

#[test]
fn a_pause_loses_nothing() {
    let until = 300 * PS_PER_US;
    let pause = FaultEvent::on("h0-switch", Fault::Pause).during(2 * PS_PER_US, until);
    let pause = FaultEvent { direction: Direction::Forward, ..pause };
    let mut world = faulty(vec![pause.clone()]);
    let (mut a, mut b) = pair(&mut world, Transport::Uc);
    assert_eq!(writes(&mut world, &mut a, &mut b), all());
    assert!(world.now_ps() > until);
    complete(&world, &b, &all());
    rc_delivers(vec![pause]);
}

#[test]
fn reordered_frames_break_unreliable_messages_and_no_others() {
    let faults = vec![FaultEvent::everywhere(Fault::Reorder { ppm: 30_000, behind: 2 })];
    let mut world = rc_delivers(faults.clone());
    assert!(counters(&mut world, 1).rc_out_of_sequence > 0);
    let mut world = faulty(faults);
    let (mut a, mut b) = pair(&mut world, Transport::Uc);
    let arrived = writes(&mut world, &mut a, &mut b);
    assert!(arrived.len() < 200 && arrived.len() > 100, "{} of 200", arrived.len());
    assert!(counters(&mut world, 1).uc_gap_drops > 0);
    complete(&world, &b, &arrived);
}

#[test]
fn duplicates_are_delivered_once() {
    let faults = vec![FaultEvent::everywhere(Fault::Duplicate { ppm: 50_000 })];
    let mut world = rc_delivers(faults.clone());
    assert!(counters(&mut world, 1).rc_duplicates > 0);
    let mut world = faulty(faults);
    let (mut a, mut b) = pair(&mut world, Transport::Uc);
    let arrived = writes(&mut world, &mut a, &mut b);
    assert!(arrived.windows(2).all(|pair| pair[0] < pair[1]), "no message twice: {arrived:?}");
    assert!(arrived.len() > 100);
    complete(&world, &b, &arrived);
    assert!(world.port_counters(1).duplicated_frames > 0);
}

/// A file that stays readable while the machine has it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("one thread").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn captures_show_what_left_and_what_arrived() {
    use pcap_file::pcapng::{Block, PcapNgReader, blocks::enhanced_packet::EnhancedPacketOption};

    let run = |capture: bool| {
        let file = Shared::default();
        let mut world = faulty(vec![FaultEvent::everywhere(Fault::Corrupt { ppm: 20_000 })]);
        if capture {
            world.start_capture(Box::new(file.clone())).expect("memory");
        }
        let (mut a, mut b) = pair(&mut world, Transport::Uc);
        writes(&mut world, &mut a, &mut b);
        let frames = world.finish_capture().expect("memory");
        let bytes = std::mem::take(&mut *file.0.lock().expect("one thread"));
        (world, frames, bytes)
    };
    let (mut world, frames, bytes) = run(true);
    let mut reader = PcapNgReader::new(&bytes[..]).expect("a capture");
    let (mut left, mut arrived, mut wrong, mut last) = (0, 0, 0, std::time::Duration::ZERO);
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(block) = block.expect("a block") else { continue };
        let inbound = block.options.contains(&EnhancedPacketOption::Flags(1));
        assert_eq!(inbound, block.interface_id == 1, "card 0 sends and card 1 receives");
        assert!(block.timestamp >= last, "in order of time");
        last = block.timestamp;
        let good = emu_machine::nic::wire::decode(&block.data).is_ok();
        assert!(inbound || good, "what leaves a card is whole");
        wrong += u64::from(!good);
        if inbound { arrived += 1 } else { left += 1 }
    }
    assert_eq!((left, arrived), (600, 600));
    assert_eq!(frames, left + arrived);
    assert_eq!(wrong, counters(&mut world, 1).icrc_drops, "each drop shows as a wrong check sequence");
    assert!(wrong > 0);
    let (plain, none, _) = run(false);
    assert_eq!((plain.trace_hash(), none), (world.trace_hash(), 0), "looking changes nothing");
}

#[test]
fn the_seed_decides_what_goes_wrong() {
    let run = |seed| {
        let faults = vec![FaultEvent::everywhere(Fault::Drop { ppm: 20_000 })];
        let mut world = World::new(config(faults, seed)).expect("a valid configuration");
        let (mut a, mut b) = pair(&mut world, Transport::Uc);
        (writes(&mut world, &mut a, &mut b), world.trace_hash())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn scripts_that_do_not_fit_are_refused() {
    let error = World::new(config(vec![FaultEvent::on("h7-switch", Fault::Down)], 1)).expect_err("no such link");
    assert!(matches!(error, MachineError::Faults(_)));
    assert!(error.to_string().contains("\"h7-switch\""), "{error}");
}
