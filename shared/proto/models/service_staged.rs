//! Staged Ibcast and Iallgather of whole groups: memory of hosts and cards byte by byte, in any order that queue pairs
//! and connections allow, and every interleaving of small ones.

use flexcast_proto::service::{
    Between, Delivery, Descriptor, FailedParty, Multicast, Part, Region, StagedAction, StagedCause, StagedEvent,
    StagedFailure, StagedMessage, StagedProcess, StagedReader, StagedRefusal, Staging, Topology, Work,
};
use proptest::prelude::*;
use stateright::{Checker as _, Model};

use crate::support::staged::*;

/// 4 hosts of 4 ranks, one process each.
#[test]
fn an_allgather_reads_once_per_local_rank_and_writes_once_per_rank_or_host() {
    let contiguous: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
    let strided: Vec<u32> = (0..16).map(|rank| rank % 4).collect();
    for (hosts, delivery, writes, flags) in [
        (&contiguous, Delivery::Flat, 16, 16),
        (&contiguous, Delivery::Hierarchical, 4, 4),
        // 4 runs of one rank.
        (&strided, Delivery::Flat, 64, 16),
        (&strided, Delivery::Hierarchical, 16, 4),
    ] {
        let world = Plan::new(hosts, 1, &[allgather(delivery, 8)]).run();
        assert_eq!(world.counts, [[4, writes, flags, 0]; 4]);
        let firsts: Vec<u32> = world.order.iter().map(|order| hosts[order[0] as usize]).collect();
        assert_eq!(firsts, [0, 1, 2, 3]);
    }
}

/// One Read from the root, one Read per other process, one Write per rank (but the root) or host.
#[test]
fn a_broadcast_reads_the_root_once_and_goes_between_processes() {
    let hosts: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
    for (delivery, writes, flags) in [(Delivery::Flat, [4, 3, 4, 4], 4), (Delivery::Hierarchical, [1; 4], 1)] {
        for reader in [StagedReader::OfRoot, StagedReader::First] {
            let mut plan = Plan::new(&hosts, 1, &[broadcast(6, delivery, 8)]);
            plan.staging.reader = reader;
            let world = plan.run();
            let source = if reader == StagedReader::OfRoot { 1 } else { 0 };
            for (process, writes) in writes.into_iter().enumerate() {
                let reads = u32::from(process == source);
                assert_eq!(world.counts[process], [reads, writes, flags, 1 - reads]);
            }
        }
    }
}

/// 100 bytes of each of two ranks through 16 bytes of staging, in 25 segments of 4.
#[test]
fn a_message_longer_than_the_staging_memory_goes_in_segments() {
    let mut plan = Plan::new(&[0, 0, 1, 1], 1, &[allgather(Delivery::Flat, 100)]);
    plan.staging.staging_bytes = 16;
    assert_eq!(plan.run().counts, [[50, 25 * 2 * 4, 4, 0]; 2]);
    let refused = |staging_bytes| {
        let staging = Staging { staging_bytes, ..plan.staging };
        StagedProcess::new(plan.topology.clone(), 0, staging).unwrap_err().to_string()
    };
    assert_eq!(refused(3), "limit staging_bytes is 3: give at least 4");
}

