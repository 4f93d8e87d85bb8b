use proptest::prelude::*;

use std::time::Duration;

use super::*;
use crate::op::sparse_cost::SparseCost;

fn conditions(ranks: u32) -> Conditions {
    Conditions {
        selection: Selection::Automatic,
        ranks,
        link_gbit_per_s: 200,
        receive_threads: 4,
        chunk_bytes: 4096,
        mtu_bytes: 4096,
        staged: true,
        eager_bytes: 16 << 10,
        direct: true,
    }
}

fn shape(ranks: u32, bytes: u64) -> Shape {
    Shape {
        gathers: true,
        contiguous: true,
        largest_bytes: bytes,
        total_bytes: bytes.saturating_mul(ranks.into()),
        eager_message_bytes: bytes.saturating_mul(u64::from(ranks / 2)),
    }
}

fn chosen(ranks: u32, bytes: u64) -> Algorithm {
    conditions(ranks).decide(&shape(ranks, bytes), false).algorithm()
}

/// The times behind this are of `flexcast sim --model m2 --warm-up 3`, by every baseline.
#[test]
fn the_fastest_measured_baseline_is_chosen() {
    for (ranks, bytes) in [(2, 64), (2, 1024), (2, 4096), (4, 64)] {
        assert_eq!(chosen(ranks, bytes), Algorithm::Eager, "{ranks} ranks, {bytes} bytes");
    }
    for (ranks, bytes) in
        [(2, 16384), (4, 1024), (4, 16384), (8, 64), (8, 1024), (8, 65536), (16, 64), (16, 1024), (32, 64), (32, 65536)]
    {
        assert_eq!(chosen(ranks, bytes), Algorithm::Linear, "{ranks} ranks, {bytes} bytes");
    }
    assert_eq!(chosen(64, 65536), Algorithm::Linear);
    assert_eq!(chosen(128, 64), Algorithm::Eager);
    for bytes in [256, 1024, 4096, 16384] {
        assert_eq!(chosen(128, bytes), Algorithm::Bruck, "128 ranks, {bytes} bytes");
    }
}

/// Where its own time no longer shows, multicast is taken: it loads the network less.
#[test]
fn the_longest_operations_go_by_multicast() {
    assert_eq!(chosen(188, 1 << 20), Algorithm::Multicast);
    assert_eq!(chosen(1024, 65536), Algorithm::Multicast);
    assert_eq!(chosen(8, 16 << 20), Algorithm::Multicast);
}

#[test]
fn what_connections_cannot_do_goes_by_multicast_or_eagerly() {
    let on = conditions(8);
    let whole = shape(8, 65536);
    for shape in [Shape { contiguous: false, ..whole }, Shape { contiguous: false, gathers: false, ..whole }] {
        let decision = on.decide(&shape, false);
        assert_eq!(decision.algorithm(), Algorithm::Multicast);
        assert_eq!(decision.predicted(Algorithm::Linear), None);
        let short = Shape { total_bytes: 100, eager_message_bytes: 100, largest_bytes: 100, ..shape };
        assert_eq!(on.decide(&short, false).algorithm(), Algorithm::Eager);
        let named = Conditions { selection: Selection::Bruck, ..on };
        assert_eq!(named.decide(&shape, false).algorithm(), Algorithm::Multicast);
    }
    let sent = Shape { gathers: false, ..whole };
    for selection in [Selection::Multicast, Selection::Ring] {
        let named = Conditions { selection, ..on };
        assert_eq!(named.decide(&sent, false).algorithm(), Algorithm::Multicast, "trees are not named");
    }
    assert_eq!(on.decide(&sent, false).algorithm(), Algorithm::Binomial);
    assert_eq!(on.decide(&sent, true).algorithm(), Algorithm::Multicast, "connections are avoided");
    assert_eq!(on.decide(&whole, true).algorithm(), Algorithm::Multicast, "connections are avoided");
    let named = Conditions { selection: Selection::Bruck, ..on };
    assert_eq!(named.decide(&whole, true).algorithm(), Algorithm::Bruck, "as the user says");
    assert_eq!(Conditions { direct: false, ..on }.decide(&whole, false).algorithm(), Algorithm::Multicast);
    assert_eq!(
        Conditions { selection: Selection::Multicast, ..on }.decide(&whole, false).algorithm(),
        Algorithm::Multicast
    );
    assert_eq!(Conditions { selection: Selection::Bruck, ..on }.decide(&whole, false).algorithm(), Algorithm::Bruck);
    assert_eq!(chosen(1, 1 << 20), Algorithm::Multicast, "a rank alone");
    assert_eq!(chosen(1, 10), Algorithm::Eager, "a rank alone");
}

