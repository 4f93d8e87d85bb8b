//! Ibcast and Iallgather through memory of the cards, carried out by service processes on emulated cards: every byte
//! compared, with the number of transfers that closed forms give.

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast_lab::service::{Call, Load, ServiceError, ServiceOp, Shape, StagedPlan, World};
use flexcast_proto::service::wire::{GroupError, Refused};
use flexcast_proto::service::{
    Delivery, FailedParty, Limits, Region, StagedCause, StagedFailure, StagedReader, StagedRefusal, Staging, Thresholds,
};
use flexcast_service::{AgentCounts, Error};
use flexcast_tests::harness::is_long;

const OPS: [ServiceOp; 2] = [ServiceOp::Broadcast, ServiceOp::Allgather];
const DELIVERIES: [Delivery; 3] = [Delivery::Flat, Delivery::Hierarchical, Delivery::Direct];
const STAGED: [Delivery; 2] = [Delivery::Flat, Delivery::Hierarchical];
const SMALL: Staging = Staging { staging_bytes: 4096, segments: 2, transfers: 16, collectives: 8, ..STAGING };
const STAGING: Staging = Staging {
    staging_bytes: 64 << 10,
    segments: 2,
    transfers: 16,
    collectives: 8,
    scatter_bytes: 1 << 20,
    reader: StagedReader::OfRoot,
    multicast: None,
};

fn machine(shape: Shape, loss_ppm: Option<u32>) -> Emulated {
    let config = Machine { arm_functions: true, loss_ppm, ..Machine::default() };
    let mut config = config.config_of(shape.hosts.max(2) as usize).expect("a switch");
    config.heap_bytes = 1 << 20;
    Emulated::new(config).expect("a machine")
}

fn plan(delivery: Delivery) -> StagedPlan {
    StagedPlan { staging: STAGING, delivery: Some(delivery), ..StagedPlan::default() }
}

fn world(shape: Shape, bytes: u64, plan: StagedPlan) -> World {
    let load = Load { bytes, varies: false };
    let world = World::with(machine(shape, None), shape, load, Limits::default(), Some(plan));
    world.unwrap_or_else(|error| panic!("{shape:?}: {error}"))
}

const fn shape(hosts: u32, ranks_per_host: u32, processes_per_host: u32) -> Shape {
    Shape { hosts, ranks_per_host, processes_per_host }
}

const SHAPES: [Shape; 5] = [shape(2, 1, 1), shape(2, 4, 2), shape(3, 2, 1), shape(1, 3, 1), shape(2, 3, 2)];

/// Collectives one after another; ranks call in another order each time, some long after others.
fn run(world: &mut World, op: ServiceOp, turns: u32) {
    let ranks = world.ranks.len() as u32;
    for turn in 0..turns {
        let mut calls: Vec<(u32, Call)> = Vec::new();
        for at in 0..ranks {
            let rank = (at + turn) % ranks;
            calls.push((rank, world.post(op, rank, turn).expect("called")));
            (0..turn * 200).for_each(|_| _ = world.let_pass().expect("service processes go on"));
        }
        calls.sort_unstable_by_key(|(rank, _)| *rank);
        let calls: Vec<Call> = calls.into_iter().map(|(_, call)| call).collect();
        world.end_calls(&calls).expect("all end well");
        for rank in 0..ranks {
            assert!(world.is_right(op, rank, turn).expect("memory"), "{op} rank {rank}, turn {turn}");
        }
    }
}

fn counted(before: AgentCounts, after: AgentCounts) -> [u64; 4] {
    [
        after.gathers - before.gathers,
        after.writes - before.writes,
        after.flags - before.flags,
        after.task_bytes - before.task_bytes,
    ]
}

#[test]
fn a_process_that_has_nothing_to_write_still_reports_the_calls_of_its_ranks() {
    // An empty Broadcast to a segment ends at the second process at once: it writes neither data nor flags.
    let mut world = world(shape(1, 2, 2), 0, plan(Delivery::Hierarchical));
    run(&mut world, ServiceOp::Broadcast, 3);
}