#[test]
fn what_is_called_wrongly_is_refused_or_fails_by_name() {
    let plan = Plan::new(&[0, 0], 1, &[allgather(Delivery::Flat, 8)]);
    let mut machine = StagedProcess::new(plan.topology.clone(), 0, plan.staging).unwrap();
    let region = |bytes| Region { address: 0, key: 0, bytes };
    let part = |rank| Part { rank, send: region(8), receive: region(16), flags: region(8), shared: region(0) };
    let mut actions = Vec::new();
    let descriptor = plan.collectives[0];
    let mut call = |collective, descriptor, part| {
        machine.handle(StagedEvent::Called { collective, descriptor, part }, &mut actions)
    };
    assert_eq!(call(0, descriptor, part(2)), Err(StagedRefusal::Rank { rank: 2, ranks: 2 }));
    let short = Part { receive: region(8), ..part(0) };
    let refusal = StagedRefusal::Buffer { name: "receive", rank: 0, found: 8, expected: 16 };
    assert_eq!(call(0, descriptor, short), Err(refusal));
    assert_eq!(call(8, descriptor, part(0)), Err(StagedRefusal::Collectives { collective: 8, oldest: 0, limit: 8 }));
    call(0, descriptor, part(0)).unwrap();
    call(0, descriptor, part(0)).unwrap();
    call(0, broadcast(0, Delivery::Flat, 16), Part { send: region(16), ..part(1) }).unwrap();
    assert_eq!(machine.ignored().duplicates, 1);
    let failure = StagedFailure { failed_rank: FailedParty::Rank(1), cause: StagedCause::Disagrees };
    assert_eq!(actions, [0, 1].map(|rank| StagedAction::Fail { rank, failure }));
}

