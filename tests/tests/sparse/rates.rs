//! Costs of aggregators on a DPA: instructions, which are exact, and rates under timing model M.2 (*emulated*).

use emu_config::Machine;
use emu_machine::Config;
use emu_machine::timing::Parameters as Timing;
use flexcast::{AggregatorElement, AggregatorOptions};
use flexcast_lab::accesses::Accesses;
use flexcast_proto::sparse::Parameters;
use flexcast_tests::compiled_as_recorded;
use flexcast_tests::sparse::{Bench, arrays};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

const BLOCK: u32 = 1024;
/// As many as have all kinds of entries of send queues.
const ITERATIONS: u32 = 8;
const ELEMENTS: [AggregatorElement; 2] = [AggregatorElement::I32, AggregatorElement::I64];

fn bench(workers: u32, width: u32, options: &AggregatorOptions, timing: Option<Timing>) -> Bench {
    let parameters = Parameters::new(workers, BLOCK, width, 8).expect("parameters");
    let machine = Machine::default().config_of(workers as usize + 1).expect("a machine");
    Bench::new(Config { timing, ..machine }, parameters, options)
}

/// Instructions of [`ITERATIONS`] iterations of dense arrays, all of a thread with one shard: of the messages of all
/// workers, their sums and the answer.
fn instructions(workers: u32, width: u32, element: AggregatorElement) -> u64 {
    let options = AggregatorOptions { coroutines: 1, ..AggregatorOptions::default() };
    let mut bench = bench(workers, width, &options, None);
    bench.aggregator.set_element(element).expect("written");
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut of = |iterations: u32| {
        let before = bench.state(0);
        bench.sum(&arrays(&mut rng, (workers, BLOCK), (BLOCK * width * iterations) as usize, 0), element);
        // The last answers are completed after the workers have them.
        flexcast_tests::world::settle();
        let after = bench.state(0);
        assert_eq!(after.messages - before.messages, u64::from(workers * (iterations + 1)));
        after.instructions - before.instructions
    };
    // What begins and ends an operation is in both.
    let (few, many) = (of(4), of(4 + ITERATIONS));
    many - few
}

/// The figures of SPECIFICATION.md and docs/sparse-dpa.md.
#[test]
fn instructions_per_block_and_per_message() {
    if !compiled_as_recorded("sparse") {
        return;
    }
    let messages = u64::from(4 * ITERATIONS);
    let overhead = |width: u32, element| {
        let block = if element == AggregatorElement::I32 { 504 } else { 280 };
        instructions(4, width, element) - messages * u64::from(width) * block
    };
    for (width, narrow, wide) in [(1, 12_213, 12_197), (16, 24_453, 24_437)] {
        let all = ELEMENTS.map(|element| overhead(width, element));
        println!(
            "4 workers, {width} blocks: {:?} instructions for each message outside the loops",
            all.map(|all| all / messages)
        );
        assert_eq!(all, [narrow, wide], "of {messages} messages");
    }
}

/// Incoming blocks in Gbit/s: dense arrays of four workers, each on a card with a link of 200 Gbit/s, to one card's
/// aggregators.
fn rate(
    units: &[u32],
    (coroutines, width): (u32, u32),
    iterations: u32,
    element: AggregatorElement,
    timing: Timing,
) -> f64 {
    const WORKERS: u32 = 4;
    let options =
        AggregatorOptions { units: units.to_vec(), coroutines, cache_bytes: u64::MAX, ..AggregatorOptions::default() };
    let mut bench = bench(WORKERS, width, &options, Some(timing));
    bench.aggregator.set_element(element).expect("written");
    let bytes = (BLOCK * width * iterations * options.shards()) as usize;
    let arrays = arrays(&mut ChaCha8Rng::seed_from_u64(7), (WORKERS, BLOCK), bytes, 0);
    let span_ps = bench.sum(&arrays, element);
    f64::from(WORKERS) * bytes as f64 * 8e3 / span_ps as f64
}

/// Bytes of lines that harts of one core, a shard each, load or store beyond L2 for each byte of blocks of four
/// workers, once all is warm; and the same of what L2 has.
fn memory_per_byte(width: u32, timing: Timing) -> (f64, u64) {
    const WORKERS: u32 = 4;
    let options = AggregatorOptions {
        units: (16..32).collect(),
        coroutines: 1,
        cache_bytes: u64::MAX,
        ..AggregatorOptions::default()
    };
    let mut bench = bench(WORKERS, width, &options, Some(timing));
    bench.aggregator.set_element(AggregatorElement::I64).expect("written");
    let bytes = (BLOCK * width * 2 * options.shards()) as usize;
    let arrays = arrays(&mut ChaCha8Rng::seed_from_u64(7), (WORKERS, BLOCK), bytes, 0);
    // All entries of all queues have been used then, and after that all spots.
    let zeros = vec![vec![0; bytes]; WORKERS as usize];
    for arrays in std::iter::repeat_n(&zeros, 20).chain([&arrays, &arrays]) {
        bench.sum(arrays, AggregatorElement::I64);
    }
    let before = Accesses::now().expect("a machine");
    bench.sum(&arrays, AggregatorElement::I64);
    let mut counted = None;
    Accesses::add_since(&mut counted, before.as_ref()).expect("a machine");
    let levels = counted.expect("a timing model counts them").all;
    (levels.bytes_beyond_l2() as f64 / (WORKERS as usize * bytes) as f64, levels.beyond_l1()[0])
}

