//! Campaign of sparse AllReduce over reliable connections of emulated cards: groups drawn from seeds, with sizes,
//! patterns, types, operators, links that lose, repeat and delay, and deaths of workers and aggregators; some workers
//! have arrays in the memory of accelerators. Each live party ends with the right result or learns who is at fault, in
//! bounded virtual time.
//!
//! `FLEXCAST_SPARSE_SEEDS=7..8 cargo test -p flexcast-tests --test sparse campaign::` runs one seed alone,
//! `FLEXCAST_SPARSE_SEEDS=0..2000` all of the campaign.

use std::time::Instant;

use emu_machine::fabric::{Fault, FaultEvent};
use flexcast::p2p::sparse::{Call, Config, Error, Order, Party, Settings};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast_tests::sparse_world::{Ends, OnDevices, World, contributions};
use flexio::{Bound, Retry};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Cases that run at once.
const THREADS: usize = 2;
/// Those of every run.
const FEW: u64 = 60;

/// Elements of an array, and its bytes, at most.
const MOST_ELEMENTS: usize = 20_000;
const MOST_BYTES: usize = MOST_ELEMENTS * 8;

fn seeds() -> Vec<u64> {
    let Ok(given) = std::env::var("FLEXCAST_SPARSE_SEEDS") else { return (0..FEW).collect() };
    let number = |text: &str| text.parse::<u64>().expect("seeds are numbers: FLEXCAST_SPARSE_SEEDS=7..8");
    let (first, end) = given.split_once("..").expect("as in FLEXCAST_SPARSE_SEEDS=7..8");
    (number(first)..number(end)).collect()
}

fn pick<T: Copy>(random: &mut ChaCha8Rng, of: &[T]) -> T {
    of[random.random_range(0..of.len())]
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    Nothing,
    Links,
    Death,
}

/// A group, and what happens to it.
struct Case {
    settings: Settings,
    trouble: Trouble,
    faults: Vec<FaultEvent>,
    random: ChaCha8Rng,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let workers = random.random_range(1..=6);
        let aggregators = random.random_range(1..=3);
        let block_bytes = pick(&mut random, &[256, 512, 1024, 4096]);
        let blocks = random.random_range(1..=32);
        let each = random.random_range(1..=3);
        let settings = Settings::new(workers, aggregators, each, block_bytes, blocks).expect("settings");
        let trouble = pick(&mut random, &[Trouble::Nothing, Trouble::Links, Trouble::Links, Trouble::Death]);
        let count = if trouble == Trouble::Nothing { 0 } else { random.random_range(0..=2) };
        let faults = (0..count).map(|_| FaultEvent::on("*", fault(&mut random))).collect();
        Self { settings, trouble, faults, random }
    }

    /// An operation, its arrays, and whether contributions are in place.
    fn operation(&mut self) -> (Call, Vec<Vec<u8>>, bool) {
        let random = &mut self.random;
        let data_type = pick(
            random,
            &[DataType::I32, DataType::I64, DataType::U8, DataType::F32, DataType::F64, DataType::F16, DataType::BF16],
        );
        let operator = pick(random, &[Operator::Sum, Operator::Sum, Operator::Min, Operator::Max]);
        let reduction = Reduction::new(operator, data_type).expect("the type has it");
        let elements = match random.random_range(0..5) {
            0 => 0,
            1 => 1,
            2 => pick(random, &[7, 127, 1009, 4099, 10_007]),
            _ => random.random_range(0..MOST_ELEMENTS),
        };
        let (zeros, seed) = (pick(random, &[0, 50, 90, 99, 100]), random.random());
        let parameters = self.settings.parameters();
        let bytes = elements * reduction.element_bytes() as usize;
        let arrays = contributions(parameters.workers(), bytes, (parameters.block_bytes(), zeros), seed);
        let shards_of_each = random.random_range(1..=self.settings.shards_of_each());
        let order = pick(random, &[Order::Arrival, Order::Rank]);
        (Call { bytes: bytes as u64, shards_of_each, reduction, order }, arrays, random.random())
    }
}

