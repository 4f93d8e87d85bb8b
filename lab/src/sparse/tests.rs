//! Counts are exact, times no shorter than the bounds, and shapes as published.

use super::*;

const MIB: u64 = 1 << 20;

fn params(workers: u32, bytes: u64, pattern: PatternName, sparsity: f64) -> SparseParams {
    let base = SparseParams::new(Host::Haswell, workers, Layout::Cpu, bytes);
    SparseParams { threads: 2, coroutines: 4, pattern, sparsity, ..base }
}

fn run(params: &SparseParams) -> SparseReport {
    simulate(params).unwrap()
}

const ALL: [PatternName; 4] =
    [PatternName::Identical, PatternName::Independent, PatternName::Overlapping, PatternName::Powerlaw];

#[test]
fn iterations_and_messages_are_those_of_the_union() {
    for pattern in ALL {
        for sparsity in [0.0, 0.5, 0.97, 1.0] {
            // A last block that is short, and blocks that are no multiple of the shards.
            for bytes in [0, 1, 777_777] {
                for workers in [1, 2, 5] {
                    let params = params(workers, bytes, pattern, sparsity);
                    let parameters = flexcast_proto::sparse::Parameters::new(workers, 1024, 16, 4).unwrap();
                    let shards = flexcast_proto::sparse::Shards::new(bytes, parameters, workers, 2, 4).unwrap();
                    let drawn = Pattern::new(pattern, workers, shards.blocks(), sparsity, 1);
                    let (mut iterations, mut union) = (0, 0);
                    for shard in shards.iter() {
                        let first = shard.range().start.div_ceil(1024);
                        let blocks = drawn.union(first..first + u64::from(shard.blocks()));
                        iterations += crate::model::sparse::iterations(blocks, 16);
                        union += blocks;
                    }
                    let SparseReport { counts, .. } = run(&params);
                    let messages = (iterations + u64::from(shards.count())) * u64::from(workers);
                    let found = (counts.iterations, counts.messages, counts.answers, counts.union_blocks);
                    assert_eq!(found, (iterations, messages, messages, union), "{params:?}");
                    assert_eq!(counts.sums_sent, union * u64::from(workers));
                    assert_eq!(
                        counts.blocks_sent,
                        (0..workers).map(|w| drawn.count(w, 0..shards.blocks())).sum::<u64>()
                    );
                    assert_eq!(counts.scanned_bytes, bytes * u64::from(workers), "arrays are read once");
                }
            }
        }
    }
}

