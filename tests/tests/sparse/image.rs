//! Image `sparse`, the real ELF on an emulated card: sums of integers among workers on other cards, whatever their
//! arrays; and what it does with input that cannot be.

use emu_config::Machine;
use emu_machine::fabric::{Direction, Fault, FaultEvent};
use emu_machine::with_world;
use flexcast::p2p::sparse::{Arrays, Call, Config, Order, Settings, Worker};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{AggregatorCard, AggregatorElement, AggregatorOptions, AggregatorStanding, DpaAggregator, Firmware};
use flexcast_abi::SparseStatus;
use flexcast_proto::sparse::{FixedPoint, Parameters};
use flexcast_tests::sparse::{BOUND, Bench, TestWorker, arrays, operate, sum};
use flexcast_tests::sparse_world::on;
use flexcast_tests::{assert_mentions, image_bytes};
use flexio::{Bound, ProtectionDomain};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const BLOCK: u32 = 256;
const D: u32 = 4;

/// Workers on cards of their own, with messages of up to 4 short blocks.
fn bench(workers: u32, options: &AggregatorOptions) -> Bench {
    let parameters = Parameters::new(workers, BLOCK, D, 8).expect("parameters");
    let machine = Machine::default().config_of(workers as usize + 1).expect("a machine");
    Bench::new(machine, parameters, options)
}

fn options(units: &[u32], coroutines: u32) -> AggregatorOptions {
    AggregatorOptions { units: units.to_vec(), coroutines, ..AggregatorOptions::default() }
}

#[test]
fn sums_are_exact_whatever_the_arrays_and_one_operation_follows_another() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (workers, units, coroutines) in [(1, vec![1], 1), (2, vec![1], 3), (3, vec![1, 17], 2), (4, vec![5], 2)] {
        let mut bench = bench(workers, &options(&units, coroutines));
        for element in [AggregatorElement::I32, AggregatorElement::I64, AggregatorElement::I32] {
            bench.aggregator.set_element(element).expect("written");
            for elements in [0, 1, 31, 127, 1009, 4096] {
                for zeros in [0, 50, 90, 100] {
                    bench.sum(&arrays(&mut rng, (workers, BLOCK), elements * 8, zeros), element);
                }
            }
        }
    }
}