fn fault(random: &mut ChaCha8Rng) -> Fault {
    let ppm = pick(random, &[500, 5_000, 30_000]);
    match random.random_range(0..5) {
        0 => Fault::Drop { ppm },
        1 => Fault::Duplicate { ppm },
        2 => Fault::Reorder { ppm, behind: random.random_range(1..=20) },
        3 => Fault::Corrupt { ppm },
        _ => {
            Fault::Delay { extra_ps: random.random_range(0..20_000_000), jitter_ps: random.random_range(0..20_000_000) }
        }
    }
}

/// What all workers get: of each block what those have for whom it is not zero, in the order of workers; zeros if there
/// is nobody.
fn expected(call: &Call, block_bytes: usize, arrays: &[Vec<u8>]) -> Vec<u8> {
    let mut result = vec![0; call.bytes as usize];
    for (number, block) in result.chunks_mut(block_bytes).enumerate() {
        let range = number * block_bytes..number * block_bytes + block.len();
        let parts = arrays.iter().map(|array| &array[range.clone()]);
        let mut parts = parts.filter(|part| part.iter().any(|byte| *byte != 0));
        if let Some(first) = parts.next() {
            block.copy_from_slice(first);
            parts.for_each(|part| call.reduction.combine(block, part));
        }
    }
    result
}

/// Whether a result is right: to the bit, or, where numbers of a limited precision were added as they came, within the
/// bound of that: each of n - 1 additions rounds once, here and in the result that it is compared with.
fn is_right(call: &Call, found: &[u8], expected: &[u8], workers: u32) -> bool {
    if found == expected {
        return true;
    }
    let is_sum = call.reduction.operator() == Operator::Sum && call.order == Order::Arrival;
    // Of numbers that are all positive, so that no partial sum is larger than the sum.
    let near = |found: f64, expected: f64, epsilon: f64| {
        (found - expected).abs() <= 2.0 * f64::from(workers) * epsilon * expected.abs().max(f64::MIN_POSITIVE)
    };
    let each = |bytes: usize, of: &dyn Fn(&[u8]) -> f64, epsilon: f64| {
        found.chunks(bytes).zip(expected.chunks(bytes)).all(|(found, expected)| near(of(found), of(expected), epsilon))
    };
    let half = |bytes: &[u8]| u16::from_ne_bytes(bytes.try_into().expect("two bytes"));
    is_sum
        && match call.reduction.data_type() {
            DataType::F32 => each(
                4,
                &|bytes| f32::from_ne_bytes(bytes.try_into().expect("four bytes")).into(),
                f64::from(f32::EPSILON),
            ),
            DataType::F64 => each(8, &|bytes| f64::from_ne_bytes(bytes.try_into().expect("eight bytes")), f64::EPSILON),
            // The upper half of a number of single precision.
            DataType::BF16 => each(2, &|bytes| f32::from_bits(u32::from(half(bytes)) << 16).into(), 0.5_f64.powi(7)),
            DataType::F16 => each(2, &|bytes| of_half(half(bytes)), 0.5_f64.powi(10)),
            _ => false,
        }
}

/// A positive number of half precision.
fn of_half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10), f64::from(bits & 0x3ff) / 1024.0);
    if exponent == 0 { mantissa * 2.0_f64.powi(-14) } else { (1.0 + mantissa) * 2.0_f64.powi(exponent - 15) }
}

/// Connections that soon repeat what has not been acknowledged; a peer that is silent for longer than all repeats take
/// is given up.
fn patient() -> Config {
    Config { bound: Bound::millis(40), retry: Retry { timeout_exponent: 4, count: 7 }, ..Config::default() }
}

/// Every other group has workers with accelerators, if their messages have no more pieces than the card takes.
fn devices(seed: u64, settings: &Settings) -> OnDevices {
    let parameters = settings.parameters();
    if seed.is_multiple_of(2) || parameters.blocks_per_message() > 29 {
        return OnDevices::default();
    }
    let workers = 1 + (seed / 2) as u32 % parameters.workers();
    OnDevices { workers, bytes: MOST_BYTES.next_multiple_of(parameters.block_bytes() as usize), polls: seed as u32 % 5 }
}

