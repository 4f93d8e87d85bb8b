//! Sums of `f32` that DPAs add as fixed-point numbers: every bit checked against the format's own sums, and every sum
//! against that of the contributions.

use std::time::Duration;

use emu_config::Machine;
use flexcast::p2p::sparse::{FixedPoint, FixedPointError};
use flexcast::reduce::{DataType, Operator};
use flexcast::{Aggregation, Allreduce, Cause, Communicator, DatapathKind, Error, Pending, SparseOptions};
use flexcast_tests::assert_mentions;
use flexcast_tests::card_ranks::{CardRanks, empty, filled};
use flexcast_tests::sparse_world::draws;
use zerocopy::IntoBytes as _;

use super::{OPTIONS, cards, config, gets, post, reduction, world};

/// Greatest magnitude.
const BOUND: f32 = 3.0;

/// Arrays of which a block is zero with this probability, in percent; the others have zeros of either sign and numbers
/// of all sizes up to the bound, or, one in four, only what becomes a zero.
fn arrays(ranks: u32, elements: usize, zeros: u64, seed: u64) -> Vec<Vec<f32>> {
    let mut draw = draws(seed);
    let number = |of: &mut dyn FnMut() -> u64| match of() % 8 {
        0 => 0.0,
        1 => -0.0,
        2 => 1e-12,
        3 => BOUND,
        4 => -BOUND,
        _ => ((of() % 2_000_001) as f32 / 1_000_000.0 - 1.0) * BOUND,
    };
    let mut array = |_| {
        let mut array = vec![0.0f32; elements];
        for block in array.chunks_mut(64) {
            if draw() % 100 < zeros {
                continue;
            }
            match draw() % 4 {
                0 => block.iter_mut().for_each(|one| *one = if draw().is_multiple_of(2) { -0.0 } else { -1e-20 }),
                _ => block.iter_mut().for_each(|one| *one = number(&mut draw)),
            }
        }
        array
    };
    (0..ranks).map(&mut array).collect()
}

/// The sums that all ranks get, to the bit.
fn sums(format: FixedPoint, arrays: &[Vec<f32>]) -> Vec<f32> {
    let len = arrays[0].len();
    let mut sums = vec![0u64; len.div_ceil(2)];
    for array in arrays {
        let mut words = vec![0; sums.len()];
        format.encode(array, &mut words).expect("within the bound");
        sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(word));
    }
    let mut numbers = vec![0.0; len];
    format.decode(&sums, &mut numbers).expect("as many words");
    numbers
}

/// An operation of which every bit is checked on every rank.
fn adds(world: &CardRanks, elements: usize, zeros: u64, in_place: bool) {
    let (ranks, sum) = (world.ranks(), reduction(Operator::Sum, DataType::F32));
    let arrays = arrays(ranks, elements, zeros, 1 + elements as u64);
    let format = FixedPoint::new(ranks, BOUND).expect("a format");
    let expected = sums(format, &arrays);
    for (at, got) in expected.iter().enumerate() {
        let exact: f64 = arrays.iter().map(|array| f64::from(array[at])).sum();
        let rounding = f64::from(got.abs()) * f64::from(f32::EPSILON) / 2.0;
        assert!((f64::from(*got) - exact).abs() <= format.error() + rounding, "{got} for {exact}");
    }
    let ends = world.call(|one, rank| {
        let array = arrays[rank as usize].as_bytes();
        if in_place {
            return Ok(post(one, sum, OPTIONS, array));
        }
        one.post(Allreduce::new(sum).sparse(OPTIONS).buffers(filled(one, array), empty(one, array.len())))
    });
    for (rank, done) in ends.iter().enumerate() {
        let got = done.receive.to_vec().expect("read");
        assert!(got == expected.as_bytes(), "rank {rank} of {ranks}: {elements} numbers, {zeros} % zeros, {in_place}");
        let decision = done.report.decision;
        assert_eq!((decision.aggregation(), decision.fixed_point()), (Some(Aggregation::Dpa), Some(format)));
    }
}

#[test]
fn floats_are_added_as_fixed_point_numbers_if_they_have_a_bound() {
    let sum = |data_type| reduction(Operator::Sum, data_type);
    let odd = SparseOptions { block_bytes: 320, ..OPTIONS };
    for (datapath, ranks) in [(DatapathKind::Dpa, 3), (DatapathKind::Verbs, 1), (DatapathKind::Verbs, 2)] {
        let config = config().sparse_fixed_point(Some(BOUND)).reproducible(true);
        let world = world(datapath, &Machine::default(), ranks, &config);
        // None, one, an odd number, whole blocks of 64, one more and one less, and shards of several blocks.
        for (elements, zeros, in_place) in [
            (0, 0, true),
            (1, 0, false),
            (63, 0, true),
            (64, 0, false),
            (65, 0, true),
            (1009, 60, true),
            (1009, 100, false),
            (9011, 50, false),
            (9011, 80, true),
        ] {
            adds(&world, elements, zeros, in_place);
        }
        // All else is as it was: integers the DPA's, and other numbers, operators and blocks those of processors.
        for (reduction, options, by) in [
            (sum(DataType::I64), OPTIONS, Aggregation::Dpa),
            (sum(DataType::F64), OPTIONS, Aggregation::Host),
            (reduction(Operator::Max, DataType::F32), OPTIONS, Aggregation::Host),
            (sum(DataType::F32), odd, Aggregation::Host),
            (sum(DataType::I32), OPTIONS, Aggregation::Dpa),
        ] {
            assert_eq!(
                gets(&world, 509 * reduction.element_bytes() as usize, 30, reduction, options),
                by,
                "{reduction}"
            );
        }
        adds(&world, 2003, 30, false);
    }
}

