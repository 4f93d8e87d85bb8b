//! Service processes on the Arm cores of emulated cards: they move the blocks of Alltoallv and Allgatherv from host
//! memory to host memory, every byte compared, with the number of messages and Reads that closed forms give.

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast_lab::service::{self, CopiesName, Load, ServiceError, ServiceOp, ServiceParams, Shape, StagedPlan, World};
use flexcast_proto::service::{Cause, ContextId, FailedParty, Limits, LocalCopies, Operation};
use flexcast_service::Error;
use flexcast_tests::harness::is_long;

const LOAD: Load = Load { bytes: 111, varies: true };

fn machine(shape: Shape) -> Emulated {
    lossy(shape, None)
}

fn lossy(shape: Shape, loss_ppm: Option<u32>) -> Emulated {
    let config = Machine { arm_functions: true, loss_ppm, ..Machine::default() };
    let mut config = config.config_of(shape.hosts.max(2) as usize).expect("a switch");
    config.heap_bytes = 1 << 20;
    Emulated::new(config).expect("a machine")
}

fn world(shape: Shape) -> World {
    World::new(machine(shape), shape, LOAD, Limits::default()).unwrap_or_else(|error| panic!("{shape:?}: {error}"))
}

const SHAPES: [Shape; 4] = [
    Shape { hosts: 2, ranks_per_host: 1, processes_per_host: 1 },
    Shape { hosts: 2, ranks_per_host: 3, processes_per_host: 2 },
    Shape { hosts: 3, ranks_per_host: 2, processes_per_host: 1 },
    Shape { hosts: 1, ranks_per_host: 3, processes_per_host: 1 },
];

/// Three collectives; ranks call in another order each time, some long after others.
fn run(world: &mut World, op: ServiceOp, ranks: u32) {
    for turn in 0..3 {
        let mut contexts: Vec<(u32, ContextId)> = Vec::new();
        for at in 0..ranks {
            let rank = (at + turn) % ranks;
            contexts.push((rank, world.call(op, rank, turn).expect("called")));
            (0..turn * 200).for_each(|_| _ = world.let_pass().expect("service processes go on"));
        }
        contexts.sort_unstable();
        let contexts: Vec<ContextId> = contexts.into_iter().map(|(_, context)| context).collect();
        world.end_all(&contexts).expect("all end well");
        for rank in 0..ranks {
            assert!(world.is_right(op, rank, turn).expect("memory"), "rank {rank}, turn {turn}");
        }
    }
}

#[test]
fn alltoallv_goes_from_host_memory_to_host_memory() {
    for shape in SHAPES {
        let mut world = world(shape);
        let ranks = shape.ranks();
        let before = world.counts();
        run(&mut world, ServiceOp::Alltoallv, ranks);
        let after = world.counts();
        let pairs = || (0..ranks).flat_map(|source| (0..ranks).map(move |target| LOAD.between(source, target)));
        let reads = pairs().filter(|bytes| *bytes > 0).count() as u64;
        assert_eq!(
            (after.reads - before.reads, after.read_bytes - before.read_bytes),
            (3 * reads, 3 * pairs().sum::<u64>())
        );
        assert_eq!(
            (after.flags - before.flags, after.wrong),
            (3 * u64::from(ranks), 0),
            "a flag for each rank: {shape:?}"
        );
        assert!(world.most_active_reads() <= Limits::default().active_reads);
    }
}