/// Runs a case: operations that went well, and those that failed; or what is wrong.
fn run(seed: u64) -> Result<(u32, u32), String> {
    let mut case = Case::new(seed);
    let parameters = case.settings.parameters();
    let (workers, block_bytes) = (parameters.workers(), parameters.block_bytes() as usize);
    let mut world = World::with_devices(case.settings, case.faults.clone(), patient(), devices(seed, &case.settings));
    let (mut well, last) = (0, case.random.random_range(1..=3));
    for operation in 1..=last {
        let (call, arrays, in_place) = case.operation();
        let death = (case.trouble == Trouble::Death && operation == last).then(|| {
            let random = &mut case.random;
            let party = if random.random() {
                Party::Worker(random.random_range(0..workers))
            } else {
                Party::Aggregator(random.random_range(0..case.settings.aggregators()))
            };
            (party, pick(random, &[0, 1, 10, 100, 1000]))
        });
        let Ends { workers: ends, aggregators, arrays: results, .. } =
            world.end_with_death(call, &arrays, in_place, death);
        let expected = expected(&call, block_bytes, &arrays);
        let what = || format!("operation {operation}, {call:?}, {death:?}, {:?}", case.faults);
        let dead = death.map(|(party, _)| party);
        let live = |party| Some(party) != dead;
        for (own, (end, result)) in (0..).zip(ends.iter().zip(&results)).filter(|(own, _)| live(Party::Worker(*own))) {
            match end {
                Ok(()) if is_right(&call, result, &expected, workers) => {}
                Ok(()) => return Err(format!("worker {own} has a wrong result: {}", what())),
                Err(error) => names_the_dead(error, dead).map_err(|why| format!("worker {own}: {why}: {}", what()))?,
            }
        }
        for (own, end) in (0..).zip(&aggregators).filter(|(own, _)| live(Party::Aggregator(*own))) {
            if let Err(error) = end {
                names_the_dead(error, dead).map_err(|why| format!("aggregator {own}: {why}: {}", what()))?;
            }
        }
        if ends.iter().chain(&aggregators).any(Result::is_err) {
            return Ok((well, 1));
        }
        well += 1;
    }
    Ok((well, 0))
}

/// Whether an error names who has died, or an aggregator that has given up because of that.
fn names_the_dead(error: &Error, dead: Option<Party>) -> Result<(), String> {
    let named = match error {
        Error::Timeout { party, .. } | Error::Connection { party, .. } => Some(*party),
        Error::Ended { worker: Some(worker), .. } => Some(Party::Worker(*worker)),
        _ => None,
    };
    match dead {
        None => Err(format!("{error}, but nobody has died")),
        Some(_) if named == dead => Ok(()),
        // Whoever waits for one who waits for the dead one learns of that, or sees it silent in turn.
        Some(Party::Aggregator(_)) if matches!(named, Some(Party::Worker(_))) => Ok(()),
        Some(Party::Worker(_)) if matches!(named, Some(Party::Aggregator(_))) => Ok(()),
        Some(dead) => Err(format!("{error}, but {dead} has died")),
    }
}

#[test]
fn results_are_right_or_errors_say_why() {
    let (begun, seeds) = (Instant::now(), seeds());
    let of_thread = |thread: usize| {
        let seeds = seeds.iter().copied().skip(thread).step_by(THREADS);
        move || seeds.map(|seed| (seed, run(seed))).collect::<Vec<_>>()
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(of_thread(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no case panics")).collect()
    });
    let (mut well, mut failed, mut wrong) = (0, 0, Vec::new());
    for (seed, result) in found {
        match result {
            Ok((right, not)) => (well, failed) = (well + right, failed + not),
            Err(why) => {
                println!("seed {seed}: {why}");
                wrong.push(seed);
            }
        }
    }
    println!(
        "{} seeds: {well} operations right, {failed} failed by a death; {:.1} s (measured)",
        seeds.len(),
        begun.elapsed().as_secs_f64()
    );
    assert!(
        wrong.is_empty(),
        "seeds {wrong:?} are wrong; one alone: FLEXCAST_SPARSE_SEEDS={0}..{1}",
        wrong[0],
        wrong[0] + 1
    );
    assert!(seeds.len() < 40 || failed > 0, "no case has a death");
}
