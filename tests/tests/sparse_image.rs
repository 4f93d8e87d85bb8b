//! Image `sparse`, the real ELF on an emulated card: sums of integers among workers on other cards, whatever their arrays; and what it does with input that
//! cannot be.

use emu_config::Machine;
use flexcast::p2p::sparse::{Arrays, Call, Config, Order, Settings, Worker};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{AggregatorCard, AggregatorElement, AggregatorOptions, DpaAggregator, Firmware};
use flexcast_abi::SparseStatus;
use flexcast_proto::sparse::{FixedPoint, Parameters};
use flexcast_tests::sparse::{TestWorker, operate};
use flexcast_tests::{image_bytes, told};
use flexio::{Bound, ProtectionDomain, Provider};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const BOUND: Bound = Bound::millis(20).with_looks(2_000_000);
const BLOCK: u32 = 256;
const D: u32 = 4;

/// An aggregator on card 0 and workers on the others.
struct Bench {
    aggregator: DpaAggregator,
    workers: Vec<TestWorker>,
    provider: Provider,
}

impl Bench {
    fn new(workers: u32, options: &AggregatorOptions) -> Self {
        Self::with(Parameters::new(workers, BLOCK, D, 8).expect("parameters"), options)
    }

    fn with(parameters: Parameters, options: &AggregatorOptions) -> Self {
        let machine = Machine::default().config_of(parameters.workers() as usize + 1).expect("a machine");
        Self::on(machine, parameters, options)
    }

    fn on(machine: emu_machine::Config, parameters: Parameters, options: &AggregatorOptions) -> Self {
        let workers = parameters.workers();
        let provider = emu_provider::emulated(machine).expect("a provider");
        let names = provider.devices().expect("cards");
        let elf = image_bytes("sparse");
        let firmware = Firmware { name: "sparse", elf: &elf };
        let card = AggregatorCard::open(&provider, &names[0].name, firmware).expect("the image runs");
        let prepared = card.prepare(parameters, options).expect("it fits");
        let workers: Vec<TestWorker> = (1..=workers as usize)
            .map(|card| provider.open(&names[card].name).expect("a card"))
            .map(|device| TestWorker::new(&device, parameters, options.shards()))
            .collect();
        for (worker, number) in workers.iter().zip(0..) {
            worker.connect(&prepared.endpoints(number).collect::<Vec<_>>());
        }
        let endpoints: Vec<_> = workers.iter().map(TestWorker::endpoints).collect();
        let aggregator = prepared.connect(&endpoints).expect("connected");
        Self { aggregator, workers, provider }
    }

    /// An operation; every worker's array must be the sum.
    fn sum(&mut self, arrays: &[Vec<u8>], element: AggregatorElement) {
        let expected = sum(arrays, element);
        let mut arrays = arrays.to_vec();
        let done = operate(&self.provider, &mut self.workers, &mut arrays, BOUND);
        let failure = self.aggregator.failure().expect("the firmware runs");
        assert_eq!((done.as_ref().err(), failure), (None, None));
        for (worker, array) in arrays.iter().enumerate() {
            assert!(*array == expected, "worker {worker} of {}: {} bytes", arrays.len(), array.len());
        }
    }
}

fn options(units: &[u32], coroutines: u32) -> AggregatorOptions {
    AggregatorOptions { units: units.to_vec(), coroutines, ..AggregatorOptions::default() }
}

/// The sum, element by element.
fn sum(arrays: &[Vec<u8>], element: AggregatorElement) -> Vec<u8> {
    let mut total = arrays[0].clone();
    for array in &arrays[1..] {
        match element {
            AggregatorElement::I32 => {
                for (sum, more) in total.as_chunks_mut().0.iter_mut().zip(array.as_chunks().0) {
                    *sum = i32::from_le_bytes(*sum).wrapping_add(i32::from_le_bytes(*more)).to_le_bytes();
                }
            }
            AggregatorElement::I64 => {
                for (sum, more) in total.as_chunks_mut().0.iter_mut().zip(array.as_chunks().0) {
                    *sum = i64::from_le_bytes(*sum).wrapping_add(i64::from_le_bytes(*more)).to_le_bytes();
                }
            }
        }
    }
    total
}