/// By whomever copies are made inside hosts: each block crosses to each other host once, each rank reads its own, and
/// the others of a host get it by a copy. The card learns of copies by Reads, hosts by messages.
#[test]
fn allgatherv_crosses_to_each_host_once() {
    for (shape, copies) in
        SHAPES.into_iter().flat_map(|shape| [LocalCopies::Host, LocalCopies::Card].map(|by| (shape, by)))
    {
        let mut world = world(shape);
        world.local_copies = copies;
        let before = world.counts();
        run(&mut world, ServiceOp::Allgatherv, shape.ranks());
        let after = world.counts();
        let ranks = u64::from(shape.ranks());
        let total: u64 = (0..shape.ranks()).map(|source| LOAD.of(source)).sum();
        let hosts = u64::from(shape.hosts);
        let (crossings, copied) = (ranks * (hosts - 1), ranks * hosts * u64::from(shape.ranks_per_host - 1));
        let (read, notified) = if copies == LocalCopies::Card { (copied, 0) } else { (0, copied) };
        assert_eq!(
            (after.crossings - before.crossings, after.local_reads - before.local_reads),
            (3 * crossings, 3 * read),
            "{shape:?}, {copies:?}"
        );
        assert_eq!(after.reads - before.reads, 3 * (crossings + ranks + read), "{shape:?}, {copies:?}");
        let bytes = if copies == LocalCopies::Card { total * ranks } else { total * hosts };
        assert_eq!(after.read_bytes - before.read_bytes, 3 * bytes, "{shape:?}, {copies:?}");
        assert_eq!(after.rank_messages - before.rank_messages, 3 * notified, "{shape:?}, {copies:?}");
        assert_eq!((after.flags - before.flags, after.wrong), (3 * ranks, 0));
        assert!(world.most_active_reads() <= Limits::default().active_reads);
    }
}

/// One Read at a time, copies included.
#[test]
fn copies_by_the_card_count_as_active_reads() {
    let shape = Shape { hosts: 2, ranks_per_host: 3, processes_per_host: 2 };
    let limits = Limits { active_reads: 1, ..Limits::default() };
    let mut world = World::new(machine(shape), shape, LOAD, limits).expect("all join");
    world.local_copies = LocalCopies::Card;
    run(&mut world, ServiceOp::Allgatherv, shape.ranks());
    assert_eq!(world.most_active_reads(), 1);
}

/// Ranks of one process, of two of a host, and of two hosts: all learn who differs, or that another one does.
#[test]
fn disagreement_about_copies_is_reported_to_all_ranks() {
    let shape = Shape { hosts: 2, ranks_per_host: 3, processes_per_host: 2 };
    for odd in 0..shape.ranks() {
        let mut world = world(shape);
        let mut contexts = Vec::new();
        for rank in 0..shape.ranks() {
            world.local_copies = if rank == odd { LocalCopies::Card } else { LocalCopies::Host };
            contexts.push(world.call(ServiceOp::Allgatherv, rank, 0).expect("called"));
        }
        let [by_host, by_card] = [LocalCopies::Host, LocalCopies::Card].map(Operation::Allgatherv);
        let differ = |failure: flexcast_proto::service::Failure| match (failure.failed_rank, failure.cause) {
            // Whoever comes first counts as right.
            (FailedParty::Rank(rank), Cause::Operation { found, expected }) => {
                (found, expected) == if rank == odd { (by_card, by_host) } else { (by_host, by_card) }
            }
            _ => false,
        };
        world
            .drive("all learn of it", |world| {
                for ((rank, state), context) in (0..).zip(&mut world.ranks).zip(&contexts) {
                    match state.client.end(*context, rank) {
                        Ok(false) => return Ok(false),
                        Err(Error::Failed(failure)) => assert!(differ(failure), "{odd} differs, reported: {failure}"),
                        other => panic!("rank {rank}: {other:?}"),
                    }
                }
                Ok(true)
            })
            .expect("all learn of it");
    }
}

#[test]
fn no_payload_crosses_the_memory_of_arm_cores() {
    let shape = Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 };
    let arm_bytes = |op: ServiceOp, bytes: u64| {
        let load = Load { bytes, varies: false };
        let mut world = World::new(machine(shape), shape, load, Limits::default()).expect("all join");
        world.local_copies = LocalCopies::Card;
        let before = world.arm_bytes().expect("Arm cores");
        run(&mut world, op, 4);
        (world.arm_bytes().expect("Arm cores") - before, world.counts().process_messages)
    };
    // Blocks that are a thousand times as long change nothing.
    for op in [ServiceOp::Alltoallv, ServiceOp::Allgatherv] {
        assert_eq!(arm_bytes(op, 64), arm_bytes(op, 64_000), "{op}");
    }
}