/// Runs three turns and compares all counts with the closed forms.
fn run_and_count(world: &mut World, op: ServiceOp, what: &str) {
    let (before, copies) = (world.counts(), world.host_copies());
    run(world, op, 3);
    let (after, ranks) = (world.counts(), world.ranks.len() as u64);
    let expected = world.expected(op).expect("a plan");
    let counts = [expected.gathers, expected.writes, expected.flags, expected.task_bytes].map(|count| 3 * count);
    assert_eq!(counted(before, after), counts, "{what}");
    if let Some(fetches) = expected.fetches {
        assert_eq!(after.fetches - before.fetches, 3 * fetches, "{what}");
    }
    assert_eq!((after.reads - before.reads, after.wrong), (3 * expected.copies, 0), "{what}");
    let hierarchical = world.delivery().expect("a plan") == Delivery::Hierarchical && world.load_bytes() > 0;
    let root = u64::from(op == ServiceOp::Broadcast);
    let expected = if hierarchical { 3 * (ranks - root) } else { 0 };
    assert_eq!(world.host_copies().0 - copies.0, expected, "copies are the hosts' work: {what}");
}

#[test]
fn every_byte_arrives_with_as_many_transfers_as_closed_forms_give() {
    for shape in SHAPES {
        for delivery in DELIVERIES {
            let mut world = world(shape, 111, plan(delivery));
            for op in OPS {
                run_and_count(&mut world, op, &format!("{shape:?} {delivery:?} {op}"));
            }
        }
    }
}

#[test]
fn reads_are_a_process_s_ranks_and_writes_all_ranks_or_hosts() {
    // 4 ranks on each of 3 hosts with a process each.
    for (delivery, writes) in [(Delivery::Flat, 12), (Delivery::Hierarchical, 3)] {
        let mut world = world(shape(3, 4, 1), 64, plan(delivery));
        let before = world.counts();
        run(&mut world, ServiceOp::Allgather, 1);
        let after = world.counts();
        assert_eq!((after.gathers - before.gathers, after.writes - before.writes), (12, 3 * writes));
        // Of each rank 80 bytes at each process, once from itself and else from its process, 4 at a time.
        let received = 4 * (32 + 80) + 2 * (32 + 4 * 80);
        assert_eq!(after.task_bytes - before.task_bytes, 3 * received);
        assert_eq!(world.incast_at_start(0), 1, "no two processes begin with the same rank");
    }
}

#[test]
fn by_alias_keys_nothing_goes_through_memory_of_the_cards() {
    for op in OPS {
        let arm_bytes = |delivery, bytes| {
            let mut world = world(shape(2, 2, 1), bytes, plan(delivery));
            let before = world.arm_bytes().expect("Arm cores");
            run(&mut world, op, 1);
            world.arm_bytes().expect("Arm cores") - before
        };
        // Longer messages move no more, but for a few work queue entries that the card reads once more or less, by its
        // timing; by staging memory they go in, between processes, and out.
        let difference = arm_bytes(Delivery::Direct, 64).abs_diff(arm_bytes(Delivery::Direct, 6400));
        assert!(difference <= 16 * 64, "{op}: {difference}");
        let staged = arm_bytes(Delivery::Flat, 6400) - arm_bytes(Delivery::Flat, 64);
        let moves = if op == ServiceOp::Broadcast { 1 + 3 + 2 } else { 4 + 4 * 4 };
        assert!(staged >= moves * (6400 - 64), "{op}: {staged}");
    }
}

#[test]
fn messages_longer_than_staging_memory_go_in_segments() {
    for shape in [shape(2, 3, 2), shape(3, 1, 1)] {
        for delivery in DELIVERIES {
            let plan = StagedPlan { staging: SMALL, ..plan(delivery) };
            let mut world = world(shape, 10_001, plan);
            for op in OPS {
                run_and_count(&mut world, op, &format!("{shape:?} {delivery:?} {op}"));
            }
        }
    }
}

#[test]
fn no_bytes_are_a_collective_too() {
    for delivery in DELIVERIES {
        let mut world = world(shape(2, 2, 1), 0, plan(delivery));
        for op in OPS {
            run_and_count(&mut world, op, &format!("{delivery:?} {op}"));
        }
    }
}

#[test]
fn ranks_of_a_host_need_not_follow_one_another() {
    for delivery in STAGED {
        let mut world = world(shape(2, 4, 2), 100, StagedPlan { is_strided: true, ..plan(delivery) });
        run_and_count(&mut world, ServiceOp::Allgather, &format!("{delivery:?}"));
        // Two ranks of each process, not adjacent: two runs for each target.
        let targets = if delivery == Delivery::Flat { 8 } else { 2 };
        assert_eq!(world.expected(ServiceOp::Allgather).expect("a plan").writes, 4 * 2 * targets);
        run_and_count(&mut world, ServiceOp::Broadcast, &format!("{delivery:?}"));
    }
}