/// Arrays of `elements` elements in which each block is zero with a probability of `zeros` per cent.
fn arrays(rng: &mut ChaCha8Rng, workers: u32, bytes: usize, zeros: u32) -> Vec<Vec<u8>> {
    let array = |rng: &mut ChaCha8Rng| {
        let mut array = vec![0; bytes];
        for block in array.chunks_mut(BLOCK as usize) {
            if rng.random_range(0..100) >= zeros {
                rng.fill(block);
            }
        }
        array
    };
    (0..workers).map(|_| array(rng)).collect()
}

#[test]
fn sums_are_exact_whatever_the_arrays_and_one_operation_follows_another() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (workers, units, coroutines) in [(1, vec![1], 1), (2, vec![1], 3), (3, vec![1, 17], 2), (4, vec![5], 2)] {
        let mut bench = Bench::new(workers, &options(&units, coroutines));
        for element in [AggregatorElement::I32, AggregatorElement::I64, AggregatorElement::I32] {
            bench.aggregator.set_element(element).expect("written");
            for elements in [0, 1, 31, 127, 1009, 4096] {
                for zeros in [0, 50, 90, 100] {
                    bench.sum(&arrays(&mut rng, workers, elements * 8, zeros), element);
                }
            }
        }
    }
}

#[test]
fn sums_wrap_around() {
    let mut bench = Bench::new(3, &AggregatorOptions::default());
    for element in [AggregatorElement::I32, AggregatorElement::I64] {
        bench.aggregator.set_element(element).expect("written");
        for word in [u64::MAX, i64::MAX as u64, 1 << 63, 0x7FFF_FFFF_7FFF_FFFF, 0x8000_0000_8000_0000] {
            bench.sum(&vec![word.to_le_bytes().repeat(600); 3], element);
        }
    }
}

/// Bytes of a message of so many blocks, with these indices.
fn message(blocks: usize, indices: [u32; D as usize]) -> Vec<u8> {
    let mut bytes = vec![7; blocks * BLOCK as usize];
    bytes.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
    bytes
}

const NONE: u32 = u32::MAX;

/// What worker 1 of 2 sends after both have voted for block 0; the shard must stop with this report, and memory stay as it is.
fn refused(status: SparseStatus, (found, limit): (u64, u64), words: &[&str], send: impl FnOnce(&mut TestWorker)) {
    let mut bench = Bench::new(2, &options(&[1], 2));
    let vote = message(0, [0, 1, NONE, NONE]);
    for worker in &mut bench.workers {
        worker.send_raw(0, &vote, Some(0));
    }
    let provider = bench.provider.clone();
    flexcast_tests::world::settle();
    send(&mut bench.workers[1]);
    let failure = provider
        .wait(BOUND, "the shard to stop", || Ok(bench.aggregator.failure().expect("the firmware runs")))
        .unwrap_or_else(|error| panic!("{status:?}: {error}"));
    assert_eq!((failure.status, failure.found, failure.limit), (Ok(status), found, limit), "{failure}");
    assert_eq!((failure.shard, failure.worker, failure.operations), (0, 1, 0), "{failure}");
    told(&failure, words);
    // The other shard of the thread goes on: it is complete at once where nobody has anything.
    for worker in &mut bench.workers {
        worker.send_raw(1, &message(0, [NONE; 4]), Some(0));
    }
    flexcast_tests::world::settle();
    assert_eq!(bench.aggregator.failure().expect("the firmware runs"), Some(failure));
}

