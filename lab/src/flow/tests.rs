//! Tests of the flow-level simulation: closed forms, both ways, scripts.

use flexcast_proto::service::{Delivery, LocalCopies};

use super::*;

fn params(hosts: u32, ranks_per_host: u32, processes_per_host: u32) -> FlowParams {
    FlowParams { hosts, ranks_per_host, processes_per_host, ..Preset::Graham.params() }
}

fn of(kind: Kind, bytes: u64, by: By) -> Bench {
    Bench { kind, bytes, by, turns: (0, 1), skew: Skew::None, seed: 1, overlap: false }
}

const SERVICE: By = By::Service(LocalCopies::Host);
const BY_CARD: By = By::Service(LocalCopies::Card);
const BLOCKING: By = By::Hosts { window: 1 };

#[test]
fn crossings_are_those_of_the_closed_forms_for_any_placement() {
    for placement in [Placement::Contiguous, Placement::Strided] {
        for (hosts, ranks_per_host, processes_per_host) in [(1, 4, 2), (2, 3, 2), (4, 4, 1), (3, 5, 4)] {
            let params = FlowParams { placement, ..params(hosts, ranks_per_host, processes_per_host) };
            let ranks = u64::from(params.ranks());
            let crossings = ranks * u64::from(hosts - 1);
            // Of each block on each host: a copy for each of the other ranks.
            let copies = ranks * u64::from(hosts * (ranks_per_host - 1));
            for (by, local_reads) in [(SERVICE, 0), (BY_CARD, copies)] {
                let gather = bench(params, &of(Kind::Allgatherv, 1000, by)).unwrap();
                assert_eq!(
                    (gather.counts.crossings, gather.counts.port_bytes, gather.counts.reads),
                    (crossings, 1000 * crossings, crossings + ranks + local_reads),
                    "each block crosses to each other host once: {placement}, {params:?}"
                );
                assert_eq!(gather.counts.rank_messages, copies - local_reads);
                assert!(gather.counts.most_active_reads <= 4, "at most four Reads under way, copies included");
            }
            let exchange = bench(params, &of(Kind::Alltoallv, 1000, SERVICE)).unwrap();
            assert_eq!(exchange.counts.crossings, ranks * (ranks - u64::from(ranks_per_host)));
            assert_eq!(exchange.counts.reads, ranks * ranks);
            assert!(exchange.counts.most_active_reads <= 4, "at most four Reads under way");
            assert_eq!(exchange.counts.arm_bytes, 0, "no payload in memory of the Arm cores");
        }
    }
}

#[test]
fn hosts_move_as_many_bytes_as_their_algorithms() {
    let machine = params(4, 2, 1);
    for bytes in [100, 100_000] {
        let exchange = bench(machine, &of(Kind::Alltoallv, bytes, BLOCKING)).unwrap();
        assert_eq!(exchange.counts.port_bytes, 8 * 6 * bytes);
        let ring = bench(machine, &of(Kind::Allgatherv, bytes, BLOCKING)).unwrap();
        // Contiguous: one rank of each host sends to another host, in each of 7 steps. Strided: all do.
        assert_eq!(ring.counts.port_bytes, 4 * 7 * bytes);
        let strided = FlowParams { placement: Placement::Strided, ..machine };
        let ring = bench(strided, &of(Kind::Allgatherv, bytes, BLOCKING)).unwrap();
        assert_eq!(ring.counts.port_bytes, 8 * 7 * bytes);
    }
}

#[test]
fn service_processes_go_on_while_hosts_compute_and_hosts_do_not() {
    let machine = params(4, 4, 2);
    let overlap = |by| bench(machine, &Bench { overlap: true, ..of(Kind::Alltoallv, 64 << 10, by) }).unwrap();
    assert!(overlap(SERVICE).overlap_percent.unwrap() > 99.0, "the exchange goes on while hosts compute");
    assert!(overlap(By::Hosts { window: 15 }).overlap_percent.unwrap() < 50.0);
    let gather = |by| bench(machine, &Bench { overlap: true, ..of(Kind::Allgatherv, 64 << 10, by) }).unwrap();
    assert!(gather(BY_CARD).overlap_percent.unwrap() > 99.0);
    assert!(gather(SERVICE).overlap_percent.unwrap() < 50.0);
}