#[test]
fn connections_are_few_beyond_64_ranks() {
    let names = |ranks| Selection::Automatic.connected(ranks).collect::<Vec<_>>();
    assert!(names(64).contains(&Algorithm::Linear) && names(64).contains(&Algorithm::RecursiveDoubling));
    assert!(!names(63).contains(&Algorithm::RecursiveDoubling));
    assert_eq!(names(65), [Algorithm::Bruck]);
    assert_eq!(names(1), []);
    assert_eq!(Selection::Linear.connected(100).collect::<Vec<_>>(), [Algorithm::Linear], "as the user says");
    assert_eq!(Selection::Multicast.connected(8).count(), 0);
}

fn any_conditions() -> impl Strategy<Value = Conditions> {
    let rates = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>());
    (0..6usize, 1..1025u32, rates, any::<bool>(), 0..65537u64, any::<bool>()).prop_map(
        |(
            selection,
            ranks,
            (link_gbit_per_s, receive_threads, chunk_bytes, mtu_bytes),
            staged,
            eager_bytes,
            direct,
        )| {
            let selection = Selection::ALL[selection];
            Conditions {
                selection,
                ranks,
                link_gbit_per_s,
                receive_threads,
                chunk_bytes,
                mtu_bytes,
                staged,
                eager_bytes,
                direct,
            }
        },
    )
}

proptest! {
    /// Whatever rates cards report and however long blocks are: the choice is one that has a prediction, and has
    /// connections.
    #[test]
    fn every_choice_can_be_carried_out(
        on in any_conditions(), bytes in any::<u64>(), gathers: bool, contiguous: bool,
    ) {
        let shape = Shape { gathers, contiguous, ..shape(on.ranks, bytes) };
        let decision = on.decide(&shape, false);
        let algorithm = decision.algorithm();
        prop_assert!(decision.predicted(algorithm).is_some());
        prop_assert!(!algorithm.is_direct() || (on.direct && contiguous));
        let connected = |algorithm| on.selection.connected(on.ranks).any(|connected| connected == algorithm);
        let is_tree = |algorithm| on.selection.broadcasts(on.ranks).any(|tree| tree == algorithm);
        let carries = if gathers { connected(algorithm) } else { is_tree(algorithm) };
        prop_assert!(!algorithm.is_direct() || carries);
        prop_assert_eq!(decision, on.decide(&shape, false));
    }

    /// More bytes and slower links never make an operation faster.
    #[test]
    fn predictions_rise_with_bytes_and_fall_with_the_rate(
        ranks in 2..1025u32, bytes in 0..(1u64 << 40), more in 0..(1u64 << 40), gbit in 1..1000u64, faster in 0..1000u64,
    ) {
        let on = Conditions { link_gbit_per_s: gbit, ..conditions(ranks) };
        let fast = Conditions { link_gbit_per_s: gbit + faster, ..on };
        for algorithm in Algorithm::ALL {
            let of = |on: &Conditions, bytes| cost::predict_ps(algorithm, on, &shape(ranks, bytes));
            prop_assert!(of(&on, bytes) <= of(&on, bytes + more), "{}", algorithm);
            prop_assert!(of(&fast, bytes) <= of(&on, bytes), "{}", algorithm);
        }
    }

    /// What is not sent eagerly is not sent eagerly when it is longer.
    #[test]
    fn eager_is_for_the_short(ranks in 2..1025u32, bytes in 0..20_000u64, more in 0..20_000u64) {
        if chosen(ranks, bytes) != Algorithm::Eager {
            prop_assert!(chosen(ranks, bytes + more) != Algorithm::Eager);
        }
    }
}