#[test]
fn input_that_cannot_be_stops_the_shard_and_nothing_else() {
    let vote = |indices| move |worker: &mut TestWorker| worker.send_raw(0, &message(2, indices), Some(0));
    let (block, index) = (u64::from(BLOCK), 16);
    refused(SparseStatus::Length, (block + index, 2 * block + index), &["272", "528", "worker 1"], |worker| {
        worker.send_raw(0, &message(1, [NONE; 4]), Some(0));
    });
    refused(SparseStatus::Length, (2 * block + index, block + index), &["528", "272"], |worker| {
        worker.send_raw(0, &message(2, [NONE; 4]), Some(1));
    });
    refused(SparseStatus::Displacement, (0b100, 2), &["0x4", "2 blocks"], |worker| {
        worker.send_raw(0, &message(2, [NONE; 4]), Some(0b100));
    });
    refused(SparseStatus::AfterEnd, (5, 2), &["5", "not full"], vote([5, NONE, NONE, NONE]));
    refused(SparseStatus::Order, (3, 9), &["3", "9", "ascend"], vote([9, 3, NONE, NONE]));
    refused(SparseStatus::Behind, (1, 1), &["1 already"], vote([1, 2, NONE, NONE]));
    refused(SparseStatus::Opcode, (0x20, 0), &["immediate"], |worker| {
        worker.send_raw(0, &message(2, [NONE; 4]), None);
    });
    // More than a spot holds: the card itself refuses it.
    refused(SparseStatus::Connection, (0x01, 0), &["syndrome 0x1"], |worker| {
        worker.send_raw(0, &message(5, [NONE; 4]), Some(0));
    });
}

/// The card holds it back until the answer; then it is judged as one of the next iteration, here of the next operation.
#[test]
fn a_second_message_before_the_answer_waits_and_is_not_added() {
    let mut bench = Bench::new(2, &options(&[1], 1));
    for worker in &mut bench.workers {
        worker.send_raw(0, &message(0, [0, 1, NONE, NONE]), Some(0));
    }
    flexcast_tests::world::settle();
    bench.workers[1].send_raw(0, &message(2, [NONE; 4]), Some(0));
    bench.workers[1].send_raw(0, &message(2, [NONE; 4]), Some(0));
    bench.workers[0].send_raw(0, &message(2, [NONE; 4]), Some(0));
    let failure = bench.provider.wait(BOUND, "the shard to stop", || Ok(bench.aggregator.failure().expect("it runs")));
    let failure = failure.expect("the second message is refused");
    assert_eq!((failure.status, failure.found, failure.limit), (Ok(SparseStatus::Length), 528, 16), "{failure}");
    assert_eq!((failure.worker, failure.iteration, failure.operations), (1, 0, 1), "{failure}");
}

#[test]
fn what_does_not_fit_is_told_before_anything_is_made() {
    let provider = emu_provider::emulated(Machine::default().config_of(2).expect("a machine")).expect("a provider");
    let name = provider.devices().expect("cards")[0].name.clone();
    let elf = image_bytes("sparse");
    let card = AggregatorCard::open(&provider, &name, Firmware { name: "sparse", elf: &elf }).expect("it runs");
    let refused = |workers, block, d, options: &AggregatorOptions, words: &[&str]| {
        let parameters = Parameters::new(workers, block, d, 8).expect("parameters");
        told(&card.prepare(parameters, options).expect_err("it does not fit"), words);
    };
    let defaults = AggregatorOptions::default();
    refused(64, 1024, 32, &defaults, &["64 workers and 2 instances", "1500000", "cache_bytes"]);
    refused(2, 320, 8, &defaults, &["blocks of 320 bytes", "128", "384"]);
    refused(2, 256, 8, &options(&[], 1), &["0 threads", "189"]);
    refused(2, 256, 8, &options(&[0], 1), &["unit 0", "1 to 189"]);
    refused(2, 256, 8, &options(&[1], 0), &["0 coroutines"]);
    refused(1024, 256, 1, &options(&[1], 4), &["65536 entries", "32768", "fewer coroutines"]);
}