#[test]
fn any_process_may_read_for_any_root_and_pass_on_by_any_algorithm() {
    for reader in [StagedReader::OfRoot, StagedReader::First] {
        for scatter_bytes in [0, 1 << 20] {
            let staging = Staging { reader, scatter_bytes, ..SMALL };
            let mut world = world(shape(3, 2, 2), 5000, StagedPlan { staging, root: 3, ..plan(Delivery::Flat) });
            let before = world.counts();
            run_and_count(&mut world, ServiceOp::Broadcast, &format!("{reader:?} {scatter_bytes}"));
            let after = world.counts();
            // By a binomial tree each process but the first reads everything once; by scatter and Allgather it does,
            // too, in parts.
            let fetched = after.fetched_bytes - before.fetched_bytes;
            assert!(fetched >= 3 * 5 * 5000, "{reader:?} {scatter_bytes}: {fetched}");
        }
    }
}

#[test]
fn thresholds_say_where_data_goes() {
    let plan =
        StagedPlan { delivery: None, thresholds: Thresholds { ranks_per_host: 2, bytes: 100 }, ..plan(Delivery::Flat) };
    for (shape, bytes, expected) in [
        (shape(2, 2, 1), 100, Delivery::Hierarchical),
        (shape(2, 2, 1), 99, Delivery::Flat),
        (shape(2, 1, 1), 100, Delivery::Flat),
    ] {
        let mut world = world(shape, bytes, plan);
        assert_eq!(world.delivery().expect("a plan"), expected);
        let found = world.ranks[0].client.delivery(7, 0, plan.thresholds, bytes).expect("joined");
        assert_eq!(found, expected, "the ranks choose alike");
        run_and_count(&mut world, ServiceOp::Allgather, &format!("{shape:?} {bytes}"));
    }
}

/// Lets the service processes go on alone until all flags are there.
fn wait_for_flags(world: &mut World, calls: &[Call]) {
    let mut polls = 0;
    while !world.are_all_flagged(calls).expect("flags") {
        polls += 1;
        assert!(polls < 1_000_000, "no flag comes");
        world.let_pass().expect("service processes go on");
    }
}

#[test]
fn between_the_call_and_the_flag_the_host_does_nothing() {
    for delivery in DELIVERIES {
        for op in OPS {
            let mut world = world(shape(2, 2, 1), 777, plan(delivery));
            let calls: Vec<Call> = (0..4).map(|rank| world.post(op, rank, 0).expect("called")).collect();
            let said = world.host_calls();
            // The hosts compute: only the Arm cores go on.
            wait_for_flags(&mut world, &calls);
            assert_eq!((world.host_calls(), world.host_copies()), (said, (0, 0)));
            if delivery != Delivery::Hierarchical {
                assert!((0..4).all(|rank| world.is_right(op, rank, 0).expect("memory")));
            }
            assert!(world.have_ended(&calls).expect("well"));
            assert!((0..4).all(|rank| world.is_right(op, rank, 0).expect("memory")));
        }
    }
}

#[test]
fn hosts_that_poll_late_find_the_flags_of_later_collectives() {
    let mut world = world(shape(2, 1, 1), 64, plan(Delivery::Flat));
    let mut all = Vec::new();
    // More calls than processes keep, by ranks that do not wait: those too far ahead wait at the process.
    for turn in 0..20 {
        all.push((0..2).map(|rank| world.post(ServiceOp::Allgather, rank, turn).expect("called")).collect::<Vec<_>>());
    }
    wait_for_flags(&mut world, all.last().expect("20"));
    for calls in all {
        assert!(world.have_ended(&calls).expect("well"), "{calls:?}");
    }
}