#[test]
fn late_ranks_are_counted_and_others_of_their_host_serve_for_them() {
    let machine = params(4, 8, 2);
    let report = bench(
        machine,
        &Bench {
            skew: Skew::Stragglers { one_of: 8, us: 500.0 },
            turns: (0, 4),
            ..of(Kind::Allgatherv, 4096, SERVICE)
        },
    )
    .unwrap();
    assert!(report.late_percent > 1.0 && report.rescued_percent > 90.0, "{report}");
    let none = bench(machine, &of(Kind::Allgatherv, 4096, SERVICE)).unwrap();
    assert!(none.counts.crossings > 0 && none.late_percent < report.late_percent);
}

#[test]
fn the_same_run_gives_the_same_times() {
    let run = || {
        let skew = Skew::Exponential(20.0);
        let report = bench(params(3, 3, 2), &Bench { skew, turns: (1, 2), ..of(Kind::Alltoallv, 777, SERVICE) });
        FlowReport { wall_s: 0.0, ..report.unwrap() }
    };
    assert_eq!(run(), run());
}

#[test]
fn scripts_wait_for_any_and_calls_of_groups_go_side_by_side() {
    let machine = params(2, 2, 1);
    let groups = [Group { ranks: vec![0, 1, 2, 3] }, Group { ranks: vec![0, 2] }, Group { ranks: vec![3, 1] }];
    let exchange = |group, bytes| Step::Post(Operation { group, kind: Kind::Alltoallv, bytes, by: SERVICE });
    let script = |rank: u32| {
        vec![
            exchange(0, 1 << 20),
            exchange(1 + rank % 2, 16),
            Step::WaitAny,
            Step::Mark(0),
            Step::WaitAny,
            Step::Mark(1),
            Step::WaitAny,
            Step::Mark(2),
        ]
    };
    let mut flow = Flow::new(machine, &groups, (0..4).map(script).collect()).unwrap();
    flow.run().unwrap();
    for rank in 0..4 {
        let marks: Vec<u64> = flow.marks(rank).iter().map(|(_, at_ps)| *at_ps).collect();
        // The short one is over first, and nothing is left to wait for after the long one.
        assert!(marks[0] < marks[1] && marks[1] == marks[2], "{marks:?}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let machine = params(2, 2, 1);
    let zero = FlowParams { active_reads: 0, ..machine };
    assert!(matches!(bench(zero, &of(Kind::Alltoallv, 1, SERVICE)), Err(FlowError::Parameter { .. })));
    let many = FlowParams { hosts: 1000, ..machine };
    assert!(matches!(bench(many, &of(Kind::Alltoallv, 1, SERVICE)), Err(FlowError::Parameter { value: 2000, .. })));
    let groups = [Group { ranks: vec![0, 1, 2, 3] }];
    let post = |bytes| Step::Post(Operation { group: 0, kind: Kind::Allgatherv, bytes, by: BLOCKING });
    let scripts = (0..4).map(|rank| vec![post(rank), Step::WaitAll]).collect();
    let error = Flow::new(machine, &groups, scripts).unwrap().run().unwrap_err();
    assert!(matches!(error, FlowError::Disagree { group: 0, collective: 0, rank: 1 }), "{error}");
    let scripts = (0..4).map(|rank| if rank == 2 { vec![] } else { vec![post(9), Step::WaitAll] }).collect();
    let error = Flow::new(machine, &groups, scripts).unwrap().run().unwrap_err();
    assert!(matches!(error, FlowError::Stuck { steps: 2, .. }), "{error}");
    let scripts =
        (0..4).map(|_| vec![Step::Post(Operation { group: 3, kind: Kind::Alltoallv, bytes: 1, by: BLOCKING })]);
    assert!(Flow::new(machine, &groups, scripts.collect()).unwrap().run().is_err());
}

#[test]
fn staged_collectives_read_and_write_as_often_as_the_closed_forms_say() {
    for (hosts, ranks_per_host, processes_per_host) in [(1, 3, 1), (3, 4, 1), (4, 3, 2)] {
        let machine = params(hosts, ranks_per_host, processes_per_host);
        let (ranks, processes) = (u64::from(machine.ranks()), u64::from(hosts * processes_per_host));
        let run = |kind, delivery| bench(machine, &of(kind, 3000, By::Staged(delivery))).unwrap().counts;
        let flat = run(Kind::Allgather, Delivery::Flat);
        assert_eq!(
            (flat.reads, flat.writes, flat.copies),
            (ranks, processes * ranks, 0),
            "each rank is read once and written to by each process"
        );
        let hierarchical = run(Kind::Allgather, Delivery::Hierarchical);
        assert_eq!(
            (hierarchical.reads, hierarchical.writes),
            (ranks, processes * u64::from(hosts)),
            "each process writes once to each host"
        );
        assert_eq!(hierarchical.copies, ranks);
        let flat = run(Kind::Broadcast, Delivery::Flat);
        assert_eq!((flat.reads, flat.writes), (1, ranks - 1), "one Read of the root, a Write for each other rank");
        let hierarchical = run(Kind::Broadcast, Delivery::Hierarchical);
        assert_eq!(
            (hierarchical.writes, hierarchical.copies),
            (hosts.into(), ranks),
            "a Write for each host, and a copy by each rank"
        );
        let direct = run(Kind::Allgather, Delivery::Direct);
        assert_eq!(
            (direct.reads, direct.writes, direct.arm_bytes),
            (ranks * ranks, 0, 0),
            "for each rank a Read from each"
        );
        let direct = run(Kind::Broadcast, Delivery::Direct);
        assert_eq!(
            (direct.reads, direct.writes, direct.arm_bytes),
            (ranks - 1, 0, 0),
            "for each rank a Read from the root"
        );
    }
}

#[test]
fn a_multicast_leaves_each_card_once() {
    let bytes = 3000;
    for (hosts, ranks_per_host, processes_per_host) in [(3, 4, 1), (4, 3, 3), (8, 1, 1)] {
        let machine =
            FlowParams { multicast_ahead_bytes: Some(1 << 18), ..params(hosts, ranks_per_host, processes_per_host) };
        let (ranks, processes) = (u64::from(machine.ranks()), u64::from(hosts * processes_per_host));
        let run = |kind, delivery| bench(machine, &of(kind, bytes, By::Staged(delivery))).unwrap().counts;
        let flat = run(Kind::Allgather, Delivery::Flat);
        assert_eq!((flat.reads, flat.writes, flat.multicasts), (ranks, processes * ranks, processes));
        assert_eq!(flat.port_bytes, ranks * bytes, "each block once");
        let hierarchical = run(Kind::Allgather, Delivery::Hierarchical);
        assert_eq!(hierarchical.writes, processes * u64::from(hosts));
        assert_eq!((hierarchical.port_bytes, hierarchical.copies), (ranks * bytes, ranks));
        let flat = run(Kind::Broadcast, Delivery::Flat);
        assert_eq!((flat.reads, flat.writes, flat.multicasts, flat.port_bytes), (1, ranks - 1, 1, bytes));
    }
}

#[test]
fn staged_and_flat_goes_on_while_hosts_compute() {
    let machine = FlowParams { hosts: 8, ranks_per_host: 1, processes_per_host: 1, ..Preset::Staged.params() };
    let overlap = |kind, by| bench(machine, &Bench { overlap: true, ..of(kind, 64 << 10, by) }).unwrap();
    for kind in [Kind::Broadcast, Kind::Allgather] {
        let flat = overlap(kind, By::Staged(Delivery::Flat));
        assert!(flat.overlap_percent.unwrap() > 99.0, "{kind:?} goes on while hosts compute: {flat}");
        assert!(overlap(kind, BLOCKING).overlap_percent.unwrap() < 50.0);
    }
}