/// Arrays are summed up whole where that is expected to be faster and nobody can see a difference.
#[test]
fn a_sparse_allreduce_goes_as_an_allreduce_does_where_that_is_faster() {
    use flexcast_reduce::{DataType, Operator, Reduction};
    let reduction = |operator| Reduction::of(operator, DataType::I32).unwrap();
    let call = |operator, bytes| Collective::SparseAllreduce {
        bytes,
        reduction: reduction(operator),
        options: crate::SparseOptions::default(),
    };
    let mut densities = Densities::default();
    let sum = Operator::Sum;
    let cost = SparseCost { ranks: 8, bytes: 1 << 20, dense_us: 100, full_us: 230, tenth_us: 50 };
    let short = SparseCost { bytes: 64 << 10, dense_us: 40, tenth_us: 41, ..cost };
    let table = Tuning::default().with_sparse_costs(vec![cost, short]).unwrap().before(Tuning::ethernet());
    let decide = |table: &Tuning, densities: &Densities, operator, bytes, reproducible| {
        conditions(4).decide_collective(table, &call(operator, bytes), reproducible, densities)
    };
    let of = |densities: &Densities, operator, bytes, reproducible| {
        decide(&table, densities, operator, bytes, reproducible).algorithm()
    };
    let dense = |bytes| {
        let collective = Collective::Allreduce { bytes, reduction: reduction(sum) };
        conditions(4).decide_collective(&table, &collective, false, &Densities::default()).algorithm()
    };
    assert_eq!(of(&densities, sum, 64 << 10, false), dense(64 << 10), "whatever is in it");
    assert_eq!(of(&densities, sum, 64, false), dense(64));
    assert_eq!(of(&densities, sum, 1 << 20, false), Algorithm::Sparse, "nothing has been scanned");
    densities.note(1 << 20, reduction(sum), Some((1, 5)));
    let decision = decide(&table, &densities, sum, 1 << 20, false);
    assert_eq!((decision.algorithm(), decision.density_ppm()), (Algorithm::Sparse, Some(200_000)));
    assert_eq!(decision.predicted(Algorithm::Sparse), Some(Duration::from_micros(70)));
    densities.note(1 << 20, reduction(sum), Some((7, 20)));
    let decision = decide(&table, &densities, sum, 1 << 20, false);
    assert_eq!((decision.algorithm(), decision.density_ppm()), (dense(1 << 20), Some(350_000)));
    assert_eq!(decision.predicted(decision.algorithm()), Some(Duration::from_micros(100)));
    assert_eq!(decision.predicted(Algorithm::Sparse), Some(Duration::from_micros(100)));
    // Of another operator nobody knows; a block of zeros is one that the rank does not have; and the order of ranks is
    // kept whatever is faster.
    assert_eq!(of(&densities, Operator::BitOr, 1 << 20, false), Algorithm::Sparse);
    assert_eq!(of(&densities, Operator::Max, 64, false), Algorithm::Sparse);
    assert_eq!(of(&densities, sum, 64, true), Algorithm::Sparse);
    // Whoever says from which length on counts before what was measured.
    let always = table.clone().with_sparse_from_bytes(0);
    assert_eq!(decide(&always, &densities, sum, 1 << 20, false).algorithm(), Algorithm::Sparse);
    assert_eq!(decide(&always, &densities, sum, 64, false).algorithm(), Algorithm::Sparse);
    assert_eq!(decide(Tuning::between_pairs(), &densities, sum, 64, false).algorithm(), Algorithm::Sparse);
    // Without a file, over Ethernet: short arrays whole, long ones in any case sparse.
    let mut full = Densities::default();
    full.note(32 << 20, reduction(sum), Some((1, 1)));
    let ethernet = Tuning::ethernet();
    assert_eq!(decide(&ethernet, &full, sum, 32 << 20, false).algorithm(), Algorithm::Sparse);
    assert_ne!(decide(&ethernet, &full, sum, 64 << 10, false).algorithm(), Algorithm::Sparse);
}