#[test]
fn a_rank_is_through_when_all_processes_have_written() {
    for delivery in STAGED {
        let mut world = world(shape(2, 2, 1), 512, plan(delivery));
        let calls: Vec<Call> = (0..4).map(|rank| world.post(ServiceOp::Allgather, rank, 0).expect("called")).collect();
        // The process of host 1 has what it needs to begin, and then does nothing for long.
        let mut late = None;
        for _ in 0..100_000 {
            if late.is_none() && world.agents[1].as_ref().is_some_and(|agent| agent.counts().gathers > 0) {
                late = world.agents[1].take();
            }
            world.let_pass().expect("the others go on");
        }
        let written = world.agents[0].as_ref().map(|agent| agent.counts().writes);
        assert_eq!(written, Some(if delivery == Delivery::Flat { 4 } else { 2 }), "host 0's process has written");
        for (rank, call) in (0..).zip(&calls) {
            assert!(!world.end(rank, *call).expect("no failure"), "rank {rank} lacks what host 1 has");
        }
        world.agents[1] = Some(late.expect("it had begun"));
        world.end_calls(&calls).expect("well");
        assert!((0..4).all(|rank| world.is_right(ServiceOp::Allgather, rank, 0).expect("memory")));
    }
}

#[test]
fn a_segment_is_not_written_to_before_it_is_copied() {
    let mut world = world(shape(1, 2, 1), 8, plan(Delivery::Hierarchical));
    let first = world.post(ServiceOp::Allgather, 0, 0).expect("called");
    let error = world.post(ServiceOp::Allgather, 0, 1).expect_err("the first has not ended");
    assert!(error.to_string().contains("before the one before it has ended"), "{error}");
    let other = world.post(ServiceOp::Allgather, 1, 0).expect("called");
    world.end_calls(&[first, other]).expect("well");
    run(&mut world, ServiceOp::Allgather, 2);
}

#[test]
fn keys_of_the_host_are_of_no_use_to_a_service_process() {
    let mut world = world(shape(2, 1, 1), 64, plan(Delivery::Flat));
    // Rank 1 names its buffers by its own local keys, not by those of its process.
    let calls = [
        world.post(ServiceOp::Allgather, 0, 0).expect("called"),
        Call::Staged(world.post_with_host_keys(1, 0).expect("called")),
    ];
    let mut ends = [None; 2];
    world
        .drive("both learn", |world| {
            for (rank, (call, end)) in (0..).zip(calls.iter().zip(&mut ends)) {
                if end.is_none() {
                    *end = failure(world.end(rank, *call));
                }
            }
            Ok(ends.iter().all(Option::is_some))
        })
        .expect("both learn of it");
    for end in ends.into_iter().flatten() {
        assert_eq!(end.failed_rank, FailedParty::Rank(1));
        assert!(matches!(end.cause, StagedCause::Transfer(_)), "{end}");
    }
    assert!(world.is_untouched(1).expect("memory"), "nothing was written by a key that is not valid there");
}

#[test]
fn calls_that_cannot_be_are_refused_by_what_is_wrong() {
    let mut world = world(shape(2, 1, 1), 64, plan(Delivery::Flat));
    let client = &mut world.ranks[0].client;
    let region = |bytes| Region { address: 0, key: 0, bytes };
    let expected = |result: Result<_, Error>, expected: StagedRefusal| match result {
        Err(Error::Refused(Refused::Staged(found))) => assert_eq!(found, expected),
        other => panic!("{other:?}"),
    };
    let refusal = StagedRefusal::Rank { rank: 2, ranks: 2 };
    expected(client.broadcast((7, 0), 2, Delivery::Flat, region(8), None).map(drop), refusal);
    let refusal = StagedRefusal::Buffer { name: "receive", rank: 0, found: 9, expected: 8 };
    expected(client.allgather((7, 0), Delivery::Flat, region(4), region(9), None).map(drop), refusal);
    let error = client.broadcast((7, 0), 0, Delivery::Hierarchical, region(8), None).expect_err("no segment");
    assert!(error.to_string().contains("segment"), "{error}");
    // None of them has been counted.
    run(&mut world, ServiceOp::Broadcast, 1);
}

#[test]
fn without_staging_memory_there_are_no_staged_collectives() {
    let shape = shape(2, 1, 1);
    let load = Load { bytes: 8, varies: false };
    let mut world = World::new(machine(shape, None), shape, load, Limits::default()).expect("all join");
    let nothing = Region { address: 0, key: 0, bytes: 0 };
    let call = world.ranks[0].client.broadcast((7, 0), 0, Delivery::Flat, nothing, None).expect("sent");
    let mut refused = None;
    world
        .drive("it is refused", |world| {
            refused = match world.end(0, Call::Staged(call)) {
                Ok(false) => None,
                Err(ServiceError::Service(Error::Refused(refused))) => Some(refused),
                other => panic!("{other:?}"),
            };
            Ok(refused.is_some())
        })
        .expect("reported");
    assert_eq!(refused, Some(Refused::Staged(StagedRefusal::NoStaging { group: 7 })));
    assert_eq!(world.counts().wrong, 0, "nobody is cut off for it");
}