/// Sums are made of what lies in L2 alone as long as all spots fit it, without a temporary buffer; then lines come from
/// memory, and go there.
#[test]
fn spots_that_fit_l2_cost_no_memory() {
    let m2 = Timing::m2;
    let spots = |width: u32| u64::from(16 * 6 * width) * u64::from(BLOCK + 4);
    let l2_bytes = m2().get("caches", "l2_bytes").expect("a parameter").value;
    assert!(spots(15) < l2_bytes && spots(16) > l2_bytes);
    let all = [8, 16, 24].map(|width| memory_per_byte(width, m2()));
    println!("bytes beyond L2 per byte of blocks, 8, 16 and 24 blocks in a message: {all:?} (emulated, M.2)");
    let [half, just, beyond] = all.map(|(part, _)| part);
    assert_eq!(half, 0.0, "half of L2");
    assert!((0.01..0.3).contains(&just) && beyond > 0.5, "{all:?}");
    // What comes is loaded once; in addition to it, and to the sums that are stored, there is little: 64 bytes of a
    // line for each 64 of blocks.
    let (_, loads) = all[0];
    let lines = f64::from(4 * 16 * 2 * 8 * BLOCK / 64);
    assert!((1.0..1.35).contains(&(loads as f64 / lines)), "{loads} lines from L2 for {lines} of blocks");
    let larger = memory_per_byte(16, m2().with("caches", "l2_bytes", 4 << 20).expect("a power of two of sets"));
    assert_eq!(larger.0, 0.0, "a larger cache");
}

/// The table of docs/sparse-dpa.md: minutes, so by `--ignored` alone.
#[test]
#[ignore = "minutes, and prints the table of docs/sparse-dpa.md: cargo test -p flexcast-tests --test sparse rates:: -- \
    --ignored --nocapture"]
fn rates_of_more_and_more_harts() {
    println!(
        "| Harts | Cores | Shards | Blocks per message | Spots, KiB | i32, Gbit/s | i64 and fixed point, Gbit/s |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for (harts, coroutines, width) in [
        (1, 2, 16),
        (8, 1, 16),
        (16, 1, 8),
        (16, 1, 16),
        (32, 1, 8),
        (64, 1, 4),
        (96, 1, 2),
        (128, 1, 2),
        (144, 1, 2),
        (160, 1, 2),
        (174, 1, 1),
        (174, 1, 2),
    ] {
        let units: Vec<u32> = (16..16 + harts).collect();
        let iterations = if harts < 64 { 8 } else { 48 };
        let [narrow, wide] =
            ELEMENTS.map(|element| rate(&units, (coroutines, width), iterations, element, Timing::m2()));
        let shards = harts * coroutines;
        let spots = u64::from(shards * 6 * width * (BLOCK + 4)) >> 10;
        println!("| {harts} | {} | {shards} | {width} | {spots} | {narrow:.1} | {wide:.1} |", harts.div_ceil(16));
    }
    // What the link brings: the same with a cache that all spots fit in.
    let units: Vec<u32> = (16..190).collect();
    let timing = || Timing::m2().with("caches", "l2_bytes", 24 << 20).expect("a parameter");
    let [narrow, wide] = ELEMENTS.map(|element| rate(&units, (1, 2), 48, element, timing()));
    println!("174 harts, 2 blocks per message, an L2 of 24 MiB: {narrow:.1} and {wide:.1} Gbit/s");
}

/// One core, in a short run; the fuller its harts are, the nearer it comes to one instruction per cycle.
#[test]
fn a_core_adds_up_what_a_tenth_of_the_link_brings() {
    let units: Vec<u32> = (16..32).collect();
    let [narrow, wide] = ELEMENTS.map(|element| rate(&units, (1, 8), 8, element, Timing::m2()));
    println!("one core, 16 harts: {narrow:.3} and {wide:.3} Gbit/s (emulated, M.2)");
    if compiled_as_recorded("sparse") {
        assert_eq!((format!("{narrow:.1}"), format!("{wide:.1}")), ("23.3".to_owned(), "32.8".to_owned()));
    }
}