#[test]
fn between_the_call_and_the_flag_the_host_does_nothing() {
    for op in [ServiceOp::Alltoallv, ServiceOp::Allgatherv] {
        let mut world = world(Shape { hosts: 2, ranks_per_host: 3, processes_per_host: 2 });
        world.local_copies = LocalCopies::Card;
        let contexts: Vec<ContextId> = (0..6).map(|rank| world.call(op, rank, 0).expect("called")).collect();
        let calls = world.host_calls();
        let mut polls = 0;
        // The hosts compute: only the Arm cores go on.
        while !world.are_flagged(&contexts).expect("flags") {
            polls += 1;
            assert!(polls < 1_000_000, "no flag of {op} comes");
            world.let_pass().expect("service processes go on");
        }
        assert!((0..6).all(|rank| world.is_right(op, rank, 0).expect("memory")));
        assert_eq!(calls, world.host_calls());
    }
}

#[test]
fn hosts_that_poll_flags_alone_go_on_for_ever() {
    let shape = Shape { hosts: 2, ranks_per_host: 1, processes_per_host: 1 };
    let mut world = world(shape);
    let mut all = Vec::new();
    // More messages than the card takes at a time, and more collectives than there are flags.
    for turn in 0..200 {
        let contexts: Vec<ContextId> =
            (0..2).map(|rank| world.call(ServiceOp::Alltoallv, rank, turn).expect("called")).collect();
        let mut polls = 0;
        while !world.are_flagged(&contexts).expect("flags") {
            polls += 1;
            assert!(polls < 1_000_000, "turn {turn}: no flag comes");
            world.let_pass().expect("service processes go on");
        }
        all.push(contexts);
    }
    // Who polls late finds the flags of later ones in their places.
    for contexts in all {
        assert!(world.are_flagged(&contexts).expect("flags"), "{contexts:?}");
        world.end_all(&contexts).expect("ended well");
    }
}

#[test]
fn whoever_dies_is_named_to_all_others() {
    let mut world = world(Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 });
    let op = ServiceOp::Alltoallv;
    let contexts: Vec<ContextId> = (0..3).map(|rank| world.call(op, rank, 0).expect("called")).collect();
    // Rank 3 goes without a word before it has called.
    world.lose(3);
    let failed = |world: &mut World, context, rank: u32| match world.ranks[rank as usize].client.end(context, rank) {
        Ok(false) => Ok(false),
        Err(Error::Failed(failure)) => {
            assert_eq!((failure.failed_rank, failure.cause), (FailedParty::Rank(3), Cause::Died), "rank {rank}");
            Ok(true)
        }
        other => panic!("rank {rank}: {other:?}"),
    };
    world
        .drive("all learn of it", |world| {
            let all: Result<Vec<bool>, ServiceError> =
                (0..3).zip(&contexts).map(|(rank, context)| failed(world, *context, rank)).collect();
            Ok(all?.into_iter().all(|has_failed| has_failed))
        })
        .expect("all learn of it");
    // Nothing follows in this group.
    let next = world.call(op, 0, 1).expect("called");
    world.drive("rank 0 learns", |world| failed(world, next, 0)).expect("it learns of it");
}

#[test]
fn ranks_leave_and_nothing_is_left() {
    let mut world = world(Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 2 });
    run(&mut world, ServiceOp::Allgatherv, 4);
    world.leave().expect("all are let go");
    assert!(world.agents.iter().flatten().all(|agent| agent.groups() == 0));
}

#[test]
fn nobody_takes_the_place_of_a_rank() {
    let mut world = world(Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 });
    let refused = world.join_again(1).expect_err("rank 1 has joined");
    assert!(refused.to_string().contains("group 7 is there already"), "{refused}");
    run(&mut world, ServiceOp::Alltoallv, 4);
}