/// The failure that a call has ended with, if it has.
fn failure(end: Result<bool, ServiceError>) -> Option<StagedFailure> {
    match end {
        Ok(false) => None,
        Err(ServiceError::Service(Error::StagedFailed(failure))) => Some(failure),
        other => panic!("{other:?}"),
    }
}

#[test]
fn staging_memory_is_bounded_and_comes_back() {
    let staging_bytes = Some(2 * STAGING.staging_bytes);
    let mut world = world(shape(2, 2, 2), 100, StagedPlan { staging_bytes, ..plan(Delivery::Flat) });
    let held = |world: &World| -> Vec<u64> {
        world.agents.iter().flatten().map(flexcast_service::Agent::staging_bytes).collect()
    };
    assert_eq!(held(&world), [STAGING.staging_bytes; 4]);
    let second = world.open_group().expect("there is room");
    assert_eq!(held(&world), [2 * STAGING.staging_bytes; 4]);
    let refused = world.open_group().expect_err("there is no room");
    let (asked, limit) = (STAGING.staging_bytes, 2 * STAGING.staging_bytes);
    let expected = StagedRefusal::Exhausted { asked, held: limit, limit };
    assert!(
        matches!(&refused, ServiceError::Service(Error::Refused(Refused::Staged(found))) if *found == expected),
        "{refused}"
    );
    assert!(refused.to_string().contains("staging exhausted"), "{refused}");
    world.drive("each rank learns of it", |world| world.is_refused_to_all(2)).expect("all are");
    // What there was goes on, and what ends makes room.
    run(&mut world, ServiceOp::Allgather, 1);
    world.leave_group(second).expect("all are let go");
    assert_eq!(held(&world), [STAGING.staging_bytes; 4]);
    world.open_group_as(2, 0x99).expect("there is room again");
    assert_eq!(held(&world), [2 * STAGING.staging_bytes; 4]);
    for index in [0, 2] {
        world.leave_group(index).expect("all are let go");
    }
    assert_eq!(held(&world), [0; 4]);
    assert!(world.agents.iter().flatten().all(|agent| agent.groups() == 0));
    assert_eq!(world.counts().wrong, 0);
}

#[test]
fn processes_with_other_settings_take_no_part_together() {
    let (shape, load) = (shape(3, 2, 1), Load { bytes: 8, varies: false });
    let plan = StagedPlan { odd: Some(1), ..plan(Delivery::Flat) };
    let error = World::with(machine(shape, None), shape, load, Limits::default(), Some(plan)).expect_err("refused");
    assert!(
        matches!(error, ServiceError::Service(Error::Refused(Refused::Group(GroupError::Staging { .. })))),
        "{error}"
    );
}

#[test]
fn concurrent_groups_go_on_also_when_one_fails() {
    let shape = shape(2, 2, 1);
    let mut world = world(shape, 3000, StagedPlan { staging: SMALL, ..plan(Delivery::Flat) });
    let others = [world.open_group().expect("a group"), world.open_group().expect("a group")];
    let op = ServiceOp::Allgather;
    for turn in 0..2 {
        let mut calls = Vec::new();
        for rank in 0..4 {
            for index in [0, others[0], others[1]] {
                calls.push((rank, index, world.post_in(index, op, rank, turn).expect("called")));
            }
        }
        // In the second turn, group 0 fails: rank 2 has called something else in it.
        if turn == 1 {
            let odd = (0..4).map(|rank| {
                let bytes = if rank == 2 { 2999 } else { 3000 };
                (rank, 0, world.post_as(0, op, rank, 2, (0, Delivery::Flat, bytes)).expect("called"))
            });
            calls.extend(odd.collect::<Vec<_>>());
        }
        let mut ends = vec![None; calls.len()];
        world
            .drive("all end", |world| {
                for ((rank, _, call), end) in calls.iter().zip(&mut ends) {
                    if end.is_none() {
                        *end = match world.end(*rank, Call::Staged(*call)) {
                            Ok(false) => None,
                            Ok(true) => Some(Ok(())),
                            Err(ServiceError::Service(Error::StagedFailed(failure))) => Some(Err(failure)),
                            Err(other) => return Err(other),
                        };
                    }
                }
                Ok(ends.iter().all(Option::is_some))
            })
            .expect("all end");
        for ((rank, index, call), end) in calls.iter().zip(ends) {
            if *index > 0 || turn == 0 {
                assert_eq!(end, Some(Ok(())), "turn {turn}, group {index}, rank {rank}");
                assert!(world.is_right_in(*index, op, *rank, turn).expect("memory"));
            } else if call.context.collective == 2 {
                let Some(Err(failure)) = end else { panic!("{end:?}") };
                assert_eq!(failure.cause, StagedCause::Disagrees);
            }
        }
    }
    for index in [0, others[0], others[1]] {
        world.leave_group(index).expect("all are let go");
    }
    assert!(world.agents.iter().flatten().all(|agent| agent.staging_bytes() == 0), "no byte is left");
}