#[test]
#[ignore]
fn probe() {
    for (workers, d, zeros) in [(1, 16, 0), (2, 16, 0), (4, 16, 0), (4, 16, 50), (16, 16, 0), (4, 4, 0)] {
        for element in [AggregatorElement::I32, AggregatorElement::I64] {
            let parameters = Parameters::new(workers, 1024, d, 8).expect("parameters");
            let opts = AggregatorOptions { units: vec![16], coroutines: 1, ..Default::default() };
            let mut bench = Bench::with(parameters, &opts);
            bench.aggregator.set_element(element).unwrap();
            let state = |b: &Bench| -> Vec<u64> {
                let a = b.aggregator.thread_state(0).unwrap();
                let x: [u8; 40] = flexcast_tests::world::get(a);
                x.as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect()
            };
            let before = state(&bench);
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            let bytes = 64 * 1024 * d as usize / 16;
            let mut a: Vec<Vec<u8>> = arrays(&mut rng, workers, bytes, 0);
            for (w, a) in a.iter_mut().enumerate() {
                for (i, b) in a.chunks_mut(1024).enumerate() {
                    if zeros > 0 && (i * 31 + w * 17) % 97 < zeros as usize {
                        b.fill(0);
                    }
                }
            }
            bench.sum(&a, element);
            let after = state(&bench);
            let d: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
            let blocks: usize = a.iter().map(|a| a.chunks(1024).filter(|b| b.iter().any(|x| *x != 0)).count()).sum();
            println!(
                "n={workers} d={} z={zeros} {element:?}: activations {} instructions {} messages {} blocks {blocks}",
                parameters.blocks_per_message(),
                d[1],
                d[2],
                d[4]
            );
        }
    }
}

#[test]
#[ignore]
fn sweep() {
    use emu_machine::timing::Parameters as Timing;
    let env = |name: &str, default: u32| std::env::var(name).map_or(default, |v| v.parse().unwrap());
    let (workers, coroutines, d) = (env("N", 4), env("C", 2), env("D", 8));
    let threads = env("T", 1);
    let first = if threads > 174 { 1 } else { 16 };
    let units: Vec<u32> = if env("S", 0) == 1 {
        (0..threads).map(|t| 16 + t % 11 * 16 + t / 11).collect()
    } else {
        (first..first + threads).collect()
    };
    for element in [AggregatorElement::I32, AggregatorElement::I64] {
        let parameters = Parameters::new(workers, 1024, d, 8).expect("parameters");
        let mut timing = Timing::m2();
        if let Ok(set) = std::env::var("SET") {
            for one in set.split(",") {
                let (g, r) = one.split_once(".").unwrap();
                let (n, v) = r.split_once("=").unwrap();
                timing = timing.with(g, n, v.parse().unwrap()).unwrap();
            }
        }
        let machine = emu_machine::Config {
            timing: Some(timing),
            ..Machine::default().config_of(workers as usize + 1).expect("a machine")
        };
        let opts = AggregatorOptions { units: units.clone(), coroutines, cache_bytes: 1 << 30, ..Default::default() };
        let mut bench = Bench::on(machine, parameters, &opts);
        bench.aggregator.set_element(element).unwrap();
        let shards = threads * coroutines;
        let bytes = (env("I", 12) * d * shards * 1024) as usize;
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let a = arrays(&mut rng, workers, bytes, 0);
        let wall = std::time::Instant::now();
        let mut b = a.clone();
        let ps = operate(&bench.provider, &mut bench.workers, &mut b, BOUND).unwrap();
        assert!(b[0] == sum(&a, element));
        let gbit = f64::from(workers) * bytes as f64 * 8e3 / ps as f64;
        println!(
            "T={threads} n={workers} c={coroutines} d={d} {element:?} spots {} KiB: {gbit:.1} Gbit/s in {:.1} us; wall {:.1} s",
            u64::from(shards) * parameters.aggregator_bytes() / 1024,
            ps as f64 / 1e6,
            wall.elapsed().as_secs_f64()
        );
    }
}