/// Duplicates and messages from elsewhere are counted and change nothing.
#[test]
fn messages_that_come_again_change_nothing() {
    let plan = Plan::new(&[0, 1], 1, &[broadcast(0, Delivery::Flat, 8)]);
    let mut machine = StagedProcess::new(plan.topology.clone(), 1, plan.staging).unwrap();
    let mut actions = Vec::new();
    let offer = |from, segment, tag| StagedEvent::Arrived {
        from,
        collective: 0,
        message: StagedMessage::Offer { segment, tag },
    };
    machine.handle(offer(0, 0, 0), &mut actions).unwrap();
    for event in [offer(0, 0, 0), offer(0, 2, 0), offer(0, 0, 2), offer(1, 0, 0), offer(7, 0, 0)] {
        let before = machine.ignored().total();
        machine.handle(event, &mut actions).unwrap();
        assert_eq!((machine.ignored().total(), actions.len()), (before + 1, 0));
    }
    let region = |bytes| Region { address: 0, key: 0, bytes };
    for rank in [0, 1] {
        let part = Part { rank, send: region(8), receive: region(8), flags: region(16), shared: region(0) };
        let event = StagedEvent::Called { collective: 0, descriptor: plan.collectives[0], part };
        machine.handle(event, &mut actions).unwrap();
    }
    let work = Work::Fetch { segment: 0, tag: 0 };
    assert!(matches!(actions[..], [StagedAction::Fetch { work: same, from: 0, .. }] if same == work));
    let taken = StagedEvent::Arrived { from: 0, collective: 0, message: StagedMessage::Taken { segment: 0, tag: 0 } };
    for event in
        [offer(0, 0, 0), taken, StagedEvent::Done { collective: 0, work: Work::Flag { target: 1 }, error: None }]
    {
        let before = machine.ignored().total();
        machine.handle(event, &mut actions).unwrap();
        assert_eq!((machine.ignored().total(), actions.len()), (before + 1, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn any_collectives_in_any_order(
        raw in proptest::collection::vec(0u32..3, 1..8), per_host in 1u32..3, kinds in proptest::collection::vec((0u32..9, 0u64..40, 0usize..3), 1..4),
        staging_bytes in 16u64..80, segments in 1u32..4, transfers in 1u32..6, scatter_bytes in 0u64..20, first: bool, seed: u64,
        multicast in proptest::option::of((0u64..40, 1u32..9, any::<bool>())),
    ) {
        let mut names = raw.clone();
        names.sort_unstable();
        names.dedup();
        let hosts: Vec<u32> = raw.iter().map(|host| names.binary_search(host).unwrap() as u32).collect();
        let collectives: Vec<Descriptor> = kinds.iter().map(|&(root, bytes, delivery)| {
            let delivery = DELIVERIES[delivery];
            let is_root = (root as usize) < hosts.len();
            if is_root { broadcast(root, delivery, bytes) } else { allgather(delivery, bytes) }
        }).collect();
        let mut plan = Plan::new(&hosts, per_host, &collectives);
        let reader = if first { StagedReader::First } else { StagedReader::OfRoot };
        plan.staging = Staging { staging_bytes: staging_bytes.max(8 * u64::from(segments)), segments, transfers, scatter_bytes, reader, collectives: 2, multicast: None };
        if let Some((ahead_bytes, chunk_bytes, loses)) = multicast {
            plan.staging.multicast = Some(Multicast { repair_ps: 5, ahead_bytes });
            (plan.chunk_bytes, plan.loses) = (chunk_bytes, loses);
        }
        plan.seed = seed;
        let world = plan.run();
        prop_assert!(world.most_active <= transfers as usize);
        for machine in world.processes.iter().flatten() {
            prop_assert_eq!(machine.oldest() as usize, collectives.len());
        }
    }

    #[test]
    fn a_process_that_dies_is_named(seed: u64, dying in 0u32..4, delivery in 0usize..3, multicast: bool) {
        let delivery = DELIVERIES[delivery];
        let collectives = [allgather(delivery, 5), broadcast(1, delivery, 9)];
        let mut plan = Plan::new(&[0, 0, 1, 1, 1], 2, &collectives);
        (plan.dying, plan.seed, plan.staging.staging_bytes) = (Some(dying), seed, 16);
        if multicast {
            (plan.staging.multicast, plan.loses) = (Some(Multicast::default()), true);
        }
        plan.run();
    }
}

/// Each process, each queue pair and each message takes any time, and buffers and flags are used again without a reset.
#[test]
fn no_rank_is_through_before_all_processes_have_written() {
    for delivery in DELIVERIES {
        check("two Allgathers of two ranks", Plan::new(&[0, 1], 1, &[allgather(delivery, 1); 2]));
        check("Allgather of three ranks", Plan::new(&[0, 0, 1], 1, &[allgather(delivery, 1)]));
        check("Allgather of three hosts", Plan::new(&[0, 1, 2], 1, &[allgather(delivery, 1)]));
        // Two segments of a byte in two slots.
        let mut segments = Plan::new(&[0, 1], 1, &[allgather(delivery, 2)]);
        segments.staging.staging_bytes = 2;
        check("Allgather in segments", segments);
    }
}

#[test]
fn broadcasts_end_with_all_bytes() {
    for delivery in DELIVERIES {
        check(
            "two Broadcasts to two ranks",
            Plan::new(&[0, 1], 1, &[broadcast(0, delivery, 1), broadcast(1, delivery, 1)]),
        );
        let mut scatter = Plan::new(&[0, 1, 2], 1, &[broadcast(1, delivery, 3)]);
        (scatter.staging.scatter_bytes, scatter.staging.staging_bytes, scatter.staging.segments) = (0, 3, 1);
        check("Broadcast to three hosts by scatter", scatter);
        let mut segments = Plan::new(&[0, 1], 1, &[broadcast(0, delivery, 3)]);
        segments.staging.staging_bytes = 2;
        check("Broadcast in segments", segments);
    }
}

#[test]
fn a_process_dies_in_any_state() {
    let direct = broadcast(0, Delivery::Direct, 1);
    for (dying, descriptor) in [(0, allgather(Delivery::Flat, 1)), (1, broadcast(0, Delivery::Flat, 1)), (1, direct)] {
        check("a process dies", Plan { dying: Some(dying), ..Plan::new(&[0, 1], 1, &[descriptor]) });
    }
}

/// The published rule, by which each process notifies its own ranks, lets a rank go before other processes have
/// written; and so does a flag that overtakes data.
#[test]
fn weaker_rules_let_ranks_go_too_early() {
    let plan = || Plan::new(&[0, 1], 1, &[allgather(Delivery::Flat, 1)]);
    for weak in [Plan { all_writers: false, ..plan() }, Plan { ordered_flags: false, ..plan() }] {
        let checker = weak.checker().threads(2).spawn_bfs().join();
        let state = checker.discovery(NOTHING_WRONG).expect("a rank that goes too early").into_states().pop().unwrap();
        assert_eq!(state.wrong, Some("over before all bytes are there"));
    }
    // A root from whose memory all read straight: the flag of its own process alone does not say that they have.
    let direct = Plan::new(&[0, 1], 1, &[broadcast(0, Delivery::Direct, 1)]);
    let checker = Plan { all_writers: false, ..direct }.checker().threads(2).spawn_bfs().join();
    let state = checker.discovery(NOTHING_WRONG).expect("a root that goes too early").into_states().pop().unwrap();
    assert_eq!(state.wrong, Some("a Read of buffers that were given back"));
}

/// Four ranks, three processes on two hosts, three collectives.
#[test]
fn larger_groups_and_more_collectives() {
    for delivery in DELIVERIES {
        check("Allgather of four ranks", Plan::new(&[0, 0, 1, 1], 1, &[allgather(delivery, 1)]));
        check("Allgather of three processes", Plan::new(&[0, 1, 0], 2, &[allgather(delivery, 1)]));
        check("three Allgathers", Plan::new(&[0, 0, 1], 1, &[allgather(delivery, 1); 3]));
    }
}

/// Segments between processes by multicast: 100 bytes through places of 8, in chunks of 2, of which a source sends each
/// once.
#[test]
fn a_multicast_leaves_its_source_once_and_needs_no_reads() {
    let multicast = Some(Multicast::default());
    let hosts: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
    for delivery in [Delivery::Flat, Delivery::Hierarchical] {
        for seed in 0..20 {
            let mut plan = Plan { is_patient: true, ..Plan::new(&hosts, 1, &[broadcast(6, delivery, 100)]) };
            (plan.staging.multicast, plan.staging.staging_bytes, plan.seed) = (multicast, 32, seed);
            let world = plan.run();
            let targets = |process: usize| match (delivery, process) {
                (Delivery::Flat, 1) => (3, 4),
                (Delivery::Flat, _) => (4, 4),
                _ => (1, 1),
            };
            for process in 0..4 {
                let (writes, flags) = targets(process);
                let (gathers, sent) = if process == 1 { (7, 100) } else { (0, 0) };
                assert_eq!(world.counts[process], [gathers, 7 * writes, flags, 0], "seed {seed}");
                assert_eq!(world.multicast_bytes[process], sent, "seed {seed}");
            }
            let mut plan = Plan { is_patient: true, ..Plan::new(&hosts, 1, &[allgather(delivery, 10)]) };
            (plan.staging.multicast, plan.seed) = (multicast, seed);
            let world = plan.run();
            // One Write for each target and source, and flags of its own process alone.
            let targets = if delivery == Delivery::Flat { 4 } else { 1 };
            assert_eq!(world.counts, [[4, 4 * targets, targets, 0]; 4], "seed {seed}");
            assert_eq!(world.multicast_bytes, [40; 4], "seed {seed}");
        }
    }
}

/// What is lost is read once, and nothing else.
#[test]
fn what_a_multicast_loses_is_read_from_its_source() {
    for seed in 0..50 {
        let mut plan = Plan { is_patient: true, ..Plan::new(&[0, 1, 2], 1, &[allgather(Delivery::Flat, 9); 2]) };
        (plan.staging.multicast, plan.loses, plan.seed) = (Some(Multicast::default()), true, seed);
        let world = plan.run();
        assert_eq!(world.repaired_bytes, world.lost_bytes, "seed {seed}");
    }
}

/// Without agreement nothing begins; a group that has not enough memory, or of one process, goes without.
#[test]
fn processes_agree_on_multicast_before_anything_begins() {
    let mut plan = Plan::new(&[0, 1], 1, &[broadcast(0, Delivery::Flat, 8)]);
    plan.staging.multicast = Some(Multicast::default());
    let can = |topology: &Topology, staging, chunk| StagedProcess::can_multicast(topology, &staging, chunk);
    assert!(can(&plan.topology, plan.staging, 4096));
    assert!(!can(&plan.topology, plan.staging, 0));
    assert!(!can(&plan.topology, Staging { multicast: None, ..plan.staging }, 4096));
    assert!(!can(&plan.topology, Staging { staging_bytes: 3, ..plan.staging }, 4096));
    // Too many chunks for the immediate to distinguish segments.
    assert!(!can(&plan.topology, Staging { staging_bytes: 4 << 20, ..plan.staging }, 1));
    assert!(!can(&Plan::new(&[0, 0], 1, &[]).topology, plan.staging, 4096));
    let mut machine = StagedProcess::new(plan.topology.clone(), 0, plan.staging).unwrap();
    let region = |bytes| Region { address: 0, key: 0, bytes };
    let mut actions = Vec::new();
    for rank in [0, 1] {
        let part = Part { rank, send: region(8), receive: region(8), flags: region(16), shared: region(0) };
        let event = StagedEvent::Called { collective: 0, descriptor: plan.collectives[0], part };
        machine.handle(event, &mut actions).unwrap();
    }
    assert_eq!(actions, []);
    machine.agree(None);
    assert_eq!(machine.between(), Between::Messages);
    machine.handle(StagedEvent::Time(1), &mut actions).unwrap();
    assert!(matches!(actions[..], [StagedAction::Read { .. }]));
}

fn by_multicast(hosts: &[u32], collectives: &[Descriptor], ahead_bytes: u64) -> Plan {
    let mut plan = Plan::new(hosts, 1, collectives);
    (plan.staging.multicast, plan.chunk_bytes) = (Some(Multicast { repair_ps: 1, ahead_bytes }), 1);
    plan
}

/// Every chunk takes any time, or is lost; and so does everything else.
#[test]
fn multicast_broadcasts_end_with_all_bytes_whatever_is_lost() {
    for delivery in [Delivery::Flat, Delivery::Hierarchical] {
        let one = [broadcast(0, delivery, 1)];
        check("multicast Broadcast", Plan { loses: true, ..by_multicast(&[0, 1], &one, 0) });
        check("multicast Broadcast to three hosts", by_multicast(&[0, 1, 2], &one, 0));
        let two = [broadcast(0, delivery, 1), broadcast(1, delivery, 1)];
        check("two multicast Broadcasts", Plan { loses: true, ..by_multicast(&[0, 1], &two, 0) });
        let mut segments = by_multicast(&[0, 1], &[broadcast(0, delivery, 3)], 0);
        (segments.staging.staging_bytes, segments.loses) = (2, true);
        check("multicast Broadcast in segments", segments);
    }
}

#[test]
fn multicast_allgathers_end_with_all_bytes_whatever_is_lost() {
    for delivery in [Delivery::Flat, Delivery::Hierarchical] {
        check("multicast Allgather", Plan { loses: true, ..by_multicast(&[0, 1], &[allgather(delivery, 1)], 0) });
        check("multicast Allgather of three ranks", by_multicast(&[0, 0, 1], &[allgather(delivery, 1)], 0));
        check("multicast Allgather of two at once", by_multicast(&[0, 1], &[allgather(delivery, 1)], 8));
    }
}

#[test]
fn a_process_of_a_multicast_dies_in_any_state() {
    let root = broadcast(0, Delivery::Flat, 1);
    for (dying, descriptor) in [(0, root), (1, root), (0, allgather(Delivery::Flat, 1))] {
        let plan = by_multicast(&[0, 1], &[descriptor], 0);
        check("a process of a multicast dies", Plan { dying: Some(dying), loses: true, ..plan });
    }
}