#[test]
fn frames_that_are_lost_cost_time_and_no_bytes() {
    let shape = shape(3, 2, 2);
    for delivery in DELIVERIES {
        let plan = StagedPlan { staging: SMALL, ..plan(delivery) };
        let load = Load { bytes: 3000, varies: false };
        let machine = machine(shape, Some(20_000));
        let mut world = World::with(machine, shape, load, Limits::default(), Some(plan)).expect("all join");
        for op in OPS {
            run(&mut world, op, 2);
        }
        assert_eq!(world.counts().wrong, 0);
    }
}

/// Each rank leaves as soon as its collective has ended, while others wait and frames are lost: all end with every
/// byte, or, where a rank dies, by its name.
fn leave_at_once(seed: u64, dies: bool) {
    let shape = shape(3, 1 + (seed % 2) as u32, 1);
    let (op, delivery) = (OPS[(seed / 2 % 2) as usize], DELIVERIES[(seed / 4 % 3) as usize]);
    let what = format!("seed {seed}: {shape:?}, {op}, {delivery:?}");
    let config = Machine { arm_functions: true, loss_ppm: Some(100_000), seed: Some(seed), ..Machine::default() };
    let mut config = config.config_of(3).expect("a switch");
    config.heap_bytes = 1 << 20;
    let machine = Emulated::new(config).expect("a machine");
    let load = Load { bytes: 3000, varies: false };
    let mut world = World::with(machine, shape, load, Limits::default(), Some(plan(delivery))).expect("all join");
    let ranks = shape.ranks();
    let calls: Vec<Call> = (0..ranks).map(|rank| world.post(op, rank, 0).expect("called")).collect();
    let mut ended = vec![false; calls.len()];
    if dies {
        (0..seed * 37 % 1500).for_each(|_| _ = world.let_pass().expect("service processes go on"));
        world.lose(0);
        ended[0] = true;
    }
    let is_over = |world: &mut World| {
        for ((rank, call), ended) in (0..).zip(&calls).zip(&mut ended).filter(|(_, ended)| !**ended) {
            *ended = match world.end(rank, *call) {
                Ok(false) => continue,
                Ok(true) => {
                    assert!(world.is_right(op, rank, 0).expect("memory"), "{what}: rank {rank} has wrong bytes");
                    true
                }
                Err(ServiceError::Service(Error::StagedFailed(failure))) if dies => {
                    assert_eq!(failure.failed_rank, FailedParty::Rank(0), "{what}: rank {rank}");
                    // Where the notice of the death is lost, a card may find before that the memory is gone
                    // (IBV_WC_REM_ACCESS_ERR).
                    let is_expected = matches!(failure.cause, StagedCause::Died | StagedCause::Transfer(10));
                    assert!(is_expected, "{what}: rank {rank}: {:?}", failure.cause);
                    true
                }
                Err(error) => panic!("{what}: rank {rank}: {error}"),
            };
            world.ranks[rank as usize].client.leave(7, rank)?;
        }
        let has_left = |rank: u32| world.is_dead(rank) || world.ranks[rank as usize].client.has_left(7, rank);
        Ok((0..ranks).all(has_left) && ended.iter().all(|ended| *ended))
    };
    world.drive("all leave", is_over).unwrap_or_else(|error| panic!("{what}: {error}"));
    // The process of a rank that has died may still have transfers under way.
    let is_back = |world: &mut World| Ok(world.agents.iter().flatten().all(|agent| agent.staging_bytes() == 0));
    world.drive("staging memory comes back", is_back).unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn ranks_leave_as_soon_as_they_are_through() {
    let seeds = if is_long() { 200 } else { 12 };
    (0..seeds).for_each(|seed| {
        leave_at_once(seed, false);
        leave_at_once(seed, true);
    });
}

/// Who goes in a run.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Rank(u32),
    Process(usize),
}

