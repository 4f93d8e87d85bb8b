//! Staged segments between service processes by multicast, on emulated cards: what leaves each card, what is lost and
//! read again, who goes meanwhile, and what is left behind.

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast_lab::service::{Load, ServiceError, ServiceOp, Shape, StagedPlan, World};
use flexcast_proto::service::{Between, Delivery, FailedParty, Limits, Multicast, StagedCause, Staging};
use flexcast_service::{Agent, AgentCounts, Error};
use flexcast_tests::harness::is_long;

const OPS: [ServiceOp; 2] = [ServiceOp::Broadcast, ServiceOp::Allgather];
const STAGED: [Delivery; 2] = [Delivery::Flat, Delivery::Hierarchical];

const fn shape(hosts: u32, ranks_per_host: u32, processes_per_host: u32) -> Shape {
    Shape { hosts, ranks_per_host, processes_per_host }
}

fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    0..if is_long() { many } else { few }
}

fn plan(delivery: Delivery, staging_bytes: u64) -> StagedPlan {
    let staging = Staging { staging_bytes, multicast: Some(Multicast::default()), ..Staging::default() };
    StagedPlan { staging, delivery: Some(delivery), ..StagedPlan::default() }
}

fn world(shape: Shape, bytes: u64, plan: StagedPlan, loss: Option<(u32, u64)>) -> World {
    let (loss_ppm, seed) = (loss.map(|(loss, _)| loss), loss.map(|(_, seed)| seed | 1));
    let config = Machine { arm_functions: true, loss_ppm, seed, ..Machine::default() };
    let mut config = config.config_of(shape.hosts.max(2) as usize).expect("a switch");
    config.heap_bytes = 1 << 20;
    config.host_idle_ps = 20_000_000;
    let machine = Emulated::new(config).expect("a machine");
    let load = Load { bytes, varies: false };
    let world = World::with(machine, shape, load, Limits::default(), Some(plan));
    world.unwrap_or_else(|error| panic!("{shape:?}: {error}"))
}

fn run(world: &mut World, op: ServiceOp, turns: std::ops::Range<u32>) {
    let ranks = world.ranks.len() as u32;
    for turn in turns {
        let calls: Vec<_> = (0..ranks).map(|rank| world.post(op, rank, turn).expect("called")).collect();
        world.end_calls(&calls).expect("all end well");
        for rank in 0..ranks {
            assert!(world.is_right(op, rank, turn).expect("memory"), "{op} rank {rank}, turn {turn}");
        }
    }
}

fn held(world: &World) -> (u64, u64, u64) {
    let agents = world.agents.iter().flatten();
    agents.fold((0, 0, 0), |(staging, pairs, rings), agent| {
        let (more_pairs, ring) = agent.multicast_held();
        (staging + agent.staging_bytes(), pairs + more_pairs, rings + ring)
    })
}

/// What each process has multicast, and what closed forms give for the rest.
#[test]
fn each_block_leaves_its_card_once() {
    for delivery in STAGED {
        for op in OPS {
            for shape in [shape(2, 1, 1), shape(4, 1, 1), shape(3, 2, 1), shape(2, 4, 2)] {
                let bytes = 20_000;
                let mut world = world(shape, bytes, plan(delivery, 1 << 20), None);
                assert_eq!(world.between(), Between::Multicast);
                run(&mut world, op, 0..1);
                let (before, expected) = (world.counts(), world.expected(op).expect("staged"));
                let each: Vec<u64> =
                    world.agents.iter().flatten().map(|agent| agent.counts().multicast_bytes).collect();
                run(&mut world, op, 1..2);
                let after = world.counts();
                let what = format!("{op}, {delivery:?}, {shape:?}");
                let done = |of: fn(&AgentCounts) -> u64| of(&after) - of(&before);
                assert_eq!(done(|counts| counts.gathers), expected.gathers, "{what}");
                assert_eq!(done(|counts| counts.writes), expected.writes, "{what}");
                assert_eq!(done(|counts| counts.flags), expected.flags, "{what}");
                assert_eq!(done(|counts| counts.multicast_bytes), expected.multicast_bytes, "{what}");
                assert_eq!(done(|counts| counts.fetches), 0, "{what}: nothing is lost");
                assert_eq!(done(|counts| counts.chunks_dropped), 0, "{what}");
                let each = world
                    .agents
                    .iter()
                    .flatten()
                    .zip(each)
                    .map(|(agent, before)| agent.counts().multicast_bytes - before);
                let served = u64::from(shape.ranks_per_host / shape.processes_per_host);
                for (process, sent) in each.enumerate() {
                    let share = if op == ServiceOp::Allgather {
                        served * bytes
                    } else if process == 0 {
                        bytes
                    } else {
                        0
                    };
                    assert_eq!(sent, share, "{what}: process {process}");
                }
            }
        }
    }
}