#[test]
fn sums_wrap_around() {
    let mut bench = bench(3, &AggregatorOptions::default());
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

/// What worker 1 of 2 sends after both have voted for block 0; the shard must stop with this report, and memory stay as
/// it is.
fn refused(status: SparseStatus, (found, limit): (u64, u64), words: &[&str], send: impl FnOnce(&mut TestWorker)) {
    let mut bench = bench(2, &options(&[1], 2));
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
    assert_mentions(&failure, words);
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
    // More than a slot holds: the card itself refuses it.
    refused(SparseStatus::Connection, (0x01, 0), &["syndrome 0x1"], |worker| {
        worker.send_raw(0, &message(5, [NONE; 4]), Some(0));
    });
}

#[test]
fn a_host_that_asks_learns_whom_the_thread_waits_for_and_when_all_have_their_answers() {
    let mut bench = bench(2, &options(&[1, 17], 2));
    let ask = |bench: &mut Bench| {
        bench.aggregator.ask().expect("asked");
        let aggregator = &bench.aggregator;
        let answer = bench.provider.wait(BOUND, "the answer", || Ok(aggregator.standing().expect("the firmware runs")));
        answer.expect("all threads answer")
    };
    let idle = AggregatorStanding { awaited: None, is_answered: true };
    assert_eq!(ask(&mut bench), idle);
    bench.sum(&arrays(&mut ChaCha8Rng::seed_from_u64(3), (2, BLOCK), 9000, 30), AggregatorElement::I32);
    flexcast_tests::world::settle();
    assert_eq!(ask(&mut bench), idle);
    // The other thread has two shards of its own.
    bench.workers[0].send_raw(3, &message(0, [0, 1, NONE, NONE]), Some(0));
    flexcast_tests::world::settle();
    assert_eq!(ask(&mut bench), AggregatorStanding { awaited: Some(1), is_answered: true });
    bench.workers[1].send_raw(3, &message(0, [0, 1, NONE, NONE]), Some(0));
    flexcast_tests::world::settle();
    assert_eq!(ask(&mut bench).awaited, Some(0));
    assert_eq!(bench.aggregator.failure().expect("the firmware runs"), None);
}

/// The card holds it back until the answer; then it is judged as one of the next iteration, here of the next operation.
#[test]
fn a_second_message_before_the_answer_waits_and_is_not_added() {
    let mut bench = bench(2, &options(&[1], 1));
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
fn what_does_not_fit_is_refused_before_anything_is_made() {
    let provider = emu_provider::emulated(Machine::default().config_of(2).expect("a machine")).expect("a provider");
    let name = provider.devices().expect("cards")[0].name.clone();
    let elf = image_bytes("sparse");
    let card = AggregatorCard::open(&provider, &name, Firmware { name: "sparse", elf: &elf }).expect("it runs");
    let refused = |workers, block, d, options: &AggregatorOptions, words: &[&str]| {
        let parameters = Parameters::new(workers, block, d, 8).expect("parameters");
        assert_mentions(&card.prepare(parameters, options).expect_err("it does not fit"), words);
    };
    let defaults = AggregatorOptions::default();
    refused(64, 1024, 32, &defaults, &["64 workers and 2 instances", "1500000", "cache_bytes"]);
    refused(2, 320, 8, &defaults, &["blocks of 320 bytes", "128", "384"]);
    refused(2, 256, 8, &options(&[], 1), &["0 threads", "189"]);
    refused(2, 256, 8, &options(&[0], 1), &["unit 0", "1 to 189"]);
    refused(2, 256, 8, &options(&[1], 0), &["0 coroutines"]);
    refused(1024, 256, 1, &options(&[1], 4), &["65536 entries", "32768", "fewer coroutines"]);
}

/// The library's own workers, a card each, whose DPA aggregates its shards.
#[test]
fn workers_of_the_library_do_not_distinguish_a_dpa_from_a_processor() {
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
    let mut ranks: Vec<(Worker, DpaAggregator)> = pending
        .into_iter()
        .map(|(worker, aggregator)| {
            let aggregator = aggregator.connect_for(&worker_ends).expect("connected");
            (worker.connect(&aggregator_ends).expect("connected"), aggregator)
        })
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for (element, ty) in [(AggregatorElement::I32, DataType::I32), (AggregatorElement::I64, DataType::I64)] {
        let reduction = Reduction::new(Operator::Sum, ty).expect("a sum");
        for (bytes, zeros) in [(0, 0), (8, 0), (40_000, 60), (100_000, 10)] {
            let mut arrays = arrays(&mut rng, (RANKS, BLOCK), bytes, zeros);
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

/// A message to a DPA whose last packet is lost: the worker's probe shows its card the gap, before the card's timeout
/// of 8.4 ms. (An answer of the DPA that is lost waits for that.)
#[test]
fn a_lost_message_to_a_dpa_is_found_by_a_probe() {
    const WORKERS: u32 = 3;
    let settings = Settings::new(WORKERS, 1, 2, BLOCK, D).expect("settings");
    // On the way to the card of the DPA alone.
    let drop = FaultEvent::on(&format!("h{WORKERS}-switch"), Fault::Drop { ppm: 10_000 });
    let faults = vec![FaultEvent { direction: Direction::Backward, ..drop }];
    let provider = emu_provider::emulated(on(WORKERS as usize + 1, faults)).expect("a provider");
    let elf = image_bytes("sparse");
    let name = format!("mlx5_{WORKERS}");
    let card = AggregatorCard::open(&provider, &name, Firmware { name: "sparse", elf: &elf }).expect("it runs");
    let (aggregator, end) = card.prepare_for(&settings, 0, &options(&[1, 2], 1)).expect("an aggregator");
    let prepare = |own: u32| {
        let device = provider.open(&format!("mlx5_{own}")).expect("a card");
        let domain = ProtectionDomain::new(&device).expect("a domain");
        Worker::prepare(&domain, settings, own, Config::default()).expect("a worker")
    };
    let (pending, ends): (Vec<_>, Vec<_>) = (0..WORKERS).map(prepare).unzip();
    let aggregator = aggregator.connect_for(&ends).expect("connected");
    let mut workers: Vec<Worker> =
        pending.into_iter().map(|worker| worker.connect(std::slice::from_ref(&end)).expect("connected")).collect();
    let reduction = Reduction::new(Operator::Sum, DataType::I32).expect("a sum");
    let mut arrays = arrays(&mut ChaCha8Rng::seed_from_u64(9), (WORKERS, BLOCK), 200_000, 0);
    let expected = sum(&arrays, AggregatorElement::I32);
    let start_ps = provider.relax().now_ps();
    for worker in &mut workers {
        let call = Call { bytes: 200_000, shards_of_each: 2, reduction, order: Order::Arrival };
        worker.begin(call).expect("idle");
    }
    let done = provider.wait(Bound::millis(500).with_polls(20_000_000), "a sparse AllReduce", || {
        let mut complete = true;
        for (worker, array) in workers.iter_mut().zip(&mut arrays) {
            worker.progress(&mut Arrays { send: None, receive: array }).expect("progress");
            complete &= worker.is_complete();
        }
        Ok(complete.then_some(()))
    });
    assert_eq!(aggregator.failure().expect("it runs"), None);
    done.expect("complete");
    assert!(arrays.iter().all(|array| *array == expected));
    let took_us = (provider.relax().now_ps() - start_ps) / 1_000_000;
    let lost = with_world(|world| world.network().map(|network| network.totals().hosts.lost_frames)).unwrap();
    assert!(lost > Some(3) && took_us < 8_400, "{lost:?} frames lost, {took_us} us");
}

#[test]
fn fixed_point_numbers_are_summed_within_their_error() {
    const NUMBERS: usize = 5001;
    let mut bench = bench(3, &AggregatorOptions::default());
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