#[test]
fn bounds_are_never_undercut() {
    for pattern in ALL {
        for sparsity in [0.0, 0.9, 1.0] {
            for layout in [Layout::Cpu, Layout::Mixed, Layout::OneCpu, Layout::OneArm, Layout::Colocated] {
                for bytes in [1024, 4 * MIB] {
                    let base = SparseParams::new(Host::V100, 3, layout, bytes);
                    let report = run(&SparseParams { pattern, sparsity, ..base });
                    assert!(report.time_ps >= report.bounds.least_ps(), "{layout} {pattern} {sparsity}: {report:?}");
                }
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let params = params(4, MIB, PatternName::Independent, 0.8);
    assert_eq!(run(&params), run(&params));
    assert_ne!(run(&params), run(&SparseParams { seed: 2, ..params.clone() }));
}

#[test]
fn a_quarter_of_the_blocks_is_a_quarter_of_the_wire() {
    let wire = |pattern, sparsity| run(&params(4, 8 * MIB, pattern, sparsity)).counts.wire_bytes as f64;
    let dense = wire(PatternName::Identical, 0.0);
    let quarter = dense / wire(PatternName::Identical, 0.75);
    assert!((3.8..4.2).contains(&quarter), "{quarter}");
    // The union of independent ones is 1 - 0.75^4 = 0.684 of the blocks in answers, and a quarter in messages.
    let independent = dense / wire(PatternName::Independent, 0.75);
    assert!((2.0..2.25).contains(&independent), "{independent}");
}

#[test]
fn memory_of_a_card_limits_it_once_spots_leave_the_cache() {
    let one = |coroutines, dca| {
        let base = SparseParams::new(Host::Haswell, 6, Layout::OneArm, 4 * MIB);
        run(&SparseParams { coroutines, dca, ..base })
    };
    let (fits, leaves, without) = (one(4, true), one(32, true), one(4, false));
    assert_eq!(fits.counts.aggregator_memory_bytes, 0);
    assert!(leaves.counts.aggregator_memory_bytes > 0);
    assert!(without.time_ps as f64 > 1.5 * fits.time_ps as f64, "{without:?} {fits:?}");
}

#[test]
fn rings_take_no_less_than_their_links() {
    let machine = Host::Haswell.machine();
    for workers in [2, 4, 6] {
        let bytes = 8 * MIB;
        let least = 2.0 * f64::from(workers - 1) / f64::from(workers) * bytes as f64 / 12.5e9 * 1e12;
        let [pipelined, stepwise] = [RingKind::Pipelined, RingKind::Stepwise]
            .map(|kind| ring(kind, &machine, ArraysIn::Host, (workers, bytes)));
        assert!(
            pipelined.time_ps as f64 >= least && (pipelined.time_ps as f64) < 1.2 * least,
            "{workers}: {pipelined:?}"
        );
        assert!(stepwise.time_ps > pipelined.time_ps);
    }
    assert_eq!(ring(RingKind::Pipelined, &machine, ArraysIn::Host, (1, MIB)).time_ps, 0);
}

#[test]
fn fused_blocks_send_the_same_blocks_in_more_messages() {
    for pattern in ALL {
        for sparsity in [0.0, 0.5, 0.97, 1.0] {
            for (workers, bytes) in [(1, 777_777), (2, MIB), (5, MIB), (3, 0), (4, 1)] {
                let params = params(workers, bytes, pattern, sparsity);
                let (ours, fused) = (run(&params), fusion(&params).unwrap());
                assert_eq!(fused.counts.blocks_sent, ours.counts.blocks_sent, "{params:?}");
                assert_eq!(fused.counts.sums_sent, ours.counts.sums_sent, "{params:?}");
                assert_eq!(fused.counts.union_blocks, ours.counts.union_blocks);
                assert!(fused.counts.iterations >= ours.counts.iterations, "columns end at different times");
                assert!(fused.time_ps >= fused.bounds.least_ps());
            }
        }
    }
    // Of dense ones, as many.
    let dense = params(4, MIB, PatternName::Identical, 0.0);
    assert_eq!(fusion(&dense).unwrap().counts.iterations, run(&dense).counts.iterations);
}

#[test]
fn arrays_of_devices_cost_a_scan_and_a_copy_more_and_no_core() {
    for (host, memory) in [(Host::V100, 900e9), (Host::A100, 1555e9)] {
        let params = |arrays, sparsity| SparseParams {
            arrays,
            sparsity,
            threads: 2,
            ..SparseParams::new(host, 2, Layout::Cpu, 8 * MIB)
        };
        for sparsity in [0.0, 0.75] {
            let of = |arrays| run(&params(arrays, sparsity));
            let (host, device, staged) = (of(ArraysIn::Host), of(ArraysIn::Device), of(ArraysIn::Staged));
            let counts = |report: &SparseReport| SparseCounts { events: 0, ..report.counts };
            assert_eq!(counts(&host), counts(&device));
            assert_eq!(counts(&host), counts(&staged));
            // Two kernels: the array is read and what is not zero written; sums are read and written.
            let used = device.counts.union_blocks as f64 * 1024.0;
            let kernels_ps = 2.0 * 10e6 + (8.0 * MIB as f64 + 3.0 * used) / (memory * 836.0 / 1024.0) * 1e12;
            let network_ps = device.bounds.network_ps as f64;
            let rest_ps = device.time_ps as f64 - kernels_ps;
            assert!(rest_ps > network_ps && rest_ps < 1.2 * network_ps + 20e6, "{sparsity}: {rest_ps} {network_ps}");
            // All of the array passes PCIe twice, before and after.
            let copies_ps = 2.0 * (10e6 + 8.0 * MIB as f64 / 14.4e9 * 1e12);
            let more_ps = staged.time_ps as f64 - host.time_ps as f64;
            assert!((more_ps / copies_ps - 1.0).abs() < 0.02, "{more_ps} {copies_ps}");
        }
        let least_ps = 2.0 * 3.0 / 4.0 * 8.0 * MIB as f64 / 12.5e9 * 1e12;
        let of = |arrays| ring(RingKind::Pipelined, &host.machine(), arrays, (4, 8 * MIB)).time_ps as f64;
        let (direct, staged) = (of(ArraysIn::Device), of(ArraysIn::Staged));
        assert!(direct >= least_ps && direct < 1.2 * least_ps, "{direct} {least_ps}");
        // Buffers take four passes over host memory, for which 34.9 GB/s are too few.
        let buffers_ps = 4.0 * 1.5 * 8.0 * MIB as f64 / (42.7e9 * 836.0 / 1024.0) * 1e12;
        assert!(if host == Host::V100 { staged >= buffers_ps } else { staged < 1.2 * least_ps }, "{staged}");
    }
    let none = SparseParams { arrays: ArraysIn::Device, ..params(2, MIB, PatternName::Identical, 0.0) };
    assert!(simulate(&none).unwrap_err().to_string().contains("give v100 or a100"));
}

#[test]
fn parameters_that_cannot_be_are_named() {
    let wrong = |change: &dyn Fn(&mut SparseParams)| {
        let mut params = params(2, MIB, PatternName::Identical, 0.0);
        change(&mut params);
        simulate(&params).unwrap_err().to_string()
    };
    assert!(wrong(&|params| params.sparsity = 1.5).contains("1.5"));
    assert!(wrong(&|params| params.sparsity = f64::NAN).contains("NaN"));
    assert!(wrong(&|params| params.threads = 0).contains("0 threads"));
    assert!(wrong(&|params| params.workers = 0).contains("0 workers"));
    assert!(wrong(&|params| params.aggregators.clear()).contains("0 aggregators"));
    assert!(wrong(&|params| params.bytes = u64::MAX).contains("16 GiB"));
    assert!(wrong(&|params| (params.threads, params.coroutines) = (4096, 4096)).contains("machines"));
}