/// Bytes that each card sends into the network: one copy of its block instead of one for each other host.
#[test]
fn a_card_sends_its_block_once_instead_of_to_each_host() {
    let (shape, bytes) = (shape(4, 1, 1), 1 << 18);
    let sent = |plan: StagedPlan, op| {
        let mut world = world(shape, bytes, plan, None);
        run(&mut world, op, 0..1);
        let before: Vec<u64> = (0..4).map(|card| world.sent_bytes_of(card).expect("a card")).collect();
        run(&mut world, op, 1..2);
        let of = |(card, before)| (world.sent_bytes_of(card).expect("a card") - before) as f64 / bytes as f64;
        (0..).zip(before).map(of).collect::<Vec<f64>>()
    };
    let multicast = plan(Delivery::Flat, 8 << 20);
    let messages = StagedPlan { staging: Staging { multicast: None, ..multicast.staging }, ..multicast };
    // Headers and messages: below a tenth.
    for card in sent(multicast, ServiceOp::Allgather) {
        assert!((1.0..1.1).contains(&card), "{card} of a block");
    }
    for card in sent(messages, ServiceOp::Allgather) {
        assert!((3.0..3.3).contains(&card), "{card} of a block");
    }
    let (multicast, messages) = (sent(multicast, ServiceOp::Broadcast), sent(messages, ServiceOp::Broadcast));
    assert!((1.0..1.1).contains(&multicast[0]) && multicast[1..].iter().all(|card| *card < 0.01), "{multicast:?}");
    // A scatter down a binomial tree, 1.0, and an Allgather of the quarters, 3.0.
    assert!((4.0..4.4).contains(&messages.iter().sum::<f64>()), "{messages:?}");
}

/// Every byte, whatever is lost of datagrams and of reliable queue pairs; bytes that are read again are those that were
/// lost.
#[test]
fn lost_chunks_are_read_from_their_source() {
    let mut repaired = 0;
    for seed in seeds(6, 100) {
        let op = OPS[(seed & 1) as usize];
        let delivery = STAGED[(seed >> 1 & 1) as usize];
        let shape = [shape(2, 1, 1), shape(4, 1, 1), shape(3, 2, 2)][seed as usize % 3];
        let mut world = world(shape, 150_000, plan(delivery, 64 << 10), Some((20_000, seed)));
        run(&mut world, op, 0..2);
        let counts = world.counts();
        let sent_to = u64::from(shape.hosts * shape.processes_per_host - 1);
        assert!(counts.fetched_bytes < counts.multicast_bytes * sent_to / 4, "seed {seed}: {counts:?}");
        repaired += counts.fetched_bytes;
        world.leave_group(0).expect("all leave");
        assert_eq!(held(&world), (0, 0, 0), "seed {seed}: nothing is left");
    }
    assert!(repaired > 0, "2 % of all frames were lost");
}

/// A message longer than staging memory: bounds hold, and segments follow one another.
#[test]
fn long_messages_go_in_segments_within_the_staging_memory() {
    for op in OPS {
        let mut world = world(shape(3, 2, 1), 300_000, plan(Delivery::Flat, 64 << 10), None);
        let (staging, pairs, rings) = held(&world);
        assert_eq!((staging, pairs), (3 * (64 << 10), 6));
        assert!(rings > 0);
        run(&mut world, op, 0..2);
        let (expected, counts) = (world.expected(op).expect("staged"), world.counts());
        assert_eq!((counts.multicast_bytes, counts.fetches), (2 * expected.multicast_bytes, 0));
        world.leave().expect("all leave");
        assert_eq!(held(&world), (0, 0, 0));
    }
}

/// One process that is not to multicast: none does, and all ends as without.
#[test]
fn a_group_goes_by_messages_if_one_process_cannot_multicast() {
    for op in OPS {
        let plan = StagedPlan { without_multicast: Some(1), ..plan(Delivery::Flat, 64 << 10) };
        let mut world = world(shape(3, 1, 1), 5000, plan, None);
        assert_eq!(world.between(), Between::Messages);
        assert_eq!(held(&world), (3 * (64 << 10), 0, 0));
        assert!(world.agents.iter().flatten().all(|agent| agent.status().multicast_groups == 0));
        run(&mut world, op, 0..2);
        assert_eq!(world.counts().multicasts, 0);
    }
    let world = world(shape(3, 1, 1), 5000, plan(Delivery::Flat, 64 << 10), None);
    assert!(world.agents.iter().flatten().all(|agent| agent.status().multicast_groups == 1));
}

/// A process goes at any time: all others receive its name, and nothing is left of the multicast.
#[test]
fn a_process_that_dies_under_way_is_named_and_leaves_nothing() {
    for seed in seeds(20, 300) {
        let (op, delivery) = (OPS[(seed & 1) as usize], STAGED[(seed >> 1 & 1) as usize]);
        let loss = (seed % 3 == 0).then_some((20_000, seed));
        let mut world = world(shape(3, 2, 1), 60_000, plan(delivery, 64 << 10), loss);
        let dead = (seed % 3) as usize;
        let calls: Vec<_> = (0..6).map(|rank| world.post(op, rank, 0).expect("called")).collect();
        (0..seed * 37 % 1500).for_each(|_| _ = world.let_pass().expect("service processes go on"));
        world.lose_process(dead);
        let mut ended = [false; 6];
        let over = |world: &mut World| {
            for (rank, call) in (0..6).zip(&calls) {
                let own = world.process_of(rank) == dead;
                ended[rank as usize] = ended[rank as usize]
                    || match world.end(rank, *call) {
                        Ok(ended) => ended,
                        Err(ServiceError::Service(Error::StagedFailed(failure))) => {
                            let expected = (FailedParty::Process(dead as u32), StagedCause::Died);
                            assert_eq!((failure.failed_rank, failure.cause), expected, "seed {seed}, rank {rank}");
                            true
                        }
                        Err(ServiceError::Service(Error::Gone)) if own => true,
                        Err(error) => panic!("seed {seed}, rank {rank}: {error}"),
                    };
            }
            Ok(ended.iter().all(|ended| *ended))
        };
        world.drive("all end", over).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        world.leave_group(0).expect("all leave");
        assert_eq!(held(&world), (0, 0, 0), "seed {seed}");
        let pairs = |agent: &Agent| agent.status().queue_pairs;
        assert!(
            world.agents.iter().flatten().all(|agent| pairs(agent) <= 4),
            "seed {seed}: queue pairs of connections"
        );
    }
}
