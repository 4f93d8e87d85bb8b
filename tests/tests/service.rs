//! Service processes on the Arm cores of emulated cards: they move the blocks of Alltoallv and Allgatherv from host memory to host memory, every byte
//! compared, with the number of messages and Reads that closed forms give.

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast_lab::service::{Load, ServiceError, ServiceOp, Shape, World};
use flexcast_proto::service::{Cause, ContextId, Culprit, Limits};
use flexcast_service::Error;

const LOAD: Load = Load { bytes: 111, varies: true };

fn machine(shape: Shape) -> Emulated {
    let config = Machine { arm_functions: true, ..Machine::default() };
    let mut config = config.config_of(shape.hosts.max(2) as usize).expect("a switch");
    config.heap_bytes = 1 << 20;
    Emulated::new(config).expect("a machine")
}

fn world(shape: Shape) -> World {
    World::new(machine(shape), shape, LOAD, Limits::default()).expect("all join")
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

#[test]
fn allgatherv_crosses_to_each_host_once() {
    for shape in SHAPES {
        let mut world = world(shape);
        let before = world.counts();
        run(&mut world, ServiceOp::Allgatherv, shape.ranks());
        let after = world.counts();
        // Each block crosses to each other host once (MI-30), and each rank reads its own.
        let ranks = u64::from(shape.ranks());
        let crossings = ranks * u64::from(shape.hosts - 1);
        assert_eq!(after.crossings - before.crossings, 3 * crossings, "{shape:?}");
        assert_eq!(after.reads - before.reads, 3 * (crossings + ranks), "{shape:?}");
        assert_eq!(after.wrong, 0);
    }
}

#[test]
fn no_payload_crosses_the_memory_of_arm_cores() {
    let shape = Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 };
    let arm_bytes = |bytes: u64| {
        let load = Load { bytes, varies: false };
        let mut world = World::new(machine(shape), shape, load, Limits::default()).expect("all join");
        let before = world.arm_bytes().expect("Arm cores");
        run(&mut world, ServiceOp::Alltoallv, 4);
        (world.arm_bytes().expect("Arm cores") - before, world.counts().process_messages)
    };
    // Blocks that are a thousand times as long change nothing (MI-04).
    assert_eq!(arm_bytes(64), arm_bytes(64_000));
}

#[test]
fn between_the_call_and_the_flag_the_host_does_nothing() {
    let mut world = world(Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 });
    let op = ServiceOp::Alltoallv;
    let contexts: Vec<ContextId> = (0..4).map(|rank| world.call(op, rank, 0).expect("called")).collect();
    let calls = world.host_calls();
    let mut looks = 0;
    // The hosts compute: only the Arm cores go on.
    while !world.are_flagged(&contexts).expect("flags") {
        looks += 1;
        assert!(looks < 1_000_000, "no flag comes");
        world.let_pass().expect("service processes go on");
    }
    assert!((0..4).all(|rank| world.is_right(op, rank, 0).expect("memory")));
    assert_eq!(calls, world.host_calls());
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
            assert_eq!((failure.culprit, failure.cause), (Culprit::Rank(3), Cause::Died), "rank {rank}");
            Ok(true)
        }
        other => panic!("rank {rank}: {other:?}"),
    };
    world
        .drive("all learn of it", |world| {
            let all: Result<Vec<bool>, ServiceError> =
                (0..3).zip(&contexts).map(|(rank, context)| failed(world, *context, rank)).collect();
            Ok(all?.into_iter().all(|is_told| is_told))
        })
        .expect("all are told");
    // Nothing follows in this group.
    let next = world.call(op, 0, 1).expect("told");
    world.drive("rank 0 learns", |world| failed(world, next, 0)).expect("it is told");
}

#[test]
fn ranks_leave_and_nothing_is_left() {
    let mut world = world(Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 2 });
    run(&mut world, ServiceOp::Allgatherv, 4);
    world.leave().expect("all are let go");
    assert!(world.agents.iter().all(|agent| agent.groups() == 0));
}
