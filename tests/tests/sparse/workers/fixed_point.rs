//! Blocks of arrays of `f32` as words of fixed-point numbers in the registered memory of a worker.

use std::ops::Range;

use emu_provider::emulated;
use flexcast::p2p::sparse::{Array as _, Arrays, Error, FixedPoint, FixedPointArray, FixedPointError};
use flexcast_tests::sparse_world::on;
use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain};
use proptest::prelude::*;
use zerocopy::IntoBytes as _;

/// Bytes from block to block, so that a write next to one is detected.
const SLOT: usize = 1024;
const GUARD: u8 = 0xa5;

/// What an array may have: zeros of either sign, what becomes a zero, and what does not.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![4 => Just(0.0f32), 1 => Just(-0.0), 1 => Just(1e-12), 1 => Just(-1e-30), 4 => -1.0f32..=1.0]
}

/// Numbers in runs, so that whole blocks have one kind.
fn numbers() -> impl Strategy<Value = Vec<f32>> {
    let run = (number(), 1usize..50).prop_map(|(number, count)| vec![number; count]);
    proptest::collection::vec(prop_oneof![run, proptest::collection::vec(number(), 1..50)], 0..8)
        .prop_map(|runs| runs.concat())
}

fn region() -> MemoryRegion {
    let provider = emulated(on(1, Vec::new())).expect("a machine");
    let pd = ProtectionDomain::new(&provider.open("mlx5_0").expect("a card")).expect("a domain");
    MemoryRegion::register(&pd, HostBuffer::zeroed(SLOT).expect("memory"), Access::LOCAL_WRITE).expect("registered")
}

fn taken(memory: &MemoryRegion, bytes: usize) -> (Vec<u64>, Vec<u8>) {
    let (mut words, mut rest) = (vec![0u64; bytes / 8], vec![0; SLOT - 8 - bytes]);
    memory.read(8, words.as_mut_bytes()).expect("in range");
    memory.read(8 + bytes, &mut rest).expect("in range");
    (words, rest)
}

/// Each block is loaded, multiplied by the number of workers as sums of equal contributions are, and stored.
fn goes_there_and_back(
    memory: &MemoryRegion,
    values: &[f32],
    format: FixedPoint,
    block_bytes: usize,
    in_place: bool,
    workers: u64,
) {
    let mut words = vec![0; values.len().div_ceil(2)];
    format.encode(values, &mut words).expect("within the bound");
    let (send, before) = (values.to_vec(), if in_place { values.to_vec() } else { vec![7.0; values.len()] });
    let mut result = before.clone();
    let mut arrays = Arrays { send: (!in_place).then(|| send.as_bytes()), receive: result.as_mut_bytes() };
    let mut array = FixedPointArray::new(&mut arrays, format);
    let all = array.bytes() as usize;
    assert_eq!(all, 8 * words.len());
    let blocks: Vec<Range<usize>> = (0..all).step_by(block_bytes).map(|at| at..all.min(at + block_bytes)).collect();
    let mut is_sent = Vec::new();
    for block in &blocks {
        memory.fill(GUARD);
        let sent = array.load(block.clone(), memory, 8).expect("loaded");
        let (found, rest) = taken(memory, block.len());
        let expected = &words[block.start / 8..block.end / 8];
        assert_eq!(sent, expected.iter().any(|word| *word != 0));
        assert_eq!(found, expected);
        assert!(rest.iter().all(|byte| *byte == GUARD), "next to the block");
        if sent {
            let sums: Vec<u64> = found.iter().map(|word| word.wrapping_mul(workers)).collect();
            memory.write(8, sums.as_bytes()).expect("in range");
            array.store(block.clone(), memory, 8).expect("stored");
        } else {
            array.clear(block.clone()).expect("cleared");
        }
        is_sent.push(sent);
    }
    for (at, (value, result)) in values.iter().zip(&result).enumerate() {
        let exact = f64::from(*value) * workers as f64;
        let rounding = f64::from(result.abs()) * f64::from(f32::EPSILON) / 2.0;
        assert!((f64::from(*result) - exact).abs() <= format.error() + rounding, "{at}: {result} for {exact}");
        // No rank keeps a number or a sign that the others do not get.
        assert!(is_sent[at * 4 / block_bytes] || result.to_bits() == 0, "{at}: {result:?}, {in_place}");
    }
}

#[test]
fn blocks_go_there_and_back_as_words() {
    let memory = region();
    proptest!(ProptestConfig::with_cases(200), |(
        values in numbers(), workers in 1u32..9, bound in 1.0f32..1e6, block in 1usize..8, in_place: bool
    )| {
        let format = FixedPoint::new(workers, bound).expect("a format");
        goes_there_and_back(&memory, &values, format, 128 * block, in_place, workers.into());
    });
}

#[test]
fn a_number_that_is_none_here_is_named_by_its_place_in_the_array() {
    let memory = region();
    proptest!(ProptestConfig::with_cases(100), |(
        mut values in proptest::collection::vec(number(), 1..300), at: prop::sample::Index,
        bad in prop::sample::select(vec![1.25f32, -1.000_000_1, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX]),
    )| {
        let place = at.index(values.len());
        values[place] = bad;
        let format = FixedPoint::new(3, 1.0).expect("a format");
        let mut arrays = Arrays { send: None, receive: values.as_mut_bytes() };
        let mut array = FixedPointArray::new(&mut arrays, format);
        let all = array.bytes() as usize;
        for start in (0..all).step_by(256) {
            let block = start..all.min(start + 256);
            let loaded = array.load(block.clone(), &memory, 8);
            match loaded {
                Ok(_) => prop_assert!(!block.contains(&(4 * place))),
                Err(Error::FixedPoint(FixedPointError::Beyond { value, place: found, bound })) => {
                    prop_assert_eq!((value.to_bits(), found, bound), (bad.to_bits(), place, 1.0));
                    prop_assert!(block.contains(&(4 * place)));
                }
                Err(other) => return Err(TestCaseError::fail(other.to_string())),
            }
        }
    });
}

#[test]
fn blocks_of_half_a_word_are_refused() {
    let (memory, mut numbers) = (region(), [1.0f32; 8]);
    let mut arrays = Arrays { send: None, receive: numbers.as_mut_bytes() };
    let mut array = FixedPointArray::new(&mut arrays, FixedPoint::new(1, 1.0).expect("a format"));
    for range in [4..16, 0..12] {
        let error = array.load(range.clone(), &memory, 0).expect_err("half a word").to_string();
        assert!(error.contains("multiple of 8"), "{error}");
        assert!(array.store(range.clone(), &memory, 0).is_err() && array.clear(range).is_err());
    }
}
