//! Bytes per second that one core sums up: blocks of 1 KiB, as sparse AllReduce adds them, and arrays beyond the
//! caches.
//!
//! `cargo bench -p flexcast-reduce --bench reduce -- [--quick]`. The loop that it is compared with is compiled for what
//! every processor has. Each figure is the best of several runs, for the disturbances of a shared machine only ever
//! slow a run down.

use std::hint::black_box;
use std::time::Instant;

use flexcast_reduce::{DataType, Operator, Reduction};

const TYPES: [DataType; 7] =
    [DataType::F32, DataType::F64, DataType::F16, DataType::BF16, DataType::I8, DataType::I32, DataType::I64];
const BLOCK_BYTES: usize = 1 << 10;
const ARRAY_BYTES: usize = 64 << 20;

/// The sum of numbers of single precision, without a choice of instructions.
fn plain(to: &mut [u8], from: &[u8]) {
    let ((to, _), (from, _)) = (to.as_chunks_mut(), from.as_chunks());
    for (to, from) in to.iter_mut().zip(from) {
        *to = (f32::from_ne_bytes(*to) + f32::from_ne_bytes(*from)).to_ne_bytes();
    }
}

/// Bytes of the left operand per second, in GB/s: `len` bytes, block by block.
fn rate(len: usize, rounds: usize, runs: usize, mut add: impl FnMut(&mut [u8], &[u8])) -> f64 {
    let (mut to, from) = (vec![0; len], vec![0; len]);
    let mut run = || {
        let begun = Instant::now();
        for _ in 0..rounds {
            for (to, from) in to.chunks_mut(BLOCK_BYTES).zip(from.chunks(BLOCK_BYTES)) {
                add(black_box(to), black_box(from));
            }
        }
        (len * rounds) as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    (0..runs).map(|_| run()).fold(0.0, f64::max)
}

fn main() {
    let quick = std::env::args().any(|word| word == "--quick");
    let (runs, scale) = if quick { (1, 8) } else { (5, 1) };
    let line = |name: &str, add: &dyn Fn(&mut [u8], &[u8])| {
        let block = rate(BLOCK_BYTES, 200_000 / scale, runs, add);
        let array = rate(ARRAY_BYTES / scale, 1, runs, add);
        println!("{name:<28} {block:>12.1} {array:>12.1}");
    };
    println!("measured: sums on one core, GB/s of the left operand, best of {runs}");
    println!("{:<28} {:>12} {:>12}", "elements", "1 KiB", format!("{} MiB", (ARRAY_BYTES / scale) >> 20));
    for data_type in TYPES {
        let sum = Reduction::of(Operator::Sum, data_type).expect("sums of numbers");
        line(&data_type.to_string(), &|to, from| sum.combine(to, from));
    }
    line("f32, what every processor has", &plain);
}