/// Frames that are lost come again in another order; sums have the same bits.
#[test]
fn the_bits_of_fixed_point_sums_do_not_depend_on_the_order() {
    for seed in [2, 4, 7] {
        let machine = Machine { loss_ppm: Some(50_000), seed: Some(seed), ..Machine::default() };
        let config = config().retry_exponent(4).barrier_timeout(Duration::from_millis(500));
        adds(&world(DatapathKind::Verbs, &machine, 3, &config.sparse_fixed_point(Some(BOUND))), 3001, 20, seed == 4);
    }
}

#[test]
fn a_number_beyond_the_bound_fails_the_operation_on_all_ranks() {
    let sum = reduction(Operator::Sum, DataType::F32);
    for (datapath, value, shown) in [
        (DatapathKind::Verbs, 3.5f32, "contribution 3.5 at"),
        (DatapathKind::Dpa, f32::NEG_INFINITY, "contribution -inf at"),
        (DatapathKind::Verbs, f32::NAN, "contribution NaN at"),
    ] {
        let world = world(datapath, &Machine::default(), 3, &config().sparse_fixed_point(Some(BOUND)));
        adds(&world, 1009, 60, true);
        let mut arrays = arrays(3, 3001, 50, 3);
        arrays[1][2777] = value;
        let call = |one: &Communicator, rank: u32| post(one, sum, OPTIONS, arrays[rank as usize].as_bytes());
        for (rank, end) in world.end(call).into_iter().enumerate() {
            let failed = end.expect_err("no sum");
            let failure = failed.report.failure.expect("reported");
            assert_eq!((failure.failed_rank, failure.cause), (1, Cause::Contribution), "{failed}");
            assert!(failed.receive.is_some(), "the buffer comes back");
            if rank == 1 {
                let place = |source: &FixedPointError| matches!(source, FixedPointError::Beyond { place: 2777, .. });
                assert!(matches!(&failed.error, Error::Contribution { rank: 1, source, .. } if place(source)));
                assert_mentions(&failed.error, &["rank 1", shown, "place 2777", "at most 3", "raise the bound"]);
            } else {
                assert_mentions(&failed.error, &["rank 1 contributed a number", "fixed-point sums", "raise the bound"]);
            }
        }
    }
}

#[test]
fn bounds_that_cannot_be_are_refused() {
    let (_provider, cards) = cards(DatapathKind::Verbs, &Machine::default(), 2);
    for (bound, shown) in [(0.0, "0"), (-1.0, "-1"), (f32::INFINITY, "inf"), (f32::NAN, "NaN"), (1e-40, "0.000")] {
        let error = Pending::new(&cards[0], 0, 2, config().sparse_fixed_point(Some(bound))).expect_err("no bound");
        assert_mentions(&error, &["sparse.fixed_point: ", shown, "must be a finite number from 1.1754944e-38 on"]);
    }
    let on_host = config().sparse_aggregation(Aggregation::Host).sparse_fixed_point(Some(1.5));
    let error = Pending::new(&cards[0], 0, 2, on_host).expect_err("nobody adds such");
    assert_mentions(&error, &["sparse.fixed_point: 1.5 must be left out", "sparse.aggregation be dpa"]);
    let external = config().aggregators(vec!["10.0.0.5:4890".to_owned()]).sparse_fixed_point(Some(1.5));
    let error = Pending::new(&cards[0], 0, 2, external).expect_err("they add others");
    assert_mentions(&error, &["sparse.fixed_point: 1.5 must be left out", "aggregators that are no ranks"]);
    // Alike on all ranks, or all fail.
    for (other, words) in
        [(None, ["sparse.fixed_point 0", "this rank 1.5"]), (Some(2.0), ["sparse.fixed_point 2", "this rank 1.5"])]
    {
        let pending = [Some(1.5), other].map(|bound| config().sparse_fixed_point(bound));
        let pending = (0..).zip(&cards).zip(pending);
        let mut pending: Vec<Pending> = pending
            .map(|((rank, card), config)| Pending::new(card, rank, 2, config).expect("its part is made"))
            .collect();
        let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
        assert_mentions(&pending.remove(0).connect(&infos).expect_err("they differ"), &words);
    }
}