/// Ranks call; meanwhile somebody goes. Each of the others ends with every byte, or learns who it was.
fn lose_one(seed: u64) {
    let mut state = seed | 1;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) % below
    };
    let shape = shape(2 + draw(2) as u32, 1 + draw(3) as u32, 1 + draw(2) as u32);
    let (op, delivery) = (OPS[draw(2) as usize], DELIVERIES[draw(3) as usize]);
    let staging = Staging { scatter_bytes: draw(2) << 20, ..SMALL };
    let bytes = [100, 9000][draw(2) as usize];
    let mut world = world(shape, bytes, StagedPlan { staging, ..plan(delivery) });
    let ranks = shape.ranks();
    let gone = if draw(2) == 0 {
        Gone::Rank(draw(ranks.into()) as u32)
    } else {
        Gone::Process(draw(world.agents.len() as u64) as usize)
    };
    let what = format!("seed {seed}: {shape:?}, {op:?}, {delivery:?}, {bytes} bytes, {gone:?}");
    // Before, between or after the calls.
    let (when, pause) = (draw(u64::from(ranks) + 2) as u32, draw(3000));
    let mut calls = Vec::new();
    for at in 0..=ranks {
        if at == when.min(ranks) {
            (0..pause).for_each(|_| _ = world.let_pass().expect("service processes go on"));
            match gone {
                Gone::Rank(rank) => world.lose(rank),
                Gone::Process(process) => world.lose_process(process),
            }
        }
        if at < ranks && !world.is_dead(at) {
            match world.post(op, at, 0) {
                Ok(call) => calls.push((at, call)),
                Err(ServiceError::Service(Error::Gone)) => {
                    assert!(matches!(gone, Gone::Process(process) if world.process_of(at) == process), "{what}");
                }
                Err(error) => panic!("{what}: rank {at}: {error}"),
            }
        }
    }
    let mut ended = vec![false; calls.len()];
    let is_over = |world: &mut World| {
        for ((rank, call), ended) in calls.iter().zip(&mut ended) {
            if *ended || world.is_dead(*rank) {
                continue;
            }
            *ended = match world.end(*rank, *call) {
                Ok(false) => false,
                Ok(true) => {
                    assert!(world.is_right(op, *rank, 0).expect("memory"), "{what}: rank {rank} has wrong bytes");
                    true
                }
                Err(ServiceError::Service(Error::StagedFailed(failure))) => {
                    let expected = match gone {
                        Gone::Rank(rank) => FailedParty::Rank(rank),
                        Gone::Process(process) => FailedParty::Process(process as u32),
                    };
                    assert_eq!(
                        (failure.failed_rank, failure.cause),
                        (expected, StagedCause::Died),
                        "{what}: rank {rank}"
                    );
                    true
                }
                Err(ServiceError::Service(Error::Gone)) => {
                    assert!(matches!(gone, Gone::Process(process) if world.process_of(*rank) == process), "{what}");
                    true
                }
                Err(error) => panic!("{what}: rank {rank}: {error}"),
            };
        }
        let all = calls.iter().zip(&ended).all(|((rank, _), ended)| *ended || world.is_dead(*rank));
        Ok(all)
    };
    world.drive("all end", is_over).unwrap_or_else(|error| panic!("{what}: {error}"));
    world.leave_group(0).unwrap_or_else(|error| panic!("{what}: {error}"));
    let held: u64 = world.agents.iter().flatten().map(flexcast_service::Agent::staging_bytes).sum();
    assert_eq!(held, 0, "{what}: no byte of staging memory is left");
}

#[test]
fn whoever_goes_at_any_time_is_named_or_missed_by_nobody() {
    let seeds = if is_long() { 400 } else { 60 };
    (0..seeds).for_each(lose_one);
}