/// The library's own workers, a card each, whose DPA aggregates its shards.
#[test]
fn workers_of_the_library_do_not_tell_a_dpa_from_a_processor() {
    const RANKS: u32 = 3;
    let settings = Settings::new(RANKS, RANKS, 2, BLOCK, D).expect("settings");
    let provider =
        emu_provider::emulated(Machine::default().config_of(RANKS as usize).expect("a machine")).expect("a provider");
    let elf = image_bytes("sparse");
    let cards: Vec<AggregatorCard> = provider
        .devices()
        .expect("cards")
        .iter()
        .map(|info| {
            AggregatorCard::open(&provider, &info.name, Firmware { name: "sparse", elf: &elf }).expect("it runs")
        })
        .collect();
    let options = options(&[1, 2], 1);
    let mut pending = Vec::new();
    let (mut worker_ends, mut aggregator_ends) = (Vec::new(), Vec::new());
    for (card, number) in cards.iter().zip(0..) {
        let pd = ProtectionDomain::new(
            &provider.open(&provider.devices().expect("cards")[number as usize].name).expect("a card"),
        )
        .expect("a domain");
        let (worker, end) = Worker::prepare(&pd, settings, number, Config::default()).expect("a worker");
        worker_ends.push(end);
        let (aggregator, end) = card.prepare_for(&settings, number, &options).expect("an aggregator");
        aggregator_ends.push(end);
        pending.push((worker, aggregator));
    }
    let mut ranks: Vec<(Worker, DpaAggregator)> = (0..)
        .zip(pending)
        .map(|(number, (worker, aggregator))| {
            let aggregator = aggregator.connect_for(&settings, number, &worker_ends).expect("connected");
            (worker.connect(&aggregator_ends).expect("connected"), aggregator)
        })
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for (element, ty) in [(AggregatorElement::I32, DataType::I32), (AggregatorElement::I64, DataType::I64)] {
        let reduction = Reduction::new(Operator::Sum, ty).expect("a sum");
        for (bytes, zeros) in [(0, 0), (8, 0), (40_000, 60), (100_000, 10)] {
            let mut arrays = arrays(&mut rng, RANKS, bytes, zeros);
            let expected = sum(&arrays, element);
            let call = Call { bytes: bytes as u64, shards_of_each: 2, reduction, order: Order::Arrival };
            for (worker, aggregator) in &mut ranks {
                aggregator.set_element(element).expect("written");
                worker.begin(call).expect("idle");
            }
            let done = provider.wait(BOUND, "a sparse AllReduce", || {
                let mut complete = true;
                for ((worker, _), array) in ranks.iter_mut().zip(&mut arrays) {
                    worker.progress(&mut Arrays { send: None, receive: array }).expect("progress");
                    complete &= worker.is_complete();
                }
                Ok(complete.then_some(()))
            });
            for (_, aggregator) in &ranks {
                assert_eq!(aggregator.failure().expect("it runs"), None);
            }
            done.expect("complete");
            assert!(arrays.iter().all(|array| *array == expected), "{bytes} bytes");
        }
    }
}

#[test]
fn fixed_point_numbers_are_summed_within_their_error() {
    const NUMBERS: usize = 5001;
    let mut bench = Bench::new(3, &AggregatorOptions::default());
    bench.aggregator.set_element(AggregatorElement::I64).expect("written");
    let format = FixedPoint::new(3, 100.0).expect("a format");
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let numbers: Vec<Vec<f32>> =
        (0..3).map(|_| (0..NUMBERS).map(|_| rng.random_range(-100.0..100.0)).collect()).collect();
    let mut arrays: Vec<Vec<u8>> = numbers
        .iter()
        .map(|numbers| {
            let mut words = vec![0; NUMBERS.div_ceil(2)];
            format.encode(numbers, &mut words).expect("within the bound");
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        })
        .collect();
    operate(&bench.provider, &mut bench.workers, &mut arrays, BOUND).expect("complete");
    let words: Vec<u64> = arrays[2].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let mut sums = vec![0.0; NUMBERS];
    format.decode(&words, &mut sums).expect("as many");
    assert_eq!(format.error(), 1.5 / f64::from(1 << 21));
    for (at, sum) in sums.iter().enumerate() {
        let exact: f64 = numbers.iter().map(|numbers| f64::from(numbers[at])).sum();
        let rounding = f64::from(sum.abs()) * f64::from(f32::EPSILON) / 2.0;
        assert!((f64::from(*sum) - exact).abs() <= format.error() + rounding, "{sum} for {exact}");
    }
}