#[test]
fn frames_that_are_lost_cost_time_and_no_bytes() {
    let shape = Shape { hosts: 3, ranks_per_host: 2, processes_per_host: 2 };
    let ways = [
        (ServiceOp::Alltoallv, LocalCopies::Host),
        (ServiceOp::Allgatherv, LocalCopies::Host),
        (ServiceOp::Allgatherv, LocalCopies::Card),
    ];
    for (op, copies) in ways {
        let machine = lossy(shape, Some(20_000));
        let mut world = World::new(machine, shape, LOAD, Limits::default()).expect("all join");
        world.local_copies = copies;
        run(&mut world, op, shape.ranks());
        assert_eq!(world.counts().wrong, 0);
    }
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
    let shape =
        Shape { hosts: 2 + draw(2) as u32, ranks_per_host: 1 + draw(3) as u32, processes_per_host: 1 + draw(2) as u32 };
    let (op, copies) = match draw(3) {
        0 => (ServiceOp::Alltoallv, LocalCopies::Host),
        1 => (ServiceOp::Allgatherv, LocalCopies::Host),
        _ => (ServiceOp::Allgatherv, LocalCopies::Card),
    };
    let mut world = world(shape);
    world.local_copies = copies;
    let ranks = shape.ranks();
    let gone = if draw(2) == 0 {
        Gone::Rank(draw(ranks.into()) as u32)
    } else {
        Gone::Process(draw(world.agents.len() as u64) as usize)
    };
    let what = format!("seed {seed}: {shape:?}, {op:?}, {copies:?}, {gone:?}");
    // Before, between or after the calls.
    let (when, pause) = (draw(u64::from(ranks) + 2) as u32, draw(3000));
    let mut contexts = Vec::new();
    for at in 0..=ranks {
        if at == when.min(ranks) {
            (0..pause).for_each(|_| _ = world.let_pass().expect("service processes go on"));
            match gone {
                Gone::Rank(rank) => world.lose(rank),
                Gone::Process(process) => world.lose_process(process),
            }
        }
        if at < ranks && !world.is_dead(at) {
            match world.call(op, at, 0) {
                Ok(context) => contexts.push((at, context)),
                Err(ServiceError::Service(Error::Gone)) => {
                    assert!(matches!(gone, Gone::Process(process) if world.process_of(at) == process), "{what}");
                }
                Err(error) => panic!("{what}: rank {at}: {error}"),
            }
        }
    }
    let mut ended = vec![false; contexts.len()];
    let is_over = |world: &mut World| {
        for ((rank, context), ended) in contexts.iter().zip(&mut ended) {
            if *ended || world.is_dead(*rank) {
                continue;
            }
            *ended = match world.ranks[*rank as usize].client.end(*context, *rank) {
                Ok(false) => false,
                Ok(true) => {
                    assert!(world.is_right(op, *rank, 0).expect("memory"), "{what}: rank {rank} has wrong bytes");
                    true
                }
                Err(Error::Failed(failure)) => {
                    let expected = match gone {
                        Gone::Rank(rank) => FailedParty::Rank(rank),
                        Gone::Process(process) => FailedParty::Process(process as u32),
                    };
                    assert_eq!((failure.failed_rank, failure.cause), (expected, Cause::Died), "{what}: rank {rank}");
                    true
                }
                Err(Error::Gone) => {
                    assert!(matches!(gone, Gone::Process(process) if world.process_of(*rank) == process), "{what}");
                    true
                }
                Err(error) => panic!("{what}: rank {rank}: {error}"),
            };
        }
        let all = contexts.iter().zip(&ended).all(|((rank, _), ended)| *ended || world.is_dead(*rank));
        Ok(all)
    };
    world.drive("all end", is_over).unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn whoever_goes_at_any_time_is_named_or_missed_by_nobody() {
    let seeds = if is_long() { 400 } else { 60 };
    (0..seeds).for_each(lose_one);
}

/// The copies inside a host are left to hosts that have computed. That no more is: a card that was refused a message,
/// because the program had no receive left, would try again a millisecond later or so.
#[test]
fn hosts_that_compute_find_their_copies_at_once() {
    for processes_per_host in [1, 4] {
        let shape = Shape { hosts: 8, ranks_per_host: 8, processes_per_host };
        let machine = Machine { arm_functions: true, ..Machine::default() };
        let mut config = machine.config_of(shape.hosts as usize).expect("a switch");
        config.heap_bytes = 1 << 20;
        let params = ServiceParams {
            op: ServiceOp::Allgatherv,
            shape,
            load: Load { bytes: 4096, varies: false },
            turns: (1, 1),
            staged: StagedPlan::default(),
            local_copies: CopiesName::Host,
        };
        let report = service::run(config, &params, &mut |_| ()).expect("a run");
        eprintln!("{report}");
        assert!(report.digest_ok);
        let (pure_us, overall_us) = (report.pure_us, report.overall_us);
        assert!(
            overall_us < 2.0 * pure_us + pure_us,
            "{pure_us} us alone, {overall_us} us where hosts compute as long"
        );
        assert!(report.to_string().contains(&format!("{:.1} % overlap", report.overlap_percent)), "{report}");
    }
}
