//! The flow-level simulation, compared with the emulated cards: the same collective, frame by frame and by rates.

use emu_config::Machine;
use flexcast_lab::evaluate::point::{CABLE_GBIT_PER_S, wire_bytes};
use flexcast_lab::flow::{Bench, By, FlowParams, Kind, NetworkParams, Preset, ProcessorParams, Skew, bench};
use flexcast_lab::reference::Transport;
use flexcast_lab::service::{self, CopiesName, Load, ServiceOp, ServiceParams, Shape, StagedPlan};
use flexcast_proto::service::LocalCopies;

/// Bytes of a block.
const BYTES: u64 = 1 << 19;
const SHAPE: Shape = Shape { hosts: 4, ranks_per_host: 2, processes_per_host: 2 };

/// Virtual time of a collective among emulated cards, in microseconds. Their processors take none.
fn of_frames(op: ServiceOp, bytes: u64) -> f64 {
    let machine = Machine { arm_functions: true, ..Machine::default() };
    let mut config = machine.config_of(SHAPE.hosts as usize).expect("a switch");
    config.heap_bytes = 1 << 20;
    let params = ServiceParams {
        op,
        shape: SHAPE,
        load: Load { bytes, varies: false },
        turns: (1, 1),
        staged: StagedPlan::default(),
        local_copies: CopiesName::Host,
    };
    let report = service::run(config, &params, &mut |_| ()).expect("a run");
    assert!(report.digest_ok);
    report.pure_us
}

/// The same at flow level, with the rate that the links have after headers, hosts' links that are no bound and
/// processors that take no time.
fn of_rates(kind: Kind, bytes: u64) -> f64 {
    let payload = 4096.0 / wire_bytes(Transport::Uc, 4096) as f64;
    let none = 1_000_000_000_000;
    let network = NetworkParams {
        port_bytes_per_s: (CABLE_GBIT_PER_S * 1e9 / 8.0 * payload) as u64,
        host_bytes_per_s: none,
        copy_bytes_per_s: none,
        copies_bytes_per_s: none,
        ..Preset::Graham.params().network
    };
    let processors = ProcessorParams {
        process_message_ps: 0,
        process_post_ps: 0,
        rank_message_ps: 0,
        rank_post_ps: 0,
        eager_bytes: 0,
    };
    let params = FlowParams {
        network,
        processors,
        hosts: SHAPE.hosts,
        ranks_per_host: SHAPE.ranks_per_host,
        processes_per_host: SHAPE.processes_per_host,
        ..Preset::Graham.params()
    };
    let asked = Bench {
        kind,
        bytes,
        by: By::Service(LocalCopies::Host),
        turns: (1, 1),
        skew: Skew::None,
        seed: 1,
        overlap: false,
    };
    bench(params, &asked).expect("a run").latency_us
}

/// Latencies of the two differ, so blocks are long. Frame by frame a card's own transfers share its port with others,
/// and Reads of an Allgatherv from one source share its port from the begin to the end, where by rates they go one
/// after the other: an Allgatherv takes longer there.
#[test]
fn long_blocks_take_as_long_by_rates_as_frame_by_frame() {
    for (op, kind, tolerance) in
        [(ServiceOp::Alltoallv, Kind::Alltoallv, 0.15), (ServiceOp::Allgatherv, Kind::Allgatherv, 0.4)]
    {
        let (frames, rates) = (of_frames(op, BYTES), of_rates(kind, BYTES));
        eprintln!("{kind}: {frames:.1} us frame by frame, {rates:.1} us by rates (emulated)");
        assert!((rates / frames - 1.0).abs() < tolerance, "{kind}: {frames:.1} us, {rates:.1} us");
    }
}
